//! What refusals are made of: one value of every variant, for the pinned bytes, and that each has
//! words of its own.

use crate::build::{job_key, name, token};
use crate::wire::{Pins, every_variant};
use cellwright_cell::bounds::BoundKind;
use cellwright_cell::command::ControllerName;
use cellwright_cell::constraint::ConstraintFlaw;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::isolation::TargetFlaw;
use cellwright_cell::job::JobState;
use cellwright_cell::machine::PortRange;
use cellwright_cell::priority::Priority;
use cellwright_cell::quota::Capability;
use cellwright_cell::reason::{
    Allowed, Conflict, FieldName, Given, Listed, MAX_REJECTION_TEXT, Object, Quality, Rejection,
    Sender, Storage, TaskAction,
};
use cellwright_cell::resource::Dimension;
use cellwright_cell::time::{Span, Time};
use std::collections::BTreeSet;
use std::fmt::Display;

pub fn pin(pins: &mut Pins) {
    every_variant(pins, "Quality", &QUALITIES);
    every_variant(pins, "Given", &given());
    every_variant(pins, "Listed", &LISTED);
    every_variant(pins, "ConstraintFlaw", &constraint_flaws());
    every_variant(pins, "TargetFlaw", &TARGETS);
    every_variant(pins, "Allowed", &allowed());
    every_variant(pins, "Object", &objects());
    every_variant(pins, "Storage", &storages());
    every_variant(pins, "Conflict", &conflicts());
    every_variant(pins, "TaskAction", &ACTIONS);
    every_variant(pins, "Sender", &senders());
}

const QUALITIES: [Quality; 7] = [
    Quality::Bytes,
    Quality::ProgramBytes,
    Quality::Name,
    Quality::Path,
    Quality::Code,
    Quality::TaskIndex,
    Quality::Total,
];

fn given() -> Vec<Given> {
    vec![
        Given::Text("0".into()),
        Given::Entries(9),
        Given::Length(Span(60)),
        Given::Something,
        Given::Another,
        Given::Nothing,
        Given::Added { by: -3, held: Some(2) },
    ]
}

const LISTED: [Listed; 6] =
    [Listed::Job, Listed::Port, Listed::Model, Listed::Package, Listed::Domain, Listed::Metric];

fn constraint_flaws() -> Vec<ConstraintFlaw> {
    vec![
        ConstraintFlaw::EmptyList,
        ConstraintFlaw::Version("1..2".into()),
        ConstraintFlaw::Weight(0),
        ConstraintFlaw::LongPattern { bytes: 300 },
        ConstraintFlaw::Pattern("(".into()),
    ]
}

const TARGETS: [TargetFlaw; 7] = [
    TargetFlaw::Twice,
    TargetFlaw::Kernel,
    TargetFlaw::Given,
    TargetFlaw::Filled,
    TargetFlaw::Names,
    TargetFlaw::LookedUp,
    TargetFlaw::Programs,
];

fn allowed() -> Vec<Allowed> {
    let mut all = allowed_of_jobs();
    all.extend([
        Allowed::AtMost(64),
        Allowed::AtLeast(1),
        Allowed::Range { least: 1, most: 9 },
        Allowed::LengthAtMost(Span(60)),
        Allowed::LengthAtLeast(Span(1)),
        Allowed::LengthRange { least: Span(1), most: Span(60) },
        Allowed::EachOnce(Listed::Port),
        Allowed::NamesInOrder,
        Allowed::ResourcesInOrder,
        Allowed::AnAllocSet,
        Allowed::AnotherJob,
        Allowed::PriorityOfInside { least: Priority(200), job: name("web") },
        Allowed::PriorityOfSet { most: Priority(100), set: job_key("ada", "box") },
        Allowed::CountWithOverrides { least: 4 },
        Allowed::AsInVersion(3),
        Allowed::CronName { most: 40 },
        Allowed::AsCronName(name("tick")),
        Allowed::UpToNow(Time(9)),
        Allowed::MomentOf("*/5 * * * *".into()),
        Allowed::NoNamespace,
        Allowed::AddressOfOneMachine,
        Allowed::PortsOfMachine,
        Allowed::AfterQuotaFrom(Time(5)),
        Allowed::TokenKind,
        Allowed::JoinTokenLifetime { most: Span(120_000) },
        Allowed::FingerprintOfReplica(name("r1")),
        Allowed::NamespaceWithoutSlash,
        Allowed::ContentDigest,
        Allowed::ChangeOfUnbounded,
        Allowed::CapacitySum,
        Allowed::PortsGranted {
            fixed: vec![80],
            more: 2,
            range: PortRange { first: 20_000, last: 20_009 },
        },
        Allowed::DevicesGranted,
    ]);
    all
}

