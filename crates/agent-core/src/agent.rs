//! One agent as a value: what it was ordered, which attempts it has, and what it has reported.
//! Whoever runs it brings answers of masters and events of attempts, and carries out the actions it
//! is given; it has no choices left to make.
//!
//! An action that is given counts as done from then on, so it is given once. What came of it
//! arrives as an event.

use crate::decide::{self, Action, AttemptStatus, Attempts, End, Health, Phase, Requested, View};
use crate::orders::{Orders, Taken};
use cellwright_api::internal::{AgentOrders, AgentReport, REPORT_FORMAT, TaskUsage};
use cellwright_api::life::{LifeNumber, Told};
use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::id::{Attempt, TaskId};
use cellwright_cell::machine::{MachineSpec, ShortageReport};
use cellwright_cell::spec::PackageRef;
use cellwright_cell::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Something happened to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its program runs; said again whenever one of these changes.
    Status {
        /// When it is killed unless the lease is renewed.
        lease_until: Option<u64>,
        /// It was asked to stop, by this agent or one before.
        is_stopping: bool,
    },
    /// The room of an alloc is held.
    Held,
    Health(Health),
    Ended(End),
}

/// What an event changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The masters should hear of it.
    pub is_news: bool,
    /// There may be something to do: see [`AgentCore::next_actions`].
    pub decides: bool,
    /// Its program has begun to run.
    pub began: bool,
}

/// What an answer of a master meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub life: Told,
    pub taken: Taken,
    /// Attempts whose health is checked in another way from now on.
    pub other_checks: Vec<Attempt>,
}

/// What a report says besides what the agent itself knows.
#[derive(Clone, Debug)]
pub struct Facts {
    pub spec: MachineSpec,
    pub packages: Option<BTreeSet<PackageRef>>,
    pub usage: Vec<TaskUsage>,
    pub shortages: Vec<ShortageReport>,
    /// The machine's clock.
    pub wall: Time,
}

/// One attempt, and what was ordered of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptEntry {
    pub status: AttemptStatus,
    pub order: DesiredTask,
}

impl AttemptEntry {
    fn new(order: DesiredTask, lease_until: Option<u64>) -> AttemptEntry {
        let is_alloc = matches!(order.action, Order::Hold { .. });
        let alloc = match &order.action {
            Order::Run(work) => work.alloc,
            _ => None,
        };
        let (phase, requested) = (Phase::Preparing, Requested::Nothing);
        let status = AttemptStatus { phase, requested, is_alloc, alloc, lease_until };
        AttemptEntry { status, order }
    }
}

#[derive(Clone, Debug)]
pub struct AgentCore {
    pub life: LifeNumber,
    orders: Orders,
    /// When the leader is known to have heard of this machine, on the boot clock.
    heard: Option<u64>,
    attempts: BTreeMap<Attempt, AttemptEntry>,
    /// Number of the newest report.
    reported: u64,
}

impl AgentCore {
    #[must_use]
    pub fn new(life: LifeNumber, orders: Orders) -> AgentCore {
        AgentCore { life, orders, heard: None, attempts: BTreeMap::new(), reported: 0 }
    }

    /// The newest orders it has taken.
    #[must_use]
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    #[must_use]
    pub fn attempts(&self) -> &BTreeMap<Attempt, AttemptEntry> {
        &self.attempts
    }

    #[must_use]
    pub fn attempt(&self, attempt: Attempt) -> Option<&AttemptEntry> {
        self.attempts.get(&attempt)
    }

    /// The attempt by which the room of an alloc is held, if it is.
    #[must_use]
    pub fn alloc(&self, alloc: TaskId) -> Option<(Attempt, &AttemptEntry)> {
        let last = Attempt { saver: u32::MAX, ..Attempt::new(alloc, u32::MAX) };
        let mut all = self.attempts.range(Attempt::new(alloc, 0)..=last);
        let held = all.find(|(_, entry)| entry.status.is_alloc && entry.status.lives());
        held.map(|(attempt, entry)| (*attempt, entry))
    }

    /// Takes up an attempt that an agent before has left.
    pub fn adopt(&mut self, order: DesiredTask) -> Attempt {
        let attempt = Attempt::of(&order);
        let mut entry = AttemptEntry::new(order, None);
        if matches!(entry.order.action, Order::Stop { .. }) {
            entry.status.requested = Requested::Kill;
        }
        self.attempts.insert(attempt, entry);
        attempt
    }

