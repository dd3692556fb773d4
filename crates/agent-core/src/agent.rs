//! One agent as a state machine: its orders, its attempts, and its reports. The loop around it
//! passes in responses of masters and events of attempts, and carries out the actions it returns;
//! it has no decisions of its own.
//!
//! An action that was returned counts as done from then on, so it is returned once. Its result
//! arrives as an event.

use crate::incarnation::{IncarnationNumber, IncarnationUpdate};
use crate::orders::{Orders, OrdersUpdate};
use crate::reconcile::{
    self, Action, AttemptStatus, Attempts, End, Health, Phase, ReconcileInput, Requested,
};
use crate::resize::PendingResize;
use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::id::{Attempt, TaskId};
use cellwright_cell::machine::{MachineSpec, ResourcePressureReport};
use cellwright_cell::observed::LimitsInForce;
use cellwright_cell::plan::Victim;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::PackageRef;
use cellwright_cell::time::Time;
use cellwright_messages::{AgentOrders, AgentReport, TaskNumbers, TaskUsage, UsageReport};
use std::collections::{BTreeMap, BTreeSet};

/// Something happened to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its program runs; repeated whenever one of these changes.
    Status {
        /// When it is killed unless the lease is renewed.
        lease_until: Option<u64>,
        /// It was asked to stop, by this agent or one before.
        is_stopping: bool,
    },
    /// The resources of an alloc are held.
    Held,
    Health(Health),
    /// Other limits are in force.
    Resized(LimitsInForce),
    Ended(End),
}

/// What an event changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The masters should get a report.
    pub needs_report: bool,
    /// There may be actions: see [`AgentCore::next_actions`].
    pub needs_reconcile: bool,
    /// Its program has started to run.
    pub started: bool,
}

/// What a master's response to a poll changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollOutcome {
    pub incarnation_change: IncarnationUpdate,
    pub orders: OrdersUpdate,
    /// Attempts whose health is checked in another way from now on.
    pub changed_health_checks: Vec<Attempt>,
}

/// What a report has besides what the core itself knows.
#[derive(Clone, Debug)]
pub struct Facts {
    pub spec: MachineSpec,
    pub packages: Option<BTreeSet<PackageRef>>,
    pub usage: Vec<TaskUsage>,
    pub resource_pressure: Vec<ResourcePressureReport>,
    /// The machine's clock.
    pub wall: Time,
    pub book: UsageReport,
    pub numbers: Vec<TaskNumbers>,
}

/// One attempt, and its order.
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
        let limits = limits_of(&order);
        let notice = None;
        let status =
            AttemptStatus { phase, requested, notice, is_alloc, alloc, lease_until, limits };
        AttemptEntry { status, order }
    }

    /// Its order with the limits that are in force: what the next agent has to know of it.
    #[must_use]
    pub fn order_in_force(&self) -> DesiredTask {
        let LimitsInForce { resizes, limits: in_force } = self.status.limits;
        let mut order = DesiredTask { resizes, ..self.order.clone() };
        match &mut order.action {
            Order::Run(work) => work.limits = in_force,
            Order::Hold { limits, .. } => *limits = in_force,
            Order::Stop { .. } | Order::Keep => {}
        }
        order
    }
}

#[derive(Clone, Debug)]
pub struct AgentCore {
    pub incarnation: IncarnationNumber,
    orders: Orders,
    /// When the leader is known to have received a poll of this machine, on the boot clock.
    leader_heard_at: Option<u64>,
    attempts: BTreeMap<Attempt, AttemptEntry>,
    /// Number of the newest report.
    report_number: u64,
}

impl AgentCore {
    #[must_use]
    pub fn new(incarnation: IncarnationNumber, orders: Orders) -> AgentCore {
        AgentCore {
            incarnation,
            orders,
            leader_heard_at: None,
            attempts: BTreeMap::new(),
            report_number: 0,
        }
    }

    /// The newest accepted orders.
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

    /// The attempt that holds the resources of the alloc, if there is one.
    #[must_use]
    pub fn alloc(&self, alloc: TaskId) -> Option<(Attempt, &AttemptEntry)> {
        let last = Attempt { log_saver_run: u32::MAX, ..Attempt::new(alloc, u32::MAX) };
        let mut all = self.attempts.range(Attempt::new(alloc, 0)..=last);
        let found = all.find(|(_, entry)| entry.status.is_alloc && entry.status.is_active());
        found.map(|(attempt, entry)| (*attempt, entry))
    }

    /// Adopts an attempt that an earlier agent has left.
    pub fn adopt(&mut self, order: DesiredTask) -> Attempt {
        let attempt = Attempt::of(&order);
        let mut entry = AttemptEntry::new(order, None);
        if matches!(entry.order.action, Order::Stop { .. }) {
            entry.status.requested = Requested::Kill;
        }
        self.attempts.insert(attempt, entry);
        attempt
    }

    /// Updates what may change of an attempt while it runs, from the current orders. Returns the
    /// attempts whose health is to be checked in another way.
    pub fn refresh(&mut self) -> Vec<Attempt> {
        let mut changed_health_checks = Vec::new();
        for order in self.orders.list() {
            let attempt = Attempt::of(order);
            let Some(entry) = self.attempts.get_mut(&attempt) else { continue };
            let (Order::Run(new), Order::Run(old)) = (&order.action, &entry.order.action) else {
                let is_alloc = |order: &DesiredTask| matches!(order.action, Order::Hold { .. });
                if is_alloc(order) && is_alloc(&entry.order) {
                    entry.order = order.clone();
                }
                continue;
            };
            if *order == entry.order {
                continue;
            }
            if new.health != old.health {
                changed_health_checks.push(attempt);
            }
            if let (Phase::Running(health), None) = (&mut entry.status.phase, &new.health) {
                *health = Health::Healthy;
            }
            entry.order = order.clone();
        }
        changed_health_checks
    }

