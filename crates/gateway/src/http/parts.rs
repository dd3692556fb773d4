//! The door for the cell's own parts: agents' polls, schedulers' copies, proposals and leases, and
//! calls between replicas. Postcard in, postcard out; each path opens to one kind of part alone.

use super::access::{self, PartRoute};
use super::blobs::content;
use super::{Api, bodies, error_response, holders, removed};
use crate::access::provenance;
use crate::http_peers::{PEER_PATH, same_protocol};
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
use cellwright_cell::credential::PartKind;
use cellwright_cell::name::Token;
use cellwright_cell::time::Span;
use cellwright_master::handle::Caller;
use cellwright_master::links::LinkError;
use cellwright_master::peers::PeerCall;
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
            .route(LOG_PATH, post(async move |r| log.take(r, PartRoute::Log, Api::log).await))
            .route(
                PROPOSE_PATH,
                post(async move |r| propose.take(r, PartRoute::Propose, Api::propose).await),
            )
            .route(
                LEASE_PATH,
                post(async move |r| lease.take(r, PartRoute::Lease, Api::lease).await),
            )
            .route(
                HOLDERS_PATH,
                post(async move |r| holders.take(r, PartRoute::Holders, Api::holders).await),
            )
            .route(
                STANDING_PATH,
                post(async move |r| asked.take(r, PartRoute::Standing, Api::standing).await),
            )
            .route(
                PEER_PATH,
                post(async move |r| peer.take(r, PartRoute::Peer, Api::peer).await)
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
        let answered = self.clone().take_read(request, PartRoute::Poll, report, Api::poll).await;
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
        access::speaks_for(&caller, &report.machine)?;
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
        access::speaks_for(&caller, &request.machine)?;
        if self.handle.is_removed() {
            return Err(removed());
        }
        self.still_here(&caller)?;
        encode(&holders::of(&self.handle.read().state, &request))
    }

    /// Whether somebody who has dialled the agent may be listened to: a machine of the cell, or a
    /// replica that was not sent away.
    async fn standing(self, caller: Caller, request: StandingRequest) -> Result<Vec<u8>, ApiError> {
        access::speaks_for(&caller, &request.machine)?;
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

    /// What a scheduler may is decided by `apply`, in its own name.
    async fn propose(self, caller: Caller, proposal: Proposal) -> Result<Vec<u8>, ApiError> {
        access::proposes_as(&caller, &proposal)?;
        encode(&self.handle.propose_as(&caller, proposal).await?)
    }

    /// A scheduler holds leases under the name of its certificate and no other.
    async fn lease(self, caller: Caller, request: LeaseRequest) -> Result<Vec<u8>, ApiError> {
        access::schedules_as(&caller, &request.scheduler)?;
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
            PartRoute::Peer.admit(known(request.extensions().get())?)?;
            provenance::binary(request.headers())?;
            let content = bodies::paced(request.into_body(), self.flow.pace);
            self.backstage.keep_blob(digest_of(&digest)?, content).await
        };
        finish(kept.await.map(|_| Bytes::new()))
    }

    async fn give(self, Path(digest): Path<String>, request: Request<Body>) -> Response<Body> {
        let given = async move {
            PartRoute::Peer.admit(known(request.extensions().get())?)?;
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
            let caller = known(request.extensions().get())?;
            PartRoute::Package.admit(caller)?;
            self.still_here(caller)?;
            let is_replica = matches!(caller, Caller::Replica(_));
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
    caller.ok_or_else(access::unauthenticated)
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
        route: PartRoute,
        handler: impl FnOnce(Api, Caller, M) -> F,
    ) -> Response<Body>
    where
        M: DeserializeOwned,
        F: Future<Output = Result<Vec<u8>, ApiError>>,
    {
        finish(self.take_read(request, route, decode, handler).await.map(Bytes::from))
    }

    /// Whether the caller may ask is looked at before a byte of the message is.
    async fn take_read<M, F>(
        self,
        request: Request<Body>,
        route: PartRoute,
        read: fn(&[u8]) -> Result<M, ApiError>,
        handler: impl FnOnce(Api, Caller, M) -> F,
    ) -> Result<Vec<u8>, ApiError>
    where
        F: Future<Output = Result<Vec<u8>, ApiError>>,
    {
        let (mut parts, body) = request.into_parts();
        let caller = parts.extensions.remove::<Caller>().ok_or_else(access::unauthenticated)?;
        route.admit(&caller)?;
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
        let mut share = shares.none(&caller.to_string());
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
