//! Single rules of scheduling, each on a cell small enough to read. Every rule is checked with the
//! default, the exact and the reference scheduler.

mod support;

use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::id::{TaskId, UserId};
use cellwright_cell::isolation::{HOST_VOLUME_WRITABLE, Volume, host_volume_attribute};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::plan::Victim;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, JobKind, JobSpec, SpreadLimit, TaskOverride};
use cellwright_cell::time::Time;
use cellwright_sched::cluster_snapshot::{JobInfo, PendingTaskInfo};
use cellwright_sched::executor::Sequential;
use cellwright_sched::explain::explain;
use cellwright_sched::explain::names::SnapshotNames;
use cellwright_sched::queue::QueueOrder;
use cellwright_sched::score::packing::PackingModel;
use cellwright_sched::{Options, PassOutcome};
use std::sync::Arc;
use support::manual_cluster::{ManualCluster, amount, job, machine};
use support::specs::TestRng;

/// Runs the rule with every kind of scheduler.
fn always(rule: impl Fn(Options)) {
    for options in [Options::default(), Options::exact(), Options::reference()] {
        rule(options);
    }
}

/// The order in which tasks were placed.
fn placed(outcome: &PassOutcome) -> Vec<TaskId> {
    outcome.plan.groups.iter().flat_map(|g| &g.assignments).map(|a| a.task).collect()
}

fn victims(outcome: &PassOutcome) -> Vec<TaskId> {
    outcome.plan.groups.iter().flat_map(|g| &g.victims).map(|v| v.task).collect()
}

#[test]
fn higher_priorities_come_first_whoever_asked_earlier() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let batch = cluster.submit(1, job(1, 100, 10));
        let prod = cluster.submit(2, job(1, 200, 10));
        let free = cluster.submit(3, job(1, 0, 10));
        assert_eq!(placed(&cluster.pass(options)), [prod[0], batch[0], free[0]]);
    });
}

#[test]
fn users_take_turns_inside_a_priority() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let large = cluster.submit(1, job(8, 100, 10));
        let small = cluster.submit(2, job(2, 100, 10));
        let order = placed(&cluster.pass(options));
        let position = |task: &TaskId| order.iter().position(|t| t == task).unwrap();
        assert!(position(&small[0]) < 2 && position(&small[1]) < 4, "{order:?}");
        let positions: Vec<usize> = large.iter().map(position).collect();
        assert!(positions.is_sorted(), "a user's own tasks keep their order: {order:?}");
    });
}

#[test]
fn a_task_that_fits_nowhere_holds_nobody_up_and_costs_no_turn() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 40);
        let giants = cluster.submit(1, job(3, 100, 1000));
        let first_job = cluster.submit(1, job(2, 100, 10));
        let other = cluster.submit(2, job(2, 100, 10));
        let outcome = cluster.pass(options);
        assert_eq!(outcome.placed, 4);
        let pending: Vec<TaskId> = outcome.pending.iter().map(|p| p.task).collect();
        assert_eq!(pending, giants);
        let order = placed(&outcome);
        let first_two = [order[0], order[1]];
        assert!(first_two.contains(&first_job[0]) && first_two.contains(&other[0]), "{order:?}");
    });
}

#[test]
fn no_victim_that_is_not_needed() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let low = cluster.running(1, job(5, 0, 10), 0);
        let mid = cluster.running(1, job(5, 50, 10), 0);
        cluster.submit(2, job(1, 150, 20));
        let outcome = cluster.pass(options);
        assert_eq!((outcome.placed, outcome.preempted), (1, 2));
        let gone = victims(&outcome);
        assert!(gone.iter().all(|task| low.contains(task)), "the lowest give way: {gone:?}");
        assert!(mid.iter().all(|task| cluster.on(*task) == Some(0)));
    });
}

