//! The rules one by one, and the invariants for any samples.

use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn first(task: u32) -> Attempt {
    Attempt::new(TaskId(task), 1)
}

fn task(id: u32, class: AppClass, priority: u16) -> TaskSample {
    TaskSample {
        attempt: first(id),
        class,
        priority: Priority(priority),
        limits: Resources::new(1000, GIB, GIB, 0),
        reservation: Resources::new(1000, GIB, GIB, 0),
        used: Resources::new(100, GIB / 2, 0, 0),
        cpu_unmet: Some(0),
        whole_cores: 0,
        files: 0,
        slack_cpu: true,
        slack_ram: false,
    }
}

fn sensitive(id: u32) -> TaskSample {
    task(id, AppClass::LatencySensitive, 200)
}

fn batch(id: u32, priority: u16) -> TaskSample {
    task(id, AppClass::Batch, priority)
}

fn machine() -> MachineSample {
    let room =
        AvailableResources { ram_available: 8 * GIB, disk_free: 100 * GIB, files_free: 90_000 };
    let keep = AvailableResources { ram_available: GIB, disk_free: 10 * GIB, files_free: 10_000 };
    let cores = (0..4).map(|core| CpuList::new(vec![2 * core, 2 * core + 1])).collect();
    let capacity = Resources::new(4000, 32 * GIB, 200 * GIB, 0);
    MachineSample { capacity, available: room, reserve: keep, cores, idle_permille: None }
}

fn kills(actions: &[Action]) -> Vec<(u32, KillCause)> {
    let kill = |action: &Action| match action {
        Action::Kill { attempt, reason } => Some((attempt.task.0, reason.cause)),
        _ => None,
    };
    actions.iter().filter_map(kill).collect()
}

fn caps(actions: &[Action]) -> Vec<(u32, Option<u64>, CapReason)> {
    let cap = |action: &Action| match action {
        Action::Cap { attempt, cap, why, .. } => Some((attempt.task.0, *cap, *why)),
        _ => None,
    };
    actions.iter().filter_map(cap).collect()
}

fn second(n: u64) -> Time {
    Time(n * 1000)
}

#[test]
fn with_room_for_all_nobody_is_touched_but_for_sizes_and_own_limits() {
    let mut bound = batch(3, 100);
    bound.slack_cpu = false;
    let tasks = [sensitive(1), batch(2, 100), bound];
    let mut control = ResourceControl::default();
    let actions = control.step(second(1), &machine(), &tasks);
    assert_eq!(kills(&actions), []);
    assert_eq!(caps(&actions), [(3, Some(1000), CapReason::OwnLimit)]);
    let protect = Action::SizeMemory { attempt: first(1), protect: GIB, throttle: None };
    assert!(actions.contains(&protect) && actions.len() == 2, "{actions:?}");
    assert_eq!(control.step(second(2), &machine(), &tasks), []);
}

#[test]
fn memory_is_freed_from_the_lowest_priority_up_and_no_further_than_needed() {
    let mut machine = machine();
    machine.available.ram_available = GIB / 4;
    let mut control = ResourceControl::default();
    let mut low = batch(4, 50);
    low.reservation.ram = GIB / 4;
    let tasks = [sensitive(1), batch(2, 150), batch(3, 100), low];
    let actions = control.step(second(1), &machine, &tasks);
    let cause =
        |short, priority| KillCause::ResourcePressure { short, priority: Priority(priority) };
    let expected = [(4, cause(3 * GIB / 4, 50)), (3, cause(GIB / 4, 100))];
    assert_eq!(kills(&actions), expected);
    let Some(Action::Kill { reason, .. }) = actions.first() else { panic!("{actions:?}") };
    let text = "ram: the machine lacked 805306368; priority 50, held 536870912; \
                over their reservations: ubar/jfoo/4 by 268435456";
    assert_eq!(reason.describe(|task| format!("ubar/jfoo/{}", task.0)), text);
    // They take their time to die: no other task is killed for that.
    assert_eq!(kills(&control.step(second(2), &machine, &tasks)), []);
}

#[test]
fn production_of_the_batch_class_dies_for_memory_last_and_the_sensitive_never() {
    let mut machine = machine();
    machine.available.ram_available = 0;
    let tasks = [sensitive(1), batch(2, 250), batch(3, 100)];
    let actions = ResourceControl::default().step(second(1), &machine, &tasks);
    let killed: Vec<u32> = kills(&actions).into_iter().map(|(task, _)| task).collect();
    assert_eq!(killed, [3, 2]);
}

