//! Output of tasks, fetched from the agent of the machine they run or ran on and passed on to
//! callers that may read it. Any replica does this: the state says where a task is, and the event
//! log where an earlier attempt was.
//!
//! A follower gets a stream whose events carry the attempt and the position in it, so that another
//! replica continues where this one broke off. When an attempt has ended and the task is restarted,
//! the stream continues with the next attempt, on whatever machine that is.

use super::call::Call;
use super::flow_control::event_stream_response;
use super::watch::{KEEP_ALIVE, write_frame};
use super::{Api, ApiResult, reply};
use axum::body::Body;
use bytes::Bytes;
use cellwright_api::client::agent::AgentConnection;
use cellwright_api::client::{ClientError, encode_query};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::output::{
    AGENT_ADDRESS_ATTRIBUTE, OUTPUT_PATH, OutputPiece, OutputQuery, STREAM_START, StreamSelection,
};
use cellwright_api::routes::LAST_EVENT_ID;
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use cellwright_cell::units::times_text;
use cellwright_master::flow_control::Permit;
use futures::stream;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long an agent's answer may wait for more output; shorter than the interval of keep-alives.
const AGENT_WAIT: Duration = Duration::from_secs(5);
/// Extra time for the answer beyond that.
const RESPONSE_GRACE: Duration = Duration::from_secs(10);
/// Interval between attempts to reach an agent that does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// One attempt of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub task: TaskId,
    /// `user/job/index`.
    pub name: String,
    pub number: u32,
}

/// The agent of a machine, and its published address.
pub(crate) struct Agent {
    pub machine: Name,
    pub address: String,
}

impl Agent {
    pub fn of(state: &State, machine: MachineId) -> Result<Agent, ApiError> {
        let spec =
            state.machines().get(machine).map(|row| &row.spec).ok_or_else(machine_gone_error)?;
        let name = Token::new(AGENT_ADDRESS_ATTRIBUTE)
            .map_err(|bad| agent_silent_error(&bad.to_string()))?;
        match spec.attributes.get(&name) {
            Some(AttributeValue::Text(address)) => {
                Ok(Agent { machine: spec.name.clone(), address: address.clone() })
            }
            // Known from the state alone, so there is no other error to report.
            _ => {
                let message = format!("no agent of {} said where it can be reached", spec.name);
                Err(ApiError::new(Code::WrongState, message)
                    .hint("wait until its agent has reported; virtual machines never do"))
            }
        }
    }
}

fn machine_gone_error() -> ApiError {
    ApiError::new(Code::NoSuchMachine, "the machine it was on is not part of the cell any more")
        .hint("what it wrote went with the machine; events tell how it ended")
}

pub(super) fn agent_silent_error(message: &str) -> ApiError {
    ApiError::new(Code::AgentSilent, message)
}

/// An agent's error is passed on; a failure to reach it is not the caller's fault.
pub(super) fn agent_error(error: ClientError) -> ApiError {
    match error {
        ClientError::Api(error) => error,
        other => agent_silent_error(&other.to_string()),
    }
}

/// The error that a task which has had `newest` attempts has no such attempt.
fn no_attempt_error(name: &str, (number, newest): (u32, u32), is_dead: bool) -> ApiError {
    let placed = format!("{name} has been placed {}", times_text(u64::from(newest)));
    let (message, hint) = match newest {
        0 if is_dead => {
            let message = format!("{name} ended without having run");
            (message, format!("see why: cell explain {name}"))
        }
        0 => {
            let message = format!("{name} waits for a place and has written nothing yet");
            (message, format!("see why it waits: cell explain {name}"))
        }
        _ => {
            let message = format!("{placed}, and {number} is none of its attempts");
            (message, format!("what the newest wrote: cell logs {name} --attempt {newest}"))
        }
    };
    ApiError::new(Code::WrongState, message).hint(hint).with("attempt", number)
}

impl Api {
    /// The attempt in the call: the newest, unless it names one.
    fn attempt_of(&self, call: &Call, state: &State) -> Result<Attempt, ApiError> {
        let task = call.task_row(state)?;
        let newest = state.tasks().get(task).map_or(0, |row| row.attempt);
        let requested = call.query("attempt").and_then(|text| text.parse().ok());
        let number = requested.unwrap_or(newest);
        let name = state.task_name(task);
        if number == 0 || number > newest {
            let is_dead = state.tasks().get(task).is_some_and(|row| row.state.is_dead());
            return Err(no_attempt_error(&name, (number, newest), is_dead));
        }
        Ok(Attempt { task, name, number })
    }

