//! Authentication: from the credentials in a request to a [`Caller`]. Pure, exact, and closed: a
//! request that is not one of the cases below is rejected.
//!
//! 1. A certificate of this cell names the part, or a user the cell still knows.
//! 2. A bearer token `<id>.<secret>` identifies its user.
//! 3. The token of a `--dev` master on loopback, which is stored in a file of its account:
//!    [`Caller::Operator`].
//! 4. No credentials: rejected.
//!
//! A request with both a certificate and a token is rejected too: whichever of the two were
//! preferred, some caller would expect the other.

use cellwright_cell::credential::{PartKind, SecretHash, TokenKind};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_identity::enroll::CertificateHolder;
use cellwright_identity::secret::sha256;
use cellwright_identity::spiffe::Part;
use cellwright_master::handle::Caller;

/// The present by both clocks: certificates are checked by wall time, tokens by log time.
#[derive(Clone, Copy, Debug)]
pub struct ClockTimes {
    pub wall: Time,
    pub log: Time,
}

impl From<Time> for ClockTimes {
    /// Both times equal, for a clock that is right.
    fn from(now: Time) -> ClockTimes {
        ClockTimes { wall: now, log: now }
    }
}

/// The credentials presented with one request.
#[derive(Clone, Copy)]
pub struct PresentedCredentials<'a> {
    /// From the certificate the connection was opened with; the handshake has verified it.
    pub holder: Option<&'a CertificateHolder>,
    /// The `Authorization` header.
    pub authorization: Option<&'a [u8]>,
    /// Hash of a `--dev` master's token, where the listener is one, on loopback.
    pub dev_token: Option<&'a SecretHash>,
}

/// Why a request is not authenticated. A token that is wrong, expired, or was never made looks the
/// same from outside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    #[error("the request shows neither a certificate nor a token")]
    NoCredentials,
    #[error(
        "this cell is for the account that started it, and the request does not show its token: \
         cell finds that by itself, others in the file dev-token of its data folder"
    )]
    NotDevAccount,
    #[error("the request shows a certificate and a token; show one")]
    TwoCredentials,
    #[error("the certificate is of cell {found}, this is cell {cell}")]
    OtherCell { found: Name, cell: Name },
    #[error("the certificate has expired")]
    CertificateExpired,
    #[error("the certificate is of user {user}, whom the cell does not know")]
    UnknownUser { user: Name },
    #[error("{part} was sent away from the cell; it joins again with a new token")]
    Revoked { part: Part },
    #[error("the Authorization header must be `Bearer <id>.<secret>`")]
    Malformed,
    #[error("the token is not accepted")]
    TokenNotAccepted,
    #[error("this replica is not up to date with its cell, and cannot tell who asks")]
    ReplicaBehind,
}

/// The reason code for a part whose certificates were revoked.
pub const REVOKED: &str = "revoked";

impl Unauthenticated {
    /// Stable code for programs and the audit log.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Unauthenticated::NoCredentials | Unauthenticated::NotDevAccount => "no-identity",
            Unauthenticated::TwoCredentials => "two-identities",
            Unauthenticated::OtherCell { .. } => "other-cell",
            Unauthenticated::CertificateExpired => "certificate-expired",
            Unauthenticated::UnknownUser { .. } => "unknown-user",
            Unauthenticated::Revoked { .. } => REVOKED,
            Unauthenticated::Malformed => "malformed-authorization",
            Unauthenticated::TokenNotAccepted => "token-not-accepted",
            Unauthenticated::ReplicaBehind => "replica-behind",
        }
    }
}

impl Unauthenticated {
    /// Whether it depends on the replica's copy of the state and not on the request alone: a
    /// replica that is behind may be wrong about it. A revoked replica is told so by any replica
    /// that knows, since there may be no other from which it can learn it.
    #[must_use]
    pub fn depends_on_state(&self) -> bool {
        match self {
            Unauthenticated::TokenNotAccepted | Unauthenticated::UnknownUser { .. } => true,
            Unauthenticated::Revoked { part } => matches!(part, Part::Scheduler(_)),
            _ => false,
        }
    }
}

