//! A join token against a certificate: what masters, agents and schedulers that join share.

use crate::failure::Failure;
use cellwright_api::client::{Client, Settings};
use cellwright_api::enroll::{JOIN_PATH, JoinAnswer, JoinRequest};
use cellwright_api::tls::{self, Trust};
use std::sync::Arc;

/// Asks for the certificate. The masters prove by `trust` that they are the token's cell before
/// they are told its secret.
pub async fn enrol(
    masters: &[String],
    trust: &Trust,
    request: &JoinRequest,
) -> Result<JoinAnswer, Failure> {
    if masters.is_empty() {
        return Err(Failure::Usage {
            message: "no master of the cell is named".into(),
            next: "the same command with --master HOST:PORT of a master that runs".into(),
        });
    }
    let tls = tls::client(trust, None)
        .map_err(|error| Failure::work(&error, "copy the token whole and run it again"))?;
    let settings = Settings { tls: Some(Arc::new(tls)), ..Settings::new(masters.to_vec()) };
    Ok(Client::new(settings)?.call_internal(JOIN_PATH, request).await?)
}
