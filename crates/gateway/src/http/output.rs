//! What tasks wrote, asked of the agent of the machine they are or were on and passed on to whoever
//! may read it. Any replica does this: the state says where a task is, and the event log where an
//! earlier attempt was.
//!
//! A reader that follows is answered with a stream whose events carry the attempt and the place in
//! it, so that another replica goes on where this one broke off. When an attempt has ended and the
//! task is started again, the stream goes on with the next attempt, on whatever machine that is.

use super::call::Call;
use super::flow::event_stream;
use super::watch::{KEEP_ALIVE, frame};
use super::{Answered, Api, reply};
use axum::body::Body;
use bytes::Bytes;
use cellwright_api::client::agent::AgentLine;
use cellwright_api::client::{ClientError, encode_query};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::output::{
    ADDRESS_ATTRIBUTE, BEGINNING, OUTPUT_PATH, OutputPiece, OutputQuery, Stream,
};
use cellwright_api::routes::LAST_EVENT_ID;
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use cellwright_cell::units::times;
use cellwright_master::flow::Share;
use futures::stream;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long an agent may wait for more to tell; shorter than readers wait for a sign of life.
const WAIT: Duration = Duration::from_secs(5);
/// What an answer may take beyond that.
const GRACE: Duration = Duration::from_secs(10);
/// Between two tries to reach an agent that does not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// One attempt of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub task: TaskId,
    /// `user/job/index`.
    pub name: String,
    pub number: u32,
}

/// The agent of a machine, and where it says it can be dialled.
pub(super) struct Agent {
    pub machine: Name,
    pub address: String,
}

impl Agent {
    pub fn of(state: &State, machine: MachineId) -> Result<Agent, ApiError> {
        let spec = state.machines().get(machine).map(|row| &row.spec).ok_or_else(gone)?;
        let name = Token::new(ADDRESS_ATTRIBUTE).map_err(|bad| silent(&bad.to_string()))?;
        match spec.attributes.get(&name) {
            Some(AttributeValue::Text(address)) => {
                Ok(Agent { machine: spec.name.clone(), address: address.clone() })
            }
            // Known from the state alone, so nothing was tried that could have failed.
            _ => {
                let message = format!("no agent of {} said where it can be reached", spec.name);
                Err(ApiError::new(Code::WrongState, message)
                    .hint("wait until its agent has reported; virtual machines never do"))
            }
        }
    }
}

fn gone() -> ApiError {
    ApiError::new(Code::NoSuchMachine, "the machine it was on is not part of the cell any more")
        .hint("what it wrote went with the machine; events tell how it ended")
}

pub(super) fn silent(message: &str) -> ApiError {
    ApiError::new(Code::AgentSilent, message)
}

/// What an agent refused is passed on; what kept it from answering is not the reader's doing.
pub(super) fn of_agent(error: ClientError) -> ApiError {
    match error {
        ClientError::Api(error) => error,
        other => silent(&other.to_string()),
    }
}

/// There is no such attempt of a task that has had `newest` of them.
fn no_attempt(name: &str, (number, newest): (u32, u32), is_dead: bool) -> ApiError {
    let placed = format!("{name} has been placed {}", times(u64::from(newest)));
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
    /// The attempt that the call asks for: the newest, unless it says which.
    fn attempt_of(&self, call: &Call, state: &State) -> Result<Attempt, ApiError> {
        let task = call.task_row(state)?;
        let newest = state.tasks().get(task).map_or(0, |row| row.attempt);
        let wanted = call.query("attempt").and_then(|text| text.parse().ok());
        let number = wanted.unwrap_or(newest);
        let name = state.task_name(task);
        if number == 0 || number > newest {
            let is_dead = state.tasks().get(task).is_some_and(|row| row.state.is_dead());
            return Err(no_attempt(&name, (number, newest), is_dead));
        }
        Ok(Attempt { task, name, number })
    }

    /// Where an attempt is, or was.
    async fn agent_of(&self, attempt: &Attempt, who: &str) -> Result<Agent, ApiError> {
        let state = self.handle.read().state;
        let row = state.tasks().get(attempt.task);
        let here = row.filter(|row| row.attempt == attempt.number).and_then(|row| row.machine());
        if let Some(machine) = here {
            return Agent::of(&state, machine);
        }
        let last = row.and_then(|row| row.last_end.as_ref());
        if let Some(end) = last.filter(|end| end.attempt == attempt.number) {
            let machine = state.machine_named(&end.machine).ok_or_else(gone)?;
            return Agent::of(&state, machine);
        }
        let (task, number) = (attempt.task, attempt.number);
        // Reads all events there are: one at a time, as with explanations.
        let _one_at_a_time = self.explaining.take(who).await?;
        let found = self.blocking(move |api| api.backstage.placed_on(task, number)).await?;
        let forgotten = || {
            let message = format!("where attempt {number} of {} was is forgotten", attempt.name);
            ApiError::new(Code::NoSuchTask, message)
        };
        Agent::of(&state, found.ok_or_else(forgotten)?)
    }

    async fn dial(&self, attempt: &Attempt, who: &str) -> Result<AgentLine, ApiError> {
        let Agent { machine, address } = self.agent_of(attempt, who).await?;
        self.settings.agents.dial(&machine, &address).await.map_err(of_agent)
    }

    /// Held while an agent is asked.
    pub(super) fn seat(&self, call: &Call) -> Result<Share, ApiError> {
        self.following.one(&call.who())
    }

    pub(super) async fn read_output(&self, call: Call) -> Answered {
        let _seat = self.seat(&call)?;
        let view = self.handle.read();
        let attempt = self.attempt_of(&call, &view.state)?;
        let mut query = asked(&call, &attempt);
        query.from = call.query("from").map(str::to_owned);
        let mut line = self.dial(&attempt, &call.who()).await?;
        let piece = piece(&mut line, &attempt, &query).await.map_err(of_agent)?;
        Ok(reply::json(&call, view.index, &piece))
    }

    pub(super) async fn watch_output(&self, call: Call) -> Answered {
        let seat = self.seat(&call)?;
        let view = self.handle.read();
        let mut attempt = self.attempt_of(&call, &view.state)?;
        let mut query = asked(&call, &attempt);
        let after = call.header(LAST_EVENT_ID).or_else(|| call.query("after"));
        if let Some(text) = after {
            let allowed = "an id of this stream given out before";
            let bad = || ApiError::parameter("after", text, allowed);
            let (number, place) = text.split_once('.').ok_or_else(bad)?;
            let newest = attempt.number;
            attempt.number = number.parse().map_err(|_| bad())?;
            if attempt.number == 0 || attempt.number > newest {
                return Err(bad());
            }
            query.from = Some(place.to_owned());
        }
        query.wait = u64::try_from(WAIT.as_millis()).unwrap_or(0);
        let changed = self.handle.changed();
        let (api, line, is_over) = (self.clone(), None, false);
        let call = Arc::new(call);
        let is_silent = false;
        let follower =
            Follower { api, call, attempt, query, line, changed, is_silent, is_over, _seat: seat };
        let chunks = stream::unfold(follower, |mut follower| async move {
            let (api, call) = (follower.api.clone(), follower.call.clone());
            let out = tokio::select! {
                out = follower.turn() => out?,
                () = api.right_is_lost(&call) => return None,
            };
            Some((Ok::<_, Infallible>(Bytes::from(out)), follower))
        });
        Ok(event_stream(Body::from_stream(chunks)))
    }
}

