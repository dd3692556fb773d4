//! Why something happened, why a task does not fit, and how an attempt ended.

use super::names::{domain_name, job_name};
use super::quantity;
use crate::event::OVER_QUOTA;
use crate::reason::{InfeasibleReason, Reason};
use crate::state::State;
use crate::task::ExitClass;
use crate::units::{pluralize, times_text};

/// Why a task does not fit on a machine.
#[must_use]
pub fn infeasible(state: &State, reason: &InfeasibleReason) -> String {
    match reason {
        InfeasibleReason::OtherMachine => "the task is for another machine".into(),
        InfeasibleReason::MachineDown => "the machine is down".into(),
        InfeasibleReason::MachineDraining => "the machine is draining".into(),
        InfeasibleReason::Constraint { position } => format!("constraint {position} does not hold"),
        InfeasibleReason::CrashedHere => "it crashed there too often".into(),
        InfeasibleReason::NoAllocHere => "no alloc of its alloc set is there".into(),
        InfeasibleReason::Spread { domain, limit } => {
            let tasks = pluralize(u64::from(*limit), "task");
            format!("{} holds {tasks} of the job already", domain_name(*domain))
        }
        InfeasibleReason::StaticPort { port, holder: Some(holder) } => {
            format!("port {port} is held by {}", state.task_name(*holder))
        }
        InfeasibleReason::StaticPort { port, holder: None } => format!("port {port} is not free"),
        InfeasibleReason::DynamicPorts { requested, available } => {
            format!("{} asked, {available} free", pluralize(u64::from(*requested), "port"))
        }
        InfeasibleReason::Device { kind, requested, milli, available } => {
            format!("{requested} {kind} with {milli} milli free asked, {available} available")
        }
        InfeasibleReason::Named { name, requested, available } => {
            format!("{name}: asked {requested}, available {available}")
        }
        InfeasibleReason::Resource(shortfall) => shortfall.to_string(),
        InfeasibleReason::Volume(loan) => format!("the machine does not lend {loan}"),
        InfeasibleReason::ResourcePressure => {
            "the machine is short itself and takes only production".into()
        }
        InfeasibleReason::MachineFull { most } => {
            format!("the machine has as many tasks as it may: {most}")
        }
    }
}

/// Why something happened.
#[must_use]
pub fn reason(state: &State, reason: &Reason) -> String {
    match reason {
        Reason::Preempted { by } => format!("preempted by {}", state.task_name(*by)),
        Reason::Exited(exit) => ended(state, *exit),
        Reason::NotRetried { exit, forgiven } => not_retried(*exit, *forgiven),
        Reason::ResourcePressure(dimension) => {
            format!("the machine is short of {dimension}, and throttling did not help")
        }
        Reason::UpdateFailed { failures, within } => {
            let attempts = pluralize(u64::from(*failures), "attempt");
            format!("{attempts} at the new version failed within {}", quantity::span(*within))
        }
        Reason::DependencyFailed { job } => {
            format!("{} ({})", reason.words(), job_name(state, *job))
        }
        plain => plain.words().into(),
    }
}

/// The same from a reason's code alone, for whoever has no more of it: a row of history. A code of
/// a newer build is its own word.
#[must_use]
pub fn reason_coded(code: &str) -> &str {
    match Reason::WORDS.iter().find(|(known, _)| *known == code) {
        Some((_, words)) => words,
        None if code == OVER_QUOTA => "over quota",
        None => code,
    }
}

/// How an attempt ended.
#[must_use]
pub fn ended(state: &State, exit: ExitClass) -> String {
    match exit {
        ExitClass::GaveWayTo(other) => {
            let other = state.task_name(other);
            format!("killed for memory, of which {other} used more than was expected")
        }
        plain => ended_coded(plain.code(), plain.number().map(i64::from)),
    }
}

/// The same from the class's code and its number, as history has them.
#[must_use]
pub fn ended_coded(class: &str, number: Option<i64>) -> String {
    let text = match (class, number) {
        ("code", Some(code)) => return format!("exited with code {code}"),
        ("signal", Some(signal)) => return format!("killed by signal {signal}"),
        ("out-of-memory", _) => "out of memory at its own limit",
        ("out-of-memory-bystander", _) => "out of memory through others",
        ("over-disk-limit", _) => "over its disk limit",
        ("could-not-start", _) => "could not start",
        ("timed-out", _) => "ran longer than max_run",
        ("unhealthy", _) => "failed its health check",
        ("gave-way", _) => "killed for memory that another task used",
        ("lost", _) => "lost with its machine",
        ("evicted", _) => "lost its place",
        (newer, _) => newer,
    };
    text.into()
}

/// `not retried: exit 42 is final`.
#[must_use]
pub fn not_retried(exit: ExitClass, forgiven: u32) -> String {
    let what = match exit {
        ExitClass::Code(code) => format!("exit {code}"),
        ExitClass::Signal(signal) => format!("signal {signal}"),
        ExitClass::OutOfMemory => "its memory limit".into(),
        ExitClass::OverDiskLimit => "its disk limit".into(),
        ExitClass::CouldNotStart => "a failed start".into(),
        ExitClass::TimedOut => "max_run".into(),
        ExitClass::Unhealthy => "a failed health check".into(),
        ExitClass::OutOfMemoryBystander | ExitClass::GaveWayTo(_) => "memory for others".into(),
        ExitClass::Lost => "the loss of its machine".into(),
        ExitClass::Evicted => "an eviction".into(),
    };
    match forgiven {
        0 => format!("not retried: {what} is final"),
        some => format!("not retried: {what} is forgiven {}", times_text(u64::from(some))),
    }
}
