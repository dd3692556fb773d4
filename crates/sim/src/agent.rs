//! A virtual agent: speaks the real protocol of agents, runs nothing. Starts, stops, finishes and
//! fails as a task's command tells it (`["sim", "finish", "500"]` ends well after 500 ms,
//! `["sim", "fail", "500"]` badly; anything else runs until stopped). What runs longer than its
//! `max_run` is ended as a real agent ends it.
//!
//! Pure: time comes in as milliseconds, what to send comes out as reports. Around it stands either
//! the simulated network or a real connection to a real master.

use cellwright_api::internal::{AgentOrders, AgentReport, Epoch, REPORT_FORMAT};
use cellwright_api::life::{LifeNumber, Told};
use cellwright_cell::desired::{Action, DesiredTask};
use cellwright_cell::id::{Attempt, TaskId};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::observed::{ObservedState, ObservedTask};
use cellwright_cell::plan::Victim;
use cellwright_cell::task::ExitClass;
use cellwright_cell::time::{Span, Time};
use std::collections::BTreeMap;

/// How long things take on the virtual machine, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub start: u64,
    pub stop: u64,
}

/// Known bugs that a test plants to see them caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentBugs {
    /// Obeys orders older than those it has taken.
    pub obeys_old_orders: bool,
    /// Leaves what is not listed running.
    pub keeps_unlisted: bool,
    /// Starts without waiting for those whose room it takes.
    pub starts_early: bool,
    /// Goes on when the lease of an `at_most_one` task is over.
    pub ignores_lease: bool,
    /// Without its data, numbers its life by its clock and by nothing else.
    pub life_by_clock: bool,
    /// Asks the master it knows again and again, and never another.
    pub knows_one_master: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Local {
    attempt: u32,
    name: String,
    state: ObservedState,
    /// When the present state ends by itself.
    until: Option<u64>,
    stopping: bool,
    ends: Ending,
    waits_for: Vec<Victim>,
    lease: Option<u64>,
    is_alloc: bool,
    cpu: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Never,
    Finish {
        after: u64,
    },
    Fail {
        after: u64,
    },
    /// Its `max_run` is over first.
    TimeOut {
        after: u64,
    },
}

impl Ending {
    /// When it ends by itself, counted from its start.
    fn after(self) -> Option<u64> {
        match self {
            Ending::Never => None,
            Ending::Finish { after } | Ending::Fail { after } | Ending::TimeOut { after } => {
                Some(after)
            }
        }
    }

    /// Its own end, unless it is not allowed to run as long.
    fn within(self, max_run: Option<Span>) -> Ending {
        match max_run {
            Some(Span(length)) if self.after().is_none_or(|own| length < own) => {
                Ending::TimeOut { after: length }
            }
            _ => self,
        }
    }
}

/// A task began or ceased to run here: what overlap checks are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub name: String,
    pub attempt: u32,
    pub started: bool,
    pub at: u64,
    pub at_most_one: bool,
}

#[derive(Clone, Debug)]
pub struct VirtualAgent {
    pub spec: MachineSpec,
    life: LifeNumber,
    pub bugs: AgentBugs,
    pace: Pace,
    taken: Epoch,
    digest: u64,
    tasks: BTreeMap<TaskId, Local>,
    /// Runs of savers: over as soon as they are ordered.
    savers: BTreeMap<Attempt, ObservedState>,
    /// Reports made so far.
    reports: u64,
    /// From when leases count.
    heard: u64,
    /// What happened since it was last asked.
    pub history: Vec<Ran>,
    /// Something ran that there was no room for.
    pub overfull: bool,
}

impl VirtualAgent {
    #[must_use]
    pub fn new(spec: MachineSpec, pace: Pace) -> VirtualAgent {
        VirtualAgent {
            spec,
            life: LifeNumber::after(None),
            bugs: AgentBugs::default(),
            pace,
            taken: Epoch::default(),
            digest: 0,
            tasks: BTreeMap::new(),
            savers: BTreeMap::new(),
            reports: 0,
            heard: 0,
            history: Vec::new(),
            overfull: false,
        }
    }

