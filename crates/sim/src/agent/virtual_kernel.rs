//! The kernel and the shims of a virtual machine: programs are rows in a table. A program starts
//! after a while, uses what its behaviour wants and the machine has, and ends by itself, by its
//! lease, by its `max_run`, or because it was asked to stop.

use super::task_profile::{Behaviour, PlannedEnd, Profile};
use super::{AgentBugs, RunEvent, TaskDelays};
use cellwright_agent_core::agent::Event;
use cellwright_agent_core::book::FinalReading;
use cellwright_agent_core::health::HealthTracker;
use cellwright_agent_core::reconcile::{End, Health};
use cellwright_agent_core::resource_control::AvailableResources;
use cellwright_agent_core::usage::Reading;
use cellwright_cell::desired::{Action as Order, DesiredTask, RunSpec};
use cellwright_cell::health::HealthCheck;
use cellwright_cell::id::Attempt;
use cellwright_cell::resource::Resources;
use cellwright_cell::task::{ExitClass, NoticeOutcome};
use std::collections::BTreeMap;
use std::time::Duration;

/// One program.
#[derive(Clone, Debug)]
pub struct Program {
    pub order: DesiredTask,
    pub work: RunSpec,
    behaviour: Behaviour,
    /// When it starts to run.
    starts_at: u64,
    pub started: Option<u64>,
    lease_until: Option<u64>,
    /// When a program that was asked to stop will have ended, and how.
    exits: Option<(u64, NoticeOutcome)>,
    probes: Option<(HealthTracker, u64, Health)>,
    pub cpu_cap: Option<u64>,
    pub io_cap: Option<u64>,
    reading: Reading,
    /// What it wanted and what it got at the last sample.
    pub wanted: Resources,
    pub granted: Resources,
}

impl Program {
    /// The CPU that it wanted and did not get.
    #[must_use]
    pub fn cpu_shortfall(&self) -> u64 {
        self.wanted.cpu.saturating_sub(self.granted.cpu)
    }

    /// The time since it was last sampled, or since it started: it gets what it got then, or what
    /// it wants. Returns the CPU time.
    fn run_last(&mut self, last_sample: u64, now: u64) -> Duration {
        let since = self.started.unwrap_or(now).max(last_sample);
        let wants = self.behaviour.demand(self.work.limits, 0).cpu;
        let was_sampled = self.started.is_some_and(|started| started < last_sample);
        let cpu = if was_sampled { self.granted.cpu } else { wants };
        let cpu = cpu.min(self.cpu_cap.unwrap_or(u64::MAX));
        let spent = Duration::from_micros(cpu.saturating_mul(now.saturating_sub(since)));
        self.reading.cpu += spent;
        spent
    }

    fn final_reading(&self, started: u64, ended: u64) -> FinalReading {
        FinalReading {
            started,
            ended,
            cpu_micros: u64::try_from(self.reading.cpu.as_micros()).unwrap_or(u64::MAX),
            io_bytes: self.reading.io,
            ram_peak: self.reading.ram_peak,
        }
    }

    fn run_until(&self) -> Option<u64> {
        let started = self.started?;
        self.work.max_run.map(|length| started.saturating_add(length.0))
    }

    /// Its own end: when, and how.
    fn own_end(&self) -> Option<(u64, End)> {
        let started = self.started?;
        match self.behaviour.planned_end {
            PlannedEnd::Never => None,
            PlannedEnd::Finish(after) => Some((started.saturating_add(after), End::Finished)),
            PlannedEnd::Fail(after) => {
                Some((started.saturating_add(after), End::Failed(ExitClass::Code(1))))
            }
        }
    }

    /// Whether it has been unhealthy for so long that its checks must have noticed.
    #[must_use]
    pub fn is_unhealthy_for_long(&self, now: u64) -> bool {
        let (Some(started), Some(check)) = (self.started, self.check()) else { return false };
        let Some(after) = self.behaviour.unhealthy_after else { return false };
        let found = check.interval.0.saturating_mul(u64::from(check.failures) + 2);
        now > started.saturating_add(after).max(started + check.start_period.0) + found
    }

    fn check(&self) -> Option<&HealthCheck> {
        self.work.health.as_ref()
    }
}

#[derive(Clone, Debug, Default)]
pub struct Kernel {
    programs: BTreeMap<Attempt, Program>,
    /// The starts and ends since this was last taken.
    pub run_events: Vec<RunEvent>,
    last_sample: u64,
    /// CPU time that all programs got together since the machine was made.
    pub spent: Duration,
    /// The counters of programs that ended, as their shims read them, since this was last taken.
    pub last_words: Vec<(Attempt, DesiredTask, FinalReading)>,
}

impl Kernel {
    #[must_use]
    pub fn programs(&self) -> &BTreeMap<Attempt, Program> {
        &self.programs
    }

