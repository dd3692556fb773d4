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
pub const MAX_JOIN_TOKEN_LIFETIME: Span = Span::seconds(15 * 60);
/// How long a dismissal is remembered: longer than any certificate made before it is good for.
/// Clocks that are days apart make some of those longer.
pub const REVOCATION_RETENTION: Span = Span::seconds(7 * 24 * 3600);
/// Longest text of an address from which somebody asks to join.
pub const MAX_ADDRESS: usize = 64;

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

/// The first half of the SHA-256 of a public key, which people compare: nobody finds another key
/// with the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyFingerprint(pub [u8; 16]);

impl KeyFingerprint {
    /// As it is shown, or without what stands between the digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<KeyFingerprint> {
        let digits: Vec<u8> = text
            .trim()
            .chars()
            .filter(|c| !matches!(c, '-' | ':' | ' '))
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()?;
        let mut fingerprint = [0; 16];
        if digits.len() != 2 * fingerprint.len() {
            return None;
        }
        for (byte, pair) in fingerprint.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Some(KeyFingerprint(fingerprint))
    }
}

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pair) in self.0.chunks(2).enumerate() {
            let dash = if at == 0 { "" } else { "-" };
            write!(f, "{dash}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Who asks to join as a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplicaJoinRequest {
    /// Of the key that it made, and alone has.
    pub key: KeyFingerprint,
    /// Where it asked from.
    pub address: String,
}

/// A replica that asked to join, as the token remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PendingReplica {
    pub who: ReplicaJoinRequest,
    pub since: Time,
    /// An operator has compared the fingerprint. Nothing is given to the newcomer before.
    pub confirmed: bool,
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
    pub fn joining_part(&self) -> Option<(PartKind, &Name)> {
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
    /// The token with which this one was made. A token ends with its parent: whoever stole one and
    /// made others with it has none left when it is revoked.
    pub parent: Option<Name>,
    /// Of a token for a replica, once it was used: who waits to be confirmed.
    pub waiting: Option<PendingReplica>,
}

/// Why a token opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InvalidTokenReason {
    WrongSecret,
    Expired,
    /// A join token that let somebody in already.
    Used,
    /// A user's token where one for joining is asked for.
    NotForJoining,
    /// A replica joins with a key that an operator confirms, others without.
    WrongNewcomer,
}

impl fmt::Display for InvalidTokenReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidTokenReason::WrongSecret => "its secret is wrong",
            InvalidTokenReason::Expired => "it has expired",
            InvalidTokenReason::Used => "it was used before",
            InvalidTokenReason::NotForJoining => "it is not for joining",
            InvalidTokenReason::WrongNewcomer => "it is for another kind of newcomer",
        })
    }
}

impl AccessToken {
    /// Whether whoever shows this secret at `now` is let in. The secret comes first, so that a
    /// guess learns nothing else.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn verify(&self, secret: &SecretHash, now: Time) -> Result<(), InvalidTokenReason> {
        if !self.secret_hash.matches(secret) {
            return Err(InvalidTokenReason::WrongSecret);
        }
        if self.expires <= now {
            return Err(InvalidTokenReason::Expired);
        }
        if self.used { Err(InvalidTokenReason::Used) } else { Ok(()) }
    }

    #[must_use]
    pub fn is_join_token(&self) -> bool {
        self.kind.joining_part().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_shown() {
        let fingerprint = KeyFingerprint([0x0a; 16]);
        let text_form = "0a0a-0a0a-0a0a-0a0a-0a0a-0a0a-0a0a-0a0a";
        assert_eq!(fingerprint.to_string(), text_form);
        for text in
            [text_form, &text_form.to_uppercase(), &text_form.replace('-', ""), " 0a:".trim()]
        {
            let whole = text.len() > 16;
            assert_eq!(KeyFingerprint::parse(text), Some(fingerprint).filter(|_| whole), "{text}");
        }
        for wrong in
            ["", "0a0a", &text_form[1..], &format!("{text_form}0a"), &text_form.replace('a', "g")]
        {
            assert_eq!(KeyFingerprint::parse(wrong), None, "{wrong}");
        }
    }
}
