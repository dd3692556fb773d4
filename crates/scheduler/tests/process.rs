//! The whole process against a master in memory, on a paused clock: work is placed, standbys take
//! over, and whatever the link does, nothing is lost or placed twice.

mod support;

use cellwright_cell::id::TaskId;
use cellwright_cell::task::TaskState;
use cellwright_scheduler::{Scheduler, SchedulerRole, SchedulerStatus};
use std::sync::Arc;
use std::time::Duration;
use support::{Fault, InMemoryMaster, Link, job, job_in_shard, settings};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

struct RunningScheduler {
    link: Arc<Link>,
    task: JoinHandle<()>,
    status: watch::Receiver<SchedulerStatus>,
}

impl RunningScheduler {
    fn start(master: &Arc<InMemoryMaster>, name: &str, shard: &str) -> RunningScheduler {
        RunningScheduler::over(Link::to(master), name, shard)
    }

    fn over(link: Arc<Link>, name: &str, shard: &str) -> RunningScheduler {
        let mut settings = settings(name, shard);
        settings.chunk_size = 40;
        let scheduler = Scheduler::new(Arc::clone(&link), settings).unwrap();
        let status = scheduler.status();
        RunningScheduler { link, task: tokio::spawn(scheduler.run()), status }
    }

    fn current_status(&self) -> SchedulerStatus {
        self.status.borrow().clone()
    }

    async fn until(&mut self, condition: &str, holds: impl FnMut(&SchedulerStatus) -> bool) {
        let longest = Duration::from_secs(3600);
        let reached = timeout(longest, self.status.wait_for(holds)).await.is_ok();
        assert!(reached, "not within an hour: {condition}: {:?}", self.current_status());
    }

    fn kill(&self) {
        self.task.abort();
    }
}

fn standby_of(holder: &str) -> SchedulerRole {
    SchedulerRole::Standby { holder: holder.into() }
}

/// An hour without submissions.
async fn quiet_hour() {
    sleep(Duration::from_secs(3600)).await;
}

