//! Routes for the cell's own parts: agents' polls, log replication to schedulers, proposals and
//! leases, and calls between replicas. In postcard; each path is for one kind of part alone.

use super::access::{self, InternalRoute};
use super::blobs::content_response;
use super::{Api, bodies, error_response, package_holders, removed_replica_error};
use crate::access::request_origin;
use crate::http_peers::PEER_PATH;
use crate::wire;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, Response, header};
use axum::routing::{get, post, put};
use bytes::Bytes;
use cellwright_api::client::internal_calls::{
    BLOB_PATH, HOLDERS_PATH, LEASE_PATH, LOG_PATH, MEMBERSHIP_CHECK_PATH, PACKAGE_PATH, POLL_PATH,
    PROPOSE_PATH,
};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::wire::{WireMessage, WireVersion};
use cellwright_cell::credential::PartKind;
use cellwright_cell::name::Token;
use cellwright_cell::time::Span;
use cellwright_master::handle::Caller;
use cellwright_master::links::LinkError;
use cellwright_master::peers::{PeerAnswer, PeerCall};
use cellwright_messages::{
    AgentOrders, AgentReport, HoldersRequest, LeaseAnswer, LeaseRequest, LogAnswer, LogRequest,
    MembershipCheckRequest, PackageHolder, Proposal, ProposalAnswer,
};
use serde::Deserialize;
use std::future::Future;

/// Largest message: a snapshot chunk, or a scheduler's plan for a hundred thousand tasks.
const MAX_MESSAGE: usize = 64 << 20;
/// Most bytes of a package in one answer: enough for the largest package header.
const MAX_RANGE: u32 = 9 << 20;
/// Longest time that a follower's request for the log may hang.
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
            .route(LOG_PATH, post(async move |r| log.take(r, InternalRoute::Log, Api::log).await))
            .route(
                PROPOSE_PATH,
                post(async move |r| propose.take(r, InternalRoute::Propose, Api::propose).await),
            )
            .route(
                LEASE_PATH,
                post(async move |r| lease.take(r, InternalRoute::Lease, Api::lease).await),
            )
            .route(
                HOLDERS_PATH,
                post(async move |r| holders.take(r, InternalRoute::Holders, Api::holders).await),
            )
            .route(
                MEMBERSHIP_CHECK_PATH,
                post(async move |r| {
                    membership_check
                        .take(r, InternalRoute::MembershipCheck, Api::check_membership)
                        .await
                }),
            )
            .route(
                PEER_PATH,
                post(async move |r| peer.take(r, InternalRoute::Peer, Api::peer).await),
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

    /// A rejected poll is recorded, to explain why the agent's machine is down.
    async fn handle_poll(self, request: Request<Body>) -> Response<Body> {
        let machine = match request.extensions().get::<Caller>() {
            Some(Caller::Agent(machine)) => Some(machine.clone()),
            _ => None,
        };
        let answered =
            self.clone().handle_message_with(request, InternalRoute::Poll, Api::poll).await;
        let rejected_polls = self.handle.local_rejected_polls();
        match (&answered, &machine) {
            (Ok(_), Some(machine)) => rejected_polls.clear(machine),
            // Another master may well accept it.
            (Err(error), Some(machine)) if error.code != Code::NotReady => {
                rejected_polls.note(machine, error);
            }
            _ => {}
        }
        wire::finish(answered)
    }

    /// An agent speaks for its own machine and no other.
    async fn poll(self, caller: Caller, report: AgentReport) -> Result<AgentOrders, ApiError> {
        access::check_own_machine(&caller, &report.machine)?;
        // Its orders would be those of the state when this replica was last a member.
        if self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        match self.handle.poll(report).await {
            Ok(orders) => Ok(orders),
            Err(error @ LinkError::OtherMachine { .. }) => {
                Err(ApiError::new(Code::BadField, error.to_string()))
            }
        }
    }

    /// An agent asks for its own machine.
    async fn holders(
        self,
        caller: Caller,
        request: HoldersRequest,
    ) -> Result<Vec<PackageHolder>, ApiError> {
        access::check_own_machine(&caller, &request.machine)?;
        if self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        self.check_machine_exists(&caller)?;
        Ok(package_holders::find_holders(&self.handle.read().state, &request))
    }

    /// Whether a part that has dialled the agent may be served: a machine of the cell, or a replica
    /// that was not revoked.
    async fn check_membership(
        self,
        caller: Caller,
        request: MembershipCheckRequest,
    ) -> Result<bool, ApiError> {
        access::check_own_machine(&caller, &request.machine)?;
        if self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        self.check_machine_exists(&caller)?;
        let MembershipCheckRequest { part, name, .. } = request;
        Ok(self.handle.replicated().with(|view| {
            let is_known = part != PartKind::Agent || view.state.machine_named(&name).is_some();
            is_known && !view.state.is_revoked(part, &name)
        }))
    }

    async fn log(self, _: Caller, request: LogRequest) -> Result<LogAnswer, ApiError> {
        if request.wait > MAX_WAIT {
            let allowed = format!("at most {} ms", MAX_WAIT.0);
            return Err(ApiError::field("wait", &request.wait.0.to_string(), &allowed));
        }
        // A follower of this replica's log would never see an entry again.
        if self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        Ok(self.handle.log_after(request.after, request.wait).await)
    }

    /// What a scheduler may propose is decided by `apply`, in its own name.
    async fn propose(self, caller: Caller, proposal: Proposal) -> Result<ProposalAnswer, ApiError> {
        access::check_proposal_actors(&caller, &proposal)?;
        Ok(self.handle.propose_as(&caller, proposal).await?)
    }

    /// A scheduler holds leases under the name of its certificate and no other.
    async fn lease(self, caller: Caller, request: LeaseRequest) -> Result<LeaseAnswer, ApiError> {
        access::check_scheduler_name(&caller, &request.scheduler)?;
        Ok(self.handle.lease(request).await?)
    }

    async fn peer(self, caller: Caller, call: PeerCall) -> Result<PeerAnswer, ApiError> {
        let name = match &caller {
            Caller::Replica(name) => Some(name.as_str()),
            _ => None,
        };
        Ok(self.handle.handle_peer_call(name, call).await)
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
        wire::finish_bytes(result.await.map(|_| Bytes::new()))
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

/// A range of a package's bytes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: u64,
    length: u32,
}

impl Api {
    /// Agents fetch packages by their digest and in ranges, from here and from each other.
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
        wire::finish_bytes(result.await.map(Bytes::from))
    }
}

