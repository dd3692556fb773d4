//! A virtual agent by itself: its tasks end as they should, and its reports contain what it
//! measured.

mod usage_day;

use super::*;
use crate::convert::plain_machine;
use cellwright_cell::desired::RunSpec;
use cellwright_cell::id::TaskId;
use cellwright_cell::name::Name;
use cellwright_cell::task::ExitClass;
use cellwright_messages::Epoch;
use serde_json::json;

const DELAYS: TaskDelays = TaskDelays { start: 100, stop: 50 };
const GIB: u64 = 1 << 30;

fn work(words: &[&str]) -> RunSpec {
    let work = json!({
        "command": words, "env": {}, "files": {},
        "limits": { "cpu": 1000, "ram": GIB }, "reservation": { "cpu": 1000, "ram": GIB },
        "ports": [], "devices": [], "packages": [], "notice": 1000, "priority": 100,
        "appclass": "batch", "waits_for": [], "delay": 0, "isolation": {}, "secrets": {},
    });
    serde_json::from_value(work).unwrap()
}

fn order(task: u32, work: RunSpec) -> DesiredTask {
    let (name, action) = (format!("ubar/jfoo/{task}"), Order::Run(Box::new(work)));
    let task = TaskId(task);
    DesiredTask { task, attempt: 1, log_saver_run: 0, name, action, lease: None, resizes: 0 }
}

fn answer(index: u64, tasks: Vec<DesiredTask>) -> AgentOrders {
    AgentOrders {
        epoch: Epoch { log_epoch: 1, index },
        tasks: Some(tasks),
        orders_digest: index,
        poll: Span::seconds(10),
        last_contact_age: None,
        redirect: None,
        is_revoked: false,
        incarnation: 0,
        usage_recorded: None,
        time: Time::ZERO,
    }
}

fn agent(profile: Profile) -> VirtualAgent {
    let capacity = Resources::new(2000, 4 * GIB, 0, 0);
    let spec = plain_machine(Name::new("m1").unwrap(), capacity).spec;
    let settings = VirtualAgentConfig {
        eviction_request_delay: Span::seconds(5),
        ..VirtualAgentConfig::new(DELAYS, profile)
    };
    let mut agent = VirtualAgent::new(spec, settings);
    agent.invariants = Some(AgentInvariants::default());
    agent
}

/// Runs the agent until then, as its caller does.
fn run_until(agent: &mut VirtualAgent, until: u64) {
    while let Some(at) = agent.next_change().filter(|at| *at <= until) {
        agent.advance(at);
    }
    assert_eq!(agent.invariants.as_mut().and_then(AgentInvariants::take_violation), None);
}

fn state(agent: &mut VirtualAgent, now: u64) -> ObservedState {
    agent.report(false, Time::ZERO, now).tasks[0].state
}

/// How a task with this command ends, and when; `None` while it still runs.
fn check(words: &[&str], max_run: Option<u64>, want: Option<(u64, ObservedState)>) {
    let mut agent = agent(Profile::new(1));
    let work = RunSpec { max_run: max_run.map(Span), ..work(words) };
    agent.apply_orders(answer(1, vec![order(7, work)]), 0, 0);
    run_until(&mut agent, DELAYS.start);
    assert_eq!(agent.running(), 1, "{words:?}");
    let Some((after, ended)) = want else {
        run_until(&mut agent, 600_000);
        assert_eq!(agent.running(), 1, "{words:?}");
        return;
    };
    let at = DELAYS.start + after;
    run_until(&mut agent, at - 1);
    assert_eq!(state(&mut agent, at - 1), ObservedState::Running { healthy: true }, "{words:?}");
    run_until(&mut agent, at);
    assert_eq!(state(&mut agent, at), ended, "{words:?}");
}

#[test]
fn a_task_ends_as_told_or_when_its_time_is_over() {
    let timed_out = ObservedState::Failed(ExitClass::TimedOut);
    check(&["serve"], None, None);
    check(&["serve"], Some(3000), Some((3000, timed_out)));
    check(&["sim", "finish", "500"], None, Some((500, ObservedState::Finished)));
    check(&["sim", "finish", "500"], Some(499), Some((499, timed_out)));
    let failed = ObservedState::Failed(ExitClass::Code(1));
    check(&["sim", "fail", "500"], Some(9000), Some((500, failed)));
}

#[test]
fn usage_is_reported_as_the_seed_draws_it_and_again_the_same() {
    let usage = |seed| {
        let mut agent = agent(Profile::new(seed));
        agent.apply_orders(answer(1, vec![order(1, work(&["serve"]))]), 0, 0);
        run_until(&mut agent, 40_000);
        assert_eq!(agent.report(true, Time::ZERO, 40_000).usage, [], "one reading gives no rate");
        run_until(&mut agent, 50_000);
        let report = agent.report(true, Time::ZERO, 50_000);
        let [usage] = report.usage[..] else { panic!("{:?}", report.usage) };
        usage.used
    };
    let used = usage(1);
    assert!((100..1000).contains(&used.cpu) && (GIB / 10..GIB).contains(&used.ram), "{used:?}");
    assert_eq!(usage(1), used);
    assert_ne!(usage(2), used);
}