#[test]
fn whoever_is_over_its_limit_goes_first_whatever_its_priority() {
    let mut machine = machine();
    machine.available.ram_available = GIB / 2;
    let mut over = sensitive(1);
    over.slack_ram = true;
    over.used.ram = 2 * GIB;
    let tasks = [over.clone(), batch(2, 0)];
    let actions = ResourceControl::default().step(second(1), &machine, &tasks);
    assert_eq!(kills(&actions), [(1, KillCause::OverLimit { limit: GIB })]);
    machine.available.ram_available = 8 * GIB;
    assert_eq!(kills(&ResourceControl::default().step(second(1), &machine, &tasks)), []);
    over.slack_ram = false;
    let actions = ResourceControl::default().step(second(1), &machine, &[over, batch(2, 0)]);
    assert_eq!(kills(&actions), [(1, KillCause::OverLimit { limit: GIB })]);
}

#[test]
fn disk_over_its_limit_kills_and_a_limit_that_was_not_given_does_not() {
    let mut hog = batch(1, 100);
    hog.used.disk = 2 * GIB;
    let mut silent = batch(2, 100);
    silent.limits.disk = 0;
    silent.used.disk = 2 * GIB;
    let actions = ResourceControl::default().step(second(1), &machine(), &[hog, silent.clone()]);
    assert_eq!(kills(&actions), [(1, KillCause::OverLimit { limit: GIB })]);
    let mut full = machine();
    full.available.disk_free = 9 * GIB;
    let actions = ResourceControl::default().step(second(1), &full, &[silent, batch(3, 0)]);
    assert_eq!(kills(&actions), [(2, KillCause::OverLimit { limit: 0 })]);
}

#[test]
fn the_next_attempt_is_told_everything_anew_and_is_not_dying() {
    let mut machine = machine();
    machine.available.ram_available = 3 * GIB / 2;
    let (mut bound, mut owner) = (batch(1, 100), sensitive(2));
    bound.slack_cpu = false;
    owner.whole_cores = 1;
    let mut control = ResourceControl::default();
    let repeated = control.step(second(1), &machine, &[bound.clone(), owner.clone()]);
    assert_eq!(repeated.len(), 4, "{repeated:?}");
    machine.available.ram_available = GIB / 2;
    control.step(second(2), &machine, &[bound.clone(), owner.clone()]);
    assert!(control.is_dying(bound.attempt));
    machine.available.ram_available = 3 * GIB / 2;
    bound.attempt.number = 2;
    owner.attempt.number = 2;
    let again = control.step(second(3), &machine, &[bound.clone(), owner.clone()]);
    assert!(!control.is_dying(bound.attempt));
    assert_eq!(again.len(), repeated.len(), "{again:?}");
    machine.available.ram_available = GIB / 2;
    let actions = control.step(second(4), &machine, &[bound, owner]);
    assert_eq!(kills(&actions).len(), 1, "{actions:?}");
}

/// A disk that lacks half a GiB, and two tasks with a GiB each.
fn full_disk() -> (MachineSample, TaskSample, TaskSample) {
    let mut machine = machine();
    machine.available.disk_free = 10 * GIB - GIB / 2;
    let (mut low, mut high) = (batch(1, 50), batch(2, 150));
    low.used.disk = GIB;
    high.used.disk = GIB;
    (machine, low, high)
}

#[test]
fn nobody_dies_for_files_of_the_dead_that_are_still_to_be_removed() {
    let (machine, low, high) = full_disk();
    let mut control = ResourceControl::default();
    let both = [low.clone(), high.clone()];
    assert_eq!(kills(&control.step(second(1), &machine, &both)).len(), 1);
    for now in 2..30 {
        let actions = control.step(second(now), &machine, std::slice::from_ref(&high));
        assert_eq!(kills(&actions), [], "{now}");
    }
    // Its files are gone and the disk is as full as before: another task has filled it.
    assert_eq!(control.awaiting_cleanup().collect::<Vec<_>>(), [low.attempt]);
    control.cleaned_up(low.attempt);
    assert_eq!(control.awaiting_cleanup().count(), 0);
    let actions = control.step(second(30), &machine, std::slice::from_ref(&high));
    let cause = KillCause::ResourcePressure { short: GIB / 2, priority: Priority(150) };
    assert_eq!(kills(&actions), [(2, cause)]);
}

