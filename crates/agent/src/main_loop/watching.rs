//! The loop's part in watching tasks: what is sent to the watcher, what comes back, and what the
//! masters are told of it.

use super::{Agent, Local};
use crate::attempt::Heard;
use crate::boot;
use crate::health::{Patient, watch};
use crate::machine;
use crate::record;
use crate::shim::protocol::{LAUNCH, Launch, Request};
use crate::usage::Measured;
use crate::watch::{Finding, Shared, Watched};
use cellwright_agent_core::agent::AttemptEntry;
use cellwright_agent_core::decide::Phase;
use cellwright_cell::desired::Action as Order;
use cellwright_cell::id::Attempt;
use cellwright_cell::id::TaskId;
use cellwright_supervise::plant;

impl Agent {
    /// From here on the task is asked; one without a check is well because it runs.
    pub(super) fn watch_health(&mut self, attempt: Attempt) {
        let path = self.folders.attempt(attempt).join(LAUNCH);
        let Some(local) = self.locals.get_mut(&attempt) else { return };
        local.dismiss();
        let Some(entry) = self.core.attempt(attempt) else { return };
        let (Phase::Running(_), Order::Run(work)) = (entry.status.phase, &entry.order.action)
        else {
            return;
        };
        let Some(check) = work.health.clone() else { return };
        let Some(launch) = record::read::<Launch>(&path).ok().flatten() else { return };
        let patient = Patient {
            check,
            started: local.status.as_ref().map_or(0, |status| status.started),
            ports: work.ports.clone(),
            launch,
            program: self.preparer.shim.clone(),
            turns: self.probing.clone(),
        };
        let told = self.told.clone();
        local.nurse = Some(self.supervisor.restarted("a health check", move || {
            let told = told.clone();
            watch(patient.clone(), move |health| {
                // The loop that wanted to hear it may have ended.
                let _ = told.send((attempt, Heard::Health(health)));
            })
        }));
    }

    pub(super) fn find_group(&mut self, attempt: Attempt) {
        let path = self.folders.attempt(attempt).join(LAUNCH);
        let launch = record::read::<Launch>(&path).ok().flatten();
        let group = launch.and_then(|launch| self.preparer.groups.at(&launch.group?));
        if let Some(local) = self.locals.get_mut(&attempt) {
            local.group = group;
        }
    }

    /// Has the tasks looked at that run in groups. A look that is not over yet is not hurried.
    pub(super) fn look(&self) {
        plant("agent");
        let watched = |(attempt, entry): (&Attempt, &AttemptEntry)| {
            let (Phase::Running(_), Order::Run(work)) = (entry.status.phase, &entry.order.action)
            else {
                return None;
            };
            Some(Watched {
                attempt: *attempt,
                name: entry.order.name.clone(),
                group: self.locals.get(attempt)?.group.clone()?,
                folder: self.folders.work(*attempt),
                shared: work.alloc.and_then(|alloc| self.shared(alloc)),
                class: work.appclass,
                priority: work.priority,
                limits: work.limits,
                reservation: work.reservation,
                isolation: work.isolation.clone(),
                ports: work.ports.clone(),
            })
        };
        let _ = self.watcher.try_send(self.core.attempts().iter().filter_map(watched).collect());
    }

    /// What the tasks of an alloc have together.
    fn shared(&self, alloc: TaskId) -> Option<Shared> {
        let (alloc, entry) = self.core.alloc(alloc)?;
        let Order::Hold { limits, .. } = &entry.order.action else { return None };
        Some(Shared {
            alloc,
            group: self.preparer.groups.of_alloc(alloc),
            folder: self.folders.work(alloc),
            limit: limits.disk,
        })
    }

    pub(super) fn on_finding(&mut self, attempt: Attempt, finding: Finding) {
        let Some(local) = self.locals.get_mut(&attempt) else { return };
        match finding {
            Finding::Condemned { class, why } => {
                // Shims of the first version know no reasons.
                let known = local.status.as_ref().is_some_and(|status| status.version >= 2);
                local.ask(if known { Request::Condemn { class, why } } else { Request::Kill });
            }
            Finding::Ungiven(ports) => {
                let task = self.core.attempt(attempt).map(|entry| entry.order.name.as_str());
                tracing::warn!(task, ?ports, "listens where it was not told to");
                local.ungiven = ports;
                self.say_ungiven();
            }
        }
    }

    /// Has everybody know, at the machine, who uses ports that were not given.
    pub(super) fn say_ungiven(&mut self) {
        let one = |(attempt, local): (&Attempt, &Local)| {
            let entry = self.core.attempt(*attempt).filter(|entry| entry.status.lives())?;
            let ports: Vec<String> = local.ungiven.iter().map(ToString::to_string).collect();
            (!ports.is_empty()).then(|| format!("{}: {}", entry.order.name, ports.join(", ")))
        };
        let all: Vec<String> = self.locals.iter().filter_map(one).collect();
        let text = (!all.is_empty()).then(|| all.join("; "));
        machine::say(&mut self.machine, machine::UNGIVEN_PORTS, text.as_deref());
        self.news.notify_one();
    }

    pub(super) fn measure(&mut self) -> Vec<cellwright_api::internal::TaskUsage> {
        let measured: Vec<Measured> = self
            .locals
            .iter()
            .filter_map(|(attempt, local)| {
                // What a saver uses says nothing of the task whose leavings it saves.
                let lives = self.core.attempt(*attempt).is_some_and(|e| e.status.lives());
                let is_task = lives && !attempt.is_saver();
                let is_plain = is_task && local.group.is_none();
                let shim = local.status.as_ref().filter(|_| is_plain)?.shim;
                Some(Measured { attempt: *attempt, shim, folder: self.folders.work(*attempt) })
            })
            .collect();
        let mut used = self.sampler.usage(&self.readings.take());
        if !measured.is_empty() {
            used.extend(self.process_sampler.sample(&measured, boot::now()));
        }
        used
    }
}
