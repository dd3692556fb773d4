//! The audit log: which caller requested what, and the outcome.
//!
//! Requests that went through the replicated log are recorded on every replica as they are applied,
//! which is before any answer is sent. Requests that were rejected at the listener never reach that
//! log and are recorded by the replica that rejected them. Both kinds are in one list with numbers
//! of its own. Reports of agents and proposals of schedulers are not in it: they are the cell at
//! work, not the request of a user.
//!
//! How much of it one user may fill is limited (`allowance`); requests beyond that are counted
//! there.
//!
//! It is not synced line by line: applied requests can be derived again from the replicated log,
//! and a power cut may cost the last rejections, never a change.

mod allowance;

use crate::record_body;
use crate::segments::{Record, RetentionLimits, Segments};
use allowance::Allowances;
use cellwright_api::error::code_of;
use cellwright_cell::command::{Actor, ApplyOutcome, Command, Done, Entry, TasksToStart, Verdict};
use cellwright_cell::credential::TokenKind;
use cellwright_cell::reason::Rejection;
use cellwright_cell::time::Time;
use cellwright_store::Disk;
use cellwright_supervise::lock;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

const DIR: &str = "audit";
/// Of the bodies of its records; it is raised as that of the event log is.
const FORMAT: u16 = 1;
const READ_BYTES: usize = 4 << 20;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    pub caller: String,
    /// `submit_job`, `set_quota`, or method and path of a rejected request.
    pub command: String,
    pub object: String,
    /// `done`, `unchanged`, or the code of the rejection.
    pub verdict: String,
}

impl AuditLine {
    fn new(caller: &str, command: &str, object: &str, verdict: &str) -> AuditLine {
        let [caller, command, object, verdict] =
            [caller, command, object, verdict].map(str::to_owned);
        AuditLine { caller, command, object, verdict }
    }
}

/// One request, its place in the list, and its place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub number: u64,
    /// Position among the requests of one entry.
    pub position: u32,
    /// Log index: of the entry, or of the last one applied before a rejection at the listener.
    pub index: u64,
    pub at: Time,
    pub line: AuditLine,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    pub items: Vec<AuditEntry>,
    /// Lines between the cursor and the first of these are missing.
    pub gap: bool,
    /// Everything after this number is present.
    pub reaches_back_to: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AuditBody {
    /// Every record contains how far the log had been applied, so that the newest record is enough
    /// to know where to continue.
    pub(crate) index: u64,
    pub(crate) lines: Vec<AuditLine>,
    /// Not from the log: no other replica has these.
    pub(crate) is_local: bool,
}

pub struct AuditLog {
    pub(crate) segments: Segments,
    /// Log index of the last entry recorded.
    last_recorded: Mutex<u64>,
    allowances: Mutex<Allowances>,
}

impl AuditLog {
    /// # Errors
    /// When the files cannot be read.
    pub fn open(disk: Arc<dyn Disk>, keep: RetentionLimits) -> io::Result<AuditLog> {
        let (segments, found) = Segments::open(disk, DIR, keep)?;
        let last = segments.last_record()?;
        let applied = last.as_ref().map(decode).transpose()?;
        let applied = applied.map_or(0, |body| body.index).max(found.covered);
        // Entries are recorded again from the log; rejections of this replica cannot be.
        if let Some(lost) = found.lost {
            segments.skip_to(lost)?;
        }
        let allowances = Mutex::new(Allowances::new(u64::MAX, keep.age));
        Ok(AuditLog { segments, last_recorded: Mutex::new(applied), allowances })
    }

    /// Limits the bytes that the requests of one user may take of the retained log.
    pub fn set_user_allowance(&self, per_user: u64, keep: RetentionLimits) {
        *lock(&self.allowances) = Allowances::new(per_user, keep.age);
    }

