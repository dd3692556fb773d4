//! Passes against one state in this process: everything is placed, scheduler shards keep apart, and
//! two schedulers unaware of each other never place a task twice.

mod support;

use cellwright_cell::command::Command;
use cellwright_cell::id::TaskId;
use cellwright_cell::priority::Priority;
use cellwright_cell::task::TaskState;
use cellwright_sched::Solver;
use cellwright_scheduler::pass::{self, PassRunner};
use cellwright_scheduler::plan_result::PlanResult;
use cellwright_scheduler::{CellCopy, SchedulerShard};
use std::collections::BTreeSet;
use std::sync::Arc;
use support::{InMemoryMaster, job, job_in_shard};

/// A scheduler whose steps are made by hand.
struct ManualScheduler {
    master: Arc<InMemoryMaster>,
    pass_runner: PassRunner,
    copy: CellCopy,
    seen: usize,
}

impl ManualScheduler {
    fn new(master: &Arc<InMemoryMaster>, shard: &str, seed: u64, chunk: usize) -> ManualScheduler {
        let (solver, shard) = (Solver::default(), SchedulerShard::new(shard).unwrap());
        let pass_runner = PassRunner { solver, shard, seed, chunk_size: chunk };
        ManualScheduler {
            master: Arc::clone(master),
            pass_runner,
            copy: CellCopy::default(),
            seen: 0,
        }
    }

    fn follow(&mut self) {
        let master_state = self.master.state();
        for record in &master_state.records()[self.seen..] {
            self.copy.apply_record(record).unwrap();
        }
        self.seen = master_state.records().len();
        self.copy.sync();
    }

    fn plan(&mut self) -> Vec<cellwright_cell::plan::Plan> {
        let now = self.copy.now();
        self.pass_runner.pass(&mut self.copy, now).chunks.into()
    }

    fn propose(&self, plan: &cellwright_cell::plan::Plan) -> PlanResult {
        let answer = self.master.apply(pass::proposal(&support::name("s1"), plan.clone()).requests);
        PlanResult::of(plan, answer.verdicts.first())
    }
}

#[test]
fn passes_and_commits_place_everything() {
    let master = InMemoryMaster::with_machines(20, 100);
    for number in 0..30 {
        let mut spec = job(&format!("j{number}"), 6, 8);
        spec.gang = number % 3 == 0;
        spec.priority = Priority(number % 4 * 50);
        master.submit(spec);
    }
    let mut scheduler = ManualScheduler::new(&master, "", 1, 25);
    scheduler.follow();
    let plans = scheduler.plan();
    assert!(plans.len() >= 8, "180 assignments in commands of 25: {}", plans.len());
    for plan in &plans {
        let size: usize = plan.groups.iter().map(|group| group.assignments.len()).sum();
        assert!(size <= 25, "{size}");
        assert_eq!(scheduler.propose(plan).rejected, 0);
    }
    let counts =
        |master_state: &support::MasterState| (master_state.waiting(), master_state.scheduled());
    assert_eq!(counts(&master.state()), (0, 180));
    scheduler.follow();
    assert!(scheduler.plan().is_empty());
}

#[test]
fn a_shard_takes_its_own_and_sees_what_others_hold() {
    let master = InMemoryMaster::with_machines(1, 10);
    let mut unlabelled = job("jnone", 3, 1);
    unlabelled.labels.insert(support::token("tier"), "web".into());
    master.submit(unlabelled);
    master.submit(job_in_shard("jempty", 1, ""));
    master.submit(job_in_shard("jgpu", 4, "gpu"));
    master.submit(job_in_shard("jother", 50, "nobody"));
    let waiting_of = |text: &str| {
        let master_state = master.state();
        let id = master_state.state.job_named(&support::key(text)).unwrap();
        master_state.state.job_load(id).unwrap().pending
    };
    let mut gpu = ManualScheduler::new(&master, "gpu", 1, 100);
    let mut default = ManualScheduler::new(&master, "", 2, 100);
    gpu.follow();
    default.follow();
    assert!(gpu.pass_runner.has_work(&gpu.copy) && default.pass_runner.has_work(&default.copy));
    for plan in gpu.plan() {
        assert_eq!(gpu.propose(&plan).placed, 4);
    }
    assert_eq!(["jnone", "jempty", "jgpu", "jother"].map(waiting_of), [3, 1, 0, 50]);
    // Ten fit; four are held by the other shard, so this one's plan is accepted whole.
    default.follow();
    master.submit(job("jmore", 5, 1));
    default.follow();
    for plan in default.plan() {
        let result = default.propose(&plan);
        assert_eq!((result.placed, result.rejected), (6, 0));
    }
    assert_eq!(waiting_of("jother"), 50);
    gpu.follow();
    assert!(!gpu.pass_runner.has_work(&gpu.copy));
}

