//! Invariants of one virtual agent, checked without sharing code with the agent's core: what it was
//! really ordered, what its programs really did, and what it reported about them.
//!
//! | rule | what is seen when it is broken |
//! |---|---|
//! | no attempt starts twice | an attempt that was there in this incarnation starts again |
//! | no task starts before its alloc, or before those whose resources it takes have left | |
//! | a task that orders no longer list ends | it runs on, long after its notice |
//! | a started attempt is reported until newer orders drop it | a report without it |
//! | `max_run` is kept, and memory limits are | it runs on |
//! | orders only become newer | older ones are obeyed |
//! | what is reported in force is the least that is allowed | a program is allowed more |

use super::virtual_kernel::Kernel;
use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::id::{Attempt, TaskId};
use cellwright_cell::observed::ObservedState;
use cellwright_cell::plan::Victim;
use cellwright_messages::{AgentOrders, AgentReport, Epoch};
use std::collections::{BTreeMap, BTreeSet};

/// How long after its deadline a program may still be there, in milliseconds.
const SLACK: u64 = 2000;
/// How long a program may be over its memory limit: it is checked every second, killed, and killed
/// again after ten.
const MAX_OVER_LIMIT: u64 = 15_000;

#[derive(Clone, Debug, Default)]
pub struct AgentInvariants {
    epoch: Epoch,
    orders: BTreeMap<Attempt, DesiredTask>,
    /// By when each running program must have ended at the latest, according to the orders.
    end_deadlines: BTreeMap<Attempt, u64>,
    started: BTreeSet<Attempt>,
    /// Allocs whose resources are held.
    held_allocs: BTreeSet<TaskId>,
    over_limit: BTreeMap<Attempt, u64>,
    violation: Option<String>,
}

impl AgentInvariants {
    /// The first rule violation.
    pub fn take_violation(&mut self) -> Option<String> {
        self.violation.take()
    }

    fn record_violation(&mut self, message: String) {
        self.violation.get_or_insert(message);
    }

    /// The machine rebooted: no program runs. The agent keeps its state, unless its disk is lost.
    pub fn reboot(&mut self, is_disk_lost: bool) {
        let mut next =
            AgentInvariants { violation: self.violation.take(), ..AgentInvariants::default() };
        if !is_disk_lost {
            (next.epoch, next.started) = (self.epoch, std::mem::take(&mut self.started));
        }
        *self = next;
    }

    /// An answer arrived, and was obeyed or not.
    pub fn on_orders(&mut self, answer: &AgentOrders, is_obeyed: bool) {
        if answer.epoch < self.epoch {
            if is_obeyed {
                self.record_violation("obeyed older orders".into());
            }
            return;
        }
        if !is_obeyed {
            return;
        }
        self.epoch = answer.epoch;
        let Some(tasks) = &answer.tasks else { return };
        self.orders = tasks.iter().map(|order| (Attempt::of(order), order.clone())).collect();
        let orders = &self.orders;
        // An end is reported until it is dropped here.
        self.started.retain(|attempt| orders.contains_key(attempt));
    }

    /// The resources of an alloc are held, or not any more.
    pub fn on_alloc_hold(&mut self, alloc: TaskId, is_held: bool) {
        if is_held {
            self.held_allocs.insert(alloc);
        } else {
            self.held_allocs.remove(&alloc);
        }
    }

    /// An attempt starts.
    pub fn on_start(&mut self, attempt: Attempt, kernel: &Kernel) {
        if !self.started.insert(attempt) {
            self.record_violation(format!("{attempt} began twice"));
        }
        let Some(Order::Run(work)) = self.orders.get(&attempt).map(|order| &order.action) else {
            return;
        };
        let is_live = |victim: &Victim| {
            kernel.programs().contains_key(&Attempt::new(victim.task, victim.attempt))
        };
        let early = work.waits_for.iter().any(is_live);
        let homeless = work.alloc.is_some_and(|alloc| !self.held_allocs.contains(&alloc));
        if early {
            self.record_violation(format!(
                "{attempt} began before those had left whose room it takes"
            ));
        } else if homeless {
            self.record_violation(format!("{attempt} began before its alloc"));
        }
    }

    /// Checks the rules after time has passed.
    pub fn check_at(&mut self, kernel: &Kernel, now: u64) {
        for (attempt, row) in kernel.programs() {
            let order = self.orders.get(attempt);
            let notice = match order.map(|order| &order.action) {
                Some(Order::Run(_)) => None,
                Some(Order::Stop { notice, .. }) => Some(notice.0),
                _ => Some(0),
            };
            if let Some(notice) = notice {
                // A notice may be shortened while it runs, and never lengthened.
                let by = now + notice + SLACK;
                let known = self.end_deadlines.entry(*attempt).or_insert(by);
                *known = by.min(*known);
            } else {
                self.end_deadlines.remove(attempt);
            }
            let run_until = row.started.zip(row.work.max_run).map(|(at, most)| at + most.0 + SLACK);
            let name = &row.order.name;
            if self.end_deadlines.get(attempt).is_some_and(|due| *due < now) {
                self.record_violation(format!("{name} runs on though it is ordered away"));
            } else if run_until.is_some_and(|until| until < now) {
                self.record_violation(format!("{name} runs longer than its max_run"));
            }
            let is_over = row.granted.ram > row.work.limits.ram && !row.work.isolation.slack_ram;
            if !is_over {
                self.over_limit.remove(attempt);
            } else if now.saturating_sub(*self.over_limit.entry(*attempt).or_insert(now))
                > MAX_OVER_LIMIT
            {
                self.record_violation(format!("{name} holds more memory than its limit"));
            }
        }
        self.end_deadlines.retain(|attempt, _| kernel.programs().contains_key(attempt));
        self.over_limit.retain(|attempt, _| kernel.programs().contains_key(attempt));
    }

    /// Checks a report that is being sent.
    pub fn check_report(&mut self, report: &AgentReport, kernel: &Kernel, now: u64) {
        let reported: BTreeSet<Attempt> = report
            .tasks
            .iter()
            .map(|task| Attempt {
                log_saver_run: task.log_saver_run,
                ..Attempt::new(task.task, task.attempt)
            })
            .collect();
        let owed =
            |attempt: &&Attempt| !reported.contains(attempt) && self.orders.contains_key(attempt);
        if let Some(attempt) = self.started.iter().find(owed).copied() {
            self.record_violation(format!(
                "a report says nothing of {attempt}, which began and is ordered"
            ));
        }
        for task in report.tasks.iter().filter(|task| task.log_saver_run == 0) {
            let attempt = Attempt::new(task.task, task.attempt);
            let row = kernel.programs().get(&attempt);
            let allowed = row.map(|row| row.work.limits);
            if let (Some(allowed), Some(reported)) = (allowed, task.limits)
                && !allowed.within(reported.limits)
            {
                self.record_violation(format!(
                    "{attempt} may use more than a report says is in force"
                ));
            }
            let is_unhealthy = row.is_some_and(|row| row.is_unhealthy_for_long(now));
            if is_unhealthy && task.state == (ObservedState::Running { healthy: true }) {
                self.record_violation(format!("{attempt} is ill, and a report calls it healthy"));
            }
        }
    }
}