    /// Records the requests of people in one entry. An entry that is already recorded is skipped.
    ///
    /// # Errors
    /// When the disk fails. The caller must not answer then.
    pub fn append(&self, index: u64, entry: &Entry, verdicts: &[Verdict]) -> io::Result<()> {
        let mut applied = self.lock();
        if index <= *applied {
            return Ok(());
        }
        let requests = entry.requests.iter().zip(verdicts);
        let lines: Vec<AuditLine> = requests
            .filter(|(request, verdict)| is_audited(&request.by, &request.command, verdict))
            .map(|(request, verdict)| {
                audit_line(request.by.to_string(), &request.command, verdict_code(verdict))
            })
            .collect();
        let lines = lock(&self.allowances).admit(entry.now, lines);
        if !lines.is_empty() {
            self.write(entry.now, AuditBody { index, lines, is_local: false })?;
        }
        *applied = index;
        Ok(())
    }

    /// Records a request that is not in the replicated log: one that was rejected before it reached
    /// the log, or one that is about the replicas themselves.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn append_unlogged(
        &self,
        at: Time,
        caller: &str,
        command: &str,
        object: &str,
        verdict: &str,
    ) -> io::Result<()> {
        // Paths come from outside and may be long.
        let short = |text: &str| text.chars().take(300).collect::<String>();
        let line = AuditLine {
            caller: short(caller),
            command: short(command),
            object: short(object),
            verdict: verdict.to_owned(),
        };
        let applied = self.lock();
        let lines = lock(&self.allowances).admit(at, vec![line]);
        if lines.is_empty() {
            Ok(())
        } else {
            self.write(at, AuditBody { index: *applied, lines, is_local: true })
        }
    }

    /// This replica starts from a snapshot at `index`; requests before it are a gap unless they are
    /// recorded here.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn skip_to_snapshot(&self, index: u64) -> io::Result<()> {
        let mut applied = self.lock();
        if index > *applied && index > 0 {
            // Leaves a number for one record of each entry that was missed.
            self.segments.skip_to(self.segments.last() + (index - *applied))?;
            *applied = index;
        }
        Ok(())
    }

    /// # Errors
    /// When the disk fails.
    pub fn sync(&self, covered: u64) -> io::Result<()> {
        self.segments.sync(covered)
    }

    /// # Errors
    /// When a file cannot be removed.
    pub fn trim(&self, now: Time) -> io::Result<()> {
        self.segments.trim(now)
    }

    /// Lines after the one at `position` of record `number`, oldest first, at most `most`.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn read_after(&self, number: u64, position: u32, most: usize) -> io::Result<AuditPage> {
        let from = number.saturating_add(u64::from(position == u32::MAX));
        let batch = self.segments.read_from(from, READ_BYTES)?;
        let reaches_back_to = self.segments.reaches_back_to();
        let mut page = AuditPage { items: Vec::new(), gap: batch.has_gap, reaches_back_to };
        let seen = batch.records.last().map(|record| record.number);
        for record in batch.records {
            let body = decode(&record)?;
            for (line_index, line) in body.lines.into_iter().enumerate() {
                let line_index = u32::try_from(line_index).unwrap_or(u32::MAX);
                if record.number == number && line_index <= position {
                    continue;
                }
                if page.items.len() >= most {
                    return Ok(page);
                }
                let (number, at) = (record.number, record.at);
                page.items.push(AuditEntry {
                    number,
                    position: line_index,
                    index: body.index,
                    at,
                    line,
                });
            }
        }
        match seen {
            // The cursor was on the last line of these: what follows may lie behind a gap.
            Some(seen) if page.items.is_empty() => self.read_after(seen, u32::MAX, most),
            _ => Ok(page),
        }
    }

    /// Under the lock of `last_recorded`, so that numbers and indexes grow together.
    fn write(&self, at: Time, body: AuditBody) -> io::Result<()> {
        let bytes = encode(&body)?;
        self.segments.append(self.segments.last() + 1, at, &bytes)?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        lock(&self.last_recorded)
    }
}

pub(crate) fn encode(body: &AuditBody) -> io::Result<Vec<u8>> {
    record_body::seal(FORMAT, body, 0)
}