#[test]
fn one_large_victim_rather_than_many_small_ones_of_the_same_priority() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        cluster.running(1, job(4, 0, 10), 0);
        let large = cluster.running(1, job(1, 0, 60), 0);
        cluster.submit(2, job(1, 100, 50));
        assert_eq!(victims(&cluster.pass(options)), large);
    });
}

#[test]
fn victims_are_taken_where_they_matter_least_and_are_named_in_the_group() {
    always(|options| {
        let mut cluster = ManualCluster::machines(2, 100);
        cluster.running(1, job(1, 100, 100), 0);
        let cheap = cluster.running(1, job(2, 10, 50), 1);
        cluster.submit(2, job(1, 200, 100));
        let outcome = cluster.pass(options);
        let group = &outcome.plan.groups[0];
        let named: Vec<Victim> = cheap.iter().map(|t| Victim { task: *t, attempt: 1 }).collect();
        assert_eq!(group.victims, named);
        assert_eq!(group.assignments[0].machine.0, 1);
    });
}

#[test]
fn production_never_preempts_production_but_monitoring_may() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let held = cluster.running(1, job(1, 200, 100), 0);
        cluster.submit(2, job(1, 299, 50));
        let outcome = cluster.pass(options);
        assert_eq!((outcome.placed, outcome.preempted), (0, 0));
        cluster.submit(2, job(1, 300, 50));
        assert_eq!(victims(&cluster.pass(options)), held);
    });
}

#[test]
fn a_disruption_budget_protects_within_its_band_and_from_no_higher_one() {
    let check = |most, priority, want: (usize, usize)| {
        always(|options| {
            let mut cluster = ManualCluster::machines(1, 100);
            cluster.running(1, JobSpec { max_down: Some(most), ..job(2, 0, 50) }, 0);
            cluster.submit(2, job(1, priority, 100));
            let outcome = cluster.pass(options);
            let case = format!("max_down {most}, priority {priority}");
            assert_eq!((outcome.placed, outcome.preempted), want, "{case}");
        });
    };
    check(1, 50, (0, 0));
    check(2, 50, (1, 2));
    check(0, 100, (1, 2));
    check(1, 200, (1, 2));
}

#[test]
fn victims_of_a_band_are_those_that_their_jobs_can_spare() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let kept = cluster.running(1, JobSpec { max_down: Some(0), ..job(1, 10, 50) }, 0);
        let spared = cluster.running(1, JobSpec { max_down: Some(1), ..job(1, 90, 50) }, 0);
        cluster.submit(2, job(1, 200, 50));
        assert_eq!(victims(&cluster.pass(options)), spared, "its priority is higher");
        cluster.submit(2, job(1, 200, 50));
        assert_eq!(victims(&cluster.pass(options)), kept, "nobody else is left");
    });
}

#[test]
fn of_two_machines_the_one_whose_jobs_can_spare_a_task_gives_way() {
    always(|options| {
        let mut cluster = ManualCluster::machines(2, 100);
        cluster.running(1, JobSpec { max_down: Some(0), ..job(1, 10, 100) }, 0);
        let spared = cluster.running(1, JobSpec { max_down: Some(1), ..job(1, 90, 100) }, 1);
        cluster.submit(2, job(1, 200, 50));
        assert_eq!(victims(&cluster.pass(options)), spared);
        // A band counts for more than a budget.
        let mut cluster = ManualCluster::machines(2, 100);
        let free = cluster.running(1, JobSpec { max_down: Some(0), ..job(1, 99, 100) }, 0);
        cluster.running(1, job(1, 100, 100), 1);
        cluster.submit(2, job(1, 200, 50));
        assert_eq!(victims(&cluster.pass(options)), free);
    });
}

