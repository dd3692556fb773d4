//! Joining and renewing over HTTP, in postcard, like all internal messages. Joining is open to
//! anyone who holds a token and goes to the leader, because the token's use is a change; renewing
//! is answered by any replica.

use super::caller::ClockTimes;
use super::join::{Admission, JoinError, authority_for, certify_task, renew};
use super::listener::ConnInfo;
use super::request_origin;
use crate::wire;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::wire::{WireMessage, WireVersion};
use cellwright_cell::time::Span;
use cellwright_identity::authority::{Authority, IssueTime};
use cellwright_identity::enroll::{
    AUTHORITY_PATH, AuthorityAnswer, AuthorityRequest, JOIN_PATH, JoinReply, JoinRequest,
    RENEW_PATH,
};
use cellwright_identity::enroll::{RenewAnswer, RenewRequest};
use cellwright_identity::task_identity::{
    TASK_IDENTITY_PATH, TaskIdentityAnswer, TaskIdentityRequest,
};
use cellwright_master::clock::Clock;
use cellwright_master::handle::{Caller, MasterHandle};
use http_body_util::{BodyExt, Limited};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A signing request and a token are a few kilobytes.
const MAX_BODY: usize = 64 << 10;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of join requests handled at once: each asks the other replicas for the leader, and anyone
/// may send one.
const MAX_CONCURRENT_JOINS: usize = 32;

/// An answer, and the version that it was asked for in.
type Answered<M> = Result<(WireVersion, M), ApiError>;

#[derive(Clone)]
pub struct EnrollmentApi {
    pub handle: MasterHandle,
    pub authority: Arc<Authority>,
    pub clock: Arc<dyn Clock>,
    /// Lifetime of a task's certificate.
    pub task_life: Span,
}

impl EnrollmentApi {
    /// The routes, to be merged with the others of the listener.
    pub fn router(self) -> Router {
        let (joining, join_permits) =
            (self.clone(), Arc::new(Semaphore::new(MAX_CONCURRENT_JOINS)));
        let (tasks, handing) = (self.clone(), self.clone());
        Router::new()
            .route(
                JOIN_PATH,
                post(async move |r| wire::finish(joining.join(r, &join_permits).await)),
            )
            .route(
                AUTHORITY_PATH,
                post(async move |r| wire::finish(handing.authority_key(r).await)),
            )
            .route(RENEW_PATH, post(async move |r| wire::finish(self.renew(r).await)))
            .route(
                TASK_IDENTITY_PATH,
                post(async move |r| wire::finish(tasks.task_identity(r).await)),
            )
    }

    /// Signing is fast, and the certificate authenticates the caller.
    async fn task_identity(&self, request: Request<Body>) -> Answered<TaskIdentityAnswer> {
        let holder = request.extensions().get::<ConnInfo>().and_then(|info| info.holder.clone());
        let unauthenticated =
            || ApiError::new(Code::Unauthenticated, "this takes an agent's certificate");
        let holder = holder.ok_or_else(unauthenticated)?;
        let (version, request): (_, TaskIdentityRequest) = read_message(request).await?;
        let (view, now) = (self.handle.read(), self.now()?);
        let signed =
            certify_task(&request, &holder, &self.authority, &view.state, now, self.task_life);
        Ok((version, signed.map_err(join_error_response)?))
    }

    async fn join(&self, request: Request<Body>, join_permits: &Semaphore) -> Answered<JoinReply> {
        let from = request.extensions().get::<ConnInfo>();
        let from = from.map_or_else(String::new, |info| info.remote.ip().to_string());
        let (version, request): (_, JoinRequest) = read_message(request).await?;
        let Ok(_seat) = join_permits.try_acquire() else {
            let message = format!("{MAX_CONCURRENT_JOINS} others are joining at this moment");
            return Err(ApiError::new(Code::Overloaded, message).with_retry_after(Span(1000)));
        };
        // Before the token is used up.
        let now = self.now()?;
        let view = self.handle.read_linearizable().await?;
        let log_time = self.handle.log_time();
        let admission = Admission::check(&request, &from, &view.state, log_time)
            .map_err(join_error_response)?;
        let caller = self.handle.own_caller()?;
        let used = match admission.command.clone() {
            Some(command) => {
                let id = Some(admission.id);
                Some(self.handle.submit(&caller, id, command).await?.verdict)
            }
            None => None,
        };
        Ok((version, admission.answer(used, &self.authority, now).map_err(join_error_response)?))
    }

