//! Log time at the leader: which timestamp an entry gets, and how far apart clocks are.
//!
//! Time passes by the leader's monotonic clock, which nothing sets. Wall clocks only steer it: the
//! median of those that voters have reported lately, so that the clock of a single process moves
//! nothing. Where log time is ahead of the median, it runs at half speed until it is right again;
//! where it is behind, it steps, unless a lease is waited for: then it is slewed so little that the
//! margin of no lease is used up. A step of more than the bound takes two clocks that agree, or, as
//! in a cell of one replica, a minute in which the only clock stays where it is.
//!
//! Rejected: the leader's own clock, never backwards. An hour ahead for a second put the log an
//! hour ahead of all clocks, and whatever was compared with a clock was rejected for that hour.
//! Rejected: a slew rate so small that days take days. After the power was off for a week
//! everything that ended in it is to end now. The decision is docs/decisions/0014-log-time.md.

use crate::input::Now;
use cellwright_cell::id::MachineId;
use cellwright_cell::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A voter's report of its clock counts for this long; reports come twice a second.
const CLOCK_REPORT_MAX_AGE: Span = Span::seconds(5);
/// How long a single clock has to agree with itself before it is believed.
const SINGLE_CLOCK_CONFIRMATION: Span = Span::seconds(60);
/// Less than this is not a step.
const MIN_STEP: Span = Span(100);
/// By which part of the passing time log time may be slewed while a lease is waited for: a lease of
/// five minutes loses less than the margin that `apply` adds.
const SLEW_DIVISOR: u64 = 64;
/// Samples of a clock of which the best counts: a delayed report makes a clock look slow.
const SAMPLES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockConfig {
    /// Clocks further apart than this raise an alarm, and do not steer log time at once.
    pub max_skew: Span,
}

impl Default for ClockConfig {
    fn default() -> Self {
        ClockConfig { max_skew: Span::seconds(5) }
    }
}

/// By how many milliseconds clocks are ahead of the cell's, which is the median. Only the leader
/// knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockSkews {
    /// Of log time itself.
    pub log: i64,
    /// Log time stands where an earlier leader left it and waits to be confirmed: that it is behind
    /// is no alarm yet.
    pub is_settling: bool,
    /// By number.
    pub replicas: BTreeMap<u64, i64>,
    pub machines: BTreeMap<MachineId, i64>,
    pub schedulers: BTreeMap<String, i64>,
}

/// The source of a clock reading.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClockSource {
    Log,
    Replica(u64),
    Machine(MachineId),
    Scheduler(String),
}

impl ClockSkews {
    /// Those beyond the bound, in whole seconds.
    pub fn beyond(&self, bound: Span) -> impl Iterator<Item = (ClockSource, i64)> {
        let replicas = self.replicas.iter().map(|(id, by)| (ClockSource::Replica(*id), *by));
        let machines = self.machines.iter().map(|(id, by)| (ClockSource::Machine(*id), *by));
        let schedulers =
            self.schedulers.iter().map(|(name, by)| (ClockSource::Scheduler(name.clone()), *by));
        let log = if self.is_settling { self.log.max(0) } else { self.log };
        let all = [(ClockSource::Log, log)].into_iter().chain(replicas);
        let far = move |by: i64| by.unsigned_abs() > bound.0;
        all.chain(machines)
            .chain(schedulers)
            .filter(move |(_, by)| far(*by))
            .map(|(source, by)| (source, by / 1000))
    }
}

/// The last few offsets of one clock.
#[derive(Clone, Debug, Default)]
struct Samples {
    last: Vec<i64>,
}

impl Samples {
    fn add(&mut self, offset: i64) {
        if self.last.len() >= SAMPLES {
            self.last.remove(0);
        }
        self.last.push(offset);
    }

    fn best(&self) -> i64 {
        self.last.iter().copied().max().unwrap_or(0)
    }
}

