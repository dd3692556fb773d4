//! The admission queue in front of the log: fair queueing of requests. Requests queue by origin;
//! origins share priority levels (the master itself, agents, schedulers, users) and each level has
//! its reserved part of every batch, so that a crowd of users delays neither agents nor plans, and
//! a crowd of agents delays no controller. Inside a level origins take turns by weight of their
//! requests (deficit round robin): an origin that sends ten times as much, or ten times as large,
//! waits ten times as long, and no other origin notices.
//!
//! Queues are bounded by what is still free: an origin may have as much waiting as its level has
//! room left. A single flooder fills half of its level and no more, a second one gets a third, and
//! an origin with nothing waiting is always admitted. Only an origin over its bound is rejected.
//!
//! Rejected: a fixed bound per origin. Either their sum is beyond what the master can hold, or a
//! single user is held to the share of a crowd that is not there.

use crate::batching::RequestAmount;
use crate::input::Origin;
use cellwright_cell::time::Span;
use std::collections::{BTreeMap, VecDeque};

/// Every request weighs this much beside its bytes: applying a small one has a cost too.
const ITEM_WEIGHT: usize = 256;
/// What an origin may send in one turn, in weight.
const QUANTUM: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// What may wait in each level.
    pub per_level: RequestAmount,
    /// How long a rejected origin should wait.
    pub retry_after: Span,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        let level = RequestAmount { items: 16_384, bytes: 64 << 20 };
        AdmissionConfig { per_level: level, retry_after: Span::seconds(1) }
    }
}

/// The origin has more waiting than its level has room left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    pub retry_after: Span,
}

/// Turns of the levels: a quarter of a full batch each. What a level leaves over goes to the
/// others.
const LEVEL_TURNS: [usize; 4] = [1, 1, 1, 1];

fn level_of(origin: &Origin) -> usize {
    match origin {
        Origin::System => 0,
        Origin::Agent(_) => 1,
        Origin::Scheduler(_) => 2,
        Origin::User(_) => 3,
    }
}

#[derive(Debug)]
pub struct AdmissionQueue<T> {
    settings: AdmissionConfig,
    levels: [PriorityLevel<T>; LEVEL_TURNS.len()],
    /// The level whose turn it is, and the weight it may still send in it.
    turn: usize,
    credit: usize,
}

impl<T> AdmissionQueue<T> {
    #[must_use]
    pub fn new(settings: AdmissionConfig) -> AdmissionQueue<T> {
        let levels = std::array::from_fn(|_| PriorityLevel::default());
        AdmissionQueue { settings, levels, turn: 0, credit: LEVEL_TURNS[0] * QUANTUM }
    }

    /// Queues `item` of `bytes` bytes.
    ///
    /// # Errors
    /// When the origin has too much waiting already. An origin with nothing waiting in an empty
    /// level is never rejected: sizes of single requests are bounded before they come here.
    pub fn push(&mut self, origin: &Origin, bytes: usize, item: T) -> Result<(), Overload> {
        let level = &mut self.levels[level_of(origin)];
        if !level.has_room(origin, bytes, self.settings.per_level) {
            return Err(Overload { retry_after: self.settings.retry_after });
        }
        level.push(origin, bytes, item);
        Ok(())
    }

    /// Pops the items of the next entry. A first item that alone exceeds `room` is included all the
    /// same: otherwise it would never be.
    pub fn pop_batch(&mut self, room: RequestAmount) -> Vec<T> {
        let mut batch = Vec::new();
        let mut left = room.bytes;
        while batch.len() < room.items {
            let Some((level, bytes)) = self.next_item() else { break };
            if bytes > left && !batch.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);
            self.credit = self.credit.saturating_sub(bytes + ITEM_WEIGHT);
            batch.extend(self.levels[level].take());
        }
        batch
    }

    /// What waits in all levels.
    #[must_use]
    pub fn waiting(&self) -> RequestAmount {
        let items = self.levels.iter().map(|level| level.items).sum();
        let bytes = self.levels.iter().map(|level| level.bytes).sum();
        RequestAmount { items, bytes }
    }

    /// All waiting items, for a leader that no longer leads.
    pub fn drain(&mut self) -> Vec<T> {
        self.pop_batch(RequestAmount { items: usize::MAX, bytes: usize::MAX })
    }

    /// The level to serve and the size of its next item. Repeated calls change nothing.
    fn next_item(&mut self) -> Option<(usize, usize)> {
        // Each level is checked once, and the first once more with its turn renewed.
        for _ in 0..=LEVEL_TURNS.len() {
            let head = self.levels[self.turn].next_size();
            // The last item of a turn may exceed it, so that large items need no saving up.
            if let Some(bytes) = head.filter(|_| self.credit > 0) {
                return Some((self.turn, bytes));
            }
            self.turn = (self.turn + 1) % LEVEL_TURNS.len();
            self.credit = LEVEL_TURNS[self.turn] * QUANTUM;
        }
        None
    }
}