    /// The audit line is written before the answer is sent.
    async fn authority_key(&self, request: Request<Body>) -> Answered<AuthorityAnswer> {
        let holder = request.extensions().get::<ConnInfo>().and_then(|info| info.holder.clone());
        let unauthenticated =
            || ApiError::new(Code::Unauthenticated, "this takes a replica's certificate");
        let holder = holder.ok_or_else(unauthenticated)?;
        let (version, AuthorityRequest) = read_message(request).await?;
        let view = self.handle.read();
        let now = ClockTimes { wall: self.clock.wall_time(), log: self.handle.log_time() };
        let (subject, answer) = authority_for(&holder, &self.authority, &view.state, now)
            .map_err(join_error_response)?;
        let audit = &self.handle.replicated().records.audit;
        let actor = Caller::Replica(holder.identity.part.name().clone()).to_string();
        audit.append_unlogged(now.log, &actor, "take_authority_key", &subject, "done").map_err(
            |error| ApiError::new(Code::Internal, format!("it cannot be taken down: {error}")),
        )?;
        Ok((version, answer))
    }

    /// The time of signing.
    fn now(&self) -> Result<IssueTime, ApiError> {
        let (wall, log) = (self.clock.wall_time(), self.handle.log_time());
        IssueTime::from_clocks(wall, log).map_err(|apart| {
            let hours = apart.0 / 3_600_000;
            let message = format!(
                "this master signs nothing: its clock and the log's time are {hours} h apart"
            );
            ApiError::new(Code::NotReady, message)
                .hint("look at its clock, or ask another master")
                .with_retry_after(Span::seconds(60))
        })
    }

    async fn renew(&self, request: Request<Body>) -> Answered<RenewAnswer> {
        let holder = request.extensions().get::<ConnInfo>().and_then(|info| info.holder.clone());
        let unauthenticated =
            || ApiError::new(Code::Unauthenticated, "renewing takes a certificate");
        let holder = holder.ok_or_else(unauthenticated)?;
        let (version, RenewRequest { signing_request }) = read_message(request).await?;
        let (view, now) = (self.handle.read(), self.now()?);
        let renewed = renew(&signing_request, &holder, &self.authority, &view.state, now);
        Ok((version, renewed.map_err(join_error_response)?))
    }
}

fn join_error_response(error: JoinError) -> ApiError {
    let code = match &error {
        JoinError::Token(_) | JoinError::Request(_) => Code::BadBody,
        JoinError::Rejected(refused) => cellwright_api::error::code_of(refused),
        JoinError::Signing(_) => Code::Internal,
        JoinError::Unknown
        | JoinError::InvalidToken(_)
        | JoinError::NameMismatch { .. }
        | JoinError::IdentityMismatch { .. }
        | JoinError::NotPartOfCell { .. }
        | JoinError::NotPlaced { .. }
        | JoinError::Unconfirmed { .. }
        | JoinError::Expired => Code::NotAllowed,
    };
    ApiError::new(code, error.to_string()).hint("ask for a new join token: cell token create")
}

async fn read_message<M: WireMessage>(request: Request<Body>) -> Answered<M> {
    request_origin::require_postcard(request.headers())?;
    let version = wire::spoken(request.headers(), "the caller")?;
    // A message this short that arrives slowly is an attack, not a slow line.
    let reading = Limited::new(request.into_body(), MAX_BODY).collect();
    let collected = timeout(BODY_TIMEOUT, reading).await.map_err(|_| {
        let seconds = BODY_TIMEOUT.as_secs();
        ApiError::new(Code::SlowBody, format!("the message did not come within {seconds} s"))
    })?;
    let bytes = collected.map_err(|e| ApiError::new(Code::TooLarge, e.to_string()))?.to_bytes();
    Ok((version, wire::decode(version, &bytes)?))
}
