//! The door for the cell's own parts: agents' polls, schedulers' copies, proposals and leases, and
//! calls between replicas. Postcard in, postcard out; each path opens to one kind of part alone.

use super::access::{self, InternalRoute};
use super::blobs::content_response;
use super::{Api, bodies, error_response, package_holders, removed_replica_error};
use crate::access::request_origin;
use crate::http_peers::{PEER_PATH, require_same_protocol};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, Response, header};
use axum::middleware::from_fn;
use axum::routing::{get, post, put};
use bytes::Bytes;
use cellwright_api::client::internal_calls::{
    BLOB_PATH, HOLDERS_PATH, HoldersRequest, LEASE_PATH, LOG_PATH, LogRequest,
    MEMBERSHIP_CHECK_PATH, MembershipCheckRequest, PACKAGE_PATH, POLL_PATH, PROPOSE_PATH,
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
    pub(super) fn internal_router(&self) -> Router {
        let api_for = |api: &Api| api.clone();
        let (poll, log, propose, lease, peer) =
            (api_for(self), api_for(self), api_for(self), api_for(self), api_for(self));
        let (keep, give, part, holders) =
            (api_for(self), api_for(self), api_for(self), api_for(self));
        let membership_check = api_for(self);
        Router::new()
            .route(POLL_PATH, post(move |r| poll.handle_poll(r)))
            .route(
                LOG_PATH,
                post(async move |r| log.handle_message(r, InternalRoute::Log, Api::log).await),
            )
            .route(
                PROPOSE_PATH,
                post(async move |r| {
                    propose.handle_message(r, InternalRoute::Propose, Api::propose).await
                }),
            )
            .route(
                LEASE_PATH,
                post(async move |r| {
                    lease.handle_message(r, InternalRoute::Lease, Api::lease).await
                }),
            )
            .route(
                HOLDERS_PATH,
                post(async move |r| {
                    holders.handle_message(r, InternalRoute::Holders, Api::holders).await
                }),
            )
            .route(
                MEMBERSHIP_CHECK_PATH,
                post(async move |r| {
                    membership_check
                        .handle_message(r, InternalRoute::MembershipCheck, Api::check_membership)
                        .await
                }),
            )
            .route(
                PEER_PATH,
                post(async move |r| peer.handle_message(r, InternalRoute::Peer, Api::peer).await)
                    .layer(from_fn(require_same_protocol)),
            )
            .route(
                &format!("{BLOB_PATH}/{{digest}}"),
                put(move |p, r| keep.put_internal_blob(p, r))
                    .get(move |p, r| give.get_internal_blob(p, r)),
            )
            .route(
                &format!("{PACKAGE_PATH}/{{digest}}"),
                get(move |p, q, r| part.get_package_range(p, q, r)),
            )
    }

    /// An agent that is refused is remembered, for whoever asks why its machine is down.
    async fn handle_poll(self, request: Request<Body>) -> Response<Body> {
        let machine = match request.extensions().get::<Caller>() {
            Some(Caller::Agent(machine)) => Some(machine.clone()),
            _ => None,
        };
        let result = self
            .clone()
            .handle_message_with(request, InternalRoute::Poll, decode_report, Api::poll)
            .await;
        let rejected_polls = self.handle.local_rejected_polls();
        match (&result, &machine) {
            (Ok(_), Some(machine)) => rejected_polls.clear(machine),
            // Another master may well listen to it.
            (Err(error), Some(machine)) if error.code != Code::NotReady => {
                rejected_polls.note(machine, error);
            }
            _ => {}
        }
        into_response(result.map(Bytes::from))
    }

    /// An agent speaks for its own machine and no other.
    async fn poll(self, caller: Caller, report: AgentReport) -> Result<Vec<u8>, ApiError> {
        access::check_own_machine(&caller, &report.machine)?;
        // What it would order is what the cell wanted when this replica was last told.
        if self.handle.is_removed() {
            return Err(removed_replica_error());
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
        access::check_own_machine(&caller, &request.machine)?;
        if self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        self.check_machine_exists(&caller)?;
        encode(&package_holders::find_holders(&self.handle.read().state, &request))
    }

    /// Whether somebody who has dialled the agent may be listened to: a machine of the cell, or a
    /// replica that was not sent away.
    async fn check_membership(
        self,
        caller: Caller,
        request: MembershipCheckRequest,
    ) -> Result<Vec<u8>, ApiError> {
        access::check_own_machine(&caller, &request.machine)?;
        if self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        self.check_machine_exists(&caller)?;
        let MembershipCheckRequest { part, name, .. } = request;
        let is_member = self.handle.replicated().with(|view| {
            let is_known = part != PartKind::Agent || view.state.machine_named(&name).is_some();
            is_known && !view.state.is_revoked(part, &name)
        });
        encode(&is_member)
    }

    async fn log(self, _: Caller, request: LogRequest) -> Result<Vec<u8>, ApiError> {
        if request.wait > MAX_WAIT {
            let allowed = format!("at most {} ms", MAX_WAIT.0);
            return Err(ApiError::field("wait", &request.wait.0.to_string(), &allowed));
        }
        // Whoever followed it here would see nothing happen for good.
        if self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        encode(&self.handle.log_after(request.after, request.wait).await)
    }

    /// What a scheduler may is decided by `apply`, in its own name.
    async fn propose(self, caller: Caller, proposal: Proposal) -> Result<Vec<u8>, ApiError> {
        access::check_proposal_actors(&caller, &proposal)?;
        encode(&self.handle.propose_as(&caller, proposal).await?)
    }

    /// A scheduler holds leases under the name of its certificate and no other.
    async fn lease(self, caller: Caller, request: LeaseRequest) -> Result<Vec<u8>, ApiError> {
        access::check_scheduler_name(&caller, &request.scheduler)?;
        encode(&self.handle.lease(request).await?)
    }

    async fn peer(self, caller: Caller, call: PeerCall) -> Result<Vec<u8>, ApiError> {
        let name = match &caller {
            Caller::Replica(name) => Some(name.as_str()),
            _ => None,
        };
        encode(&self.handle.handle_peer_call(name, call).await)
    }

    async fn put_internal_blob(
        self,
        Path(digest): Path<String>,
        request: Request<Body>,
    ) -> Response<Body> {
        let result = async move {
            InternalRoute::Peer.admit(known_caller(request.extensions().get())?)?;
            request_origin::require_binary(request.headers())?;
            let content = bodies::with_min_rate(request.into_body(), self.flow.pace);
            self.services.store_local_blob(digest_of(&digest)?, content).await
        };
        into_response(result.await.map(|_| Bytes::new()))
    }

    async fn get_internal_blob(
        self,
        Path(digest): Path<String>,
        request: Request<Body>,
    ) -> Response<Body> {
        let result = async move {
            InternalRoute::Peer.admit(known_caller(request.extensions().get())?)?;
            let digest = digest_of(&digest)?;
            self.run_blocking(move |api| api.services.local_blob(&digest)).await
        };
        result.await.map_or_else(|error| error_response(&error), content_response)
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
    async fn get_package_range(
        self,
        Path(digest): Path<String>,
        range: Result<Query<Range>, QueryRejection>,
        request: Request<Body>,
    ) -> Response<Body> {
        let result = async move {
            let caller = known_caller(request.extensions().get())?;
            InternalRoute::Package.admit(caller)?;
            self.check_machine_exists(caller)?;
            let is_replica = matches!(caller, Caller::Replica(_));
            let bad = |e: QueryRejection| ApiError::new(Code::BadParameter, e.body_text());
            let Query(Range { from, length }) = range.map_err(bad)?;
            if length > MAX_RANGE {
                let allowed = format!("at most {MAX_RANGE}");
                return Err(ApiError::parameter("length", &length.to_string(), &allowed));
            }
            let bytes = self.services.blob_range(digest_of(&digest)?, from, length).await?;
            if !is_replica {
                self.request_metrics.count_package_bytes(bytes.len());
            }
            Ok(bytes)
        };
        into_response(result.await.map(Bytes::from))
    }
}

fn digest_of(text: &str) -> Result<Token, ApiError> {
    Token::new(text).map_err(|bad| ApiError::parameter("digest", text, &bad.allowed))
}

fn known_caller(caller: Option<&Caller>) -> Result<&Caller, ApiError> {
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
fn decode_report(bytes: &[u8]) -> Result<AgentReport, ApiError> {
    AgentReport::read(bytes)
        .map_err(|bad| ApiError::new(Code::BadBody, bad.to_string()).hint(bad.hint()))
}

impl Api {
    async fn handle_message<M, F>(
        self,
        request: Request<Body>,
        route: InternalRoute,
        handler: impl FnOnce(Api, Caller, M) -> F,
    ) -> Response<Body>
    where
        M: DeserializeOwned,
        F: Future<Output = Result<Vec<u8>, ApiError>>,
    {
        into_response(
            self.handle_message_with(request, route, decode, handler).await.map(Bytes::from),
        )
    }

    /// Whether the caller may ask is looked at before a byte of the message is.
    async fn handle_message_with<M, F>(
        self,
        request: Request<Body>,
        route: InternalRoute,
        read: fn(&[u8]) -> Result<M, ApiError>,
        handler: impl FnOnce(Api, Caller, M) -> F,
    ) -> Result<Vec<u8>, ApiError>
    where
        F: Future<Output = Result<Vec<u8>, ApiError>>,
    {
        let (mut parts, body) = request.into_parts();
        let caller = parts.extensions.remove::<Caller>().ok_or_else(access::unauthenticated)?;
        route.admit(&caller)?;
        request_origin::require_postcard(&parts.headers)?;
        let message = self.read_message(&parts, body, &caller).await?;
        handler(self, caller, read(&message)?).await
    }

    /// What was sent. An agent runs where tasks may break out: what it may send is an operator's
    /// setting, and counts against its share. The cell's other parts send each other the log.
    async fn read_message(
        &self,
        parts: &Parts,
        body: Body,
        caller: &Caller,
    ) -> Result<Bytes, ApiError> {
        let length = parts.headers.get(header::CONTENT_LENGTH);
        let stated = length.and_then(|value| value.to_str().ok()?.parse().ok());
        let of_agent = matches!(caller, Caller::Agent(_)) || parts.uri.path() == POLL_PATH;
        let (shares, limit) = match of_agent {
            true => (&self.flow.bodies, self.flow.report_limit),
            false => (&self.flow.messages, MAX_MESSAGE),
        };
        let mut share = shares.empty(&caller.to_string());
        bodies::read_whole(body, stated, limit, &mut share, self.flow.pace).await
    }
}

fn into_response(result: Result<Bytes, ApiError>) -> Response<Body> {
    match result {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            let kind = HeaderValue::from_static("application/postcard");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Err(error) => error_response(&error),
    }
}