fn allowed_of_jobs() -> Vec<Allowed> {
    vec![
        Allowed::Constraint(ConstraintFlaw::EmptyList),
        Allowed::Target(TargetFlaw::Kernel),
        Allowed::NoneBelowProduction,
        Allowed::NoneWithoutGang,
        Allowed::AnotherDeviceKind,
        Allowed::RamToBegin,
        Allowed::FailureCode,
        Allowed::AtMostBackoffMax(Span(7)),
        Allowed::NoSaver,
        Allowed::SaverInsideSet,
        Allowed::NoProgram,
        Allowed::NoNesting,
        Allowed::NoPortsOfAlloc,
        Allowed::NoneInsideSet,
        Allowed::SpreadOfAllocs,
        Allowed::VersionKept(vec![2, 3]),
        Allowed::WholeCoresOutsideSets,
        Allowed::LatencySensitiveOnly,
        Allowed::WholeCoresOfMachines { most: 3 },
        Allowed::NotOfDaemons,
        Allowed::NoDaemonRuns,
        Allowed::NotScaled,
        Allowed::NoneWithoutLimit,
        Allowed::MetricName,
        Allowed::MetricSource,
        Allowed::PackageDigest,
        Allowed::Program,
        Allowed::ProbeProgram,
        Allowed::WholeDevices,
        Allowed::NoZeroBytes,
        Allowed::VariableName,
        Allowed::RelativePath,
        Allowed::AbsolutePath,
        Allowed::HttpPath,
        Allowed::OneOfPackages(vec![token("app"), token("base")]),
        Allowed::CoresOfLimit,
        Allowed::HostNetwork,
        Allowed::SecretName,
        Allowed::SecretItself,
        Allowed::NoPort,
        Allowed::PortOfTask { last: 1 },
    ]
}

fn objects() -> Vec<Object> {
    vec![
        Object::Job(job_key("ada", "web")),
        Object::Cron(job_key("ada", "tick")),
        Object::User(name("ada")),
        Object::Machine(name("m1")),
        Object::Token(name("t1")),
        Object::Package { digest: token("ab"), bytes: 9 },
    ]
}

fn storages() -> Vec<Storage> {
    vec![
        Storage::Jobs,
        Storage::Tasks,
        Storage::Users,
        Storage::Machines,
        Storage::Tokens,
        Storage::TokensAlike { most: 64 },
        Storage::Packages,
        Storage::Crons,
        Storage::Resources,
        Storage::Capacities,
        Storage::ResourcesOn(name("m1")),
        Storage::VersionsOf(name("web")),
        Storage::Capacity,
        Storage::Scalings,
    ]
}

