//! Limits that change while a task runs, on its control group (B20): one step for each attempt and
//! pass, which `agent-core` decides from what is used, and which is reported as it came out.
//!
//! What was set is remembered here until the loop knows it, so that a list of tasks from before it
//! does not undo it, nor have a task killed for what it is allowed by now.

use super::{Finding, ResizedAlloc, WatchedTask, Watcher, log_refused};
use crate::cgroups::task_cpu_weight;
use cellwright_agent_core::resize::PendingResize;
use cellwright_cell::id::Attempt;
use cellwright_cell::observed::LimitsInForce;
use cellwright_cell::priority::AppClass;
use cellwright_cell::resource::Resources;
use cellwright_isolate::cgroup::{Group, cpu_weight};
use std::collections::BTreeSet;

/// The cgroup of a task or an alloc.
struct Target<'a> {
    name: &'a str,
    group: &'a Group,
    /// Bytes that it has on disk.
    disk: u64,
    /// The CPU weight that belongs to a limit.
    weight: fn(u64) -> u64,
}

impl Watcher {
    /// Takes a step with every attempt whose limits are to be changed; `tasks` have the limits in
    /// force after that.
    pub(super) fn resize(
        &mut self,
        tasks: &mut [WatchedTask],
        allocs: &[ResizedAlloc],
    ) -> Vec<(Attempt, Finding)> {
        let resized = tasks.iter().filter(|task| task.resize.is_some()).map(|task| task.attempt);
        let resized: BTreeSet<Attempt> =
            resized.chain(allocs.iter().map(|alloc| alloc.resize.attempt)).collect();
        self.in_force.retain(|attempt, _| resized.contains(attempt));
        let mut findings = Vec::new();
        for ResizedAlloc { name, group, resize } in allocs {
            let disk = self.alloc_disk_use(resize.attempt, tasks);
            let target = Target { name, group, disk, weight: cpu_weight };
            findings.extend(self.step(&target, resize).1);
        }
        for task in tasks.iter_mut() {
            let Some(resize) = task.resize else { continue };
            let weight: fn(u64) -> u64 = match task.class {
                AppClass::LatencySensitive => cpu_weight,
                AppClass::Batch => |cpu| task_cpu_weight(AppClass::Batch, cpu),
            };
            let disk = self.disk_use(task.attempt);
            let target = Target { name: &task.name, group: &task.group, disk, weight };
            let (limits, finding) = self.step(&target, &resize);
            task.limits = self.machine.cpu_factor.on_machine(limits);
            findings.extend(finding);
        }
        findings
    }

    /// What the tasks of an alloc and its own folder have on disk.
    fn alloc_disk_use(&self, alloc: Attempt, tasks: &[WatchedTask]) -> u64 {
        let inside =
            |task: &&WatchedTask| task.alloc_disk.as_ref().is_some_and(|disk| disk.alloc == alloc);
        let used = tasks.iter().filter(inside).map(|task| self.disk_use(task.attempt));
        used.fold(self.disk_use(alloc), u64::saturating_add)
    }

    /// What was not counted to its end yet may be anything.
    fn disk_use(&self, attempt: Attempt) -> u64 {
        let counted = self.counts.of(attempt);
        if counted.complete { counted.bytes } else { u64::MAX }
    }

    fn step(
        &mut self,
        target: &Target<'_>,
        resize: &PendingResize,
    ) -> (Resources, Option<(Attempt, Finding)>) {
        let before = self.in_force.get(&resize.attempt).copied();
        let before = before.unwrap_or(resize.known.limits);
        let Ok(usage) = target.group.usage() else { return (before, None) };
        let used = Resources { ram: usage.working_set, disk: target.disk, ..Resources::ZERO };
        let limits = set(target, resize, before, resize.next_limits(before, used));
        self.in_force.insert(resize.attempt, limits);
        let now = LimitsInForce { resizes: resize.wanted.resizes, limits };
        if now == resize.known {
            return (limits, None);
        }
        tracing::info!(task = target.name, ?limits, "resized");
        (limits, Some((resize.attempt, Finding::Resized(now))))
    }
}

/// Sets what differs; returns the limits that are in force then. The cap of CPU follows with the
/// throttling of this pass.
fn set(
    target: &Target<'_>,
    resize: &PendingResize,
    before: Resources,
    next: Resources,
) -> Resources {
    let Target { name, group, weight, .. } = target;
    let mut now = next;
    if next.cpu != before.cpu && log_refused(name, group, group.set_cpu_weight(weight(next.cpu))) {
        now.cpu = before.cpu;
    }
    if next.ram == before.ram || resize.slack_ram {
        return now;
    }
    let refused = if next.ram > before.ram {
        log_refused(name, group, group.set_memory_limit(Some(next.ram)))
    } else {
        match group.lower_memory_limit(next.ram) {
            Ok(lowered) => !lowered,
            Err(error) => log_refused(name, group, Err(error)),
        }
    };
    if refused {
        now.ram = before.ram;
    }
    now
}