#[test]
fn files_that_nobody_removes_do_not_count_as_free_for_ever() {
    let (machine, low, high) = full_disk();
    let mut control = ResourceControl::default();
    control.step(second(1), &machine, &[low, high.clone()]);
    let died = (2..200).find(|now| {
        let actions = control.step(second(*now), &machine, std::slice::from_ref(&high));
        !kills(&actions).is_empty()
    });
    assert_eq!(died, Some(62));
}

#[test]
fn who_does_not_die_is_told_again_and_spares_nobody_any_longer() {
    let mut machine = machine();
    machine.available.ram_available = 3 * GIB / 4;
    let tasks = [batch(1, 50), batch(2, 150)];
    let mut control = ResourceControl::default();
    let killed: Vec<(u64, Vec<u32>)> = (0..=20)
        .map(|now| (now, kills(&control.step(second(now), &machine, &tasks))))
        .map(|(now, kills)| (now, kills.into_iter().map(|(task, _)| task).collect::<Vec<_>>()))
        .filter(|(_, kills)| !kills.is_empty())
        .collect();
    assert_eq!(killed, [(0, vec![1]), (10, vec![1, 2]), (20, vec![1, 2])]);
}

#[test]
fn a_disk_without_room_for_files_is_full_whatever_its_bytes() {
    let mut machine = machine();
    machine.available.files_free = 9_000;
    let (mut prod, mut some, mut many) = (sensitive(1), batch(2, 100), batch(3, 100));
    prod.files = 50_000;
    some.files = 10;
    many.files = 5_000;
    let actions = ResourceControl::default().step(second(1), &machine, &[prod, some, many]);
    let cause = KillCause::Files { short: 1_000, files: 5_000, priority: Priority(100) };
    assert_eq!(kills(&actions), [(3, cause)]);
    let Some(Action::Kill { reason, .. }) = actions.first() else { panic!("{actions:?}") };
    let text = "disk: no room for 1000 files; priority 100, had 5000 files";
    assert_eq!(reason.describe(|_| String::new()), text);
}

/// A full machine: a latency-sensitive task within its limit waits while batch runs.
fn under_pressure() -> (MachineSample, Vec<TaskSample>) {
    let mut waiting = sensitive(1);
    waiting.limits.cpu = 3000;
    waiting.used.cpu = 1500;
    waiting.cpu_unmet = Some(300);
    let (mut high, mut low) = (batch(2, 150), batch(3, 50));
    high.used.cpu = 1000;
    low.used.cpu = 1400;
    (machine(), vec![waiting, high, low])
}

#[test]
fn batch_gives_cpu_lowest_priority_first_and_gets_it_back() {
    let (machine, mut tasks) = under_pressure();
    let mut control = ResourceControl::default();
    let actions = control.step(second(1), &machine, &tasks);
    let expected = [(2, Some(1000), CapReason::Yields), (3, Some(800), CapReason::Yields)];
    assert_eq!(caps(&actions), expected);
    for (used, task) in [1000, 800].into_iter().zip(&mut tasks[1..]) {
        task.used.cpu = used;
    }
    tasks[0].used.cpu = 2100;
    let actions = control.step(second(2), &machine, &tasks);
    assert_eq!(caps(&actions), [(3, Some(350), CapReason::Yields)]);
    tasks[0].cpu_unmet = Some(0);
    let actions = control.step(second(3), &machine, &tasks);
    assert_eq!(
        caps(&actions),
        [(2, Some(1250), CapReason::Eased), (3, Some(437), CapReason::Eased)]
    );
    for now in 4..40 {
        control.step(second(now), &machine, &tasks);
    }
    assert!(control.cpu_caps().is_empty());
}

#[test]
fn slack_is_used_freely_while_nobody_waits() {
    let (machine, mut tasks) = under_pressure();
    tasks[0].cpu_unmet = Some(10);
    assert_eq!(caps(&ResourceControl::default().step(second(1), &machine, &tasks)), []);
    // Its own excess is no reason to throttle batch.
    tasks[0].cpu_unmet = Some(900);
    tasks[0].limits.cpu = 1000;
    assert_eq!(caps(&ResourceControl::default().step(second(1), &machine, &tasks)), []);
}

