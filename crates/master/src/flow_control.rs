//! Flow control: how much of a replica one caller may use at once, and fair queueing between
//! callers.
//!
//! Admission to the log has a fair queue (`cellwright_control::admission`); this is the same for
//! work that never reaches the log: open streams, requests in flight, bodies being read, and work
//! that keeps a processor busy. Everything is counted by caller, so a caller that requests too much
//! gets an error with the figure and the limit, and no other caller waits for it.
//!
//! Rejected: a rate per caller. A rate that is right for short reads is a thousand times too high
//! for queries of half a minute; what is in flight at once is what costs memory and time.

use cellwright_api::error::{ApiError, Code};
use cellwright_cell::time::Span;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// When a rejected caller may try again.
const RETRY_AFTER: Span = Span::seconds(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A limit on something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerLimit {
    /// What is counted, for people.
    pub counted: &'static str,
    /// The operator's settings, named in errors for those who may change them.
    pub per_caller_setting: (&'static str, usize),
    pub total_setting: (&'static str, usize),
}

impl CallerLimit {
    /// Checks whether `more` may be added to what `caller` and all together have.
    fn check(&self, caller: &str, own: usize, all: usize, more: usize) -> Result<(), ApiError> {
        let CallerLimit { counted: what, per_caller_setting: of_caller, total_setting: of_all } =
            *self;
        // In the form for people: `user ann`.
        let caller = caller.replacen('/', " ", 1);
        let (has, (setting, most), whose) = if own.saturating_add(more) > of_caller.1 {
            (own, of_caller, caller.as_str())
        } else if all.saturating_add(more) > of_all.1 {
            (all, of_all, "all callers together")
        } else {
            return Ok(());
        };
        let message = format!("{whose}: {has} {what} at this replica, at most {most} ({setting})");
        Err(ApiError::new(Code::Overloaded, message)
            .with("has", has)
            .with("limit", most)
            .with("setting", setting)
            .with_retry_after(RETRY_AFTER))
    }
}

/// The permits that each caller holds. Cheap to clone; clones share the pool.
#[derive(Clone)]
pub struct PermitPool {
    limit: CallerLimit,
    counts: Arc<Mutex<PermitCounts>>,
}

#[derive(Default)]
struct PermitCounts {
    total: usize,
    by_caller: BTreeMap<String, usize>,
}

/// Permits that one caller holds; released when dropped.
pub struct Permit {
    pool: PermitPool,
    caller: String,
    amount: usize,
}

impl PermitPool {
    #[must_use]
    pub fn new(limit: CallerLimit) -> PermitPool {
        PermitPool { limit, counts: Arc::default() }
    }

    /// An empty permit, which can be extended.
    #[must_use]
    pub fn empty(&self, caller: &str) -> Permit {
        Permit { pool: self.clone(), caller: caller.to_owned(), amount: 0 }
    }

    /// One permit for `caller`.
    ///
    /// # Errors
    /// When the caller, or all callers together, have too many.
    pub fn acquire_one(&self, caller: &str) -> Result<Permit, ApiError> {
        let mut share = self.empty(caller);
        share.acquire_more(1)?;
        Ok(share)
    }
}

impl Permit {
    /// Acquires more.
    ///
    /// # Errors
    /// When the caller, or all callers together, would have too many.
    pub fn acquire_more(&mut self, more: usize) -> Result<(), ApiError> {
        self.acquire_amount(more, false)
    }

    /// Acquires more; a caller that holds nothing gets it, however much it is. For answers whose
    /// size is not known beforehand: a caller that reads one after another gets every one.
    ///
    /// # Errors
    /// As [`Permit::acquire_more`], for a caller that holds something already.
    pub fn acquire_any_if_empty(&mut self, more: usize) -> Result<(), ApiError> {
        self.acquire_amount(more, true)
    }

    fn acquire_amount(&mut self, more: usize, allow_if_empty: bool) -> Result<(), ApiError> {
        let mut counts = lock(&self.pool.counts);
        let own = counts.by_caller.get(&self.caller).copied().unwrap_or(0);
        if own > 0 || !allow_if_empty {
            self.pool.limit.check(&self.caller, own, counts.total, more)?;
        }
        counts.total = counts.total.saturating_add(more);
        counts.by_caller.insert(self.caller.clone(), own.saturating_add(more));
        self.amount = self.amount.saturating_add(more);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = lock(&self.pool.counts);
        counts.total = counts.total.saturating_sub(self.amount);
        if let Some(own) = counts.by_caller.get_mut(&self.caller) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                counts.by_caller.remove(&self.caller);
            }
        }
    }
}

/// A fair queue for long work with a limited number of slots: callers take turns, however much each
/// has waiting, and no caller has more than a part of the slots. Cheap to clone; clones share the
/// queue.
#[derive(Clone)]
pub struct FairQueue(Arc<QueueInner>);

struct QueueInner {
    /// Slots in all.
    slots: usize,
    /// Slots of one caller.
    per_caller: usize,
    /// How many requests one caller may have waiting.
    waiting_limit: CallerLimit,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    running: usize,
    running_by_caller: BTreeMap<String, usize>,
    waiting: BTreeMap<String, VecDeque<oneshot::Sender<FairPermit>>>,
    /// The callers that wait, in the order of their turns. Invariant: contains each caller that has
    /// a waiter above exactly once.
    caller_order: VecDeque<String>,
}

impl QueueState {
    /// How many requests of this caller wait, if one more may.
    fn check_waiting(&self, bound: &CallerLimit, caller: &str) -> Result<usize, ApiError> {
        let own = self.waiting.get(caller).map_or(0, VecDeque::len);
        let all = self.waiting.values().map(VecDeque::len).sum();
        bound.check(caller, own, all, 1).map(|()| own)
    }

    /// Removes waiters whose caller has left.
    fn drop_cancelled(&mut self) {
        self.waiting.retain(|_, queue| {
            queue.retain(|waiter| !waiter.is_closed());
            !queue.is_empty()
        });
        let QueueState { waiting, caller_order: order, .. } = self;
        order.retain(|caller| waiting.contains_key(caller));
    }
}

/// A slot; passed on to the next caller when dropped.
pub struct FairPermit {
    queue: Arc<QueueInner>,
    /// `None` once there is no caller left to take it.
    caller: Option<String>,
}

impl FairQueue {
    /// `slots` at once, of which one caller has at most `per_caller`; `waiting` limits how many
    /// requests each caller has in the queue.
    #[must_use]
    pub fn new(slots: usize, per_caller: usize, waiting: CallerLimit) -> FairQueue {
        let (slots, per_caller) = (slots.max(1), per_caller.clamp(1, slots.max(1)));
        FairQueue(Arc::new(QueueInner {
            slots,
            per_caller,
            waiting_limit: waiting,
            state: Mutex::default(),
        }))
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// When the caller has too many requests waiting already.
    pub async fn acquire(&self, caller: &str) -> Result<FairPermit, ApiError> {
        let given = {
            let mut inside = lock(&self.0.state);
            let own = match inside.check_waiting(&self.0.waiting_limit, caller) {
                Ok(own) => own,
                // Waiters that have left made room.
                Err(_) => {
                    inside.drop_cancelled();
                    inside.check_waiting(&self.0.waiting_limit, caller)?
                }
            };
            let (give, given) = oneshot::channel();
            inside.waiting.entry(caller.to_owned()).or_default().push_back(give);
            if own == 0 {
                inside.caller_order.push_back(caller.to_owned());
            }
            given
        };
        self.0.dispatch();
        let lost = |_| ApiError::new(Code::ShuttingDown, "this replica stops");
        given.await.map_err(lost)
    }

    /// Whether a slot is in use or a caller waits.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        lock(&self.0.state).running > 0
    }
}

impl QueueInner {
    /// Gives free slots to the callers whose turn it is.
    fn dispatch(self: &Arc<Self>) {
        loop {
            let Some((caller, waiter)) = self.next_caller() else { return };
            let turn = FairPermit { queue: self.clone(), caller: Some(caller) };
            if let Err(mut unwanted) = waiter.send(turn)
                && let Some(caller) = unwanted.caller.take()
            {
                self.release(&caller);
            }
        }
    }

    /// The next caller, with the slot taken.
    fn next_caller(&self) -> Option<(String, oneshot::Sender<FairPermit>)> {
        let mut inside = lock(&self.state);
        if inside.running >= self.slots {
            return None;
        }
        let working = |caller: &String| inside.running_by_caller.get(caller).copied().unwrap_or(0);
        let at = inside.caller_order.iter().position(|caller| working(caller) < self.per_caller)?;
        let caller = inside.caller_order.remove(at)?;
        let queue = inside.waiting.get_mut(&caller)?;
        let waiter = queue.pop_front();
        if queue.is_empty() {
            inside.waiting.remove(&caller);
        } else {
            inside.caller_order.push_back(caller.clone());
        }
        let waiter = waiter?;
        inside.running += 1;
        *inside.running_by_caller.entry(caller.clone()).or_default() += 1;
        Some((caller, waiter))
    }

    fn release(&self, caller: &str) {
        let mut inside = lock(&self.state);
        inside.running = inside.running.saturating_sub(1);
        if let Some(count) = inside.running_by_caller.get_mut(caller) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                inside.running_by_caller.remove(caller);
            }
        }
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        if let Some(caller) = self.caller.take() {
            self.queue.release(&caller);
            self.queue.dispatch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn bound(own: usize, all: usize) -> CallerLimit {
        CallerLimit {
            counted: "things",
            per_caller_setting: ("per_user", own),
            total_setting: ("in_all", all),
        }
    }

    #[test]
    fn one_caller_has_a_share_and_all_together_have_a_bound() {
        let pool = PermitPool::new(bound(2, 5));
        let ann: Vec<Permit> = (0..2).map(|_| pool.acquire_one("ann").ok().unwrap()).collect();
        let refused = pool.acquire_one("ann").err().unwrap();
        assert_eq!(refused.code, Code::Overloaded);
        let want = "ann: 2 things at this replica, at most 2 (per_user)";
        assert_eq!(refused.message, want);
        assert_eq!((&refused.details["has"], &refused.details["limit"]), (&2.into(), &2.into()));
        assert!(refused.retry_after().is_some());
        let others: Vec<_> = (0..9).map(|n| pool.acquire_one(&format!("u{n}"))).collect();
        assert_eq!(others.iter().flatten().count(), 3);
        drop(ann);
        let mut late = pool.empty("late");
        assert!(late.acquire_more(2).is_ok() && late.acquire_more(1).is_err());
        let mut large = pool.empty("large");
        assert!(large.acquire_more(9).is_err() && large.acquire_any_if_empty(9).is_ok());
        assert!(large.acquire_any_if_empty(1).is_err());
        drop(large);
        drop((late, others));
        let counts = lock(&pool.counts);
        assert_eq!((counts.total, counts.by_caller.len()), (0, 0));
    }

    #[test]
    fn turns_go_round_whatever_each_has_waiting() {
        let turns = FairQueue::new(2, 1, bound(100, 1000));
        let take_turn = |caller: &'static str| {
            let turns = turns.clone();
            Box::pin(async move { turns.acquire(caller).await })
        };
        let mut flood: Vec<_> = (0..10).map(|_| take_turn("ann")).collect();
        let first: Vec<_> = flood.iter_mut().filter_map(|f| f.now_or_never()).collect();
        assert_eq!(first.len(), 1, "half of the places and no more");
        let mut ben = take_turn("ben");
        let ben = ben.as_mut().now_or_never().expect("a place is left").ok().unwrap();
        let mut eve = take_turn("eve");
        assert!(eve.as_mut().now_or_never().is_none());
        drop(ben);
        assert!(eve.as_mut().now_or_never().is_some(), "before nine of ann's");
    }

    /// A caller that was rejected, and whose waiters have all left, holds up no other.
    #[test]
    fn those_who_left_take_neither_room_nor_a_turn() {
        let turns = FairQueue::new(1, 1, bound(2, 2));
        let take_turn = |caller: &'static str| {
            let turns = turns.clone();
            Box::pin(async move { turns.acquire(caller).await })
        };
        let held = take_turn("ann").as_mut().now_or_never().unwrap().ok().unwrap();
        let (mut ben, mut eve) = (take_turn("ben"), take_turn("eve"));
        assert!(ben.as_mut().now_or_never().is_none() && eve.as_mut().now_or_never().is_none());
        let refused = take_turn("kim").as_mut().now_or_never().unwrap().err().unwrap();
        assert_eq!(refused.code, Code::Overloaded);
        drop(ben);
        let mut kim = take_turn("kim");
        assert!(kim.as_mut().now_or_never().is_none(), "there is room for one");
        assert!(take_turn("ben").as_mut().now_or_never().unwrap().is_err());
        drop(held);
        assert!(eve.as_mut().now_or_never().is_some_and(|turn| turn.is_ok()));
        assert!(kim.as_mut().now_or_never().is_some_and(|turn| turn.is_ok()));
        assert!(!turns.is_busy());
    }

    #[test]
    fn who_went_away_keeps_no_place_and_who_waits_too_much_is_told() {
        let turns = FairQueue::new(1, 1, bound(2, 1000));
        let take_turn = |caller: &'static str| {
            let turns = turns.clone();
            Box::pin(async move { turns.acquire(caller).await })
        };
        let held = take_turn("ann").as_mut().now_or_never().unwrap().ok().unwrap();
        let mut waiting: Vec<_> = (0..2).map(|_| take_turn("ann")).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        let refused = take_turn("ann").as_mut().now_or_never().unwrap().err().unwrap();
        assert_eq!(refused.code, Code::Overloaded);
        drop(waiting.remove(0));
        let mut again = take_turn("ann");
        assert!(again.as_mut().now_or_never().is_none(), "the first left its place in line");
        let mut ben = take_turn("ben");
        assert!(ben.as_mut().now_or_never().is_none());
        drop(held);
        let second = waiting[0].as_mut().now_or_never().expect("its turn").ok().unwrap();
        drop((second, again));
        let ben = ben.as_mut().now_or_never().expect("the other's turn").ok().unwrap();
        assert!(turns.is_busy());
        drop((waiting, ben));
        assert!(!turns.is_busy());
        assert!(lock(&turns.0.state).waiting.is_empty());
    }
}