#[test]
fn a_gang_is_placed_whole_or_not_at_all() {
    always(|options| {
        let mut cluster = ManualCluster::machines(2, 100);
        let low = cluster.running(1, job(1, 0, 60), 0);
        let gang = cluster.submit(2, JobSpec { gang: true, ..job(4, 100, 60) });
        let outcome = cluster.pass(options);
        assert_eq!((outcome.placed, outcome.preempted, outcome.pending.len()), (0, 0, 4));
        assert_eq!(cluster.on(low[0]), Some(0), "what was made free for it is given back");
        assert!(gang.iter().all(|task| cluster.on(*task).is_none()));
        let pair = cluster.submit(2, JobSpec { gang: true, ..job(2, 100, 60) });
        let outcome = cluster.pass(options);
        assert_eq!(outcome.plan.groups.len(), 1);
        assert_eq!(placed(&outcome), pair);
        assert_eq!(victims(&outcome), low);
    });
}

/// A gang of these tasks, each on the machine of its position.
fn gang_on(cluster: &mut ManualCluster, spec: JobSpec, machines: &[u32]) -> Vec<TaskId> {
    cluster.running_on(1, JobSpec { gang: true, count: machines.len() as u32, ..spec }, machines)
}

#[test]
fn of_equal_victims_those_whose_gangs_lose_least_give_way() {
    always(|options| {
        let mut cluster = ManualCluster::machines(3, 100);
        gang_on(&mut cluster, job(2, 100, 100), &[0, 1]);
        let single = cluster.running(1, job(1, 100, 100), 2);
        cluster.submit(2, job(1, 200, 50));
        let outcome = cluster.pass(options);
        assert_eq!((victims(&outcome), outcome.preempted), (single, 1));
    });
}

#[test]
fn a_gang_leaves_as_a_whole_and_its_room_is_free_in_the_same_pass() {
    always(|options| {
        let mut cluster = ManualCluster::machines(2, 100);
        let gang = gang_on(&mut cluster, job(2, 100, 100), &[0, 1]);
        let top = cluster.submit(2, job(2, 200, 100));
        let outcome = cluster.pass(options);
        assert_eq!((placed(&outcome), outcome.preempted), (top, 2));
        // The second finds its machine free.
        assert_eq!(victims(&outcome).len(), 1);
        assert!(gang.iter().all(|task| cluster.on(*task).is_none()));
    });
}

#[test]
fn a_gang_on_one_machine_is_one_victim() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let gang = gang_on(&mut cluster, job(2, 100, 30), &[0, 0]);
        let other = cluster.running(1, job(1, 100, 20), 0);
        cluster.submit(2, job(1, 200, 50));
        let outcome = cluster.pass(options);
        // Twenty are free, and the gang is all of sixty: who stands beside it may stay.
        assert_eq!(victims(&outcome), gang);
        assert_eq!(cluster.on(other[0]), Some(0));
    });
}

#[test]
fn a_budget_of_a_gang_is_asked_for_all_of_it() {
    always(|options| {
        for (max_down, want) in [(1, 0), (2, 2)] {
            let mut cluster = ManualCluster::machines(2, 100);
            let spec = JobSpec { max_down: Some(max_down), ..job(2, 100, 100) };
            gang_on(&mut cluster, spec, &[0, 1]);
            cluster.submit(2, job(1, 150, 50));
            assert_eq!(cluster.pass(options).preempted, want);
        }
    });
}

#[test]
fn tasks_of_a_job_keep_apart_as_asked() {
    always(|options| {
        let mut cluster = ManualCluster::default();
        ["a", "a", "b"].iter().for_each(|rack| cluster.add(ManualCluster::in_rack(100, rack)));
        let apart = |domain, limit| vec![SpreadLimit { domain, limit }];
        let spec = JobSpec { spread: apart(Domain::Machine, 1), ..job(4, 100, 10) };
        assert_eq!(cluster.pass_of(spec, options), (3, 1));
        let spec = JobSpec { spread: apart(Domain::Rack, 1), ..job(4, 100, 10) };
        assert_eq!(cluster.pass_of(spec, options), (2, 2));
        // So many at once, wherever they are.
        let spec = JobSpec { spread: apart(Domain::Cell, 3), ..job(9, 100, 10) };
        assert_eq!(cluster.pass_of(spec, options), (3, 6));
    });
}

