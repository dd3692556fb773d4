//! The overview: a compact snapshot of the whole cell, and a watch of its changes.
//!
//! A watch remembers the last snapshot sent to its reader and sends the difference, at most once a
//! second: so a reader costs only the difference, whatever happened in between, and one that falls
//! behind gets fewer and fresher snapshots. Snapshots are made once for all watches, and so are the
//! updates from one to the next: a thousand readers share one snapshot and are sent the same bytes.
//!
//! Rejected: following the event feed for it. Usage is in no event, and a plan for ten thousand
//! tasks is ten thousand events and one difference.

use super::call::Call;
use super::cluster::add_counts;
use super::watch::{ChangeWatch, write_frame};
use super::{Api, ApiResult, reply, view};
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_api::types::{
    MACHINE_DOWN, MACHINE_DRAINING, MACHINE_OVER_COMMITTED, MACHINE_SHORT, MachineColumns,
    Overview, TaskCounts,
};
use cellwright_cell::id::MachineId;
use cellwright_cell::load::MachineLoad;
use cellwright_cell::machine::{Machine, MachineStatus};
use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;
use cellwright_master::usage::UsageSnapshot;
use futures::stream;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// Minimum interval between two snapshots.
const MIN_SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of refreshing usage, which changes without entries in the log.
const USAGE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of keep-alives when nothing changes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// One machine in the snapshot, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MachineSummary {
    state: u8,
    tasks: u32,
    used: Option<UsagePercent>,
    reserved: UsagePercent,
    limit: UsagePercent,
    production: UsagePercent,
}

/// Percent of a machine's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UsagePercent {
    cpu: u16,
    ram: u16,
}

impl UsagePercent {
    fn of(amount: Resources, capacity: Resources) -> UsagePercent {
        UsagePercent {
            cpu: percent(amount.cpu, capacity.cpu),
            ram: percent(amount.ram, capacity.ram),
        }
    }
}

/// Rounded to the nearest; 0 for a machine without capacity.
fn percent(amount: u64, capacity: u64) -> u16 {
    let share = (amount.saturating_mul(100).saturating_add(capacity / 2)).checked_div(capacity);
    u16::try_from(share.unwrap_or(0)).unwrap_or(u16::MAX)
}

impl MachineSummary {
    fn of(row: &Machine, load: &MachineLoad, used: Option<Resources>) -> MachineSummary {
        let capacity = row.spec.capacity;
        let bit = |holds: bool, bit: u8| if holds { bit } else { 0 };
        MachineSummary {
            state: bit(row.status == MachineStatus::Down, MACHINE_DOWN)
                | bit(row.draining, MACHINE_DRAINING)
                | bit(row.over_committed, MACHINE_OVER_COMMITTED)
                | bit(row.accepts_only_prod(), MACHINE_SHORT),
            tasks: load.tasks.len() as u32,
            used: used.map(|used| UsagePercent::of(used, capacity)),
            reserved: UsagePercent::of(load.reserved, capacity),
            limit: UsagePercent::of(load.limits, capacity),
            production: UsagePercent::of(load.prod_limits, capacity),
        }
    }

    fn push_to(&self, machine: MachineId, name: Name, columns: &mut MachineColumns) {
        columns.id.push(machine.0);
        columns.name.push(name);
        columns.state.push(self.state);
        columns.tasks.push(self.tasks);
        columns.cpu_used.push(self.used.map(|used| used.cpu));
        columns.cpu_reserved.push(self.reserved.cpu);
        columns.cpu_limit.push(self.limit.cpu);
        columns.cpu_production.push(self.production.cpu);
        columns.ram_used.push(self.used.map(|used| used.ram));
        columns.ram_reserved.push(self.reserved.ram);
        columns.ram_limit.push(self.limit.ram);
        columns.ram_production.push(self.production.ram);
    }
}

/// A snapshot of the cell.
#[derive(Default)]
struct OverviewSnapshot {
    /// Sequence number; each snapshot is newer than those before.
    number: u64,
    index: u64,
    /// In the order of their ids.
    machines: Vec<(MachineId, MachineSummary)>,
    names: Vec<Name>,
    sums: Option<Overview>,
    /// Serialized updates from earlier snapshots to this one, by their numbers; 0 for a reader
    /// without one.
    updates: Mutex<BTreeMap<u64, Bytes>>,
}

