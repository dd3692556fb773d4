//! Directed runs: situations that clients seldom come into by chance, or do not stay in for long
//! enough that somebody must notice. Each is a few commands with time in between, on a small cell
//! in which nothing else happens.

use super::client::client_user;
use super::fixtures;
use super::world::machine_spec;
use cellwright_cell::command::Command;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobKind, JobSpec};
use cellwright_cell::time::{Span, Time};
use cellwright_cell::update_policy::RollbackLimit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A gang loses one of its two places, and there is no other.
    BrokenGang,
    /// A machine leaves a daemon and comes back to it.
    ReturningMachine,
    /// A job is restarted.
    Restart,
    /// An update tries a version with one canary, which is well.
    Canary,
    /// An update fails with one task, and is undone while others run the new version.
    FailedUpdate,
    /// A task uses three times its limit, so that another does not get what is within its own.
    CpuPressure,
    /// Half of the tasks of a scaled job find no machine, and nobody knows what they would use.
    UnmeasuredTasks,
    /// A scaled job would need more than its owner's quota has left.
    NarrowQuota,
}

/// What is done at once, and for how many steps of the checker the cell then runs.
pub(super) struct Act {
    pub commands: Vec<Command>,
    pub checks: u32,
}

/// Steps of the checker in which everything starts.
const START: u32 = 30;
/// Steps in which whatever is owed becomes overdue.
const OVERDUE: u32 = 260;

impl Scenario {
    pub const ALL: [Scenario; 8] = [
        Scenario::BrokenGang,
        Scenario::ReturningMachine,
        Scenario::Restart,
        Scenario::Canary,
        Scenario::FailedUpdate,
        Scenario::CpuPressure,
        Scenario::UnmeasuredTasks,
        Scenario::NarrowQuota,
    ];

    pub(super) fn machines(self) -> u64 {
        if self == Scenario::CpuPressure { 1 } else { 2 }
    }

    pub(super) fn acts(self) -> Vec<Act> {
        match self {
            Scenario::BrokenGang => {
                let mut gang = job(2, 2500, &["serve"]);
                (gang.gang, gang.repair) = (true, Some(Span(3000)));
                vec![act(vec![submit(gang)], START), act(vec![start_drain()], OVERDUE)]
            }
            Scenario::ReturningMachine => {
                let mut daemon = job(1, 200, &["serve"]);
                daemon.kind = JobKind::Daemon;
                let stop_drain = Command::StopDrain { name: machine_spec(1).name, expect: None };
                vec![
                    act(vec![submit(daemon)], START),
                    act(vec![start_drain()], START),
                    act(vec![stop_drain], OVERDUE),
                ]
            }
            Scenario::Restart => {
                let restart = Command::RestartTasks { job: key(), index: None };
                vec![act(vec![submit(job(2, 200, &["serve"]))], START), act(vec![restart], OVERDUE)]
            }
            Scenario::Canary => {
                let mut next = job(3, 200, &["sim", "use", "50", "50"]);
                (next.update.canaries, next.update.promote_after) = (1, Some(Span(5000)));
                updated(next, OVERDUE + 80)
            }
            Scenario::FailedUpdate => {
                let mut next = job(3, 200, &["sim", "fail", "3000", "0"]);
                next.restart.max_failures = None;
                let limit = RollbackLimit { failures: 1, within: Span::seconds(60) };
                next.update.rollback = Some(limit);
                updated(next, OVERDUE)
            }
            Scenario::CpuPressure => cpu_pressure(),
            Scenario::UnmeasuredTasks => {
                let mut scaled = job(4, 2500, &["sim", "use", "20", "50"]);
                scaled.scale = Some(fixtures::scale_policy(1, 4));
                vec![act(vec![submit(scaled)], OVERDUE)]
            }
            Scenario::NarrowQuota => narrow_quota(),
        }
    }
}

fn act(commands: Vec<Command>, checks: u32) -> Act {
    Act { commands, checks }
}

fn job(count: u32, cpu: u64, command: &[&str]) -> JobSpec {
    fixtures::job("directed", count, cpu, command)
}

fn key() -> JobKey {
    JobKey { user: client_user(), job: job(1, 0, &[]).name }
}

fn submit(spec: JobSpec) -> Command {
    Command::SubmitJob { owner: client_user(), spec: Box::new(spec) }
}

fn start_drain() -> Command {
    Command::StartDrain { name: machine_spec(1).name, expect: None }
}

/// A job of three tasks that is updated to `next`.
fn updated(next: JobSpec, checks: u32) -> Vec<Act> {
    let update = Command::UpdateJob { owner: client_user(), spec: Box::new(next), expect: None };
    vec![act(vec![submit(job(3, 200, &["serve"]))], START), act(vec![update], checks)]
}

/// One machine, full by the limits of three tasks. The first takes what the second may use, and
/// batch gives up all but a little of its share, which does not help.
fn cpu_pressure() -> Vec<Act> {
    let service = |name, cpu| {
        let mut spec = fixtures::job(name, 1, 1500, &["sim", "use", cpu, "50"]);
        (spec.priority, spec.appclass) = (Priority(110), Some(AppClass::LatencySensitive));
        spec
    };
    let batch = fixtures::job("batch", 1, 500, &["sim", "use", "100", "50"]);
    let all = [service("greedy", "300"), service("starved", "100"), batch];
    vec![act(all.into_iter().map(submit).collect(), 200)]
}

/// The quota is for one task, and what it uses asks for two.
fn narrow_quota() -> Vec<Act> {
    let mut scaled = job(1, 500, &["sim", "use", "100", "50"]);
    scaled.priority = Priority(110);
    scaled.scale = Some(fixtures::scale_policy(1, 4));
    let user = Name::new("narrow").unwrap_or_else(|bad| panic!("{bad}"));
    let amount = Resources { cpu: 700, ram: 1 << 40, disk: 1 << 40, disk_rate: 1 << 40 };
    let quota = Some(Quota { amount, from: Time::ZERO, until: Time::NEVER });
    let band = scaled.priority.band();
    let commands = vec![
        Command::AddUser { name: user.clone() },
        Command::SetQuota { user: user.clone(), band, quota, expect: None },
        Command::SubmitJob { owner: user, spec: Box::new(scaled) },
    ];
    vec![act(commands, OVERDUE)]
}