pub(crate) fn decode(record: &Record) -> io::Result<AuditBody> {
    record_body::open(DIR, record.number, FORMAT, &record.payload)
}

/// Everything that people request and that masters write is audited. Of the other parts of the
/// cell, only their requests to the public API and the requests they had no permission for are;
/// their normal work is in the events.
fn is_audited(by: &Actor, command: &Command, verdict: &Verdict) -> bool {
    match by {
        Actor::User(_) | Actor::Operator | Actor::Replica(_) | Actor::Task { .. } => true,
        Actor::Agent(_) | Actor::Scheduler(_) | Actor::Controller(_) => {
            let is_public = matches!((by, command), (Actor::Agent(_), Command::Component(_)));
            is_public || matches!(verdict, Err(Rejection::WrongActor { .. }))
        }
    }
}

fn verdict_code(verdict: &Verdict) -> &'static str {
    match verdict {
        Ok(
            Done::Unchanged
            | Done::Job { became: ApplyOutcome::Unchanged | ApplyOutcome::Ended, .. },
        ) => "unchanged",
        Ok(Done::Partly(_)) => "partly",
        Ok(Done::Applied | Done::Version(_) | Done::Revoked(_) | Done::Job { .. }) => "done",
        Err(rejection) => code_of(rejection).as_str(),
    }
}

fn audit_line(caller: String, command: &Command, verdict: &str) -> AuditLine {
    let (command, object) = describe(command);
    AuditLine { caller, command: command.to_owned(), object, verdict: verdict.to_owned() }
}

/// The name of a command, and the object it is about.
#[must_use]
pub fn describe(command: &Command) -> (&'static str, String) {
    use Command as C;
    let row = |machine: &cellwright_cell::id::MachineId| format!("machine#{}", machine.0);
    match command {
        C::Component(command) => (command.as_component().name(), command.as_component().object()),
        C::SubmitJob { owner, spec } => ("submit_job", format!("{owner}/{}", spec.name)),
        C::UpdateJob { owner, spec, .. } => ("update_job", format!("{owner}/{}", spec.name)),
        C::ApplyJob { owner, spec, .. } => ("apply_job", format!("{owner}/{}", spec.name)),
        C::ResizeJob { job, .. } => ("resize_job", job.to_string()),
        C::ResizeLimits { job, .. } => ("resize_limits", job.to_string()),
        C::StopJob { job, .. } => ("stop_job", job.to_string()),
        C::StopTask { job, index, .. } => ("stop_task", format!("{job}/{index}")),
        C::StopWithin { job, index: None, .. } => ("stop_job", job.to_string()),
        C::StopWithin { job, index: Some(index), .. } => ("stop_task", format!("{job}/{index}")),
        C::GiveBack { job } => ("give_back", job.to_string()),
        C::RestartTasks { job, index: None } => ("restart_job", job.to_string()),
        C::RestartTasks { job, index: Some(index) } => ("restart_task", format!("{job}/{index}")),
        C::StepRestart { job, index } => ("step_restart", format!("{job}/{index}")),
        C::StartTasks { job, which: TasksToStart::Failed } => ("start_failed", job.to_string()),
        C::StartTasks { job, which: TasksToStart::One(index) } => {
            ("start_task", format!("{job}/{index}"))
        }
        C::UndoUpdate { job, .. } => ("undo_update", job.to_string()),
        C::CloseUpdate { job, .. } => ("close_update", job.to_string()),
        C::StepUpdate { job, .. } => ("step_update", job.to_string()),
        C::MatchMachines { job } => ("match_machines", job.to_string()),
        C::AddUser { name } => ("add_user", name.to_string()),
        C::RemoveUser { name, .. } => ("remove_user", name.to_string()),
        C::SetCapabilities { user, .. } => ("set_capabilities", user.to_string()),
        C::SetQuota { user, band, .. } => ("set_quota", format!("{user} {band:?}").to_lowercase()),
        C::AddToken { id, kind, .. } => ("add_token", format!("{id} for {}", token_holder(kind))),
        C::RevokeToken { id } => ("revoke_token", id.to_string()),
        C::UseJoinToken { id, .. } => ("use_join_token", id.to_string()),
        C::ConfirmReplica { name, key } => ("confirm_master", format!("{name} with key {key}")),
        C::AddBlob { digest, .. } => ("add_package", digest.to_string()),
        C::RemoveBlob { digest } => ("remove_package", digest.to_string()),
        C::SetBounds(_) => ("set_bounds", "cell".to_owned()),
        C::AddMachine(spec) => ("add_machine", spec.name.to_string()),
        C::UpdateMachine { spec, .. } => ("update_machine", spec.name.to_string()),
        C::RemoveMachine { name, .. } | C::RemoveEmptyMachine { name, .. } => {
            ("remove_machine", name.to_string())
        }
        C::StartDrain { name, .. } | C::DrainWithin { name, .. } => {
            ("start_drain", name.to_string())
        }
        C::StopDrain { name, .. } => ("stop_drain", name.to_string()),
        C::MachineUp { machine, .. } => ("machine_up", row(machine)),
        C::MachineDown { machine } => ("machine_down", row(machine)),
        C::SetMachinePackages { machine, .. } => ("set_machine_packages", row(machine)),
        C::TaskReports { machine, .. } => ("task_reports", row(machine)),
        C::ReleaseRetained { machine, .. } => ("release_retained", row(machine)),
        C::PurgeJobs { .. } => ("purge_jobs", String::new()),
        C::CommitPlan(_) => ("commit_plan", String::new()),
        C::Evict { task, .. } => ("evict", format!("task#{}", task.0)),
        C::ReserveHold(target) => ("reserve_hold", format!("task#{}", target.task.0)),
        C::ReleaseHold { task, .. } => ("release_hold", format!("task#{}", task.0)),
        C::Expire => ("expire", String::new()),
        C::SetReservations(_) => ("set_reservations", String::new()),
        C::RaiseLevel { level } => ("raise_level", level.to_string()),
        C::RegisterMachine(spec) => ("register_machine", spec.name.to_string()),
        C::LogSaverFailed { machine, .. } => ("log_saver_failed", row(machine)),
        C::SetResourcePressure { machine, .. } => ("set_resource_pressure", row(machine)),
        C::RevokePart { part, name } => ("revoke_part", format!("{part}/{name}")),
    }
}

