//! An agent from its orders to its reports, with a machine that does what it is told.

use super::*;
use crate::reconcile::tests::{order, run, work};
use cellwright_cell::desired::RunSpec;
use cellwright_cell::health::{HealthCheck, Probe};
use cellwright_cell::name::Name;
use cellwright_cell::observed::ObservedState;
use cellwright_cell::task::StopCause;
use cellwright_cell::time::Span;
use cellwright_messages::Epoch;

fn answer(index: u64, tasks: Vec<DesiredTask>) -> AgentOrders {
    AgentOrders {
        epoch: Epoch { log_epoch: 1, index },
        tasks: Some(tasks),
        orders_digest: index,
        poll: Span::seconds(5),
        last_contact_age: None,
        redirect: None,
        is_revoked: false,
        incarnation: 0,
        usage_recorded: None,
        time: Time::ZERO,
    }
}

fn agent() -> AgentCore {
    AgentCore::new(IncarnationNumber::next_after(None), Orders::default())
}

fn states(agent: &mut AgentCore) -> Vec<ObservedState> {
    let spec = MachineSpec {
        name: Name::new("m").unwrap(),
        capacity: Default::default(),
        attributes: Default::default(),
        labels: Default::default(),
        rack: None,
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: Default::default(),
        address: None,
    };
    let (usage, resource_pressure) = (Vec::new(), Vec::new());
    let (wall, book) = (Time::ZERO, UsageReport::default());
    let numbers = Vec::new();
    let facts = Facts { spec, packages: None, usage, resource_pressure, wall, book, numbers };
    let report = agent.report(false, facts, 7);
    report.tasks.into_iter().map(|task| task.state).collect()
}

const RUNS: Event = Event::Status { lease_until: None, is_stopping: false };

#[test]
fn an_end_is_reported_until_orders_drop_it_and_nothing_begins_twice() {
    let mut agent = agent();
    let first = Attempt::new(TaskId(1), 1);
    assert_eq!(agent.next_actions(0), [], "without orders");
    assert_eq!(
        agent.handle_orders(answer(1, vec![order(1, 1, run())]), 0).orders,
        OrdersUpdate::Changed
    );
    let [Action::Start { .. }] = agent.next_actions(0)[..] else { panic!("not started") };
    assert_eq!(agent.next_actions(0), [], "it is given once");
    assert_eq!(states(&mut agent), [ObservedState::Preparing]);
    let began = Change { needs_report: true, needs_reconcile: false, started: true };
    assert_eq!(agent.observe(first, RUNS), began);
    assert_eq!(states(&mut agent), [ObservedState::Running { healthy: true }]);
    assert_eq!(agent.observe(first, RUNS), Change::default());
    let ended = agent.observe(first, Event::Ended(End::Finished));
    assert!(ended.needs_report && ended.needs_reconcile);
    for index in [1, 2, 0] {
        agent.handle_orders(answer(index, vec![order(1, 1, run())]), 0);
        assert_eq!(agent.next_actions(0), [], "orders of {index}");
        assert_eq!(states(&mut agent), [ObservedState::Finished]);
    }
    assert_eq!(agent.handle_orders(answer(1, Vec::new()), 0).orders, OrdersUpdate::Stale);
    assert_eq!(states(&mut agent), [ObservedState::Finished]);
    agent.handle_orders(answer(3, Vec::new()), 0);
    assert_eq!(agent.next_actions(0), [Action::Forget { attempt: first }]);
    assert_eq!(states(&mut agent), []);
    assert_eq!(agent.observe(first, RUNS), Change::default(), "unknown by now");
}

#[test]
fn an_answer_to_another_lifes_number_is_not_obeyed() {
    let mut agent = agent();
    let mut orders = answer(1, vec![order(1, 1, run())]);
    orders.incarnation = 5;
    let outcome = agent.handle_orders(orders, 0);
    assert_eq!(
        (outcome.incarnation_change, outcome.orders),
        (IncarnationUpdate::Raised, OrdersUpdate::Stale)
    );
    assert_eq!((agent.incarnation.incarnation, agent.next_actions(0)), (6, Vec::new()));
}

