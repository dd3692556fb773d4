//! What happened, a line each, with names instead of rows.

use super::names::{blob_name, job_name, machine_name, token_name, user_name};
use super::{ended, ended_coded, reason, reason_coded, rejection};
use crate::event::{
    BlobChange, Event, EventKind, JobChange, MachineChange, TaskChange, TokenChange, UserChange,
};
use crate::id::MachineId;
use crate::reason::Reason;
use crate::resource::{Dimension, Resources};
use crate::state::State;
use crate::units::{self, Rounding, pluralize};

/// A sentence about an event in its parts, for those who show the object by itself, or know it
/// under a name that it no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventText {
    /// What kind of object it is, where its name alone does not say it: `periodic job`.
    pub kind: Option<&'static str>,
    pub object: String,
    /// What happened to it, and why.
    pub happened: String,
}

impl EventText {
    /// The sentence, with another name for the object.
    #[must_use]
    pub fn with_name(&self, object: &str) -> String {
        match self.kind {
            Some(kind) => format!("{kind} {object} {}", self.happened),
            None => format!("{object} {}", self.happened),
        }
    }
}

/// `ubar/jfoo/3 scheduled on m17: found a place`.
#[must_use]
pub fn event(state: &State, event: &Event) -> String {
    let text = event_text(state, event);
    text.with_name(&text.object)
}

/// The same in its parts.
#[must_use]
pub fn event_text(state: &State, event: &Event) -> EventText {
    let why = reason(state, &event.reason);
    let mut kind = None;
    let (object, change) = match &event.kind {
        EventKind::Component(event) => {
            let event = event.as_component();
            kind = event.object_kind();
            (event.object_name(state), event.describe(state))
        }
        EventKind::Task { job, index, change, .. } => {
            let how = how_given_up(state, *change, &event.reason);
            let object = format!("{}/{index}", job_name(state, *job));
            let happened = format!("{}: {how}{why}", task_change(state, *change));
            return EventText { kind, object, happened };
        }
        EventKind::JobRejected { user, job, rejection: cause } => {
            let happened = format!("rejected: {}", rejection(state, cause));
            return EventText { kind, object: format!("{user}/{job}"), happened };
        }
        EventKind::Job { job, change } => (job_name(state, *job), job_change(*change)),
        EventKind::Machine { machine, change } => {
            (machine_name(state, *machine), machine_change(*change))
        }
        EventKind::User { user, change } => (user_name(state, *user), user_change(*change)),
        EventKind::LevelRaised { level } => ("cell".into(), format!("raised to level {level}")),
        EventKind::BoundsChanged => ("cell".into(), "changed its limits for each user".into()),
        EventKind::Token { token, change } => {
            (token_name(state, *token), token_change(*change).to_owned())
        }
        EventKind::Blob { blob, change } => {
            (blob_name(state, *blob), blob_change(*change).to_owned())
        }
    };
    EventText { kind, object, happened: format!("{change}: {why}") }
}

/// An event as history has it: names and codes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CodedEvent<'a> {
    pub object: &'a str,
    pub event: &'a str,
    pub machine: Option<&'a str>,
    pub reason: &'a str,
    pub exit_class: Option<&'a str>,
    pub exit_code: Option<i64>,
    pub detail: Option<&'a str>,
}

/// `ann/web/0 failed on m3: exited with code 1`.
#[must_use]
pub fn event_coded(event: &CodedEvent<'_>) -> String {
    let CodedEvent { object, reason, detail, .. } = *event;
    let mut text = format!("{object} {}", event.event.replace('-', " "));
    if let Some(machine) = event.machine.filter(|machine| *machine != object) {
        text.push_str(&format!(" on {machine}"));
    }
    // One that was undone ends by itself, with nobody's request.
    if (event.event, reason) != ("update-closed", "requested") {
        text.push_str(&format!(": {}", why_coded(event)));
    }
    match (reason, detail) {
        ("preempted", Some(by)) => text.push_str(&format!(" {by}")),
        (_, Some(detail)) => text.push_str(&format!(" ({detail})")),
        _ => {}
    }
    text
}

