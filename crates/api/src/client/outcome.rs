//! Classifies an answer: success, redirect, retry later, or final error.

use super::{ClientError, Received};
use crate::error::{ApiError, Code, REMOVED};
use hyper::header::RETRY_AFTER;
use std::time::Duration;

pub(super) enum NextStep {
    Done,
    /// Send it there at once.
    Redirect(String, ClientError),
    /// Retry, after this long if the server said so.
    Later(Option<Duration>, ClientError),
    Fail(ClientError),
}

/// A replica that was removed from its cell says so: it will say so at every request.
pub(super) fn is_from_removed_replica(error: &ClientError) -> bool {
    matches!(error, ClientError::Api(error) if error.details.get(REMOVED) == Some(&true.into()))
}

pub(super) fn classify(response: &Received, repeatable: bool) -> NextStep {
    if response.status.is_success() {
        return NextStep::Done;
    }
    let Ok(error) = serde_json::from_slice::<ApiError>(&response.body) else {
        let why = format!("status {} without an explanation", response.status);
        let error = ClientError::BadReply(why);
        // The status may come from a proxy in between.
        let is_transient = matches!(response.status.as_u16(), 502..=504) && repeatable;
        return if is_transient { NextStep::Later(None, error) } else { NextStep::Fail(error) };
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
            Some(leader) => NextStep::Redirect(leader, error),
            None => NextStep::Later(after, error),
        },
        // Certainly had no effect.
        Code::NoLeader | Code::Overloaded | Code::ShuttingDown | Code::NotReady => {
            NextStep::Later(after, error)
        }
        // May have had an effect.
        Code::NoQuorum | Code::TimedOut if repeatable => NextStep::Later(after, error),
        _ => NextStep::Fail(error),
    }
}
