//! Flow limits: how much of a replica one caller may have at once, and whose turn it is.
//!
//! Admission to the log has fair turns (`cellwright_control::admission`); this is the same for what
//! never comes to the log: streams that go on, requests under way, bodies being read, and work that
//! keeps a processor busy. Everything is counted by who asks, so whoever asks for too much is told
//! so, with the figure and the limit, and nobody else waits for it.
//!
//! Rejected: a rate per caller. A rate that is right for short reads is a thousand times too high
//! for queries of half a minute; what is under way at once is what costs memory and time.

use cellwright_api::error::{ApiError, Code};
use cellwright_cell::time::Span;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// When whoever was refused may ask again.
const RETRY_AFTER: Span = Span::seconds(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bound on something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// What is counted, for people.
    pub what: &'static str,
    /// The operator's settings, for whoever may change them.
    pub of_caller: (&'static str, usize),
    pub of_all: (&'static str, usize),
}

impl Bound {
    /// Whether `more` may come to what `who` and all together have.
    fn admits(&self, who: &str, own: usize, all: usize, more: usize) -> Result<(), ApiError> {
        let Bound { what, of_caller, of_all } = *self;
        // As people say it: `user ann`.
        let who = who.replacen('/', " ", 1);
        let (has, (setting, most), whose) = match own.saturating_add(more) > of_caller.1 {
            true => (own, of_caller, who.as_str()),
            false if all.saturating_add(more) > of_all.1 => (all, of_all, "all callers together"),
            false => return Ok(()),
        };
        let message = format!("{whose}: {has} {what} at this replica, at most {most} ({setting})");
        Err(ApiError::new(Code::Overloaded, message)
            .with("has", has)
            .with("limit", most)
            .with("setting", setting)
            .with_retry_after(RETRY_AFTER))
    }
}

/// Who has how much of something. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Shares {
    bound: Bound,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by: BTreeMap<String, usize>,
}

/// What one caller has taken; given back when dropped.
pub struct Share {
    shares: Shares,
    who: String,
    amount: usize,
}

impl Shares {
    #[must_use]
    pub fn new(bound: Bound) -> Shares {
        Shares { bound, taken: Arc::default() }
    }

    /// Nothing yet, of which more can be taken.
    #[must_use]
    pub fn none(&self, who: &str) -> Share {
        Share { shares: self.clone(), who: who.to_owned(), amount: 0 }
    }

    /// One for `who`.
    ///
    /// # Errors
    /// When it, or everybody together, has too many.
    pub fn one(&self, who: &str) -> Result<Share, ApiError> {
        let mut share = self.none(who);
        share.grow(1)?;
        Ok(share)
    }
}

impl Share {
    /// Takes more.
    ///
    /// # Errors
    /// When the caller, or everybody together, would have too much.
    pub fn grow(&mut self, more: usize) -> Result<(), ApiError> {
        self.take(more, false)
    }

    /// Takes more; who has nothing gets it, however much it is. For answers, of which nobody knows
    /// beforehand how large they are: who reads one after another gets every one.
    ///
    /// # Errors
    /// As [`Share::grow`], of a caller that has something already.
    pub fn grow_from_nothing(&mut self, more: usize) -> Result<(), ApiError> {
        self.take(more, true)
    }

    fn take(&mut self, more: usize, is_first_free: bool) -> Result<(), ApiError> {
        let mut taken = lock(&self.shares.taken);
        let own = taken.by.get(&self.who).copied().unwrap_or(0);
        if own > 0 || !is_first_free {
            self.shares.bound.admits(&self.who, own, taken.all, more)?;
        }
        taken.all = taken.all.saturating_add(more);
        taken.by.insert(self.who.clone(), own.saturating_add(more));
        self.amount = self.amount.saturating_add(more);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = lock(&self.shares.taken);
        taken.all = taken.all.saturating_sub(self.amount);
        if let Some(own) = taken.by.get_mut(&self.who) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                taken.by.remove(&self.who);
            }
        }
    }
}

/// Places for work that takes long, given in turns: callers take turns, whatever each has waiting,
/// and nobody has more than a part of the places. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Turns(Arc<Queue>);