impl OverviewSnapshot {
    fn of(state: &State, usage: &UsageSnapshot) -> OverviewSnapshot {
        let mut sums = empty_overview(state);
        let none = MachineLoad::default();
        let (mut machines, mut names) = (Vec::new(), Vec::new());
        for (id, row) in state.machines().iter() {
            let load = state.machine_load(id).unwrap_or(&none);
            let used = usage.of_machine(id);
            add_machine(&mut sums, row, load, used);
            machines.push((id, MachineSummary::of(row, load, used)));
            names.push(row.spec.name.clone());
        }
        for (id, _) in state.jobs().iter() {
            if let Some(load) = state.job_load(id) {
                add_counts(&mut sums.tasks, &view::task_counts(load));
            }
        }
        OverviewSnapshot { machines, names, sums: Some(sums), ..OverviewSnapshot::default() }
    }

    /// The totals, and the machines that changed since `last_sent`.
    fn changes_since(&self, state: &State, last_sent: Option<&OverviewSnapshot>) -> Overview {
        let mut now = self.sums.clone().unwrap_or_else(|| empty_overview(state));
        now.whole = last_sent.is_none();
        let known_machines: BTreeMap<MachineId, MachineSummary> =
            last_sent.iter().flat_map(|seen| seen.machines.iter().copied()).collect();
        for ((id, square), name) in self.machines.iter().zip(&self.names) {
            if known_machines.get(id) != Some(square) {
                square.push_to(*id, name.clone(), &mut now.machines);
            }
        }
        let present: BTreeSet<MachineId> = self.machines.iter().map(|(id, _)| *id).collect();
        now.gone =
            known_machines.into_keys().filter(|id| !present.contains(id)).map(|id| id.0).collect();
        now
    }

    /// Whether a reader of the other snapshot would see no difference.
    fn is_same_as(&self, other: &OverviewSnapshot) -> bool {
        let timeless = |snapshot: &OverviewSnapshot| {
            let now = cellwright_cell::time::Time(0);
            snapshot.sums.clone().map(|sums| Overview { now, ..sums })
        };
        self.machines == other.machines && timeless(self) == timeless(other)
    }
}

/// The newest snapshot, made on demand when the last one is old.
#[derive(Default)]
pub(super) struct OverviewCache {
    newest: tokio::sync::Mutex<Option<(Instant, Arc<OverviewSnapshot>)>>,
}

/// Updates kept with a snapshot: readers in step share one, and those that are behind are few.
const MAX_UPDATES: usize = 8;

fn updates(snapshot: &OverviewSnapshot) -> MutexGuard<'_, BTreeMap<u64, Bytes>> {
    snapshot.updates.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Api {
    /// A snapshot no older than [`MIN_SNAPSHOT_INTERVAL`]; a new one only if something changed.
    async fn overview_snapshot(&self) -> Arc<OverviewSnapshot> {
        let mut newest = self.overview_cache.newest.lock().await;
        if let Some((at, snapshot)) = &*newest
            && at.elapsed() < MIN_SNAPSHOT_INTERVAL
        {
            return snapshot.clone();
        }
        let usage = self.handle.usage().await;
        let view = self.handle.read();
        let mut fresh = OverviewSnapshot::of(&view.state, &usage);
        let snapshot = match newest.take() {
            Some((_, last)) if fresh.is_same_as(&last) => last,
            last => {
                // Readers hold what they need of it; no new update leads to it.
                last.iter().for_each(|(_, last)| updates(last).clear());
                fresh.number = last.map_or(0, |(_, last)| last.number) + 1;
                fresh.index = view.index;
                Arc::new(fresh)
            }
        };
        *newest = Some((Instant::now(), snapshot.clone()));
        snapshot
    }

    /// The update that brings a reader of `last_sent` to `snapshot`.
    fn update_for(
        &self,
        snapshot: &OverviewSnapshot,
        last_sent: Option<&OverviewSnapshot>,
    ) -> Bytes {
        let from = last_sent.map_or(0, |seen| seen.number);
        if let Some(known) = updates(snapshot).get(&from) {
            return known.clone();
        }
        let state = self.handle.read().state;
        let mut overview = snapshot.changes_since(&state, last_sent);
        overview.index = snapshot.index;
        let mut out = String::new();
        write_frame(&mut out, "overview", Some(snapshot.index), &overview);
        let out = Bytes::from(out);
        let mut updates = updates(snapshot);
        if updates.len() < MAX_UPDATES {
            updates.insert(from, out.clone());
        }
        out
    }
}