    /// Programs that run now.
    pub fn running(&self) -> impl Iterator<Item = (&Attempt, &Program)> {
        self.programs.iter().filter(|(_, program)| program.started.is_some())
    }

    pub fn program_mut(&mut self, attempt: Attempt) -> Option<&mut Program> {
        self.programs.get_mut(&attempt)
    }

    pub fn start(
        &mut self,
        order: DesiredTask,
        (pace, profile): (TaskDelays, &Profile),
        lease_until: Option<u64>,
        now: u64,
    ) {
        let Order::Run(work) = &order.action else { return };
        let mut behaviour = Behaviour::draw(profile, &order, &work.command);
        let attempt = Attempt::of(&order);
        if attempt.is_log_saver() && behaviour.planned_end == PlannedEnd::Never {
            // It has data to save, and then it is done.
            behaviour.planned_end = PlannedEnd::Finish(pace.stop);
        }
        let work = RunSpec::clone(work);
        let program = Program {
            starts_at: now.saturating_add(pace.start.max(work.delay.0)),
            order,
            work,
            behaviour,
            started: None,
            lease_until,
            exits: None,
            probes: None,
            cpu_cap: None,
            io_cap: None,
            reading: Reading::default(),
            wanted: Resources::ZERO,
            granted: Resources::ZERO,
        };
        self.programs.insert(attempt, program);
    }

    /// Asks it to stop, with its notice.
    pub fn stop(&mut self, attempt: Attempt, notice: u64, pace: TaskDelays, now: u64) {
        let Some(program) = self.programs.get_mut(&attempt) else { return };
        let words = match (notice, pace.stop > notice) {
            (0, _) => NoticeOutcome::NotGiven,
            (_, true) => NoticeOutcome::Overrun,
            (_, false) => NoticeOutcome::LeftInTime,
        };
        let at = now.saturating_add(pace.stop.min(notice));
        if program.exits.is_none_or(|(known, _)| at < known) {
            program.exits = Some((at, words));
        }
    }

    pub fn kill(&mut self, attempt: Attempt, now: u64) {
        self.stop(attempt, 0, TaskDelays { start: 0, stop: 0 }, now);
    }

    pub fn renew(&mut self, attempt: Attempt, until: u64) {
        if let Some(program) = self.programs.get_mut(&attempt) {
            program.lease_until = program.lease_until.max(Some(until));
        }
    }

    /// Removes the program; returns whether there was one.
    pub fn end(&mut self, attempt: Attempt, now: u64) -> bool {
        let Some(mut program) = self.programs.remove(&attempt) else { return false };
        if let Some(started) = program.started {
            self.run_events.push(RunEvent::of(&program, false, now));
            self.spent += program.run_last(self.last_sample, now);
            let reading = program.final_reading(started, now);
            self.last_words.push((attempt, program.order, reading));
        }
        true
    }

    /// The power fails: all programs end.
    pub fn end_all(&mut self, now: u64) {
        let all: Vec<Attempt> = self.programs.keys().copied().collect();
        for attempt in all {
            self.end(attempt, now);
        }
    }

    /// The events until now, at most one of each program.
    pub fn advance(&mut self, bugs: AgentBugs, now: u64) -> Vec<(Attempt, Event)> {
        let all: Vec<Attempt> = self.programs.keys().copied().collect();
        all.into_iter().filter_map(|a| Some((a, self.step(a, bugs, now)?))).collect()
    }

    fn step(&mut self, attempt: Attempt, bugs: AgentBugs, now: u64) -> Option<Event> {
        let program = self.programs.get_mut(&attempt)?;
        let over = |at: Option<u64>| at.is_some_and(|at| at <= now);
        let lease_over = over(program.lease_until) && !bugs.ignores_lease;
        let too_long = over(program.run_until()) && !bugs.ignores_max_run;
        let end = match (program.exits, program.own_end()) {
            _ if lease_over || too_long => Some(End::Failed(ExitClass::TimedOut)),
            (Some((at, notice)), _) if at <= now => Some(match program.started {
                Some(_) => End::Stopped(notice),
                // No program was there to receive the notice.
                None => End::Gone,
            }),
            (_, Some((at, end))) if at <= now => Some(end),
            _ => None,
        };
        if let Some(end) = end {
            self.end(attempt, now);
            return Some(Event::Ended(end));
        }
        if program.started.is_none() && program.starts_at <= now {
            return Some(self.begin(attempt, now));
        }
        self.probe(attempt, now)
    }

    fn begin(&mut self, attempt: Attempt, now: u64) -> Event {
        let mut lease_until = None;
        if let Some(program) = self.programs.get_mut(&attempt) {
            program.started = Some(now);
            program.probes = program
                .check()
                .map(|check| (HealthTracker::new(check, now), now, Health::Starting));
            lease_until = program.lease_until;
            self.run_events.push(RunEvent::of(program, true, now));
        }
        Event::Status { lease_until, is_stopping: false }
    }

