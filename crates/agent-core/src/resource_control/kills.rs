//! Which tasks are killed when memory or disk space runs out, and which are blamed for it.

use super::{Action, Blame, CLEANUP_TIMEOUT, KILL_TIMEOUT, ResourceControl};
use super::{AvailableResources, KillCause, KillReason, MachineSample, TaskSample};
use cellwright_cell::id::Attempt;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::time::Time;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How many are named: the first few explain a shortage, a list of all does not.
const MAX_BLAMED: usize = 3;

/// A resource that the machine can run out of and that cannot be throttled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScarceResource {
    Ram,
    Disk,
    /// Inodes of the file system: a disk with bytes to spare can be full.
    Files,
}

impl ScarceResource {
    fn dimension(self) -> Dimension {
        match self {
            ScarceResource::Ram => Dimension::Ram,
            ScarceResource::Disk | ScarceResource::Files => Dimension::Disk,
        }
    }

    fn available(self, resources: &AvailableResources) -> u64 {
        match self {
            ScarceResource::Ram => resources.ram_available,
            ScarceResource::Disk => resources.disk_free,
            ScarceResource::Files => resources.files_free,
        }
    }

    fn used(self, sample: &TaskSample) -> u64 {
        match self {
            ScarceResource::Files => sample.files,
            ScarceResource::Ram | ScarceResource::Disk => sample.used.get(self.dimension()),
        }
    }

    fn over_limit(self, sample: &TaskSample) -> u64 {
        match self {
            ScarceResource::Files => 0,
            ScarceResource::Ram | ScarceResource::Disk => {
                self.used(sample).saturating_sub(sample.limits.get(self.dimension()))
            }
        }
    }

    /// Files have no reservation: the task with the most files has exceeded it most.
    fn over_reservation(self, sample: &TaskSample) -> u64 {
        match self {
            ScarceResource::Files => sample.files,
            ScarceResource::Ram | ScarceResource::Disk => {
                over_reservation(sample, self.dimension())
            }
        }
    }

    fn cause(self, sample: &TaskSample, short: u64) -> KillCause {
        let priority = sample.priority;
        match self {
            _ if self.over_limit(sample) > 0 => over_limit_cause(sample, self.dimension()),
            ScarceResource::Files => KillCause::Files { short, files: sample.files, priority },
            ScarceResource::Ram | ScarceResource::Disk => {
                KillCause::ResourcePressure { short, priority }
            }
        }
    }
}

/// A killed task. What it holds counts as free, but not for ever: a task that hangs in the kernel
/// keeps its memory, and files outlive the task until they are removed.
#[derive(Clone, Debug)]
pub struct KilledTask {
    since: Time,
    last_kill: Time,
    reason: KillReason,
    /// When it was first found to be gone.
    pub(super) exited: Option<Time>,
    /// What it held in the last sample.
    pub(super) last_usage: Resources,
    pub(super) files: u64,
}

impl KilledTask {
    fn freed_by_exit(&self, now: Time, resource: ScarceResource) -> u64 {
        match (self.exited, resource) {
            (None, _) if now.since(self.since) >= KILL_TIMEOUT => 0,
            (Some(_), ScarceResource::Ram) => 0,
            (_, ScarceResource::Files) => self.files,
            (_, ScarceResource::Ram | ScarceResource::Disk) => {
                self.last_usage.get(resource.dimension())
            }
        }
    }
}

impl ResourceControl {
    pub(super) fn kill(
        &mut self,
        now: Time,
        machine: &MachineSample,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) {
        self.repeat_kills(now, actions);
        let mut disk_left = 0;
        for resource in [ScarceResource::Ram, ScarceResource::Disk, ScarceResource::Files] {
            self.kill_over_limit(now, resource, tasks, actions);
            let dying = self.dying.values().map(|dying| dying.freed_by_exit(now, resource));
            let being_freed = dying.fold(0, u64::saturating_add);
            let (free, keep) =
                (resource.available(&machine.available), resource.available(&machine.reserve));
            let short = keep.saturating_sub(free).saturating_sub(being_freed);
            let left = self.free_up(now, resource, short, tasks, actions);
            match resource {
                ScarceResource::Ram => {
                    self.pressure_eviction.observe(Dimension::Ram, now, left > 0)
                }
                ScarceResource::Disk => disk_left = left,
                ScarceResource::Files => {
                    self.pressure_eviction.observe(Dimension::Disk, now, disk_left > 0 || left > 0);
                }
            }
        }
    }

