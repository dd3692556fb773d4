//! Scheduler leases: one scheduler at a time plans each scheduler shard of jobs, others stand by.
//! The leader keeps the leases in its memory and counts them in elapsed time, which no clock change
//! moves.
//!
//! A lease saves work, it does not guard anything: two schedulers at once cost rejected plans and
//! nothing else, because `apply` rechecks every group. So a new leader, which knows of no lease,
//! grants to the first request and does not wait for leases of its predecessor to run out: waiting
//! would stop all scheduling for that long after every election. For the same reason leases are not
//! in the log.

use cellwright_cell::name::{InvalidName, Token};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Span;
use cellwright_messages::LeaseAnswer;
use std::collections::BTreeMap;
use std::fmt;

/// Scheduler shards held at once; beyond, a request for a shard without a holder is rejected.
pub const MAX_SCHEDULER_SHARDS: usize = 1024;

/// The label that names a job's scheduler shard.
const LABEL: &str = "scheduler";

/// A part of the jobs: those whose label `scheduler` has this value; the empty name means those
/// without that label.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchedulerShardName(Option<Token>);

impl SchedulerShardName {
    /// # Errors
    /// When `text` is neither empty nor a [`Token`].
    pub fn new(text: &str) -> Result<SchedulerShardName, InvalidName> {
        let bad = |bad: InvalidName| InvalidName {
            what: "scheduler shard".into(),
            allowed: format!("empty, or {}", bad.allowed),
            ..bad
        };
        match text {
            "" => Ok(SchedulerShardName(None)),
            text => Ok(SchedulerShardName(Some(Token::new(text).map_err(bad)?))),
        }
    }

    /// The scheduler shard in a job's label. Labels are freer than shard names: a job with a label
    /// that is no shard's name stays pending for ever, because no scheduler can serve it.
    ///
    /// # Errors
    /// When the job's label is not a valid shard name.
    pub fn of(spec: &JobSpec) -> Result<SchedulerShardName, InvalidName> {
        let label = spec.labels.iter().find(|(key, _)| key.as_str() == LABEL);
        SchedulerShardName::new(label.map_or("", |(_, value)| value.as_str()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or("", Token::as_str)
    }
}

impl fmt::Display for SchedulerShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "scheduler shard {shard} is one too many: schedulers hold {MAX_SCHEDULER_SHARDS}, the most \
     allowed"
)]
pub struct TooManySchedulerShards {
    pub shard: SchedulerShardName,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lease {
    holder: String,
    until: Span,
}

/// The holders of all scheduler shards. A new leader starts with none.
#[derive(Clone, Debug)]
pub struct Leases {
    length: Span,
    by_shard: BTreeMap<SchedulerShardName, Lease>,
}

impl Leases {
    /// Holders should renew at a third of `length`, so that one lost message costs nothing.
    #[must_use]
    pub fn new(length: Span) -> Leases {
        Leases { length, by_shard: BTreeMap::new() }
    }

    /// `scheduler` requests `scheduler_shard`, for the first time or again. Granted unless another
    /// scheduler's lease still runs; then the answer has its holder, and how long it lasts at most.
    ///
    /// # Errors
    /// When too many other shards are held.
    pub fn request(
        &mut self,
        scheduler: &str,
        scheduler_shard: &SchedulerShardName,
        at: Span,
    ) -> Result<LeaseAnswer, TooManySchedulerShards> {
        let running = self.by_shard.get(scheduler_shard).filter(|lease| at < lease.until);
        if let Some(other) = running.filter(|lease| lease.holder != scheduler) {
            let length = Span(other.until.0 - at.0);
            return Ok(LeaseAnswer { granted: false, holder: other.holder.clone(), length });
        }
        if !self.has_room_for(scheduler_shard, at) {
            return Err(TooManySchedulerShards { shard: scheduler_shard.clone() });
        }
        let holder = scheduler.to_owned();
        let until = Span(at.0.saturating_add(self.length.0));
        self.by_shard.insert(scheduler_shard.clone(), Lease { holder: holder.clone(), until });
        Ok(LeaseAnswer { granted: true, holder, length: self.length })
    }

    fn has_room_for(&mut self, scheduler_shard: &SchedulerShardName, at: Span) -> bool {
        if self.by_shard.len() >= MAX_SCHEDULER_SHARDS {
            self.by_shard.retain(|_, lease| at < lease.until);
        }
        self.by_shard.len() < MAX_SCHEDULER_SHARDS || self.by_shard.contains_key(scheduler_shard)
    }

