//! A virtual agent: the core and the control loops of real agents (`agent-core`) on a machine whose
//! programs are rows in a table ([`virtual_kernel`]). It speaks the real protocol and runs nothing;
//! how its tasks behave is drawn from a seed or set by their commands ([`task_profile`]).
//!
//! Pure: time comes in as milliseconds, messages to send come out as reports. Its caller is either
//! the simulated network or a real connection to a real master. In simulated cells [`invariants`]
//! check it, and bugs are injected into what passes between the core and the machine.

pub mod invariants;
pub mod task_profile;
pub mod virtual_kernel;

use cellwright_agent_core::agent::{AgentCore, Event, Facts};
use cellwright_agent_core::book::{ClockCorrection, Clocks, UsageBook};
use cellwright_agent_core::cpus::CpuList;
use cellwright_agent_core::incarnation::{IncarnationNumber, IncarnationUpdate};
use cellwright_agent_core::orders::{Orders, OrdersUpdate};
use cellwright_agent_core::reconcile::{Action, End, Health, Phase};
use cellwright_agent_core::resize::PendingResize;
use cellwright_agent_core::resource_control::{
    self, AvailableResources, MachineSample, PressureHistory, ResourceControl, TaskSample,
};
use cellwright_agent_core::usage::{Meter, Readings, Sampler};
use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::id::Attempt;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::observed::{LimitsInForce, ObservedState};
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::time::{Span, Time};
use cellwright_messages::{AgentOrders, AgentReport, TaskNumbers, TaskUsage, UsageReport};
use invariants::AgentInvariants;
use std::collections::BTreeMap;
use std::time::Duration;
use task_profile::Profile;
use virtual_kernel::{Kernel, Program};

/// How long things take on the virtual machine, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct TaskDelays {
    pub start: u64,
    pub stop: u64,
}

/// How a virtual machine and its tasks behave.
#[derive(Clone, Copy, Debug)]
pub struct VirtualAgentConfig {
    pub delays: TaskDelays,
    pub profile: Profile,
    /// How long the machine is short of resources before the agent requests an eviction.
    pub eviction_request_delay: Span,
}

impl VirtualAgentConfig {
    #[must_use]
    pub fn new(delays: TaskDelays, profile: Profile) -> VirtualAgentConfig {
        VirtualAgentConfig {
            delays,
            profile,
            eviction_request_delay: resource_control::EVICTION_REQUEST_DELAY,
        }
    }
}

/// Milliseconds between two samples of what tasks use, as on real agents.
const SAMPLE_INTERVAL: u64 = 1000;

/// Known bugs that a test injects to check that they are caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentBugs {
    /// Obeys orders older than those it has accepted.
    pub applies_stale_orders: bool,
    /// Leaves tasks that are not listed running.
    pub keeps_unlisted: bool,
    /// Starts a task without waiting for those whose resources it takes.
    pub starts_early: bool,
    /// Goes on when the lease of an `at_most_one` task is over.
    pub ignores_lease: bool,
    /// After the loss of its data, numbers its incarnation by its clock and by nothing else.
    pub incarnation_by_clock: bool,
    /// Polls the master it knows again and again, and never another.
    pub knows_one_master: bool,
    /// Reports an end once, and not until newer orders drop it.
    pub reports_ends_once: bool,
    /// Starts an attempt that has ended again when orders still list it.
    pub restarts_ended: bool,
    /// Lets tasks run longer than they may.
    pub ignores_max_run: bool,
    /// Does not kill the tasks that the control loops tell it to kill.
    pub ignores_kills: bool,
    /// Reports a task as healthy whatever its checks say.
    pub hides_unhealthy: bool,
    /// Reports that tasks use nothing.
    pub hides_usage: bool,
    /// Reports what one task uses as the usage of another.
    pub swaps_usage: bool,
    /// Reports limits in force as soon as they are ordered.
    pub confirms_early: bool,
    /// Reports no shortage of its machine.
    pub hides_pressure: bool,
    /// Tells each entry of its book as one of the present.
    pub tells_usage_anew: bool,
}

/// A task started or stopped running here: the input of overlap checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEvent {
    pub name: String,
    pub attempt: u32,
    pub started: bool,
    pub at: u64,
    pub at_most_one: bool,
}

impl RunEvent {
    fn of(row: &Program, started: bool, at: u64) -> RunEvent {
        let (name, at_most_one) = (row.order.name.clone(), row.order.lease.is_some());
        RunEvent { name, attempt: row.order.attempt, started, at, at_most_one }
    }
}

