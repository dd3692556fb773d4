//! From what a request shows to who is asking. Pure, exact, and closed: whatever is not one of the
//! four ways below is refused.
//!
//! 1. A certificate of this cell names the part, or a user the cell still knows.
//! 2. A bearer token `<id>.<secret>` names its user.
//! 3. Nothing at all, on a `--dev` master on loopback: [`Caller::Anonymous`].
//! 4. Nothing at all elsewhere: refused.
//!
//! A request that shows both a certificate and a token is refused too: whichever of the two were
//! preferred, somebody would expect the other.

use crate::handle::Caller;
use cellwright_api::enroll::Holder;
use cellwright_api::secret::sha256;
use cellwright_api::spiffe::Part;
use cellwright_cell::credential::{PartKind, SecretHash, TokenKind};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;

/// What one request shows.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// From the certificate the connection was opened with; the handshake has verified it.
    pub holder: Option<&'a Holder>,
    /// The `Authorization` header.
    pub authorization: Option<&'a [u8]>,
    /// The listener is a `--dev` one on loopback.
    pub open: bool,
}

/// Why nobody is known to ask. A token that is wrong, expired, or was never made looks the same
/// from outside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    #[error("the request shows neither a certificate nor a token")]
    Nothing,
    #[error("the request shows a certificate and a token; show one")]
    Both,
    #[error("the certificate is of cell {found}, this is cell {cell}")]
    OtherCell { found: Name, cell: Name },
    #[error("the certificate has expired")]
    CertificateExpired,
    #[error("the certificate is of user {user}, whom the cell does not know")]
    UnknownUser { user: Name },
    #[error("{part} was sent away from the cell; it joins again with a new token")]
    Dismissed { part: Part },
    #[error("the Authorization header must be `Bearer <id>.<secret>`")]
    Malformed,
    #[error("the token is not accepted")]
    Token,
}

/// What a part that was sent away is told, for programs.
pub const DISMISSED: &str = "dismissed";

impl Unauthenticated {
    /// Stable text for programs and the audit log.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Unauthenticated::Nothing => "no-identity",
            Unauthenticated::Both => "two-identities",
            Unauthenticated::OtherCell { .. } => "other-cell",
            Unauthenticated::CertificateExpired => "certificate-expired",
            Unauthenticated::UnknownUser { .. } => "unknown-user",
            Unauthenticated::Dismissed { .. } => DISMISSED,
            Unauthenticated::Malformed => "malformed-authorization",
            Unauthenticated::Token => "token-not-accepted",
        }
    }
}

/// Who asks.
///
/// # Errors
/// Why that is not known.
pub fn caller(
    evidence: Evidence<'_>,
    cell: &Name,
    state: &State,
    now: Time,
) -> Result<Caller, Unauthenticated> {
    match (evidence.holder, evidence.authorization) {
        (Some(_), Some(_)) => Err(Unauthenticated::Both),
        (Some(holder), None) => by_certificate(holder, cell, state, now),
        (None, Some(header)) => by_token(header, state, now),
        (None, None) if evidence.open => Ok(Caller::Anonymous),
        (None, None) => Err(Unauthenticated::Nothing),
    }
}

fn by_certificate(
    holder: &Holder,
    cell: &Name,
    state: &State,
    now: Time,
) -> Result<Caller, Unauthenticated> {
    if holder.identity.cell != *cell {
        let found = holder.identity.cell.clone();
        return Err(Unauthenticated::OtherCell { found, cell: cell.clone() });
    }
    // The handshake looked at this too, but connections live for days.
    if holder.until <= now {
        return Err(Unauthenticated::CertificateExpired);
    }
    let part = &holder.identity.part;
    if matches!(part, Part::Master(_) | Part::Scheduler(_)) && is_dismissed(part, state) {
        return Err(Unauthenticated::Dismissed { part: part.clone() });
    }
    Ok(match part {
        Part::Master(name) => Caller::Replica(name.to_string()),
        Part::Agent(machine) => Caller::Agent(machine.clone()),
        Part::Scheduler(name) => Caller::Scheduler(name.to_string()),
        Part::User(user) if state.user_named(user).is_none() => {
            return Err(Unauthenticated::UnknownUser { user: user.clone() });
        }
        Part::User(user) => Caller::User(user.clone()),
    })
}

fn by_token(header: &[u8], state: &State, now: Time) -> Result<Caller, Unauthenticated> {
    let text = std::str::from_utf8(header).map_err(|_| Unauthenticated::Malformed)?;
    let (scheme, token) = text.split_once(' ').ok_or(Unauthenticated::Malformed)?;
    let (id, secret) = token.trim().split_once('.').ok_or(Unauthenticated::Malformed)?;
    if !scheme.eq_ignore_ascii_case("bearer") || secret.is_empty() {
        return Err(Unauthenticated::Malformed);
    }
    let id = Name::new(id).map_err(|_| Unauthenticated::Malformed)?;
    let hash = SecretHash(sha256(secret.as_bytes()));
    let row = state.token_named(&id).and_then(|id| state.tokens().get(id));
    let row = row.ok_or(Unauthenticated::Token)?;
    row.admits(&hash, now).map_err(|_| Unauthenticated::Token)?;
    match &row.kind {
        TokenKind::UserToken { user } if state.user_named(user).is_some() => {
            Ok(Caller::User(user.clone()))
        }
        // A join token opens one door, and this is not it.
        _ => Err(Unauthenticated::Token),
    }
}

/// Whether the part was sent away. An agent that was is still let in to poll, for only there does
/// it hear that its tasks are to end.
#[must_use]
pub fn is_dismissed(part: &Part, state: &State) -> bool {
    match part {
        Part::Master(name) => state.is_dismissed(PartKind::Replica, name),
        Part::Scheduler(name) => state.is_dismissed(PartKind::Scheduler, name),
        Part::Agent(machine) => state.is_dismissed(PartKind::Agent, machine),
        Part::User(_) => false,
    }
}

/// Whether a part that holds a certificate may have the next one. An agent whose machine was
/// removed, a part that was sent away, or a user who is gone, keeps what it holds for the rest of
/// its day and no longer.
#[must_use]
pub fn may_renew(part: &Part, state: &State) -> bool {
    match part {
        Part::Master(_) | Part::Scheduler(_) => !is_dismissed(part, state),
        Part::Agent(machine) => state.machine_named(machine).is_some(),
        Part::User(user) => state.user_named(user).is_some(),
    }
}
