//! Versions of the messages between the cell's own parts, and how two parts agree on one.
//!
//! Agents, schedulers and masters are not upgraded at once, and postcard says nothing of what it
//! carries: a message with one more field is another message. So every message between parts says
//! in headers which version it is written in ([`WIRE_HEADER`]) and which versions its sender speaks
//! ([`RANGE_HEADER`]). A release speaks its own version and the one before. Whoever asks writes the
//! newest version that both sides speak, as far as it has heard of the other side, and the oldest
//! it speaks itself before it has; the answer comes in the version of the question. A version that
//! is not spoken is refused before a byte of the message is read, with both ranges named. Whoever
//! is refused for a version that it need not use writes the message again: what was refused had no
//! effect.
//!
//! A message that changes keeps the form it had as a struct of its own for one release; see
//! [`WireMessage`]. Bytes of every message in every version that is spoken are recorded
//! (`crates/master/tests/wire`).
//!
//! Rejected: a format that describes itself. It makes the log's largest messages twice as long, and
//! a field that an old build skips in silence is a behaviour nobody decided on. Fields that write
//! themselves or not by a version kept in a variable of the thread: one line for a new field, and a
//! hidden argument to every encoder of the cell.

use crate::error::{ApiError, Code};
use crate::types::AddMaster;
use cellwright_identity::enroll::{
    AuthorityAnswer, AuthorityRequest, JoinReply, JoinRequest, RenewAnswer, RenewRequest,
};
use cellwright_identity::task_identity::{TaskIdentityAnswer, TaskIdentityRequest};
use cellwright_messages::{
    AgentOrders, AgentReport, HoldersRequest, LeaseAnswer, LeaseRequest, LogAnswer, LogRequest,
    MembershipCheckRequest, PackageHolder, Proposal, ProposalAnswer,
};
use hyper::header::{HeaderMap, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64;

/// The version of the message that a request or an answer carries.
pub const WIRE_HEADER: &str = "cell-wire";
/// The versions that its sender speaks, `OLDEST-NEWEST`.
pub const RANGE_HEADER: &str = "cell-wire-range";
/// Names the newest version that a process is to rehearse; read by debug builds alone.
pub const REHEARSAL: &str = "CELL_REHEARSE_WIRE";
/// A peer that answers with another range each time is not followed for ever.
pub const MOST_TRIES: usize = 3;

/// A version of all messages between parts. It is raised with the first change of any of them after
/// a release, and not again until the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WireVersion(pub u16);

/// What this build was made to speak.
pub const NEWEST: WireVersion = WireVersion(1);
/// What the release before this one spoke. There was none before version 1.
pub const OLDEST: WireVersion = WireVersion(if NEWEST.0 > 1 { NEWEST.0 - 1 } else { 1 });

impl fmt::Display for WireVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The versions that a process speaks, both included.
///
/// Invariant: `oldest <= newest`, and neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireRange {
    oldest: WireVersion,
    newest: WireVersion,
}

impl WireRange {
    /// Of this build.
    pub const BUILT: WireRange = WireRange { oldest: OLDEST, newest: NEWEST };

    /// What a release speaks whose own version this is: that, and the one before. Version 0 is none
    /// and counts as 1.
    #[must_use]
    pub fn of_release(newest: WireVersion) -> WireRange {
        let newest = WireVersion(newest.0.max(1));
        WireRange { oldest: WireVersion((newest.0 - 1).max(1)), newest }
    }

    /// Of this process: what it was built for, or a version to come that it rehearses. Only builds
    /// with debug assertions look: in what is shipped there is nothing to turn on.
    #[must_use]
    pub fn own() -> WireRange {
        static OWN: OnceLock<WireRange> = OnceLock::new();
        let read = || {
            let named = std::env::var(REHEARSAL).ok().filter(|_| cfg!(debug_assertions));
            let rehearsed = named.and_then(|text| text.parse().ok()).map(WireVersion);
            rehearsed.filter(|v| *v > NEWEST).map_or(WireRange::BUILT, WireRange::of_release)
        };
        *OWN.get_or_init(read)
    }

