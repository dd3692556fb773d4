//! Upgraded connections: the request asks for the upgrade, the answer grants it, and from there on
//! the bytes belong to the caller.

use super::connection::{self, Sender, TransportError};
use super::outcome::{NextStep, classify};
use super::{Call, Client, ClientError, Received};
use crate::exec::EXEC_PROTOCOL;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

/// A connection after the upgrade.
pub type SessionStream = TokioIo<Upgraded>;

/// Largest error body that is read.
const MAX_ERROR_BODY: usize = 1 << 20;

/// Adds the upgrade headers to the call.
pub(super) fn request_upgrade(call: &mut Call) {
    call.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    call.headers.insert(UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL));
}

/// Sends the call, and returns the upgraded connection if the other side agrees.
pub(super) async fn complete_upgrade(
    mut sender: Sender,
    address: &str,
    call: &Call,
) -> Result<SessionStream, ClientError> {
    let broke = |why: &dyn std::fmt::Display| ClientError::Unknown(format!("{address}: {why}"));
    let request = connection::request(address, call).map_err(ClientError::InvalidConfig)?;
    let response = sender.send_request(request).await.map_err(|error| broke(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| broke(&error))?;
        return Ok(TokioIo::new(upgraded));
    }
    let (parts, body) = response.into_parts();
    let collected = Limited::new(body, MAX_ERROR_BODY).collect().await;
    let body = collected.map(|whole| whole.to_bytes()).unwrap_or_default();
    let received = Received { status: parts.status, headers: parts.headers, body, open: None };
    Err(match classify(&received, false) {
        NextStep::Fail(error) | NextStep::Redirect(_, error) | NextStep::Later(_, error) => error,
        NextStep::Done => broke(&"the connection was not handed over"),
    })
}

impl Client {
    /// An upgraded connection through a master, to the route `path`. Masters that do not answer are
    /// skipped; an error of one is final.
    ///
    /// # Errors
    /// The cell's error, that it could not be reached, or that the outcome is unknown.
    pub async fn session(&self, path: &str) -> Result<SessionStream, ClientError> {
        let mut call = self.call(Method::POST, path, Bytes::new(), false);
        request_upgrade(&mut call);
        let mut address = self.preferred();
        let mut last = TransportError::before_sending(String::new());
        let tries = self.masters().len();
        for _ in 0..tries {
            let (at, token) = self.shared.pool.dial_target(&address);
            match self.shared.pool.dial_with_timeout(&at).await {
                Ok(sender) => {
                    call.headers.extend(token.map(|token| (AUTHORIZATION, token)));
                    let result = timeout(call.deadline, complete_upgrade(sender, &at, &call)).await;
                    let late = || format!("{address} did not answer in time");
                    return result.unwrap_or_else(|_| Err(ClientError::Unknown(late())));
                }
                Err(fault) => {
                    address = self.fail_over(&address, &address);
                    last = fault;
                }
            }
        }
        Err(last.into_unreachable(u32::try_from(tries).unwrap_or(u32::MAX)))
    }
}
