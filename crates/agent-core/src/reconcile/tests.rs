//! The core against a simulated machine: any orders and any events, in any order.

use super::*;
use cellwright_cell::desired::RunSpec;
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::task::StopCause;
use proptest::prelude::*;
use std::collections::BTreeSet;

pub(crate) fn order(task: u32, attempt: u32, action: Order) -> DesiredTask {
    let name = format!("u/j/{task}");
    let task = TaskId(task);
    DesiredTask { task, attempt, log_saver_run: 0, name, action, lease: None, resizes: 0 }
}

pub(crate) fn work() -> RunSpec {
    RunSpec {
        command: vec!["true".into()],
        env: BTreeMap::new(),
        limits: Default::default(),
        reservation: Default::default(),
        ports: Vec::new(),
        devices: Vec::new(),
        packages: Vec::new(),
        notice: Span::seconds(1),
        priority: Priority(100),
        appclass: AppClass::Batch,
        alloc: None,
        waits_for: Vec::new(),
        delay: Span::ZERO,
        health: None,
        max_run: None,
        files: BTreeMap::new(),
        user: None,
        logs: None,
        isolation: Default::default(),
        secrets: BTreeMap::new(),
        metrics: None,
    }
}

pub(crate) fn run() -> Order {
    Order::Run(Box::new(work()))
}

fn stop() -> Order {
    Order::Stop { notice: Span::seconds(1), cause: StopCause::Killed }
}

fn hold() -> Order {
    Order::Hold { limits: Default::default(), devices: Vec::new(), waits_for: Vec::new() }
}

fn attempt(task: u32, number: u32) -> Attempt {
    Attempt::new(TaskId(task), number)
}

const LIVE: AttemptStatus = AttemptStatus {
    phase: Phase::Running(Health::Healthy),
    requested: Requested::Nothing,
    notice: None,
    is_alloc: false,
    alloc: None,
    lease_until: None,
    limits: LimitsInForce { resizes: 0, limits: Resources::ZERO },
};

fn check(orders: Option<&[DesiredTask]>, seen: &[(Attempt, AttemptStatus)], want: &[&str]) {
    let seen: Attempts = seen.iter().copied().collect();
    let actions = reconcile(&ReconcileInput {
        orders,
        statuses: &seen,
        leader_heard_at: Some(1000),
        now: 2000,
    });
    let actions: Vec<String> = actions
        .into_iter()
        .map(|action| match action {
            Action::Start { order, .. } => format!("start {}", Attempt::of(&order)),
            Action::Stop { attempt, notice } => format!("stop {attempt} {}", notice.0),
            Action::Kill { attempt } => format!("kill {attempt}"),
            Action::Renew { attempt, until } => format!("renew {attempt} {until}"),
            Action::Forget { attempt } => format!("forget {attempt}"),
        })
        .collect();
    assert_eq!(actions, want);
}

#[test]
fn orders_are_obeyed_once() {
    let ended = AttemptStatus { phase: Phase::Ended(End::Finished), ..LIVE };
    let with_request = |requested| AttemptStatus { requested, ..LIVE };
    let first = attempt(1, 1);
    check(None, &[(first, LIVE)], &[]);
    check(Some(&[]), &[(first, LIVE)], &["kill 1-1"]);
    check(Some(&[]), &[(first, with_request(Requested::Stop))], &["kill 1-1"]);
    check(Some(&[]), &[(first, with_request(Requested::Kill))], &[]);
    check(Some(&[]), &[(first, ended)], &["forget 1-1"]);
    let runs = [order(1, 1, run())];
    check(Some(&runs), &[], &["start 1-1"]);
    check(Some(&runs), &[(first, AttemptStatus { phase: Phase::Preparing, ..LIVE })], &[]);
    check(Some(&runs), &[(first, LIVE)], &[]);
    check(Some(&runs), &[(first, ended)], &[]);
    let stops = [order(1, 1, stop())];
    check(Some(&stops), &[], &[]);
    check(Some(&stops), &[(first, LIVE)], &["stop 1-1 1000"]);
    let told = |notice| AttemptStatus { notice, ..with_request(Requested::Stop) };
    check(Some(&stops), &[(first, told(Some(Span(1000))))], &[]);
    check(Some(&stops), &[(first, told(Some(Span(999))))], &[]);
    // A shorter notice is told again, and so is one after a restart of the agent.
    check(Some(&stops), &[(first, told(Some(Span(1001))))], &["stop 1-1 1000"]);
    check(Some(&stops), &[(first, told(None))], &["stop 1-1 1000"]);
    check(Some(&stops), &[(first, with_request(Requested::Kill))], &[]);
    check(Some(&stops), &[(first, ended)], &[]);
}