#[derive(Debug)]
struct PriorityLevel<T> {
    /// Origins with something waiting.
    queues: BTreeMap<Origin, Queue<T>>,
    /// The same origins, in the order of their turns.
    turns: VecDeque<Origin>,
    items: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<(usize, T)>,
    bytes: usize,
    /// Weight the origin may still send in its turn.
    credit: usize,
}

impl<T> Default for PriorityLevel<T> {
    fn default() -> Self {
        PriorityLevel { queues: BTreeMap::new(), turns: VecDeque::new(), items: 0, bytes: 0 }
    }
}

impl<T> PriorityLevel<T> {
    fn has_room(&self, origin: &Origin, bytes: usize, max: RequestAmount) -> bool {
        if self.items == 0 {
            return true;
        }
        let free_items = max.items.saturating_sub(self.items);
        let free_bytes = max.bytes.saturating_sub(self.bytes);
        let (items, queued) =
            self.queues.get(origin).map_or((0, 0), |queue| (queue.items.len(), queue.bytes));
        items < free_items && queued.saturating_add(bytes) <= free_bytes
    }

    fn push(&mut self, origin: &Origin, bytes: usize, item: T) {
        let queue = self.queues.entry(origin.clone()).or_insert_with(|| {
            self.turns.push_back(origin.clone());
            Queue { items: VecDeque::new(), bytes: 0, credit: 0 }
        });
        queue.items.push_back((bytes, item));
        queue.bytes += bytes;
        self.items += 1;
        self.bytes += bytes;
    }

    /// Size of the next item, its origin moved to the front. Repeated calls change nothing.
    fn next_size(&mut self) -> Option<usize> {
        // An item of n quanta waits n turns, so the loop ends: every turn adds a quantum.
        loop {
            let origin = self.turns.front()?;
            let queue = self.queues.get_mut(origin)?;
            let bytes = queue.items.front()?.0;
            if queue.credit >= bytes + ITEM_WEIGHT {
                return Some(bytes);
            }
            queue.credit += QUANTUM;
            self.turns.rotate_left(1);
        }
    }