#[test]
fn what_changes_while_a_task_runs_reaches_it() {
    let mut agent = agent();
    let first = Attempt::new(TaskId(1), 1);
    let mut checked = work();
    checked.health = Some(HealthCheck {
        probe: Probe::Tcp { port: 0 },
        interval: Span(1),
        timeout: Span(1),
        start_period: Span(1),
        failures: 1,
    });
    let checked = Order::Run(Box::new(checked));
    agent.handle_orders(answer(1, vec![order(1, 1, checked)]), 0);
    agent.next_actions(0);
    agent.observe(first, RUNS);
    assert_eq!(states(&mut agent), [ObservedState::Preparing], "it has not said that it is well");
    let ill = agent.observe(first, Event::Health(Health::Unhealthy));
    assert_eq!((ill.needs_report, ill.needs_reconcile), (true, false));
    assert_eq!(states(&mut agent), [ObservedState::Running { healthy: false }]);
    let outcome = agent.handle_orders(answer(2, vec![order(1, 1, run())]), 0);
    assert_eq!(outcome.changed_health_checks, [first]);
    assert_eq!(states(&mut agent), [ObservedState::Running { healthy: true }]);
}

#[test]
fn an_agent_that_comes_back_goes_on_with_what_it_finds() {
    let mut agent = agent();
    let cause = StopCause::Killed;
    let stopped = agent.adopt(order(1, 1, Order::Stop { notice: Span::ZERO, cause }));
    assert_eq!(agent.attempt(stopped).map(|a| a.status.requested), Some(Requested::Kill));
    let hold =
        || Order::Hold { limits: Default::default(), devices: Vec::new(), waits_for: Vec::new() };
    let alloc = agent.adopt(order(2, 1, hold()));
    assert!(agent.observe(alloc, Event::Held).needs_reconcile, "who waits for it can start");
    assert_eq!(agent.alloc(TaskId(2)).map(|(attempt, _)| attempt), Some(alloc));
    assert_eq!(agent.alloc(TaskId(1)), None);
}

#[test]
fn limits_change_while_a_task_runs_once_their_room_is_free() {
    let mut agent = agent();
    let first = Attempt::new(TaskId(1), 1);
    let sized = |resizes, cpu, waits_for: Vec<Victim>| {
        let limits = Resources { cpu, ..Resources::ZERO };
        let work = Order::Run(Box::new(RunSpec { limits, waits_for, ..work() }));
        DesiredTask { resizes, ..order(1, 1, work) }
    };
    let victim = Victim { task: TaskId(2), attempt: 1 };
    let cause = StopCause::Preempted;
    let leaving = || order(2, 1, Order::Stop { notice: Span::ZERO, cause });
    agent.adopt(order(2, 1, run()));
    agent.handle_orders(answer(1, vec![sized(0, 10, vec![]), leaving()]), 0);
    agent.next_actions(0);
    agent.handle_orders(answer(2, vec![sized(1, 20, vec![victim]), leaving()]), 0);
    assert_eq!(agent.pending_resizes(), [], "it is being prepared, with the limits it had");
    agent.observe(first, RUNS);
    let [pending] = agent.pending_resizes()[..] else { panic!("nothing to change") };
    assert_eq!((pending.wanted.limits.cpu, pending.known.limits.cpu), (20, 10));
    assert!(!pending.may_grow);
    agent.observe(Attempt::new(TaskId(2), 1), Event::Ended(End::Gone));
    let [pending] = agent.pending_resizes()[..] else { panic!("nothing to change") };
    assert!(pending.may_grow);
    let stored = |agent: &AgentCore| agent.attempt(first).unwrap().order_in_force();
    assert_eq!(stored(&agent).resizes, 0, "the next agent finds it as it is");
    let change = agent.observe(first, Event::Resized(pending.wanted));
    assert_eq!((change.needs_report, change.needs_reconcile), (true, false));
    assert_eq!((agent.pending_resizes(), stored(&agent).resizes), (vec![], 1));
    let statuses = agent.statuses();
    let told = reconcile::report(&statuses);
    assert_eq!((told[0].limits, told[1].limits), (Some(pending.wanted), None));
    // The next agent goes on from there.
    let mut next = AgentCore::new(IncarnationNumber::next_after(None), agent.orders().clone());
    next.adopt(stored(&agent));
    next.refresh();
    next.observe(first, RUNS);
    assert_eq!(next.pending_resizes(), []);
}
