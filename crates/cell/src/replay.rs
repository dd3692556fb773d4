//! Idempotent replays (B25): a request sent twice takes effect once, and the second answer is the
//! first one. Each client of each actor has a window of its latest requests with a fingerprint of
//! the body, so that nobody is answered, or shut out, by numbers somebody else used; windows are
//! bounded in number of requests and expire by log time. Beyond the window a client protects itself
//! with the object's version.

use crate::command::{Actor, Command, RequestId, Verdict};
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
    /// Sequence numbers up to here have left the window; none has when absent.
    pub forgotten: Option<u64>,
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
pub fn look_up(
    windows: &Index<(Actor, u64), Window>,
    by: &Actor,
    id: RequestId,
    fingerprint: u64,
) -> Seen {
    let Some(window) = windows.get(&(by.clone(), id.client)) else { return Seen::New };
    match window.entries.get(&id.sequence) {
        Some(old) if old.fingerprint == fingerprint => Seen::Before(old.verdict.clone()),
        Some(_) => Seen::Refused(Refusal::RequestIdReused),
        None if Some(id.sequence) <= window.forgotten => Seen::Refused(Refusal::RequestTooOld),
        None => Seen::New,
    }
}

/// Remembers an answer; the oldest leave when the window is full.
pub fn remember(
    windows: &mut Index<(Actor, u64), Window>,
    by: &Actor,
    id: RequestId,
    fingerprint: u64,
    verdict: Verdict,
    now: Time,
) {
    let key = (by.clone(), id.client);
    let mut window = windows.get(&key).cloned().unwrap_or_default();
    window.entries.insert(id.sequence, Answered { fingerprint, verdict });
    window.last_at = now;
    while window.entries.len() > WINDOW {
        if let Some((sequence, _)) = window.entries.pop_first() {
            window.forgotten = window.forgotten.max(Some(sequence));
        }
    }
    windows.insert(key, window);
}

/// Drops windows of clients silent for [`KEEP`]. Returns whether any was dropped.
pub fn expire(windows: &mut Index<(Actor, u64), Window>, now: Time) -> bool {
    let old: Vec<(Actor, u64)> = windows
        .iter()
        .filter(|(_, w)| w.last_at.plus(KEEP) <= now)
        .map(|(key, _)| key.clone())
        .collect();
    old.iter().for_each(|key| {
        windows.remove(key);
    });
    !old.is_empty()
}

/// Order-independent hash over all windows.
#[must_use]
pub fn hash(windows: &Index<(Actor, u64), Window>) -> u64 {
    windows.iter().fold(0, |sum, (client, window)| {
        let bytes = postcard::to_stdvec(&(client, window)).unwrap_or_default();
        sum.wrapping_add(xxh3_64(&bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Done;
    use crate::name::Name;

    #[test]
    fn numbers_of_one_actor_mean_nothing_to_another() {
        let user = |text| Actor::User(Name::new(text).unwrap());
        let (ubar, ufoo) = (user("ubar"), user("ufoo"));
        let mut windows = Index::default();
        let id = |sequence| RequestId { client: 7, sequence };
        remember(&mut windows, &ubar, id(1), 5, Ok(Done::Applied), Time(1));
        assert_eq!(look_up(&windows, &ubar, id(1), 5), Seen::Before(Ok(Done::Applied)));
        assert_eq!(look_up(&windows, &ubar, id(1), 6), Seen::Refused(Refusal::RequestIdReused));
        assert_eq!(look_up(&windows, &ufoo, id(1), 5), Seen::New);
        assert_eq!(look_up(&windows, &Actor::System, id(1), 6), Seen::New);
    }

    #[test]
    fn only_what_left_the_window_is_too_old() {
        let mut windows = Index::default();
        let by = Actor::System;
        let id = |sequence| RequestId { client: 7, sequence };
        let mut answer = |sequence| {
            remember(&mut windows, &by, id(sequence), 5, Ok(Done::Applied), Time(1));
            windows.clone()
        };
        assert_eq!(look_up(&answer(1), &by, id(0), 5), Seen::New);
        let full = (2..=WINDOW as u64).map(&mut answer).last().unwrap();
        assert_eq!(look_up(&full, &by, id(0), 5), Seen::New);
        let over = answer(WINDOW as u64 + 1);
        for sequence in [0, 1] {
            let old = Seen::Refused(Refusal::RequestTooOld);
            assert_eq!(look_up(&over, &by, id(sequence), 5), old);
        }
        assert_eq!(look_up(&over, &by, id(2), 5), Seen::Before(Ok(Done::Applied)));
    }
}