    /// The machine boots again: nothing of before runs any more.
    pub fn reboot(&mut self, now: u64) {
        let names: Vec<TaskId> = self.tasks.keys().copied().collect();
        names.into_iter().for_each(|task| self.forget(task, now));
        self.life = LifeNumber::after(Some(self.life));
        self.taken = Epoch::default();
        self.digest = 0;
    }

    /// The machine comes back without anything it knew.
    pub fn lose_data(&mut self, now: u64, wall: Time) {
        self.reboot(now);
        self.life = LifeNumber::after(None);
        if self.bugs.life_by_clock {
            self.life.incarnation = wall.0;
            self.life.is_granted = true;
        }
    }

    /// Number of this life.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.life.incarnation
    }

    /// Its full state; `wall` is what its clock says.
    #[must_use]
    pub fn report(&mut self, hang: bool, wall: Time) -> AgentReport {
        self.reports += 1;
        let observed = |(task, local): (&TaskId, &Local)| ObservedTask {
            task: *task,
            attempt: local.attempt,
            saver: 0,
            state: local.state,
        };
        let savers = self.savers.iter().map(|(at, state)| ObservedTask {
            task: at.task,
            attempt: at.number,
            saver: at.saver,
            state: *state,
        });
        AgentReport {
            format: REPORT_FORMAT,
            machine: self.spec.name.clone(),
            incarnation: self.life.incarnation,
            number: self.reports,
            taken: self.taken,
            hang,
            orders_digest: self.digest,
            spec: Some(self.spec.clone()),
            tasks: self.tasks.iter().map(observed).chain(savers).collect(),
            packages: None,
            usage: Vec::new(),
            shortages: Vec::new(),
            wall,
        }
    }

    /// Takes the answer to a poll sent at `sent`; orders older than what it has taken are ignored.
    pub fn obey(&mut self, orders: AgentOrders, sent: u64, now: u64) {
        if self.life.hear(orders.incarnation) == Told::Raised {
            return;
        }
        if let Some(ago) = orders.heard_ago {
            // Never later than when the leader heard: the poll arrived after it was sent.
            self.heard = self.heard.max(sent.saturating_sub(ago.0));
        }
        if orders.epoch < self.taken && !self.bugs.obeys_old_orders {
            return;
        }
        self.taken = orders.epoch;
        let Some(wanted) = orders.tasks else { return };
        self.digest = orders.orders_digest;
        let (wanted, left): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|order| order.saver == 0 && order.action != Action::Keep);
        self.savers = left.iter().filter_map(saved).collect();
        let listed = |task: &TaskId| wanted.iter().any(|w| w.task == *task);
        let gone: Vec<TaskId> = self.tasks.keys().copied().filter(|task| !listed(task)).collect();
        if !self.bugs.keeps_unlisted {
            gone.into_iter().for_each(|task| self.forget(task, now));
        }
        for desired in &wanted {
            self.want(desired, now);
        }
        self.advance(now);
    }

    fn want(&mut self, desired: &DesiredTask, now: u64) {
        let held = self.tasks.get(&desired.task).map(|local| local.attempt);
        if held.is_some_and(|attempt| attempt != desired.attempt) {
            self.forget(desired.task, now);
        }
        let stop = self.pace.stop;
        match &desired.action {
            Action::Stop { notice, .. } => {
                let Some(local) = self.tasks.get_mut(&desired.task) else {
                    // Never got here, or is gone already: say so.
                    let local = Local::new(desired, ObservedState::Stopped, None);
                    self.tasks.insert(desired.task, local);
                    return;
                };
                let live =
                    matches!(local.state, ObservedState::Preparing | ObservedState::Running { .. });
                if live && !local.stopping {
                    local.stopping = true;
                    local.until = Some(now + stop.min(notice.0));
                }
            }
            Action::Run(work) => {
                if held == Some(desired.attempt) {
                    return;
                }
                let ready = Some(now + self.pace.start);
                let mut local = Local::new(desired, ObservedState::Preparing, ready);
                local.ends = ending(&work.command).within(work.max_run);
                local.waits_for.clone_from(&work.waits_for);
                // Tasks in an alloc use the alloc's room.
                local.cpu = if work.alloc.is_some() { 0 } else { work.limits.cpu };
                self.tasks.insert(desired.task, local);
            }
            // Sorted out before.
            Action::Keep => {}
            Action::Hold { .. } => {
                if held != Some(desired.attempt) {
                    let mut local = Local::new(desired, ObservedState::Preparing, Some(now));
                    local.is_alloc = true;
                    self.tasks.insert(desired.task, local);
                }
            }
        }
    }

    /// Lets time pass. Returns whether something changed that the master should hear of.
    pub fn advance(&mut self, now: u64) -> bool {
        let mut changed = false;
        // A start may wait for a stop of the same instant.
        for _ in 0..2 {
            let due: Vec<TaskId> = self.tasks.keys().copied().collect();
            for task in due {
                changed |= self.step(task, now);
            }
        }
        changed
    }

    fn step(&mut self, task: TaskId, now: u64) -> bool {
        let lease_over = self.lease_over(task, now);
        let early = self.bugs.starts_early;
        let here = |victim: &Victim| {
            self.tasks.get(&victim.task).is_some_and(|v| v.attempt == victim.attempt && v.live())
        };
        let Some(local) = self.tasks.get(&task) else { return false };
        let waits = !early && local.waits_for.iter().any(here);
        let due = local.until.is_some_and(|until| until <= now);
        if !local.live() || !(due || lease_over) {
            return false;
        }
        let was = local.state;
        let next = match was {
            _ if lease_over => ObservedState::Failed(ExitClass::TimedOut),
            _ if local.stopping => ObservedState::Stopped,
            ObservedState::Preparing if waits => return false,
            ObservedState::Preparing => ObservedState::Running { healthy: true },
            ObservedState::Running { .. } => match local.ends {
                Ending::Fail { .. } => ObservedState::Failed(ExitClass::Code(1)),
                Ending::TimeOut { .. } => ObservedState::Failed(ExitClass::TimedOut),
                _ => ObservedState::Finished,
            },
            ended => ended,
        };
        self.enter(task, was, next, now);
        true
    }

    fn enter(&mut self, task: TaskId, was: ObservedState, next: ObservedState, now: u64) {
        let Some(local) = self.tasks.get_mut(&task) else { return };
        local.state = next;
        local.until = match next {
            ObservedState::Running { .. } => {
                local.ends.after().map(|after| now.saturating_add(after))
            }
            _ => None,
        };
        let ran = Ran {
            name: local.name.clone(),
            attempt: local.attempt,
            started: matches!(next, ObservedState::Running { .. }),
            at: now,
            at_most_one: local.lease.is_some(),
        };
        let running = matches!(was, ObservedState::Running { .. });
        if !local.is_alloc && (ran.started || running) {
            self.history.push(ran);
        }
        let runs = |local: &&Local| matches!(local.state, ObservedState::Running { .. });
        let used: u64 = self.tasks.values().filter(runs).map(|local| local.cpu).sum();
        self.overfull |= used > self.spec.capacity.cpu;
    }

    fn lease_over(&self, task: TaskId, now: u64) -> bool {
        let lease = self.tasks.get(&task).and_then(|local| local.lease);
        let over = lease.is_some_and(|lease| now.saturating_sub(self.heard) >= lease);
        over && !self.bugs.ignores_lease
    }

    /// The next instant at which [`VirtualAgent::advance`] does something.
    #[must_use]
    pub fn next_change(&self) -> Option<u64> {
        let due = |local: &Local| {
            let lease = local.lease.map(|lease| self.heard + lease);
            let live = local.live();
            local.until.into_iter().chain(lease).filter(|_| live).min()
        };
        self.tasks.values().filter_map(due).min()
    }

    /// The newest orders it has taken.
    #[must_use]
    pub fn taken(&self) -> Epoch {
        self.taken
    }

    /// Tasks that run now.
    #[must_use]
    pub fn running(&self) -> usize {
        let runs = |local: &&Local| matches!(local.state, ObservedState::Running { .. });
        self.tasks.values().filter(runs).count()
    }

    fn forget(&mut self, task: TaskId, now: u64) {
        let was = self.tasks.get(&task).map(|local| local.state);
        if let Some(was @ ObservedState::Running { .. }) = was {
            self.enter(task, was, ObservedState::Stopped, now);
        }
        self.tasks.remove(&task);
    }
}