/// In the words of explanations; that a run ended by itself is said by how.
fn why_coded(event: &CodedEvent<'_>) -> String {
    let why = reason_coded(event.reason);
    let ended = event.exit_class.map(|class| ended_coded(class, event.exit_code));
    match ended {
        Some(ended) if event.reason == "exited" => ended,
        Some(ended) => format!("{ended}, {why}"),
        None => why.to_owned(),
    }
}

/// A rule of its own says how the attempt ended, any other reason does not.
fn how_given_up(state: &State, change: TaskChange, why: &Reason) -> String {
    match change {
        TaskChange::GaveUp { exit, .. } if !matches!(why, Reason::NotRetried { .. }) => {
            format!("{}, ", ended(state, exit))
        }
        _ => String::new(),
    }
}

pub(super) fn task_change(state: &State, change: TaskChange) -> String {
    // What becomes of a task is read by its owner, to whom the number of a machine says nothing.
    let at = |machine: MachineId| match state.machines().get(machine) {
        Some(row) => row.spec.name.to_string(),
        None => "a machine that is gone".to_owned(),
    };
    match change {
        TaskChange::Submitted => "submitted".into(),
        TaskChange::Released => "released".into(),
        TaskChange::Scheduled { machine } => format!("scheduled on {}", at(machine)),
        TaskChange::Started { machine } => format!("started on {}", at(machine)),
        TaskChange::Stopping { machine } => format!("told to stop on {}", at(machine)),
        TaskChange::Evicted { machine } => format!("evicted from {}, pending again", at(machine)),
        TaskChange::Completed { machine } => {
            format!("completed on {}, pending again", at(machine))
        }
        TaskChange::Failed { machine } => format!("failed on {}, pending again", at(machine)),
        TaskChange::Lost { machine } => format!("lost with {}, pending again", at(machine)),
        TaskChange::Restarted { machine } => format!("starts again on {}", at(machine)),
        TaskChange::Updated => "updated".into(),
        TaskChange::UpdateSkipped => "not updated".into(),
        TaskChange::ReservationChanged => "reserves a new amount".into(),
        TaskChange::Finished => "finished".into(),
        TaskChange::GaveUp { machine, .. } => format!("failed for good on {}", at(machine)),
        TaskChange::Killed => "killed".into(),
        TaskChange::NeverRan => "never ran".into(),
        TaskChange::Purged => "forgotten".into(),
        TaskChange::RestartDue => "is to be restarted".into(),
        TaskChange::LogSaverFailed { machine } => {
            format!("what it left on {} is not saved yet, tried again", at(machine))
        }
        TaskChange::Saved { machine } => format!("what it left on {} is saved", at(machine)),
        TaskChange::Left { machine, notice } => {
            format!("left {}, {}", at(machine), notice.describe())
        }
        TaskChange::HoldReserved { machine } => format!("holds room on {} as well", at(machine)),
        TaskChange::HoldReleased { machine } => {
            format!("holds no room on {} any more", at(machine))
        }
        TaskChange::NotSaved { machine } => {
            format!("what it left on {} was never saved and is gone", at(machine))
        }
        TaskChange::Resized { before, after } => resized(before, after),
    }
}

fn resized(before: Resources, after: Resources) -> String {
    match limits_change(before, after) {
        Some(change) => format!("resized, {change}"),
        None => "keeps its limits".to_owned(),
    }
}