fn token_holder(kind: &TokenKind) -> String {
    match kind {
        TokenKind::UserToken { user } => format!("user/{user}"),
        TokenKind::JoinAgent { machine } => format!("agent/{machine}"),
        TokenKind::JoinReplica { name } => format!("master/{name}"),
        TokenKind::JoinScheduler { name } => format!("scheduler/{name}"),
        TokenKind::Revocation { part, name } => format!("{part}/{name}, which was revoked"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;
    use cellwright_cell::command::{ControllerName, Request};
    use cellwright_cell::name::Name;
    use cellwright_cell::state::State;
    use cellwright_cell::time::Span;

    const KEEP: RetentionLimits =
        RetentionLimits { segment_bytes: 300, total_bytes: 1 << 20, age: Span::seconds(1_000_000) };

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn request(by: Actor, command: Command) -> Request {
        Request { by, id: None, command }
    }

    /// One entry: the cell makes a user, ann makes one without being allowed to.
    fn record_entry(log: &AuditLog, state: &mut State, index: u64, user: &str) {
        let made = Command::AddUser { name: name(user) };
        let wished = Command::AddUser { name: name("eve") };
        let requests =
            vec![request(Actor::Operator, made), request(Actor::User(name("ann")), wished)];
        let entry = Entry { now: Time(index * 10), requests };
        let verdicts = state.apply(&entry, &mut Vec::new());
        assert!(verdicts[0].is_ok() && verdicts[1].is_err());
        log.append(index, &entry, &verdicts).unwrap();
    }

    fn rows(log: &AuditLog, number: u64, position: u32) -> Vec<String> {
        let page = log.read_after(number, position, 100).unwrap();
        let text = |item: AuditEntry| {
            let AuditLine { caller, command, object, verdict } = item.line;
            format!("{} {} {caller} {command} {object} {verdict}", item.number, item.index)
        };
        page.items.into_iter().map(text).collect()
    }

    #[test]
    fn wishes_and_refusals_stand_in_one_list() {
        let folder = TempFolder::new();
        let log = AuditLog::open(folder.disk(), KEEP).unwrap();
        let mut state = State::default();
        record_entry(&log, &mut state, 3, "ann");
        log.append_unlogged(Time(35), "192.0.2.1", "GET /v1/jobs", "", "no-identity").unwrap();
        record_entry(&log, &mut state, 4, "bob");
        let expected = [
            "1 3 operator add_user ann done",
            "1 3 user:ann add_user eve not-allowed",
            "2 3 192.0.2.1 GET /v1/jobs  no-identity",
            "3 4 operator add_user bob done",
            "3 4 user:ann add_user eve not-allowed",
        ];
        assert_eq!(rows(&log, 0, u32::MAX), expected);
        assert_eq!(rows(&log, 1, 0), expected[1..]);
        assert_eq!(rows(&log, 2, u32::MAX), expected[3..]);
    }

    /// The normal work of parts is in the events; what they try without permission is audited.
    #[test]
    fn parts_are_audited_for_what_is_not_theirs() {
        let folder = TempFolder::new();
        let log = AuditLog::open(folder.disk(), KEEP).unwrap();
        let add = || Command::AddUser { name: name("eve") };
        let requests = vec![
            request(Actor::Agent(name("n1")), add()),
            request(Actor::Scheduler(name("s1")), add()),
            request(Actor::Controller(ControllerName::Drain), add()),
            request(Actor::Controller(ControllerName::Expire), Command::Expire),
            request(Actor::Replica(name("m1")), Command::RaiseLevel { level: 1 }),
        ];
        let entry = Entry { now: Time(10), requests };
        let verdicts = State::default().apply(&entry, &mut Vec::new());
        log.append(1, &entry, &verdicts).unwrap();
        let expected = [
            "1 1 agent:n1 add_user eve wrong-actor",
            "1 1 scheduler:s1 add_user eve wrong-actor",
            "1 1 controller:drain add_user eve wrong-actor",
            "1 1 replica:m1 raise_level 1 unchanged",
        ];
        assert_eq!(rows(&log, 0, u32::MAX), expected);
    }

    #[test]
    fn entries_applied_again_are_not_taken_down_twice() {
        let folder = TempFolder::new();
        let log = AuditLog::open(folder.disk(), KEEP).unwrap();
        record_entry(&log, &mut State::default(), 3, "ann");
        log.append_unlogged(Time(35), "x", "y", "", "no-identity").unwrap();
        log.sync(3).unwrap();
        drop(log);
        let log = AuditLog::open(folder.disk(), KEEP).unwrap();
        log.skip_to_snapshot(0).unwrap();
        let mut state = State::default();
        record_entry(&log, &mut state, 3, "ann");
        record_entry(&log, &mut state, 4, "bob");
        assert_eq!(rows(&log, 0, u32::MAX).len(), 5);
        log.skip_to_snapshot(9).unwrap();
        record_entry(&log, &mut state, 10, "cid");
        let page = log.read_after(3, u32::MAX, 10).unwrap();
        assert_eq!((page.items.len(), page.gap), (2, true));
    }

    #[test]
    fn every_command_of_a_user_has_its_own_name_and_no_secret() {
        let (kind, object) = describe(&Command::AddToken {
            id: name("t1"),
            kind: TokenKind::JoinAgent { machine: name("n7") },
            secret_hash: cellwright_cell::credential::SecretHash([7; 32]),
            valid_for: Span(1),
            parent: None,
        });
        assert_eq!((kind, object.as_str()), ("add_token", "t1 for agent/n7"));
        let (kind, object) = describe(&Command::Expire);
        assert_eq!((kind, object.as_str()), ("expire", ""));
    }
}