#[tokio::test(start_paused = true)]
async fn work_is_placed_and_nothing_is_done_without_a_reason() {
    let master = InMemoryMaster::with_machines(10, 100);
    (0..9).for_each(|number| master.submit(job(&format!("j{number}"), 20, 5)));
    let mut scheduler = RunningScheduler::start(&master, "s1", "");
    master.until("all placed", |master_state| master_state.waiting() == 0).await;
    scheduler.until("counted", |status| status.passes.placed == 180).await;
    let (rest, proposals) = (scheduler.current_status().passes.passes, master.state().proposals);
    assert!(proposals >= 6, "180 in commands of 40, and the stamp: {proposals}");
    quiet_hour().await;
    assert_eq!(scheduler.current_status().passes.passes, rest, "nobody waits");
    master.submit(job("jhuge", 3, 101));
    scheduler.until("three wait", |status| status.passes.pending == 3).await;
    let after = scheduler.current_status().passes.passes;
    quiet_hour().await;
    assert_eq!(
        scheduler.current_status().passes.passes,
        after,
        "nothing changed for those who wait"
    );
    assert_eq!(master.state().proposals, proposals, "and nothing was proposed");
    assert_eq!(
        master.state().reported_passes,
        scheduler.current_status().passes,
        "the master has heard of it all"
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_starts_again_when_its_time_has_come_and_not_before() {
    let master = InMemoryMaster::with_machines(2, 100);
    master.submit(job("j1", 1, 5));
    let scheduler = RunningScheduler::start(&master, "s1", "");
    let assigned = |master_state: &support::MasterState| {
        master_state
            .state
            .tasks()
            .get(TaskId(0))
            .is_some_and(|row| row.state == TaskState::Assigned)
    };
    let task = || master.state().state.tasks().get(TaskId(0)).unwrap().clone();
    for _ in 0..3 {
        master.until("placed", assigned).await;
        master.crash(TaskId(0));
        let not_before = task().not_before;
        assert!(not_before > master.state().state.now());
        master.until("placed again", assigned).await;
        let late = task().changed_at.since(not_before);
        assert!(task().changed_at >= not_before && late.0 < 100, "late by {late:?}");
    }
    assert_eq!(scheduler.current_status().rejected.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_forgiven_though_the_cell_is_quiet() {
    // One machine is full and stays possible for the task: it has not crashed on every machine.
    let master = InMemoryMaster::with_machines(2, 100);
    master.submit(job("full", 1, 100));
    let _scheduler = RunningScheduler::start(&master, "s1", "");
    let is = |master_state: &support::MasterState, id: u32| {
        master_state
            .state
            .tasks()
            .get(TaskId(id))
            .is_some_and(|row| row.state == TaskState::Assigned)
    };
    master.until("full", |master_state| is(master_state, 0)).await;
    master.submit(job("j1", 1, 5));
    let assigned = |master_state: &support::MasterState| is(master_state, 1);
    for _ in 0..2 {
        master.until("placed", assigned).await;
        master.crash(TaskId(1));
    }
    let row = master.state().state.tasks().get(TaskId(1)).unwrap().clone();
    let until = row.crashed_on[0].until;
    quiet_hour().await;
    sleep(Duration::from_secs(5)).await;
    let row = master.state().state.tasks().get(TaskId(1)).unwrap().clone();
    assert_eq!(row.state, TaskState::Assigned);
    assert!(row.changed_at >= until && row.changed_at.since(until).0 < 100, "{row:?}");
}

#[tokio::test(start_paused = true)]
async fn a_standby_follows_and_takes_over_within_the_lease() {
    let master = InMemoryMaster::with_machines(4, 100);
    let mut first = RunningScheduler::start(&master, "s1", "");
    first.until("active", |status| status.role == SchedulerRole::Active).await;
    let mut second = RunningScheduler::start(&master, "s2", "");
    second.until("standby", |status| status.role == standby_of("s1")).await;
    master.submit(job("j1", 10, 5));
    master.until("placed", |master_state| master_state.waiting() == 0).await;
    let last = master.state().last();
    second.until("followed", |status| status.index == last).await;
    assert_eq!(second.current_status().passes.passes, 0, "a standby makes no passes");
    first.kill();
    let killed = Instant::now();
    master.submit(job("j2", 10, 5));
    master.until("placed by the other", |master_state| master_state.waiting() == 0).await;
    let bound = Duration::from_millis(support::LEASE.0 * 4 / 3 + 100);
    assert!(killed.elapsed() <= bound, "{:?}", killed.elapsed());
    assert_eq!(second.current_status().role, SchedulerRole::Active);
    assert_eq!(master.state().scheduled(), 20);
}

#[tokio::test(start_paused = true)]
async fn cut_off_it_stands_back_and_returns_as_standby() {
    let master = InMemoryMaster::with_machines(4, 100);
    let mut first = RunningScheduler::start(&master, "s1", "");
    first.until("active", |status| status.role == SchedulerRole::Active).await;
    let mut second = RunningScheduler::start(&master, "s2", "");
    second.until("standby", |status| status.role == standby_of("s1")).await;
    first.link.fault(Fault::Cut);
    master.submit(job("j1", 10, 5));
    first.until("knows nothing", |status| status.role == SchedulerRole::Unknown).await;
    second.until("took over", |status| status.role == SchedulerRole::Active).await;
    master.until("placed", |master_state| master_state.waiting() == 0).await;
    first.link.fault(Fault::None);
    let last = master.state().last();
    first.until("back", |status| status.role == standby_of("s2") && status.index == last).await;
    assert_eq!(first.current_status().resyncs, 0, "it goes on from where it was");
    assert_eq!(master.state().scheduled(), 10);
}

#[tokio::test(start_paused = true)]
async fn lost_answers_place_nothing_twice() {
    let master = InMemoryMaster::with_machines(10, 100);
    let link = Link::to(&master);
    link.fault(Fault::LostAnswers);
    let mut scheduler = RunningScheduler::over(Arc::clone(&link), "s1", "");
    (0..9).for_each(|number| master.submit(job(&format!("j{number}"), 20, 5)));
    // Not even the stamp is answered, so nothing is planned yet; then it gets one plan through.
    sleep(Duration::from_secs(20)).await;
    assert_eq!(master.state().scheduled(), 0);
    link.fault(Fault::None);
    scheduler.until("first plan", |status| status.passes.placed > 0).await;
    link.fault(Fault::LostAnswers);
    sleep(Duration::from_secs(60)).await;
    link.fault(Fault::None);
    master.until("all placed", |master_state| master_state.waiting() == 0).await;
    quiet_hour().await;
    assert_eq!(master.state().scheduled(), 180);
}

#[tokio::test(start_paused = true)]
async fn killed_in_the_middle_of_a_plan_nothing_is_lost() {
    for stuck_after in 1..8 {
        let master = InMemoryMaster::with_machines(10, 100);
        (0..9).for_each(|number| master.submit(job(&format!("j{number}"), 20, 5)));
        let first = RunningScheduler::start(&master, "s1", "");
        let reached = |master_state: &support::MasterState| {
            master_state.proposals >= stuck_after || master_state.waiting() == 0
        };
        master.until("some proposals", reached).await;
        first.link.fault(Fault::Stuck);
        sleep(Duration::from_millis(20)).await;
        first.kill();
        let left = master.state().waiting();
        let second = RunningScheduler::start(&master, "s2", "");
        master.until("the rest placed", |master_state| master_state.waiting() == 0).await;
        quiet_hour().await;
        assert_eq!(master.state().scheduled(), 180, "killed after {stuck_after}, {left} left");
        second.kill();
    }
}

#[tokio::test(start_paused = true)]
async fn two_with_the_same_lease_never_place_a_task_twice() {
    let master = InMemoryMaster::granting(true);
    master.add_machines(10, 100);
    let mut pair =
        [RunningScheduler::start(&master, "s1", ""), RunningScheduler::start(&master, "s2", "")];
    for running in &mut pair {
        running.until("active", |status| status.role == SchedulerRole::Active).await;
    }
    let mut total = 0;
    for number in 0..12 {
        let mut spec = job(&format!("j{number}"), 15, 5);
        spec.gang = number % 3 == 0;
        master.submit(spec);
        total += 15;
        if number % 4 == 3 {
            master.until("placed", |master_state| master_state.waiting() == 0).await;
        }
    }
    quiet_hour().await;
    let counts =
        |master_state: &support::MasterState| (master_state.waiting(), master_state.scheduled());
    assert_eq!(counts(&master.state()), (0, total));
    let [first, second] = pair.map(|running| running.current_status());
    assert_eq!(first.passes.placed + second.passes.placed, total as u64);
    let rejected: u64 = first.rejected.values().chain(second.rejected.values()).sum();
    assert!(rejected > 0, "they never met");
    assert_eq!(rejected, first.passes.rejected + second.passes.rejected);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_or_missing_record_makes_the_copy_start_again() {
    for fault in [Fault::Damaged, Fault::Gap] {
        let master = InMemoryMaster::with_machines(4, 100);
        let mut scheduler = RunningScheduler::start(&master, "s1", "");
        scheduler.until("active", |status| status.role == SchedulerRole::Active).await;
        master.submit(job("j1", 5, 5));
        master.until("placed", |master_state| master_state.waiting() == 0).await;
        scheduler.link.fault(fault);
        (2..6).for_each(|number| master.submit(job(&format!("j{number}"), 5, 5)));
        scheduler.until("again", |status| status.resyncs == 1).await;
        master.until("placed", |master_state| master_state.waiting() == 0).await;
        assert_eq!(master.state().scheduled(), 25, "{fault:?}");
        master.elect();
        master.submit(job("j9", 5, 5));
        master.until("placed", |master_state| master_state.waiting() == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_shard_has_its_scheduler() {
    let master = InMemoryMaster::with_machines(4, 100);
    let mut default = RunningScheduler::start(&master, "s1", "");
    let mut gpu = RunningScheduler::start(&master, "s2", "gpu");
    for running in [&mut default, &mut gpu] {
        running.until("active", |status| status.role == SchedulerRole::Active).await;
    }
    master.submit(job("jplain", 7, 1));
    master.submit(job_in_shard("jgpu", 5, "gpu"));
    master.submit(job_in_shard("jnobody", 3, "nobody"));
    master.until("placed", |master_state| master_state.waiting() == 3).await;
    default.until("counted", |status| status.passes.placed == 7).await;
    gpu.until("counted", |status| status.passes.placed == 5).await;
    gpu.kill();
    master.submit(job_in_shard("jgpu2", 5, "gpu"));
    master.submit(job("jplain2", 5, 1));
    default.until("its own alone", |status| status.passes.placed == 12).await;
    quiet_hour().await;
    assert_eq!(master.state().waiting(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_cell_restored_from_the_past_is_copied_afresh() {
    let master = InMemoryMaster::with_machines(4, 100);
    let mut scheduler = RunningScheduler::start(&master, "s1", "");
    (0..20).for_each(|number| master.submit(job(&format!("j{number}"), 2, 1)));
    master.until("placed", |master_state| master_state.waiting() == 0).await;
    master.restore();
    master.submit(job("jnew", 3, 1));
    // It follows the log it knows and gets no answers; the next lease begins with a proposal, whose
    // index reveals the other log.
    scheduler.link.fault(Fault::Cut);
    scheduler.until("idle", |status| status.role == SchedulerRole::Unknown).await;
    scheduler.link.fault(Fault::None);
    scheduler.until("again", |status| status.resyncs == 1).await;
    master.until("placed", |master_state| master_state.waiting() == 0).await;
    // The first of the old jobs is in the part of the log that was kept.
    let master_state = master.state();
    assert_eq!((master_state.state.tasks().len(), master_state.scheduled()), (2 + 3, 2 + 3));
}