#[test]
fn an_attempt_waits_for_the_last_one_for_victims_and_for_its_alloc() {
    let ended = AttemptStatus { phase: Phase::Ended(End::Gone), ..LIVE };
    let second = [order(1, 2, run())];
    check(Some(&second), &[(attempt(1, 1), LIVE)], &["kill 1-1"]);
    check(Some(&second), &[(attempt(1, 1), ended)], &["forget 1-1", "start 1-2"]);
    let victim = Victim { task: TaskId(2), attempt: 1 };
    let waits = RunSpec { waits_for: vec![victim], ..work() };
    let both = [order(1, 1, Order::Run(Box::new(waits))), order(2, 1, stop())];
    check(Some(&both), &[(attempt(2, 1), LIVE)], &["stop 2-1 1000"]);
    check(Some(&both), &[(attempt(2, 1), ended)], &["start 1-1"]);
    let inside = RunSpec { alloc: Some(TaskId(2)), ..work() };
    let both = [order(1, 1, Order::Run(Box::new(inside))), order(2, 1, hold())];
    let held = AttemptStatus { is_alloc: true, ..LIVE };
    check(Some(&both), &[], &["start 2-1"]);
    check(Some(&both), &[(attempt(2, 1), held)], &["start 1-1"]);
    let inside = AttemptStatus { alloc: Some(TaskId(2)), ..LIVE };
    let here = [(attempt(1, 1), inside), (attempt(2, 1), held)];
    check(Some(&[]), &here, &["kill 1-1"]);
    check(Some(&[]), &here[1..], &["kill 2-1"]);
}

#[test]
fn what_is_left_is_kept_while_it_is_listed_and_saved_by_one_at_a_time() {
    let ended = AttemptStatus { phase: Phase::Ended(End::Gone), ..LIVE };
    let failed = AttemptStatus { phase: Phase::Ended(End::Failed(ExitClass::Code(1))), ..LIVE };
    let held = AttemptStatus { is_alloc: true, ..LIVE };
    let left = AttemptStatus { is_alloc: true, ..ended };
    let run_of = |log_saver_run| Attempt { log_saver_run, ..attempt(1, 1) };
    let saver = |log_saver_run| DesiredTask { log_saver_run, ..order(1, 1, run()) };
    let keep = order(1, 1, Order::Keep);
    let first = [keep.clone(), saver(1)];
    // Not before the alloc is gone, and that not before the tasks inside.
    let inside = AttemptStatus { alloc: Some(TaskId(1)), ..LIVE };
    let here = [(attempt(1, 1), held), (attempt(2, 1), inside)];
    check(Some(&first), &here, &["kill 2-1"]);
    check(Some(&first), &here[..1], &["kill 1-1"]);
    check(Some(&first), &[(attempt(1, 1), left)], &["start 1-1-1"]);
    check(Some(&first), &[(attempt(1, 1), left), (run_of(1), LIVE)], &[]);
    check(Some(&first), &[(attempt(1, 1), left), (run_of(1), failed)], &[]);
    // The next run waits for the last one.
    let second = [keep.clone(), saver(2)];
    let next = [(attempt(1, 1), left), (run_of(1), LIVE)];
    check(Some(&second), &next, &["kill 1-1-1"]);
    let next = [(attempt(1, 1), left), (run_of(1), failed)];
    check(Some(&second), &next, &["forget 1-1-1", "start 1-1-2"]);
    // The alloc may be here again meanwhile: neither blocks the other.
    let again = [keep, saver(1), order(1, 2, hold())];
    check(Some(&again), &[(attempt(1, 1), left)], &["start 1-1-1", "start 1-2"]);
    check(Some(&[]), &[(run_of(1), LIVE), (attempt(1, 2), held)], &["kill 1-1-1", "kill 1-2"]);
    // Not retained any more: the folder is removed when no log saver reads it.
    check(Some(&[]), &[(attempt(1, 1), left), (run_of(1), LIVE)], &["kill 1-1-1"]);
    check(Some(&[]), &[(attempt(1, 1), left)], &["forget 1-1"]);
}