/// The first question, from near the end.
fn asked(call: &Call, attempt: &Attempt) -> OutputQuery {
    OutputQuery {
        stream: match call.query("stream") {
            Some("stderr") => Stream::Stderr,
            _ => Stream::Stdout,
        },
        task: Some(attempt.task.0),
        attempt: Some(attempt.number),
        lines: call.query("lines").and_then(|text| text.parse().ok()),
        tail: call.query("tail").and_then(|text| text.parse().ok()),
        ..OutputQuery::default()
    }
}

async fn piece(
    line: &mut AgentLine,
    attempt: &Attempt,
    query: &OutputQuery,
) -> Result<OutputPiece, ClientError> {
    let path = format!("{OUTPUT_PATH}/{}{}", attempt.name, encode_query(&query.pairs()));
    line.get(&path, Duration::from_millis(query.wait) + GRACE).await
}

/// One reader that follows one task.
struct Follower {
    api: Api,
    call: Arc<Call>,
    attempt: Attempt,
    query: OutputQuery,
    line: Option<AgentLine>,
    changed: watch::Receiver<u64>,
    /// The reader knows that the machine does not answer.
    is_silent: bool,
    is_over: bool,
    _seat: Share,
}

/// How the task stands against the attempt that is read.
enum Standing {
    /// It is this attempt, or waits for the next.
    Same,
    /// It has been placed again since.
    Later,
    Dead,
}

const STILL_HERE: &str = ": still here\n\n";

impl Follower {
    async fn turn(&mut self) -> Option<String> {
        if self.is_over || !self.api.still_admits(&self.call) {
            return None;
        }
        // Before the question: what changes meanwhile is seen after it.
        self.changed.mark_unchanged();
        let standing = self.standing();
        let mut out = String::new();
        match self.ask().await {
            Ok(piece) => {
                self.is_silent = false;
                self.query.from = Some(piece.next.clone());
                let id = format!("{}.{}", piece.attempt, piece.next);
                if !piece.text.is_empty() {
                    frame(&mut out, "output", Some(id), &piece);
                }
                if piece.ended {
                    self.go_on(standing, &mut out).await;
                }
            }
            // Not begun yet, or no longer kept.
            Err(error) if error.code == Code::NoSuchTask => self.go_on(standing, &mut out).await,
            Err(error) => {
                self.line = None;
                if !std::mem::replace(&mut self.is_silent, true) {
                    frame(&mut out, "silent", None::<String>, &error);
                }
                match standing {
                    // It may still come back with what is missing.
                    Standing::Same => drop(timeout(PAUSE, self.changed.changed()).await),
                    standing => self.go_on(standing, &mut out).await,
                }
            }
        }
        if out.is_empty() {
            out.push_str(STILL_HERE);
        }
        Some(out)
    }

    fn standing(&self) -> Standing {
        let state = self.api.handle.read().state;
        match state.tasks().get(self.attempt.task) {
            Some(row) if row.attempt > self.attempt.number => Standing::Later,
            Some(row) if !matches!(row.state, TaskState::Dead(_)) => Standing::Same,
            _ => Standing::Dead,
        }
    }

    async fn ask(&mut self) -> Result<OutputPiece, ApiError> {
        let line = match &mut self.line {
            Some(line) => line,
            none => none.insert(self.api.dial(&self.attempt, &self.call.who()).await?),
        };
        piece(line, &self.attempt, &self.query).await.map_err(of_agent)
    }

    /// Nothing more comes of this attempt.
    async fn go_on(&mut self, standing: Standing, out: &mut String) {
        match standing {
            Standing::Same => drop(timeout(KEEP_ALIVE / 2, self.changed.changed()).await),
            Standing::Later => {
                self.attempt.number += 1;
                self.query.attempt = Some(self.attempt.number);
                self.query.from = Some(BEGINNING.to_owned());
                self.line = None;
            }
            Standing::Dead => {
                frame(out, "end", None::<String>, &serde_json::json!({}));
                self.is_over = true;
            }
        }
    }
}