    /// Records which have exited and what the others hold, and forgets those who held nothing that
    /// outlives them, or whose files had time enough to be removed.
    pub(super) fn track_killed(&mut self, now: Time, tasks: &[TaskSample]) {
        let present: BTreeMap<Attempt, &TaskSample> =
            tasks.iter().map(|sample| (sample.attempt, sample)).collect();
        self.dying.retain(|attempt, dying| {
            if let Some(sample) = present.get(attempt) {
                (dying.last_usage, dying.files) = (sample.used, sample.files);
                // One pass may have missed it.
                dying.exited = None;
                return true;
            }
            let exited_at = *dying.exited.get_or_insert(now);
            let holds = dying.last_usage.disk > 0 || dying.files > 0;
            holds && now.since(exited_at) < CLEANUP_TIMEOUT
        });
    }

    fn repeat_kills(&mut self, now: Time, actions: &mut Vec<Action>) {
        for (attempt, dying) in &mut self.dying {
            if dying.exited.is_none() && now.since(dying.last_kill) >= KILL_TIMEOUT {
                dying.last_kill = now;
                actions.push(Action::Kill { attempt: *attempt, reason: dying.reason.clone() });
            }
        }
    }

    /// Kills tasks over their limit that may not use slack. The kernel is quicker where it holds
    /// the limit.
    fn kill_over_limit(
        &mut self,
        now: Time,
        resource: ScarceResource,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) {
        for sample in tasks {
            let allowed = match resource {
                ScarceResource::Ram => sample.slack_ram,
                ScarceResource::Disk | ScarceResource::Files => sample.limits.disk == 0,
            };
            if resource.over_limit(sample) > 0 && !allowed {
                self.kill_one(now, sample, resource, tasks, 0, actions);
            }
        }
    }

    /// Kills until `short` is freed. Returns the part for which no victim is left.
    fn free_up(
        &mut self,
        now: Time,
        resource: ScarceResource,
        mut short: u64,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) -> u64 {
        if short == 0 {
            return 0;
        }
        let may_die = |sample: &&TaskSample| {
            let within = resource.over_limit(sample) == 0;
            resource.used(sample) > 0 && !(sample.is_packed_by_limits() && within)
        };
        let mut candidates: Vec<&TaskSample> = tasks.iter().filter(may_die).collect();
        // Over the limit first and furthest over first; then from low to high priority; among
        // equals the one furthest over its reservation.
        candidates.sort_by_key(|sample| {
            let over = resource.over_limit(sample);
            let priority = if over > 0 { Default::default() } else { sample.priority };
            (Reverse(over), priority, Reverse(resource.over_reservation(sample)), sample.attempt)
        });
        for sample in candidates {
            if short == 0 {
                break;
            }
            if self.kill_one(now, sample, resource, tasks, short, actions) {
                short = short.saturating_sub(resource.used(sample));
            }
        }
        short
    }

    /// False when it is dying already.
    fn kill_one(
        &mut self,
        now: Time,
        sample: &TaskSample,
        resource: ScarceResource,
        tasks: &[TaskSample],
        short: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        if self.dying.contains_key(&sample.attempt) {
            return false;
        }
        let dimension = resource.dimension();
        let used = sample.used.get(dimension);
        let (cause, blamed) = (resource.cause(sample, short), blame(dimension, tasks));
        let reason = KillReason { dimension, used, cause, blamed };
        let dying = KilledTask {
            since: now,
            last_kill: now,
            reason: reason.clone(),
            exited: None,
            last_usage: sample.used,
            files: sample.files,
        };
        self.dying.insert(sample.attempt, dying);
        actions.push(Action::Kill { attempt: sample.attempt, reason });
        true
    }
}

fn over_limit_cause(sample: &TaskSample, dimension: Dimension) -> KillCause {
    KillCause::OverLimit { limit: sample.limits.get(dimension) }
}

fn over_reservation(sample: &TaskSample, dimension: Dimension) -> u64 {
    sample.used.get(dimension).saturating_sub(sample.reservation.get(dimension))
}

fn blame(dimension: Dimension, tasks: &[TaskSample]) -> Vec<Blame> {
    let mut over: Vec<&TaskSample> =
        tasks.iter().filter(|sample| over_reservation(sample, dimension) > 0).collect();
    over.sort_by_key(|sample| (Reverse(over_reservation(sample, dimension)), sample.attempt));
    let one = |sample: &&TaskSample| Blame {
        attempt: sample.attempt,
        used: sample.used.get(dimension),
        reservation: sample.reservation.get(dimension),
    };
    over.iter().take(MAX_BLAMED).map(one).collect()
}