#[test]
fn a_lease_is_renewed_while_somebody_heard_and_nothing_starts_without_one() {
    let lease = |millis| DesiredTask { lease: Some(Span(millis)), ..order(1, 1, run()) };
    let seen = |until| AttemptStatus { lease_until: Some(until), ..LIVE };
    check(Some(&[lease(500)]), &[], &[]);
    check(Some(&[lease(1500)]), &[], &["start 1-1"]);
    check(Some(&[lease(1500)]), &[(attempt(1, 1), seen(2400))], &["renew 1-1 2500"]);
    check(Some(&[lease(1500)]), &[(attempt(1, 1), seen(2500))], &[]);
}

#[test]
fn only_ends_leases_and_allocs_decide_anything() {
    let preparing = AttemptStatus { phase: Phase::Preparing, ..LIVE };
    let ill = AttemptStatus { phase: Phase::Running(Health::Unhealthy), ..LIVE };
    let ended = AttemptStatus { phase: Phase::Ended(End::Gone), ..LIVE };
    assert!(!preparing.affects_reconcile(&LIVE) && !LIVE.affects_reconcile(&ill));
    assert!(LIVE.affects_reconcile(&ended));
    assert!(LIVE.affects_reconcile(&AttemptStatus { lease_until: Some(1), ..LIVE }));
    assert!(LIVE.affects_reconcile(&AttemptStatus { requested: Requested::Stop, ..LIVE }));
    let alloc = |seen| AttemptStatus { is_alloc: true, ..seen };
    assert!(alloc(preparing).affects_reconcile(&alloc(LIVE)));
}

#[test]
fn what_is_seen_is_told() {
    use ObservedState as S;
    let failed = ExitClass::Code(3);
    let phases = [
        (Phase::Preparing, S::Preparing),
        (Phase::Running(Health::Starting), S::Preparing),
        (Phase::Running(Health::Healthy), S::Running { healthy: true }),
        (Phase::Running(Health::Unhealthy), S::Running { healthy: false }),
        (Phase::Ended(End::Finished), S::Finished),
        (Phase::Ended(End::Failed(failed)), S::Failed(failed)),
        (Phase::Ended(End::Gone), S::Stopped),
        (Phase::Ended(End::Stopped(NoticeOutcome::Overrun)), S::Left(NoticeOutcome::Overrun)),
    ];
    for (phase, state) in phases {
        let seen = Attempts::from([(attempt(1, 2), AttemptStatus { phase, ..LIVE })]);
        assert_eq!(
            report(&seen),
            [ObservedTask { task: TaskId(1), attempt: 2, log_saver_run: 0, state, limits: None }]
        );
    }
}

/// One event of the simulated machine.
#[derive(Clone, Debug)]
enum Step {
    /// For each task: not listed, or run or stop of the attempt that is so many after the newest.
    Orders(Vec<Option<(u32, bool)>>),
    /// The shim of a prepared attempt has started its program.
    Ready(u32),
    /// A program ends by itself with this code.
    Exits(u32, i32),
    /// What was told to stop or was killed is gone.
    Dies(u32),
    /// The agent restarts and forgets its requests.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let task = 0..4u32;
    let listed = prop::option::weighted(0.7, (0..2u32, any::<bool>()));
    let step = prop_oneof![
        3 => prop::collection::vec(listed, 4).prop_map(Step::Orders),
        3 => task.clone().prop_map(Step::Ready),
        2 => (task.clone(), 0..4i32).prop_map(|(task, code)| Step::Exits(task, code)),
        2 => task.prop_map(Step::Dies),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// A simulated machine that carries out the core's actions and checks the invariants.
#[derive(Default)]
struct Model {
    orders: Option<Vec<DesiredTask>>,
    newest: BTreeMap<u32, u32>,
    seen: Attempts,
    /// Attempts that ever had a process.
    started: BTreeSet<Attempt>,
    /// Ends that must be kept until the orders no longer list them.
    ends: BTreeMap<Attempt, End>,
}

impl Model {
    fn listed(&self, attempt: Attempt) -> Option<&DesiredTask> {
        self.orders.iter().flatten().find(|order| Attempt::of(order) == attempt)
    }

    fn actions(&self) -> Vec<Action> {
        let orders = self.orders.as_deref();
        reconcile(&ReconcileInput { orders, statuses: &self.seen, leader_heard_at: None, now: 0 })
    }

    fn settle(&mut self) {
        // Bounded: each round starts, stops or forgets something for good.
        for _ in 0..8 {
            let actions = self.actions();
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.act(action));
        }
        panic!("the core never comes to rest");
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start { order, .. } => {
                let attempt = Attempt::of(&order);
                assert!(self.started.insert(attempt), "{attempt} started twice");
                let others = self.seen.iter().filter(|(a, _)| a.task == attempt.task);
                assert_eq!(others.filter(|(_, seen)| seen.is_active()).count(), 0, "two at once");
                let is_alloc = matches!(order.action, Order::Hold { .. });
                self.seen
                    .insert(attempt, AttemptStatus { phase: Phase::Preparing, is_alloc, ..LIVE });
            }
            Action::Stop { attempt, notice } => {
                let order = self.listed(attempt).map(|order| &order.action);
                assert!(matches!(order, Some(Order::Stop { .. })), "{attempt} was desired");
                self.request(attempt, Requested::Stop);
                self.seen.get_mut(&attempt).expect("it is here").notice = Some(notice);
            }
            Action::Kill { attempt } => {
                assert!(self.listed(attempt).is_none(), "{attempt} was desired");
                self.request(attempt, Requested::Kill);
            }
            Action::Renew { .. } => panic!("nobody has a lease"),
            Action::Forget { attempt } => {
                assert!(self.listed(attempt).is_none(), "{attempt} is forgotten while listed");
                assert!(!self.seen[&attempt].is_active());
                self.seen.remove(&attempt);
                self.ends.remove(&attempt);
            }
        }
    }