#[test]
fn the_greedy_may_starve_batch_for_seconds_and_not_for_minutes() {
    let mut greedy = sensitive(1);
    greedy.used.cpu = 3500;
    let mut modest = sensitive(2);
    modest.used.cpu = 450;
    let mut starved = batch(3, 100);
    starved.used.cpu = 20;
    starved.cpu_unmet = Some(980);
    let tasks = [greedy, modest, starved];
    let mut control = ResourceControl::default();
    for now in 0..20 {
        assert_eq!(caps(&control.step(second(now), &machine(), &tasks)), [], "{now}");
    }
    let actions = control.step(second(20), &machine(), &tasks);
    let why = CapReason::StarvedBatch { since: second(0) };
    assert_eq!(caps(&actions), [(1, Some(3320), why)]);
}

#[test]
fn batch_keeps_what_the_greedy_had_to_leave_for_as_long_as_it_wants_it() {
    let (mut greedy, mut modest, mut starved) = (sensitive(1), sensitive(2), batch(3, 100));
    modest.used.cpu = 450;
    let mut control = ResourceControl::default();
    let mut fed = 0;
    for now in 0..140 {
        let cap = control.cpu_caps().get(&greedy.attempt).copied().unwrap_or(u64::MAX);
        greedy.used.cpu = cap.min(3530);
        starved.used.cpu = 4000 - 450 - greedy.used.cpu;
        starved.cpu_unmet = Some(980);
        fed += u64::from(now >= 40 && starved.used.cpu >= 200);
        let tasks = [greedy.clone(), modest.clone(), starved.clone()];
        control.step(second(now), &machine(), &tasks);
    }
    assert!(fed >= 85, "in {fed} of 100 seconds");
    // And gets it all back when no other task wants it.
    starved.cpu_unmet = Some(0);
    for now in 140..160 {
        let tasks = [greedy.clone(), modest.clone(), starved.clone()];
        control.step(second(now), &machine(), &tasks);
    }
    assert!(control.cpu_caps().is_empty());
}

#[test]
fn whole_cores_are_closed_to_other_sensitive_tasks_only() {
    let mut owner = sensitive(1);
    owner.whole_cores = 2;
    let tasks = [owner.clone(), sensitive(2), batch(3, 100)];
    let mut control = ResourceControl::default();
    let runs = |actions: &[Action]| -> Vec<(u32, String)> {
        let run = |action: &Action| match action {
            Action::RunOn { attempt, cpus } => Some((attempt.task.0, cpus.to_string())),
            _ => None,
        };
        actions.iter().filter_map(run).collect()
    };
    let actions = control.step(second(1), &machine(), &tasks);
    assert_eq!(runs(&actions), [(1, "4,5,6,7".to_owned()), (2, "0,1,2,3".to_owned())]);
    // A later and more important one gets what is left; no task is moved off its reserved cores.
    let mut second_owner = sensitive(4);
    second_owner.priority = Priority(300);
    second_owner.whole_cores = 2;
    let more = [owner, sensitive(2), batch(3, 100), second_owner.clone()];
    let actions = control.step(second(2), &machine(), &more);
    assert!(actions.contains(&Action::NoFreeCores { attempt: first(4), requested: 2, free: 1 }));
    assert_eq!(runs(&actions), [(4, "0,1,2,3".to_owned())]);
    let actions = control.step(second(3), &machine(), &[sensitive(2), second_owner]);
    assert_eq!(runs(&actions), [(4, "4,5,6,7".to_owned())]);
    let actions = control.step(second(4), &machine(), &[sensitive(2)]);
    assert_eq!(runs(&actions), [(2, "0,1,2,3,4,5,6,7".to_owned())]);
}

#[test]
fn disk_rate_is_taken_from_batch_where_the_disk_is_known() {
    let mut machine = machine();
    let mib = 1 << 20;
    let (mut reader, mut copier) = (sensitive(1), batch(2, 100));
    reader.used.disk_rate = 60 * mib;
    copier.used.disk_rate = 80 * mib;
    let tasks = [reader, copier];
    assert_eq!(caps(&ResourceControl::default().step(second(1), &machine, &tasks)), []);
    machine.capacity.disk_rate = 100 * mib;
    let actions = ResourceControl::default().step(second(1), &machine, &tasks);
    assert_eq!(caps(&actions), [(2, Some(40 * mib), CapReason::Yields)]);
}

