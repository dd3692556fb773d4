//! The loop's part in watching tasks: what is sent to the watcher, what comes back, and what is
//! reported to the masters.

use super::{Agent, LocalAttempt};
use crate::attempt::AttemptUpdate;
use crate::book_keeper::Found;
use crate::boot;
use crate::health::{ProbeTarget, run_probes};
use crate::machine;
use crate::record;
use crate::shim::exit_of;
use crate::shim::protocol::{LAUNCH, Launch, Request};
use crate::usage::MeasuredTask;
use crate::watch::{AllocDisk, Finding, ResizedAlloc, WatchList, WatchedTask};
use cellwright_agent_core::agent::{AttemptEntry, Event};
use cellwright_agent_core::reconcile::Phase;
use cellwright_agent_core::resize::PendingResize;
use cellwright_cell::desired::Action as Order;
use cellwright_cell::id::Attempt;
use cellwright_cell::id::TaskId;
use cellwright_cell::observed::LimitsInForce;
use cellwright_isolate::cgroup::Group;
use cellwright_supervise::failpoint;
use std::collections::BTreeMap;

impl Agent {
    /// From here on the task's health is probed; a task without a check is healthy because it runs.
    pub(super) fn start_prober(&mut self, attempt: Attempt) {
        let path = self.folders.attempt_dir(attempt).join(LAUNCH);
        let Some(local) = self.locals.get_mut(&attempt) else { return };
        local.stop_prober();
        let Some(entry) = self.core.attempt(attempt) else { return };
        let (Phase::Running(_), Order::Run(work)) = (entry.status.phase, &entry.order.action)
        else {
            return;
        };
        let Some(check) = work.health.clone() else { return };
        let Some(launch) = record::read::<Launch>(&path).ok().flatten() else { return };
        let target = ProbeTarget {
            check,
            started: local.status.as_ref().map_or(0, |status| status.started),
            ports: work.ports.clone(),
            launch,
            program: self.preparer.shim.clone(),
            permits: self.probing.clone(),
        };
        let updates = self.updates_tx.clone();
        local.prober = Some(self.supervisor.spawn_restarting("a health check", move || {
            let updates = updates.clone();
            run_probes(target.clone(), move |health| {
                // The loop that received updates may have ended.
                let _ = updates.send((attempt, AttemptUpdate::Health(health)));
            })
        }));
    }

    pub(super) fn find_group(&mut self, attempt: Attempt) {
        let path = self.folders.attempt_dir(attempt).join(LAUNCH);
        let launch = record::read::<Launch>(&path).ok().flatten();
        let group = launch.and_then(|launch| self.preparer.groups.at(&launch.group?));
        if let Some(local) = self.locals.get_mut(&attempt) {
            local.group = group;
        }
    }

    /// Has the tasks sampled that run in cgroups, and limits changed. A pass that is not over yet
    /// is not hurried.
    pub(super) fn sample_tasks(&mut self) {
        failpoint("agent");
        let mut resizes: BTreeMap<Attempt, PendingResize> = BTreeMap::new();
        let mut allocs = Vec::new();
        for resize in self.core.pending_resizes() {
            match self.group_of(&resize) {
                // Nothing of it is limited, so whatever is asked for is in force.
                None => self.on_resized(resize.attempt, resize.wanted),
                Some((name, group)) if resize.is_alloc => {
                    allocs.push(ResizedAlloc { name, group, resize });
                }
                Some(_) => drop(resizes.insert(resize.attempt, resize)),
            }
        }
        let watched = |(attempt, entry): (&Attempt, &AttemptEntry)| {
            let (Phase::Running(_), Order::Run(work)) = (entry.status.phase, &entry.order.action)
            else {
                return None;
            };
            Some(WatchedTask {
                attempt: *attempt,
                name: entry.order.name.clone(),
                group: self.locals.get(attempt)?.group.clone()?,
                folder: self.folders.work_dir(*attempt),
                alloc_disk: work.alloc.and_then(|alloc| self.alloc_disk(alloc)),
                class: work.appclass,
                priority: work.priority,
                limits: self.cpu_factor.on_machine(entry.status.limits.limits),
                resize: resizes.get(attempt).copied(),
                reservation: self.cpu_factor.on_machine(work.reservation),
                isolation: work.isolation.clone(),
                ports: work.ports.clone(),
            })
        };
        let tasks = self.core.attempts().iter().filter_map(watched).collect();
        let _ = self.watcher.try_send(WatchList { tasks, allocs });
    }

    /// The name of what is to be resized, and its cgroup; `None` where it has none.
    fn group_of(&self, resize: &PendingResize) -> Option<(String, Group)> {
        let entry = self.core.attempt(resize.attempt)?;
        let group = if resize.is_alloc {
            self.preparer.groups.alloc_group(resize.attempt)
        } else {
            self.locals.get(&resize.attempt)?.group.clone()
        };
        Some((entry.order.name.clone(), group?))
    }

    /// The masters are told once the next agent would know.
    fn on_resized(&mut self, attempt: Attempt, limits: LimitsInForce) {
        let change = self.core.observe(attempt, Event::Resized(limits));
        let Some(entry) = self.core.attempt(attempt).filter(|entry| entry.status.is_active())
        else {
            return;
        };
        if let Err(error) = self.folders.replace_order(&entry.order_in_force()) {
            tracing::error!(task = entry.order.name, %error, "its limits cannot be written");
        }
        if change.needs_report {
            self.news.notify_one();
        }
    }