    fn probe(&mut self, attempt: Attempt, now: u64) -> Option<Event> {
        let program = self.programs.get_mut(&attempt)?;
        let age = now.saturating_sub(program.started?);
        let is_well = program.behaviour.unhealthy_after.is_none_or(|after| age < after);
        let check = program.work.health.clone()?;
        let (checker, due, last) = program.probes.as_mut().filter(|(_, due, _)| *due <= now)?;
        let health = checker.record_result(is_well, now);
        *due = now.saturating_add(checker.interval(&check).0.max(1));
        let changed = health != *last;
        *last = health;
        changed.then_some(Event::Health(health))
    }

    /// Replaces the health check of a program.
    pub fn replace_health_check(&mut self, order: &DesiredTask, now: u64) {
        let Order::Run(work) = &order.action else { return };
        let Some(program) = self.programs.get_mut(&Attempt::of(order)) else { return };
        program.work.health.clone_from(&work.health);
        let probes = |started| {
            let check = program.work.health.as_ref()?;
            Some((HealthTracker::new(check, started), now, Health::Starting))
        };
        program.probes = program.started.and_then(probes);
    }

    /// The next instant at which [`Kernel::advance`] returns an event.
    #[must_use]
    pub fn next_change(&self, bugs: AgentBugs) -> Option<u64> {
        let due = |program: &Program| {
            let ready = program.started.is_none().then_some(program.starts_at);
            let lease = program.lease_until.filter(|_| !bugs.ignores_lease);
            let run = program.run_until().filter(|_| !bugs.ignores_max_run);
            let own = program.own_end().map(|(at, _)| at);
            let leaves = program.exits.map(|(at, _)| at);
            let probe = program.probes.as_ref().map(|(_, at, _)| *at);
            [ready, lease, run, own, leaves, probe].into_iter().flatten().min()
        };
        self.programs.values().filter_map(due).min()
    }

    /// Distributes the machine's resources to programs since the last sample: where they want more
    /// than it has, all get less by the same factor.
    pub fn sample(&mut self, capacity: Resources, now: u64) -> Vec<(Attempt, Reading)> {
        let last_sample = std::mem::replace(&mut self.last_sample, now);
        let running = || self.programs.values().filter(|row| row.started.is_some());
        let wanted = |program: &Program| {
            let age = now.saturating_sub(program.started.unwrap_or(now));
            program.behaviour.demand(program.work.limits, age)
        };
        let capped =
            |program: &Program| wanted(program).cpu.min(program.cpu_cap.unwrap_or(u64::MAX));
        let all: u128 = running().map(|program| u128::from(capped(program))).sum();
        let share = |cpu: u64| {
            if all > u128::from(capacity.cpu) {
                (u128::from(cpu) * u128::from(capacity.cpu) / all) as u64
            } else {
                cpu
            }
        };
        let used: BTreeMap<Attempt, (Resources, u64)> = self
            .programs
            .iter()
            .filter(|(_, program)| program.started.is_some())
            .map(|(attempt, program)| (*attempt, (wanted(program), share(capped(program)))))
            .collect();
        for (attempt, (wants, cpu)) in &used {
            let Some(program) = self.programs.get_mut(attempt) else { continue };
            let disk_rate = wants.disk_rate.min(program.io_cap.unwrap_or(u64::MAX));
            (program.wanted, program.granted) =
                (*wants, Resources { cpu: *cpu, disk_rate, ..*wants });
            // It got nothing before it started.
            let millis = now.saturating_sub(last_sample.max(program.started.unwrap_or(now)));
            let micros = |milli: u64| Duration::from_micros(milli.saturating_mul(millis));
            self.spent += micros(*cpu);
            let stalled = program.reading.cpu_stalled.unwrap_or_default();
            program.reading.cpu += micros(*cpu);
            program.reading.cpu_stalled = Some(stalled + micros(program.cpu_shortfall()));
            program.reading.ram = wants.ram;
            program.reading.ram_peak = program.reading.ram_peak.max(wants.ram);
            program.reading.io = program.reading.io.saturating_add(disk_rate * millis / 1000);
        }
        self.running().map(|(attempt, program)| (*attempt, program.reading)).collect()
    }

    /// The resources that programs leave free.
    #[must_use]
    pub fn available_resources(&self, capacity: Resources) -> AvailableResources {
        let used =
            self.running().fold(Resources::ZERO, |sum, (_, program)| sum.plus(program.granted));
        AvailableResources {
            ram_available: capacity.ram.saturating_sub(used.ram),
            disk_free: capacity.disk.saturating_sub(used.disk),
            files_free: u64::MAX,
        }
    }
}
