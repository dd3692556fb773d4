//! One value of every variant of every durable type, for the pinned bytes. Values are small and all
//! different, so that exchanging two fields is noticed.

use crate::build::{self, job_key, name, token};
use crate::components;
use crate::rejections;
use crate::transcript_language::TranscriptRunner;
use crate::wire::{Pins, every_variant, one};
use cellwright_cell::blob::BlobLimits;
use cellwright_cell::bounds::{BoundKind, Bounds};
use cellwright_cell::command::{
    Actor, ApplyOutcome, Command, ControllerName, Done, Entry, EvictCause, Observed, Request,
    RequestId, ReservationChange, TaskReport, TasksToStart,
};
use cellwright_cell::constraint::{AttributeValue, Constraint, Operator, Strength};
use cellwright_cell::credential::{
    InvalidTokenReason, KeyFingerprint, PartKind, ReplicaJoinRequest, SecretHash, TokenKind,
};
use cellwright_cell::device::{Device, DeviceGrant};
use cellwright_cell::disruption::DisruptionLimit;
use cellwright_cell::event::{
    BlobChange, Event, EventKind, JobChange, MachineChange, TaskChange, TokenChange, UserChange,
};
use cellwright_cell::health::{HealthCheck, Probe};
use cellwright_cell::id::{BlobId, JobId, MachineId, TaskId, TokenId, UserId};
use cellwright_cell::isolation::HostVolume;
use cellwright_cell::job::{ChangeClass, JobOutcome, JobState};
use cellwright_cell::job_size::JobSize;
use cellwright_cell::label::LabelTerm;
use cellwright_cell::machine::{MachineStatus, ResourcePressureReport};
use cellwright_cell::plan::{Assignment, Group, Plan, Victim};
use cellwright_cell::priority::{AppClass, Band, Priority};
use cellwright_cell::quota::{Capability, Quota};
use cellwright_cell::reason::{
    Allowed, Conflict, Given, InfeasibleReason, Object, Reason, Rejection, Sender, Storage,
    TaskAction,
};
use cellwright_cell::resource::{Dimension, Resources, Shortfall};
use cellwright_cell::retry::Retries;
use cellwright_cell::spec::{Domain, JobKind, JobSpec, LimitsOverride, LogLimits, PackageRef};
use cellwright_cell::state::State;
use cellwright_cell::task::{ExitClass, NoticeOutcome, StopCause, TaskOutcome, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_cell::update_policy::{RollbackLimit, UpdatePolicy};
use std::collections::BTreeSet;

pub fn pin_all(pins: &mut Pins) {
    pin_words(pins);
    pin_states(pins);
    pin_specs(pins);
    every_variant(pins, "Command", &with_one_of(commands(), components::commands()));
    components::pin(pins);
    pin_requests(pins);
    every_variant(pins, "InfeasibleReason", &infeasible_reasons());
    every_variant(pins, "Rejection", &refusals());
    rejections::pin(pins);
    every_variant(pins, "Reason", &reasons());
    pin_events(pins);
}

/// Commands and events of components are one variant here, and pinned by each component.
fn with_one_of<T>(mut list: Vec<T>, of_components: Vec<T>) -> Vec<T> {
    list.extend(of_components.into_iter().take(1));
    list
}

fn pin_words(pins: &mut Pins) {
    every_variant(pins, "Dimension", &Dimension::ALL);
    every_variant(pins, "Band", &Band::ALL);
    every_variant(pins, "Capability", &Capability::ALL);
    every_variant(pins, "AppClass", &[AppClass::LatencySensitive, AppClass::Batch]);
    every_variant(pins, "JobKind", &[JobKind::Tasks, JobKind::AllocSet, JobKind::Daemon]);
    every_variant(pins, "Domain", &[Domain::Machine, Domain::Rack, Domain::Power, Domain::Cell]);
    every_variant(pins, "MachineStatus", &[MachineStatus::Down, MachineStatus::Up]);
    let causes = [
        EvictCause::Drain,
        EvictCause::OverCommit,
        EvictCause::Rebalance,
        EvictCause::ResourcePressure(Dimension::Cpu),
    ];
    every_variant(pins, "EvictCause", &causes);
    let classes = [ChangeClass::NoRestart, ChangeClass::Restart, ChangeClass::MayMove];
    every_variant(pins, "ChangeClass", &classes);
    every_variant(pins, "Strength", &[Strength::Hard, Strength::Soft(40)]);
    every_variant(pins, "AttributeValue", &[AttributeValue::Integer(-3), build::text("flash")]);
    every_variant(
        pins,
        "LabelTerm",
        &[
            LabelTerm::Equals(token("tier"), "front".into()),
            LabelTerm::NotEquals(token("tier"), "back".into()),
            LabelTerm::Exists(token("tier")),
            LabelTerm::Absent(token("tier")),
            LabelTerm::In(token("tier"), vec!["front".into(), "back".into()]),
            LabelTerm::NotIn(token("tier"), vec!["back".into()]),
        ],
    );
}

fn pin_states(pins: &mut Pins) {
    let exits = [
        ExitClass::Code(3),
        ExitClass::Signal(9),
        ExitClass::OutOfMemory,
        ExitClass::OutOfMemoryBystander,
        ExitClass::OverDiskLimit,
        ExitClass::CouldNotStart,
        ExitClass::TimedOut,
        ExitClass::Unhealthy,
        ExitClass::GaveWayTo(TaskId(3)),
        ExitClass::Lost,
        ExitClass::Evicted,
    ];
    every_variant(pins, "ExitClass", &exits);
    let fates = [
        TaskOutcome::Finished,
        TaskOutcome::Failed(ExitClass::Code(1)),
        TaskOutcome::Killed,
        TaskOutcome::DependencyFailed,
    ];
    every_variant(pins, "Fate", &fates);
    let causes = [
        StopCause::Preempted,
        StopCause::Drained,
        StopCause::OverCommitted,
        StopCause::AllocMoved,
        StopCause::RestartInPlace,
        StopCause::UpdateMoves,
        StopCause::Unhealthy,
        StopCause::Killed,
        StopCause::Rebalanced,
        StopCause::ResourcePressure,
        StopCause::GangBroken,
        StopCause::Restart,
    ];
    every_variant(pins, "StopCause", &causes);
    let states = [
        TaskState::Deferred,
        TaskState::Pending,
        TaskState::Assigned,
        TaskState::Running,
        TaskState::Stopping(StopCause::Drained),
        TaskState::Dead(TaskOutcome::Finished),
    ];
    every_variant(pins, "TaskState", &states);
    let outcomes = [
        JobOutcome::Succeeded,
        JobOutcome::Failed,
        JobOutcome::Killed,
        JobOutcome::DependencyFailed,
    ];
    every_variant(pins, "JobOutcome", &outcomes);
    let states = [
        JobState::Deferred,
        JobState::Active,
        JobState::Stopping,
        JobState::Dead(JobOutcome::Failed),
    ];
    every_variant(pins, "JobState", &states);
}

fn pin_specs(pins: &mut Pins) {
    let probes = [
        Probe::Http { port: 1, path: "/ok".into() },
        Probe::Tcp { port: 2 },
        Probe::Command(vec!["true".into()]),
    ];
    every_variant(pins, "Probe", &probes);
    let operators = [
        Operator::Equal(build::text("debian")),
        Operator::NotEqual(AttributeValue::Integer(7)),
        Operator::Less(1),
        Operator::LessOrEqual(2),
        Operator::Greater(-3),
        Operator::GreaterOrEqual(4),
        Operator::In(vec![build::text("a"), build::text("b")]),
        Operator::NotIn(vec![build::text("c")]),
        Operator::Exists,
        Operator::Absent,
        Operator::Matches("deb.*".into()),
        Operator::VersionAtLeast("6.10".into()),
        Operator::VersionBelow("7".into()),
    ];
    every_variant(pins, "Operator", &operators);
    one(pins, "Resources", &Resources::new(1, 2, 3, 4));
    one(pins, "Quota", &quota());
    one(pins, "PackageRef", &package());
    one(pins, "MachineSpec", &machine_spec());
    one(pins, "JobSpec", &job_spec());
    let user = name("ada");
    let kinds = [
        TokenKind::UserToken { user },
        TokenKind::JoinAgent { machine: name("m1") },
        TokenKind::JoinReplica { name: name("r2") },
        TokenKind::JoinScheduler { name: name("s2") },
        TokenKind::Revocation { part: PartKind::Replica, name: name("r3") },
    ];
    every_variant(pins, "TokenKind", &kinds);
    every_variant(pins, "PartKind", &PartKind::ALL);
    let flaws = [
        InvalidTokenReason::WrongSecret,
        InvalidTokenReason::Expired,
        InvalidTokenReason::Used,
        InvalidTokenReason::NotForJoining,
        InvalidTokenReason::WrongNewcomer,
    ];
    every_variant(pins, "TokenFlaw", &flaws);
}

fn digest() -> cellwright_cell::name::Token {
    token(&"0a".repeat(32))
}

fn newcomer() -> ReplicaJoinRequest {
    ReplicaJoinRequest { key: KeyFingerprint([7; 16]), address: "10.0.0.2".into() }
}

fn token_commands() -> Vec<Command> {
    let (id, secret_hash) = (name("t1"), SecretHash([9; 32]));
    let kind = TokenKind::JoinAgent { machine: name("m1") };
    vec![
        Command::AddToken {
            id: id.clone(),
            kind,
            secret_hash,
            valid_for: Span(8),
            parent: Some(name("t0")),
        },
        Command::RevokeToken { id: id.clone() },
        Command::UseJoinToken { id, secret_hash, newcomer: Some(newcomer()) },
        Command::AddBlob { digest: digest(), bytes: 12, limits: BlobLimits::default() },
        Command::RemoveBlob { digest: digest() },
        Command::RegisterMachine(machine_spec()),
        Command::RevokePart { part: PartKind::Scheduler, name: name("s2") },
        Command::ConfirmReplica { name: name("r2"), key: KeyFingerprint([7; 16]) },
        Command::ReserveHold(assignment()),
        Command::ReleaseHold { task: TaskId(3), attempt: 2, machine: MachineId(1) },
    ]
}

fn quota() -> Quota {
    Quota { amount: Resources::new(5, 6, 7, 8), from: Time(9), until: Time::NEVER }
}

fn package() -> PackageRef {
    PackageRef { name: token("server"), digest: token("0a1b"), bytes: 300 }
}

fn machine_spec() -> cellwright_cell::machine::MachineSpec {
    let mut spec = build::machine("m1", Resources::new(4000, 1 << 34, 1 << 40, 1 << 20));
    spec.attributes.insert(token("kernel"), build::text("6.10"));
    spec.labels.insert(token("row"), "north".into());
    spec.rack = Some(token("r1"));
    spec.power = Some(token("p1"));
    spec.devices = vec![Device { kind: token("gpu"), model: token("a100") }];
    spec.named = vec![build::amount(None, "licence", 2)];
    spec.address = Some(core::net::Ipv4Addr::new(10, 0, 0, 7).into());
    spec
}

pub fn job_spec() -> JobSpec {
    use cellwright_cell::spec::{JobDependency, RetainDisk, SpreadLimit, TaskOverride};
    let mut spec = build::job("web", 210, 3, Resources::new(500, 1 << 30, 1 << 31, 64));
    spec.appclass = Some(AppClass::LatencySensitive);
    spec.labels.insert(token("tier"), "front".into());
    spec.task.ports = 2;
    spec.task.static_ports = vec![80, 443];
    spec.task.named = vec![build::amount(Some("app"), "slot", 1)];
    spec.task.devices = vec![build::gpu_request(1, 250)];
    spec.task.packages = vec![package()];
    spec.task.command = vec!["server".into(), "--port".into()];
    spec.task.env.insert("HOME".into(), "/".into());
    spec.task.files.insert("conf".into(), "text".into());
    spec.task.max_run = Some(Span(77));
    spec.task.user = Some(token("www"));
    spec.task.logs = Some(LogLimits { file_bytes: 5000, files: 4, rate: 300 });
    spec.task.archive_logs = true;
    spec.task.health = Some(HealthCheck {
        probe: Probe::Tcp { port: 1 },
        interval: Span(21),
        timeout: Span(22),
        start_period: Span(23),
        failures: 2,
    });
    let limits = Some(Resources::new(600, 1 << 30, 1 << 31, 64).into());
    spec.overrides.insert(1, TaskOverride { limits, command: Some(vec![]), env: None });
    spec.constraints = vec![Constraint {
        attribute: token("os"),
        operator: Operator::Exists,
        strength: Strength::Soft(3),
    }];
    spec.spread = vec![SpreadLimit { domain: Domain::Rack, limit: 1 }];
    spec.alloc_set = Some(job_key("ada", "box"));
    spec.after = ["first", "second"]
        .map(|job| JobDependency { job: job_key("ada", job), require_success: job == "first" })
        .to_vec();
    (spec.gang, spec.repair) = (true, Some(Span(9500)));
    spec.max_down = Some(1);
    spec.preemption_notice_max = Some(Span(2500));
    spec.max_update_disruptions = Some(2);
    spec.disruptions = Some(DisruptionLimit { most: 3, within: Span(3500) });
    spec.update = UpdatePolicy {
        canaries: 1,
        promote_after: Some(Span(4500)),
        rollback: Some(RollbackLimit { failures: 2, within: Span(5500) }),
    };
    spec.restart.max_failures = Some(4);
    spec.restart.backoff = Span(1500);
    spec.restart.retry = Retries {
        exit: [(42, 0)].into(),
        failed: Some(1),
        out_of_memory: Some(2),
        over_disk_limit: None,
        timed_out: Some(3),
        could_not_start: Some(4),
        unhealthy: Some(5),
        out_of_memory_bystander: None,
        lost: Some(6),
        evicted: Some(7),
    };
    spec.at_most_one = Some(Span(30_000));
    spec.retain_disk = Some(RetainDisk { bytes: 1 << 20, keep: Span(60_000), log_saver: None });
    spec
}

fn assignment() -> Assignment {
    Assignment {
        task: TaskId(3),
        attempt: 2,
        machine: MachineId(1),
        alloc: Some(TaskId(4)),
        ports: vec![80, 20_000],
        devices: vec![DeviceGrant { device: 1, milli: 250 }],
    }
}

fn plan() -> Plan {
    let victims = vec![Victim { task: TaskId(9), attempt: 8 }];
    Plan { made_at: 77, groups: vec![Group { victims, assignments: vec![assignment()] }] }
}

pub fn commands() -> Vec<Command> {
    let (job, machine) = (job_key("ada", "web"), MachineId(2));
    let mut all = more_commands();
    all.extend(token_commands());
    all.extend([
        Command::AddMachine(machine_spec()),
        Command::UpdateMachine { spec: machine_spec(), expect: None },
        Command::RemoveMachine { name: name("m1"), expect: None },
        Command::RemoveEmptyMachine { name: name("m1"), expect: None },
        Command::MachineUp { machine, incarnation: 3 },
        Command::MachineDown { machine },
        Command::StartDrain { name: name("m1"), expect: None },
        Command::StopDrain { name: name("m1"), expect: None },
        Command::SetMachinePackages { machine, packages: BTreeSet::from([package()]) },
        Command::AddUser { name: name("ada") },
        Command::RemoveUser { name: name("ada"), expect: None },
        Command::SetCapabilities {
            user: name("ada"),
            capabilities: BTreeSet::from([Capability::ManageMachines]),
            expect: None,
        },
        Command::SetQuota {
            user: name("ada"),
            band: Band::Batch,
            quota: Some(quota()),
            expect: None,
        },
        Command::SubmitJob { owner: name("ada"), spec: Box::new(job_spec()) },
        Command::UpdateJob { owner: name("ada"), spec: Box::new(job_spec()), expect: Some(4) },
        Command::ApplyJob {
            owner: name("ada"),
            spec: Box::new(job_spec()),
            expect: Some(0),
            again: true,
        },
        Command::ResizeJob {
            job: job.clone(),
            size: JobSize {
                count: Some(5),
                cpu: Some(300),
                ram: None,
                disk: Some(7),
                disk_rate: Some(9),
            },
            expect: None,
        },
        Command::StopJob { job: job.clone(), expect: None },
        Command::StopTask { job: job.clone(), index: 3, expect: Some(2) },
        Command::StopWithin {
            job: job.clone(),
            index: Some(3),
            notice: Span::seconds(5),
            expect: None,
        },
        Command::GiveBack { job: job.clone() },
        Command::RestartTasks { job: job.clone(), index: Some(3) },
        Command::StepRestart { job: job.clone(), index: 3 },
        Command::StartTasks { job: job.clone(), which: TasksToStart::One(3) },
        Command::DrainWithin { name: name("m1"), within: Span::ZERO, expect: Some(1) },
        Command::ResizeLimits {
            job: job_key("ada", "web"),
            limits: LimitsOverride { cpu: Some(300), ram: Some(7), ..LimitsOverride::default() },
            expect: Some(2),
        },
    ]);
    all
}

fn more_commands() -> Vec<Command> {
    let (job, machine, task) = (job_key("ada", "web"), MachineId(2), TaskId(3));
    vec![
        Command::UndoUpdate { job: job.clone(), expect: None },
        Command::CloseUpdate { job: job.clone(), expect: None },
        Command::StepUpdate { job: job.clone(), index: 6 },
        Command::MatchMachines { job },
        Command::PurgeJobs { ended_before: Time(1000) },
        Command::CommitPlan(plan()),
        Command::Evict { task, attempt: 2, cause: EvictCause::Rebalance },
        Command::TaskReports {
            machine,
            incarnation: 9,
            reports: vec![TaskReport { task, attempt: 2, what: Observed::Started }],
        },
        Command::ReleaseRetained { machine, task, attempt: 1 },
        Command::LogSaverFailed {
            machine,
            task,
            attempt: 1,
            run: 2,
            exit: Some(ExitClass::Code(3)),
        },
        Command::Expire,
        Command::SetReservations(vec![ReservationChange {
            task,
            attempt: 2,
            reservation: Resources::new(1, 2, 3, 4),
        }]),
        Command::RaiseLevel { level: 2 },
        Command::SetBounds(Bounds::default()),
        Command::SetResourcePressure {
            machine,
            incarnation: 3,
            resource_pressure: vec![ResourcePressureReport {
                dimension: Dimension::DiskRate,
                lasted: Span::seconds(60),
                requested: 2,
            }],
        },
    ]
}

pub fn actors() -> [Actor; 7] {
    [
        Actor::Operator,
        Actor::User(name("ada")),
        Actor::Agent(name("m1")),
        Actor::Scheduler(name("s1")),
        Actor::Controller(ControllerName::Drain),
        Actor::Replica(name("r1")),
        Actor::Task { task: TaskId(9), attempt: 2 },
    ]
}

fn pin_requests(pins: &mut Pins) {
    every_variant(pins, "Actor", &actors());
    every_variant(pins, "ControllerName", &ControllerName::ALL);
    let done = [
        Done::Applied,
        Done::Unchanged,
        Done::Partly(vec![(1, Rejection::RequestIdReused)]),
        Done::Version(3),
        Done::Revoked(2),
        Done::Job { became: ApplyOutcome::Updated, version: 4, closed: Some(3) },
    ];
    every_variant(pins, "Done", &done);
    every_variant(
        pins,
        "Became",
        &[
            ApplyOutcome::Created,
            ApplyOutcome::Updated,
            ApplyOutcome::Unchanged,
            ApplyOutcome::Resized,
            ApplyOutcome::Ended,
        ],
    );
    let observed = [
        Observed::Started,
        Observed::Finished,
        Observed::Failed(ExitClass::Signal(15)),
        Observed::Stopped,
        Observed::Unhealthy,
        Observed::Healthy,
        Observed::Lost,
        Observed::Left(NoticeOutcome::Overrun),
        Observed::LimitsInForce { resizes: 3, limits: build::room(1, 2, 3) },
    ];
    every_variant(pins, "Observed", &observed);
}

fn shortfall() -> Shortfall {
    Shortfall { dimension: Dimension::Ram, requested: 5, available: 3 }
}

fn infeasible_reasons() -> Vec<InfeasibleReason> {
    vec![
        InfeasibleReason::MachineDown,
        InfeasibleReason::MachineDraining,
        InfeasibleReason::Constraint { position: 1 },
        InfeasibleReason::CrashedHere,
        InfeasibleReason::NoAllocHere,
        InfeasibleReason::Spread { domain: Domain::Power, limit: 2 },
        InfeasibleReason::StaticPort { port: 80, holder: Some(TaskId(5)) },
        InfeasibleReason::DynamicPorts { requested: 3, available: 1 },
        InfeasibleReason::Device { kind: token("gpu"), requested: 2, milli: 500, available: 1 },
        InfeasibleReason::Named {
            name: build::resource(Some("app"), "slot"),
            requested: 2,
            available: 1,
        },
        InfeasibleReason::Resource(shortfall()),
        InfeasibleReason::Volume(HostVolume { source: "/srv/data".into(), writable: true }),
        InfeasibleReason::ResourcePressure,
        InfeasibleReason::MachineFull { most: 1000 },
        InfeasibleReason::OtherMachine,
    ]
}

pub fn refusals() -> Vec<Rejection> {
    let (ada, web, task) = (name("ada"), job_key("ada", "web"), TaskId(3));
    let text = |t: &str| t.to_owned();
    vec![
        Rejection::NotAllowed { user: ada.clone(), capability: Capability::ManageUsers },
        Rejection::NotOwner { user: ada.clone(), job: web.clone() },
        Rejection::BadField {
            field: "count".into(),
            value: Given::Text(text("0")),
            allowed: Box::new(Allowed::AtLeast(1)),
        },
        Rejection::NoSuchUser(ada.clone()),
        Rejection::NoSuchJob(web.clone()),
        Rejection::NoSuchMachine(name("m1")),
        Rejection::NoSuchResource(build::resource(Some("app"), "slot")),
        Rejection::NoSuchRow(TaskId(9).into()),
        Rejection::Exists(Object::Job(web.clone())),
        Rejection::QuotaExceeded { user: ada.clone(), band: Band::Batch, shortfall: shortfall() },
        Rejection::QuotaOversold(shortfall()),
        Rejection::StaleVersion { object: Object::Job(web.clone()), expected: 1, found: 2 },
        Rejection::StaleAttempt { task, expected: 1, found: 2 },
        Rejection::StaleIncarnation { machine: name("m1"), reported: 1, found: 2 },
        Rejection::WrongState(Conflict::JobDead(web.clone())),
        Rejection::WrongTaskState {
            task,
            state: TaskState::Pending,
            action: TaskAction::Placement,
        },
        Rejection::DoesNotFit {
            task,
            machine: MachineId(1),
            infeasible: InfeasibleReason::CrashedHere,
        },
        Rejection::TooEarly { task, not_before: 9 },
        Rejection::MayNotPreempt { by: Priority(210), victim: Priority(200) },
        Rejection::NeedlessVictim(task),
        Rejection::BudgetExhausted { job: JobId(4), down: 2, max: 1 },
        Rejection::PartialGang { placed: 1, needed: 2 },
        Rejection::RequestIdReused,
        Rejection::RequestTooOld,
        Rejection::Full(Storage::Tasks),
        Rejection::BadLevel { requested: 3, found: 1, is_last: false },
        Rejection::WrongActor {
            actor: Actor::User(ada.clone()),
            command: "expire".into(),
            allowed: vec![Sender::Controller(ControllerName::Expire)],
        },
        Rejection::ForeignNamespace { user: ada, namespace: token("app") },
        Rejection::NoSuchCron(job_key("ada", "tick")),
        Rejection::NoSuchToken(name("t1")),
        Rejection::BadToken { id: name("t1"), flaw: InvalidTokenReason::Expired },
        Rejection::NoSuchBlob(token("ab")),
        Rejection::DisruptedTooOften { job: JobId(4), most: 1, within: Span(60), next: Time(90) },
        Rejection::HoldsTasks { machine: name("m1"), tasks: 2 },
        Rejection::PackageQuota { user: Some(name("ubar")), used: 5, more: 6, limit: 7 },
        Rejection::OverBound {
            user: name("ubar"),
            what: BoundKind::Jobs,
            held: 3,
            requested: 1,
            most: 3,
        },
        Rejection::TooFewNodes { matching: 1, requested: 2 },
        Rejection::JobStopping(web.clone()),
        Rejection::NoSuchTask { job: web, index: 3 },
    ]
}

fn reasons() -> Vec<Reason> {
    vec![
        Reason::Requested,
        Reason::Admitted,
        Reason::FoundPlace,
        Reason::AgentReport,
        Reason::Preempted { by: TaskId(6) },
        Reason::Drained,
        Reason::OverCommitted,
        Reason::AllocMoved,
        Reason::UpdateInPlace,
        Reason::UpdateRestart,
        Reason::UpdateMove,
        Reason::UpdateSkipped,
        Reason::Unhealthy,
        Reason::Exited(ExitClass::OutOfMemory),
        Reason::Succeeded,
        Reason::MachineDown,
        Reason::MachineRemoved,
        Reason::DependencyMet,
        Reason::DependencyFailed { job: JobId(1) },
        Reason::TooManyFailures,
        Reason::NotRetried { exit: ExitClass::Code(42), forgiven: 1 },
        Reason::NoLongerRuns,
        Reason::GangBroken,
        Reason::RestartRequested,
        Reason::MachinesChanged,
        Reason::Measured,
        Reason::Scaled,
        Reason::NotScaled,
        Reason::AllTasksEnded,
        Reason::LeaseExpired,
        Reason::Excess,
        Reason::ExcessGone,
        Reason::Reservation,
        Reason::Retention,
        Reason::Rebalanced,
        Reason::SlotDue,
        Reason::LastRunActive,
        Reason::ResourcePressure(Dimension::Cpu),
        Reason::UpdateFailed { failures: 3, within: Span(60_000) },
        Reason::CanariesWell,
        Reason::TooManyVersions,
    ]
}

fn pin_events(pins: &mut Pins) {
    let machine = MachineId(2);
    let change = TaskChange::Started { machine };
    let what = [
        EventKind::Task { task: TaskId(1), job: JobId(2), index: 3, attempt: 4, change },
        EventKind::Job { job: JobId(2), change: JobChange::Accepted },
        EventKind::JobRejected {
            user: name("ada"),
            job: name("web"),
            rejection: Box::new(Rejection::RequestIdReused),
        },
        EventKind::Machine { machine, change: MachineChange::Added },
        EventKind::User { user: UserId(1), change: UserChange::Added },
        EventKind::LevelRaised { level: 2 },
        EventKind::BoundsChanged,
        EventKind::Token { token: TokenId(2), change: TokenChange::Revoked },
        EventKind::Blob { blob: BlobId(3), change: BlobChange::Removed },
    ];
    let what = with_one_of(what.into(), components::events());
    every_variant(pins, "What", &what);
    for (at, what) in what.into_iter().enumerate() {
        let event = Event {
            at: Time(12),
            actor: Actor::User(name("ada")),
            kind: what,
            reason: Reason::Requested,
        };
        one(pins, &format!("Event{at}"), &event);
    }
    every_variant(pins, "TaskChange", &task_changes());
    every_variant(pins, "JobChange", &job_changes());
    pin_other_changes(pins);
}

fn task_changes() -> Vec<TaskChange> {
    let machine = MachineId(2);
    vec![
        TaskChange::Submitted,
        TaskChange::Released,
        TaskChange::Scheduled { machine },
        TaskChange::Started { machine },
        TaskChange::Stopping { machine },
        TaskChange::Evicted { machine },
        TaskChange::Completed { machine },
        TaskChange::Failed { machine },
        TaskChange::Lost { machine },
        TaskChange::Restarted { machine },
        TaskChange::Updated,
        TaskChange::UpdateSkipped,
        TaskChange::ReservationChanged,
        TaskChange::Finished,
        TaskChange::Killed,
        TaskChange::NeverRan,
        TaskChange::Purged,
        TaskChange::LogSaverFailed { machine },
        TaskChange::Saved { machine },
        TaskChange::NotSaved { machine },
        TaskChange::Left { machine, notice: NoticeOutcome::NotGiven },
        TaskChange::GaveUp { machine, exit: ExitClass::Code(3) },
        TaskChange::HoldReserved { machine },
        TaskChange::HoldReleased { machine },
        TaskChange::RestartDue,
        TaskChange::Resized { before: build::room(1, 2, 3), after: build::room(2, 1, 3) },
    ]
}

fn job_changes() -> Vec<JobChange> {
    vec![
        JobChange::Submitted,
        JobChange::Accepted,
        JobChange::Released,
        JobChange::UpdateOpened { version: 2 },
        JobChange::UpdateUndone { version: 3 },
        JobChange::UpdateClosed { version: 4 },
        JobChange::Resized { count: 5 },
        JobChange::Stopping,
        JobChange::Succeeded,
        JobChange::Failed,
        JobChange::Killed,
        JobChange::NeverRan,
        JobChange::Purged,
        JobChange::StillWaits { left: 6 },
        JobChange::StartedAgain,
        JobChange::LimitsChanged { version: 7 },
        JobChange::MachinesMatched { tasks: 7 },
        JobChange::MachinesLeftOut { machines: 8 },
    ]
}

fn pin_other_changes(pins: &mut Pins) {
    let dimension = Dimension::DiskRate;
    let machines = [
        MachineChange::Added,
        MachineChange::Updated,
        MachineChange::Removed,
        MachineChange::Up { incarnation: 7 },
        MachineChange::Down,
        MachineChange::DrainStarted,
        MachineChange::DrainStopped,
        MachineChange::PackagesChanged,
        MachineChange::OverCommitted,
        MachineChange::Recovered,
        MachineChange::DiskRetained { bytes: 8 },
        MachineChange::DiskReleased { bytes: 9 },
        MachineChange::PressureReported { dimension },
        MachineChange::PressureEvicted { dimension },
        MachineChange::PressureEased { dimension },
        MachineChange::PressureEnded { dimension },
    ];
    every_variant(pins, "MachineChange", &machines);
    let band = Band::Production;
    let users = [
        UserChange::Added,
        UserChange::Removed,
        UserChange::CapabilitiesChanged,
        UserChange::QuotaChanged { band },
        UserChange::QuotaExceeded { band },
        UserChange::QuotaRecovered { band },
    ];
    every_variant(pins, "UserChange", &users);
    let tokens = [
        TokenChange::Added,
        TokenChange::Used,
        TokenChange::Revoked,
        TokenChange::Expired,
        TokenChange::Confirmed,
    ];
    every_variant(pins, "TokenChange", &tokens);
    every_variant(pins, "BlobChange", &[BlobChange::Added, BlobChange::Removed]);
}

/// `TaskChange.Started`, `Rejection.NoSuchUser`: the names of everything pinned above.
pub fn names_of_changes_and_rejections() -> impl Iterator<Item = String> {
    let mut pins = Pins::new();
    every_variant(&mut pins, "Rejection", &refusals());
    every_variant(&mut pins, "TaskChange", &task_changes());
    every_variant(&mut pins, "JobChange", &job_changes());
    pin_other_changes(&mut pins);
    pins.into_keys().chain(components::names())
}

/// A small cell with something in every table and every optional field, and an entry.
pub fn state_and_entry() -> (State, Entry) {
    let transcript = "machine m1 cpu=8 ram=16g disk=100g rack=r1 gpus=2 attribute:os=debian
        machine m2 cpu=4 ram=16g disk=100g power=p1 has:licence=2
        user ada
        user app
        grant ada AdministrateJobs
        quota ada production cpu=8 ram=16g disk=50g for=900s
        as app resource app/slot for=60s m1:+2
        packages m2 server
        submit-alloc-set ada/box cpu=2 ram=4g disk=10g retain=5g disruptions=1/60s
        submit ada/web in=ada/box cpu=1 ram=1g ports=1
        submit ada/gpu count=2 cpu=1 ram=1g gpu-milli=250 max-down=1 max-failures=3 backoff=5s
        submit ada/next priority=0 cpu=1 ram=1g after=ada/gpu on-success
        submit app/batch priority=0 cpu=4 ram=1g needs:app/slot=1
        place ada/box/0 on m2
        started ada/box/0
        place ada/web/0 on m2 in ada/box/0
        place ada/gpu/0 on m1
        place ada/gpu/1 on m1
        started ada/gpu/0
        reserve ada/gpu/0 cpu=500m
        failed ada/gpu/1 9
        resize-limits ada/gpu cpu=500m
        update ada/gpu command=v2
        drain m2
        evict ada/box/0 drain
        id 7.1 submit ada/gone priority=0 cpu=1 ram=1g
        id 7.2 stop ada/gone
        wait 10s
        purge
        cron ada/tick */5_*_*_*_* cpu=1 ram=1g priority=0 missed=2
        wait 300s
        fire ada/tick 300s
        token t1 7 user ada for=60s
        token t2 8 agent m9 for=60s
        join t2 8
        blob a 300
        remove-user nobody";
    let mut teller = TranscriptRunner::default();
    for line in transcript.lines() {
        teller.run_line(line).unwrap_or_else(|why| panic!("{line}: {why}"));
    }
    let all = commands().into_iter().chain(components::commands());
    let requests = all.map(|command| {
        let id = Some(RequestId { client: 1, sequence: 2 });
        Request { by: Actor::User(name("ada")), id, command }
    });
    (teller.world.state, Entry { now: Time(99), requests: requests.collect() })
}
