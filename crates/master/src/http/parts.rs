//! The door for the cell's own parts: agents' polls, schedulers' copies, proposals and leases, and
//! calls between replicas. Postcard in, postcard out; each path opens to one kind of part alone.

use super::blobs::content;
use super::{Api, bodies, error_response, holders, removed};
use crate::audit::caller_text;
use crate::handle::Caller;
use crate::http_peers::{PEER_PATH, same_protocol};
use crate::identity::provenance;
use crate::links::LinkError;
use crate::peers::PeerCall;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, Response, header};
use axum::middleware::from_fn;
use axum::routing::{get, post, put};
use bytes::Bytes;
use cellwright_api::client::parts::{
    BLOB_PATH, HOLDERS_PATH, HoldersRequest, LEASE_PATH, LOG_PATH, LogRequest, PACKAGE_PATH,
    POLL_PATH, PROPOSE_PATH, STANDING_PATH, StandingRequest,
};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::internal::{AgentReport, LeaseRequest, Proposal};
use cellwright_cell::command::{Actor, Command};
use cellwright_cell::credential::PartKind;
use cellwright_cell::name::Token;
use cellwright_cell::time::Span;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::future::Future;

/// Largest message: a snapshot chunk, or a plan for a hundred thousand tasks.
const MAX_MESSAGE: usize = 64 << 20;
/// Most bytes of a package in one answer: the largest head.
const MAX_RANGE: u32 = 9 << 20;
/// Longest a follower of the log may hang.
const MAX_WAIT: Span = Span::seconds(60);

impl Api {
    pub(super) fn parts_router(&self) -> Router {
        let on = |api: &Api| api.clone();
        let (poll, log, propose, lease, peer) = (on(self), on(self), on(self), on(self), on(self));
        let (keep, give, part, holders) = (on(self), on(self), on(self), on(self));
        let asked = on(self);
        Router::new()
            .route(POLL_PATH, post(move |r| poll.answer_poll(r)))
            .route(LOG_PATH, post(async move |r| log.take(r, scheduler, Api::log).await))
            .route(
                PROPOSE_PATH,
                post(async move |r| propose.take(r, scheduler, Api::propose).await),
            )
            .route(LEASE_PATH, post(async move |r| lease.take(r, scheduler, Api::lease).await))
            .route(HOLDERS_PATH, post(async move |r| holders.take(r, agent, Api::holders).await))
            .route(STANDING_PATH, post(async move |r| asked.take(r, agent, Api::standing).await))
            .route(
                PEER_PATH,
                post(async move |r| peer.take(r, replica, Api::peer).await)
                    .layer(from_fn(same_protocol)),
            )
            .route(
                &format!("{BLOB_PATH}/{{digest}}"),
                put(move |p, r| keep.keep(p, r)).get(move |p, r| give.give(p, r)),
            )
            .route(
                &format!("{PACKAGE_PATH}/{{digest}}"),
                get(move |p, q, r| part.part_of_package(p, q, r)),
            )
    }

    /// An agent that is refused is remembered, for whoever asks why its machine is down.
    async fn answer_poll(self, request: Request<Body>) -> Response<Body> {
        let machine = match request.extensions().get::<Caller>() {
            Some(Caller::Agent(machine)) => Some(machine.clone()),
            _ => None,
        };
        let answered = self.clone().take_read(request, agent, report, Api::poll).await;
        let book = self.handle.refused_here();
        match (&answered, &machine) {
            (Ok(_), Some(machine)) => book.forget(machine),
            // Another master may well listen to it.
            (Err(error), Some(machine)) if error.code != Code::NotReady => {
                book.note(machine, error);
            }
            _ => {}
        }
        finish(answered.map(Bytes::from))
    }

    /// An agent speaks for its own machine and no other.
    async fn poll(self, caller: Caller, report: AgentReport) -> Result<Vec<u8>, ApiError> {
        if matches!(&caller, Caller::Agent(machine) if *machine != report.machine) {
            return Err(stranger(&caller, "the agent of the machine it speaks for"));
        }
        // What it would order is what the cell wanted when this replica was last told.
        if self.handle.is_removed() {
            return Err(removed());
        }
        match self.handle.poll(report).await {
            Ok(orders) => encode(&orders),
            Err(error @ LinkError::OtherMachine { .. }) => {
                Err(ApiError::new(Code::BadField, error.to_string()))
            }
        }
    }

    /// An agent asks for its own machine.
    async fn holders(self, caller: Caller, request: HoldersRequest) -> Result<Vec<u8>, ApiError> {
        match &caller {
            Caller::Agent(machine) if *machine == request.machine => {}
            Caller::Anonymous | Caller::System(_) => {}
            _ => return Err(stranger(&caller, "the agent of the machine it speaks for")),
        }
        if self.handle.is_removed() {
            return Err(removed());
        }
        self.still_here(&caller)?;
        encode(&holders::of(&self.handle.read().state, &request))
    }

