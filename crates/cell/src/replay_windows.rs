//! Idempotent replays (B25): a request sent twice takes effect once, and the second answer is the
//! first one. Each client of each actor has a window of its latest requests with a fingerprint of
//! the body, so that no client gets another's answer, or is rejected, because of numbers another
//! one used; windows are bounded in number of requests and expire by log time. Beyond the window a
//! client protects itself with the object's version.
//!
//! The number of windows of an actor is bounded: a client that takes a new number for every request
//! pushes out its own actor's oldest windows and nobody else's, and the state does not grow without
//! end. Stored answers are bounded in bytes as well, and there the oldest answers go first; their
//! windows stay and record that they did, so that a request of that time is rejected as too old and
//! not applied twice.

use crate::bounds::encoded_bytes;
use crate::command::{Actor, Command, RequestId, Verdict};
use crate::index::Index;
use crate::reason::Rejection;
use crate::time::{Span, Time};
use cellwright_rows::bytes::hash;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Requests remembered for each client.
pub const WINDOW_SIZE: usize = 256;
/// Most windows of one actor. The one that was silent longest goes first.
pub const MAX_WINDOWS: usize = 4096;
/// How long a silent client's window is retained.
pub const WINDOW_RETENTION: Span = Span::seconds(24 * 3600);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayWindow {
    /// By sequence number.
    pub entries: BTreeMap<u64, RecordedAnswer>,
    /// Highest sequence number that has left the window; `None` when none has.
    pub forgotten: Option<u64>,
    pub last_at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedAnswer {
    pub fingerprint: u64,
    pub verdict: Verdict,
}

/// Result of looking up a request in its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowLookup {
    /// Never seen: apply it.
    Unseen,
    /// Answered before.
    Answered(Verdict),
    Rejected(Rejection),
}

/// Digest of a command's encoded form.
#[must_use]
pub fn fingerprint(command: &Command) -> u64 {
    hash(command)
}

/// All windows, by actor and the actor's client.
#[derive(Clone, Debug, Default)]
pub struct ReplayWindows {
    by_client: Index<(Actor, u64), Arc<ReplayWindow>>,
    /// Derived: the windows of each actor. Invariant: no entry without a window.
    by_actor: Index<Actor, Arc<ActorWindows>>,
    /// Derived: sum of the hashes of all heads and answers. Adding an answer costs its own hash,
    /// however many are stored.
    sum: u64,
}

/// The windows of one actor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ActorWindows {
    /// When each client last sent a request, longest silent first. Invariant: one pair for each
    /// window.
    by_age: BTreeSet<(Time, u64)>,
    /// Those of them that contain answers.
    answered: BTreeSet<(Time, u64)>,
    /// Bytes of these answers.
    bytes: u64,
}

/// Bytes counted for an answer beside its text.
const ANSWER_OVERHEAD: u64 = 64;

fn answer_bytes(answered: &RecordedAnswer) -> u64 {
    encoded_bytes(answered).saturating_add(ANSWER_OVERHEAD)
}

/// Hash of one window without its answers.
fn head_hash(key: &(Actor, u64), window: &ReplayWindow) -> u64 {
    hash(&(key, window.forgotten, window.last_at))
}

fn answer_hash(key: &(Actor, u64), sequence: u64, answered: &RecordedAnswer) -> u64 {
    hash(&(key, sequence, answered))
}

fn window_hash(key: &(Actor, u64), window: &ReplayWindow) -> u64 {
    let answers = window.entries.iter().map(|(sequence, a)| answer_hash(key, *sequence, a));
    answers.fold(head_hash(key, window), u64::wrapping_add)
}

impl ActorWindows {
    fn count(&mut self, client: u64, window: &ReplayWindow, add: bool) {
        let at = (window.last_at, client);
        let bytes = window.entries.values().map(answer_bytes).fold(0, u64::saturating_add);
        if add {
            self.by_age.insert(at);
            self.bytes = self.bytes.saturating_add(bytes);
            if !window.entries.is_empty() {
                self.answered.insert(at);
            }
        } else {
            self.by_age.remove(&at);
            self.answered.remove(&at);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }
}

impl ReplayWindows {
    #[must_use]
    pub fn get(&self, key: &(Actor, u64)) -> Option<&ReplayWindow> {
        self.by_client.get(key).map(|window| &**window)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&(Actor, u64), &ReplayWindow)> {
        self.by_client.iter().map(|(key, window)| (key, &**window))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.by_client.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_client.is_empty()
    }

    /// Number of windows of each actor.
    pub fn per_actor(&self) -> impl Iterator<Item = (&Actor, usize)> {
        self.by_actor.iter().map(|(actor, share)| (actor, share.by_age.len()))
    }