pub struct LogTime {
    settings: ClockConfig,
    own_id: u64,
    voters: Vec<u64>,
    /// The last timestamp given, and the elapsed time that it accounts for.
    last_timestamp: (Time, Span),
    /// Time that passed while slewing and was too short for a whole millisecond of slew. Entries of
    /// a busy cell are less than [`SLEW_DIVISOR`] milliseconds apart. Invariant: less than
    /// [`SLEW_DIVISOR`].
    slew_remainder: u64,
    /// No task waits for the lease of its predecessor to run out.
    may_step: bool,
    /// Since when this replica leads, and whether log time has been right since.
    leading_since: (Span, bool),
    /// A step of more than the bound was made since the last check.
    has_stepped: bool,
    /// Since when clocks are ahead of log time by more than the bound.
    ahead_since: Option<Span>,
    /// What other voters' clocks reported, and when.
    voter_clocks: BTreeMap<u64, (Time, Span)>,
    machines: BTreeMap<MachineId, Samples>,
    schedulers: BTreeMap<String, (Samples, Span)>,
}

impl LogTime {
    #[must_use]
    pub fn new(settings: ClockConfig) -> LogTime {
        LogTime {
            settings,
            own_id: 0,
            voters: Vec::new(),
            last_timestamp: (Time::ZERO, Span::ZERO),
            slew_remainder: 0,
            may_step: false,
            leading_since: (Span::ZERO, false),
            has_stepped: false,
            ahead_since: None,
            voter_clocks: BTreeMap::new(),
            machines: BTreeMap::new(),
            schedulers: BTreeMap::new(),
        }
    }

    pub fn set_voters(&mut self, own_id: u64, voters: &[u64]) {
        self.own_id = own_id;
        self.voters = voters.to_vec();
        self.voter_clocks.retain(|id, _| voters.contains(id));
    }

    /// This replica begins to lead a log that stands at `log`.
    pub fn lead(&mut self, log: Time, may_step: bool, now: Now) {
        self.last_timestamp = (self.last_timestamp.0.max(log), now.elapsed);
        self.may_step = may_step;
        self.leading_since = (now.elapsed, false);
        self.ahead_since = None;
        self.machines.clear();
        self.schedulers.clear();
    }

    /// A voter's link shard reported its clock, and what it saw of the clocks of machines.
    pub fn observe_voter(
        &mut self,
        voter: u64,
        wall: Time,
        machines: &[(MachineId, i64)],
        now: Now,
    ) {
        if voter != self.own_id && self.voters.contains(&voter) {
            self.voter_clocks.insert(voter, (wall, now.elapsed));
        }
        let Some(median) = self.median_clock(now) else { return };
        let shard = if voter == self.own_id { now.wall } else { wall };
        let shard = skew_millis(shard, median);
        for (machine, offset) in machines {
            self.machines.entry(*machine).or_default().add(offset.saturating_add(shard));
        }
    }

    pub fn observe_scheduler(&mut self, name: &str, wall: Time, now: Now) {
        let Some(median) = self.median_clock(now) else { return };
        let (samples, at) = self.schedulers.entry(name.to_owned()).or_default();
        samples.add(skew_millis(wall, median));
        *at = now.elapsed;
    }

    /// The median clock, once a majority of the voters has reported. The log's own time decides
    /// between two that differ.
    fn median_clock(&self, now: Now) -> Option<Time> {
        let mut clocks: Vec<Time> = self.other_voter_clocks(now).map(|(_, wall)| wall).collect();
        clocks.push(now.wall);
        if clocks.len() * 2 <= self.voters.len() {
            return None;
        }
        if clocks.len().is_multiple_of(2) {
            clocks.push(if self.last_timestamp.0 == Time::ZERO {
                now.wall
            } else {
                self.unadjusted(now)
            });
        }
        clocks.sort_unstable();
        clocks.get(clocks.len() / 2).copied()
    }

    /// The present time by the clocks of other voters.
    fn other_voter_clocks(&self, now: Now) -> impl Iterator<Item = (u64, Time)> {
        self.voter_clocks.iter().filter_map(move |(id, (wall, at))| {
            let ago = Span(now.elapsed.0.saturating_sub(at.0));
            (ago <= CLOCK_REPORT_MAX_AGE).then(|| (*id, wall.plus(ago)))
        })
    }

    /// Log time if nothing but the passing of time counted.
    fn unadjusted(&self, now: Now) -> Time {
        let (last, at) = self.last_timestamp;
        last.plus(Span(now.elapsed.0.saturating_sub(at.0)))
    }