    /// Whether somebody who has dialled the agent may be listened to: a machine of the cell, or a
    /// replica that was not sent away.
    async fn standing(self, caller: Caller, request: StandingRequest) -> Result<Vec<u8>, ApiError> {
        match &caller {
            Caller::Agent(machine) if *machine == request.machine => {}
            Caller::Anonymous | Caller::System(_) => {}
            _ => return Err(stranger(&caller, "the agent of the machine it speaks for")),
        }
        if self.handle.is_removed() {
            return Err(removed());
        }
        self.still_here(&caller)?;
        let StandingRequest { part, name, .. } = request;
        let stands = self.handle.replicated().with(|view| {
            let is_known = part != PartKind::Agent || view.state.machine_named(&name).is_some();
            is_known && !view.state.is_dismissed(part, &name)
        });
        encode(&stands)
    }

    async fn log(self, _: Caller, request: LogRequest) -> Result<Vec<u8>, ApiError> {
        if request.wait > MAX_WAIT {
            let allowed = format!("at most {} ms", MAX_WAIT.0);
            return Err(ApiError::field("wait", &request.wait.0.to_string(), &allowed));
        }
        // Whoever followed it here would see nothing happen for good.
        if self.handle.is_removed() {
            return Err(removed());
        }
        encode(&self.handle.log_after(request.after, request.wait).await)
    }

    /// Schedulers place; they do nothing else in the cell's name.
    async fn propose(self, caller: Caller, proposal: Proposal) -> Result<Vec<u8>, ApiError> {
        let placing = |command: &Command| matches!(command, Command::CommitPlan(_));
        let foreign = proposal
            .requests
            .iter()
            .position(|request| request.by != Actor::System || !placing(&request.command));
        if let Some(at) = foreign {
            let allowed = "commit_plan, by the system";
            return Err(ApiError::field(&format!("requests[{at}]"), "another command", allowed));
        }
        encode(&self.handle.propose_as(&caller, proposal).await?)
    }

    /// A scheduler holds leases under the name of its certificate and no other.
    async fn lease(self, caller: Caller, request: LeaseRequest) -> Result<Vec<u8>, ApiError> {
        if let Caller::Scheduler(name) = &caller
            && *name != request.scheduler
        {
            let message = format!("scheduler {name} asks in the name of {}", request.scheduler);
            return Err(ApiError::new(Code::NotAllowed, message)
                .hint("start it under the name its certificate is for"));
        }
        encode(&self.handle.lease(request).await?)
    }

    async fn peer(self, caller: Caller, call: PeerCall) -> Result<Vec<u8>, ApiError> {
        let name = match &caller {
            Caller::Replica(name) => Some(name.as_str()),
            _ => None,
        };
        encode(&self.handle.answer_peer(name, call).await)
    }

    async fn keep(self, Path(digest): Path<String>, request: Request<Body>) -> Response<Body> {
        let kept = async move {
            replica(known(request.extensions().get())?)?;
            provenance::binary(request.headers())?;
            let content = bodies::paced(request.into_body(), self.flow.pace);
            self.backstage.keep_blob(digest_of(&digest)?, content).await
        };
        finish(kept.await.map(|_| Bytes::new()))
    }

    async fn give(self, Path(digest): Path<String>, request: Request<Body>) -> Response<Body> {
        let given = async move {
            replica(known(request.extensions().get())?)?;
            let digest = digest_of(&digest)?;
            self.blocking(move |api| api.backstage.blob_here(&digest)).await
        };
        given.await.map_or_else(|error| error_response(&error), content)
    }
}

/// Which bytes of a package.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: u64,
    length: u32,
}

impl Api {
    /// Agents fetch packages by their digest and in pieces, from here and from each other.
    async fn part_of_package(
        self,
        Path(digest): Path<String>,
        range: Result<Query<Range>, QueryRejection>,
        request: Request<Body>,
    ) -> Response<Body> {
        let given = async move {
            let is_replica = match known(request.extensions().get())? {
                agent @ Caller::Agent(_) => {
                    self.still_here(agent)?;
                    false
                }
                caller => {
                    replica(caller)?;
                    matches!(caller, Caller::Replica(_))
                }
            };
            let bad = |e: QueryRejection| ApiError::new(Code::BadParameter, e.body_text());
            let Query(Range { from, length }) = range.map_err(bad)?;
            if length > MAX_RANGE {
                let allowed = format!("at most {MAX_RANGE}");
                return Err(ApiError::parameter("length", &length.to_string(), &allowed));
            }
            let bytes = self.backstage.blob_range(digest_of(&digest)?, from, length).await?;
            if !is_replica {
                self.answers.gave(bytes.len());
            }
            Ok(bytes)
        };
        finish(given.await.map(Bytes::from))
    }
}