    /// The holder of this scheduler shard at `at`.
    #[must_use]
    pub fn holder(&self, scheduler_shard: &SchedulerShardName, at: Span) -> Option<&str> {
        let lease = self.by_shard.get(scheduler_shard).filter(|lease| at < lease.until);
        lease.map(|lease| lease.holder.as_str())
    }

    /// Scheduler shards with a holder at `at`, for the status page.
    pub fn holders(&self, at: Span) -> impl Iterator<Item = (&SchedulerShardName, &str)> {
        let running = self.by_shard.iter().filter(move |(_, lease)| at < lease.until);
        running.map(|(scheduler_shard, lease)| (scheduler_shard, lease.holder.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTH: Span = Span(3_000);

    fn shard(text: &str) -> SchedulerShardName {
        SchedulerShardName::new(text).unwrap()
    }

    /// The requests, and the holder of the default shard after each.
    fn check(requests: &[(&str, u64, &str)]) {
        let mut leases = Leases::new(LENGTH);
        for (scheduler, at, holder) in requests {
            let answer = leases.request(scheduler, &shard(""), Span(*at)).unwrap();
            assert_eq!(answer.holder, *holder, "at {at}");
            assert_eq!(answer.granted, scheduler == holder, "at {at}");
        }
    }

    #[test]
    fn the_first_holds_while_it_renews_and_a_standby_takes_over() {
        check(&[("a", 0, "a"), ("b", 1, "a"), ("a", 2_000, "a"), ("b", 4_999, "a")]);
        check(&[("a", 0, "a"), ("b", 2_999, "a"), ("b", 3_000, "b"), ("a", 3_001, "b")]);
    }

    #[test]
    fn a_refused_one_learns_how_long_to_wait_at_most() {
        let mut leases = Leases::new(LENGTH);
        leases.request("a", &shard(""), Span(10)).unwrap();
        let answer = leases.request("b", &shard(""), Span(1_010)).unwrap();
        assert_eq!(answer.length, Span(2_000));
    }

    #[test]
    fn a_shard_has_a_holder_while_its_lease_runs() {
        let mut leases = Leases::new(LENGTH);
        leases.request("b", &shard(""), Span(2)).unwrap();
        assert_eq!(leases.holder(&shard(""), Span(3)), Some("b"));
        assert_eq!(leases.holder(&shard(""), Span(3_002)), None);
        assert_eq!(leases.holders(Span(3)).collect::<Vec<_>>(), [(&shard(""), "b")]);
        assert_eq!(leases.holders(Span(3_002)).count(), 0);
    }

    #[test]
    fn shards_are_apart_and_bounded() {
        let mut leases = Leases::new(LENGTH);
        for number in 0..MAX_SCHEDULER_SHARDS {
            let (holder, scheduler_shard) =
                (format!("s{number}"), shard(&format!("shard{number}")));
            assert!(leases.request(&holder, &scheduler_shard, Span(0)).unwrap().granted);
        }
        let more = leases.request("a", &shard("more"), Span(1)).unwrap_err();
        assert!(more.to_string().starts_with("scheduler shard more is one too many"), "{more}");
        assert!(leases.request("s7", &shard("shard7"), Span(1)).unwrap().granted, "it may renew");
        assert!(leases.request("a", &shard("more"), LENGTH).unwrap().granted, "others ran out");
        let bad = SchedulerShardName::new("two words").unwrap_err();
        assert!(
            bad.to_string().starts_with("scheduler shard \"two words\" is not valid: empty, or")
        );
    }

    proptest! {
        /// Whatever is requested when, a scheduler shard never has two holders whose leases
        /// overlap.
        #[test]
        fn never_two_at_once(requests in prop::collection::vec((0..4u8, 0..2_000u64), 1..200)) {
            let mut leases = Leases::new(LENGTH);
            let mut at = 0;
            let mut granted: Option<(u8, u64)> = None;
            for (scheduler, later) in requests {
                at += later;
                let answer = leases.request(&scheduler.to_string(), &shard("x"), Span(at)).unwrap();
                if answer.granted {
                    if let Some((before, until)) = granted {
                        prop_assert!(before == scheduler || until <= at);
                    }
                    granted = Some((scheduler, at + LENGTH.0));
                } else {
                    let (holder, until) = granted.unwrap();
                    prop_assert!(holder != scheduler && at < until);
                }
            }
        }
    }
}
