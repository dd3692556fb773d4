//! The solver: one scheduling pass, queue in, plan out. Named phases per task: find a machine with
//! free room; failing that, find a machine to make room on by preemption; commit the placement to
//! the snapshot, so that the next task sees it.
//!
//! **Invariant:** the plan is a function of the snapshot, the options, the time and the seed.
//! Nothing depends on the executor, on addresses or on hash order. A snapshot counts its passes,
//! for the turns of users; a freshly built one has had none, so there its content and the seed
//! decide.

pub mod options;
mod preempt;
mod repair;
mod scan;
pub(crate) mod score_cache;
mod scorers;
mod search;

use crate::class::{Class, ClassId};
use crate::cluster_snapshot::{ClusterSnapshot, Hold};
use crate::executor::{Executor, Sequential};
use crate::feasible;
use crate::queue::{Queue, QueueOrder};
use crate::random;
use crate::score::packing::PackingModel;
use crate::score::{self, Ranking};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::plan::{Assignment, Group, Plan, Victim};
use cellwright_cell::time::Time;
use options::Options;
use repair::Repair;
use score_cache::{CacheKey, CandidatePool, ScoreCache};
use scorers::{FreeScorer, PreemptionScorer};
use search::{MachineScorer, Search};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Sampling: how many machines on which room can be made are evaluated per class.
const PREEMPTION_SAMPLE: usize = 32;

/// A task that was not placed, with its class for explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingTask {
    pub task: TaskId,
    pub class: ClassId,
    /// How many tasks were tried before it in this pass.
    pub position: u32,
}

/// Counters of one pass, for reports and tuning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Scans over all machines.
    pub scans: u64,
    /// Walks over a part of the random order.
    pub walks: u64,
    /// Machines evaluated.
    pub evaluations: u64,
    /// Searches for a machine to make room on.
    pub preemption_searches: u64,
    /// Planned tasks moved to make room for others.
    pub moves: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassOutcome {
    pub plan: Plan,
    pub placed: usize,
    /// Tasks evicted, members of allocs included.
    pub preempted: usize,
    pub pending: Vec<PendingTask>,
    /// Tasks that may not start yet.
    pub not_yet: usize,
    pub stats: Stats,
}

/// Runs passes with fixed options.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solver {
    pub options: Options,
}

impl Solver {
    #[must_use]
    pub fn new(options: Options) -> Solver {
        Solver { options }
    }

    /// Tries every pending task of the snapshot once. The snapshot holds the result.
    pub fn pass(&self, snapshot: &mut ClusterSnapshot, now: Time, seed: u64) -> PassOutcome {
        let queue = Queue::new(snapshot, self.options.order, now, seed);
        self.pass_with_queue(snapshot, queue, seed)
    }

    /// The same, with a queue made beforehand.
    pub fn pass_with_queue(
        &self,
        snapshot: &mut ClusterSnapshot,
        queue: Queue,
        seed: u64,
    ) -> PassOutcome {
        self.pass_with_executor(snapshot, queue, seed, &Sequential)
    }

    /// The same, with full scans divided over an executor. The outcome does not depend on it.
    pub fn pass_with_executor(
        &self,
        snapshot: &mut ClusterSnapshot,
        mut queue: Queue,
        seed: u64,
        executor: &dyn Executor,
    ) -> PassOutcome {
        let mut pass = Pass::new(self.options, snapshot, seed, executor);
        pass.outcome.not_yet = queue.not_due;
        let mut placed = false;
        let mut tried = 0;
        while let Some(tasks) = queue.next(placed) {
            placed = match tasks {
                [task] => pass.place_one(*task, tried),
                gang => pass.place_gang(gang, tried),
            };
            tried += 1;
        }
        pass.finish()
    }
}

impl ClusterSnapshot {
    /// Draws the demand mix again if the cell's tasks have changed enough: machines are scored
    /// against it.
    pub(crate) fn redraw_mix(&mut self) {
        if self.demand_mix.is_stale(&self.classes, self.machines.shapes.len()) {
            let ClusterSnapshot {
                demand_mix: mix,
                device_demand: device_mix,
                classes,
                machines,
                tasks,
                ..
            } = self;
            mix.redraw(classes, tasks, &machines.shapes);
            device_mix.redraw(classes, machines);
        }
    }
}