/// Authenticates a request.
///
/// # Errors
/// Why it is not authenticated.
pub fn authenticate(
    presented: PresentedCredentials<'_>,
    cell: &Name,
    state: &State,
    now: impl Into<ClockTimes>,
) -> Result<Caller, Unauthenticated> {
    let now = now.into();
    match (presented.holder, presented.authorization) {
        (Some(_), Some(_)) => Err(Unauthenticated::TwoCredentials),
        (Some(holder), None) => by_certificate(holder, cell, state, now.wall),
        (None, Some(header))
            if presented.dev_token.is_some_and(|own| is_dev_token(header, own)) =>
        {
            Ok(Caller::Operator)
        }
        (None, Some(header)) => by_token(header, state, now.log),
        (None, None) if presented.dev_token.is_some() => Err(Unauthenticated::NotDevAccount),
        (None, None) => Err(Unauthenticated::NoCredentials),
    }
}

fn by_certificate(
    holder: &CertificateHolder,
    cell: &Name,
    state: &State,
    now: Time,
) -> Result<Caller, Unauthenticated> {
    if holder.identity.cell != *cell {
        let found = holder.identity.cell.clone();
        return Err(Unauthenticated::OtherCell { found, cell: cell.clone() });
    }
    // The handshake checked this too, but connections live for days.
    if holder.is_expired(now) {
        return Err(Unauthenticated::CertificateExpired);
    }
    let part = &holder.identity.part;
    if matches!(part, Part::Master(_) | Part::Scheduler(_)) && is_revoked(part, state) {
        return Err(Unauthenticated::Revoked { part: part.clone() });
    }
    Ok(match part {
        Part::Master(name) => Caller::Replica(name.clone()),
        Part::Agent(machine) => Caller::Agent(machine.clone()),
        Part::Scheduler(name) => Caller::Scheduler(name.clone()),
        Part::User(user) if state.user_named(user).is_none() => {
            return Err(Unauthenticated::UnknownUser { user: user.clone() });
        }
        Part::User(user) => Caller::User(user.clone()),
    })
}

/// Whether the header has the token of a `--dev` master, which only its account can read.
fn is_dev_token(header: &[u8], dev_token: &SecretHash) -> bool {
    let text = std::str::from_utf8(header).ok().and_then(|text| text.split_once(' '));
    text.is_some_and(|(scheme, token)| {
        let hash = SecretHash(sha256(token.trim().as_bytes()));
        scheme.eq_ignore_ascii_case("bearer") && hash.matches(dev_token)
    })
}

/// The id and the secret of a bearer token.
fn bearer(header: &[u8]) -> Option<(Name, &str)> {
    let (scheme, token) = std::str::from_utf8(header).ok()?.split_once(' ')?;
    let (id, secret) = token.trim().split_once('.')?;
    let is_whole = scheme.eq_ignore_ascii_case("bearer") && !secret.is_empty();
    Some((Name::new(id).ok()?, secret)).filter(|_| is_whole)
}

/// The id of the token in an `Authorization` header; nothing of its secret.
#[must_use]
pub fn token_id(header: &[u8]) -> Option<Name> {
    bearer(header).map(|(id, _)| id)
}

fn by_token(header: &[u8], state: &State, now: Time) -> Result<Caller, Unauthenticated> {
    let (id, secret) = bearer(header).ok_or(Unauthenticated::Malformed)?;
    let hash = SecretHash(sha256(secret.as_bytes()));
    let row = state.token_named(&id).and_then(|id| state.tokens().get(id));
    let row = row.ok_or(Unauthenticated::TokenNotAccepted)?;
    row.verify(&hash, now).map_err(|_| Unauthenticated::TokenNotAccepted)?;
    match &row.kind {
        TokenKind::UserToken { user } if state.user_named(user).is_some() => {
            Ok(Caller::User(user.clone()))
        }
        // A join token is only for joining.
        _ => Err(Unauthenticated::TokenNotAccepted),
    }
}

/// Whether the part was revoked. A revoked agent is still admitted to poll, because the polls tell
/// it that its tasks are to end.
#[must_use]
pub fn is_revoked(part: &Part, state: &State) -> bool {
    match part {
        Part::Master(name) => state.is_revoked(PartKind::Replica, name),
        Part::Scheduler(name) => state.is_revoked(PartKind::Scheduler, name),
        Part::Agent(machine) => state.is_revoked(PartKind::Agent, machine),
        Part::User(_) => false,
    }
}

/// Whether a part may renew its certificate. An agent whose machine was removed, a part that was
/// revoked, or a user that was deleted keeps its certificate for the rest of its day and no longer.
#[must_use]
pub fn may_renew(part: &Part, state: &State) -> bool {
    match part {
        Part::Master(_) | Part::Scheduler(_) => !is_revoked(part, state),
        Part::Agent(machine) => state.machine_named(machine).is_some(),
        Part::User(user) => state.user_named(user).is_some(),
    }
}
