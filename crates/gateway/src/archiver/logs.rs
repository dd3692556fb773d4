//! The output of attempts that are over, of jobs that asked to keep it. It is read from the machine
//! that has it, as a person would read it, and written in lines of JSON: the first says whose it
//! is, the others are what was written, by stream and time.
//!
//! Machines keep output for a while (`crates/agent/src/state_dir.rs`), so one that is silent is
//! asked again. Where it is gone for good, that is written in its place, and nobody asks again.
//!
//! Rejected: agents that write to the store themselves. Each machine would hold its credentials.

use super::{Archive, Archiver};
use crate::http::output::{Agent, Attempt, read_piece};
use crate::http::replica_services::ReplicaServices;
use bytes::Bytes;
use cellwright_api::client::ClientError;
use cellwright_api::client::agent::AgentConnection;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::output::{OutputQuery, STREAM_START, StreamSelection};
use cellwright_api::types::{ARCHIVED_LOG_FORMAT, ArchivedLogHead};
use cellwright_archive::names::LogObject;
use cellwright_archive::{GzipWriter, StoreError};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use cellwright_cell::time::Time;
use futures::{StreamExt, stream};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Attempts of a task that are looked for, from the last one back: machines keep no more.
const MAX_ATTEMPTS: u32 = 50;
/// Attempts whose output is fetched in one round, and of these at a time.
const PER_ROUND: usize = 32;
const AT_A_TIME: usize = 4;
/// An agent that did not answer is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// Output of one attempt, after compression; what is more is left out, and said to be.
const MAX_LOG_BYTES: usize = 64 << 20;
/// Objects of a page of a list.
const PAGE: usize = 1000;

#[derive(Default)]
pub(super) struct LogBacklog {
    jobs: BTreeMap<(JobId, Time), JobLogs>,
    /// Agents that did not answer, and when they are asked again.
    silent: BTreeMap<Name, Instant>,
    pub lost: u64,
}

/// The logs of one job.
#[derive(Default)]
struct JobLogs {
    ended: Option<Time>,
    /// By index and attempt, with what is known of where it ran.
    waiting: BTreeMap<(u32, u32), WaitingLog>,
    /// What the store has; absent until it was asked.
    stored: Option<BTreeSet<(u32, u32)>>,
}

#[derive(Clone, Debug)]
struct WaitingLog {
    object: LogObject,
    task: TaskId,
    /// The machine of the last end of the task's row, if that was this attempt.
    machine: Option<Name>,
}

/// What fetching came to.
enum Fetched {
    Content(Bytes),
    /// The agent of this machine does not answer.
    Silent(Name),
    NotYet,
}

impl LogBacklog {
    pub fn waiting(&self) -> usize {
        self.jobs.values().map(|job| job.waiting.len()).sum()
    }

    /// When the first of the jobs ended that still have logs to be archived.
    pub fn oldest_waiting(&self) -> Option<Time> {
        let open = self.jobs.values().filter(|job| job.stored.is_none() || !job.waiting.is_empty());
        open.filter_map(|job| job.ended).min()
    }

    /// Takes up attempts that are over.
    pub fn observe(&mut self, state: &State) {
        let mut present = BTreeSet::new();
        for (id, job) in state.jobs().iter().filter(|(_, job)| job.spec().task.archive_logs) {
            let key = (id, job.submitted_at);
            present.insert(key);
            let logs = self.jobs.entry(key).or_default();
            logs.ended = job.ended_at;
            logs.observe(state, id, job);
        }
        let gone = self.jobs.extract_if(.., |key, _| !present.contains(key));
        self.lost += gone.map(|(_, logs)| logs.waiting.len() as u64).sum::<u64>();
    }

    /// Fetches and writes some of them. Returns how many.
    pub async fn write(&mut self, archiver: &Archiver) -> Result<u64, StoreError> {
        for ((_, _), logs) in &mut self.jobs {
            logs.ask_store(&archiver.archive).await?;
        }
        let now = Instant::now();
        self.silent.retain(|_, again| *again > now);
        let silent = &self.silent;
        let is_asked = |log: &WaitingLog| {
            log.machine.as_ref().is_none_or(|machine| !silent.contains_key(machine))
        };
        let waiting = self.jobs.iter().flat_map(|(key, logs)| {
            logs.waiting.iter().map(move |(which, log)| (*key, *which, log.clone()))
        });
        let turn: Vec<_> = waiting.filter(|(_, _, log)| is_asked(log)).take(PER_ROUND).collect();
        let mut results = stream::iter(turn)
            .map(|(key, which, log)| async move {
                let fetched = fetch(archiver, &log).await;
                let Fetched::Content(content) = fetched else { return (key, which, Ok(fetched)) };
                let put = archiver.archive.store().put(&log.object.name(), content).await;
                (key, which, put.map(|()| Fetched::Content(Bytes::new())))
            })
            .buffer_unordered(AT_A_TIME);
        let mut written = 0;
        while let Some((key, which, result)) = results.next().await {
            match result? {
                Fetched::Content(_) => {
                    written += 1;
                    if let Some(logs) = self.jobs.get_mut(&key) {
                        logs.waiting.remove(&which);
                        logs.stored.get_or_insert_default().insert(which);
                    }
                }
                Fetched::Silent(machine) => {
                    self.silent.insert(machine, Instant::now() + ASK_AGAIN);
                }
                Fetched::NotYet => {}
            }
        }
        Ok(written)
    }
}