impl ManualCluster {
    /// Placed and pending tasks of one more job; earlier pending tasks are dropped.
    fn pass_of(&mut self, spec: JobSpec, options: Options) -> (usize, usize) {
        self.snapshot.pending().to_vec().into_iter().for_each(|task| self.snapshot.drop_task(task));
        self.submit(1, spec);
        let outcome = self.pass(options);
        (outcome.placed, outcome.pending.len())
    }
}

#[test]
fn tasks_go_into_allocs_of_the_same_pass_and_charge_nothing_else() {
    always(|options| {
        let mut cluster = ManualCluster::machines(2, 100);
        let set = JobSpec { kind: JobKind::AllocSet, ..job(2, 100, 60) };
        let allocs = cluster.submit(1, set);
        let set = cluster.job_of(allocs[0]);
        let key = JobKey { user: Name::new("ada").unwrap(), job: Name::new("job").unwrap() };
        let inner = JobSpec { alloc_set: Some(key), ..job(5, 100, 30) };
        let inner = cluster.submit_into(1, inner, Some(set));
        let outcome = cluster.pass(options);
        assert_eq!((outcome.placed, outcome.pending.len()), (6, 1), "two fit into each alloc");
        assert!(allocs.iter().all(|alloc| cluster.snapshot.members(*alloc).len() == 2));
        for machine in cluster.snapshot.machine_ids() {
            assert_eq!(cluster.snapshot.free(machine).1, amount(40), "only the alloc is charged");
        }
        assert!(inner.iter().filter(|t| cluster.on(**t).is_some()).count() == 4);
    });
}

#[test]
fn an_evicted_alloc_takes_its_tasks_along() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let allocs = cluster.submit(1, JobSpec { kind: JobKind::AllocSet, ..job(1, 10, 80) });
        let set = cluster.job_of(allocs[0]);
        let key = JobKey { user: Name::new("ada").unwrap(), job: Name::new("job").unwrap() };
        cluster.submit_into(1, JobSpec { alloc_set: Some(key), ..job(2, 10, 40) }, Some(set));
        assert_eq!(cluster.pass(options).placed, 3);
        cluster.submit(2, job(1, 200, 100));
        let outcome = cluster.pass(options);
        assert_eq!((outcome.placed, outcome.preempted), (1, 3));
        assert_eq!(victims(&outcome), allocs, "the plan names the alloc alone");
    });
}

#[test]
fn a_planned_task_moves_over_so_that_a_larger_one_fits() {
    always(|options| {
        let mut cluster = ManualCluster::default();
        cluster.add(machine(100));
        cluster.add(machine(40));
        // Worst fit puts the first task on the larger machine, the only one for the second.
        let small = cluster.submit(1, job(1, 200, 40));
        let large = cluster.submit(1, job(1, 200, 80));
        let outcome = cluster.pass(Options { model: PackingModel::WorstFit, ..options });
        assert_eq!((outcome.placed, outcome.stats.moves), (2, 1));
        assert_eq!((cluster.on(small[0]), cluster.on(large[0])), (Some(1), Some(0)));
        assert_eq!(placed(&outcome), [small[0], large[0]], "one assignment for each");
    });
}

#[test]
fn ports_are_the_lowest_free_ones_after_the_static_ones() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let mut spec = job(2, 100, 10);
        spec.task.ports = 2;
        cluster.submit(1, spec);
        let mut fixed = job(1, 200, 10);
        fixed.task.static_ports = vec![20_001];
        fixed.task.ports = 1;
        cluster.submit(1, fixed);
        let outcome = cluster.pass(options);
        let ports: Vec<Vec<u16>> =
            outcome.plan.groups.iter().map(|g| g.assignments[0].ports.clone()).collect();
        assert_eq!(ports, [vec![20_001, 20_000], vec![20_002, 20_003], vec![20_004, 20_005]]);
    });
}