pub struct VirtualAgent {
    pub spec: MachineSpec,
    pub bugs: AgentBugs,
    settings: VirtualAgentConfig,
    core: AgentCore,
    kernel: Kernel,
    control: ResourceControl,
    cores: Vec<CpuList>,
    meters: BTreeMap<Attempt, Meter>,
    readings: Readings,
    sampler: Sampler,
    /// What its tasks used; on a disk that loses nothing but all of it.
    book: UsageBook,
    /// Books so far.
    books: u64,
    /// Its clock, as it was when it last reported.
    clocks: Clocks,
    correction: ClockCorrection,
    last_sample: u64,
    /// Set in simulated cells.
    pub invariants: Option<AgentInvariants>,
}

impl VirtualAgent {
    #[must_use]
    pub fn new(spec: MachineSpec, settings: VirtualAgentConfig) -> VirtualAgent {
        let cores = u32::try_from(spec.capacity.cpu / 1000).unwrap_or(u32::MAX).clamp(1, 1024);
        VirtualAgent {
            spec,
            bugs: AgentBugs::default(),
            settings,
            core: AgentCore::new(IncarnationNumber::next_after(None), Orders::default()),
            kernel: Kernel::default(),
            control: new_control(settings, 0),
            cores: (0..cores).map(|core| CpuList::new(vec![core])).collect(),
            meters: BTreeMap::new(),
            readings: Readings::default(),
            sampler: Sampler::default(),
            book: UsageBook::new(1),
            books: 1,
            clocks: Clocks { wall: Time::ZERO, boot: 0 },
            correction: ClockCorrection::default(),
            last_sample: 0,
            invariants: None,
        }
    }

    /// The machine reboots: no program runs any more, and its agent finds the state it had saved.
    pub fn reboot(&mut self, now: u64) {
        let epoch = self.core.orders().epoch;
        let orders = Orders { epoch, ..Orders::default() };
        let mut next =
            AgentCore::new(IncarnationNumber::next_after(Some(self.core.incarnation)), orders);
        for entry in self.core.attempts().values() {
            let attempt = next.adopt(entry.order.clone());
            let end = match entry.status.phase {
                Phase::Ended(end) => end,
                Phase::Preparing | Phase::Running(_) => End::Gone,
            };
            next.observe(attempt, Event::Ended(end));
        }
        self.begin_incarnation(next, false, now);
    }

    /// The machine comes back with its data lost.
    pub fn lose_data(&mut self, now: u64, wall: Time) {
        let mut incarnation = IncarnationNumber::next_after(None);
        if self.bugs.incarnation_by_clock {
            incarnation.incarnation = wall.0;
            incarnation.is_granted = true;
        }
        self.begin_incarnation(AgentCore::new(incarnation, Orders::default()), true, now);
    }

    fn begin_incarnation(&mut self, core: AgentCore, is_disk_lost: bool, now: u64) {
        self.kernel.end_all(now);
        self.core = core;
        self.control = new_control(self.settings, now);
        self.meters.clear();
        (self.readings, self.sampler) = Default::default();
        // Nobody read the last counters. What was sampled before is on the disk.
        self.kernel.last_words.clear();
        self.book.retain(|_| false);
        self.books += 1;
        if is_disk_lost {
            self.book = UsageBook::new(self.books);
        } else {
            self.book.renew(self.books);
        }
        if let Some(invariants) = &mut self.invariants {
            invariants.reboot(is_disk_lost);
        }
    }

