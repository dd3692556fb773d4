//! Who dies when memory or disk space runs out, and who is blamed for it.

use super::{Action, Blame, Control, KillCause, KillReason, MachineSample, TaskSample};
use cellwright_cell::resource::Dimension;
use cellwright_cell::time::Time;
use std::cmp::Reverse;

/// How many are named: the first few explain a shortage, a list of all does not.
const BLAMED: usize = 3;

impl Control {
    pub(super) fn kill(
        &mut self,
        now: Time,
        machine: &MachineSample,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) {
        for (dimension, free, keep) in [
            (Dimension::Ram, machine.room.ram_available, machine.keep.ram_available),
            (Dimension::Disk, machine.room.disk_free, machine.keep.disk_free),
        ] {
            self.kill_over_limit(dimension, tasks, actions);
            let going: u64 = tasks
                .iter()
                .filter(|task| self.dying.contains(&task.task))
                .map(|task| task.used.get(dimension))
                .fold(0, u64::saturating_add);
            let short = keep.saturating_sub(free).saturating_sub(going);
            let left = self.free_up(dimension, short, tasks, actions);
            self.note_shortage(dimension, now, left > 0);
        }
    }

    /// Those who may not use slack and do. The kernel is quicker where it holds the limit.
    fn kill_over_limit(
        &mut self,
        dimension: Dimension,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) {
        for sample in tasks {
            let allowed = match dimension {
                Dimension::Ram => sample.slack_ram,
                _ => sample.limits.disk == 0,
            };
            if over_limit(sample, dimension) > 0 && !allowed {
                self.kill_one(
                    sample,
                    dimension,
                    tasks,
                    over_limit_cause(sample, dimension),
                    actions,
                );
            }
        }
    }

    /// Kills until `short` is freed. Returns what nobody is left to be killed for.
    fn free_up(
        &mut self,
        dimension: Dimension,
        mut short: u64,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) -> u64 {
        if short == 0 {
            return 0;
        }
        let may_die = |sample: &&TaskSample| {
            let within = over_limit(sample, dimension) == 0;
            sample.used.get(dimension) > 0 && !(sample.priority.is_prod() && within)
        };
        let mut candidates: Vec<&TaskSample> = tasks.iter().filter(may_die).collect();
        // Over the limit first and furthest over first; then from low to high priority; among
        // equals whoever has outgrown its reservation most.
        candidates.sort_by_key(|sample| {
            let over = over_limit(sample, dimension);
            let priority = if over > 0 { Default::default() } else { sample.priority };
            (Reverse(over), priority, Reverse(over_reservation(sample, dimension)), sample.task)
        });
        for sample in candidates {
            if short == 0 {
                break;
            }
            if self.dying.contains(&sample.task) {
                continue;
            }
            let cause = if over_limit(sample, dimension) > 0 {
                over_limit_cause(sample, dimension)
            } else {
                KillCause::Shortage { short, priority: sample.priority }
            };
            self.kill_one(sample, dimension, tasks, cause, actions);
            short = short.saturating_sub(sample.used.get(dimension));
        }
        short
    }

    fn kill_one(
        &mut self,
        sample: &TaskSample,
        dimension: Dimension,
        tasks: &[TaskSample],
        cause: KillCause,
        actions: &mut Vec<Action>,
    ) {
        if !self.dying.insert(sample.task) {
            return;
        }
        let used = sample.used.get(dimension);
        let blamed = blame(dimension, tasks);
        let reason = KillReason { dimension, used, cause, blamed };
        actions.push(Action::Kill { task: sample.task, reason });
    }
}

fn over_limit(sample: &TaskSample, dimension: Dimension) -> u64 {
    sample.used.get(dimension).saturating_sub(sample.limits.get(dimension))
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
    over.sort_by_key(|sample| (Reverse(over_reservation(sample, dimension)), sample.task));
    let one = |sample: &&TaskSample| Blame {
        task: sample.task,
        used: sample.used.get(dimension),
        reservation: sample.reservation.get(dimension),
    };
    over.iter().take(BLAMED).map(one).collect()
}
