//! Periodic jobs (B42), like cron jobs: a schedule, a job to submit at each of its moments, and a
//! policy for moments that were missed or when the last run is still active.
//!
//! A moment is called a slot. The row records the latest slot that was handled, and a slot up to
//! that one is never fired again: so a slot fires at most once however many masters believe they
//! lead, as a rule of `apply` and not of the controller that watches the clock. Rejected: a
//! controller that remembers what it fired. Its memory is lost when it dies.

pub(crate) mod admit;
mod apply;
mod command;
mod event;
mod invariant;
pub mod schedule;
mod slots_fire_once;
mod table;

pub use command::Command;
pub use event::{CronChange, Event};
pub(crate) use table::Tables;

use crate::encode::Rows;
use crate::encode::validate::{Checked, MAX_COUNTER, at_most, check_admitted};
use crate::id::{JobId, UserId};
use crate::name::{InvalidName, Name};
use crate::reason::Rejection;
use crate::spec::JobSpec;
use crate::state::State;
use crate::tables::TableRow;
use crate::time::{Span, Time};
use schedule::{Schedule, stamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Longest name of a periodic job: the names of its runs add a dash and twelve digits.
pub const MAX_CRON_NAME: usize = crate::name::MAX_NAME - 13;
/// Most runs that are kept, and most missed ones that are run later.
pub const MAX_RUNS: u32 = 100;
/// What is left of a periodic job's name in that of a run that is asked for, beside its second.
const MAX_NAME_OF_RUN_BY_HAND: usize = 48;
/// A slot this old still counts as on time: a change of leader takes seconds.
pub const ON_TIME: Span = Span::seconds(60);

/// What becomes of slots that nobody fired, because no master was there to do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MissedRuns {
    /// Nothing; the next run is the next slot's.
    #[default]
    Skip,
    /// One run makes up for all of them: that of the latest.
    RunOnce,
    /// Each gets its run; of more than `max` the latest ones do.
    RunAll {
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_RUNS)))]
        max: u32,
    },
}

/// Policy for a slot while the last run is still active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    #[default]
    Allow,
    /// The slot has no run.
    Skip,
    /// The old run is stopped. While it is stopping both are charged to the owner's quota.
    Replace,
}

/// A periodic job as its owner wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CronSpec {
    /// At most 50 characters. Runs are called `<name>-<yyyymmddhhmm>`, by their slot in UTC.
    pub name: Name,
    pub schedule: Schedule,
    /// What each run is, its name aside, which must be that of the periodic job.
    pub job: JobSpec,
    /// Left out: skip.
    #[serde(default)]
    pub missed: MissedRuns,
    /// Left out: allow.
    #[serde(default)]
    pub overlap: Overlap,
    /// No slot has a run while this holds, nor do those that passed get one later. Left out: false.
    #[serde(default)]
    pub paused: bool,
    /// How many of the latest runs stay on record, 1 to 100; ended ones beyond are forgotten at
    /// once. Left out: 3.
    #[serde(default = "three")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_RUNS)))]
    pub keep_runs: u32,
}

impl CronSpec {
    /// The spec with its secrets redacted.
    #[must_use]
    pub fn redacted(&self) -> CronSpec {
        CronSpec { job: self.job.redacted(), ..self.clone() }
    }

    /// The part of the spec that everybody in the cell may see: see [`JobSpec::public_view`].
    #[must_use]
    pub fn public_view(&self) -> CronSpec {
        CronSpec { job: self.job.public_view(), ..self.clone() }
    }
}

fn three() -> u32 {
    3
}

impl CronSpec {
    /// # Errors
    /// [`Rejection::BadField`] for the first field that is out of range.
    pub fn check(&self) -> Result<(), Rejection> {
        admit::check_cron(self)
    }

    /// Name of the run at `slot`.
    ///
    /// # Errors
    /// After the year 9999, where the calendar ends.
    pub fn run_name(&self, slot: Time) -> Result<Name, InvalidName> {
        Name::new(&format!("{}-{}", self.name, stamp(slot)))
    }
}

impl CronSpec {
    /// Name of a run that is asked for at `now`: no slot has that of a second. A long name is cut,
    /// to leave room.
    ///
    /// # Errors
    /// After the year 9999, where the calendar ends.
    pub fn name_of_run_at(&self, now: Time) -> Result<Name, InvalidName> {
        let name: String = self.name.as_str().chars().take(MAX_NAME_OF_RUN_BY_HAND).collect();
        let seconds = now.0 / 1000 % 60;
        Name::new(&format!("{}-{}{seconds:02}", name.trim_end_matches('-'), stamp(now)))
    }
}

/// The row of a periodic job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cron {
    pub user: UserId,
    pub spec: Arc<CronSpec>,
    /// Number of changes of the spec.
    pub version: u32,
    /// Slots up to here have been handled: fired, skipped or rejected, or they lie before the spec
    /// was created or resumed.
    pub last_slot: Time,
    /// The latest runs, oldest first; some may have been purged meanwhile. Invariant: at most
    /// `keep_runs`, all of `user`.
    pub runs: Vec<JobId>,
}

impl Cron {
    #[must_use]
    pub fn last_job(&self) -> Option<JobId> {
        self.runs.last().copied()
    }
}