    fn request(&mut self, attempt: Attempt, requested: Requested) {
        let seen = self.seen.get_mut(&attempt).expect("only attempts that are here get requests");
        assert!(seen.is_active() && seen.requested < requested, "{attempt} is told again");
        seen.requested = requested;
    }

    fn newest_live(&mut self, task: u32) -> Option<(&Attempt, &mut AttemptStatus)> {
        self.seen.iter_mut().find(|(a, seen)| a.task == TaskId(task) && seen.is_active())
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Orders(list) => self.order(list),
            Step::Ready(task) => {
                if let Some((_, seen)) = self.newest_live(*task) {
                    seen.phase = Phase::Running(Health::Healthy);
                }
            }
            Step::Exits(task, code) => {
                let end = match code {
                    0 => End::Finished,
                    code => End::Failed(ExitClass::Code(*code)),
                };
                self.end(*task, end, |seen| seen.phase == Phase::Running(Health::Healthy));
            }
            Step::Dies(task) => {
                self.end(*task, End::Gone, |seen| seen.requested > Requested::Nothing)
            }
            Step::Restart => {
                self.seen.values_mut().for_each(|seen| seen.requested = Requested::Nothing)
            }
        }
    }

    fn order(&mut self, list: &[Option<(u32, bool)>]) {
        let mut orders = Vec::new();
        for (task, listed) in (0..).zip(list) {
            let Some((later, runs)) = listed else {
                // A task that is listed again has a later attempt: the masters count placements.
                *self.newest.entry(task).or_default() += 1;
                continue;
            };
            let newest = self.newest.entry(task).or_default();
            *newest += later;
            orders.push(order(task, *newest, if *runs { run() } else { stop() }));
        }
        self.orders = Some(orders);
    }

    fn end(&mut self, task: u32, end: End, can: fn(&AttemptStatus) -> bool) {
        let Some((attempt, seen)) = self.newest_live(task) else { return };
        if can(seen) {
            seen.phase = Phase::Ended(end);
            let attempt = *attempt;
            self.ends.insert(attempt, end);
        }
    }

    fn check(&self) {
        let reported: BTreeMap<Attempt, ObservedState> = report(&self.seen)
            .into_iter()
            .map(|task| (Attempt::new(task.task, task.attempt), task.state))
            .collect();
        for (attempt, end) in &self.ends {
            let want = match end {
                End::Finished => ObservedState::Finished,
                End::Failed(exit) => ObservedState::Failed(*exit),
                End::Gone => ObservedState::Stopped,
                End::Stopped(notice) => ObservedState::Left(*notice),
            };
            assert_eq!(reported.get(attempt), Some(&want), "the end of {attempt} was lost");
        }
    }
}

proptest! {
    /// Never two processes for one attempt or one task; nothing killed that is desired; no end lost
    /// while it is listed; no action repeated once it is done; and no action due after an event
    /// that needs no reconcile.
    #[test]
    fn whatever_happens(steps in steps()) {
        let mut model = Model::default();
        for step in &steps {
            let before = model.seen.clone();
            model.step(step);
            let decides = |(attempt, seen): (&Attempt, &AttemptStatus)| {
                seen.affects_reconcile(&model.seen[attempt])
            };
            if !matches!(step, Step::Orders(_)) && !before.iter().any(decides) {
                prop_assert_eq!(model.actions(), []);
            }
            model.settle();
            model.check();
        }
    }
}