    /// Inserts a window, replacing an older one of that client.
    pub fn insert(&mut self, key: (Actor, u64), window: ReplayWindow) {
        self.remove(&key);
        let (actor, client) = key.clone();
        self.sum = self.sum.wrapping_add(window_hash(&key, &window));
        self.edit_actor(&actor, |share| share.count(client, &window, true));
        self.by_client.insert(key, Arc::new(window));
    }

    fn remove(&mut self, key: &(Actor, u64)) {
        if let Some(old) = self.by_client.remove(key) {
            self.sum = self.sum.wrapping_sub(window_hash(key, &old));
            self.edit_actor(&key.0, |share| share.count(key.1, &old, false));
        }
    }

    fn edit_actor(&mut self, actor: &Actor, change: impl FnOnce(&mut ActorWindows)) {
        let Some(share) = self.by_actor.get_mut(actor) else {
            let mut share = ActorWindows::default();
            change(&mut share);
            if !share.by_age.is_empty() {
                self.by_actor.insert(actor.clone(), Arc::new(share));
            }
            return;
        };
        change(Arc::make_mut(share));
        if share.by_age.is_empty() {
            self.by_actor.remove(actor);
        }
    }

    /// Bytes of answers stored for one actor.
    #[must_use]
    pub fn answer_bytes_of(&self, actor: &Actor) -> u64 {
        self.by_actor.get(actor).map_or(0, |share| share.bytes)
    }

    /// Looks a request up.
    #[must_use]
    pub fn look_up(&self, by: &Actor, id: RequestId, fingerprint: u64) -> WindowLookup {
        let Some(window) = self.get(&(by.clone(), id.client)) else { return WindowLookup::Unseen };
        match window.entries.get(&id.sequence) {
            Some(old) if old.fingerprint == fingerprint => {
                WindowLookup::Answered(old.verdict.clone())
            }
            Some(_) => WindowLookup::Rejected(Rejection::RequestIdReused),
            None if Some(id.sequence) <= window.forgotten => {
                WindowLookup::Rejected(Rejection::RequestTooOld)
            }
            None => WindowLookup::Unseen,
        }
    }

    /// Records an answer. The oldest leave when the window is full, or when the actor's answers
    /// take more than `most` bytes; the window of the client silent longest leaves when the actor
    /// has too many.
    pub fn remember(
        &mut self,
        by: &Actor,
        id: RequestId,
        answered: RecordedAnswer,
        now: Time,
        most: u64,
    ) {
        let key = (by.clone(), id.client);
        if self.get(&key).is_none() {
            self.insert(key.clone(), ReplayWindow { last_at: now, ..ReplayWindow::default() });
        }
        self.record_answer(&key, id.sequence, answered, now);
        let ages = self.by_actor.get(by).map(|share| &share.by_age);
        let oldest = ages.filter(|ages| ages.len() > MAX_WINDOWS).and_then(|ages| {
            // Several may have the same time: never remove the one just answered.
            ages.iter().map(|(_, client)| *client).find(|client| *client != id.client)
        });
        if let Some(client) = oldest {
            self.remove(&(by.clone(), client));
        }
        self.drop_oldest_answers(by, id, most);
    }

    /// Drops the oldest answers of the actor until they take at most `most` bytes: those of the
    /// client silent longest first, and never the answer that was just recorded.
    fn drop_oldest_answers(&mut self, by: &Actor, given: RequestId, most: u64) {
        while let Some(share) = self.by_actor.get(by).filter(|share| share.bytes > most) {
            let others = share.answered.iter().map(|(_, client)| *client);
            let client = others.clone().find(|c| *c != given.client).unwrap_or(given.client);
            let key = (by.clone(), client);
            let entries = self.get(&key).map(|window| &window.entries);
            let oldest = entries.and_then(|entries| entries.keys().next().copied());
            match oldest {
                Some(sequence) if (client, sequence) != (given.client, given.sequence) => {
                    self.drop_answer(&key, sequence);
                }
                _ => return,
            }
        }
    }

    /// Drops the oldest answer of a window.
    fn drop_answer(&mut self, key: &(Actor, u64), sequence: u64) {
        let Some(window) = self.by_client.get_mut(key) else { return };
        let window = Arc::make_mut(window);
        let Some(gone) = window.entries.remove(&sequence) else { return };
        let mut sum = self.sum.wrapping_sub(head_hash(key, window));
        sum = sum.wrapping_sub(answer_hash(key, sequence, &gone));
        window.forgotten = window.forgotten.max(Some(sequence));
        self.sum = sum.wrapping_add(head_hash(key, window));
        let (at, emptied) = ((window.last_at, key.1), window.entries.is_empty());
        self.edit_actor(&key.0, |share| {
            share.bytes = share.bytes.saturating_sub(answer_bytes(&gone));
            if emptied {
                share.answered.remove(&at);
            }
        });
    }

