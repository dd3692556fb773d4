//! The whole cell in one small picture, and what changes in it.
//!
//! A watch remembers the picture its reader has and sends what differs, at most once a second: so
//! a reader costs the difference, whatever went on in between, and one that falls behind gets
//! fewer and fresher pictures. Rejected: following the event feed for it. Usage is in no event, and
//! a plan for ten thousand tasks is ten thousand events and one difference.

use super::call::Call;
use super::cluster::add;
use super::watch::{Pulse, frame, streaming};
use super::{Answered, Api, reply, view};
use crate::usage::Usage;
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_api::types::{
    MACHINE_DOWN, MACHINE_DRAINING, MACHINE_OVER_COMMITTED, MACHINE_SHORT, MachineColumns,
    Overview, TaskCounts,
};
use cellwright_cell::id::MachineId;
use cellwright_cell::load::MachineLoad;
use cellwright_cell::machine::{Machine, MachineStatus};
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;
use futures::stream;
use std::collections::BTreeMap;
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

    fn list(&self, machine: MachineId, row: &Machine, columns: &mut MachineColumns) {
        columns.id.push(machine.0);
        columns.name.push(row.spec.name.clone());
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

/// What a reader has seen.
#[derive(Default)]
struct Picture {
    squares: BTreeMap<MachineId, Square>,
    sums: Option<Overview>,
}

impl Picture {
    /// The cell as it is, and in it the machines that the reader has not seen so.
    fn advance(&mut self, state: &State, usage: &Usage) -> Overview {
        let mut now = empty(state);
        now.whole = self.sums.is_none();
        let none = MachineLoad::default();
        let mut seen = std::mem::take(&mut self.squares);
        for (id, row) in state.machines().iter() {
            let load = state.machine_load(id).unwrap_or(&none);
            let used = usage.of_machine(id);
            count(&mut now, row, load, used);
            let square = Square::of(row, load, used);
            if seen.remove(&id) != Some(square) {
                square.list(id, row, &mut now.machines);
            }
            self.squares.insert(id, square);
        }
        now.gone = seen.into_keys().map(|id| id.0).collect();
        for (id, _) in state.jobs().iter() {
            if let Some(load) = state.job_load(id) {
                add(&mut now.tasks, &view::counts(load));
            }
        }
        now
    }

    /// As [`Picture::advance`]; nothing when the reader has seen it all.
    fn news(&mut self, state: &State, usage: &Usage) -> Option<Overview> {
        let now = self.advance(state, usage);
        let sums = Overview {
            machines: MachineColumns::default(),
            gone: Vec::new(),
            whole: false,
            now: cellwright_cell::time::Time(0),
            ..now.clone()
        };
        let is_same =
            now.machines.id.is_empty() && now.gone.is_empty() && self.sums.as_ref() == Some(&sums);
        self.sums = Some(sums);
        (!is_same).then_some(now)
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

/// A reader of the picture.
struct Reader {
    api: Api,
    pulse: Pulse,
    picture: Picture,
    next: Instant,
}

impl Reader {
    /// The next words on the stream; nothing when it is over.
    async fn turn(&mut self) -> Option<String> {
        let quiet = Instant::now() + QUIET;
        loop {
            sleep_until(self.next).await;
            if !self.pulse.is_let_in() {
                return None;
            }
            self.pulse.take();
            let usage = self.api.handle.usage().await;
            let view = self.api.handle.read();
            self.next = Instant::now() + PACE;
            if let Some(mut news) = self.picture.news(&view.state, &usage) {
                news.index = view.index;
                let mut out = String::new();
                frame(&mut out, "overview", Some(view.index), &news);
                return Some(out);
            }
            if Instant::now() >= quiet {
                return Some(": still here\n\n".into());
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
            Ok(Picture::default().advance(&view.state, &usage))
        };
        let mut overview = self.blocking(made).await?;
        (overview.index, overview.consistent) = (index, consistent);
        Ok(reply::read(&call, index, consistent, &overview))
    }

    pub(super) async fn watch_overview(&self, call: Call) -> Answered {
        let (api, pulse) = (self.clone(), Pulse::new(self, &call));
        let reader = Reader { api, pulse, picture: Picture::default(), next: Instant::now() };
        let chunks = stream::unfold(reader, |mut reader| async move {
            let out = reader.turn().await?;
            Some((Ok(Bytes::from(out)), reader))
        });
        Ok(streaming(chunks))
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
