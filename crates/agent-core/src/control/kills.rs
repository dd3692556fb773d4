//! Who dies when memory or disk space runs out, and who is blamed for it.

use super::{Action, Blame, Control, DEAD_WITHIN, EMPTIED_WITHIN};
use super::{KillCause, KillReason, MachineSample, Room, TaskSample};
use cellwright_cell::id::Attempt;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::time::Time;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How many are named: the first few explain a shortage, a list of all does not.
const BLAMED: usize = 3;

/// What the machine can run out of and nobody can be squeezed out of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scarce {
    Ram,
    Disk,
    /// Rows of the file system's table of files: a disk with bytes to spare can be full.
    Files,
}

impl Scarce {
    fn dimension(self) -> Dimension {
        match self {
            Scarce::Ram => Dimension::Ram,
            Scarce::Disk | Scarce::Files => Dimension::Disk,
        }
    }

    fn room(self, room: &Room) -> u64 {
        match self {
            Scarce::Ram => room.ram_available,
            Scarce::Disk => room.disk_free,
            Scarce::Files => room.files_free,
        }
    }

    fn held(self, sample: &TaskSample) -> u64 {
        match self {
            Scarce::Files => sample.files,
            Scarce::Ram | Scarce::Disk => sample.used.get(self.dimension()),
        }
    }

    fn over_limit(self, sample: &TaskSample) -> u64 {
        match self {
            Scarce::Files => 0,
            Scarce::Ram | Scarce::Disk => {
                self.held(sample).saturating_sub(sample.limits.get(self.dimension()))
            }
        }
    }

    /// Nobody reserves files: there whoever has most has outgrown most.
    fn over_reservation(self, sample: &TaskSample) -> u64 {
        match self {
            Scarce::Files => sample.files,
            Scarce::Ram | Scarce::Disk => over_reservation(sample, self.dimension()),
        }
    }

    fn cause(self, sample: &TaskSample, short: u64) -> KillCause {
        let priority = sample.priority;
        match self {
            _ if self.over_limit(sample) > 0 => over_limit_cause(sample, self.dimension()),
            Scarce::Files => KillCause::Files { short, files: sample.files, priority },
            Scarce::Ram | Scarce::Disk => KillCause::Shortage { short, priority },
        }
    }
}

/// Somebody who was told to die. What it holds is as good as free, but not for ever: a task that
/// hangs in the kernel keeps its memory, and files outlive the task until they are removed.
#[derive(Clone, Debug)]
pub struct Dying {
    since: Time,
    told: Time,
    reason: KillReason,
    /// When it was first seen to be gone.
    pub(super) gone: Option<Time>,
    /// What it was last seen to hold.
    pub(super) held: Resources,
    pub(super) files: u64,
}

impl Dying {
    fn as_good_as_free(&self, now: Time, what: Scarce) -> u64 {
        match (self.gone, what) {
            (None, _) if now.since(self.since) >= DEAD_WITHIN => 0,
            (Some(_), Scarce::Ram) => 0,
            (_, Scarce::Files) => self.files,
            (_, Scarce::Ram | Scarce::Disk) => self.held.get(what.dimension()),
        }
    }
}

impl Control {
    pub(super) fn kill(
        &mut self,
        now: Time,
        machine: &MachineSample,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) {
        self.tell_again(now, actions);
        let mut disk_left = 0;
        for what in [Scarce::Ram, Scarce::Disk, Scarce::Files] {
            self.kill_over_limit(now, what, tasks, actions);
            let dying = self.dying.values().map(|dying| dying.as_good_as_free(now, what));
            let going = dying.fold(0, u64::saturating_add);
            let (free, keep) = (what.room(&machine.room), what.room(&machine.keep));
            let short = keep.saturating_sub(free).saturating_sub(going);
            let left = self.free_up(now, what, short, tasks, actions);
            match what {
                Scarce::Ram => self.relief.note(Dimension::Ram, now, left > 0),
                Scarce::Disk => disk_left = left,
                Scarce::Files => {
                    self.relief.note(Dimension::Disk, now, disk_left > 0 || left > 0);
                }
            }
        }
    }

    /// Takes note of who has gone and what the others hold, and forgets those who held nothing that
    /// outlives them, or whose files had time enough to go.
    pub(super) fn note_the_dead(&mut self, now: Time, tasks: &[TaskSample]) {
        let there: BTreeMap<Attempt, &TaskSample> =
            tasks.iter().map(|sample| (sample.attempt, sample)).collect();
        self.dying.retain(|attempt, dying| {
            if let Some(sample) = there.get(attempt) {
                (dying.held, dying.files) = (sample.used, sample.files);
                // One look may have missed it.
                dying.gone = None;
                return true;
            }
            let gone = *dying.gone.get_or_insert(now);
            let holds = dying.held.disk > 0 || dying.files > 0;
            holds && now.since(gone) < EMPTIED_WITHIN
        });
    }

    fn tell_again(&mut self, now: Time, actions: &mut Vec<Action>) {
        for (attempt, dying) in &mut self.dying {
            if dying.gone.is_none() && now.since(dying.told) >= DEAD_WITHIN {
                dying.told = now;
                actions.push(Action::Kill { attempt: *attempt, reason: dying.reason.clone() });
            }
        }
    }

    /// Those who may not use slack and do. The kernel is quicker where it holds the limit.
    fn kill_over_limit(
        &mut self,
        now: Time,
        what: Scarce,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) {
        for sample in tasks {
            let allowed = match what {
                Scarce::Ram => sample.slack_ram,
                Scarce::Disk | Scarce::Files => sample.limits.disk == 0,
            };
            if what.over_limit(sample) > 0 && !allowed {
                self.kill_one(now, sample, what, tasks, 0, actions);
            }
        }
    }

    /// Kills until `short` is freed. Returns what nobody is left to be killed for.
    fn free_up(
        &mut self,
        now: Time,
        what: Scarce,
        mut short: u64,
        tasks: &[TaskSample],
        actions: &mut Vec<Action>,
    ) -> u64 {
        if short == 0 {
            return 0;
        }
        let may_die = |sample: &&TaskSample| {
            let within = what.over_limit(sample) == 0;
            what.held(sample) > 0 && !(sample.priority.is_prod() && within)
        };
        let mut candidates: Vec<&TaskSample> = tasks.iter().filter(may_die).collect();
        // Over the limit first and furthest over first; then from low to high priority; among
        // equals whoever has outgrown its reservation most.
        candidates.sort_by_key(|sample| {
            let over = what.over_limit(sample);
            let priority = if over > 0 { Default::default() } else { sample.priority };
            (Reverse(over), priority, Reverse(what.over_reservation(sample)), sample.attempt)
        });
        for sample in candidates {
            if short == 0 {
                break;
            }
            if self.kill_one(now, sample, what, tasks, short, actions) {
                short = short.saturating_sub(what.held(sample));
            }
        }
        short
    }

    /// False when it is dying already.
    fn kill_one(
        &mut self,
        now: Time,
        sample: &TaskSample,
        what: Scarce,
        tasks: &[TaskSample],
        short: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        if self.dying.contains_key(&sample.attempt) {
            return false;
        }
        let dimension = what.dimension();
        let used = sample.used.get(dimension);
        let (cause, blamed) = (what.cause(sample, short), blame(dimension, tasks));
        let reason = KillReason { dimension, used, cause, blamed };
        let dying = Dying {
            since: now,
            told: now,
            reason: reason.clone(),
            gone: None,
            held: sample.used,
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
    over.iter().take(BLAMED).map(one).collect()
}
