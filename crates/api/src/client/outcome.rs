//! What an answer means for the client: done, elsewhere, later, or no.

use super::{ClientError, Received};
use crate::error::{ApiError, Code, REMOVED};
use hyper::header::RETRY_AFTER;
use std::time::Duration;

pub(super) enum Next {
    Done,
    /// Ask there at once.
    Redirect(String, ClientError),
    /// Ask again, after this long if the server said.
    Later(Option<Duration>, ClientError),
    Fail(ClientError),
}

/// A replica that was removed from its cell says so: it will say so whenever it is asked.
pub(super) fn is_of_removed(error: &ClientError) -> bool {
    matches!(error, ClientError::Api(error) if error.details.get(REMOVED) == Some(&true.into()))
}

pub(super) fn judge(response: &Received, repeatable: bool) -> Next {
    if response.status.is_success() {
        return Next::Done;
    }
    let Ok(error) = serde_json::from_slice::<ApiError>(&response.body) else {
        let why = format!("status {} without an explanation", response.status);
        let error = ClientError::BadReply(why);
        // A proxy in between answers for itself.
        let passing = matches!(response.status.as_u16(), 502..=504) && repeatable;
        return if passing { Next::Later(None, error) } else { Next::Fail(error) };
    };
    let after = error.retry_after().map(|span| Duration::from_millis(span.0)).or_else(|| {
        let seconds = response.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    });
    let leader = error.leader().map(str::to_owned);
    let code = error.code;
    let error = ClientError::Api(error);
    match code {
        Code::NotLeader => match leader {
            Some(leader) => Next::Redirect(leader, error),
            None => Next::Later(after, error),
        },
        // Certainly without effect.
        Code::NoLeader | Code::Overloaded | Code::ShuttingDown | Code::NotReady => {
            Next::Later(after, error)
        }
        // Perhaps with effect.
        Code::NoQuorum | Code::TimedOut if repeatable => Next::Later(after, error),
        _ => Next::Fail(error),
    }
}
