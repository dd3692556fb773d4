//! The kernel and the shims of a virtual machine: programs are rows in a table. A row starts after
//! a while, uses what its behaviour wants and the machine has, and ends by itself, by its lease, by
//! its `max_run`, or because it is asked to.

use super::profile::{Behaviour, OwnEnd, Profile};
use super::{AgentBugs, Pace, Ran};
use cellwright_agent_core::agent::Event;
use cellwright_agent_core::control::Room;
use cellwright_agent_core::decide::{End, Health};
use cellwright_agent_core::health::Checker;
use cellwright_agent_core::usage::Reading;
use cellwright_cell::desired::{Action as Order, DesiredTask, Work};
use cellwright_cell::health::HealthCheck;
use cellwright_cell::id::Attempt;
use cellwright_cell::resource::Resources;
use cellwright_cell::task::{ExitClass, Notice};
use std::collections::BTreeMap;
use std::time::Duration;

/// One program.
#[derive(Clone, Debug)]
pub struct Row {
    pub order: DesiredTask,
    pub work: Work,
    behaviour: Behaviour,
    /// When it begins to run.
    ready: u64,
    pub started: Option<u64>,
    lease_until: Option<u64>,
    /// When it is gone that was asked to stop, and how.
    leaves: Option<(u64, Notice)>,
    probes: Option<(Checker, u64, Health)>,
    pub cpu_cap: Option<u64>,
    pub io_cap: Option<u64>,
    reading: Reading,
    /// What it wanted and what it got at the last look.
    pub wants: Resources,
    pub has: Resources,
}

impl Row {
    /// Of CPU, what it wanted and did not get.
    #[must_use]
    pub fn lacks(&self) -> u64 {
        self.wants.cpu.saturating_sub(self.has.cpu)
    }

    fn run_until(&self) -> Option<u64> {
        let started = self.started?;
        self.work.max_run.map(|length| started.saturating_add(length.0))
    }

    /// Its own end: when, and how.
    fn own_end(&self) -> Option<(u64, End)> {
        let started = self.started?;
        match self.behaviour.ends {
            OwnEnd::Never => None,
            OwnEnd::Finish(after) => Some((started.saturating_add(after), End::Finished)),
            OwnEnd::Fail(after) => {
                Some((started.saturating_add(after), End::Failed(ExitClass::Code(1))))
            }
        }
    }

    /// Whether it has been ill for so long that its checks must have found out.
    #[must_use]
    pub fn is_ill_for_long(&self, now: u64) -> bool {
        let (Some(started), Some(check)) = (self.started, self.check()) else { return false };
        let Some(after) = self.behaviour.ill_after else { return false };
        let found = check.interval.0.saturating_mul(u64::from(check.failures) + 2);
        now > started.saturating_add(after).max(started + check.start_period.0) + found
    }

    fn check(&self) -> Option<&HealthCheck> {
        self.work.health.as_ref()
    }
}

#[derive(Clone, Debug, Default)]
pub struct Kernel {
    rows: BTreeMap<Attempt, Row>,
    /// What began and ended since somebody asked.
    pub history: Vec<Ran>,
    looked: u64,
}

impl Kernel {
    #[must_use]
    pub fn rows(&self) -> &BTreeMap<Attempt, Row> {
        &self.rows
    }

    /// Programs that run now.
    pub fn running(&self) -> impl Iterator<Item = (&Attempt, &Row)> {
        self.rows.iter().filter(|(_, row)| row.started.is_some())
    }

    pub fn row_mut(&mut self, attempt: Attempt) -> Option<&mut Row> {
        self.rows.get_mut(&attempt)
    }