    /// What the tasks of an alloc share on disk.
    fn alloc_disk(&self, alloc: TaskId) -> Option<AllocDisk> {
        let (alloc, entry) = self.core.alloc(alloc)?;
        Some(AllocDisk {
            alloc,
            group: self.preparer.groups.alloc_group(alloc),
            folder: self.folders.work_dir(alloc),
            limit: entry.status.limits.limits.disk,
        })
    }

    pub(super) fn on_finding(&mut self, attempt: Attempt, finding: Finding) {
        match finding {
            Finding::Condemned { class, why } => {
                if let Some(local) = self.locals.get(&attempt) {
                    local.send(Request::Condemn { class, why });
                }
            }
            Finding::UnassignedPorts(ports) => {
                let task = self.core.attempt(attempt).map(|entry| entry.order.name.as_str());
                tracing::warn!(task, ?ports, "listens where it was not told to");
                if let Some(local) = self.locals.get_mut(&attempt) {
                    local.unassigned_ports = ports;
                }
                self.advertise_unassigned_ports();
            }
            Finding::Resized(limits) => self.on_resized(attempt, limits),
        }
    }

    /// Advertises, as an attribute of the machine, which tasks listen on ports that were not
    /// assigned to them.
    pub(super) fn advertise_unassigned_ports(&mut self) {
        let describe = |(attempt, local): (&Attempt, &LocalAttempt)| {
            let entry = self.core.attempt(*attempt).filter(|entry| entry.status.is_active())?;
            let ports: Vec<String> =
                local.unassigned_ports.iter().map(ToString::to_string).collect();
            (!ports.is_empty()).then(|| format!("{}: {}", entry.order.name, ports.join(", ")))
        };
        let all: Vec<String> = self.locals.iter().filter_map(describe).collect();
        let text = (!all.is_empty()).then(|| all.join("; "));
        machine::set_text_attribute(&mut self.machine, machine::UNASSIGNED_PORTS, text.as_deref());
        self.news.notify_one();
    }

    /// Takes up the book of an earlier agent. Where there is none, what it may have told of tasks
    /// that run already is not told again.
    pub(super) fn adopt_usage(&mut self, found: Found) {
        let clocks = self.ledger.clocks();
        let attempts = self.core.attempts();
        for (attempt, entry) in attempts.iter().filter(|_| found == Found::Nothing) {
            let Order::Run(work) = &entry.order.action else { continue };
            self.ledger.book.begin_late(*attempt, &entry.order.name, work, clocks);
            if exit_of(&self.folders.attempt_dir(*attempt)).is_ok_and(|exit| exit.is_some()) {
                self.ledger.book.end(*attempt, None);
            }
        }
        self.ledger.book.retain(|attempt| attempts.contains_key(&attempt));
    }

    /// Its program runs since its shim started it.
    pub(super) fn book_start(&mut self, attempt: Attempt) {
        let started =
            self.locals.get(&attempt).and_then(|local| Some(local.status.as_ref()?.started));
        let entry = self.core.attempt(attempt);
        if let (Some(started), Some(entry)) = (started, entry)
            && let Order::Run(work) = &entry.order.action
        {
            let clocks = self.ledger.clocks();
            self.ledger.book.begin(attempt, &entry.order.name, work, started, clocks);
        }
    }

    /// The last words about a task are those of its shim; nobody else may have seen it run.
    pub(super) fn book_end(&mut self, attempt: Attempt) {
        let exit = exit_of(&self.folders.attempt_dir(attempt)).ok().flatten();
        let reading = exit.and_then(|exit| exit.usage);
        let entry = self.core.attempt(attempt);
        if let (Some(reading), Some(entry)) = (reading, entry)
            && let Order::Run(work) = &entry.order.action
        {
            let clocks = self.ledger.clocks();
            self.ledger.book.begin(attempt, &entry.order.name, work, reading.started, clocks);
        }
        self.ledger.book.end(attempt, reading);
    }

    /// Adds what was read since, closes what is over, and writes what was closed.
    pub(super) fn keep_book(&mut self) {
        let cgroup_readings = self.readings.latest();
        for (attempt, reading) in cgroup_readings.iter().chain(self.process_sampler.latest()) {
            let entry = self.core.attempt(*attempt);
            if let Some(Order::Run(work)) = entry.map(|entry| &entry.order.action) {
                self.ledger.book.observe(*attempt, work, reading);
            }
        }
        let clocks = self.ledger.clocks();
        self.ledger.book.close_due(clocks);
        self.ledger.write_if_due();
    }

    pub(super) fn measure(&mut self) -> Vec<cellwright_messages::TaskUsage> {
        let measured: Vec<MeasuredTask> = self
            .locals
            .iter()
            .filter_map(|(attempt, local)| {
                // The usage of a log saver says nothing about the task whose logs it saves.
                let is_live = self.core.attempt(*attempt).is_some_and(|e| e.status.is_active());
                let is_task = is_live && !attempt.is_log_saver();
                let is_plain = is_task && local.group.is_none();
                let shim = local.status.as_ref().filter(|_| is_plain)?.shim;
                Some(MeasuredTask {
                    attempt: *attempt,
                    shim,
                    folder: self.folders.work_dir(*attempt),
                })
            })
            .collect();
        let mut used = self.sampler.usage(&self.readings.take());
        if !measured.is_empty() {
            used.extend(self.process_sampler.sample(&measured, boot::now()));
        }
        for usage in &mut used {
            usage.used.cpu = self.cpu_factor.to_cell(usage.used.cpu);
        }
        used
    }
}