    /// Records an answer in the window of a client that has one.
    fn record_answer(
        &mut self,
        key: &(Actor, u64),
        sequence: u64,
        answered: RecordedAnswer,
        now: Time,
    ) {
        let Some(window) = self.by_client.get_mut(key) else { return };
        let window = Arc::make_mut(window);
        let mut sum = self.sum.wrapping_sub(head_hash(key, window));
        sum = sum.wrapping_add(answer_hash(key, sequence, &answered));
        let (more, mut less) = (answer_bytes(&answered), 0);
        if let Some(old) = window.entries.insert(sequence, answered) {
            sum = sum.wrapping_sub(answer_hash(key, sequence, &old));
            less = answer_bytes(&old);
        }
        let before = std::mem::replace(&mut window.last_at, now);
        while window.entries.len() > WINDOW_SIZE {
            if let Some((oldest, gone)) = window.entries.pop_first() {
                sum = sum.wrapping_sub(answer_hash(key, oldest, &gone));
                window.forgotten = window.forgotten.max(Some(oldest));
                less += answer_bytes(&gone);
            }
        }
        self.sum = sum.wrapping_add(head_hash(key, window));
        let client = key.1;
        self.edit_actor(&key.0, |share| {
            if before != now {
                share.by_age.remove(&(before, client));
                share.by_age.insert((now, client));
                share.answered.remove(&(before, client));
            }
            share.answered.insert((now, client));
            share.bytes = share.bytes.saturating_add(more).saturating_sub(less);
        });
    }

    /// Drops windows of clients silent for [`WINDOW_RETENTION`]. Returns whether any was dropped.
    pub fn expire(&mut self, now: Time) -> bool {
        let silent = |(at, _): &&(Time, u64)| at.plus(WINDOW_RETENTION) <= now;
        let old: Vec<(Actor, u64)> = self
            .by_actor
            .iter()
            .flat_map(|(actor, share)| {
                share
                    .by_age
                    .iter()
                    .take_while(silent)
                    .map(move |(_, client)| (actor.clone(), *client))
            })
            .collect();
        old.iter().for_each(|key| self.remove(key));
        !old.is_empty()
    }

    /// Order-independent hash over all windows.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Done;
    use crate::name::Name;
    use crate::reason::{Allowed, Given};

    const MOST: u64 = 1 << 30;

    fn done(fingerprint: u64) -> RecordedAnswer {
        RecordedAnswer { fingerprint, verdict: Ok(Done::Applied) }
    }

    #[test]
    fn answers_are_bounded_in_bytes_and_those_that_went_are_too_old() {
        let mut windows = ReplayWindows::default();
        let by = Actor::User(Name::new("ubar").unwrap());
        let long = |fingerprint| {
            let value = Given::Text("x".repeat(400));
            let allowed = Allowed::AtMost(1);
            let rejection = Rejection::bad_field("f", value, allowed).truncated();
            RecordedAnswer { fingerprint, verdict: Err(rejection) }
        };
        let most = 10_000;
        let id = |client| RequestId { client, sequence: 0 };
        for client in 0..500 {
            windows.remember(&by, id(client), long(client), Time(client), most);
            assert!(windows.answer_bytes_of(&by) <= most);
        }
        assert_eq!(windows.len(), 500, "who asked is remembered longer than the answer");
        let old = WindowLookup::Rejected(Rejection::RequestTooOld);
        assert_eq!(windows.look_up(&by, id(1), 1), old, "not done a second time");
        assert!(matches!(windows.look_up(&by, id(499), 499), WindowLookup::Answered(Err(_))));
        // With only one client its own oldest answers go, and never the latest.
        let alone = Actor::User(Name::new("alone").unwrap());
        for sequence in 0..100 {
            let id = RequestId { client: 7, sequence };
            windows.remember(&alone, id, long(sequence), Time(600), 100);
            assert!(matches!(windows.look_up(&alone, id, sequence), WindowLookup::Answered(_)));
        }
        let kept = windows.get(&(alone.clone(), 7)).unwrap();
        assert_eq!((kept.entries.len(), kept.forgotten), (1, Some(98)));
        let again: ReplayWindows =
            windows.iter().fold(ReplayWindows::default(), |mut again, (key, window)| {
                again.insert(key.clone(), window.clone());
                again
            });
        assert_eq!(again.answer_bytes_of(&by), windows.answer_bytes_of(&by));
        assert_eq!(again.hash(), windows.hash());
        windows.expire(Time(600).plus(WINDOW_RETENTION));
        assert_eq!(windows.answer_bytes_of(&by), 0);
    }

