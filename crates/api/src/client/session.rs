//! Upgraded connections: the request asks for the upgrade, the answer grants it, and from there on
//! the bytes belong to the caller.

use super::connection::{self, Sender, TransportError};
use super::outcome::{NextStep, classify, is_from_removed_replica};
use super::{Call, Client, ClientError, Received};
use crate::error::Code;
use crate::exec::EXEC_PROTOCOL;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// A connection after the upgrade.
pub type SessionStream = TokioIo<Upgraded>;

/// Largest error body that is read.
const MAX_ERROR_BODY: usize = 1 << 20;

/// Pause before another master is tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Adds the upgrade headers to the call.
pub(super) fn request_upgrade(call: &mut Call) {
    call.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    call.headers.insert(UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL));
}

/// Why there is no session.
enum SessionError {
    Transport(TransportError),
    Answer(NextStep),
}

/// Sends the call, and returns the upgraded connection if the other side agrees.
pub(super) async fn complete_upgrade(
    sender: Sender,
    address: &str,
    call: &Call,
) -> Result<SessionStream, ClientError> {
    try_upgrade(sender, address, call).await.map_err(|step| match step {
        NextStep::Fail(error) | NextStep::Redirect(_, error) | NextStep::Later(_, error) => error,
        NextStep::Done => not_handed_over(address),
    })
}

fn not_handed_over(address: &str) -> ClientError {
    ClientError::Unknown(format!("{address}: the connection was not handed over"))
}

/// The same; an answer that is no session says what to do next.
async fn try_upgrade(
    mut sender: Sender,
    address: &str,
    call: &Call,
) -> Result<SessionStream, NextStep> {
    let broke = |why: &dyn std::fmt::Display| {
        NextStep::Fail(ClientError::Unknown(format!("{address}: {why}")))
    };
    let request = connection::request(address, call)
        .map_err(|error| NextStep::Fail(ClientError::InvalidConfig(error)))?;
    let response = sender.send_request(request).await.map_err(|error| broke(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| broke(&error))?;
        return Ok(TokioIo::new(upgraded));
    }
    let (parts, body) = response.into_parts();
    let collected = Limited::new(body, MAX_ERROR_BODY).collect().await;
    let body = collected.map(|whole| whole.to_bytes()).unwrap_or_default();
    let received = Received { status: parts.status, headers: parts.headers, body, open: None };
    Err(classify(&received, false))
}

impl Client {
    /// An upgraded connection through a master, to the route `path`. Masters that do not answer, or
    /// that cannot serve it for now, are skipped until the call's deadline; any other error is
    /// final.
    ///
    /// # Errors
    /// The cell's error, that it could not be reached, or that the outcome is unknown.
    pub async fn session(&self, path: &str) -> Result<SessionStream, ClientError> {
        let mut call = self.call(Method::POST, path, Bytes::new(), false);
        request_upgrade(&mut call);
        let deadline = Instant::now() + call.deadline;
        let mut address = self.preferred();
        let mut unreachable = 0;
        loop {
            let (error, next) = match self.try_session(&address, &mut call, deadline).await {
                Ok(stream) => return Ok(stream),
                Err(SessionError::Transport(fault)) => {
                    unreachable += 1;
                    let next = self.fail_over(&address, &address);
                    (fault.into_unreachable(unreachable), next)
                }
                Err(SessionError::Answer(NextStep::Redirect(leader, error))) => {
                    (error, self.redirect_target(&leader, &address))
                }
                // Another master has no more room in the task.
                Err(SessionError::Answer(NextStep::Later(_, error)))
                    if error.code() == Some(Code::Overloaded) =>
                {
                    return Err(error);
                }
                Err(SessionError::Answer(NextStep::Later(_, error))) => {
                    (error, self.next_master(&address))
                }
                Err(SessionError::Answer(NextStep::Fail(error))) => return Err(error),
                Err(SessionError::Answer(NextStep::Done)) => {
                    return Err(not_handed_over(&address));
                }
            };
            let tried = u32::try_from(self.masters().len()).unwrap_or(u32::MAX);
            let is_over = unreachable >= tried || Instant::now() + RETRY_INTERVAL >= deadline;
            if is_over || is_from_removed_replica(&error) && next == address {
                return Err(error);
            }
            address = next;
            sleep(RETRY_INTERVAL).await;
        }
    }

    async fn try_session(
        &self,
        address: &str,
        call: &mut Call,
        deadline: Instant,
    ) -> Result<SessionStream, SessionError> {
        let (at, token) = self.shared.pool.dial_target(address);
        let dialled = self.shared.pool.dial_with_timeout(&at).await;
        let sender = dialled.map_err(SessionError::Transport)?;
        call.headers.extend(token.map(|token| (AUTHORIZATION, token)));
        let result = timeout_at(deadline, try_upgrade(sender, &at, call)).await;
        let late = || ClientError::Unknown(format!("{address} did not answer in time"));
        result.unwrap_or_else(|_| Err(NextStep::Fail(late()))).map_err(SessionError::Answer)
    }
}
