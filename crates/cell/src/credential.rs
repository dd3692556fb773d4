//! Tokens: how somebody without a certificate proves who they are. A user's token speaks for that
//! user until it expires; a join token lets one machine's agent, one scheduler or one replica of
//! the master in, once, under the name it was made for.
//!
//! The other way round, a dismissal says that the certificates of a part are good for nothing any
//! more. It stands among the tokens because it is one turned over: it names a part, somebody with
//! rights made it, it can be revoked, and it is forgotten when it has outlived what it is about.
//!
//! The state keeps a hash of the secret, never the secret: checkpoints and logs are read by those
//! who keep backups, and what they hold must open no door. Secrets are long and random, so a plain
//! hash is as good as a slow one.

use crate::name::Name;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest life of a join token: it is carried to a machine by hand, and then forgotten somewhere.
pub const MAX_JOIN_LIFE: Span = Span::seconds(24 * 3600);
/// How long a dismissal is remembered: longer than any certificate made before it is good for.
pub const DISMISSED_FOR: Span = Span::seconds(2 * 24 * 3600);
/// Most tokens of one user.
pub const MAX_USER_TOKENS: usize = 64;

/// SHA-256 of a token's secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretHash(pub [u8; 32]);

impl SecretHash {
    /// Equality that takes the same time wherever the first difference is.
    #[must_use]
    pub fn matches(&self, other: &SecretHash) -> bool {
        self.0.iter().zip(other.0).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
    }
}

impl fmt::Debug for SecretHash {
    /// Enough to tell two apart, in logs that others read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}..", self.0[0], self.0[1])
    }
}

/// Parts of a cell that hold certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// Of the machine with its name.
    Agent,
    Replica,
    Scheduler,
}

impl PartKind {
    pub const ALL: [PartKind; 3] = [PartKind::Agent, PartKind::Replica, PartKind::Scheduler];
}

impl fmt::Display for PartKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PartKind::Agent => "agent",
            PartKind::Replica => "replica",
            PartKind::Scheduler => "scheduler",
        })
    }
}

/// Whom a token speaks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TokenKind {
    UserToken {
        user: Name,
    },
    /// Lets the agent of a machine join, whether the cell knows the machine yet or not.
    JoinAgent {
        machine: Name,
    },
    JoinReplica {
        name: Name,
    },
    /// Lets a scheduler join that runs apart from the masters.
    JoinScheduler {
        name: Name,
    },
    /// Opens nothing: this part was sent away, and joins again before it is listened to.
    Dismissed {
        part: PartKind,
        name: Name,
    },
}

impl TokenKind {
    /// Whom it lets join.
    #[must_use]
    pub fn joiner(&self) -> Option<(PartKind, &Name)> {
        match self {
            TokenKind::JoinAgent { machine } => Some((PartKind::Agent, machine)),
            TokenKind::JoinReplica { name } => Some((PartKind::Replica, name)),
            TokenKind::JoinScheduler { name } => Some((PartKind::Scheduler, name)),
            TokenKind::UserToken { .. } | TokenKind::Dismissed { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessToken {
    /// The part of the token that is no secret.
    pub id: Name,
    pub kind: TokenKind,
    pub secret_hash: SecretHash,
    pub created: Time,
    /// Good for nothing from here on, and forgotten at the next expiry.
    pub expires: Time,
    /// A join token lets one in.
    pub used: bool,
}

/// Why a token opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TokenFlaw {
    WrongSecret,
    Expired,
    /// A join token that let somebody in already.
    Used,
    /// A user's token where one for joining is asked for.
    NotForJoining,
}

impl fmt::Display for TokenFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenFlaw::WrongSecret => "its secret is wrong",
            TokenFlaw::Expired => "it has expired",
            TokenFlaw::Used => "it was used before",
            TokenFlaw::NotForJoining => "it is not for joining",
        })
    }
}

impl AccessToken {
    /// Whether whoever shows this secret at `now` is let in. The secret comes first, so that a
    /// guess learns nothing else.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn admits(&self, secret: &SecretHash, now: Time) -> Result<(), TokenFlaw> {
        if !self.secret_hash.matches(secret) {
            return Err(TokenFlaw::WrongSecret);
        }
        if self.expires <= now {
            return Err(TokenFlaw::Expired);
        }
        if self.used { Err(TokenFlaw::Used) } else { Ok(()) }
    }

    #[must_use]
    pub fn is_for_joining(&self) -> bool {
        self.kind.joiner().is_some()
    }
}