#[test]
fn two_schedulers_of_one_shard_never_place_a_task_twice() {
    for seed in 0..8 {
        let master = InMemoryMaster::with_machines(10, 100);
        for number in 0..20 {
            let mut spec = job(&format!("j{number}"), 5, 9);
            spec.gang = number % 4 == 0;
            master.submit(spec);
        }
        let mut pair = [
            ManualScheduler::new(&master, "", seed, 7),
            ManualScheduler::new(&master, "", seed + 100, 7),
        ];
        let (mut placed, mut rejected) = (0, 0);
        for _ in 0..10 {
            pair.iter_mut().for_each(ManualScheduler::follow);
            // Both plan from the same index, and their commands arrive in turn.
            let plans = [pair[0].plan(), pair[1].plan()];
            for turn in 0..plans[0].len().max(plans[1].len()) {
                for (scheduler, plans) in pair.iter().zip(&plans) {
                    let Some(plan) = plans.get(turn) else { continue };
                    let result = scheduler.propose(plan);
                    placed += result.placed;
                    rejected += result.rejected;
                }
            }
        }
        let master_state = master.state();
        assert!(rejected > 0, "seed {seed}: they never met");
        assert_eq!((master_state.waiting(), placed), (0, 100), "seed {seed}");
        assert_eq!(master_state.scheduled(), 100, "seed {seed}: placed twice");
    }
}

#[test]
fn victims_of_another_shard_give_way_once() {
    let master = InMemoryMaster::with_machines(2, 10);
    let mut low = job_in_shard("jlow", 4, "low");
    low.task.limits = support::all(5);
    low.priority = Priority(10);
    master.submit(low);
    let mut weak = ManualScheduler::new(&master, "low", 1, 10);
    weak.follow();
    weak.plan().iter().for_each(|plan| assert_eq!(weak.propose(plan).placed, 4));
    master.submit(job("jtop", 2, 5));
    let mut strong = ManualScheduler::new(&master, "", 1, 10);
    strong.follow();
    let result: Vec<PlanResult> = strong.plan().iter().map(|plan| strong.propose(plan)).collect();
    assert_eq!((result[0].placed, result[0].preempted, result[0].rejected), (2, 2, 0));
    let stopping = master.state().tasks_in(|state| matches!(state, TaskState::Stopping(_)));
    assert_eq!(stopping.iter().collect::<BTreeSet<&TaskId>>().len(), 2);
    // The copy of the other shard follows and plans nothing for tasks that are still stopping.
    weak.follow();
    assert!(weak.plan().is_empty());
}

#[test]
fn time_alone_gives_a_task_its_chance() {
    // One machine is full and stays possible for the task: it has not crashed on every machine.
    let master = InMemoryMaster::with_machines(2, 10);
    master.submit(job("full", 1, 10));
    let mut scheduler = ManualScheduler::new(&master, "", 1, 10);
    scheduler.follow();
    for plan in scheduler.plan() {
        assert_eq!(scheduler.propose(&plan).placed, 1);
    }
    master.submit(job("j1", 1, 5));
    let mut crash = || {
        scheduler.follow();
        for plan in scheduler.plan() {
            assert_eq!(scheduler.propose(&plan).placed, 1);
        }
        master.crash(TaskId(1));
        scheduler.follow();
        let due = scheduler.pass_runner.wakeups(&scheduler.copy, scheduler.copy.now());
        let row = master.state().state.tasks().get(TaskId(1)).unwrap().clone();
        assert!(scheduler.plan().is_empty(), "its time has not come");
        (due, row)
    };
    let (due, row) = crash();
    assert_eq!((due.next_start, due.crash_avoidance_ends), (Some(row.not_before), None));
    // Its time comes with the next entry; after one more crash it avoids the machine with room.
    master.state().ticks += 60_000;
    master.apply_ok(Command::Expire);
    let (due, row) = crash();
    assert_eq!(
        (due.next_start, due.crash_avoidance_ends),
        (Some(row.not_before), Some(row.crashed_on[0].until))
    );
}