#[test]
fn the_master_is_asked_after_every_minute_that_did_not_help() {
    let (machine, tasks) = under_pressure();
    let mut control = ResourceControl::default();
    let mut requests = Vec::new();
    for now in 0..140 {
        let actions = control.step(second(now), &machine, &tasks);
        let eviction_requests =
            actions.into_iter().filter(|a| matches!(a, Action::RequestEviction { .. }));
        requests.extend(eviction_requests.map(|request| (now, request)));
        let resource_pressure = control.resource_pressure(second(now));
        assert_eq!(resource_pressure.len(), usize::from(now >= 60), "after {now} s");
    }
    let request = |requested| Action::RequestEviction {
        dimension: Dimension::Cpu,
        since: second(0),
        requested,
    };
    assert_eq!(requests, [(60, request(1)), (120, request(2))]);
}

/// The reported shortages after each second, by whether the machine was short in it.
fn shortages_after(
    control: &mut ResourceControl,
    from: u64,
    seconds: &[(u64, bool)],
) -> Vec<Option<u32>> {
    let (machine, tasks) = under_pressure();
    let mut now = from;
    let mut counts = Vec::new();
    for (count, short) in seconds {
        for _ in 0..*count {
            let there = if *short { &tasks[..] } else { &tasks[..1] };
            control.step(second(now), &machine, there);
            now += 1;
        }
        let resource_pressure = control.resource_pressure(second(now));
        counts.push(resource_pressure.first().map(|shortage| shortage.requested));
    }
    counts
}

fn with_delay(seconds: u64) -> ResourceControl {
    ResourceControl::with_request_delay(Span::seconds(seconds), PressureHistory::default(), Time(0))
}

#[test]
fn a_machine_is_short_for_the_masters_until_it_has_been_well_for_as_long() {
    let mut control = with_delay(10);
    let all = [(10, true), (1, true), (1, false), (9, false), (1, false)];
    assert_eq!(shortages_after(&mut control, 0, &all), [None, Some(1), Some(0), Some(0), None]);
    // Short again before that: it is well only after a whole delay, and requests only after one.
    let mut control = with_delay(10);
    let all = [(11, true), (8, false), (9, true), (9, false), (11, true), (1, false), (10, false)];
    let want = [Some(1), Some(0), Some(0), Some(0), Some(1), Some(0), None];
    assert_eq!(shortages_after(&mut control, 0, &all), want);
}

/// When evictions are requested from second `from` on, by an instance that resumes the history of
/// second `left`. Its first pass has no rates; then the machine is short or is not.
fn requests_after_a_restart(left: u64, from: u64, short: bool) -> Vec<u64> {
    let (machine, tasks) = under_pressure();
    let mut control = ResourceControl::default();
    (0..=left).for_each(|now| drop(control.step(second(now), &machine, &tasks)));
    let mut next = ResourceControl::with_request_delay(
        EVICTION_REQUEST_DELAY,
        control.pressure_history(second(left)),
        second(from),
    );
    let is_reported = left >= 60 && from - left <= 60;
    assert_eq!(next.resource_pressure(second(from)).len(), usize::from(is_reported));
    let asks = |now: &u64| {
        let seen = if *now == from { &[][..] } else { &tasks[..if short { 3 } else { 1 }] };
        let actions = next.step(second(*now), &machine, seen);
        actions.iter().any(|action| matches!(action, Action::RequestEviction { .. }))
    };
    (from..from + 130).filter(asks).collect()
}

#[test]
fn a_restart_does_not_put_off_relief() {
    assert_eq!(requests_after_a_restart(40, 45, true), [60, 120]);
    assert_eq!(requests_after_a_restart(65, 70, true), [120, 180], "asked once before it");
    // Long enough by the first pass, which does not see it: not before the second.
    assert_eq!(requests_after_a_restart(55, 61, true), [62, 122, 182]);
    assert_eq!(requests_after_a_restart(55, 61, false), [0u64; 0], "it was over by then");
    // A gap without passes as long as a shortage must last to matter.
    assert_eq!(requests_after_a_restart(40, 101, true), [162, 222]);
    assert_eq!(requests_after_a_restart(65, 130, true), [191, 251], "what it asked before is past");
}

