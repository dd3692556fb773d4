//! A replica asks to be let in, and waits until an operator has confirmed its fingerprint: only
//! then does it get its certificate, and with that, over a connection that shows it, the
//! authority's key.

use crate::commands::enrol::{asking, client, known};
use crate::failure::Failure;
use cellwright_api::client::ClientError;
use cellwright_api::enroll::{
    AUTHORITY_PATH, AuthorityAnswer, AuthorityRequest, JOIN_PATH, JoinAnswer, JoinReply, ToConfirm,
};
use cellwright_api::error::Code;
use cellwright_api::internal::PROTOCOL;
use cellwright_master::init::{Admitted, Joining};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two times that the cell is asked whether somebody has confirmed the newcomer.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a replica that lags behind may take to hear of a confirmation.
const PATIENCE: Duration = Duration::from_secs(30);
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
    let mut told = Some(told);
    loop {
        match client.call_internal(JOIN_PATH, &joining.request).await {
            Ok(JoinReply::Certified(answer)) => return Ok(answer),
            Ok(JoinReply::Waiting(waiting)) => {
                if let Some(told) = told.take() {
                    told(&waiting).await?;
                }
            }
            // Masters that are away for a moment are no reason to begin anew.
            Err(error) if told.is_none() && !is_refusal(&error) => {}
            Err(error) => return Err(error.into()),
        }
        sleep(AGAIN).await;
    }
}

fn is_refusal(error: &ClientError) -> bool {
    matches!(error.code(), Some(Code::NotAllowed | Code::BadBody | Code::Unauthenticated))
}