impl Local {
    fn new(desired: &DesiredTask, state: ObservedState, until: Option<u64>) -> Local {
        Local {
            attempt: desired.attempt,
            name: desired.name.clone(),
            state,
            until,
            stopping: false,
            ends: Ending::Never,
            waits_for: Vec::new(),
            lease: desired.lease.map(|lease| lease.0),
            is_alloc: false,
            cpu: 0,
        }
    }

    fn live(&self) -> bool {
        matches!(self.state, ObservedState::Preparing | ObservedState::Running { .. })
    }
}

/// A run of a saver, and how it ends.
fn saved(order: &DesiredTask) -> Option<(Attempt, ObservedState)> {
    let Action::Run(work) = &order.action else { return None };
    let state = match ending(&work.command) {
        Ending::Fail { .. } => ObservedState::Failed(ExitClass::Code(1)),
        _ => ObservedState::Finished,
    };
    Some((Attempt::of(order), state))
}

fn ending(command: &[String]) -> Ending {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let after = |text: &str| text.parse().ok();
    match words.as_slice() {
        ["sim", "finish", ms] => after(ms).map_or(Ending::Never, |after| Ending::Finish { after }),
        ["sim", "fail", ms] => after(ms).map_or(Ending::Never, |after| Ending::Fail { after }),
        _ => Ending::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::plain_machine;
    use cellwright_cell::name::Name;
    use cellwright_cell::resource::Resources;
    use serde_json::json;

    const START: u64 = 100;

    fn orders(words: &[&str], max_run: Option<u64>) -> AgentOrders {
        let work = json!({
            "command": words, "env": {}, "files": {}, "max_run": max_run,
            "limits": { "cpu": 1, "ram": 1 }, "reservation": { "cpu": 1, "ram": 1 },
            "ports": [], "devices": [], "packages": [], "notice": 1000, "priority": 100,
            "appclass": "batch", "waits_for": [], "delay": 0,
        });
        let task = DesiredTask {
            task: TaskId(7),
            attempt: 1,
            saver: 0,
            name: "ubar/jfoo/0".into(),
            action: Action::Run(serde_json::from_value(work).unwrap()),
            lease: None,
        };
        AgentOrders {
            epoch: Epoch { era: 1, index: 1 },
            tasks: Some(vec![task]),
            orders_digest: 1,
            poll: Span::seconds(10),
            heard_ago: None,
            redial: None,
            is_dismissed: false,
            incarnation: 0,
        }
    }

    /// How a task with this command ends, and when; `None` while it still runs.
    fn check(words: &[&str], max_run: Option<u64>, want: Option<(u64, ObservedState)>) {
        let capacity = Resources::new(1000, 1 << 30, 0, 0);
        let spec = plain_machine(Name::new("m1").unwrap(), capacity).spec;
        let mut agent = VirtualAgent::new(spec, Pace { start: START, stop: 50 });
        agent.obey(orders(words, max_run), 0, 0);
        assert!(agent.advance(START) && agent.running() == 1, "{words:?}");
        let Some((at, state)) = want else {
            assert_eq!(agent.next_change(), None, "{words:?}");
            return;
        };
        assert_eq!(agent.next_change(), Some(START + at), "{words:?}");
        assert!(!agent.advance(START + at - 1) && agent.advance(START + at), "{words:?}");
        assert_eq!(agent.report(false, Time::ZERO).tasks[0].state, state, "{words:?}");
    }

    #[test]
    fn a_task_ends_as_told_or_when_its_time_is_over() {
        let timed_out = ObservedState::Failed(ExitClass::TimedOut);
        check(&["serve"], None, None);
        check(&["serve"], Some(3000), Some((3000, timed_out)));
        check(&["sim", "finish", "500"], None, Some((500, ObservedState::Finished)));
        check(&["sim", "finish", "500"], Some(500), Some((500, ObservedState::Finished)));
        check(&["sim", "finish", "500"], Some(499), Some((499, timed_out)));
        let failed = ObservedState::Failed(ExitClass::Code(1));
        check(&["sim", "fail", "500"], Some(9000), Some((500, failed)));
    }
}