/// The slots to fire at `now`, oldest first. Fired in that order each is handled once; slots left
/// out are handled when a later one is fired.
#[must_use]
pub fn due_slots(cron: &Cron, now: Time) -> Vec<Time> {
    if cron.spec.paused {
        return Vec::new();
    }
    let most = match cron.spec.missed {
        MissedRuns::Skip | MissedRuns::RunOnce => 1,
        MissedRuns::RunAll { max } => max.min(MAX_RUNS) as usize,
    };
    let schedule = &cron.spec.schedule;
    let before = |slot: &Time| schedule.latest_until(Time(slot.0.checked_sub(1)?));
    let slots = std::iter::successors(schedule.latest_until(now), before);
    let fresh = |slot: &Time| match cron.spec.missed {
        MissedRuns::Skip => slot.plus(ON_TIME) > now,
        _ => true,
    };
    let mut due: Vec<Time> =
        slots.take_while(|slot| *slot > cron.last_slot && fresh(slot)).take(most).collect();
    due.reverse();
    due
}

impl TableRow for Cron {
    const NOUN: &'static str = "periodic job";
    const OWNED: bool = true;

    fn label(&self, rows: &Rows) -> String {
        format!("{}/{}", rows.user_name(self.user.slot()), self.spec.name)
    }

    fn title(&self) -> Option<String> {
        Some(self.spec.name.to_string())
    }

    fn name(&self, state: &State) -> Option<String> {
        Some(format!("{}/{}", state.users.get(self.user)?.name, self.spec.name))
    }

    fn check(&self, row: &str) -> Checked {
        check_admitted(row, self.spec.check())?;
        at_most(row, "version", u64::from(self.version), MAX_COUNTER)?;
        at_most(row, "number of runs", self.runs.len() as u64, u64::from(self.spec.keep_runs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{job, name};

    fn cron(missed: MissedRuns) -> Cron {
        let spec = CronSpec {
            name: name("tick"),
            schedule: Schedule::new("*/10 * * * *").unwrap(),
            job: job("tick", 1, 0),
            missed,
            overlap: Overlap::Allow,
            paused: false,
            keep_runs: 3,
        };
        let (user, last_slot) = (UserId(0), minutes(10));
        Cron { user, spec: Arc::new(spec), version: 1, last_slot, runs: Vec::new() }
    }

    fn minutes(count: u64) -> Time {
        Time(count * schedule::MINUTE)
    }

    #[test]
    fn what_is_due_depends_on_what_was_missed() {
        let check = |missed, now: Time, want: &[u64]| {
            let want: Vec<Time> = want.iter().map(|count| minutes(*count)).collect();
            assert_eq!(due_slots(&cron(missed), now), want, "{missed:?} at {}", now.0);
        };
        let all = |max| MissedRuns::RunAll { max };
        for missed in [MissedRuns::Skip, MissedRuns::RunOnce, all(2)] {
            check(missed, minutes(10), &[]);
            check(missed, Time(minutes(20).0 - 1), &[]);
            check(missed, minutes(20), &[20]);
            check(missed, Time(minutes(21).0 - 1), &[20]);
        }
        check(MissedRuns::Skip, minutes(21), &[]);
        check(MissedRuns::Skip, minutes(50), &[50]);
        check(MissedRuns::RunOnce, minutes(59), &[50]);
        check(all(2), minutes(59), &[40, 50]);
        check(all(100), minutes(59), &[20, 30, 40, 50]);
        // A year of slots costs no more than one.
        check(MissedRuns::RunOnce, minutes(60 * 24 * 365), &[60 * 24 * 365]);
    }

    #[test]
    fn nothing_is_due_while_paused() {
        let mut cron = cron(MissedRuns::RunAll { max: 100 });
        Arc::make_mut(&mut cron.spec).paused = true;
        assert_eq!(due_slots(&cron, minutes(59)), []);
    }

    #[test]
    fn fields_out_of_range_are_refused_by_name() {
        let check = |change: fn(&mut CronSpec), want: &str| {
            let mut spec = (*cron(MissedRuns::Skip).spec).clone();
            change(&mut spec);
            let error = spec.check().map_err(|rejection| rejection.to_string());
            assert!(error.as_ref().is_err_and(|text| text.contains(want)), "{error:?}: {want}");
        };
        check(|spec| spec.keep_runs = 0, "field keep_runs: value 0 is not valid; allowed: 1 to");
        check(|spec| spec.missed = MissedRuns::RunAll { max: 101 }, "missed.run_all.max");
        check(|spec| spec.job.name = name("tock"), "job.name: value tock");
        check(|spec| spec.job.count = 0, "field job.count");
        check(|spec| spec.name = name(&"a".repeat(51)), "at most 50 characters");
        let longest =
            CronSpec { name: name(&"a".repeat(50)), ..(*cron(MissedRuns::Skip).spec).clone() };
        assert!(longest.run_name(minutes(1)).is_ok());
        assert!(longest.run_name(Time::NEVER).is_err());
        let tick = cron(MissedRuns::Skip).spec;
        let last = Time(253_402_300_799_999);
        assert!(tick.run_name(last).is_ok() && tick.run_name(Time(last.0 + 1)).is_err());
    }
}
