//! The whole cell in one small picture, and what changes in it.
//!
//! A watch remembers which picture its reader has and sends what differs, at most once a second: so
//! a reader costs the difference, whatever went on in between, and one that falls behind gets
//! fewer and fresher pictures. Pictures are made once for all who watch, and so is what leads from
//! one to the next: a thousand readers hold one picture and are sent the same bytes.
//!
//! Rejected: following the event feed for it. Usage is in no event, and a plan for ten thousand
//! tasks is ten thousand events and one difference.

use super::call::Call;
use super::cluster::add;
use super::watch::{Pulse, frame};
use super::{Answered, Api, reply, view};
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
use cellwright_master::usage::Usage;
use futures::stream;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// Least time between two pictures.
const PACE: Duration = Duration::from_secs(1);
/// Usage changes without the log's saying so.
const USAGE: Duration = Duration::from_secs(2);
/// Signs of life when nothing changes.
const QUIET: Duration = Duration::from_secs(10);

/// One machine in the picture, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Square {
    state: u8,
    tasks: u32,
    used: Option<Shares>,
    reserved: Shares,
    limit: Shares,
    production: Shares,
}

/// Percent of a machine's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    cpu: u16,
    ram: u16,
}

impl Shares {
    fn of(amount: Resources, capacity: Resources) -> Shares {
        Shares { cpu: percent(amount.cpu, capacity.cpu), ram: percent(amount.ram, capacity.ram) }
    }
}

/// Rounded to the nearest; of a machine that has none of it, nothing.
fn percent(amount: u64, capacity: u64) -> u16 {
    let share = (amount.saturating_mul(100).saturating_add(capacity / 2)).checked_div(capacity);
    u16::try_from(share.unwrap_or(0)).unwrap_or(u16::MAX)
}

impl Square {
    fn of(row: &Machine, load: &MachineLoad, used: Option<Resources>) -> Square {
        let capacity = row.spec.capacity;
        let bit = |holds: bool, bit: u8| if holds { bit } else { 0 };
        Square {
            state: bit(row.status == MachineStatus::Down, MACHINE_DOWN)
                | bit(row.draining, MACHINE_DRAINING)
                | bit(row.over_committed, MACHINE_OVER_COMMITTED)
                | bit(row.takes_only_prod(), MACHINE_SHORT),
            tasks: load.tasks.len() as u32,
            used: used.map(|used| Shares::of(used, capacity)),
            reserved: Shares::of(load.reserved, capacity),
            limit: Shares::of(load.limits, capacity),
            production: Shares::of(load.prod_limits, capacity),
        }
    }