    #[must_use]
    pub fn speaks(self, version: WireVersion) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The newest version that both speak.
    #[must_use]
    pub fn common(self, other: WireRange) -> Option<WireVersion> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest && newest >= other.oldest).then_some(newest)
    }

    /// What to write to somebody who speaks `peer`, as far as that is known. The oldest version is
    /// the one that most others read: those of the release before, and those of the next.
    #[must_use]
    pub fn to_write(self, peer: Option<WireRange>) -> WireVersion {
        peer.and_then(|peer| self.common(peer)).unwrap_or(self.oldest)
    }

    /// As the sender's headers say, also those of a refusal.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<WireRange> {
        text(headers, RANGE_HEADER)?.parse().ok()
    }

    /// Into the headers of whatever its process sends.
    pub fn write(self, headers: &mut HeaderMap) {
        set(headers, RANGE_HEADER, &self);
    }

    /// Says no to a message that is not spoken here. `caller` and `reader` name the parts.
    #[must_use]
    pub fn rejection(self, caller: &str, said: Option<Spoken>, reader: &str) -> ApiError {
        let spoken = match said {
            Some(Spoken { version, range }) => {
                format!("{caller} speaks wire {range} and wrote version {version}")
            }
            None => format!("{caller} names no wire version"),
        };
        let hint = match said {
            Some(Spoken { range, .. }) if range.newest < self.oldest => {
                "upgrade the caller: put the masters' build on its machine and restart it; tasks \
                 run on"
            }
            Some(_) => {
                "upgrade the masters first, one after another, and then schedulers and agents; no \
                 release may be skipped"
            }
            None => "this is for parts of the cell, and every build of theirs names it",
        };
        let build = env!("CARGO_PKG_VERSION");
        let message = format!("{spoken}; {reader} speaks wire {self} (cellwright {build})");
        ApiError::new(Code::OtherWire, message).hint(hint).with("speaks", self.to_string())
    }
}

impl fmt::Display for WireRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.oldest, self.newest)
    }
}

/// Not the text of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("allowed: two versions as OLDEST-NEWEST, from 1")]
pub struct NoRange;

impl FromStr for WireRange {
    type Err = NoRange;

    fn from_str(text: &str) -> Result<WireRange, NoRange> {
        let (oldest, newest) = text.split_once('-').ok_or(NoRange)?;
        let version = |text: &str| text.parse().map(WireVersion).map_err(|_| NoRange);
        let (oldest, newest) = (version(oldest)?, version(newest)?);
        let is_one = oldest.0 > 0 && oldest <= newest;
        if is_one { Ok(WireRange { oldest, newest }) } else { Err(NoRange) }
    }
}

/// What the headers of a message say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoken {
    /// Of the message that comes with them.
    pub version: WireVersion,
    /// Of its sender.
    pub range: WireRange,
}

impl Spoken {
    /// Nothing where they do not say it, or not so that it could be.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Spoken> {
        let version = text(headers, WIRE_HEADER)?.parse().ok().map(WireVersion)?;
        Some(Spoken { version, range: WireRange::of(headers)? })
    }

    pub fn write(self, headers: &mut HeaderMap) {
        set(headers, WIRE_HEADER, &self.version);
        self.range.write(headers);
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &impl fmt::Display) {
    // Digits and a dash can travel in any header.
    if let Ok(value) = HeaderValue::from_str(&value.to_string()) {
        headers.insert(name, value);
    }
}