    /// Number of this incarnation.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.core.incarnation.incarnation
    }

    /// Its full state; `wall` is the time on its clock.
    #[must_use]
    pub fn report(&mut self, hang: bool, wall: Time, now: u64) -> AgentReport {
        let mut usage = if hang {
            // Rates are averages between hanging polls; reports in between would cut them short.
            self.sampler.usage(&self.readings.take())
        } else {
            Vec::new()
        };
        if self.bugs.hides_usage {
            usage.iter_mut().for_each(|usage| usage.used = Resources::ZERO);
        }
        if self.bugs.swaps_usage {
            let last = usage.last().map_or(Resources::ZERO, |usage| usage.used);
            usage.iter_mut().fold(last, |before, usage| std::mem::replace(&mut usage.used, before));
        }
        self.clocks = Clocks { wall, boot: now };
        let mut book = if hang { self.book.report(u64::MAX, now) } else { UsageReport::default() };
        if self.bugs.tells_usage_anew {
            book.closed.iter_mut().for_each(|entry| entry.begun = wall);
            book.book = now;
        }
        let mut resource_pressure = self.control.resource_pressure(Time(now));
        if self.bugs.hides_pressure {
            resource_pressure.clear();
        }
        let spec = self.spec.clone();
        let numbers = usage.iter().filter_map(|usage| self.told_numbers(usage)).collect();
        let facts = Facts { spec, packages: None, usage, resource_pressure, wall, book, numbers };
        let mut report = self.core.report(hang, facts, now);
        if self.bugs.reports_ends_once {
            let is_live =
                |state| matches!(state, ObservedState::Preparing | ObservedState::Running { .. });
            report.tasks.retain(|task| is_live(task.state));
        }
        if let Some(invariants) = &mut self.invariants {
            invariants.check_report(&report, &self.kernel, now);
        }
        report
    }

    /// What a task tells where its order asks for it: the cores that it uses, whatever they are
    /// called.
    fn told_numbers(&self, usage: &TaskUsage) -> Option<TaskNumbers> {
        let entry = self.core.attempt(Attempt::new(usage.task, usage.attempt))?;
        let Order::Run(work) = &entry.order.action else { return None };
        let series = work.metrics.as_ref()?.series.iter();
        let told = series.map(|series| (series.clone(), usage.used.cpu)).collect();
        Some(TaskNumbers { task: usage.task, attempt: usage.attempt, told, refused: 0 })
    }

    /// Applies the answer to a poll sent at `sent`.
    pub fn apply_orders(&mut self, answer: AgentOrders, sent: u64, now: u64) {
        let real = self.invariants.is_some().then(|| answer.clone());
        if let Some(mark) = answer.usage_recorded {
            self.book.confirm(mark);
        }
        self.correction.observe(self.wall(now), answer.time);
        let update = self.core.handle_orders(self.apply_bugs(answer), sent);
        let is_for_us = update.incarnation_change != IncarnationUpdate::Raised;
        if let (Some(invariants), Some(real)) = (&mut self.invariants, &real) {
            invariants.on_orders(real, is_for_us && update.orders != OrdersUpdate::Stale);
        }
        for attempt in update.changed_health_checks {
            if let Some(entry) = self.core.attempt(attempt) {
                self.kernel.replace_health_check(&entry.order, now);
            }
        }
        if self.bugs.restarts_ended && update.orders == OrdersUpdate::Changed {
            self.restart_ended_tasks(now);
        }
        if is_for_us {
            self.advance(now);
        }
    }

    /// Orders as an agent with these bugs understands them.
    fn apply_bugs(&self, mut answer: AgentOrders) -> AgentOrders {
        if self.bugs.applies_stale_orders {
            answer.epoch = answer.epoch.max(self.core.orders().epoch);
        }
        for order in answer.tasks.iter_mut().flatten() {
            let Order::Run(work) = &mut order.action else { continue };
            if self.bugs.starts_early {
                work.waits_for.clear();
            }
        }
        answer
    }

    fn restart_ended_tasks(&mut self, now: u64) {
        let over = |order: &&DesiredTask| {
            let entry = self.core.attempt(Attempt::of(order));
            entry.is_some_and(|entry| !entry.status.is_active())
                && matches!(order.action, Order::Run(_))
        };
        let again: Vec<DesiredTask> =
            self.core.orders().list().iter().filter(over).cloned().collect();
        again.into_iter().for_each(|order| self.start(order, None, now));
    }

    /// Advances time. Returns whether something changed that the master should be told.
    pub fn advance(&mut self, now: u64) -> bool {
        let mut is_news = self.next_sample().is_some_and(|at| at <= now) && self.sample_usage(now);
        loop {
            let events = self.kernel.advance(self.bugs, now);
            let mut is_still = events.is_empty();
            for (attempt, event) in events {
                if self.bugs.hides_unhealthy && event == Event::Health(Health::Unhealthy) {
                    continue;
                }
                let change = self.core.observe(attempt, event);
                is_news |= change.needs_report;
                if change.started {
                    self.book_start(attempt, now);
                }
            }
            self.book_ends(now);
            for action in self.core.next_actions(now) {
                is_still = false;
                is_news |= self.execute(action, now);
            }
            if is_still {
                return is_news;
            }
        }
    }

    fn execute(&mut self, action: Action, now: u64) -> bool {
        let pace = self.settings.delays;
        match action {
            Action::Start { order, lease_until } => {
                self.start(*order, lease_until, now);
                return true;
            }
            Action::Stop { attempt, .. } | Action::Kill { attempt } if self.is_alloc(attempt) => {
                if let Some(invariants) = &mut self.invariants {
                    invariants.on_alloc_hold(attempt.task, false);
                }
                self.core.observe(attempt, Event::Ended(End::Gone));
                return true;
            }
            Action::Stop { attempt, notice } => self.kernel.stop(attempt, notice.0, pace, now),
            Action::Kill { .. } if self.bugs.keeps_unlisted => {}
            Action::Kill { attempt } => self.kernel.kill(attempt, now),
            Action::Renew { attempt, until } => self.kernel.renew(attempt, until),
            Action::Forget { attempt } => self.book.forget(attempt),
        }
        false
    }

    fn is_alloc(&self, attempt: Attempt) -> bool {
        self.core.attempt(attempt).is_some_and(|entry| entry.status.is_alloc)
    }

    fn start(&mut self, order: DesiredTask, lease_until: Option<u64>, now: u64) {
        let attempt = Attempt::of(&order);
        let is_alloc = matches!(order.action, Order::Hold { .. });
        if let Some(invariants) = &mut self.invariants {
            invariants.on_start(attempt, &self.kernel);
            if is_alloc {
                invariants.on_alloc_hold(attempt.task, true);
            }
        }
        if is_alloc {
            self.core.observe(attempt, Event::Held);
            return;
        }
        let settings = (self.settings.delays, &self.settings.profile);
        self.kernel.start(order, settings, lease_until, now);
    }

    /// What its clock says, if it goes on as when it last reported.
    fn wall(&self, now: u64) -> Time {
        let Clocks { wall, boot } = self.clocks;
        Time(wall.0.saturating_add(now.saturating_sub(boot)))
    }

    fn clocks(&self, now: u64) -> Clocks {
        Clocks { wall: self.correction.correct(self.wall(now)), boot: now }
    }

    fn book_start(&mut self, attempt: Attempt, now: u64) {
        let clocks = self.clocks(now);
        if let Some(program) = self.kernel.programs().get(&attempt)
            && let Some(started) = program.started
        {
            self.book.begin(attempt, &program.order.name, &program.work, started, clocks);
        }
    }

    /// The last words of shims; of what ended before anybody saw it run, the only ones.
    fn book_ends(&mut self, now: u64) {
        let clocks = self.clocks(now);
        for (attempt, order, reading) in std::mem::take(&mut self.kernel.last_words) {
            if let Order::Run(work) = &order.action {
                self.book.begin(attempt, &order.name, work, reading.started, clocks);
            }
            self.book.end(attempt, Some(reading));
        }
    }

    /// Samples what tasks use and runs the control loops on it; returns whether a task ended.
    fn sample_usage(&mut self, now: u64) -> bool {
        self.last_sample = now;
        let is_resized = self.resize();
        let capacity = self.spec.capacity;
        let read = self.kernel.sample(capacity, now);
        self.meters.retain(|attempt, _| self.kernel.programs().contains_key(attempt));
        self.readings.retain(|attempt| self.kernel.programs().contains_key(&attempt));
        let mut samples = Vec::new();
        for (attempt, reading) in read {
            let disk = self.kernel.programs().get(&attempt).map_or(0, |row| row.granted.disk);
            self.readings.record(attempt, now, reading, disk);
            let meter = self.meters.entry(attempt).or_default();
            let usage = meter.measure(Duration::from_millis(now), reading, disk);
            let entry = self.core.attempt(attempt);
            let order = entry.map(|entry| (&entry.order.action, entry.status.limits.limits));
            if let (Some(usage), Some((Order::Run(work), in_force))) = (usage, order) {
                let sample = TaskSample::of(attempt, work, &usage, 0);
                samples.push(TaskSample { limits: in_force, ..sample });
            }
        }
        for (attempt, reading) in self.readings.latest() {
            if let Some(program) = self.kernel.programs().get(attempt) {
                self.book.observe(*attempt, &program.work, reading);
            }
        }
        let clocks = self.clocks(now);
        self.book.close_due(clocks);
        // No data outlives its program on this disk.
        let emptied: Vec<Attempt> = self.control.awaiting_cleanup().collect();
        emptied.into_iter().for_each(|attempt| self.control.cleaned_up(attempt));
        let (available, keep) =
            (self.kernel.available_resources(capacity), AvailableResources::reserve_for(capacity));
        let cores = self.cores.clone();
        let machine =
            MachineSample { capacity, available, reserve: keep, cores, idle_permille: None };
        let mut is_news = is_resized;
        for action in self.control.step(Time(now), &machine, &samples) {
            is_news |= self.apply_control(action, now);
        }
        if let Some(invariants) = &mut self.invariants {
            invariants.check_at(&self.kernel, now);
        }
        is_news
    }

    /// Changes limits as the core decides; returns whether some were changed. What an alloc uses is
    /// what runs in it.
    fn resize(&mut self) -> bool {
        let pending = self.core.pending_resizes();
        let is_news = !pending.is_empty();
        for resize in pending {
            let used = self.used_by(&resize);
            let mut limits = resize.next_limits(resize.known.limits, used);
            if self.bugs.confirms_early {
                limits = resize.wanted.limits;
            } else if let Some(row) = self.kernel.program_mut(resize.attempt) {
                row.work.limits = limits;
            }
            let now = LimitsInForce { resizes: resize.wanted.resizes, limits };
            self.core.observe(resize.attempt, Event::Resized(now));
        }
        is_news
    }

    fn used_by(&self, resize: &PendingResize) -> Resources {
        let inside = |(attempt, row): &(&Attempt, &Program)| {
            **attempt == resize.attempt
                || (resize.is_alloc && row.work.alloc == Some(resize.attempt.task))
        };
        let rows = self.kernel.programs().iter().filter(inside);
        rows.fold(Resources::ZERO, |sum, (_, row)| sum.plus(row.granted))
    }

    fn apply_control(&mut self, action: resource_control::Action, now: u64) -> bool {
        match action {
            resource_control::Action::Cap { attempt, dimension, cap, .. } => {
                let Some(row) = self.kernel.program_mut(attempt) else { return false };
                match dimension {
                    Dimension::Cpu => row.cpu_cap = cap,
                    Dimension::DiskRate => row.io_cap = cap,
                    Dimension::Ram | Dimension::Disk => {}
                }
            }
            resource_control::Action::Kill { attempt, reason } => {
                if !self.bugs.ignores_kills && self.kernel.end(attempt, now) {
                    let end = reason.exit_class(attempt).map_or(End::Gone, End::Failed);
                    return self.core.observe(attempt, Event::Ended(end)).needs_report;
                }
            }
            // Sent with the report, or without effect where nothing really runs.
            resource_control::Action::RunOn { .. }
            | resource_control::Action::NoFreeCores { .. }
            | resource_control::Action::SizeMemory { .. }
            | resource_control::Action::RequestEviction { .. } => {}
        }
        false
    }

    fn next_sample(&self) -> Option<u64> {
        let is_short = !self.control.resource_pressure(Time(self.last_sample)).is_empty();
        let is_resizing = !self.core.pending_resizes().is_empty();
        let is_sampling = is_short || is_resizing || !self.kernel.programs().is_empty();
        is_sampling.then_some(self.last_sample + SAMPLE_INTERVAL)
    }

    /// The next instant at which [`VirtualAgent::advance`] does something.
    #[must_use]
    pub fn next_change(&self) -> Option<u64> {
        self.kernel.next_change(self.bugs).into_iter().chain(self.next_sample()).min()
    }

    /// The starts and ends since this was last called.
    pub fn take_run_events(&mut self) -> Vec<RunEvent> {
        std::mem::take(&mut self.kernel.run_events)
    }

    /// Its programs.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Tasks and allocs that run now, as reported to the masters.
    #[must_use]
    pub fn running(&self) -> usize {
        let runs = |phase| matches!(phase, Phase::Running(Health::Healthy | Health::Unhealthy));
        let all = self.core.attempts().iter().filter(|(attempt, _)| !attempt.is_log_saver());
        all.filter(|(_, entry)| runs(entry.status.phase)).count()
    }
}

fn new_control(settings: VirtualAgentConfig, now: u64) -> ResourceControl {
    ResourceControl::with_request_delay(
        settings.eviction_request_delay,
        PressureHistory::default(),
        Time(now),
    )
}

#[cfg(test)]
mod tests;
