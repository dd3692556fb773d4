//! Connections that are handed over: the request asks for it, the answer grants it, and from there
//! on the bytes are the caller's own.

use super::connection::{self, Fault, Sender};
use super::outcome::{Next, judge};
use super::{Call, Client, ClientError, Received};
use crate::exec::EXEC_PROTOCOL;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

/// A connection after it was handed over.
pub type SessionStream = TokioIo<Upgraded>;

/// Largest refusal that is read.
const MAX_REFUSAL: usize = 1 << 20;

/// Asks for the connection.
pub(super) fn ask_for(call: &mut Call) {
    call.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    call.headers.insert(UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL));
}

/// Sends the call, and has the connection if the other side agrees.
pub(super) async fn take_over(
    mut sender: Sender,
    address: &str,
    call: &Call,
) -> Result<SessionStream, ClientError> {
    let broke = |why: &dyn std::fmt::Display| ClientError::Unknown(format!("{address}: {why}"));
    let request = connection::request(address, call).map_err(ClientError::Settings)?;
    let response = sender.send_request(request).await.map_err(|error| broke(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| broke(&error))?;
        return Ok(TokioIo::new(upgraded));
    }
    let (parts, body) = response.into_parts();
    let whole = Limited::new(body, MAX_REFUSAL).collect().await;
    let body = whole.map(|whole| whole.to_bytes()).unwrap_or_default();
    let received = Received { status: parts.status, headers: parts.headers, body, open: None };
    Err(match judge(&received, false) {
        Next::Fail(error) | Next::Redirect(_, error) | Next::Later(_, error) => error,
        Next::Done => broke(&"the connection was not handed over"),
    })
}

impl Client {
    /// A connection of one's own through a master, to whatever `path` names. Masters that do not
    /// answer are passed over; one that refuses speaks for all.
    ///
    /// # Errors
    /// What the cell refused, that it could not be reached, or that the outcome is unknown.
    pub async fn session(&self, path: &str) -> Result<SessionStream, ClientError> {
        let mut call = self.call(Method::POST, path, Bytes::new(), false);
        ask_for(&mut call);
        let mut address = self.preferred();
        let mut last = Fault::before(String::new());
        let tries = self.masters().len();
        for _ in 0..tries {
            let (at, token) = self.shared.pool.route(&address);
            match self.shared.pool.dial_in_time(&at).await {
                Ok(sender) => {
                    call.headers.extend(token.map(|token| (AUTHORIZATION, token)));
                    let taken = timeout(call.deadline, take_over(sender, &at, &call)).await;
                    let late = || format!("{address} did not answer in time");
                    return taken.unwrap_or_else(|_| Err(ClientError::Unknown(late())));
                }
                Err(fault) => {
                    address = self.shun(&address, &address);
                    last = fault;
                }
            }
        }
        Err(last.into_unreachable(u32::try_from(tries).unwrap_or(u32::MAX)))
    }
}