    fn list(&self, machine: MachineId, name: Name, columns: &mut MachineColumns) {
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

/// The cell at one moment.
#[derive(Default)]
struct Picture {
    /// Pictures are counted; each is newer than those before.
    number: u64,
    index: u64,
    /// In the order of their ids.
    squares: Vec<(MachineId, Square)>,
    names: Vec<Name>,
    sums: Option<Overview>,
    /// What leads here from earlier pictures, as it stands on streams; by their numbers, 0 for
    /// whoever has none.
    ways: Mutex<BTreeMap<u64, Bytes>>,
}

impl Picture {
    fn of(state: &State, usage: &Usage) -> Picture {
        let mut sums = empty(state);
        let none = MachineLoad::default();
        let (mut squares, mut names) = (Vec::new(), Vec::new());
        for (id, row) in state.machines().iter() {
            let load = state.machine_load(id).unwrap_or(&none);
            let used = usage.of_machine(id);
            count(&mut sums, row, load, used);
            squares.push((id, Square::of(row, load, used)));
            names.push(row.spec.name.clone());
        }
        for (id, _) in state.jobs().iter() {
            if let Some(load) = state.job_load(id) {
                add(&mut sums.tasks, &view::counts(load));
            }
        }
        Picture { squares, names, sums: Some(sums), ..Picture::default() }
    }

    /// The cell as it is, and in it the machines that a reader of `seen` has not seen so.
    fn since(&self, state: &State, seen: Option<&Picture>) -> Overview {
        let mut now = self.sums.clone().unwrap_or_else(|| empty(state));
        now.whole = seen.is_none();
        let known: BTreeMap<MachineId, Square> =
            seen.iter().flat_map(|seen| seen.squares.iter().copied()).collect();
        for ((id, square), name) in self.squares.iter().zip(&self.names) {
            if known.get(id) != Some(square) {
                square.list(*id, name.clone(), &mut now.machines);
            }
        }
        let here: BTreeSet<MachineId> = self.squares.iter().map(|(id, _)| *id).collect();
        now.gone = known.into_keys().filter(|id| !here.contains(id)).map(|id| id.0).collect();
        now
    }

    /// Whether a reader of the other one would learn nothing here.
    fn is_like(&self, other: &Picture) -> bool {
        let timeless = |picture: &Picture| {
            let now = cellwright_cell::time::Time(0);
            picture.sums.clone().map(|sums| Overview { now, ..sums })
        };
        self.squares == other.squares && timeless(self) == timeless(other)
    }
}

/// The newest picture, made when somebody looks and the last one is old.
#[derive(Default)]
pub(super) struct Gallery {
    newest: tokio::sync::Mutex<Option<(Instant, Arc<Picture>)>>,
}

/// Ways kept with a picture: readers in step share one, and those that are behind are few.
const MOST_WAYS: usize = 8;

fn ways(picture: &Picture) -> MutexGuard<'_, BTreeMap<u64, Bytes>> {
    picture.ways.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Api {
    /// A picture no older than [`PACE`]; a new one only if there is something new in it.
    async fn picture(&self) -> Arc<Picture> {
        let mut newest = self.gallery.newest.lock().await;
        if let Some((at, picture)) = &*newest
            && at.elapsed() < PACE
        {
            return picture.clone();
        }
        let usage = self.handle.usage().await;
        let view = self.handle.read();
        let mut made = Picture::of(&view.state, &usage);
        let picture = match newest.take() {
            Some((_, last)) if made.is_like(&last) => last,
            last => {
                // Whoever has seen it keeps it; nobody is sent there any more.
                last.iter().for_each(|(_, last)| ways(last).clear());
                made.number = last.map_or(0, |(_, last)| last.number) + 1;
                made.index = view.index;
                Arc::new(made)
            }
        };
        *newest = Some((Instant::now(), picture.clone()));
        picture
    }

    /// What a reader of `seen` is sent to get to `picture`.
    fn way(&self, picture: &Picture, seen: Option<&Picture>) -> Bytes {
        let from = seen.map_or(0, |seen| seen.number);
        if let Some(known) = ways(picture).get(&from) {
            return known.clone();
        }
        let state = self.handle.read().state;
        let mut news = picture.since(&state, seen);
        news.index = picture.index;
        let mut out = String::new();
        frame(&mut out, "overview", Some(picture.index), &news);
        let out = Bytes::from(out);
        let mut ways = ways(picture);
        if ways.len() < MOST_WAYS {
            ways.insert(from, out.clone());
        }
        out
    }
}

fn empty(state: &State) -> Overview {
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

fn count(sum: &mut Overview, row: &Machine, load: &MachineLoad, used: Option<Resources>) {
    sum.machines_up += u32::from(row.status == MachineStatus::Up);
    sum.machines_draining += u32::from(row.draining);
    sum.limits = sum.limits.plus(load.limits);
    sum.production = sum.production.plus(load.prod_limits);
    sum.reserved = sum.reserved.plus(load.reserved);
    sum.used = sum.used.plus(used.unwrap_or_default());
    sum.machines_measured += u32::from(used.is_some());
}

/// A reader of pictures.
struct Reader {
    api: Api,
    pulse: Pulse,
    seen: Option<Arc<Picture>>,
    next: Instant,
}

impl Reader {
    /// The next words on the stream; nothing when it is over.
    async fn turn(&mut self) -> Option<Bytes> {
        let quiet = Instant::now() + QUIET;
        loop {
            sleep_until(self.next).await;
            if !self.pulse.is_let_in() {
                return None;
            }
            self.pulse.take();
            let picture = self.api.picture().await;
            self.next = Instant::now() + PACE;
            if self.seen.as_ref().is_none_or(|seen| seen.number < picture.number) {
                let out = self.api.way(&picture, self.seen.as_deref());
                self.seen = Some(picture);
                return Some(out);
            }
            if Instant::now() >= quiet {
                return Some(Bytes::from_static(b": still here\n\n"));
            }
            // Time alone brings news of usage; the end of the master ends the watch.
            if let Ok(None) = timeout(USAGE, self.pulse.next()).await {
                return None;
            }
        }
    }
}

impl Api {
    pub(super) async fn overview(&self, call: Call) -> Answered {
        let (view, consistent) = call.view(self).await?;
        let (usage, index) = (self.handle.usage().await, view.index);
        let made = move |_: &Api| -> Result<Overview, ApiError> {
            Ok(Picture::of(&view.state, &usage).since(&view.state, None))
        };
        let mut overview = self.blocking(made).await?;
        (overview.index, overview.consistent) = (index, consistent);
        Ok(reply::read(&call, index, consistent, &overview))
    }

    pub(super) async fn watch_overview(&self, call: Call) -> Answered {
        let (api, pulse) = (self.clone(), Pulse::new(self, &call));
        let reader = Reader { api, pulse, seen: None, next: Instant::now() };
        let chunks = stream::unfold(reader, |mut reader| async move {
            let out = reader.turn().await?;
            Some((out, reader))
        });
        self.streaming(&call, chunks)
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