fn empty_overview(state: &State) -> Overview {
    Overview {
        whole: true,
        machines: MachineColumns::default(),
        gone: Vec::new(),
        machines_total: state.machines().len() as u32,
        machines_up: 0,
        machines_draining: 0,
        capacity: state.capacity(),
        limits: Resources::ZERO,
        production: Resources::ZERO,
        reserved: Resources::ZERO,
        used: Resources::ZERO,
        machines_measured: 0,
        jobs: state.jobs().len() as u32,
        tasks: TaskCounts::default(),
        users: state.users().len() as u32,
        now: state.now(),
        index: 0,
        consistent: false,
    }
}

fn add_machine(sum: &mut Overview, row: &Machine, load: &MachineLoad, used: Option<Resources>) {
    sum.machines_up += u32::from(row.status == MachineStatus::Up);
    sum.machines_draining += u32::from(row.draining);
    sum.limits = sum.limits.plus(load.limits);
    sum.production = sum.production.plus(load.prod_limits);
    sum.reserved = sum.reserved.plus(load.reserved);
    sum.used = sum.used.plus(used.unwrap_or_default());
    sum.machines_measured += u32::from(used.is_some());
}

/// A reader of overviews.
struct OverviewReader {
    api: Api,
    changes: ChangeWatch,
    last_sent: Option<Arc<OverviewSnapshot>>,
    next: Instant,
}

impl OverviewReader {
    /// The next frame of the stream; `None` when it is over.
    async fn next_frame(&mut self) -> Option<Bytes> {
        let keep_alive_at = Instant::now() + KEEP_ALIVE_INTERVAL;
        loop {
            sleep_until(self.next).await;
            if !self.changes.is_admitted() {
                return None;
            }
            self.changes.mark_seen();
            let snapshot = self.api.overview_snapshot().await;
            self.next = Instant::now() + MIN_SNAPSHOT_INTERVAL;
            if self.last_sent.as_ref().is_none_or(|seen| seen.number < snapshot.number) {
                let out = self.api.update_for(&snapshot, self.last_sent.as_deref());
                self.last_sent = Some(snapshot);
                return Some(out);
            }
            if Instant::now() >= keep_alive_at {
                return Some(Bytes::from_static(b": still here\n\n"));
            }
            // A timeout means that usage may have changed; the master's shutdown ends the watch.
            if let Ok(None) = timeout(USAGE_INTERVAL, self.changes.next()).await {
                return None;
            }
        }
    }
}

impl Api {
    pub(super) async fn overview(&self, call: Call) -> ApiResult {
        let (view, consistent) = call.view(self).await?;
        let (usage, index) = (self.handle.usage().await, view.index);
        let overview_of = move |_: &Api| -> Result<Overview, ApiError> {
            Ok(OverviewSnapshot::of(&view.state, &usage).changes_since(&view.state, None))
        };
        let mut overview = self.run_blocking(overview_of).await?;
        (overview.index, overview.consistent) = (index, consistent);
        Ok(reply::read(&call, index, consistent, &overview))
    }

    pub(super) async fn watch_overview(&self, call: Call) -> ApiResult {
        let (api, changes) = (self.clone(), ChangeWatch::new(self, &call));
        let reader = OverviewReader { api, changes, last_sent: None, next: Instant::now() };
        let chunks = stream::unfold(reader, |mut reader| async move {
            let out = reader.next_frame().await?;
            Some((out, reader))
        });
        self.stream_response(&call, chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_and_of_nothing_are_nothing() {
        assert_eq!([percent(0, 0), percent(5, 0)], [0, 0]);
        assert_eq!([percent(1, 3), percent(2, 3), percent(3, 3)], [33, 67, 100]);
        assert_eq!(percent(5, 2), 250, "more than there is shows as more");
        assert_eq!(percent(u64::MAX, 1), u16::MAX);
    }
}
