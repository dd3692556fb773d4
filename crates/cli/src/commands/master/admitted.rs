//! A replica asks to be let in, and waits until an operator has confirmed its fingerprint: only
//! then does it get its certificate, and with that, over a connection that shows it, the
//! authority's key.

use crate::commands::enrol::{asking, client, known};
use crate::failure::Failure;
use crate::output::note;
use crate::{clock, format};
use cellwright_api::client::ClientError;
use cellwright_api::error::Code;
use cellwright_api::internal::PROTOCOL;
use cellwright_cell::time::Time;
use cellwright_gateway::init::{Admitted, Joining};
use cellwright_identity::enroll::{
    AUTHORITY_PATH, AuthorityAnswer, AuthorityRequest, JOIN_PATH, JoinAnswer, JoinReply, ToConfirm,
};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two times that the cell is asked whether somebody has confirmed the newcomer.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a replica that lags behind may take to hear of a confirmation.
const PATIENCE: Duration = Duration::from_secs(30);
/// By then no master takes this token any more.
const TOO_LATE: &str = "once a master answers, ask for another token: cell token create --replica \
     NAME; then join with that";
const ONCE_MORE: &str = "the same command once more, or with another token";

/// Asks until the cell has given all that a replica needs. `told` hears, once, that it waits. Also
/// returns where masters are found from here on.
pub async fn admitted(
    masters: &[String],
    joining: &Joining,
    told: impl AsyncFnOnce(&ToConfirm) -> Result<(), Failure>,
) -> Result<(Admitted, Vec<String>), Failure> {
    let answer = certificate(masters, joining, told).await?;
    let tls = joining.tls(&answer).map_err(|error| Failure::work(&error, ONCE_MORE))?;
    let client = client(masters, tls)?;
    let (request, until) = (AuthorityRequest { protocol: PROTOCOL }, Instant::now() + PATIENCE);
    loop {
        match client.call_internal::<_, AuthorityAnswer>(AUTHORITY_PATH, &request).await {
            Ok(AuthorityAnswer { authority_key }) => {
                let masters = known(masters, &client);
                return Ok((Admitted { answer, authority_key }, masters));
            }
            Err(error) if Instant::now() > until => return Err(error.into()),
            // A replica that lags behind has not heard of the confirmation.
            Err(_) => sleep(AGAIN).await,
        }
    }
}

async fn certificate(
    masters: &[String],
    joining: &Joining,
    told: impl AsyncFnOnce(&ToConfirm) -> Result<(), Failure>,
) -> Result<JoinAnswer, Failure> {
    let client = asking(masters, &joining.trust)?;
    let (mut told, mut wait) = (Some(told), None::<Wait>);
    loop {
        match (client.call_internal(JOIN_PATH, &joining.request).await, &mut wait) {
            (Ok(JoinReply::Certified(answer)), _) => return Ok(answer),
            (Ok(JoinReply::Waiting(waiting)), wait) => {
                if let Some(told) = told.take() {
                    told(&waiting).await?;
                }
                // What the cell says anew counts: somebody may have put it off.
                *wait = Some(Wait { until: waiting.until, silent: false });
            }
            // Masters that are away for a moment are no reason to begin anew.
            (Err(error), Some(wait)) if !is_refusal(&error) => {
                if let Some(said) = wait.without_answer(&error, clock::now())? {
                    note!("{said}");
                }
            }
            (Err(error), _) => return Err(error.into()),
        }
        sleep(AGAIN).await;
    }
}

/// For an operator to confirm, by what the cell said last.
struct Wait {
    until: Time,
    /// Nobody answers, and that was said.
    silent: bool,
}

impl Wait {
    /// What is to be said of a try that nobody answered, at that time; an error once there is
    /// nothing left to wait for.
    fn without_answer(
        &mut self,
        error: &ClientError,
        now: Time,
    ) -> Result<Option<String>, Failure> {
        let until = format::utc(self.until);
        if now >= self.until {
            let message =
                format!("nobody confirmed it until {until}, and no master answers: {error}");
            return Err(Failure::Work { message, next: TOO_LATE.into() });
        }
        let is_first = !std::mem::replace(&mut self.silent, true);
        Ok(is_first
            .then(|| format!("no master answers ({error}); it is asked again until {until}")))
    }
}

fn is_refusal(error: &ClientError) -> bool {
    matches!(error.code(), Some(Code::NotAllowed | Code::BadBody | Code::Unauthenticated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nobody_answers_is_said_once_and_ends_with_the_time_to_confirm() {
        let error = ClientError::BadReply("half a reply".into());
        let mut wait = Wait { until: Time(1000), silent: false };
        let said = wait.without_answer(&error, Time(10)).unwrap().unwrap();
        assert!(said.contains("no master answers") && said.contains("1970-01-01"), "{said}");
        assert_eq!(wait.without_answer(&error, Time(999)).unwrap(), None);
        let over = wait.without_answer(&error, Time(1000)).unwrap_err().to_string();
        assert!(over.starts_with("nobody confirmed it until 1970-01-01"), "{over}");
    }
}