    pub fn start(
        &mut self,
        order: DesiredTask,
        (pace, profile): (Pace, &Profile),
        lease_until: Option<u64>,
        now: u64,
    ) {
        let Order::Run(work) = &order.action else { return };
        let mut behaviour = Behaviour::draw(profile, &order, &work.command);
        let attempt = Attempt::of(&order);
        if attempt.is_saver() && behaviour.ends == OwnEnd::Never {
            // It has something to save, and then it is done.
            behaviour.ends = OwnEnd::Finish(pace.stop);
        }
        let work = Work::clone(work);
        let row = Row {
            ready: now.saturating_add(pace.start.max(work.delay.0)),
            order,
            work,
            behaviour,
            started: None,
            lease_until,
            leaves: None,
            probes: None,
            cpu_cap: None,
            io_cap: None,
            reading: Reading::default(),
            wants: Resources::ZERO,
            has: Resources::ZERO,
        };
        self.rows.insert(attempt, row);
    }

    /// Asks it to stop, with its notice.
    pub fn stop(&mut self, attempt: Attempt, notice: u64, pace: Pace, now: u64) {
        let Some(row) = self.rows.get_mut(&attempt) else { return };
        let words = match (notice, pace.stop > notice) {
            (0, _) => Notice::NotGiven,
            (_, true) => Notice::Overrun,
            (_, false) => Notice::LeftInTime,
        };
        let at = now.saturating_add(pace.stop.min(notice));
        if row.leaves.is_none_or(|(known, _)| at < known) {
            row.leaves = Some((at, words));
        }
    }

    pub fn kill(&mut self, attempt: Attempt, now: u64) {
        self.stop(attempt, 0, Pace { start: 0, stop: 0 }, now);
    }

    pub fn renew(&mut self, attempt: Attempt, until: u64) {
        if let Some(row) = self.rows.get_mut(&attempt) {
            row.lease_until = row.lease_until.max(Some(until));
        }
    }

    /// Takes the program away; whether there was one.
    pub fn end(&mut self, attempt: Attempt, now: u64) -> bool {
        let Some(row) = self.rows.remove(&attempt) else { return false };
        if row.started.is_some() {
            self.history.push(Ran::of(&row, false, now));
        }
        true
    }

    /// The power goes.
    pub fn end_all(&mut self, now: u64) {
        let all: Vec<Attempt> = self.rows.keys().copied().collect();
        for attempt in all {
            self.end(attempt, now);
        }
    }

    /// What happened until now, one thing of each program at most.
    pub fn advance(&mut self, bugs: AgentBugs, now: u64) -> Vec<(Attempt, Event)> {
        let all: Vec<Attempt> = self.rows.keys().copied().collect();
        all.into_iter().filter_map(|a| Some((a, self.step(a, bugs, now)?))).collect()
    }

    fn step(&mut self, attempt: Attempt, bugs: AgentBugs, now: u64) -> Option<Event> {
        let row = self.rows.get_mut(&attempt)?;
        let over = |at: Option<u64>| at.is_some_and(|at| at <= now);
        let lease_over = over(row.lease_until) && !bugs.ignores_lease;
        let too_long = over(row.run_until()) && !bugs.ignores_max_run;
        let end = match (row.leaves, row.own_end()) {
            _ if lease_over || too_long => Some(End::Failed(ExitClass::TimedOut)),
            (Some((at, notice)), _) if at <= now => Some(match row.started {
                Some(_) => End::Stopped(notice),
                // Nobody was there to be warned.
                None => End::Gone,
            }),
            (_, Some((at, end))) if at <= now => Some(end),
            _ => None,
        };
        if let Some(end) = end {
            self.end(attempt, now);
            return Some(Event::Ended(end));
        }
        if row.started.is_none() && row.ready <= now {
            return Some(self.begin(attempt, now));
        }
        self.probe(attempt, now)
    }

    fn begin(&mut self, attempt: Attempt, now: u64) -> Event {
        let mut lease_until = None;
        if let Some(row) = self.rows.get_mut(&attempt) {
            row.started = Some(now);
            row.probes = row.check().map(|check| (Checker::new(check, now), now, Health::Starting));
            lease_until = row.lease_until;
            self.history.push(Ran::of(row, true, now));
        }
        Event::Status { lease_until, is_stopping: false }
    }