fn digest_of(text: &str) -> Result<Token, ApiError> {
    Token::new(text).map_err(|bad| ApiError::parameter("digest", text, &bad.allowed))
}

fn known_caller(caller: Option<&Caller>) -> Result<&Caller, ApiError> {
    caller.ok_or_else(access::unauthenticated)
}

impl Api {
    async fn take<M, R, F>(
        self,
        request: Request<Body>,
        route: InternalRoute,
        handler: impl FnOnce(Api, Caller, M) -> F,
    ) -> Response<Body>
    where
        M: WireMessage,
        R: WireMessage,
        F: Future<Output = Result<R, ApiError>>,
    {
        wire::finish(self.handle_message_with(request, route, handler).await)
    }

    /// The caller's authorisation and the version of its message are checked before a byte of the
    /// message is read. The answer comes in the version of the request.
    async fn handle_message_with<M, R, F>(
        self,
        request: Request<Body>,
        route: InternalRoute,
        handler: impl FnOnce(Api, Caller, M) -> F,
    ) -> Result<(WireVersion, R), ApiError>
    where
        M: WireMessage,
        F: Future<Output = Result<R, ApiError>>,
    {
        let (mut parts, body) = request.into_parts();
        let caller = parts.extensions.remove::<Caller>().ok_or_else(access::unauthenticated)?;
        route.admit(&caller)?;
        request_origin::require_postcard(&parts.headers)?;
        let version = self.spoken(&parts.headers, &caller)?;
        let message = self.read_message(&parts, body, &caller).await?;
        Ok((version, handler(self, caller, wire::decode(version, &message)?).await?))
    }

    fn spoken(&self, headers: &HeaderMap, caller: &Caller) -> Result<WireVersion, ApiError> {
        let spoken = wire::spoken(headers, &caller.to_string());
        self.request_metrics.heard(caller, spoken.as_ref().ok().copied());
        spoken
    }

    /// Reads the message. An agent runs where tasks may break out: the size of its reports is
    /// limited by configuration, and counts against its share. The cell's other parts send each
    /// other the log.
    async fn read_message(
        &self,
        parts: &Parts,
        body: Body,
        caller: &Caller,
    ) -> Result<Bytes, ApiError> {
        let length = parts.headers.get(header::CONTENT_LENGTH);
        let stated = length.and_then(|value| value.to_str().ok()?.parse().ok());
        let of_agent = matches!(caller, Caller::Agent(_)) || parts.uri.path() == POLL_PATH;
        let (shares, limit) = if of_agent {
            (&self.flow.bodies, self.flow.report_limit)
        } else {
            (&self.flow.messages, MAX_MESSAGE)
        };
        let mut share = shares.empty(&caller.to_string());
        bodies::read_whole(body, stated, limit, &mut share, self.flow.pace).await
    }
}
