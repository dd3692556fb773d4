//! Joining and renewing over HTTP: postcard in, postcard out, like everything among the cell's own
//! parts. Joining is open to anyone who holds a token and goes to the leader, because the token's
//! use is a change; renewing is answered by any replica.

use super::caller::ClockTimes;
use super::join::{Admission, JoinError, authority_for, certify_task, renew};
use super::listener::ConnInfo;
use super::request_origin;
use crate::http::error_response;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, header};
use axum::routing::post;
use cellwright_api::error::{ApiError, Code};
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
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A signing request and a token are a few kilobytes.
const MAX_BODY: usize = 64 << 10;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests to join that are judged at once: each asks the other replicas who leads, and anybody
/// may send one.
const MAX_CONCURRENT_JOINS: usize = 32;

#[derive(Clone)]
pub struct EnrollmentApi {
    pub handle: MasterHandle,
    pub authority: Arc<Authority>,
    pub clock: Arc<dyn Clock>,
    /// How long the certificate of a task is good.
    pub task_life: Span,
}

impl EnrollmentApi {
    /// To be merged with the other routes of the listener.
    pub fn router(self) -> Router {
        let (joining, join_permits) =
            (self.clone(), Arc::new(Semaphore::new(MAX_CONCURRENT_JOINS)));
        let (tasks, handing) = (self.clone(), self.clone());
        Router::new()
            .route(
                JOIN_PATH,
                post(async move |r| encode_response(joining.join(r, &join_permits).await)),
            )
            .route(
                AUTHORITY_PATH,
                post(async move |r| encode_response(handing.authority_key(r).await)),
            )
            .route(
                RENEW_PATH,
                post(async move |request| encode_response(self.renew(request).await)),
            )
            .route(
                TASK_IDENTITY_PATH,
                post(async move |r| encode_response(tasks.task_identity(r).await)),
            )
    }

    /// Signing takes no time to speak of, and who may ask is in the certificate.
    async fn task_identity(&self, request: Request<Body>) -> Result<TaskIdentityAnswer, ApiError> {
        let holder = request.extensions().get::<ConnInfo>().and_then(|info| info.holder.clone());
        let unauthenticated =
            || ApiError::new(Code::Unauthenticated, "this takes an agent's certificate");
        let holder = holder.ok_or_else(unauthenticated)?;
        let message: TaskIdentityRequest = read_message(request).await?;
        let (view, now) = (self.handle.read(), self.now()?);
        let signed =
            certify_task(&message, &holder, &self.authority, &view.state, now, self.task_life);
        signed.map_err(join_error_response)
    }

    async fn join(
        &self,
        request: Request<Body>,
        join_permits: &Semaphore,
    ) -> Result<JoinReply, ApiError> {
        let from = request.extensions().get::<ConnInfo>();
        let from = from.map_or_else(String::new, |info| info.remote.ip().to_string());
        let request: JoinRequest = read_message(request).await?;
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
        let caller = self.handle.own_caller();
        let used = match admission.command.clone() {
            Some(command) => {
                let id = Some(admission.id);
                Some(self.handle.submit(&caller, id, command).await?.verdict)
            }
            None => None,
        };
        admission.answer(used, &self.authority, now).map_err(join_error_response)
    }

    /// In the audit log before it is on the wire.
    async fn authority_key(&self, request: Request<Body>) -> Result<AuthorityAnswer, ApiError> {
        let holder = request.extensions().get::<ConnInfo>().and_then(|info| info.holder.clone());
        let unauthenticated =
            || ApiError::new(Code::Unauthenticated, "this takes a replica's certificate");
        let holder = holder.ok_or_else(unauthenticated)?;
        let AuthorityRequest { protocol } = read_message(request).await?;
        let view = self.handle.read();
        let now = ClockTimes { wall: self.clock.wall_time(), log: self.handle.log_time() };
        let (subject, answer) = authority_for(protocol, &holder, &self.authority, &view.state, now)
            .map_err(join_error_response)?;
        let audit = &self.handle.replicated().records.audit;
        let actor = Caller::Replica(holder.identity.part.name().clone()).to_string();
        audit.append_unlogged(now.log, &actor, "take_authority_key", &subject, "done").map_err(
            |error| ApiError::new(Code::Internal, format!("it cannot be taken down: {error}")),
        )?;
        Ok(answer)
    }

    /// When what is signed now is signed.
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

    async fn renew(&self, request: Request<Body>) -> Result<RenewAnswer, ApiError> {
        let holder = request.extensions().get::<ConnInfo>().and_then(|info| info.holder.clone());
        let unauthenticated =
            || ApiError::new(Code::Unauthenticated, "renewing takes a certificate");
        let holder = holder.ok_or_else(unauthenticated)?;
        let RenewRequest { protocol, signing_request } = read_message(request).await?;
        let (view, now) = (self.handle.read(), self.now()?);
        renew(protocol, &signing_request, &holder, &self.authority, &view.state, now)
            .map_err(join_error_response)
    }
}

fn join_error_response(error: JoinError) -> ApiError {
    let code = match &error {
        JoinError::Protocol { .. } | JoinError::Token(_) | JoinError::Request(_) => Code::BadBody,
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

async fn read_message<M: DeserializeOwned>(request: Request<Body>) -> Result<M, ApiError> {
    request_origin::require_postcard(request.headers())?;
    // So short a message that comes slowly is not meant to come to its end.
    let reading = Limited::new(request.into_body(), MAX_BODY).collect();
    let collected = timeout(BODY_TIMEOUT, reading).await.map_err(|_| {
        let seconds = BODY_TIMEOUT.as_secs();
        ApiError::new(Code::SlowBody, format!("the message did not come within {seconds} s"))
    })?;
    let bytes = collected.map_err(|e| ApiError::new(Code::TooLarge, e.to_string()))?.to_bytes();
    let bad = |_| ApiError::new(Code::BadBody, "not the message that belongs here");
    postcard::from_bytes(&bytes).map_err(bad)
}

fn encode_response<T: Serialize>(outcome: Result<T, ApiError>) -> Response<Body> {
    let encoded = outcome.and_then(|answer| {
        let broken = |e: postcard::Error| ApiError::new(Code::Internal, e.to_string());
        postcard::to_stdvec(&answer).map_err(broken)
    });
    match encoded {
        Err(error) => error_response(&error),
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            let kind = header::HeaderValue::from_static("application/postcard");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
    }
}
