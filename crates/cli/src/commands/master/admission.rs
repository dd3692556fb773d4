//! A replica requests admission, and waits until an operator has confirmed its fingerprint: only
//! then does it get its certificate, and with that, over an authenticated connection, the
//! authority's key.

use crate::commands::join_request::{joining_client, known_masters, tls_client};
use crate::failure::Failure;
use crate::output::note;
use crate::{clock, format};
use cellwright_api::client::ClientError;
use cellwright_api::error::Code;
use cellwright_cell::time::Time;
use cellwright_gateway::init::{Admitted, Joining};
use cellwright_identity::enroll::{
    AUTHORITY_PATH, AuthorityAnswer, AuthorityRequest, JOIN_PATH, JoinAnswer, JoinReply,
    PendingConfirmation,
};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The interval at which the cell is asked whether the new replica has been confirmed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a replica that lags behind may take to apply a confirmation.
const LAG_TIMEOUT: Duration = Duration::from_secs(30);
/// The hint for when no master accepts this token any more.
const EXPIRED_HINT: &str = "once a master answers, ask for another token: cell token create \
                            --replica NAME; then join with that";
const RETRY_HINT: &str = "the same command once more, or with another token";

/// Retries until the cell has given all that a replica needs. `on_waiting` is called once when the
/// wait begins. Also returns the addresses of masters to use from here on.
pub async fn request_admission(
    masters: &[String],
    joining: &Joining,
    on_waiting: impl AsyncFnOnce(&PendingConfirmation) -> Result<(), Failure>,
) -> Result<(Admitted, Vec<String>), Failure> {
    let answer = request_certificate(masters, joining, on_waiting).await?;
    let tls = joining.tls(&answer).map_err(|error| Failure::from_error(&error, RETRY_HINT))?;
    let client = tls_client(masters, tls)?;
    let (request, until) = (AuthorityRequest, Instant::now() + LAG_TIMEOUT);
    loop {
        match client.call_internal::<_, AuthorityAnswer>(AUTHORITY_PATH, &request).await {
            Ok(AuthorityAnswer { authority_key }) => {
                let masters = known_masters(masters, &client);
                return Ok((Admitted { answer, authority_key }, masters));
            }
            Err(error) if Instant::now() > until => return Err(error.into()),
            // A replica that lags behind has not applied the confirmation yet.
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
    }
}

async fn request_certificate(
    masters: &[String],
    joining: &Joining,
    on_waiting: impl AsyncFnOnce(&PendingConfirmation) -> Result<(), Failure>,
) -> Result<JoinAnswer, Failure> {
    let client = joining_client(masters, &joining.trust)?;
    let (mut on_waiting, mut wait) = (Some(on_waiting), None::<ConfirmationWait>);
    loop {
        match (client.call_internal(JOIN_PATH, &joining.request).await, &mut wait) {
            (Ok(JoinReply::Certified(answer)), _) => return Ok(answer),
            (Ok(JoinReply::Waiting(waiting)), wait) => {
                if let Some(on_waiting) = on_waiting.take() {
                    on_waiting(&waiting).await?;
                }
                // The latest answer counts: the deadline may have been extended.
                *wait = Some(ConfirmationWait { until: waiting.until, is_reported: false });
            }
            // Masters that are briefly unavailable are no reason to start over.
            (Err(error), Some(wait)) if !is_rejection(&error) => {
                if let Some(message) = wait.on_no_answer(&error, clock::now())? {
                    note!("{message}");
                }
            }
            (Err(error), _) => return Err(error.into()),
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// The wait for an operator's confirmation, by the last answer of the cell.
struct ConfirmationWait {
    until: Time,
    /// Whether it was reported that no master answers.
    is_reported: bool,
}

impl ConfirmationWait {
    /// The message for an attempt without an answer at this time; an error once there is nothing
    /// left to wait for.
    fn on_no_answer(&mut self, error: &ClientError, now: Time) -> Result<Option<String>, Failure> {
        let until = format::utc(self.until);
        if now >= self.until {
            let message =
                format!("nobody confirmed it until {until}, and no master answers: {error}");
            return Err(Failure::Operation { message, next: EXPIRED_HINT.into() });
        }
        let is_first = !std::mem::replace(&mut self.is_reported, true);
        Ok(is_first
            .then(|| format!("no master answers ({error}); it is asked again until {until}")))
    }
}

fn is_rejection(error: &ClientError) -> bool {
    matches!(
        error.code(),
        Some(Code::NotAllowed | Code::BadBody | Code::OtherWire | Code::Unauthenticated)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nobody_answers_is_said_once_and_ends_with_the_time_to_confirm() {
        let error = ClientError::BadReply("half a reply".into());
        let mut wait = ConfirmationWait { until: Time(1000), is_reported: false };
        let message = wait.on_no_answer(&error, Time(10)).unwrap().unwrap();
        assert!(
            message.contains("no master answers") && message.contains("1970-01-01"),
            "{message}"
        );
        assert_eq!(wait.on_no_answer(&error, Time(999)).unwrap(), None);
        let expired = wait.on_no_answer(&error, Time(1000)).unwrap_err().to_string();
        assert!(expired.starts_with("nobody confirmed it until 1970-01-01"), "{expired}");
    }
}
