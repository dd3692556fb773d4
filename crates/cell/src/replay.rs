//! Idempotent replays (B25): a request sent twice takes effect once, and the second answer is the
//! first one. Each client has a window of its latest requests with a fingerprint of the body;
//! windows are bounded in number of requests and expire by log time. Beyond the window a client
//! protects itself with the object's version.

use crate::command::{Command, RequestId, Verdict};
use crate::index::Index;
use crate::reason::Refusal;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Requests remembered per client.
pub const WINDOW: usize = 256;
/// How long a silent client's window is kept.
pub const KEEP: Span = Span::seconds(24 * 3600);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// By sequence number.
    pub entries: BTreeMap<u64, Answered>,
    /// Sequence numbers up to here have left the window.
    pub forgotten: u64,
    pub last_at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    pub fingerprint: u64,
    pub verdict: Verdict,
}

/// What the window says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Never seen: apply it.
    New,
    /// Answered before.
    Before(Verdict),
    Refused(Refusal),
}

/// Digest of a command's encoded form.
#[must_use]
pub fn fingerprint(command: &Command) -> u64 {
    postcard::to_stdvec(command).map_or(0, |bytes| xxh3_64(&bytes))
}

/// Looks a request up.
#[must_use]
pub fn look_up(windows: &Index<u64, Window>, id: RequestId, fingerprint: u64) -> Seen {
    let Some(window) = windows.get(&id.client) else { return Seen::New };
    match window.entries.get(&id.sequence) {
        Some(old) if old.fingerprint == fingerprint => Seen::Before(old.verdict.clone()),
        Some(_) => Seen::Refused(Refusal::RequestIdReused),
        None if id.sequence <= window.forgotten => Seen::Refused(Refusal::RequestTooOld),
        None => Seen::New,
    }
}

/// Remembers an answer; the oldest leave when the window is full.
pub fn remember(
    windows: &mut Index<u64, Window>,
    id: RequestId,
    fingerprint: u64,
    verdict: Verdict,
    now: Time,
) {
    let mut window = windows.get(&id.client).cloned().unwrap_or_default();
    window.entries.insert(id.sequence, Answered { fingerprint, verdict });
    window.last_at = now;
    while window.entries.len() > WINDOW {
        if let Some((sequence, _)) = window.entries.pop_first() {
            window.forgotten = window.forgotten.max(sequence);
        }
    }
    windows.insert(id.client, window);
}

/// Drops windows of clients silent for [`KEEP`]. Returns whether any was dropped.
pub fn expire(windows: &mut Index<u64, Window>, now: Time) -> bool {
    let old: Vec<u64> = windows
        .iter()
        .filter(|(_, w)| w.last_at.plus(KEEP) <= now)
        .map(|(client, _)| *client)
        .collect();
    old.iter().for_each(|client| {
        windows.remove(client);
    });
    !old.is_empty()
}

/// Order-independent hash over all windows.
#[must_use]
pub fn hash(windows: &Index<u64, Window>) -> u64 {
    windows.iter().fold(0, |sum, (client, window)| {
        let bytes = postcard::to_stdvec(&(client, window)).unwrap_or_default();
        sum.wrapping_add(xxh3_64(&bytes))
    })
}