#[test]
fn every_user_gets_turns_under_one_seed() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 10);
        let jobs: Vec<Vec<TaskId>> =
            (1..4).map(|user| cluster.submit(user, job(90, 100, 10))).collect();
        let mut turns = [0; 3];
        for _ in 0..90 {
            let outcome = cluster.pass(options);
            assert_eq!(outcome.placed, 1, "there is room for one");
            let task = placed(&outcome)[0];
            turns[jobs.iter().position(|tasks| tasks.contains(&task)).unwrap()] += 1;
            cluster.snapshot.drop_task(task);
        }
        assert!(turns.iter().all(|n| *n >= 15), "{turns:?}");
    });
}

#[test]
fn a_spec_rewritten_under_the_same_version_counts() {
    let mut cluster = ManualCluster::machines(1, 100);
    let task = cluster.submit(1, job(1, 100, 10))[0];
    let id = cluster.job_of(task);
    let spec = Arc::new(job(1, 100, 20));
    let info = JobInfo {
        user: UserId(1),
        spec: &spec,
        version: 0,
        alloc_set: None,
        machines: &Arc::default(),
        budget: None,
        in_transition: 0,
    };
    cluster.snapshot.put_job(id, &info);
    let info = PendingTaskInfo {
        job: id,
        index: 0,
        attempt: 0,
        not_before: Time::ZERO,
        reservation: None,
        avoid: &[],
    };
    cluster.snapshot.put_pending(task, &info);
    let class = cluster.snapshot.class_of(task).unwrap();
    assert_eq!(cluster.snapshot.class(class).request.limits, amount(20));
}

#[test]
fn a_port_held_inside_an_alloc_is_freed_with_the_alloc() {
    always(|options| {
        for (fixed, chosen) in [(vec![80], 0), (vec![], 8)] {
            let mut cluster = ManualCluster::machines(1, 100);
            let allocs = cluster.submit(1, JobSpec { kind: JobKind::AllocSet, ..job(1, 10, 20) });
            let set = cluster.job_of(allocs[0]);
            let key = JobKey { user: Name::new("ada").unwrap(), job: Name::new("job").unwrap() };
            let mut inner = JobSpec { alloc_set: Some(key), ..job(1, 10, 10) };
            (inner.task.static_ports, inner.task.ports) = (fixed.clone(), chosen);
            cluster.submit_into(1, inner, Some(set));
            assert_eq!(cluster.pass(options).placed, 2);
            let mut prod = job(1, 200, 10);
            (prod.task.static_ports, prod.task.ports) = (fixed, chosen);
            cluster.submit(2, prod);
            let outcome = cluster.pass(options);
            assert_eq!((outcome.placed, outcome.preempted), (1, 2));
            assert_eq!(victims(&outcome), allocs);
        }
    });
}

/// A job of which one task may be down; one of its tasks holds CPU, the other memory.
fn cpu_and_memory() -> JobSpec {
    let mut spec = JobSpec { max_down: Some(1), ..job(2, 0, 0) };
    spec.task.limits = Resources::new(60, 0, 0, 0);
    let limits = Some(Resources::new(0, 50, 0, 0).into());
    spec.overrides.insert(1, TaskOverride { limits, ..TaskOverride::default() });
    spec
}

#[test]
fn a_budget_is_not_spent_on_a_victim_that_does_not_help() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let held = cluster.running(1, cpu_and_memory(), 0);
        let mut large_job = job(1, 200, 0);
        large_job.task.limits = Resources::new(40, 80, 0, 0);
        cluster.submit(2, large_job);
        assert_eq!(victims(&cluster.pass(options)), [held[1]], "only memory is short");
    });
}