#[test]
fn a_task_tells_the_cores_that_it_uses_where_it_is_asked_for_a_number() {
    let order_of = json!({
        "source": { "file": "numbers" },
        "series": [{ "name": "queue", "kind": "value", "labels": {} }],
    });
    let metrics = serde_json::from_value(order_of).unwrap();
    let mut agent = agent(Profile::new(1));
    let asked = RunSpec { metrics, ..work(&["serve"]) };
    agent.apply_orders(answer(1, vec![order(1, asked), order(2, work(&["serve"]))]), 0, 0);
    run_until(&mut agent, 40_000);
    assert_eq!(agent.report(true, Time::ZERO, 40_000).numbers, [], "nothing is known yet");
    run_until(&mut agent, 50_000);
    let report = agent.report(true, Time::ZERO, 50_000);
    let [told] = &report.numbers[..] else { panic!("{:?}", report.numbers) };
    let numbers: Vec<u64> = told.told.iter().map(|(_, number)| *number).collect();
    assert_eq!((told.task, numbers), (TaskId(1), vec![report.usage[0].used.cpu]));
}

#[test]
fn who_is_over_its_limit_of_memory_is_killed_by_the_control_loops() {
    let mut agent = agent(Profile::new(1));
    agent.apply_orders(answer(1, vec![order(1, work(&["sim", "use", "10", "120"]))]), 0, 0);
    run_until(&mut agent, 5000);
    assert_eq!(state(&mut agent, 5000), ObservedState::Failed(ExitClass::OutOfMemory));
}

#[test]
fn a_machine_that_stays_short_asks_for_relief() {
    let mut agent = agent(Profile::new(1));
    let sensitive = |task, percent: &str| {
        let mut work = work(&["sim", "use", percent, "10"]);
        work.appclass = cellwright_cell::priority::AppClass::LatencySensitive;
        order(task, work)
    };
    let batch = order(3, work(&["sim", "use", "90", "10"]));
    agent.apply_orders(answer(1, vec![sensitive(1, "400"), sensitive(2, "90"), batch]), 0, 0);
    run_until(&mut agent, 6000);
    assert_eq!(agent.report(true, Time::ZERO, 6000).resource_pressure, []);
    run_until(&mut agent, 10_000);
    let resource_pressure = agent.report(true, Time::ZERO, 10_000).resource_pressure;
    let requests: Vec<(Dimension, u32)> =
        resource_pressure.iter().map(|s| (s.dimension, s.requested)).collect();
    assert_eq!(requests, [(Dimension::Cpu, 1)]);
}

#[test]
fn tasks_fall_ill_and_fail_as_often_as_their_machine_is_told() {
    let profile =
        Profile { fails_after: Some(10_000), unhealthy_permille: 1000, ..Profile::new(1) };
    let mut sick = agent(Profile { fails_after: None, ..profile });
    let mut checked = work(&["serve"]);
    let check = json!({ "probe": { "tcp": { "port": 0 } }, "start_period": 0 });
    checked.health = Some(serde_json::from_value(check).unwrap());
    sick.apply_orders(answer(1, vec![order(1, checked)]), 0, 0);
    run_until(&mut sick, 200_000);
    assert_eq!(state(&mut sick, 200_000), ObservedState::Running { healthy: false });
    let mut frail = agent(profile);
    frail.apply_orders(answer(1, vec![order(1, work(&["serve"]))]), 0, 0);
    run_until(&mut frail, 30_000);
    assert_eq!(state(&mut frail, 30_000), ObservedState::Failed(ExitClass::Code(1)));
}

#[test]
fn a_reboot_ends_everything_and_the_next_life_says_so() {
    let mut agent = agent(Profile::new(1));
    agent.apply_orders(answer(1, vec![order(1, work(&["serve"]))]), 0, 0);
    run_until(&mut agent, 1000);
    agent.reboot(1000);
    assert_eq!((agent.running(), agent.incarnation()), (0, 2));
    assert_eq!(state(&mut agent, 1001), ObservedState::Stopped);
    agent.lose_data(2000, Time::ZERO);
    assert_eq!(agent.report(false, Time::ZERO, 2000).tasks, []);
}

#[test]
fn memory_is_cut_as_its_use_falls_and_reported_as_it_is() {
    let mut agent = agent(Profile::new(1));
    let sized = |resizes, ram| {
        let mut work = work(&["sim", "use", "50", "50"]);
        work.limits.ram = ram;
        DesiredTask { resizes, ..order(1, work) }
    };
    agent.apply_orders(answer(1, vec![sized(0, GIB)]), 0, 0);
    run_until(&mut agent, 10_000);
    let reported = |agent: &mut VirtualAgent, now| {
        let report = agent.report(false, Time(now), now);
        report.tasks[0].limits.map(|limits| (limits.resizes, limits.limits.ram))
    };
    assert_eq!(reported(&mut agent, 10_000), None, "nothing was changed");
    agent.apply_orders(answer(2, vec![sized(1, GIB / 4)]), 10_000, 10_000);
    run_until(&mut agent, 11_500);
    let (resizes, held) = reported(&mut agent, 11_500).unwrap();
    assert!(resizes == 1 && held > GIB / 2 && held < GIB, "{held}");
    run_until(&mut agent, 20_000);
    assert_eq!(reported(&mut agent, 20_000), Some((1, GIB / 4)));
    assert_eq!(agent.invariants.as_mut().unwrap().take_violation(), None);
    agent.bugs.confirms_early = true;
    agent.apply_orders(answer(3, vec![sized(2, GIB / 8)]), 20_000, 20_000);
    run_until(&mut agent, 22_000);
    reported(&mut agent, 22_000);
    let found = agent.invariants.as_mut().unwrap().take_violation().unwrap();
    assert!(found.contains("may use more than a report says"), "{found}");
}
