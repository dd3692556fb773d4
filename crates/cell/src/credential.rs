//! Tokens: how a caller without a certificate authenticates. A user's token authenticates that user
//! until it expires; a join token lets one machine's agent, one scheduler or one replica of the
//! master join, once, under the name it was made for.
//!
//! The opposite is a revocation: the certificates of a part are no longer accepted. It is stored
//! among the tokens because it has the same fields: it names a part, an authorized actor made it,
//! it can itself be revoked, and it is removed when it has outlived the certificates.
//!
//! The state keeps a hash of the secret, never the secret: backups of checkpoints and logs are read
//! by others, and must contain nothing that authenticates. Secrets are long and random, so a plain
//! hash is as good as a slow one.

use crate::name::Name;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest lifetime of a join token: it is carried to a machine by hand, and then left lying
/// somewhere.
pub const MAX_JOIN_TOKEN_LIFETIME: Span = Span::seconds(15 * 60);
/// How long a revocation is remembered: longer than any certificate issued before it is valid.
/// Clocks that are days apart make some of those valid for longer.
pub const REVOCATION_RETENTION: Span = Span::seconds(7 * 24 * 3600);
/// Longest text of an address from which a part asks to join.
pub const MAX_ADDRESS: usize = 64;

/// SHA-256 of a token's secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretHash(pub [u8; 32]);

impl SecretHash {
    /// Equality in constant time, wherever the first difference is.
    #[must_use]
    pub fn matches(&self, other: &SecretHash) -> bool {
        self.0.iter().zip(other.0).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
    }
}

impl fmt::Debug for SecretHash {
    /// Enough digits to tell two apart, in logs that others read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}..", self.0[0], self.0[1])
    }
}

/// Parts of a cell that hold certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// The agent of the machine with its name.
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

/// The first half of the SHA-256 of a public key, which people compare: finding another key with
/// the same half is infeasible.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyFingerprint(pub [u8; 16]);

impl KeyFingerprint {
    /// Parses the displayed form, or the digits without separators.
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

/// The join request of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplicaJoinRequest {
    /// Fingerprint of the key that the replica made and alone has.
    pub key: KeyFingerprint,
    /// Where it asked from.
    pub address: String,
}

/// A replica that asked to join, as stored with its token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PendingReplica {
    pub who: ReplicaJoinRequest,
    pub since: Time,
    /// An operator has compared the fingerprint. The replica gets nothing before that.
    pub confirmed: bool,
}

/// What a token authenticates.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TokenKind {
    UserToken {
        user: Name,
    },
    /// Lets the agent of a machine join, whether the cell has a row of the machine yet or not.
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
    /// Authenticates nothing: this part was revoked, and has to join again.
    Revocation {
        part: PartKind,
        name: Name,
    },
}

impl TokenKind {
    /// The part that the token lets join.
    #[must_use]
    pub fn joining_part(&self) -> Option<(PartKind, &Name)> {
        match self {
            TokenKind::JoinAgent { machine } => Some((PartKind::Agent, machine)),
            TokenKind::JoinReplica { name } => Some((PartKind::Replica, name)),
            TokenKind::JoinScheduler { name } => Some((PartKind::Scheduler, name)),
            TokenKind::UserToken { .. } | TokenKind::Revocation { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessToken {
    /// The public part of the token.
    pub id: Name,
    pub kind: TokenKind,
    pub secret_hash: SecretHash,
    pub created: Time,
    /// Not accepted from this time on, and removed at the next expiry.
    pub expires: Time,
    /// A join token can be used once.
    pub used: bool,
    /// The token with which this one was made. A token ends with its parent: whoever stole one and
    /// made others with it has none left when it is revoked.
    pub parent: Option<Name>,
    /// Of a token for a replica, once it was used: the replica that waits to be confirmed.
    pub waiting: Option<PendingReplica>,
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InvalidTokenReason {
    WrongSecret,
    Expired,
    /// A join token that was used already.
    Used,
    /// A user's token where a join token is needed.
    NotForJoining,
    /// A replica joins with a key that an operator confirms; other parts join without one.
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
    /// Whether the bearer of this secret is authenticated at `now`. The secret is checked first, so
    /// that a guess learns nothing else.
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