    #[test]
    fn numbers_of_one_actor_mean_nothing_to_another() {
        let user = |text| Actor::User(Name::new(text).unwrap());
        let (ubar, ufoo) = (user("ubar"), user("ufoo"));
        let mut windows = ReplayWindows::default();
        let id = |sequence| RequestId { client: 7, sequence };
        windows.remember(&ubar, id(1), done(5), Time(1), MOST);
        assert_eq!(windows.look_up(&ubar, id(1), 5), WindowLookup::Answered(Ok(Done::Applied)));
        assert_eq!(
            windows.look_up(&ubar, id(1), 6),
            WindowLookup::Rejected(Rejection::RequestIdReused)
        );
        assert_eq!(windows.look_up(&ufoo, id(1), 5), WindowLookup::Unseen);
        assert_eq!(windows.look_up(&Actor::Operator, id(1), 6), WindowLookup::Unseen);
    }

    #[test]
    fn only_what_left_the_window_is_too_old() {
        let mut windows = ReplayWindows::default();
        let by = Actor::Operator;
        let id = |sequence| RequestId { client: 7, sequence };
        let mut answer = |sequence| {
            windows.remember(&by, id(sequence), done(5), Time(1), MOST);
            windows.clone()
        };
        assert_eq!(answer(1).look_up(&by, id(0), 5), WindowLookup::Unseen);
        let full = (2..=WINDOW_SIZE as u64).map(&mut answer).last().unwrap();
        assert_eq!(full.look_up(&by, id(0), 5), WindowLookup::Unseen);
        let over = answer(WINDOW_SIZE as u64 + 1);
        for sequence in [0, 1] {
            let old = WindowLookup::Rejected(Rejection::RequestTooOld);
            assert_eq!(over.look_up(&by, id(sequence), 5), old);
        }
        assert_eq!(over.look_up(&by, id(2), 5), WindowLookup::Answered(Ok(Done::Applied)));
    }

    #[test]
    fn an_actor_with_too_many_clients_loses_its_own_oldest() {
        let mut windows = ReplayWindows::default();
        let other = Actor::User(Name::new("ubar").unwrap());
        let answer = |windows: &mut ReplayWindows, by: &Actor, client: u64, at: u64| {
            let id = RequestId { client, sequence: 1 };
            windows.remember(by, id, done(5), Time(at), MOST);
        };
        let remembers =
            |windows: &ReplayWindows, client| windows.get(&(Actor::Operator, client)).is_some();
        answer(&mut windows, &other, 0, 1);
        for client in 0..MAX_WINDOWS as u64 {
            answer(&mut windows, &Actor::Operator, client, 10 + client);
        }
        // A new request: no longer the client silent longest.
        answer(&mut windows, &Actor::Operator, 0, 9_000);
        assert_eq!(windows.len(), MAX_WINDOWS + 1);
        // At the same time as all that follow, so that only the new one is safe.
        for client in [90_000, 80_000, 70_000] {
            answer(&mut windows, &Actor::Operator, client, 9_000);
            assert!(remembers(&windows, client));
        }
        assert_eq!(windows.len(), MAX_WINDOWS + 1);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|c| remembers(&windows, c)),
            [true, false, false, false, true]
        );
        assert!(windows.get(&(other, 0)).is_some(), "nobody else pays for it");
        let counts: Vec<usize> = windows.per_actor().map(|(_, count)| count).collect();
        assert_eq!(counts.iter().sum::<usize>(), windows.len());
        assert!(windows.expire(Time(9_000).plus(WINDOW_RETENTION)));
        assert!(windows.is_empty() && windows.per_actor().next().is_none());
    }

    #[test]
    fn the_running_hash_is_that_of_the_windows() {
        let mut windows = ReplayWindows::default();
        let user = |text| Actor::User(Name::new(text).unwrap());
        for step in 0..2000_u64 {
            let by = user(["ann", "ben"][(step % 2) as usize]);
            let id = RequestId { client: step % 3, sequence: step };
            windows.remember(&by, id, done(step), Time(step), 9_000);
        }
        assert!(windows.expire(Time(1996).plus(WINDOW_RETENTION)));
        let fresh =
            windows.iter().fold(0_u64, |sum, (key, w)| sum.wrapping_add(window_hash(key, w)));
        assert_eq!(windows.hash(), fresh);
        assert!(!windows.is_empty());
    }
}