    /// What may change of an attempt while it runs, from the orders as they are. Returns those
    /// whose health is to be checked in another way.
    pub fn refresh(&mut self) -> Vec<Attempt> {
        let mut other_checks = Vec::new();
        for order in self.orders.list() {
            let attempt = Attempt::of(order);
            let Some(entry) = self.attempts.get_mut(&attempt) else { continue };
            let (Order::Run(new), Order::Run(old)) = (&order.action, &entry.order.action) else {
                continue;
            };
            if *order == entry.order {
                continue;
            }
            if new.health != old.health {
                other_checks.push(attempt);
            }
            if let (Phase::Running(health), None) = (&mut entry.status.phase, &new.health) {
                *health = Health::Well;
            }
            entry.order = order.clone();
        }
        other_checks
    }

    /// Takes the answer to a report that was sent then. New orders are to be on disk before
    /// [`AgentCore::next_actions`] is asked what they mean.
    pub fn hear(&mut self, answer: AgentOrders, sent: u64) -> Heard {
        let life = self.life.hear(answer.incarnation);
        let mut heard = Heard { life, taken: Taken::Refused, other_checks: Vec::new() };
        // Nothing of an answer to another life's number is for this one.
        if life == Told::Raised {
            return heard;
        }
        if let Some(ago) = answer.heard_ago {
            // Never later than when the leader heard: the poll arrived after it was sent.
            let at = sent.saturating_sub(ago.0);
            self.heard = Some(self.heard.map_or(at, |before| before.max(at)));
        }
        heard.taken = self.orders.take(answer);
        if heard.taken == Taken::New {
            heard.other_checks = self.refresh();
        }
        heard
    }

    /// Takes in what happened to an attempt. Nothing changes when it is not known any more.
    pub fn observe(&mut self, attempt: Attempt, event: Event) -> Change {
        let Some(entry) = self.attempts.get_mut(&attempt) else { return Change::default() };
        let before = entry.status;
        let status = &mut entry.status;
        match event {
            Event::Status { lease_until, is_stopping } => {
                status.lease_until = lease_until;
                if is_stopping {
                    status.requested = status.requested.max(Requested::Stop);
                }
                if status.phase == Phase::Preparing {
                    status.phase = Phase::Running(first_health(&entry.order));
                }
            }
            Event::Held => status.phase = Phase::Running(Health::Well),
            Event::Health(health) => {
                if let Phase::Running(known) = &mut status.phase {
                    *known = health;
                }
            }
            Event::Ended(end) => status.phase = Phase::Ended(end),
        }
        let after = entry.status;
        Change {
            is_news: before.phase != after.phase,
            decides: before.decides_otherwise(&after),
            began: before.phase == Phase::Preparing && matches!(after.phase, Phase::Running(_)),
        }
    }

    /// What is to be done now. What is given counts as done, and is not given again; where it may
    /// have led to more, ask again.
    pub fn next_actions(&mut self, now: u64) -> Vec<Action> {
        let seen = self.statuses();
        let orders = self.orders.tasks.as_deref();
        let actions = decide::decide(&View { orders, seen: &seen, heard: self.heard, now });
        actions.iter().for_each(|action| self.note(action));
        actions
    }

    fn note(&mut self, action: &Action) {
        let mut request = |attempt: &Attempt, requested| {
            if let Some(entry) = self.attempts.get_mut(attempt) {
                entry.status.requested = requested;
            }
        };
        match action {
            Action::Start { order, lease_until } => {
                let order = DesiredTask::clone(order);
                self.attempts.insert(Attempt::of(&order), AttemptEntry::new(order, *lease_until));
            }
            Action::Stop { attempt, .. } => request(attempt, Requested::Stop),
            Action::Kill { attempt } => request(attempt, Requested::Kill),
            Action::Renew { attempt, until } => {
                if let Some(entry) = self.attempts.get_mut(attempt) {
                    entry.status.lease_until = Some(*until);
                }
            }
            Action::Forget { attempt } => drop(self.attempts.remove(attempt)),
        }
    }

    fn statuses(&self) -> Attempts {
        self.attempts.iter().map(|(attempt, entry)| (*attempt, entry.status)).collect()
    }

    /// Everything, as the masters are told.
    pub fn report(&mut self, hang: bool, facts: Facts, now: u64) -> AgentReport {
        // By the clock of this boot, so that it grows over a restart of the agent too.
        self.reported = now.max(self.reported + 1);
        AgentReport {
            format: REPORT_FORMAT,
            machine: facts.spec.name.clone(),
            incarnation: self.life.incarnation,
            number: self.reported,
            taken: self.orders.epoch,
            hang,
            orders_digest: self.orders.digest,
            spec: Some(facts.spec),
            tasks: decide::report(&self.statuses()),
            packages: facts.packages,
            usage: facts.usage,
            shortages: facts.shortages,
            wall: facts.wall,
        }
    }
}

/// One without a check is well because it runs.
fn first_health(order: &DesiredTask) -> Health {
    match &order.action {
        Order::Run(work) if work.health.is_none() => Health::Well,
        _ => Health::Starting,
    }
}

#[cfg(test)]
mod tests;