    fn probe(&mut self, attempt: Attempt, now: u64) -> Option<Event> {
        let row = self.rows.get_mut(&attempt)?;
        let age = now.saturating_sub(row.started?);
        let is_well = row.behaviour.ill_after.is_none_or(|after| age < after);
        let check = row.work.health.clone()?;
        let (checker, due, last) = row.probes.as_mut().filter(|(_, due, _)| *due <= now)?;
        let health = checker.hear(is_well, now);
        *due = now.saturating_add(checker.interval(&check).0.max(1));
        let changed = health != *last;
        *last = health;
        changed.then_some(Event::Health(health))
    }

    /// The health check of a program is another one.
    pub fn check_anew(&mut self, order: &DesiredTask, now: u64) {
        let Order::Run(work) = &order.action else { return };
        let Some(row) = self.rows.get_mut(&Attempt::of(order)) else { return };
        row.work.health.clone_from(&work.health);
        let probes = |started| {
            let check = row.work.health.as_ref()?;
            Some((Checker::new(check, started), now, Health::Starting))
        };
        row.probes = row.started.and_then(probes);
    }

    /// The next instant at which [`Kernel::advance`] has something to say.
    #[must_use]
    pub fn next_change(&self, bugs: AgentBugs) -> Option<u64> {
        let due = |row: &Row| {
            let ready = row.started.is_none().then_some(row.ready);
            let lease = row.lease_until.filter(|_| !bugs.ignores_lease);
            let run = row.run_until().filter(|_| !bugs.ignores_max_run);
            let own = row.own_end().map(|(at, _)| at);
            let leaves = row.leaves.map(|(at, _)| at);
            let probe = row.probes.as_ref().map(|(_, at, _)| *at);
            [ready, lease, run, own, leaves, probe].into_iter().flatten().min()
        };
        self.rows.values().filter_map(due).min()
    }

    /// Lets programs use the machine since the last look: where they want more than it has, all get
    /// less by the same part.
    pub fn look(&mut self, capacity: Resources, now: u64) -> Vec<(Attempt, Reading)> {
        let millis = now.saturating_sub(self.looked);
        self.looked = now;
        let running = || self.rows.values().filter(|row| row.started.is_some());
        let wanted = |row: &Row| {
            let age = now.saturating_sub(row.started.unwrap_or(now));
            row.behaviour.demand(row.work.limits, age)
        };
        let capped = |row: &Row| wanted(row).cpu.min(row.cpu_cap.unwrap_or(u64::MAX));
        let all: u128 = running().map(|row| u128::from(capped(row))).sum();
        let share = |cpu: u64| match all > u128::from(capacity.cpu) {
            true => (u128::from(cpu) * u128::from(capacity.cpu) / all) as u64,
            false => cpu,
        };
        let used: BTreeMap<Attempt, (Resources, u64)> = self
            .rows
            .iter()
            .filter(|(_, row)| row.started.is_some())
            .map(|(attempt, row)| (*attempt, (wanted(row), share(capped(row)))))
            .collect();
        for (attempt, (wants, cpu)) in &used {
            let Some(row) = self.rows.get_mut(attempt) else { continue };
            let disk_rate = wants.disk_rate.min(row.io_cap.unwrap_or(u64::MAX));
            (row.wants, row.has) = (*wants, Resources { cpu: *cpu, disk_rate, ..*wants });
            let micros = |milli: u64| Duration::from_micros(milli.saturating_mul(millis));
            let stalled = row.reading.cpu_stalled.unwrap_or_default();
            row.reading.cpu += micros(*cpu);
            row.reading.cpu_stalled = Some(stalled + micros(row.lacks()));
            row.reading.ram = wants.ram;
            row.reading.ram_peak = row.reading.ram_peak.max(wants.ram);
            row.reading.io = row.reading.io.saturating_add(disk_rate * millis / 1000);
        }
        self.running().map(|(attempt, row)| (*attempt, row.reading)).collect()
    }

    /// What programs leave free.
    #[must_use]
    pub fn room(&self, capacity: Resources) -> Room {
        let used = self.running().fold(Resources::ZERO, |sum, (_, row)| sum.plus(row.has));
        Room {
            ram_available: capacity.ram.saturating_sub(used.ram),
            disk_free: capacity.disk.saturating_sub(used.disk),
            files_free: u64::MAX,
        }
    }
}