/// `cpu 1 core -> 2 cores, ram 1 GiB -> 512 MiB`; nothing for equal ones.
#[must_use]
pub fn limits_change(before: Resources, after: Resources) -> Option<String> {
    let amount = |d: Dimension, of: Resources| units::amount(d, of.get(d), Rounding::Up);
    let differs = |d: &Dimension| before.get(*d) != after.get(*d);
    let changed = Dimension::ALL.into_iter().filter(differs);
    let parts: Vec<String> =
        changed.map(|d| format!("{d} {} -> {}", amount(d, before), amount(d, after))).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn job_change(change: JobChange) -> String {
    match change {
        JobChange::Submitted => "submitted".into(),
        JobChange::Accepted => "accepted".into(),
        JobChange::Released => "released".into(),
        JobChange::UpdateOpened { version } => format!("update to version {version} opened"),
        JobChange::UpdateUndone { version } => format!("update undone, back to version {version}"),
        JobChange::UpdateClosed { version } => format!("update closed at version {version}"),
        JobChange::Resized { count } => {
            format!("resized to {}", pluralize(u64::from(count), "task"))
        }
        JobChange::Stopping => "told to stop".into(),
        JobChange::Succeeded => "succeeded".into(),
        JobChange::Failed => "failed".into(),
        JobChange::Killed => "killed".into(),
        JobChange::NeverRan => "never ran".into(),
        JobChange::LimitsChanged { version } => {
            format!("takes other limits as version {version}")
        }
        JobChange::MachinesMatched { tasks: 0 } => "has no machine".into(),
        JobChange::MachinesMatched { tasks } => {
            format!("has a task for each of {}", pluralize(u64::from(tasks), "machine"))
        }
        JobChange::MachinesLeftOut { machines: 0 } => "has quota for all of its machines".into(),
        JobChange::MachinesLeftOut { machines } => {
            format!("has no quota for {}", pluralize(u64::from(machines), "more machine"))
        }
        JobChange::StillWaits { left } => format!("still waits for {left} more"),
        JobChange::Purged => "forgotten".into(),
        JobChange::StartedAgain => "started again".into(),
    }
}

fn machine_change(change: MachineChange) -> String {
    match change {
        MachineChange::Added => "added".into(),
        MachineChange::Updated => "updated".into(),
        MachineChange::Removed => "removed".into(),
        MachineChange::Up { incarnation } => format!("up (incarnation {incarnation})"),
        MachineChange::Down => "down".into(),
        MachineChange::DrainStarted => "draining".into(),
        MachineChange::DrainStopped => "no longer draining".into(),
        MachineChange::PackagesChanged => "has other packages".into(),
        MachineChange::OverCommitted => "over-committed".into(),
        MachineChange::Recovered => "no longer over-committed".into(),
        MachineChange::DiskRetained { bytes } => format!("retains {bytes} bytes of disk"),
        MachineChange::DiskReleased { bytes } => format!("releases {bytes} bytes of disk"),
        MachineChange::PressureReported { dimension } => {
            format!("short of {dimension}, asks for an eviction")
        }
        MachineChange::PressureEvicted { dimension } => format!("evicts a task for {dimension}"),
        MachineChange::PressureEased { dimension } => {
            format!("short of {dimension} no longer, takes only production for a while yet")
        }
        MachineChange::PressureEnded { dimension } => {
            format!("has had enough {dimension} for a while, takes all work again")
        }
    }
}

fn user_change(change: UserChange) -> String {
    match change {
        UserChange::Added => "added".into(),
        UserChange::Removed => "removed".into(),
        UserChange::CapabilitiesChanged => "has other capabilities".into(),
        UserChange::QuotaChanged { band } => format!("has another {band} quota"),
        UserChange::QuotaExceeded { band } => format!("exceeds the {band} quota"),
        UserChange::QuotaRecovered { band } => format!("is within the {band} quota again"),
    }
}

fn token_change(change: TokenChange) -> &'static str {
    match change {
        TokenChange::Added => "added",
        TokenChange::Used => "used",
        TokenChange::Revoked => "revoked",
        TokenChange::Expired => "expired",
        TokenChange::Confirmed => "confirmed",
    }
}

fn blob_change(change: BlobChange) -> &'static str {
    match change {
        BlobChange::Added => "added",
        BlobChange::Removed => "removed",
    }
}