    /// Handles the response to a poll that was sent at `sent`. New orders have to be on disk before
    /// [`AgentCore::next_actions`] is called.
    pub fn handle_orders(&mut self, answer: AgentOrders, sent: u64) -> PollOutcome {
        let change = self.incarnation.observe(answer.incarnation);
        let mut outcome = PollOutcome {
            incarnation_change: change,
            orders: OrdersUpdate::Stale,
            changed_health_checks: Vec::new(),
        };
        // A response to another incarnation's number does not apply to this one.
        if change == IncarnationUpdate::Raised {
            return outcome;
        }
        if let Some(ago) = answer.last_contact_age {
            // Never later than when the leader received it: the poll arrived after it was sent.
            let at = sent.saturating_sub(ago.0);
            self.leader_heard_at = Some(self.leader_heard_at.map_or(at, |before| before.max(at)));
        }
        outcome.orders = self.orders.update(answer);
        if outcome.orders == OrdersUpdate::Changed {
            outcome.changed_health_checks = self.refresh();
        }
        outcome
    }

    /// Records an event of an attempt. Nothing changes when the attempt is not known any more.
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
                    status.phase = Phase::Running(initial_health(&entry.order));
                }
            }
            Event::Held => status.phase = Phase::Running(Health::Healthy),
            Event::Health(health) => {
                if let Phase::Running(current) = &mut status.phase {
                    *current = health;
                }
            }
            Event::Resized(limits) => status.limits = limits,
            Event::Ended(end) => status.phase = Phase::Ended(end),
        }
        let after = entry.status;
        Change {
            needs_report: before.phase != after.phase || before.limits != after.limits,
            needs_reconcile: before.affects_reconcile(&after),
            started: before.phase == Phase::Preparing && matches!(after.phase, Phase::Running(_)),
        }
    }

    /// The attempts whose limits are to be changed, allocs first. An attempt that is being prepared
    /// or was told to end keeps those it has.
    #[must_use]
    pub fn pending_resizes(&self) -> Vec<PendingResize> {
        let pending = |(attempt, entry): (&Attempt, &AttemptEntry)| {
            let (status, order) = (&entry.status, &entry.order);
            let runs = matches!(status.phase, Phase::Running(_));
            let wanted = limits_of(order);
            let is_due = runs && status.requested == Requested::Nothing && wanted != status.limits;
            let (waits_for, slack_ram) = match &order.action {
                Order::Run(work) => (&work.waits_for, work.isolation.slack_ram),
                Order::Hold { waits_for, .. } => (waits_for, false),
                Order::Stop { .. } | Order::Keep => return None,
            };
            let lives = |victim: &Victim| {
                let attempt = Attempt::new(victim.task, victim.attempt);
                self.attempts.get(&attempt).is_some_and(|entry| entry.status.is_active())
            };
            is_due.then(|| PendingResize {
                attempt: *attempt,
                is_alloc: status.is_alloc,
                wanted,
                known: status.limits,
                may_grow: !waits_for.iter().any(lives),
                slack_ram,
            })
        };
        let mut all: Vec<PendingResize> = self.attempts.iter().filter_map(pending).collect();
        all.sort_by_key(|pending| !pending.is_alloc);
        all
    }

    /// The actions that are due now. They count as done, and are not returned again; where they may
    /// have led to more, call again.
    pub fn next_actions(&mut self, now: u64) -> Vec<Action> {
        let statuses = self.statuses();
        let orders = self.orders.tasks.as_deref();
        let actions = reconcile::reconcile(&ReconcileInput {
            orders,
            statuses: &statuses,
            leader_heard_at: self.leader_heard_at,
            now,
        });
        actions.iter().for_each(|action| self.mark_requested(action));
        actions
    }

    fn mark_requested(&mut self, action: &Action) {
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
            Action::Stop { attempt, notice } => {
                request(attempt, Requested::Stop);
                if let Some(entry) = self.attempts.get_mut(attempt) {
                    entry.status.notice = Some(*notice);
                }
            }
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

    /// The full report to the masters.
    pub fn report(&mut self, hang: bool, facts: Facts, now: u64) -> AgentReport {
        // By the clock of this boot, so that it grows over a restart of the agent too.
        self.report_number = now.max(self.report_number + 1);
        AgentReport {
            machine: facts.spec.name.clone(),
            incarnation: self.incarnation.incarnation,
            number: self.report_number,
            taken: self.orders.epoch,
            hang,
            orders_digest: self.orders.digest,
            spec: Some(facts.spec),
            tasks: reconcile::report(&self.statuses()),
            packages: facts.packages,
            usage: facts.usage,
            resource_pressure: facts.resource_pressure,
            wall: facts.wall,
            book: facts.book,
            numbers: facts.numbers,
        }
    }
}

/// The limits that an order says, and the number of the change they come from.
fn limits_of(order: &DesiredTask) -> LimitsInForce {
    let limits = match &order.action {
        Order::Run(work) => work.limits,
        Order::Hold { limits, .. } => *limits,
        Order::Stop { .. } | Order::Keep => Resources::ZERO,
    };
    LimitsInForce { resizes: order.resizes, limits }
}

/// A task without a check is healthy because it runs.
fn initial_health(order: &DesiredTask) -> Health {
    match &order.action {
        Order::Run(work) if work.health.is_none() => Health::Healthy,
        _ => Health::Starting,
    }
}

#[cfg(test)]
mod tests;