struct Queue {
    /// Places in all.
    places: usize,
    /// Of one caller.
    per_caller: usize,
    /// What one caller may have waiting.
    waiting: Bound,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    busy: usize,
    working: BTreeMap<String, usize>,
    waiting: BTreeMap<String, VecDeque<oneshot::Sender<Turn>>>,
    /// Those who wait, in the order of their turns. Invariant: whoever has a waiter above, once.
    order: VecDeque<String>,
}

impl Inside {
    /// How many of this caller wait, if one more may.
    fn admits(&self, bound: &Bound, who: &str) -> Result<usize, ApiError> {
        let own = self.waiting.get(who).map_or(0, VecDeque::len);
        let all = self.waiting.values().map(VecDeque::len).sum();
        bound.admits(who, own, all, 1).map(|()| own)
    }

    /// Drops waiters that nobody is behind any more.
    fn forget_gone(&mut self) {
        self.waiting.retain(|_, queue| {
            queue.retain(|waiter| !waiter.is_closed());
            !queue.is_empty()
        });
        let Inside { waiting, order, .. } = self;
        order.retain(|who| waiting.contains_key(who));
    }
}

/// A place at work; given on when dropped.
pub struct Turn {
    queue: Arc<Queue>,
    /// Absent once nobody is left to take it.
    who: Option<String>,
}

impl Turns {
    /// `places` at once, of which one caller has at most `per_caller`; `waiting` bounds what each
    /// has in line.
    #[must_use]
    pub fn new(places: usize, per_caller: usize, waiting: Bound) -> Turns {
        let (places, per_caller) = (places.max(1), per_caller.clamp(1, places.max(1)));
        Turns(Arc::new(Queue { places, per_caller, waiting, inside: Mutex::default() }))
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// When the caller has too much waiting already.
    pub async fn take(&self, who: &str) -> Result<Turn, ApiError> {
        let given = {
            let mut inside = lock(&self.0.inside);
            let own = match inside.admits(&self.0.waiting, who) {
                Ok(own) => own,
                // Those who went away make room.
                Err(_) => {
                    inside.forget_gone();
                    inside.admits(&self.0.waiting, who)?
                }
            };
            let (give, given) = oneshot::channel();
            inside.waiting.entry(who.to_owned()).or_default().push_back(give);
            if own == 0 {
                inside.order.push_back(who.to_owned());
            }
            given
        };
        self.0.serve();
        let lost = |_| ApiError::new(Code::ShuttingDown, "this replica stops");
        given.await.map_err(lost)
    }

    /// Whether anybody is at work or waits.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        lock(&self.0.inside).busy > 0
    }
}

impl Queue {
    /// Gives free places to those whose turn it is.
    fn serve(self: &Arc<Self>) {
        loop {
            let Some((who, waiter)) = self.next() else { return };
            let turn = Turn { queue: self.clone(), who: Some(who) };
            if let Err(mut unwanted) = waiter.send(turn)
                && let Some(who) = unwanted.who.take()
            {
                self.give_back(&who);
            }
        }
    }

    /// Whose turn it is, with the place taken.
    fn next(&self) -> Option<(String, oneshot::Sender<Turn>)> {
        let mut inside = lock(&self.inside);
        if inside.busy >= self.places {
            return None;
        }
        let working = |who: &String| inside.working.get(who).copied().unwrap_or(0);
        let at = inside.order.iter().position(|who| working(who) < self.per_caller)?;
        let who = inside.order.remove(at)?;
        let queue = inside.waiting.get_mut(&who)?;
        let waiter = queue.pop_front();
        if queue.is_empty() {
            inside.waiting.remove(&who);
        } else {
            inside.order.push_back(who.clone());
        }
        let waiter = waiter?;
        inside.busy += 1;
        *inside.working.entry(who.clone()).or_default() += 1;
        Some((who, waiter))
    }