fn conflicts() -> Vec<Conflict> {
    let (job, m1, task) = (|| job_key("ada", "web"), || name("m1"), TaskId(3));
    vec![
        Conflict::JobDead(job()),
        Conflict::JobNotActive(Some(JobState::Deferred)),
        Conflict::AllocSetStopped(job()),
        Conflict::UpdateOpen(job()),
        Conflict::NoUpdate(job()),
        Conflict::UpdateGoesOn { job: job(), left: 2 },
        Conflict::UserHas { user: name("ada"), what: BoundKind::Crons, held: 1 },
        Conflict::UserLeft { user: name("ada"), dead: 4 },
        Conflict::CronPaused(job()),
        Conflict::PackageNeeded { digest: token("ab"), by: job(), is_cron: true },
        Conflict::NoReplicaWaits(name("r1")),
        Conflict::MachineInCell(m1()),
        Conflict::MachineRevoked(m1()),
        Conflict::MachineDown(m1()),
        Conflict::NotDraining(m1()),
        Conflict::NotOverCommitted(m1()),
        Conflict::HoldsTooMuch(m1()),
        Conflict::OthersFirst { machine: m1(), task },
        Conflict::PressureEvictionFirst { machine: m1(), task, dimension: Dimension::Ram },
        Conflict::NoResourcePressure(m1()),
        Conflict::AllocAtLimits,
        Conflict::NotReclaimable,
        Conflict::CanariesTry(job()),
        Conflict::RolledBack { job: job(), version: 2 },
        Conflict::RunsNothing(job_key("ada", "set")),
        Conflict::LastRunGoesOn(job_key("ada", "tick-1")),
        Conflict::NotScaled(job()),
    ]
}

const ACTIONS: [TaskAction; 17] = [
    TaskAction::Placement,
    TaskAction::Preemption,
    TaskAction::Eviction,
    TaskAction::Rebalancing,
    TaskAction::Reservation,
    TaskAction::Hold,
    TaskAction::HoldWhereItRuns,
    TaskAction::SecondHold,
    TaskAction::HoldOfAlloc,
    TaskAction::Release,
    TaskAction::ForeignReport,
    TaskAction::LateReport,
    TaskAction::ReportOfProgram,
    TaskAction::ReportOfStop,
    TaskAction::ReportOfHealth,
    TaskAction::Restart,
    TaskAction::Start,
];

fn senders() -> Vec<Sender> {
    vec![
        Sender::Users,
        Sender::UsersWith(Capability::ManageUsers),
        Sender::JobOwner,
        Sender::NamespaceOwner,
        Sender::PackageOwner,
        Sender::TokenOwner,
        Sender::Agent(name("m1")),
        Sender::AgentOfRow(MachineId(3)),
        Sender::AgentsOfTheirOwn,
        Sender::Schedulers,
        Sender::Controller(ControllerName::Drain),
        Sender::Masters,
        Sender::Tasks,
    ]
}

#[test]
fn everything_in_a_refusal_has_words_of_its_own() {
    fn check<T: Display>(all: &[T]) {
        let words: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert!(words.iter().all(|words| !words.is_empty()), "{words:?}");
        assert_eq!(words.len(), all.len(), "{words:?}");
    }
    check(&QUALITIES.map(|of| FieldName { path: "field".into(), quality: Some(of) }));
    check(&[given(), vec![Given::Added { by: -3, held: None }]].concat());
    check(&constraint_flaws());
    check(&TARGETS);
    check(&allowed());
    check(&objects());
    check(&storages());
    check(&[conflicts(), vec![Conflict::JobNotActive(None)]].concat());
    check(&ACTIONS);
    check(&senders());
    check(&crate::samples::refusals());
}

/// It is kept with the answer, so what a client sent is in it from its beginning only.
#[test]
fn a_refusal_is_bounded_in_bytes_whatever_was_sent() {
    let long = "é".repeat(1 << 20);
    let packages = (0..64).map(|at| token(&format!("{at:0>100}"))).collect();
    let all = [
        Allowed::AtMost(1),
        Allowed::MomentOf(long.clone()),
        Allowed::OneOfPackages(packages),
        Allowed::Constraint(ConstraintFlaw::Version(long.clone())),
        Allowed::Constraint(ConstraintFlaw::Pattern(long.clone())),
    ];
    for allowed in all {
        let (field, value) = (FieldName::from(long.clone()), Given::Text(long.clone()));
        let bounded = Rejection::BadField { field, value, allowed: Box::new(allowed) }.truncated();
        let bytes = serde_json::to_string(&bounded).unwrap().len();
        assert!(bytes <= 4 * MAX_REJECTION_TEXT, "{bytes} bytes: {bounded}");
        assert!(bounded.to_string().contains("é..."), "{bounded}");
    }
}