fn digest_of(text: &str) -> Result<Token, ApiError> {
    Token::new(text).map_err(|bad| ApiError::parameter("digest", text, &bad.allowed))
}

fn known(caller: Option<&Caller>) -> Result<&Caller, ApiError> {
    caller.ok_or_else(nobody)
}

fn nobody() -> ApiError {
    ApiError::new(Code::Unauthenticated, "the request does not say who asks")
}

fn replica(caller: &Caller) -> Result<(), ApiError> {
    match caller {
        Caller::Replica(_) | Caller::Anonymous | Caller::System(_) => Ok(()),
        other => Err(stranger(other, "another replica")),
    }
}

fn agent(caller: &Caller) -> Result<(), ApiError> {
    match caller {
        Caller::Agent(_) | Caller::Anonymous | Caller::System(_) => Ok(()),
        other => Err(stranger(other, "the agent of the machine it speaks for")),
    }
}

fn scheduler(caller: &Caller) -> Result<(), ApiError> {
    match caller {
        Caller::Scheduler(_) | Caller::Replica(_) | Caller::System(_) | Caller::Anonymous => Ok(()),
        Caller::User(_) | Caller::Agent(_) => Err(stranger(caller, "a scheduler")),
    }
}

fn stranger(caller: &Caller, wanted: &str) -> ApiError {
    let message = format!("only {wanted} may call this; the caller is {caller:?}");
    ApiError::new(Code::NotAllowed, message).hint("use the public routes under /v1")
}

fn encode<T: Serialize>(answer: &T) -> Result<Vec<u8>, ApiError> {
    let broken = |e: postcard::Error| ApiError::new(Code::Internal, e.to_string());
    postcard::to_stdvec(answer).map_err(broken)
}

fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, ApiError> {
    let bad = |e: postcard::Error| {
        ApiError::new(Code::BadBody, format!("not the message that belongs here: {e}"))
    };
    postcard::from_bytes(bytes).map_err(bad)
}

/// The one message that many builds send: agents are as old as whoever runs their machine lets them
/// be.
fn report(bytes: &[u8]) -> Result<AgentReport, ApiError> {
    AgentReport::read(bytes)
        .map_err(|bad| ApiError::new(Code::BadBody, bad.to_string()).hint(bad.hint()))
}

impl Api {
    async fn take<M, F>(
        self,
        request: Request<Body>,
        may: fn(&Caller) -> Result<(), ApiError>,
        handler: impl FnOnce(Api, Caller, M) -> F,
    ) -> Response<Body>
    where
        M: DeserializeOwned,
        F: Future<Output = Result<Vec<u8>, ApiError>>,
    {
        finish(self.take_read(request, may, decode, handler).await.map(Bytes::from))
    }

    /// Whether the caller `may` ask is looked at before a byte of the message is.
    async fn take_read<M, F>(
        self,
        request: Request<Body>,
        may: fn(&Caller) -> Result<(), ApiError>,
        read: fn(&[u8]) -> Result<M, ApiError>,
        handler: impl FnOnce(Api, Caller, M) -> F,
    ) -> Result<Vec<u8>, ApiError>
    where
        F: Future<Output = Result<Vec<u8>, ApiError>>,
    {
        let (mut parts, body) = request.into_parts();
        let caller = parts.extensions.remove::<Caller>().ok_or_else(nobody)?;
        may(&caller)?;
        provenance::postcard(&parts.headers)?;
        let message = self.message(&parts, body, &caller).await?;
        handler(self, caller, read(&message)?).await
    }

    /// What was sent. An agent runs where tasks may break out: what it may send is an operator's
    /// setting, and counts against its share. The cell's other parts send each other the log.
    async fn message(&self, parts: &Parts, body: Body, caller: &Caller) -> Result<Bytes, ApiError> {
        let length = parts.headers.get(header::CONTENT_LENGTH);
        let stated = length.and_then(|value| value.to_str().ok()?.parse().ok());
        let of_agent = matches!(caller, Caller::Agent(_)) || parts.uri.path() == POLL_PATH;
        let (shares, limit) = match of_agent {
            true => (&self.flow.bodies, self.flow.report_limit),
            false => (&self.flow.messages, MAX_MESSAGE),
        };
        let mut share = shares.none(&caller_text(caller));
        bodies::whole(body, stated, limit, &mut share, self.flow.pace).await
    }
}

fn finish(answered: Result<Bytes, ApiError>) -> Response<Body> {
    match answered {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            let kind = HeaderValue::from_static("application/postcard");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Err(error) => error_response(&error),
    }
}