    /// Whether clocks are ahead of log time, so that it matters whether a lease is waited for.
    #[must_use]
    pub fn is_step_wanted(&self, now: Now) -> bool {
        self.median_clock(now).is_some_and(|median| median > self.unadjusted(now).plus(MIN_STEP))
    }

    /// Whether log time was stepped since the last call.
    pub fn take_stepped(&mut self) -> bool {
        std::mem::take(&mut self.has_stepped)
    }

    pub fn set_may_step(&mut self, may_step: bool) {
        self.may_step = may_step;
    }

    /// The timestamp of what happens now.
    pub fn timestamp(&mut self, now: Now) -> Time {
        let (last, at) = self.last_timestamp;
        let unadjusted = self.unadjusted(now);
        if last == Time::ZERO {
            // The first entry of a log: there is no earlier time to continue from.
            self.last_timestamp = (now.wall.max(Time(1)), now.elapsed);
            return self.last_timestamp.0;
        }
        let Some(median) = self.median_clock(now) else {
            self.last_timestamp = (unadjusted, now.elapsed);
            return unadjusted;
        };
        let passed = now.elapsed.0.saturating_sub(at.0);
        self.note_ahead(median, unadjusted, now);
        let slew_time = std::mem::take(&mut self.slew_remainder).saturating_add(passed);
        self.last_timestamp = if median < unadjusted {
            let slow = last.plus(Span(passed / 2));
            // The remainder of an odd millisecond counts the next time.
            if slow >= median { (slow, Span(at.0 + passed / 2 * 2)) } else { (median, now.elapsed) }
        } else if self.may_step && self.is_confirmed(median, unadjusted, now) {
            self.has_stepped |= median > unadjusted.plus(self.settings.max_skew);
            (median, now.elapsed)
        } else {
            let slewed = unadjusted.plus(Span(slew_time / SLEW_DIVISOR));
            if slewed < median {
                self.slew_remainder = slew_time % SLEW_DIVISOR;
            }
            (median.min(slewed), now.elapsed)
        };
        self.last_timestamp.0
    }

    fn note_ahead(&mut self, median: Time, unadjusted: Time, now: Now) {
        if median > unadjusted.plus(self.settings.max_skew) {
            self.ahead_since.get_or_insert(now.elapsed);
        } else {
            self.ahead_since = None;
            self.leading_since.1 = true;
        }
    }

    /// Whether so large a step may be made: it is within the bound, or two clocks agree on it, or
    /// the only clock has reported it for a while.
    fn is_confirmed(&self, median: Time, unadjusted: Time, now: Now) -> bool {
        let bound = self.settings.max_skew;
        let near = |wall: Time| skew_millis(wall, median).unsigned_abs() <= bound.0;
        let agreeing = self.other_voter_clocks(now).filter(|(_, wall)| near(*wall)).count();
        let agreeing = agreeing + usize::from(near(now.wall));
        let waited = self.ahead_since.is_some_and(|since| {
            now.elapsed.0.saturating_sub(since.0) >= SINGLE_CLOCK_CONFIRMATION.0
        });
        median <= unadjusted.plus(bound) || agreeing >= 2 || waited
    }

    /// How far apart clocks are. `known`: machines of the cell; reports of others are dropped.
    pub fn skews(&mut self, known: impl Fn(MachineId) -> bool, now: Now) -> ClockSkews {
        self.machines.retain(|machine, _| known(*machine));
        self.schedulers
            .retain(|_, (_, at)| now.elapsed.0.saturating_sub(at.0) <= SINGLE_CLOCK_CONFIRMATION.0);
        let Some(median) = self.median_clock(now) else { return ClockSkews::default() };
        let mut replicas: BTreeMap<u64, i64> = self
            .other_voter_clocks(now)
            .map(|(id, wall)| (id, skew_millis(wall, median)))
            .collect();
        replicas.insert(self.own_id, skew_millis(now.wall, median));
        ClockSkews {
            log: if self.last_timestamp.0 == Time::ZERO {
                0
            } else {
                skew_millis(self.unadjusted(now), median)
            },
            is_settling: !self.leading_since.1
                && now.elapsed.0.saturating_sub(self.leading_since.0.0)
                    < 2 * SINGLE_CLOCK_CONFIRMATION.0,
            replicas,
            machines: self.machines.iter().map(|(id, all)| (*id, all.best())).collect(),
            schedulers: self
                .schedulers
                .iter()
                .map(|(id, (all, _))| (id.clone(), all.best()))
                .collect(),
        }
    }
}