#[test]
fn what_was_remembered_is_dropped_when_it_is_not_seen_again() {
    let (machine, tasks) = under_pressure();
    let mut control = ResourceControl::default();
    (0..=65).for_each(|now| drop(control.step(second(now), &machine, &tasks)));
    let mut next = ResourceControl::with_request_delay(
        EVICTION_REQUEST_DELAY,
        control.pressure_history(second(65)),
        second(66),
    );
    let mut request_count = |now: u64| {
        next.step(second(now), &machine, &tasks[..1]);
        next.resource_pressure(second(now)).first().map(|shortage| shortage.requested)
    };
    let until = 66 + CONFIRM_WITHIN.0 / 1000;
    assert!((66..until).all(|now| request_count(now) == Some(1)));
    assert!((until..until + 60).all(|now| request_count(now) == Some(0)));
    assert_eq!(request_count(until + 60), None);
    assert!(next.pressure_history(second(200)).is_empty());
}

#[test]
fn non_prod_is_held_to_what_it_has_while_memory_is_scarce() {
    let mut machine = machine();
    machine.available.ram_available = 3 * GIB / 2;
    let mut control = ResourceControl::default();
    let mut grower = batch(1, 100);
    let throttle = |throttle| Action::SizeMemory { attempt: first(1), protect: 0, throttle };
    assert_eq!(control.step(second(1), &machine, &[grower.clone()]), [throttle(Some(GIB / 2))]);
    grower.used.ram = 3 * GIB / 4;
    assert_eq!(control.step(second(2), &machine, &[grower.clone()]), []);
    machine.available.ram_available = 4 * GIB;
    assert_eq!(control.step(second(3), &machine, &[grower]), [throttle(None)]);
}

prop_compose! {
    fn any_task()(
        sensitive in any::<bool>(),
        priority in 0u16..400,
        limit in 1u64..4000,
        held in 0u64..4000,
        used in 0u64..6000,
        wanting in proptest::option::of(0u64..2000),
        cores in 0u32..3,
        slack_cpu in any::<bool>(),
        slack_ram in any::<bool>(),
    ) -> TaskSample {
        let class = if sensitive { AppClass::LatencySensitive } else { AppClass::Batch };
        let reserved = held.min(limit);
        let all = |n: u64| Resources::new(n, n, n, n);
        TaskSample {
            attempt: first(0),
            class,
            priority: Priority(priority),
            limits: all(limit),
            reservation: all(reserved),
            used: all(used),
            cpu_unmet: wanting,
            whole_cores: cores,
            files: used,
            slack_cpu,
            slack_ram,
        }
    }
}

fn any_tasks() -> impl Strategy<Value = Vec<TaskSample>> {
    proptest::collection::vec(any_task(), 0..8).prop_map(|mut tasks| {
        for (id, task) in (0..).zip(&mut tasks) {
            task.attempt = first(id);
        }
        tasks
    })
}

prop_compose! {
    fn any_machine()(
        free in 0u64..5000,
        disk in 0u64..5000,
        files in 0u64..5000,
        rate in 0u64..5000,
    ) -> MachineSample {
        let available =
            AvailableResources { ram_available: free, disk_free: disk, files_free: files };
        let reserve = AvailableResources { ram_available: 1000, disk_free: 1000, files_free: 1000 };
        let capacity = Resources::new(4000, 9000, 9000, rate);
        MachineSample { capacity, available, reserve, ..machine() }
    }
}