#[test]
fn a_budget_goes_to_the_victim_nobody_else_can_stand_in_for() {
    always(|options| {
        let mut cluster = ManualCluster::machines(1, 100);
        let held = cluster.running(1, cpu_and_memory(), 0);
        let mut other = job(1, 50, 0);
        other.task.limits = Resources::new(40, 0, 0, 0);
        let other = cluster.running(1, other, 0);
        let mut large_job = job(1, 99, 0);
        large_job.task.limits = Resources::new(40, 80, 0, 0);
        cluster.submit(2, large_job);
        assert_eq!(
            victims(&cluster.pass(options)),
            [held[1], other[0]],
            "CPU and memory are short"
        );
    });
}

#[test]
fn techniques_that_cannot_work_are_reported_as_off() {
    let alone = Options { classes: false, ..Options::default() };
    assert!(alone.score_cache && !alone.effective().score_cache);
    let arrival = Options { order: QueueOrder::Arrival, ..Options::default() };
    assert!(arrival.repair && !arrival.effective().repair);
    assert_eq!(Options::default().effective(), Options::default());
}

/// One machine full of small jobs with budgets, and one task that needs room there.
fn crowded(rng: &mut TestRng) -> ManualCluster {
    let mut cluster = ManualCluster::machines(1, 100);
    for _ in 0..rng.below(3) + 1 {
        let mut spec = job(rng.below(4) as u32 + 1, [0, 50, 100][rng.below(3) as usize], 0);
        spec.max_down = (!rng.one_in(3)).then(|| rng.below(3) as u32);
        for index in 0..spec.count {
            let limits = Some(Resources::new(rng.below(25), rng.below(25), 0, 0).into());
            spec.overrides.insert(index, TaskOverride { limits, ..TaskOverride::default() });
        }
        cluster.running(1, spec, 0);
    }
    let mut large_job = job(1, [99, 199, 200][rng.below(3) as usize], 0);
    large_job.task.limits = Resources::new(rng.below(101), rng.below(101), 0, 0);
    cluster.submit(2, large_job);
    cluster
}

#[test]
fn nobody_waits_for_victims_that_the_explanation_says_may_go() {
    let (mut waited, mut evicted) = (0, 0);
    for seed in 0..3000 {
        let mut cluster = crowded(&mut TestRng(seed));
        let outcome = cluster.pass(Options::exact());
        evicted += usize::from(outcome.preempted > 0);
        let Some(pending) = outcome.pending.first() else { continue };
        waited += 1;
        let explanation = explain(
            &cluster.snapshot,
            pending.class,
            &SnapshotNames(&cluster.snapshot),
            &Sequential,
        );
        assert!(explanation.victims.is_none_or(|victims| !victims.allowed), "seed {seed}");
    }
    assert!(waited > 100 && evicted > 100, "{waited} waited, {evicted} evicted");
}

#[test]
fn tasks_that_borrow_a_folder_go_where_it_is_lent_and_others_do_not_mind() {
    always(|options| {
        let mut cluster = ManualCluster::machines(2, 100);
        let mut spec = machine(300);
        let how = AttributeValue::Text(HOST_VOLUME_WRITABLE.into());
        spec.attributes.insert(host_volume_attribute("/srv").unwrap(), how);
        cluster.add(spec);
        let with_volume = |path: &str| {
            let mut spec = job(2, 100, 10);
            let (source, target) = (path.into(), "/data".into());
            spec.task.isolation.volumes = vec![Volume { source, target, writable: true }];
            spec
        };
        // Alike in all but their host volumes: they must not share a result.
        let plain = cluster.submit(1, job(20, 100, 10));
        let with_granted = cluster.submit(1, with_volume("/srv/data"));
        let kept = cluster.submit(1, with_volume("/opt"));
        let outcome = cluster.pass(options);
        assert_eq!(outcome.placed, 22);
        assert!(with_granted.iter().all(|task| cluster.on(*task) == Some(2)));
        assert!(plain.iter().all(|task| cluster.on(*task).is_some()));
        assert!(kept.iter().all(|task| cluster.on(*task).is_none()));
    });
}
