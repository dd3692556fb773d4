//! Events, verdicts and reasons as a person would say them, one line each, with names instead of
//! rows. Golden transcripts and the CLI speak with this voice alone, so that what a test pins is
//! what people read.
//!
//! A row that is gone has no name any more; it is then called by its number (`task#7`), but for the
//! machine of a task, of which it is said that it is gone.

use crate::command::{ApplyOutcome, Done, Verdict};
use crate::credential::TokenKind;
use crate::event::{
    BlobChange, Event, EventKind, JobChange, MachineChange, TaskChange, TokenChange, UserChange,
};
use crate::id::{BlobId, JobId, MachineId, TaskId, TokenId, UserId};
use crate::reason::{InfeasibleReason, Reason, Rejection};
use crate::spec::Domain;
use crate::state::State;
use crate::task::ExitClass;
use crate::time::Time;
use crate::units::{pluralize, times_text};

/// `ubar/jfoo/3 scheduled on m17: found a place`.
#[must_use]
pub fn event(state: &State, event: &Event) -> String {
    let why = reason(state, &event.reason);
    match &event.what {
        EventKind::Component(event) => format!("{}: {why}", event.as_component().describe(state)),
        EventKind::Task { job, index, change, .. } => {
            let how = exit_prefix(state, *change, &event.reason);
            let change = task_change(state, *change);
            format!("{}/{index} {change}: {how}{why}", job_name(state, *job))
        }
        EventKind::Job { job, change } => {
            format!("{} {}: {why}", job_name(state, *job), job_change(*change))
        }
        EventKind::JobRejected { user, job, refusal: cause } => {
            format!("{user}/{job} rejected: {}", rejection(state, cause))
        }
        EventKind::Machine { machine, change } => {
            format!("{} {}: {why}", machine_name(state, *machine), machine_change(*change))
        }
        EventKind::User { user, change } => {
            format!("{} {}: {why}", user_name(state, *user), user_change(*change))
        }
        EventKind::LevelRaised { level } => format!("cell raised to level {level}: {why}"),
        EventKind::BoundsChanged => format!("limits for each user changed: {why}"),
        EventKind::Token { token, change } => {
            format!("{} {}: {why}", token_name(state, *token), token_change(*change))
        }
        EventKind::Blob { blob, change } => {
            format!("{} {}: {why}", blob_name(state, *blob), blob_change(*change))
        }
    }
}

/// What became of a command.
#[must_use]
pub fn verdict(state: &State, verdict: &Verdict) -> String {
    match verdict {
        Ok(Done::Applied) => "done".into(),
        Ok(Done::Unchanged) => "nothing to do".into(),
        Ok(Done::Version(version)) => format!("done, now at version {version}"),
        Ok(Done::Revoked(tokens)) => {
            format!("done, {} revoked", pluralize(u64::from(*tokens), "token"))
        }
        Ok(Done::Job { became, version, closed }) => apply_outcome(*became, *version, *closed),
        Ok(Done::Partly(refused)) => {
            let item =
                |(at, why): &(u32, Rejection)| format!("item {at}: {}", rejection(state, why));
            let list: Vec<String> = refused.iter().map(item).collect();
            format!("done in part; refused: {}", list.join("; "))
        }
        Err(why) => format!("refused: {}", rejection(state, why)),
    }
}

fn apply_outcome(became: ApplyOutcome, version: u32, closed: Option<u32>) -> String {
    let first = closed.map(|closed| format!("update closed at version {closed}, then "));
    let first = first.unwrap_or_default();
    match became {
        ApplyOutcome::Created => format!("created at version {version}"),
        ApplyOutcome::Updated => format!("{first}being updated to version {version}"),
        ApplyOutcome::Unchanged => format!("nothing to do, it is at version {version}"),
    }
}

/// Why a command did not take effect.
#[must_use]
pub fn rejection(state: &State, refusal: &Rejection) -> String {
    let task = |id: &TaskId| state.task_name(*id);
    match refusal {
        Rejection::StaleAttempt { task: id, expected, found } => {
            format!("{} is at attempt {found}, not {expected}", task(id))
        }
        Rejection::WrongTaskState { task: id, state: now, action } => {
            format!("{} is {}, which does not allow {action}", task(id), task_state(*now))
        }
        Rejection::DoesNotFit { task: id, machine, misfit: why } => {
            let machine = machine_name(state, *machine);
            format!("{} does not fit on {machine}: {}", task(id), infeasible_reason(state, why))
        }
        Rejection::TooEarly { task: id, not_before } => {
            format!("{} may not start before {not_before} ms (back-off or lease)", task(id))
        }
        Rejection::NeedlessVictim(id) => {
            format!("{} need not give way: the group fits without that", task(id))
        }
        Rejection::BudgetExhausted { job, down, max } => {
            let name = job_name(state, *job);
            let down = pluralize(u64::from(*down), "task");
            format!("{name} has {down} down already, at most {max} allowed")
        }
        Rejection::DisruptedTooOften { job, most, within, next } => {
            let (name, within) = (job_name(state, *job), within.0);
            let next = match *next {
                Time::NEVER => "never so many at once".to_owned(),
                next => format!("the next at {} ms", next.0),
            };
            let most = pluralize(u64::from(*most), "task");
            format!("{name} has at most {most} disrupted within {within} ms, {next}")
        }
        // The rest hold names already.
        other => other.to_string(),
    }
}