fn sample(tasks: &[TaskSample], id: Attempt) -> &TaskSample {
    tasks.iter().find(|task| task.attempt == id).expect("actions are about sampled tasks")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn prod_within_its_limit_is_never_killed_and_nobody_lower_is_spared_for_it(
        rounds in proptest::collection::vec((any_machine(), any_tasks()), 1..6)
    ) {
        let (mut control, mut killed) = (ResourceControl::default(), BTreeSet::new());
        for (now, (machine, tasks)) in (0..).zip(&rounds) {
            let actions = control.step(second(now * 15), machine, tasks);
            for action in &actions {
                let Action::Kill { attempt, reason } = action else { continue };
                // It was judged at its first kill, by its usage at that time.
                if !killed.insert(*attempt) {
                    continue;
                }
                let victim = sample(tasks, *attempt);
                let dimension = reason.dimension;
                let files = matches!(reason.cause, KillCause::Files { .. });
                let over = !files && victim.used.get(dimension) > victim.limits.get(dimension);
                prop_assert!(over || !victim.is_packed_by_limits(), "{victim:?}");
                prop_assert!(!dimension.is_compressible());
                if over {
                    continue;
                }
                // A lower task that holds some of it is dying too, unless its limits were promised.
                let is_kept = |t: &TaskSample| {
                    t.is_packed_by_limits() && t.used.get(dimension) <= t.limits.get(dimension)
                };
                let lower = tasks.iter().filter(|t| t.priority < victim.priority);
                for other in lower.filter(|t| !is_kept(t)) {
                    let spared = other.used.get(dimension) > 0 && !control.is_dying(other.attempt);
                    prop_assert!(!spared, "{victim:?} died before {other:?}");
                }
            }
        }
    }

    #[test]
    fn batch_shrinks_before_the_sensitive_do_and_those_keep_their_limit(
        rounds in proptest::collection::vec((any_machine(), any_tasks()), 1..6)
    ) {
        let mut control = ResourceControl::default();
        for (now, (machine, tasks)) in (0..).zip(&rounds) {
            let actions = control.step(second(now * 15), machine, tasks);
            let alive = tasks.iter().filter(|task| !control.is_dying(task.attempt));
            let batch = alive.filter(|task| task.is_batch());
            let by_batch: u64 = batch.map(|task| task.used.cpu).sum();
            for action in &actions {
                let Action::Cap { attempt, dimension, cap, why } = action else { continue };
                let capped = sample(tasks, *attempt);
                if capped.is_batch() || *why == CapReason::Eased {
                    continue;
                }
                prop_assert!(*dimension == Dimension::Cpu, "{action:?}");
                let Some(cap) = cap else { continue };
                if *why == CapReason::OwnLimit {
                    prop_assert!(!capped.slack_cpu && *cap == capped.limits.cpu);
                } else {
                    prop_assert!(*cap >= capped.limits.cpu, "{action:?} {capped:?}");
                    prop_assert!(by_batch < machine.capacity.cpu / 20, "{action:?}");
                }
            }
        }
    }

    #[test]
    fn what_holds_is_not_repeated(machine in any_machine(), tasks in any_tasks()) {
        let mut control = ResourceControl::default();
        let first = control.step(second(1), &machine, &tasks);
        let killed = kills(&first).len();
        let again = control.step(second(1), &machine, &tasks);
        prop_assert_eq!(kills(&again).len(), 0, "{} killed before", killed);
        for action in &again {
            prop_assert!(!first.contains(action), "{:?}", action);
        }
    }
}

#[test]
fn who_is_killed_for_want_of_memory_is_told_for_whom() {
    let attempt = |task| Attempt::new(TaskId(task), 1);
    let blame = |task| Blame { attempt: attempt(task), used: 9, reservation: 4 };
    let class_of = |cause, blamed| {
        let reason = KillReason { dimension: Dimension::Ram, used: 5, cause, blamed };
        reason.exit_class(attempt(1))
    };
    let short = KillCause::ResourcePressure { short: 1, priority: Priority(100) };
    let to = Some(ExitClass::GaveWayTo(TaskId(2)));
    assert_eq!(class_of(short, vec![blame(1), blame(2), blame(3)]), to);
    assert_eq!(class_of(short, vec![blame(1)]), Some(ExitClass::OutOfMemoryBystander));
    let over = KillCause::OverLimit { limit: 4 };
    assert_eq!(class_of(over, vec![blame(2)]), Some(ExitClass::OutOfMemory));
}

#[test]
fn a_large_disk_is_not_short_while_gigabytes_are_free() {
    const GIB: u64 = 1 << 30;
    let kept =
        |disk| AvailableResources::reserve_for(Resources { disk, ..Resources::ZERO }).disk_free;
    assert_eq!(kept(50 * GIB), GIB);
    assert_eq!(kept(250 * GIB), 2 * GIB);
    assert_eq!(kept(u64::MAX), 2 * GIB);
}

#[test]
fn batch_yields_when_what_is_not_of_the_cell_uses_the_machine_up() {
    let mut short = sensitive(1);
    short.used.cpu = 200;
    short.cpu_unmet = Some(300);
    let mut taker = batch(2, 100);
    taker.used.cpu = 400;
    let tasks = [short, taker];
    let mut machine = machine();
    machine.idle_permille = Some(400);
    let mut control = ResourceControl::default();
    assert_eq!(caps(&control.step(second(1), &machine, &tasks)), []);
    machine.idle_permille = Some(0);
    let actions = control.step(second(2), &machine, &tasks);
    assert_eq!(caps(&actions), [(2, Some(300), CapReason::Yields)]);
}
