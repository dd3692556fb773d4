//! Throttling of what can be shared: CPU and disk rate.

use super::{
    Action, BATCH_STARVATION_LIMIT, CapReason, MachineSample, ResourceControl, TaskSample,
};
use cellwright_cell::id::Attempt;
use cellwright_cell::resource::Dimension;
use cellwright_cell::time::{Span, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Milli-cores of waiting below which no task counts as starved: a twentieth of one thread's time.
const NOTICEABLE_WAIT: u64 = 50;
/// Thousandths of the machine's CPU time: with less idle, no task gets more without another's loss.
const MIN_IDLE_PERMILLE: u64 = 50;

/// Caps are raised by one part in this many.
const FAST_RAISE_PARTS: u64 = 4;
const SLOW_RAISE_PARTS: u64 = 20;
/// How often, where they are raised slowly.
const SLOW_RAISE_INTERVAL: Span = Span::seconds(10);

/// Caps in one dimension.
#[derive(Clone, Debug)]
pub struct Throttle {
    dimension: Dimension,
    /// What every task keeps, so that none stops for ever.
    floor: u64,
    /// Caps that are in force beyond a task's own limit.
    caps: BTreeMap<Attempt, u64>,
    /// The caps that were last applied, so that each is applied once.
    last_applied: BTreeMap<Attempt, Option<u64>>,
}

impl Throttle {
    pub fn new(dimension: Dimension, floor: u64) -> Throttle {
        Throttle { dimension, floor, caps: BTreeMap::new(), last_applied: BTreeMap::new() }
    }

    pub fn caps(&self) -> &BTreeMap<Attempt, u64> {
        &self.caps
    }

    pub fn retain(&mut self, there: &BTreeSet<Attempt>) {
        self.caps.retain(|task, _| there.contains(task));
        self.last_applied.retain(|task, _| there.contains(task));
    }

    fn used(&self, sample: &TaskSample) -> u64 {
        sample.used.get(self.dimension)
    }

    /// Leaves `target` to `tasks` together: the highest priority is served first, the rest keep
    /// their floor. A cap only ever falls here.
    fn squeeze(&mut self, target: u64, tasks: &[&TaskSample]) {
        let mut order = tasks.to_vec();
        order.sort_by_key(|task| (Reverse(task.priority), task.attempt));
        let floors = self.floor.saturating_mul(order.len() as u64);
        let mut spare = target.saturating_sub(floors);
        for task in order {
            let extra = self.used(task).saturating_sub(self.floor).min(spare);
            spare -= extra;
            let cap = self.floor.saturating_add(extra);
            let entry = self.caps.entry(task.attempt).or_insert(u64::MAX);
            *entry = cap.min(*entry);
        }
    }

    /// Raises the caps of `tasks` by one part in `parts`, and lifts those that reach `most`.
    fn raise_caps(&mut self, most: u64, parts: u64, tasks: &[&TaskSample]) {
        for task in tasks {
            let Some(cap) = self.caps.get_mut(&task.attempt) else { continue };
            *cap = cap.saturating_add((*cap / parts).max(self.floor));
            if *cap >= most {
                self.caps.remove(&task.attempt);
            }
        }
    }

    /// Returns the action for a changed cap. `why` is for tasks that are capped beyond their own
    /// limit.
    fn cap_action(
        &mut self,
        sample: &TaskSample,
        own: Option<u64>,
        why: CapReason,
    ) -> Option<Action> {
        let squeezed = self.caps.get(&sample.attempt).copied();
        let cap = [squeezed, own].into_iter().flatten().min();
        let before = self.last_applied.insert(sample.attempt, cap).flatten();
        if before == cap {
            return None;
        }
        let shrank = before.is_none_or(|before| cap.is_some_and(|cap| cap < before));
        let why = match (cap == own && own.is_some(), shrank) {
            (true, true) => CapReason::OwnLimit,
            (_, true) => why,
            (_, false) => CapReason::Eased,
        };
        Some(Action::Cap { attempt: sample.attempt, dimension: self.dimension, cap, why })
    }
}

impl ResourceControl {
    pub(super) fn share_cpu(
        &mut self,
        now: Time,
        machine: &MachineSample,
        tasks: &[&TaskSample],
        actions: &mut Vec<Action>,
    ) {
        let capacity = machine.capacity.cpu;
        let (batch, sensitive): (Vec<_>, Vec<_>) =
            tasks.iter().copied().partition(|task| task.is_batch());
        let (by_batch, by_sensitive) =
            (total(&batch, Dimension::Cpu), total(&sensitive, Dimension::Cpu));
        let headroom = capacity / 20;
        // Processes outside of the cell use CPU too: then tasks cannot use all that the machine
        // has.
        let is_busy = machine.idle_permille.is_some_and(|idle| idle < MIN_IDLE_PERMILLE);
        let is_full =
            is_busy || by_batch.saturating_add(by_sensitive).saturating_add(headroom) >= capacity;
        let is_sensitive_starved =
            is_full && by_batch > 0 && sensitive.iter().any(|task| is_starved(task));
        if is_sensitive_starved {
            let room = capacity.saturating_sub(by_sensitive).saturating_sub(headroom);
            self.cpu.squeeze(room.min(by_batch - by_batch / 4), &batch);
        } else {
            self.cpu.raise_caps(capacity, FAST_RAISE_PARTS, &batch);
        }
        self.pressure_eviction.observe(Dimension::Cpu, now, is_sensitive_starved);
        self.throttle_over_limit(now, is_full, by_batch, capacity, (&batch, &sensitive));
        let starved = CapReason::StarvedBatch { since: self.starved_since.unwrap_or(now) };
        for sample in tasks {
            let own = (!sample.slack_cpu).then_some(sample.limits.cpu.max(1));
            let why = if sample.is_batch() { CapReason::Yields } else { starved };
            actions.extend(self.cpu.cap_action(sample, own, why));
        }
    }

    /// Caps the tasks furthest over their limits by what batch lacks, once it has lacked it for too
    /// long.
    fn throttle_over_limit(
        &mut self,
        now: Time,
        is_full: bool,
        by_batch: u64,
        capacity: u64,
        (batch, sensitive): (&[&TaskSample], &[&TaskSample]),
    ) {
        // The minimum that keeps batch as a whole alive.
        let least = capacity / 20;
        let batch_wants_cpu =
            batch.iter().any(|task| task.cpu_unmet.is_none_or(|w| w >= NOTICEABLE_WAIT));
        let capped = sensitive.iter().any(|task| self.cpu.caps.contains_key(&task.attempt));
        if !(is_full && batch_wants_cpu && by_batch < least) {
            self.starved_since = None;
            if !(batch_wants_cpu && capped) {
                self.cpu.raise_caps(capacity, FAST_RAISE_PARTS, sensitive);
            } else if self.last_throttled.is_none_or(|at| now.since(at) >= SLOW_RAISE_INTERVAL) {
                // Batch uses what was throttled and wants more: the throttled task gets back so
                // little at a time that it shows soon whether that starves batch again.
                self.last_throttled = Some(now);
                self.cpu.raise_caps(capacity, SLOW_RAISE_PARTS, sensitive);
            }
            return;
        }
        let since = *self.starved_since.get_or_insert(now);
        // A task that is capped already was given its time.
        if now.since(since) < BATCH_STARVATION_LIMIT && !capped {
            return;
        }
        self.last_throttled = Some(now);
        let mut over_limit: Vec<&&TaskSample> =
            sensitive.iter().filter(|task| task.used.cpu > task.limits.cpu).collect();
        over_limit.sort_by_key(|task| (Reverse(task.used.cpu - task.limits.cpu), task.attempt));
        let mut lacking = least - by_batch;
        for task in over_limit {
            let cut = lacking.min(task.used.cpu - task.limits.cpu);
            lacking -= cut;
            if cut > 0 {
                self.cpu.caps.insert(task.attempt, (task.used.cpu - cut).max(1));
            }
        }
    }

    pub(super) fn share_disk_rate(
        &mut self,
        now: Time,
        machine: &MachineSample,
        tasks: &[&TaskSample],
        actions: &mut Vec<Action>,
    ) {
        let capacity = machine.capacity.disk_rate;
        if capacity == 0 {
            return;
        }
        let (batch, sensitive): (Vec<_>, Vec<_>) =
            tasks.iter().copied().partition(|task| task.is_batch());
        let (by_batch, by_sensitive) =
            (total(&batch, Dimension::DiskRate), total(&sensitive, Dimension::DiskRate));
        let short =
            by_batch > 0 && by_sensitive > 0 && by_batch.saturating_add(by_sensitive) > capacity;
        if short {
            self.disk_rate.squeeze(capacity.saturating_sub(by_sensitive), &batch);
        } else {
            self.disk_rate.raise_caps(capacity, FAST_RAISE_PARTS, &batch);
        }
        self.pressure_eviction.observe(Dimension::DiskRate, now, short);
        for sample in tasks {
            actions.extend(self.disk_rate.cap_action(sample, None, CapReason::Yields));
        }
    }
}

/// Within its limit and kept waiting. Where the kernel does not report waits, a busy machine is
/// reason enough.
fn is_starved(task: &TaskSample) -> bool {
    let within = task.used.cpu < task.limits.cpu;
    within && task.used.cpu > 0 && task.cpu_unmet.is_none_or(|wanting| wanting >= NOTICEABLE_WAIT)
}

fn total(tasks: &[&TaskSample], dimension: Dimension) -> u64 {
    tasks.iter().map(|task| task.used.get(dimension)).fold(0, u64::saturating_add)
}