/// By how much `clock` is ahead of `other`.
#[must_use]
pub fn skew_millis(clock: Time, other: Time) -> i64 {
    let size = |span: Span| i64::try_from(span.0).unwrap_or(i64::MAX);
    size(clock.since(other)) - size(other.since(clock))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000_000;
    const HOUR: i64 = 3_600_000;

    /// A leader, number 1, and the clocks of all voters.
    struct Cell {
        dating: LogTime,
        /// By how much each is ahead of the real time.
        ahead: Vec<i64>,
        elapsed: u64,
    }

    impl Cell {
        fn of(voters: usize) -> Cell {
            let mut log_time = LogTime::new(ClockConfig::default());
            let all: Vec<u64> = (1..=voters as u64).collect();
            log_time.set_voters(1, &all);
            let mut cell = Cell { dating: log_time, ahead: vec![0; voters], elapsed: 0 };
            let now = cell.now();
            cell.dating.lead(Time::ZERO, true, now);
            cell.pass(2);
            cell
        }

        fn now(&self) -> Now {
            let wall = Time((START + self.elapsed).saturating_add_signed(self.ahead[0]));
            Now { wall, elapsed: Span(self.elapsed) }
        }

        /// Half a second at a time, in which every voter reports its clock; returns by how many
        /// seconds log time is ahead after it.
        fn pass(&mut self, seconds: u64) -> i64 {
            let mut before = self.dating.last_timestamp.0;
            for _ in 0..seconds * 2 {
                self.elapsed += 500;
                for voter in 2..=self.ahead.len() {
                    let wall = (START + self.elapsed).saturating_add_signed(self.ahead[voter - 1]);
                    let now = self.now();
                    self.dating.observe_voter(voter as u64, Time(wall), &[], now);
                }
                let now = self.now();
                let date = self.dating.timestamp(now);
                assert!(date > before, "log time stands still or runs backwards");
                before = date;
            }
            skew_millis(before, Time(START + self.elapsed)) / 1000
        }
    }

    #[test]
    fn the_clock_of_one_of_three_moves_nothing_for_seconds_or_for_good() {
        for (voter, ahead) in [(0, HOUR), (0, -HOUR), (2, HOUR), (2, -HOUR), (0, 600_000)] {
            let mut cell = Cell::of(3);
            cell.ahead[voter] = ahead;
            assert_eq!(cell.pass(3), 0, "for seconds: {voter} {ahead}");
            assert_eq!(cell.pass(600), 0, "for good: {voter} {ahead}");
            cell.ahead[voter] = 0;
            assert_eq!(cell.pass(3), 0, "right again: {voter} {ahead}");
        }
    }

    #[test]
    fn a_wrong_clock_beside_a_silent_replica_moves_nothing_either() {
        let mut cell = Cell::of(2);
        cell.dating.set_voters(1, &[1, 2, 3]);
        cell.ahead[0] = HOUR;
        assert_eq!(cell.pass(100), 0, "the log decides between two");
        cell.ahead = vec![0, -HOUR];
        assert_eq!(cell.pass(100), 0);
        // The remaining clocks agree.
        cell.ahead = vec![HOUR, HOUR];
        assert_eq!(cell.pass(2), 3600);
    }

    #[test]
    fn the_only_clock_is_believed_after_a_minute_and_log_time_comes_back() {
        let mut cell = Cell::of(1);
        cell.ahead[0] = HOUR;
        assert_eq!(cell.pass(20), 0, "ahead for seconds");
        cell.ahead[0] = 0;
        assert_eq!(cell.pass(100), 0);
        cell.ahead[0] = HOUR;
        assert_eq!(cell.pass(59), 0);
        assert_eq!(cell.pass(2), 3600, "ahead for good");
        cell.ahead[0] = 0;
        // At half speed, so two hours.
        assert_eq!(cell.pass(3600), 1800);
        assert_eq!(cell.pass(3600), 0);
        assert_eq!(cell.pass(60), 0);
        cell.ahead[0] = -HOUR;
        assert_eq!(cell.pass(60), -30, "it never stands still");
    }

    #[test]
    fn nothing_leaps_while_a_lease_is_waited_for() {
        let mut cell = Cell::of(3);
        cell.dating.set_may_step(false);
        cell.ahead = vec![HOUR; 3];
        // A sixty-fourth of five minutes is less than the margin of leases, five seconds.
        assert_eq!(cell.pass(300), 4);
        cell.dating.set_may_step(true);
        assert_eq!(cell.pass(1), 3600);
        assert!(cell.dating.take_stepped() && !cell.dating.take_stepped());
    }

    /// A busy cell timestamps an entry each millisecond; a quiet one twice a second.
    #[test]
    fn log_time_hurries_however_often_it_is_asked_for() {
        for step in [1, 7, 63, 64, 65, 500] {
            let mut cell = Cell::of(1);
            cell.dating.set_may_step(false);
            cell.ahead[0] = HOUR;
            let (began, before) = (cell.elapsed, cell.dating.last_timestamp.0);
            while cell.elapsed < began + 64_000 {
                cell.elapsed += step;
                let now = cell.now();
                cell.dating.timestamp(now);
            }
            let passed = cell.elapsed - began;
            let slewed = cell.dating.last_timestamp.0.since(before).0 - passed;
            assert_eq!(slewed, passed / SLEW_DIVISOR, "in steps of {step} ms");
        }
    }

    #[test]
    fn a_cell_that_was_off_for_a_week_is_right_at_once() {
        let mut cell = Cell::of(3);
        let now = cell.now();
        let week = Time(START - 7 * 24 * 3_600_000);
        cell.dating = LogTime::new(ClockConfig::default());
        cell.dating.set_voters(1, &[1, 2, 3]);
        cell.dating.lead(week, true, now);
        assert_eq!(cell.pass(1), 0);
    }

    #[test]
    fn a_start_after_a_night_is_no_alarm_and_a_jump_is() {
        let bound = Span::seconds(5);
        let mut cell = Cell::of(1);
        cell.ahead[0] = HOUR;
        cell.pass(1);
        let alarm = |cell: &mut Cell| {
            let now = cell.now();
            cell.dating.skews(|_| true, now).beyond(bound).next()
        };
        assert_eq!(alarm(&mut cell), Some((ClockSource::Log, -3599)), "it jumped");
        let (log, now) = (cell.dating.last_timestamp.0, cell.now());
        cell.dating.lead(log, true, now);
        cell.pass(1);
        assert_eq!(alarm(&mut cell), None, "it was off");
        assert_eq!(cell.pass(60), 3600);
        assert_eq!(alarm(&mut cell), None);
    }

    #[test]
    fn clocks_are_measured_against_the_one_in_the_middle() {
        let mut cell = Cell::of(3);
        cell.ahead = vec![HOUR, 0, 10];
        cell.pass(1);
        let machine = MachineId(7);
        // By the shard of the leader, whose own clock is an hour ahead, all others are behind.
        for offset in [-HOUR, -HOUR - 2000, -HOUR] {
            let now = cell.now();
            cell.dating.observe_voter(1, now.wall, &[(machine, offset), (MachineId(8), 0)], now);
            cell.dating.observe_scheduler("s1", Time(now.wall.0 - 2 * 3_600_000), now);
        }
        let now = cell.now();
        let skews = cell.dating.skews(|id| id != MachineId(9), now);
        let beyond: Vec<(ClockSource, i64)> = skews.beyond(Span::seconds(5)).collect();
        let want = [
            (ClockSource::Replica(1), 3599),
            (ClockSource::Machine(MachineId(8)), 3599),
            (ClockSource::Scheduler("s1".into()), -3600),
        ];
        assert_eq!(beyond, want);
        assert!(skews.machines[&machine].abs() <= 10, "{skews:?}");
    }
}