impl JobLogs {
    fn observe(&mut self, state: &State, id: JobId, job: &Job) {
        let Some(key) = state.job_key(id) else { return };
        for (task, row) in
            job.tasks.iter().filter_map(|task| Some((*task, state.tasks().get(*task)?)))
        {
            let over = attempts_over(row);
            let first = over.saturating_sub(MAX_ATTEMPTS) + 1;
            for attempt in first..=over {
                let which = (row.index, attempt);
                if self.stored.as_ref().is_some_and(|stored| stored.contains(&which)) {
                    continue;
                }
                let end = row.last_end.as_ref().filter(|end| end.attempt == attempt);
                let (job, submitted, index) = (key.clone(), job.submitted_at, row.index);
                let object = LogObject { job, submitted, index, attempt };
                let machine = end.map(|end| end.machine.clone());
                self.waiting.insert(which, WaitingLog { object, task, machine });
            }
        }
    }

    /// Asks the store, once, what it has of this job.
    async fn ask_store(&mut self, archive: &Archive) -> Result<(), StoreError> {
        let Some(prefix) = self
            .waiting
            .values()
            .next()
            .filter(|_| self.stored.is_none())
            .map(|log| LogObject::prefix(&log.object.job, log.object.submitted))
        else {
            // Nothing waits, so there is nothing to know.
            if self.stored.is_none() && self.waiting.is_empty() && self.ended.is_some() {
                self.stored = Some(BTreeSet::new());
            }
            return Ok(());
        };
        let (mut stored, mut after) = (BTreeSet::new(), String::new());
        loop {
            let page = archive.store().list(&prefix, &after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after.clone_from(&last.name);
            let logs = page.iter().filter_map(|object| LogObject::parse(&object.name));
            stored.extend(logs.map(|log| (log.index, log.attempt)));
        }
        self.waiting.retain(|which, _| !stored.contains(which));
        self.stored = Some(stored);
        Ok(())
    }
}

/// How many attempts of a task are over: all but one that has a machine.
fn attempts_over(row: &Task) -> u32 {
    match row.state {
        TaskState::Assigned | TaskState::Running | TaskState::Stopping(_) => {
            row.attempt.saturating_sub(1)
        }
        TaskState::Deferred | TaskState::Pending | TaskState::Dead(_) => row.attempt,
    }
}

/// The output of an attempt from its machine, as an object.
async fn fetch(archiver: &Archiver, log: &WaitingLog) -> Fetched {
    let Ok(machine) = machine_of(archiver, log).await else { return Fetched::NotYet };
    let Some(machine) = machine else {
        return gone(log, None, "the cell has forgotten where it ran");
    };
    let state = archiver.handle.read().state;
    let Some(row) = state.machine_named(&machine) else {
        return gone(log, Some(&machine), "its machine has left the cell");
    };
    let Ok(agent) = Agent::of(&state, row) else {
        return gone(log, Some(&machine), "its machine has no agent that could be asked");
    };
    match archiver.agents.dial(&agent.machine, &agent.address).await {
        Ok(connection) => read_all(connection, log, &machine).await,
        Err(_) => Fetched::Silent(machine),
    }
}

/// The machine where an attempt ran, as far as anybody knows.
async fn machine_of(archiver: &Archiver, log: &WaitingLog) -> Result<Option<Name>, ApiError> {
    if let Some(machine) = &log.machine {
        return Ok(Some(machine.clone()));
    }
    let (services, task, number) = (archiver.services.clone(), log.task, log.object.attempt);
    let find = move || services.find_placement(task, number);
    let found = tokio::task::spawn_blocking(find).await;
    let lost = |_| ApiError::new(Code::Internal, "the events were not read");
    let found = found.map_err(lost)??;
    let state = archiver.handle.read().state;
    Ok(found.and_then(|id| Some(state.machines().get(id)?.spec.name.clone())))
}

async fn read_all(mut connection: AgentConnection, log: &WaitingLog, machine: &Name) -> Fetched {
    let number = log.object.attempt;
    let attempt = Attempt { task: log.task, name: log.name(), number };
    let mut query = OutputQuery {
        stream: StreamSelection::All,
        task: Some(log.task.0),
        attempt: Some(number),
        from: Some(STREAM_START.to_owned()),
        parts: true,
        ..OutputQuery::default()
    };
    let mut object = LogWriter::default();
    object.line(&log.head(Some(machine), None));
    loop {
        match read_piece(&mut connection, &attempt, &query).await {
            Ok(piece) if piece.is_empty() && piece.ended => {
                return Fetched::Content(object.0.finish());
            }
            // Its agent has yet to notice that it is over.
            Ok(piece) if piece.is_empty() => return Fetched::NotYet,
            Ok(piece) => {
                piece.parts.iter().for_each(|part| object.line(part));
                query.from = Some(piece.next);
            }
            Err(ClientError::Api(error)) if error.code == Code::NoSuchTask => {
                return gone(log, Some(machine), "its machine has not kept it");
            }
            Err(_) => return Fetched::Silent(machine.clone()),
        }
        if object.0.compressed_bytes() > MAX_LOG_BYTES {
            object.line(&log.head(Some(machine), Some("what follows was too long to be kept")));
            return Fetched::Content(object.0.finish());
        }
    }
}

/// An object that says why there is no output.
fn gone(log: &WaitingLog, machine: Option<&Name>, note: &str) -> Fetched {
    let mut object = LogWriter::default();
    object.line(&log.head(machine, Some(note)));
    Fetched::Content(object.0.finish())
}

impl WaitingLog {
    /// `user/job/index`.
    fn name(&self) -> String {
        format!("{}/{}", self.object.job, self.object.index)
    }

