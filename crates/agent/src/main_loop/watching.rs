//! The loop's part in watching tasks: what is sent to the watcher, what comes back, and what the
//! masters are told of it.

use super::{Agent, Local};
use crate::attempt::Heard;
use crate::boot;
use crate::core::{Attempt, Health, Phase};
use crate::health::{Patient, watch};
use crate::machine;
use crate::record;
use crate::shim::protocol::{LAUNCH, Launch, Request};
use crate::usage::Measured;
use crate::watch::{Finding, Shared, Watched};
use cellwright_cell::desired::Action as Order;
use cellwright_cell::id::TaskId;
use cellwright_supervise::plant;

impl Agent {
    /// From here on the task is asked; one without a check is well because it runs.
    pub(super) fn watch_health(&mut self, attempt: Attempt) {
        let path = self.folders.attempt(attempt).join(LAUNCH);
        let Some(local) = self.locals.get_mut(&attempt) else { return };
        local.dismiss();
        let Phase::Running(health) = &mut local.seen.phase else { return };
        let Order::Run(work) = &local.order.action else { return };
        let Some(check) = work.health.clone() else {
            *health = Health::Well;
            return;
        };
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
        let watched = |(attempt, local): (&Attempt, &Local)| {
            let (Phase::Running(_), Order::Run(work)) = (local.seen.phase, &local.order.action)
            else {
                return None;
            };
            Some(Watched {
                attempt: *attempt,
                name: local.order.name.clone(),
                group: local.group.clone()?,
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
        let _ = self.watcher.try_send(self.locals.iter().filter_map(watched).collect());
    }

    /// What the tasks of an alloc have together.
    fn shared(&self, alloc: TaskId) -> Option<Shared> {
        let held = |(attempt, local): &(&Attempt, &Local)| {
            attempt.task == alloc && local.seen.is_alloc && local.seen.lives()
        };
        let (alloc, local) = self.locals.iter().find(held)?;
        let Order::Hold { limits, .. } = &local.order.action else { return None };
        Some(Shared {
            alloc: *alloc,
            group: self.preparer.groups.of_alloc(*alloc),
            folder: self.folders.work(*alloc),
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
                tracing::warn!(task = local.order.name, ?ports, "listens where it was not told to");
                local.ungiven = ports;
                self.say_ungiven();
            }
        }
    }

    /// Has everybody know, at the machine, who uses ports that were not given.
    pub(super) fn say_ungiven(&mut self) {
        let guilty = |local: &&Local| !local.ungiven.is_empty() && local.seen.lives();
        let one = |local: &Local| {
            let ports: Vec<String> = local.ungiven.iter().map(ToString::to_string).collect();
            format!("{}: {}", local.order.name, ports.join(", "))
        };
        let all: Vec<String> = self.locals.values().filter(guilty).map(one).collect();
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
                let is_task = local.seen.lives() && !attempt.is_saver();
                let is_plain = is_task && local.group.is_none();
                let shim = local.status.as_ref().filter(|_| is_plain)?.shim;
                Some(Measured { attempt: *attempt, shim, folder: self.folders.work(*attempt) })
            })
            .collect();
        let mut used = self.sampler.of_groups(&self.readings.take());
        if !measured.is_empty() {
            used.extend(self.sampler.sample(&measured, boot::now()));
        }
        used
    }
}