    /// The agent of the machine where an attempt runs or ran.
    async fn agent_of(&self, attempt: &Attempt, actor: &str) -> Result<Agent, ApiError> {
        let state = self.handle.read().state;
        let row = state.tasks().get(attempt.task);
        let current_machine =
            row.filter(|row| row.attempt == attempt.number).and_then(|row| row.machine());
        if let Some(machine) = current_machine {
            return Agent::of(&state, machine);
        }
        let last = row.and_then(|row| row.last_end.as_ref());
        if let Some(end) = last.filter(|end| end.attempt == attempt.number) {
            let machine = state.machine_named(&end.machine).ok_or_else(machine_gone_error)?;
            return Agent::of(&state, machine);
        }
        let (task, number) = (attempt.task, attempt.number);
        // Reads all retained events: one call at a time, as with explanations.
        let _one_at_a_time = self.explanation_queue.acquire(actor).await?;
        let found = self.run_blocking(move |api| api.services.find_placement(task, number)).await?;
        let forgotten = || {
            let message = format!("where attempt {number} of {} was is forgotten", attempt.name);
            ApiError::new(Code::NoSuchTask, message)
        };
        Agent::of(&state, found.ok_or_else(forgotten)?)
    }

    async fn dial(&self, attempt: &Attempt, actor: &str) -> Result<AgentConnection, ApiError> {
        let Agent { machine, address } = self.agent_of(attempt, actor).await?;
        self.config.agents.dial(&machine, &address).await.map_err(agent_error)
    }

    /// Held while an agent is called.
    pub(super) fn output_reader_permit(&self, call: &Call) -> Result<Permit, ApiError> {
        self.output_readers.acquire_one(&call.actor_text())
    }

    pub(super) async fn read_output(&self, call: Call) -> ApiResult {
        let _seat = self.output_reader_permit(&call)?;
        let view = self.handle.read();
        let attempt = self.attempt_of(&call, &view.state)?;
        let mut query = first_query(&call, &attempt);
        query.from = call.query("from").map(str::to_owned);
        let mut line = self.dial(&attempt, &call.actor_text()).await?;
        let piece = read_piece(&mut line, &attempt, &query).await.map_err(agent_error)?;
        Ok(reply::json(&call, view.index, &piece))
    }

    pub(super) async fn watch_output(&self, call: Call) -> ApiResult {
        let permit = self.output_reader_permit(&call)?;
        let view = self.handle.read();
        let mut attempt = self.attempt_of(&call, &view.state)?;
        let mut query = first_query(&call, &attempt);
        let after = call.header(LAST_EVENT_ID).or_else(|| call.query("after"));
        if let Some(text) = after {
            let allowed = "an id of this stream given out before";
            let bad = || ApiError::parameter("after", text, allowed);
            let (number, position) = text.split_once('.').ok_or_else(bad)?;
            let newest = attempt.number;
            attempt.number = number.parse().map_err(|_| bad())?;
            if attempt.number == 0 || attempt.number > newest {
                return Err(bad());
            }
            query.from = Some(position.to_owned());
        }
        query.wait = u64::try_from(AGENT_WAIT.as_millis()).unwrap_or(0);
        let changed = self.handle.watch_applied();
        let (api, line, is_over) = (self.clone(), None, false);
        let call = Arc::new(call);
        let is_silent = false;
        let follower = OutputFollower {
            api,
            call,
            attempt,
            query,
            connection: line,
            changed,
            is_silent,
            is_over,
            _permit: permit,
        };
        let chunks = stream::unfold(follower, |mut follower| async move {
            let (api, call) = (follower.api.clone(), follower.call.clone());
            let out = tokio::select! {
                out = follower.next_frame() => out?,
                () = api.authorization_lost(&call) => return None,
            };
            Some((Ok::<_, Infallible>(Bytes::from(out)), follower))
        });
        Ok(event_stream_response(Body::from_stream(chunks)))
    }
}