    fn head(&self, machine: Option<&Name>, note: Option<&str>) -> ArchivedLogHead {
        ArchivedLogHead {
            format: ARCHIVED_LOG_FORMAT,
            task: self.name(),
            attempt: self.object.attempt,
            machine: machine.map(ToString::to_string),
            note: note.map(str::to_owned),
        }
    }
}

/// Lines of JSON, compressed as they come.
#[derive(Default)]
struct LogWriter(GzipWriter);

impl LogWriter {
    fn line<T: Serialize>(&mut self, value: &T) {
        // Our own types have string keys and no failing serializers.
        self.0.write(&serde_json::to_vec(value).unwrap_or_default());
        self.0.write(b"\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::command::Command;
    use cellwright_cell::spec::JobSpec;
    use cellwright_control::controller::testing::{Cell, job, key};

    fn waiting(backlog: &LogBacklog) -> Vec<(u32, u32)> {
        backlog.jobs.values().flat_map(|logs| logs.waiting.keys().copied()).collect()
    }

    #[test]
    fn attempts_that_are_over_are_taken_up_and_jobs_wait_for_them() {
        let mut cell = Cell::with_machines(1);
        let mut spec: JobSpec = job("jlogs", 2);
        spec.task.archive_logs = true;
        cell.submit(&spec);
        cell.submit(&job("jfoo", 1));
        let mut backlog = LogBacklog::default();
        cell.place_and_start();
        backlog.observe(&cell.state);
        assert!(waiting(&backlog).is_empty(), "all of them run");
        assert_eq!(backlog.oldest_waiting(), None);
        cell.ok(Command::StopJob { job: key("jlogs"), expect: None });
        cell.ok(Command::StopJob { job: key("jfoo"), expect: None });
        cell.place_and_start();
        backlog.observe(&cell.state);
        assert_eq!(waiting(&backlog), [(0, 1), (1, 1)]);
        let id = cell.state.job_named(&key("jlogs")).unwrap();
        let ended = cell.state.jobs().get(id).unwrap().ended_at;
        assert!(ended.is_some());
        assert_eq!(backlog.oldest_waiting(), ended);
        for logs in backlog.jobs.values_mut() {
            logs.waiting.clear();
            logs.stored = Some(BTreeSet::from([(0, 1), (1, 1)]));
        }
        backlog.observe(&cell.state);
        assert_eq!((backlog.waiting(), backlog.oldest_waiting()), (0, None));
        cell.ok(Command::PurgeJobs { ended_before: Time::NEVER });
        backlog.observe(&cell.state);
        assert_eq!((backlog.jobs.len(), backlog.lost), (0, 0));
    }
}