/// The machine chosen for a task, and the victims that have to leave.
struct Choice {
    machine: MachineId,
    alloc: Option<TaskId>,
    victims: Vec<TaskId>,
}

struct Pass<'a> {
    options: Options,
    snapshot: &'a mut ClusterSnapshot,
    searcher: Searcher<'a>,
    ranking: Ranking,
    outcome: PassOutcome,
    /// Change log position at which a class inside an alloc set was last found not to fit.
    full_sets: BTreeMap<ClassId, u64>,
    repair: Repair,
}

impl<'a> Pass<'a> {
    fn new(
        options: Options,
        snapshot: &'a mut ClusterSnapshot,
        seed: u64,
        executor: &'a dyn Executor,
    ) -> Pass<'a> {
        snapshot.change_log.trim(snapshot.machines.len());
        snapshot.redraw_mix();
        let slots = snapshot.machine_slots();
        // A small cell is scanned in full: sampling would save nothing.
        let sample = options.randomization.map(|n| n as usize);
        let sample_size = sample.filter(|n| *n < snapshot.machine_count());
        let mut cache = std::mem::take(&mut snapshot.score_cache);
        cache.prepare(
            CacheKey { options, seed, slots, mix: snapshot.demand_mix.version },
            snapshot.class_count(),
        );
        let mut outcome = PassOutcome::default();
        outcome.plan.made_at = snapshot.made_at;
        let ranking = Ranking::new(options.model, seed, slots);
        let stats = Stats::default();
        let searcher = Searcher { options, cache, ranking, seed, sample_size, stats, executor };
        let (full_sets, repair) = (BTreeMap::new(), Repair::default());
        Pass { options, snapshot, searcher, ranking, outcome, full_sets, repair }
    }

    fn finish(mut self) -> PassOutcome {
        // Groups whose task was moved later are empty.
        self.outcome.plan.groups.retain(|group| !group.assignments.is_empty());
        self.snapshot.score_cache = self.searcher.cache;
        self.snapshot.passes += 1;
        let Stats { moves, .. } = self.outcome.stats;
        self.outcome.stats = Stats { moves, ..self.searcher.stats };
        self.outcome
    }

    fn place_one(&mut self, task: TaskId, position: u32) -> bool {
        let Some(class) = self.snapshot.class_of(task) else { return false };
        let choice = if self.lacks_members(task) { None } else { self.find(class, task) };
        match choice {
            Some(choice) => {
                // There may be hundreds of thousands: a first push would make room for four.
                let mut group = Group { assignments: Vec::with_capacity(1), ..Group::default() };
                self.commit(task, class, choice, &mut group);
                self.outcome.placed += 1;
                self.outcome.plan.groups.push(group);
                true
            }
            None => {
                self.outcome.pending.push(PendingTask { task, class, position });
                false
            }
        }
    }

    /// A gang with a stopping task cannot be complete, not even by its last task.
    fn lacks_members(&self, task: TaskId) -> bool {
        let job = self.snapshot.job(self.snapshot.tasks[task.slot()].job);
        job.is_some_and(|job| job.spec.gang && job.in_transition > 0)
    }

    /// All of them or none: the placements of the first are rolled back when the last cannot be
    /// placed.
    fn place_gang(&mut self, tasks: &[TaskId], position: u32) -> bool {
        let mut group = Group::default();
        let preempted = self.outcome.preempted;
        self.snapshot.begin_transaction();
        for task in tasks {
            let Some(class) = self.snapshot.class_of(*task) else { continue };
            let found = if self.lacks_members(*task) { None } else { self.find(class, *task) };
            let Some(choice) = found else {
                self.snapshot.roll_back();
                self.outcome.preempted = preempted;
                let waiting = tasks.iter().filter_map(|task| {
                    let class = self.snapshot.class_of(*task)?;
                    Some(PendingTask { task: *task, class, position })
                });
                self.outcome.pending.extend(waiting);
                return false;
            };
            self.commit(*task, class, choice, &mut group);
        }
        self.spare_victims(&mut group);
        self.snapshot.commit_transaction();
        self.outcome.placed += group.assignments.len();
        self.outcome.plan.groups.push(group);
        true
    }

    /// Room made for a later member may make an earlier eviction unnecessary.
    fn spare_victims(&mut self, group: &mut Group) {
        let preemptors: Vec<TaskId> = group.assignments.iter().map(|a| a.task).collect();
        let mut victims = std::mem::take(&mut group.victims);
        // An evicted task keeps its row, and with it the class it had.
        let priority = |snapshot: &ClusterSnapshot, victim: &Victim| {
            snapshot.class(snapshot.tasks[victim.task.slot()].class).request.priority
        };
        victims.sort_by_key(|victim| (Reverse(priority(self.snapshot, victim)), victim.task));
        let mut gangs: BTreeMap<JobId, bool> = BTreeMap::new();
        for victim in victims {
            let gang = self.snapshot.gang_of(victim.task);
            if let Some(is_spared) = gang.and_then(|gang| gangs.get(&gang)) {
                group.victims.extend((!is_spared).then_some(victim));
                continue;
            }
            let reprieved = match gang {
                Some(gang) => self.snapshot.reprieve_gang(gang, &preemptors),
                None => self.snapshot.reprieve(victim.task, &preemptors),
            };
            gangs.extend(gang.map(|gang| (gang, reprieved > 0)));
            self.outcome.preempted -= reprieved;
            if reprieved == 0 {
                group.victims.push(victim);
            }
        }
        group.victims.sort_by_key(|victim| victim.task);
    }

    /// Whoever is left of a victim's gang leaves with it, though the plan does not name them.
    fn evict_rest_of_gang(&mut self, victim: TaskId) {
        let rest: Vec<TaskId> = self.snapshot.rest_of_gang(victim).collect();
        for task in rest {
            for member in self.snapshot.members(task).to_vec() {
                self.snapshot.evict(member);
                self.outcome.preempted += 1;
            }
            self.snapshot.evict(task);
            self.outcome.preempted += 1;
        }
    }

    fn find(&mut self, class: ClassId, task: TaskId) -> Option<Choice> {
        if self.snapshot.class(class).request.alloc_set.is_some() {
            return self.find_alloc(class);
        }
        if let Some(machine) = self.snapshot.class(class).request.machine {
            return self.find_on(class, machine);
        }
        let on = |m: usize| Choice { machine: MachineId(m as u32), alloc: None, victims: vec![] };
        if let Some(m) = self.find_free(class, task) {
            return Some(on(m));
        }
        // A gang may be rolled back, a moved task could not; and arrivals are decided one by one.
        let may_move = self.options.repair
            && self.options.order == QueueOrder::Fair
            && self.snapshot.undo_log.is_none();
        if may_move && let Some(choice) = self.find_by_moving(class, task) {
            return Some(choice);
        }
        if !self.options.preemption {
            return None;
        }
        let m = self.find_preempting(class, task)?;
        let eviction =
            preempt::on_machine(self.snapshot, self.snapshot.class(class), m, self.ranking)?;
        Some(Choice { victims: eviction.victims, ..on(m) })
    }

    /// Free room, or room to be made, on the only machine for the class: no search, so that a
    /// daemon costs its machines and not their square.
    fn find_on(&self, class: ClassId, machine: MachineId) -> Option<Choice> {
        let (row, m) = (self.snapshot.class(class), machine.slot());
        if !self.snapshot.machines.exists(m) {
            return None;
        }
        if feasible::is_feasible(self.snapshot, row, m) {
            return Some(Choice { machine, alloc: None, victims: vec![] });
        }
        if !self.options.preemption || !preempt::is_possible(self.snapshot, row, m) {
            return None;
        }
        let victims = preempt::on_machine(self.snapshot, row, m, self.ranking)?.victims;
        Some(Choice { machine, alloc: None, victims })
    }

    fn find_free(&mut self, class: ClassId, task: TaskId) -> Option<usize> {
        let row = self.snapshot.class(class);
        if self.is_reference() {
            return scan::best_by_reference(self.snapshot, row, self.ranking);
        }
        let scorer = FreeScorer { class: row, ranking: self.ranking };
        self.searcher.best(self.snapshot, &scorer, PoolKind::Free, (class, task))
    }

    fn find_preempting(&mut self, class: ClassId, task: TaskId) -> Option<usize> {
        self.searcher.stats.preemption_searches += 1;
        let row = self.snapshot.class(class);
        if self.is_reference() {
            return scan::best_preempting_by_reference(self.snapshot, row, self.ranking);
        }
        let scorer = PreemptionScorer { class: row, ranking: self.ranking };
        self.searcher.best(self.snapshot, &scorer, PoolKind::Preempting, (class, task))
    }

    fn is_reference(&self) -> bool {
        !self.options.classes && !self.options.score_cache && self.searcher.sample_size.is_none()
    }

    fn find_alloc(&mut self, class: ClassId) -> Option<Choice> {
        let now = self.snapshot.change_log.end();
        if self.options.classes && self.full_sets.get(&class) == Some(&now) {
            return None;
        }
        let row = self.snapshot.class(class);
        let machine = |alloc: &TaskId| self.snapshot.allocs.get(alloc).map(|row| row.machine);
        if let Some(alloc) = scan::best_alloc(self.snapshot, row, self.ranking) {
            let machine = machine(&alloc)?;
            return Some(Choice { machine, alloc: Some(alloc), victims: vec![] });
        }
        let found = if self.options.preemption {
            scan::best_alloc_preempting(self.snapshot, row, self.ranking)
        } else {
            None
        };
        let Some((alloc, eviction)) = found else {
            self.full_sets.insert(class, now);
            return None;
        };
        let machine = machine(&alloc)?;
        Some(Choice { machine, alloc: Some(alloc), victims: eviction.victims })
    }

    /// Applies the choice to the snapshot and adds it to the plan.
    fn commit(&mut self, task: TaskId, class: ClassId, choice: Choice, group: &mut Group) {
        if !choice.victims.is_empty() {
            self.repair.evicted_on.insert(choice.machine);
        }
        for victim in &choice.victims {
            for member in self.snapshot.members(*victim).to_vec() {
                self.snapshot.evict(member);
                self.outcome.preempted += 1;
            }
            let attempt = self.snapshot.attempt_of(*victim).unwrap_or(0);
            group.victims.push(Victim { task: *victim, attempt });
            self.snapshot.evict(*victim);
            self.outcome.preempted += 1;
        }
        for victim in self.snapshot.one_of_each_gang(&choice.victims) {
            self.evict_rest_of_gang(victim);
        }
        let row = self.snapshot.class(class);
        let m = choice.machine.slot();
        let ports = choose_ports(self.snapshot, row, m);
        // The target was found feasible, so there are devices for every request.
        let devices = match self.options.model {
            PackingModel::Hybrid => score::devices::choose_least_loss(self.snapshot, row, m),
            _ => None,
        };
        let devices = devices
            .or_else(|| feasible::choose_devices(self.snapshot, row, m, &[]).ok())
            .unwrap_or_default();
        let reservation = row.request.reservation;
        group.assignments.push(Assignment {
            task,
            attempt: self.snapshot.attempt_of(task).unwrap_or(0),
            machine: choice.machine,
            alloc: choice.alloc,
            ports: ports.clone(),
            devices: devices.clone(),
        });
        let Choice { machine, alloc, .. } = choice;
        self.snapshot.assign(task, Hold { machine, alloc, reservation, ports, devices });
    }
}