/// The first query, from near the end.
fn first_query(call: &Call, attempt: &Attempt) -> OutputQuery {
    OutputQuery {
        stream: call.query("stream").and_then(StreamSelection::parse).unwrap_or_default(),
        task: Some(attempt.task.0),
        attempt: Some(attempt.number),
        lines: call.query("lines").and_then(|text| text.parse().ok()),
        tail: call.query("tail").and_then(|text| text.parse().ok()),
        since: call.query("since").and_then(|text| text.parse().ok()),
        parts: call.flag("parts"),
        ..OutputQuery::default()
    }
}

pub(crate) async fn read_piece(
    connection: &mut AgentConnection,
    attempt: &Attempt,
    query: &OutputQuery,
) -> Result<OutputPiece, ClientError> {
    let path = format!("{OUTPUT_PATH}/{}{}", attempt.name, encode_query(&query.pairs()));
    connection.get(&path, Duration::from_millis(query.wait) + RESPONSE_GRACE).await
}

/// A reader that follows the output of one task.
struct OutputFollower {
    api: Api,
    call: Arc<Call>,
    attempt: Attempt,
    query: OutputQuery,
    connection: Option<AgentConnection>,
    changed: watch::Receiver<u64>,
    /// Whether the reader has been told that the machine does not answer.
    is_silent: bool,
    is_over: bool,
    _permit: Permit,
}

/// The task's status relative to the attempt that is being read.
enum AttemptStatus {
    /// The task is at this attempt, or waits for the next.
    Current,
    /// It has been placed again since.
    Superseded,
    Dead,
}

const KEEP_ALIVE_FRAME: &str = ": still here\n\n";

impl OutputFollower {
    async fn next_frame(&mut self) -> Option<String> {
        if self.is_over || !self.api.is_still_admitted(&self.call) {
            return None;
        }
        // Before the query: changes that happen meanwhile are seen after it.
        self.changed.mark_unchanged();
        let status = self.attempt_status();
        let mut out = String::new();
        match self.read_next().await {
            Ok(piece) => {
                self.is_silent = false;
                self.query.from = Some(piece.next.clone());
                let id = format!("{}.{}", piece.attempt, piece.next);
                if !piece.is_empty() {
                    write_frame(&mut out, "output", Some(id), &piece);
                }
                if piece.ended {
                    self.advance(status, &mut out).await;
                }
            }
            // Not started yet, or no longer retained.
            Err(error) if error.code == Code::NoSuchTask => self.advance(status, &mut out).await,
            Err(error) => {
                self.connection = None;
                if !std::mem::replace(&mut self.is_silent, true) {
                    write_frame(&mut out, "silent", None::<String>, &error);
                }
                match status {
                    // It may still come back with the missing output.
                    AttemptStatus::Current => {
                        drop(timeout(RETRY_INTERVAL, self.changed.changed()).await)
                    }
                    status => self.advance(status, &mut out).await,
                }
            }
        }
        if out.is_empty() {
            out.push_str(KEEP_ALIVE_FRAME);
        }
        Some(out)
    }

    fn attempt_status(&self) -> AttemptStatus {
        let state = self.api.handle.read().state;
        match state.tasks().get(self.attempt.task) {
            Some(row) if row.attempt > self.attempt.number => AttemptStatus::Superseded,
            Some(row) if !matches!(row.state, TaskState::Dead(_)) => AttemptStatus::Current,
            _ => AttemptStatus::Dead,
        }
    }

    async fn read_next(&mut self) -> Result<OutputPiece, ApiError> {
        let line = match &mut self.connection {
            Some(line) => line,
            none => none.insert(self.api.dial(&self.attempt, &self.call.actor_text()).await?),
        };
        read_piece(line, &self.attempt, &self.query).await.map_err(agent_error)
    }

    /// This attempt produces no more output.
    async fn advance(&mut self, status: AttemptStatus, out: &mut String) {
        match status {
            AttemptStatus::Current => drop(timeout(KEEP_ALIVE / 2, self.changed.changed()).await),
            AttemptStatus::Superseded => {
                self.attempt.number += 1;
                self.query.attempt = Some(self.attempt.number);
                self.query.from = Some(STREAM_START.to_owned());
                self.connection = None;
            }
            AttemptStatus::Dead => {
                write_frame(out, "end", None::<String>, &serde_json::json!({}));
                self.is_over = true;
            }
        }
    }
}