    /// Takes the item that [`PriorityLevel::next_size`] found.
    fn take(&mut self) -> Option<T> {
        let origin = self.turns.front()?;
        let queue = self.queues.get_mut(origin)?;
        let (bytes, item) = queue.items.pop_front()?;
        queue.bytes -= bytes;
        queue.credit = queue.credit.saturating_sub(bytes + ITEM_WEIGHT);
        self.items -= 1;
        self.bytes -= bytes;
        if queue.items.is_empty() {
            // Credit is kept while items wait, and not beyond.
            self.queues.remove(origin);
            self.turns.pop_front();
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Who {
        System,
        Agent(char),
        Plans,
        User(char),
    }
    use Who::{Plans, System};
    const A: Who = Who::User('a');
    const B: Who = Who::User('b');
    const C: Who = Who::User('c');

    fn admission() -> AdmissionQueue<(Who, u32)> {
        let level = RequestAmount { items: 1_000, bytes: 1_000_000 };
        AdmissionQueue::new(AdmissionConfig { per_level: level, retry_after: Span(500) })
    }

    fn push(
        admission: &mut AdmissionQueue<(Who, u32)>,
        sender: Who,
        bytes: usize,
        number: u32,
    ) -> bool {
        let origin = match sender {
            System => Origin::System,
            Who::Agent(name) => Origin::Agent(name.into()),
            Plans => Origin::Scheduler("s".into()),
            Who::User(name) => Origin::User(name.into()),
        };
        let pushed = admission.push(&origin, bytes, (sender, number));
        assert!(pushed.is_ok() || pushed == Err(Overload { retry_after: Span(500) }));
        pushed.is_ok()
    }

    fn pop(
        admission: &mut AdmissionQueue<(Who, u32)>,
        items: usize,
        bytes: usize,
    ) -> Vec<(Who, u32)> {
        admission.pop_batch(RequestAmount { items, bytes })
    }

    /// Pushes until rejected; returns how many were accepted.
    fn flood(admission: &mut AdmissionQueue<(Who, u32)>, origin: Who, bytes: usize) -> u32 {
        let rejected = (0..10_000).find(|number| !push(admission, origin, bytes, *number));
        rejected.expect("a flood is refused at last")
    }

    fn of(batch: &[(Who, u32)], origin: Who) -> Vec<u32> {
        batch.iter().filter(|(from, _)| *from == origin).map(|(_, number)| *number).collect()
    }

    #[test]
    fn a_flooder_is_refused_and_nobody_else() {
        let mut admission = admission();
        assert_eq!(flood(&mut admission, A, 10), 500, "half of the lane");
        assert_eq!(flood(&mut admission, B, 10), 250, "half of what is left");
        for other in [C, Who::User('d'), System, Plans, Who::Agent('a')] {
            assert!(push(&mut admission, other, 10, 0), "{other:?}");
        }
        assert!(!push(&mut admission, A, 10, 0));
        assert_eq!(admission.waiting().items, 755);
    }

    #[test]
    fn bytes_bound_a_queue_as_items_do() {
        let mut admission = admission();
        assert_eq!(flood(&mut admission, A, 100_000), 5);
        assert!(push(&mut admission, B, 400_000, 0));
        assert!(!push(&mut admission, C, 200_000, 0));
        assert!(push(&mut admission, C, 100, 0));
    }

    #[test]
    fn those_who_wait_take_turns_whatever_they_queued() {
        let mut admission = admission();
        flood(&mut admission, A, 100);
        assert!((0..20).all(|number| push(&mut admission, B, 100, number)));
        let batch = pop(&mut admission, 100, 100_000);
        assert_eq!(batch.len(), 100);
        assert_eq!(of(&batch, B), (0..20).collect::<Vec<_>>(), "all of b, in order");
    }

    #[test]
    fn large_requests_take_their_turn_by_weight() {
        let mut admission = admission();
        flood(&mut admission, A, 32_000);
        flood(&mut admission, B, 144);
        let batch = pop(&mut admission, 1_000, 200_000);
        let (large, small) = (of(&batch, A).len(), of(&batch, B).len());
        // A large one weighs as much as eighty small ones.
        assert!((3..=6).contains(&large), "{large} large, {small} small");
        assert!((60 * large..=100 * large).contains(&small), "{large} large, {small} small");
    }

    #[test]
    fn lanes_keep_their_part_of_a_batch() {
        let mut admission = admission();
        for origin in [A, B, C, System, Plans, Who::Agent('a'), Who::Agent('b')] {
            flood(&mut admission, origin, 1_000);
        }
        let batch = pop(&mut admission, 400, 1 << 20);
        let (system, plans) = (of(&batch, System).len(), of(&batch, Plans).len());
        assert!((80..=120).contains(&system), "{system} of the system");
        assert!((80..=120).contains(&plans), "{plans} of the scheduler");
    }

    #[test]
    fn one_agent_that_floods_takes_its_turn_like_the_others() {
        let mut admission = admission();
        flood(&mut admission, Who::Agent('f'), 1_000);
        for name in ('a'..='e').map(Who::Agent) {
            assert!(push(&mut admission, name, 1_000, 0), "{name:?}");
        }
        assert!(push(&mut admission, System, 1_000, 0));
        let batch = pop(&mut admission, 40, 1 << 20);
        for name in ('a'..='e').map(Who::Agent).chain([System]) {
            assert_eq!(of(&batch, name), [0], "{name:?}");
        }
    }

    #[test]
    fn what_is_too_large_for_a_batch_goes_alone() {
        let mut admission = admission();
        for (number, bytes) in [(0, 10), (1, 300_000), (2, 10)] {
            assert!(push(&mut admission, A, bytes, number));
        }
        let batches: [Vec<u32>; 4] =
            std::array::from_fn(|_| of(&pop(&mut admission, 100, 100_000), A));
        assert_eq!(batches, [vec![0], vec![1], vec![2], vec![]]);
        assert_eq!(admission.waiting(), RequestAmount { items: 0, bytes: 0 });
    }

    proptest! {
        /// Whatever comes and goes: no item is lost, duplicated or put out of order.
        #[test]
        fn every_item_comes_out_once_in_order(
            steps in prop::collection::vec((0..5usize, 1..50_000usize, 0..5u8), 1..300),
        ) {
            let mut admission = admission();
            let mut pushed: BTreeMap<Who, Vec<u32>> = BTreeMap::new();
            let mut popped: BTreeMap<Who, Vec<u32>> = BTreeMap::new();
            let mut take = |batch: Vec<(Who, u32)>| {
                batch.into_iter().for_each(|(who, n)| popped.entry(who).or_default().push(n));
            };
            for (number, (who, bytes, chance)) in (0u32..).zip(steps) {
                let who = [A, B, C, System, Plans][who];
                if push(&mut admission, who, bytes, number) {
                    pushed.entry(who).or_default().push(number);
                }
                if chance == 0 {
                    take(pop(&mut admission, 7, 60_000));
                }
            }
            take(admission.drain());
            prop_assert_eq!(admission.waiting().bytes, 0);
            prop_assert_eq!(pushed, popped);
        }

        /// Two origins that always have something waiting are served the same weight, whatever the
        /// sizes.
        #[test]
        fn shares_are_even(a in 1..20_000usize, b in 1..20_000usize) {
            let mut admission = admission();
            let (most_a, most_b) = (flood(&mut admission, A, a), flood(&mut admission, B, b));
            let (mut served_a, mut served_b) = (0, 0);
            while served_a < most_a && served_b < most_b {
                match pop(&mut admission, 1, 1)[..] {
                    [(A, _)] => served_a += 1,
                    [(B, _)] => served_b += 1,
                    ref other => prop_assert!(false, "one item at a time, not {:?}", other),
                }
                let weight = |served: u32, bytes| served as usize * (bytes + ITEM_WEIGHT);
                let difference = weight(served_a, a).abs_diff(weight(served_b, b));
                prop_assert!(difference <= 2 * (QUANTUM + 20_000 + ITEM_WEIGHT), "{}", difference);
            }
        }
    }
}
