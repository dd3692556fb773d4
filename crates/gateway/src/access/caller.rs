//! From what a request shows to who is asking. Pure, exact, and closed: whatever is not one of the
//! four ways below is refused.
//!
//! 1. A certificate of this cell names the part, or a user the cell still knows.
//! 2. A bearer token `<id>.<secret>` names its user.
//! 3. The token of a `--dev` master on loopback, which lies in a file of its account:
//!    [`Caller::Operator`].
//! 4. Nothing at all: refused.
//!
//! A request that shows both a certificate and a token is refused too: whichever of the two were
//! preferred, somebody would expect the other.

use cellwright_cell::credential::{PartKind, SecretHash, TokenKind};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_identity::enroll::CertificateHolder;
use cellwright_identity::secret::sha256;
use cellwright_identity::spiffe::Part;
use cellwright_master::handle::Caller;

/// Both times at one instant: certificates are of the world, tokens of the log.
#[derive(Clone, Copy, Debug)]
pub struct ClockTimes {
    pub wall: Time,
    pub log: Time,
}

impl From<Time> for ClockTimes {
    /// A clock that is right.
    fn from(now: Time) -> ClockTimes {
        ClockTimes { wall: now, log: now }
    }
}

/// What one request shows.
#[derive(Clone, Copy)]
pub struct PresentedCredentials<'a> {
    /// From the certificate the connection was opened with; the handshake has verified it.
    pub holder: Option<&'a CertificateHolder>,
    /// The `Authorization` header.
    pub authorization: Option<&'a [u8]>,
    /// Of the token of a `--dev` master, where the listener is one, on loopback.
    pub dev_token: Option<&'a SecretHash>,
}

/// Why nobody is known to ask. A token that is wrong, expired, or was never made looks the same
/// from outside.
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

/// What a part that was sent away is told, for programs.
pub const REVOKED: &str = "dismissed";

impl Unauthenticated {
    /// Stable text for programs and the audit log.
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
    /// Whether it follows from what the replica knows of the cell and not from the request alone:
    /// one that is behind may be wrong about it. A replica that was sent away is told so by whoever
    /// knows, for it may have nobody else to hear it from.
    #[must_use]
    pub fn depends_on_state(&self) -> bool {
        match self {
            Unauthenticated::TokenNotAccepted | Unauthenticated::UnknownUser { .. } => true,
            Unauthenticated::Revoked { part } => matches!(part, Part::Scheduler(_)),
            _ => false,
        }
    }
}

/// Who asks.
///
/// # Errors
/// Why that is not known.
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
    // The handshake looked at this too, but connections live for days.
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

/// Whether this is the token that the account of a `--dev` master can read.
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

/// Which token an `Authorization` header shows; nothing of its secret.
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
        // A join token opens one door, and this is not it.
        _ => Err(Unauthenticated::TokenNotAccepted),
    }
}

/// Whether the part was sent away. An agent that was is still let in to poll, for only there does
/// it hear that its tasks are to end.
#[must_use]
pub fn is_revoked(part: &Part, state: &State) -> bool {
    match part {
        Part::Master(name) => state.is_revoked(PartKind::Replica, name),
        Part::Scheduler(name) => state.is_revoked(PartKind::Scheduler, name),
        Part::Agent(machine) => state.is_revoked(PartKind::Agent, machine),
        Part::User(_) => false,
    }
}

/// Whether a part that holds a certificate may have the next one. An agent whose machine was
/// removed, a part that was sent away, or a user who is gone, keeps what it holds for the rest of
/// its day and no longer.
#[must_use]
pub fn may_renew(part: &Part, state: &State) -> bool {
    match part {
        Part::Master(_) | Part::Scheduler(_) => !is_revoked(part, state),
        Part::Agent(machine) => state.machine_named(machine).is_some(),
        Part::User(user) => state.user_named(user).is_some(),
    }
}