/// Why bytes are not the message that belongs there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("wire version {found} is not spoken here; allowed: {allowed}")]
    Version { found: WireVersion, allowed: WireRange },
    #[error("not a {name} of wire version {version}: {why}")]
    Broken { name: &'static str, version: WireVersion, why: String },
    #[error("{bytes} bytes follow a {name} of wire version {version}")]
    Trailing { name: &'static str, version: WireVersion, bytes: usize },
    #[error("the stamp of a rehearsed wire version is {found:016x}, computed: {computed:016x}")]
    Stamp { found: u64, computed: u64 },
}

/// A message between parts of the cell.
///
/// One whose fields, or fields of fields, change after a release gets both methods by hand. What it
/// was before stays for one release, as a struct of its own with the old fields in the old order
/// and a conversion each way; a new field says there what it is where the other side knows none:
///
/// ```ignore
/// impl WireMessage for AgentReport {
///     const NAME: &'static str = "AgentReport";
///
///     fn encode(&self, version: WireVersion) -> Result<Vec<u8>, WireError> {
///         match version {
///             WireVersion(1) => put(Self::NAME, version, &version_1::AgentReport::from(self)),
///             _ => put(Self::NAME, version, self),
///         }
///     }
///
///     fn decode(version: WireVersion, bytes: &[u8]) -> Result<Self, WireError> {
///         match version {
///             WireVersion(1) => {
///                 let old: version_1::AgentReport = take(Self::NAME, version, bytes)?;
///                 Ok(old.into())
///             }
///             _ => take(Self::NAME, version, bytes),
///         }
///     }
/// }
/// ```
pub trait WireMessage: Serialize + DeserializeOwned {
    const NAME: &'static str;

    /// As version `version` writes it.
    ///
    /// # Errors
    /// When it holds what that version has no words for.
    fn encode(&self, version: WireVersion) -> Result<Vec<u8>, WireError> {
        put(Self::NAME, version, self)
    }

    /// From what version `version` wrote.
    ///
    /// # Errors
    /// When it is anything else.
    fn decode(version: WireVersion, bytes: &[u8]) -> Result<Self, WireError> {
        take(Self::NAME, version, bytes)
    }
}

/// Messages that are the same in every version that is spoken.
#[macro_export]
macro_rules! wire_messages {
    ($($message:ty),* $(,)?) => {
        $(impl $crate::wire::WireMessage for $message {
            const NAME: &'static str = stringify!($message);
        })*
    };
}

wire_messages!(
    AgentReport,
    AgentOrders,
    HoldersRequest,
    Vec<PackageHolder>,
    MembershipCheckRequest,
    bool,
    LogRequest,
    LogAnswer,
    Proposal,
    ProposalAnswer,
    LeaseRequest,
    LeaseAnswer,
    JoinRequest,
    JoinReply,
    AuthorityRequest,
    AuthorityAnswer,
    RenewRequest,
    RenewAnswer,
    TaskIdentityRequest,
    TaskIdentityAnswer,
    AddMaster,
    (),
);

/// The bytes of one form of a message.
///
/// # Errors
/// When it cannot be encoded.
pub fn put<T: Serialize>(
    name: &'static str,
    version: WireVersion,
    message: &T,
) -> Result<Vec<u8>, WireError> {
    let broken = |e: postcard::Error| WireError::Broken { name, version, why: e.to_string() };
    postcard::to_stdvec(message).map_err(broken)
}

/// One form of a message, and nothing after it.
///
/// # Errors
/// When the bytes are anything else.
pub fn take<T: DeserializeOwned>(
    name: &'static str,
    version: WireVersion,
    bytes: &[u8],
) -> Result<T, WireError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(WireError::Trailing { name, version, bytes: rest.len() }),
        Err(why) => Err(WireError::Broken { name, version, why: why.to_string() }),
    }
}

/// The bytes that travel. A rehearsed version, which no build knows yet, has one field more than
/// the version before it: a stamp of all that it follows. So messages of two versions are never
/// taken for each other in a rehearsal, and each says whether it arrived as what it was sent as.
///
/// # Errors
/// When the message cannot be written in that version.
pub fn pack<M: WireMessage>(version: WireVersion, message: &M) -> Result<Vec<u8>, WireError> {
    let mut bytes = message.encode(version.min(NEWEST))?;
    for rehearsed in NEWEST.0..version.0 {
        bytes.extend(stamp(rehearsed, &bytes).to_le_bytes());
    }
    Ok(bytes)
}

/// The message that [`pack`] wrote.
///
/// # Errors
/// When `own` does not include the version, or the bytes are no such message.
pub fn unpack<M: WireMessage>(
    own: WireRange,
    version: WireVersion,
    mut bytes: &[u8],
) -> Result<M, WireError> {
    if !own.speaks(version) {
        return Err(WireError::Version { found: version, allowed: own });
    }
    for rehearsed in (NEWEST.0..version.0).rev() {
        let Some((rest, last)) = bytes.split_last_chunk() else {
            let why = "it ends before its stamp".to_owned();
            return Err(WireError::Broken { name: M::NAME, version, why });
        };
        let (found, computed) = (u64::from_le_bytes(*last), stamp(rehearsed, rest));
        if found != computed {
            return Err(WireError::Stamp { found, computed });
        }
        bytes = rest;
    }
    M::decode(version.min(NEWEST), bytes)
}

fn stamp(rehearsed: u16, bytes: &[u8]) -> u64 {
    xxh3_64(bytes).wrapping_add(u64::from(rehearsed))
}

#[cfg(test)]
mod tests;