/// Why a task does not fit on a machine.
#[must_use]
pub fn infeasible_reason(state: &State, misfit: &InfeasibleReason) -> String {
    match misfit {
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
        InfeasibleReason::DynamicPorts { asked, available } => {
            format!("{} asked, {available} free", pluralize(u64::from(*asked), "port"))
        }
        InfeasibleReason::Device { kind, asked, milli, available } => {
            format!("{asked} {kind} with {milli} milli free asked, {available} available")
        }
        InfeasibleReason::Named { name, asked, available } => {
            format!("{name}: asked {asked}, available {available}")
        }
        InfeasibleReason::Resource(shortfall) => shortfall.to_string(),
        InfeasibleReason::Volume(loan) => format!("the machine does not lend {loan}"),
        InfeasibleReason::MachineShort => {
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
        Reason::Exited(exit) => exit_text(state, *exit),
        Reason::NotRetried { exit, forgiven } => not_retried(*exit, *forgiven),
        Reason::MachineShort(dimension) => {
            format!("the machine is short of {dimension}, and throttling did not help")
        }
        Reason::NeededFailed { job } => {
            format!("{} ({})", reason_text(reason.code()), job_name(state, *job))
        }
        plain => reason_text(plain.code()).into(),
    }
}

/// The same from a reason's code alone, for whoever has no more of it: a row of history. A code of
/// a newer build is its own word.
#[must_use]
pub fn reason_text(code: &str) -> &str {
    match code {
        "requested" => "requested",
        "admitted" => "well formed and within quota",
        "found-place" => "found a place",
        "agent-report" => "seen by the machine's agent",
        "preempted" => "preempted",
        "drained" => "the machine is drained",
        "over-committed" => "the machine holds more than it has",
        "alloc-moved" => "its alloc stops or moves away",
        "update-in-place" => "new spec, no restart needed",
        "update-restart" => "new spec needs a restart",
        "update-move" => "new spec needs another place",
        "update-skipped" => "the update has caused as many disruptions as it may",
        "unhealthy" => "failed its health check",
        "exited" => "ended by itself",
        "succeeded" => "succeeded",
        "machine-down" => "the machine is down",
        "machine-removed" => "the machine was removed",
        "dependency-met" => "a job it waited for has ended",
        "dependency-failed" => "a job it needed did not succeed",
        "too-many-failures" => "its job allows no more failures",
        "not-retried" => "not retried",
        "all-tasks-ended" => "all tasks have ended",
        "lease-expired" => "the lease has run out",
        "excess" => "more is held than there is",
        "excess-gone" => "no more is held than there is",
        "reservation" => "the estimate of its usage changed",
        "retention" => "kept for a log saver",
        "rebalanced" => "better off elsewhere",
        "slot-due" => "its time has come",
        "last-run-active" => "the last run still goes on",
        "machine-short" => "the machine is short, and throttling did not help",
        "no-longer-runs" => "the task it is for does not run as it did",
        "quota" => "over quota",
        newer => newer,
    }
}

/// How an attempt ended.
#[must_use]
pub fn exit_text(state: &State, exit: ExitClass) -> String {
    match exit {
        ExitClass::GaveWayTo(other) => {
            let other = state.task_name(other);
            format!("killed for memory, of which {other} used more than was expected")
        }
        plain => exit_class_text(plain.code(), plain.number().map(i64::from)),
    }
}

/// The same from the class's code and its number, as history has them.
#[must_use]
pub fn exit_class_text(class: &str, number: Option<i64>) -> String {
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

/// An event as history has it: names and codes.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryEvent<'a> {
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
pub fn history_event(event: &HistoryEvent<'_>) -> String {
    let HistoryEvent { object, reason, detail, .. } = *event;
    let mut text = format!("{object} {}", event.event.replace('-', " "));
    if let Some(machine) = event.machine.filter(|machine| *machine != object) {
        text.push_str(&format!(" on {machine}"));
    }
    // One that was undone ends by itself, with nobody's request.
    if (event.event, reason) != ("update-closed", "requested") {
        text.push_str(&format!(": {}", reason_and_exit_text(event)));
    }
    match (reason, detail) {
        ("preempted", Some(by)) => text.push_str(&format!(" {by}")),
        (_, Some(detail)) => text.push_str(&format!(" ({detail})")),
        _ => {}
    }
    text
}

/// In the words of explanations; that a run ended by itself is said by how.
fn reason_and_exit_text(event: &HistoryEvent<'_>) -> String {
    let why = reason_text(event.reason);
    let ended = event.exit_class.map(|class| exit_class_text(class, event.exit_code));
    match ended {
        Some(ended) if event.reason == "exited" => ended,
        Some(ended) => format!("{ended}, {why}"),
        None => why.to_owned(),
    }
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

/// A rule of its own says how the attempt ended, any other reason does not.
fn exit_prefix(state: &State, change: TaskChange, why: &Reason) -> String {
    match change {
        TaskChange::GaveUp { exit, .. } if !matches!(why, Reason::NotRetried { .. }) => {
            format!("{}, ", exit_text(state, exit))
        }
        _ => String::new(),
    }
}

fn task_change(state: &State, change: TaskChange) -> String {
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
        TaskChange::SaverFailed { machine } => {
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
    }
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
        JobChange::StillWaits { left } => format!("still waits for {left} more"),
        JobChange::Purged => "forgotten".into(),
    }
}

fn machine_change(change: MachineChange) -> String {
    match change {
        MachineChange::Added => "added".into(),
        MachineChange::Updated => "updated".into(),
        MachineChange::Removed => "removed".into(),
        MachineChange::Up { incarnation } => format!("up (life {incarnation})"),
        MachineChange::Down => "down".into(),
        MachineChange::DrainStarted => "draining".into(),
        MachineChange::DrainStopped => "no longer draining".into(),
        MachineChange::PackagesChanged => "has other packages".into(),
        MachineChange::OverCommitted => "over-committed".into(),
        MachineChange::Recovered => "no longer over-committed".into(),
        MachineChange::DiskRetained { bytes } => format!("retains {bytes} bytes of disk"),
        MachineChange::DiskReleased { bytes } => format!("releases {bytes} bytes of disk"),
        MachineChange::Short { dimension } => format!("short of {dimension}, asks for relief"),
        MachineChange::Relieved { dimension } => format!("relieved of a task for {dimension}"),
        MachineChange::Eased { dimension } => {
            format!("short of {dimension} no longer, takes only production for a while yet")
        }
        MachineChange::EasedForGood { dimension } => {
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

fn task_state(state: crate::task::TaskState) -> &'static str {
    use crate::task::TaskState as S;
    match state {
        S::Deferred => "deferred",
        S::Pending => "pending",
        S::Assigned => "assigned",
        S::Running => "running",
        S::Stopping(_) => "stopping",
        S::Dead(_) => "dead",
    }
}

fn domain_name(domain: Domain) -> &'static str {
    match domain {
        Domain::Machine => "the machine",
        Domain::Rack => "its rack",
        Domain::Power => "its power domain",
    }
}

pub(crate) fn job_name(state: &State, job: JobId) -> String {
    state.job_key(job).map_or_else(|| format!("job#{}", job.0), |key| key.to_string())
}

/// As its operator named it, or by its number once it is gone.
#[must_use]
pub fn machine_name(state: &State, machine: MachineId) -> String {
    let row = state.machines().get(machine);
    row.map_or_else(|| format!("machine#{}", machine.0), |row| row.spec.name.to_string())
}

fn user_name(state: &State, user: UserId) -> String {
    let row = state.users().get(user);
    row.map_or_else(|| format!("user#{}", user.0), |row| format!("user {}", row.name))
}

fn token_name(state: &State, token: TokenId) -> String {
    let Some(row) = state.tokens().get(token) else { return format!("token#{}", token.0) };
    match &row.kind {
        TokenKind::UserToken { user } => format!("token {} of user {user}", row.id),
        TokenKind::JoinAgent { machine } => format!("token {} for machine {machine}", row.id),
        TokenKind::JoinReplica { name } => format!("token {} for replica {name}", row.id),
        TokenKind::JoinScheduler { name } => format!("token {} for scheduler {name}", row.id),
        TokenKind::Dismissed { part, name } => format!("dismissal of {part} {name}"),
    }
}

fn blob_name(state: &State, blob: BlobId) -> String {
    let row = state.blobs().get(blob);
    row.map_or_else(
        || format!("package#{}", blob.0),
        |row| format!("package {}", row.short_digest()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, Observed};
    use crate::id::TaskId;
    use crate::name::Token;
    use crate::time::Time;

    fn check(cell: &mut Cell, command: Command, want: &[&str]) {
        cell.ok(command);
        assert_eq!(cell.event_lines, want);
    }

    #[test]
    fn a_life_reads_like_a_story() {
        let mut cell = Cell::with_machines(1);
        let submit = Command::SubmitJob { owner: name("ubar"), spec: job("jfoo", 1, 100) };
        check(
            &mut cell,
            submit,
            &[
                "ubar/jfoo submitted: requested",
                "ubar/jfoo accepted: well formed and within quota",
                "ubar/jfoo/0 submitted: well formed and within quota",
            ],
        );
        cell.run("jfoo", 0, "m1");
        assert_eq!(cell.event_lines, ["ubar/jfoo/0 started on m1: seen by the machine's agent"]);
        let stop = Command::StopJob { job: key("ubar/jfoo"), expect: None };
        let expected_events =
            ["ubar/jfoo told to stop: requested", "ubar/jfoo/0 told to stop on m1: requested"];
        check(&mut cell, stop, &expected_events);
        cell.report("jfoo", 0, Observed::Stopped);
        let expected = ["ubar/jfoo/0 killed: requested", "ubar/jfoo killed: all tasks have ended"];
        assert_eq!(cell.event_lines, expected);
        // Of what is forgotten only the numbers are left.
        let purge = Command::PurgeJobs { ended_before: Time::NEVER };
        check(&mut cell, purge, &["job#0/0 forgotten: requested", "job#0 forgotten: requested"]);
    }

    #[test]
    fn a_task_of_a_machine_that_is_gone_is_told_without_numbers() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        let lost = |machine| task_change(&cell.state, TaskChange::Lost { machine });
        assert_eq!(lost(MachineId(0)), "lost with m1, pending again");
        assert_eq!(lost(MachineId(9)), "lost with a machine that is gone, pending again");
        let spread = InfeasibleReason::Spread { domain: Domain::Machine, limit: 1 };
        assert_eq!(
            infeasible_reason(&cell.state, &spread),
            "the machine holds 1 task of the job already"
        );
    }

    #[test]
    fn every_code_has_words_of_its_own() {
        let plain = ["requested", "succeeded", "preempted"];
        for code in Reason::CODES {
            let words = reason_text(code);
            assert_eq!(words == code, plain.contains(&code), "{code}");
        }
        assert_eq!(reason_text("of-a-newer-build"), "of-a-newer-build");
    }

    #[test]
    fn what_is_given_up_says_where_and_how_it_ended() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        spec.restart.max_failures = Some(0);
        cell.submit(&spec);
        let mut next = job("jbar", 1, 100);
        next.after =
            vec![crate::dependency::JobDependency { job: key("ubar/jfoo"), require_success: true }];
        cell.submit(&next);
        cell.run("jfoo", 0, "m1");
        cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(3)));
        let expected_events = [
            "ubar/jfoo/0 failed for good on m1: exited with code 3, \
             its job allows no more failures",
            "ubar/jfoo failed: all tasks have ended",
            "ubar/jbar/0 never ran: a job it needed did not succeed (ubar/jfoo)",
            "ubar/jbar never ran: a job it needed did not succeed (ubar/jfoo)",
        ];
        assert_eq!(cell.event_lines, expected_events);
    }

    #[test]
    fn an_update_that_ended_by_itself_was_not_requested() {
        let mut event =
            HistoryEvent { object: "ann/web", reason: "requested", ..Default::default() };
        (event.event, event.detail) = ("update-closed", Some("version 1"));
        assert_eq!(history_event(&event), "ann/web update closed (version 1)");
        event.event = "update-opened";
        assert_eq!(history_event(&event), "ann/web update opened: requested (version 1)");
    }

    #[test]
    fn reasons_name_the_port_its_holder_and_the_numbers() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        let check = |why: InfeasibleReason, want: &str| {
            assert_eq!(infeasible_reason(&cell.state, &why), want)
        };
        check(
            InfeasibleReason::StaticPort { port: 80, holder: Some(TaskId(0)) },
            "port 80 is held by ubar/jfoo/0",
        );
        check(
            InfeasibleReason::StaticPort { port: 80, holder: Some(TaskId(9)) },
            "port 80 is held by task#9",
        );
        check(
            InfeasibleReason::Spread { domain: Domain::Rack, limit: 2 },
            "its rack holds 2 tasks of the job already",
        );
        let kind = Token::new("gpu").unwrap();
        check(
            InfeasibleReason::Device { kind, asked: 2, milli: 500, available: 1 },
            "2 gpu with 500 milli free asked, 1 available",
        );
        let by = Reason::Preempted { by: TaskId(0) };
        assert_eq!(reason(&cell.state, &by), "preempted by ubar/jfoo/0");
        let partly = Done::Partly(vec![(3, Rejection::NeedlessVictim(TaskId(0)))]);
        assert_eq!(
            verdict(&cell.state, &Ok(partly)),
            "done in part; refused: item 3: ubar/jfoo/0 need not give way: \
             the group fits without that"
        );
    }
}