    fn give_back(&self, who: &str) {
        let mut inside = lock(&self.inside);
        inside.busy = inside.busy.saturating_sub(1);
        if let Some(count) = inside.working.get_mut(who) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                inside.working.remove(who);
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(who) = self.who.take() {
            self.queue.give_back(&who);
            self.queue.serve();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn bound(own: usize, all: usize) -> Bound {
        Bound { what: "things", of_caller: ("per_user", own), of_all: ("in_all", all) }
    }

    #[test]
    fn one_caller_has_a_share_and_all_together_have_a_bound() {
        let shares = Shares::new(bound(2, 5));
        let ann: Vec<Share> = (0..2).map(|_| shares.one("ann").ok().unwrap()).collect();
        let refused = shares.one("ann").err().unwrap();
        assert_eq!(refused.code, Code::Overloaded);
        let want = "ann: 2 things at this replica, at most 2 (per_user)";
        assert_eq!(refused.message, want);
        assert_eq!((&refused.details["has"], &refused.details["limit"]), (&2.into(), &2.into()));
        assert!(refused.retry_after().is_some());
        let others: Vec<_> = (0..9).map(|n| shares.one(&format!("u{n}"))).collect();
        assert_eq!(others.iter().flatten().count(), 3);
        drop(ann);
        let mut late = shares.none("late");
        assert!(late.grow(2).is_ok() && late.grow(1).is_err());
        let mut large = shares.none("large");
        assert!(large.grow(9).is_err() && large.grow_from_nothing(9).is_ok());
        assert!(large.grow_from_nothing(1).is_err());
        drop(large);
        drop((late, others));
        let taken = lock(&shares.taken);
        assert_eq!((taken.all, taken.by.len()), (0, 0));
    }

    #[test]
    fn turns_go_round_whatever_each_has_waiting() {
        let turns = Turns::new(2, 1, bound(100, 1000));
        let ask = |who: &'static str| {
            let turns = turns.clone();
            Box::pin(async move { turns.take(who).await })
        };
        let mut flood: Vec<_> = (0..10).map(|_| ask("ann")).collect();
        let first: Vec<_> = flood.iter_mut().filter_map(|f| f.now_or_never()).collect();
        assert_eq!(first.len(), 1, "half of the places and no more");
        let mut ben = ask("ben");
        let ben = ben.as_mut().now_or_never().expect("a place is left").ok().unwrap();
        let mut eve = ask("eve");
        assert!(eve.as_mut().now_or_never().is_none());
        drop(ben);
        assert!(eve.as_mut().now_or_never().is_some(), "before nine of ann's");
    }

    /// One that was refused, and whose waiters had all left, is in nobody's way.
    #[test]
    fn those_who_left_take_neither_room_nor_a_turn() {
        let turns = Turns::new(1, 1, bound(2, 2));
        let ask = |who: &'static str| {
            let turns = turns.clone();
            Box::pin(async move { turns.take(who).await })
        };
        let held = ask("ann").as_mut().now_or_never().unwrap().ok().unwrap();
        let (mut ben, mut eve) = (ask("ben"), ask("eve"));
        assert!(ben.as_mut().now_or_never().is_none() && eve.as_mut().now_or_never().is_none());
        let refused = ask("kim").as_mut().now_or_never().unwrap().err().unwrap();
        assert_eq!(refused.code, Code::Overloaded);
        drop(ben);
        let mut kim = ask("kim");
        assert!(kim.as_mut().now_or_never().is_none(), "there is room for one");
        assert!(ask("ben").as_mut().now_or_never().unwrap().is_err());
        drop(held);
        assert!(eve.as_mut().now_or_never().is_some_and(|turn| turn.is_ok()));
        assert!(kim.as_mut().now_or_never().is_some_and(|turn| turn.is_ok()));
        assert!(!turns.is_busy());
    }

    #[test]
    fn who_went_away_keeps_no_place_and_who_waits_too_much_is_told() {
        let turns = Turns::new(1, 1, bound(2, 1000));
        let ask = |who: &'static str| {
            let turns = turns.clone();
            Box::pin(async move { turns.take(who).await })
        };
        let held = ask("ann").as_mut().now_or_never().unwrap().ok().unwrap();
        let mut waiting: Vec<_> = (0..2).map(|_| ask("ann")).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        let refused = ask("ann").as_mut().now_or_never().unwrap().err().unwrap();
        assert_eq!(refused.code, Code::Overloaded);
        drop(waiting.remove(0));
        let mut again = ask("ann");
        assert!(again.as_mut().now_or_never().is_none(), "the first left its place in line");
        let mut ben = ask("ben");
        assert!(ben.as_mut().now_or_never().is_none());
        drop(held);
        let second = waiting[0].as_mut().now_or_never().expect("its turn").ok().unwrap();
        drop((second, again));
        let ben = ben.as_mut().now_or_never().expect("the other's turn").ok().unwrap();
        assert!(turns.is_busy());
        drop((waiting, ben));
        assert!(!turns.is_busy());
        assert!(lock(&turns.0.inside).waiting.is_empty());
    }
}