/// Static ports, then the lowest free ones of the machine's range.
fn choose_ports(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> Vec<u16> {
    let mut chosen = class.request.static_ports.clone();
    let wanted = chosen.len() + usize::from(class.request.ports);
    let ports = &snapshot.machines.ports[m];
    let mut used = ports.used.iter().map(|(port, _)| *port).peekable();
    for port in ports.range.first..=ports.range.last {
        if chosen.len() == wanted {
            break;
        }
        while used.peek().is_some_and(|u| *u < port) {
            used.next();
        }
        if used.peek() != Some(&port) && !class.request.static_ports.contains(&port) {
            chosen.push(port);
        }
    }
    chosen
}

/// Which of a class's two candidate pools a search works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolKind {
    Free,
    Preempting,
}

/// Finds machines by the techniques that are enabled.
struct Searcher<'a> {
    options: Options,
    cache: ScoreCache,
    ranking: Ranking,
    seed: u64,
    /// `None`: all machines are evaluated.
    sample_size: Option<usize>,
    stats: Stats,
    executor: &'a dyn Executor,
}

impl Searcher<'_> {
    fn pool(&mut self, pool_kind: PoolKind, class: ClassId) -> &mut CandidatePool {
        match pool_kind {
            PoolKind::Free => &mut self.cache.free[class.slot()],
            PoolKind::Preempting => &mut self.cache.preempting[class.slot()],
        }
    }

    /// The best machine by the scorer. The pool is out of the cache while it is worked on.
    fn best(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool_kind: PoolKind,
        (class, task): (ClassId, TaskId),
    ) -> Option<usize> {
        let mut pool = std::mem::take(self.pool(pool_kind, class));
        let sample_size = match pool_kind {
            PoolKind::Free => self.sample_size,
            // A search for victims costs much more than one for room.
            PoolKind::Preempting => self.sample_size.map(|enough| enough.min(PREEMPTION_SAMPLE)),
        };
        let found = if self.options.classes && self.options.score_cache {
            let Searcher { cache, ranking, seed, stats, executor, .. } = self;
            let (ranking, seed, executor) = (*ranking, *seed, *executor);
            let mut search = Search { cache, ranking, seed, sample_size, stats, executor };
            search.best(snapshot, scorer, &mut pool, class).map(|(m, _)| m)
        } else {
            self.scan(snapshot, scorer, &mut pool, task, sample_size)
        };
        *self.pool(pool_kind, class) = pool;
        found
    }

    /// Even without cached scores it is remembered that a class fitted nowhere and nothing has
    /// changed.
    fn scan(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
        task: TaskId,
        sample_size: Option<usize>,
    ) -> Option<usize> {
        let known_full = self.options.classes
            && pool.complete
            && pool.synced_to == snapshot.change_log.end()
            && pool.improvement_counters == scorer.improvement_counters(snapshot);
        if known_full {
            return None;
        }
        self.stats.scans += 1;
        let found = match sample_size {
            None => scan::best_of_all(snapshot, scorer),
            Some(sample_size) => {
                let order = &self.cache.random_order;
                let start = random::below(self.seed, u64::from(task.0), order.len());
                scan::best_of_sample(snapshot, scorer, order, start, sample_size)
            }
        };
        pool.complete = found.is_none();
        pool.synced_to = snapshot.change_log.end();
        pool.improvement_counters = scorer.improvement_counters(snapshot);
        found
    }
}

/// Jobs whose pending tasks were tried, for reports.
impl PassOutcome {
    /// Pending tasks per class, in the order of classes.
    #[must_use]
    pub fn pending_by_class(&self) -> BTreeMap<ClassId, Vec<TaskId>> {
        let mut by_class: BTreeMap<ClassId, Vec<TaskId>> = BTreeMap::new();
        for pending in &self.pending {
            by_class.entry(pending.class).or_default().push(pending.task);
        }
        by_class
    }

    /// Jobs with pending tasks, sorted.
    #[must_use]
    pub fn pending_jobs(&self, snapshot: &ClusterSnapshot) -> Vec<JobId> {
        let jobs = self.pending.iter().filter_map(|p| Some(snapshot.identity_of(p.task)?.0));
        let mut jobs: Vec<JobId> = jobs.collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }
}
