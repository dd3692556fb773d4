//! Periodic jobs (B42): set, remove, fire.
//!
//! A run is a job like any other, submitted in its owner's name and with its owner's rights and
//! quota: a schedule must not be a way to do at night what is rejected by day. A run that is not
//! admitted is recorded, and its slot has passed: retrying until it fits would pile up runs that
//! all fit at once.

use super::{Cron, CronChange, CronSpec, Event, Overlap};
use crate::apply::Context;
use crate::bounds::{BoundKind, Growth, encoded_bytes};
use crate::command::{Done, Verdict};
use crate::id::{CronId, JobId};
use crate::name::{JobKey, Name};
use crate::reason::{Allowed, Conflict, Given, Object, Reason, Rejection, Storage};
use crate::spec::JobSpec;
use crate::time::Time;
use std::sync::Arc;

impl Context<'_> {
    /// Slots that passed before the schedule was created, changed or resumed are not missed.
    pub(super) fn set_cron(
        &mut self,
        owner: &Name,
        spec: &CronSpec,
        expect: Option<u32>,
    ) -> Verdict {
        let user = self.user_by_name(owner)?;
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        spec.check()?;
        let object = || Object::Cron(key.clone());
        let growth_of_spec = Growth { spec_bytes: encoded_bytes(spec), ..Growth::default() };
        let (now, spec) = (self.now, Arc::new(spec.clone()));
        let old = self.state.cron_named(&key);
        let Some((id, row)) =
            old.and_then(|id| Some((id, self.state.components.cron.crons.get(id)?)))
        else {
            Self::check_expected(object, 0, expect)?;
            let owned = self
                .state
                .components
                .cron
                .crons
                .iter()
                .filter(|(_, cron)| cron.user == user)
                .count();
            Self::check_one_more_for(owner, BoundKind::Crons, owned, self.state.bounds.crons)?;
            if !self.state.components.cron.crons.has_room_for(1) {
                return Err(Rejection::Full(Storage::Crons));
            }
            let going = self.jobs_to_purge(user, growth_of_spec, |_| false)?;
            self.purge_selected(&going);
            let cron = Cron { user, spec, version: 1, last_slot: now, runs: Vec::new() };
            let cron = self.state.insert_cron(cron);
            self.cron_event(cron, CronChange::Added, Reason::Requested);
            return Ok(Done::Version(1));
        };
        if row.spec == spec && self.is_same_spec(user, &row.spec.job, &spec.job) {
            return Ok(Done::Unchanged);
        }
        Self::check_expected(object, row.version, expect)?;
        let version = row.version.saturating_add(1);
        let more = growth_of_spec.spec_bytes.saturating_sub(encoded_bytes(&*row.spec));
        let growth = Growth { spec_bytes: more, ..growth_of_spec };
        let going = self.jobs_to_purge(user, growth, |_| false)?;
        let starts_anew = row.spec.schedule != spec.schedule || row.spec.paused != spec.paused;
        self.purge_selected(&going);
        self.state.edit_cron(id, |cron| {
            cron.version = version;
            cron.last_slot = if starts_anew { now.max(cron.last_slot) } else { cron.last_slot };
            cron.spec = spec;
        });
        let dropped = self.drop_old_runs(id);
        self.cron_event(id, CronChange::Updated { version }, Reason::Requested);
        self.forget_runs(&dropped);
        Ok(Done::Version(version))
    }

    /// Active runs are jobs of their owner and stay.
    pub(super) fn remove_cron(&mut self, key: &JobKey, expect: Option<u32>) -> Verdict {
        self.user_by_name(&key.user)?;
        let (id, row) = self.cron_by_name(key)?;
        Self::check_expected(|| Object::Cron(key.clone()), row.version, expect)?;
        self.state.drop_cron(id);
        self.cron_event(id, CronChange::Removed, Reason::Requested);
        Ok(Done::Applied)
    }

    /// Handles one slot, once.
    pub(super) fn fire_cron(&mut self, key: &JobKey, slot: Time) -> Verdict {
        let (id, row) = self.cron_by_name(key)?;
        if slot <= row.last_slot {
            return Ok(Done::Unchanged);
        }
        check_slot(&row.spec, key, slot, self.now)?;
        let (spec, last) = (row.spec.clone(), row.last_job());
        let running = last.filter(|job| self.state.jobs.get(*job).is_some_and(|j| !j.is_dead()));
        self.state.edit_cron(id, |cron| cron.last_slot = slot);
        match (spec.overlap, running) {
            (Overlap::Skip, Some(_)) => {
                self.cron_event(id, CronChange::Skipped { slot }, Reason::LastRunActive);
                return Ok(Done::Applied);
            }
            (Overlap::Replace, Some(job)) => {
                if let Some(old) = self.state.job_key(job) {
                    // Its owner may always stop it, and a job that is stopping already is left
                    // alone.
                    drop(self.as_user(&key.user, |context| context.stop_job(&old, None)));
                }
            }
            _ => {}
        }
        let Ok(name) = spec.run_name(slot) else {
            self.cron_event(id, CronChange::Rejected { slot }, Reason::SlotDue);
            return Ok(Done::Applied);
        };
        self.submit_run(id, key, &JobSpec { name, ..spec.job.clone() }, slot);
        Ok(Done::Applied)
    }

    /// A run that somebody asks for is one like those of the schedule: it is kept, forgotten and
    /// overlapped as they are, and the next of the schedule finds it as the last.
    pub(super) fn run_cron(&mut self, key: &JobKey) -> Verdict {
        let (id, row) = self.cron_by_name(key)?;
        let (spec, last) = (row.spec.clone(), row.last_job());
        let goes_on = |job: &JobId| self.state.jobs.get(*job).is_some_and(|job| !job.is_dead());
        let running = last.filter(goes_on).and_then(|job| self.state.job_key(job));
        let name = spec.name_of_run_at(self.now).map_err(|_| {
            Rejection::bad_field("name", Given::text(&key.job), Allowed::UpToNow(self.now))
        })?;
        let run = JobKey { user: key.user.clone(), job: name.clone() };
        if self.state.job_named(&run).as_ref().is_some_and(goes_on) {
            return Ok(Done::Unchanged);
        }
        if let (Overlap::Skip, Some(last)) = (spec.overlap, &running) {
            return Err(Rejection::WrongState(Conflict::LastRunGoesOn(last.clone())));
        }
        let job = JobSpec { name, ..spec.job.clone() };
        self.as_user(&key.user, |context| context.try_submit(&key.user, &job))?;
        if let (Overlap::Replace, Some(last)) = (spec.overlap, &running) {
            drop(self.as_user(&key.user, |context| context.stop_job(last, None)));
        }
        let Some(job) = self.state.job_named(&run) else { return Ok(Done::Applied) };
        self.keep_run(id, job, CronChange::RunByHand { job }, Reason::Requested);
        Ok(Done::Applied)
    }

    fn submit_run(&mut self, id: CronId, key: &JobKey, job: &JobSpec, slot: Time) {
        let run = JobKey { user: key.user.clone(), job: job.name.clone() };
        let verdict = self.as_user(&key.user, |context| context.submit_job(&key.user, job));
        let submitted = verdict.ok().and_then(|_| self.state.job_named(&run));
        let Some(job) = submitted else {
            return self.cron_event(id, CronChange::Rejected { slot }, Reason::SlotDue);
        };
        self.keep_run(id, job, CronChange::Fired { slot, job }, Reason::SlotDue);
    }

    /// Puts a run on the list, and forgets those beyond the number to keep.
    fn keep_run(&mut self, id: CronId, job: JobId, change: CronChange, reason: Reason) {
        self.state.edit_cron(id, |cron| {
            cron.runs.retain(|known| *known != job);
            cron.runs.push(job);
        });
        let dropped = self.drop_old_runs(id);
        self.cron_event(id, change, reason);
        self.forget_runs(&dropped);
    }

    /// Removes runs beyond the number to keep from the list.
    fn drop_old_runs(&mut self, id: CronId) -> Vec<JobId> {
        let Some(row) = self.state.components.cron.crons.get(id) else { return Vec::new() };
        let excess = row.runs.len().saturating_sub(row.spec.keep_runs as usize);
        let dropped = row.runs[..excess].to_vec();
        if excess > 0 {
            self.state.edit_cron(id, |cron| drop(cron.runs.drain(..excess)));
        }
        dropped
    }

    /// Purges those that have ended; the others are purged when their time comes.
    fn forget_runs(&mut self, dropped: &[JobId]) {
        if !dropped.is_empty() {
            self.purge(|job, _| dropped.contains(&job));
        }
    }

    fn cron_event(&mut self, cron: CronId, change: CronChange, reason: Reason) {
        self.emit(Event { cron, change }, reason);
    }

    fn cron_by_name(&self, key: &JobKey) -> Result<(CronId, &Cron), Rejection> {
        let id = self.state.cron_named(key);
        let found = id.and_then(|id| Some((id, self.state.components.cron.crons.get(id)?)));
        found.ok_or_else(|| Rejection::NoSuchCron(key.clone()))
    }
}

fn check_slot(spec: &CronSpec, key: &JobKey, slot: Time, now: Time) -> Result<(), Rejection> {
    if spec.paused {
        return Err(Rejection::WrongState(Conflict::CronPaused(key.clone())));
    }
    let allowed = if slot > now {
        Allowed::UpToNow(now)
    } else if spec.schedule.contains(slot) {
        return Ok(());
    } else {
        Allowed::MomentOf(spec.schedule.as_str().to_owned())
    };
    Err(Rejection::bad_field("slot", Given::text(slot.0), allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, Observed};
    use crate::components::cron;
    use crate::components::cron::schedule::{MINUTE, Schedule};
    use crate::components::cron::{MissedRuns, due_slots};

    fn spec(change: impl FnOnce(&mut CronSpec)) -> CronSpec {
        let mut spec = CronSpec {
            name: name("tick"),
            schedule: Schedule::new("*/10 * * * *").unwrap(),
            job: job("tick", 1, 0),
            missed: MissedRuns::Skip,
            overlap: Overlap::Allow,
            paused: false,
            keep_runs: 2,
        };
        change(&mut spec);
        spec
    }

    fn set(spec: CronSpec) -> cron::Command {
        cron::Command::Set { owner: name("ubar"), spec: Box::new(spec), expect: None }
    }

    /// A cell with `ubar/tick` at the hour.
    fn with(change: impl FnOnce(&mut CronSpec)) -> Cell {
        let mut cell = Cell::with_machines(1);
        assert_eq!(cell.ok(set(spec(change))), Done::Version(1));
        cell.now = 60 * MINUTE;
        cell
    }

    fn fire(minutes: u64) -> cron::Command {
        cron::Command::Fire { cron: key("ubar/tick"), slot: Time(minutes * MINUTE) }
    }

    fn cron(cell: &Cell) -> &Cron {
        cell.state.crons().get(CronId(0)).unwrap()
    }

    #[test]
    fn a_slot_fires_once_and_never_after_a_later_one() {
        let mut cell = with(|_| ());
        assert_eq!(cell.ok(fire(60)), Done::Applied);
        let fired = "periodic job ubar/tick of 197001010100 runs as ubar/tick-197001010100: \
                     its time has come";
        assert_eq!(cell.event_lines.last().map(String::as_str), Some(fired));
        assert_eq!(cell.ok(fire(60)), Done::Unchanged);
        assert_eq!(cell.ok(fire(50)), Done::Unchanged);
        assert_eq!(cell.state.jobs().len(), 1);
        assert_eq!(due_slots(cron(&cell), Time(cell.now)), []);
        let early = "field slot: value 4200000 is not valid; allowed: at most 3600004, now";
        assert_eq!(cell.rejection_text(fire(70)), early);
        cell.now = 71 * MINUTE;
        let odd = "field slot: value 4260000 is not valid; allowed: a moment of \"*/10 * * * *\"";
        assert!(cell.rejection_text(fire(71)).starts_with(odd));
        let unknown = cron::Command::Fire { cron: key("ubar/tock"), slot: Time(0) };
        assert_eq!(cell.rejection_text(unknown), "there is no periodic job ubar/tock");
        assert!(cell.send_as("ubar", fire(70)).is_err());
    }

    #[test]
    fn a_run_that_is_not_admitted_uses_up_its_slot() {
        // The system fires it, but it has only its owner's rights.
        let mut cell = with(|spec| spec.job.reclaimable = false);
        assert_eq!(cell.ok(fire(60)), Done::Applied);
        let why = "ubar/tick-197001010100 rejected: user ubar lacks the capability \
                   disable_reclamation";
        let passed = "periodic job ubar/tick of 197001010100 does not run: its time has come";
        assert_eq!(cell.event_lines, [why, passed]);
        assert_eq!(cell.ok(fire(60)), Done::Unchanged);
        assert_eq!(cron(&cell).last_job(), None);
    }

    fn run_now() -> cron::Command {
        cron::Command::Run { cron: key("ubar/tick") }
    }

    #[test]
    fn a_run_by_hand_is_a_run_and_leaves_the_schedule_alone() {
        let mut cell = with(|spec| (spec.keep_runs, spec.paused) = (2, true));
        let slot = cron(&cell).last_slot;
        assert_eq!(cell.ok(run_now()), Done::Applied);
        let line = "periodic job ubar/tick runs by hand as ubar/tick-19700101010000: requested";
        assert_eq!(cell.event_lines.last().map(String::as_str), Some(line));
        assert_eq!(cell.ok(run_now()), Done::Unchanged, "in the same second");
        assert_eq!((cron(&cell).runs.len(), cron(&cell).last_slot), (1, slot));
        for second in 1..3 {
            cell.now = 60 * MINUTE + second * 1000;
            assert_eq!(cell.ok(run_now()), Done::Applied);
        }
        assert_eq!(cron(&cell).runs, [JobId(1), JobId(2)], "as many as are kept");
        assert!(cell.send_as("ufoo", run_now()).is_err());
        let unknown = cron::Command::Run { cron: key("ubar/tock") };
        assert_eq!(cell.rejection_text(unknown), "there is no periodic job ubar/tock");
    }

    #[test]
    fn a_run_by_hand_overlaps_as_the_schedule_does() {
        let mut cell = with(|spec| spec.overlap = Overlap::Skip);
        cell.ok(run_now());
        cell.now += 5000;
        let goes_on = "not possible while ubar/tick-19700101010000, its last run, goes on";
        assert_eq!(cell.rejection_text(run_now()), goes_on);
        // To the schedule it is the last run.
        cell.now = 70 * MINUTE;
        cell.ok(fire(70));
        assert!(cell.event_lines[0].contains("skipped"), "{:?}", cell.event_lines);
        let mut cell = with(|spec| spec.overlap = Overlap::Replace);
        cell.ok(run_now());
        cell.run("tick-19700101010000", 0, "m1");
        cell.now += 5000;
        cell.ok(run_now());
        let stopped = "ubar/tick-19700101010000/0 told to stop on m1: requested";
        assert!(cell.event_lines.iter().any(|line| line == stopped), "{:?}", cell.event_lines);
    }

    #[test]
    fn a_run_by_hand_that_is_not_admitted_is_refused() {
        let mut cell = with(|spec| spec.job.reclaimable = false);
        assert!(cell.rejection_text(run_now()).contains("disable_reclamation"));
        assert_eq!(cron(&cell).last_job(), None);
    }

    fn check_overlap(overlap: Overlap, want: &str, jobs: usize) {
        let mut cell = with(|spec| spec.overlap = overlap);
        cell.ok(fire(60));
        cell.run("tick-197001010100", 0, "m1");
        cell.now = 70 * MINUTE;
        assert_eq!(cell.ok(fire(70)), Done::Applied);
        assert!(cell.event_lines.iter().any(|line| line.contains(want)), "{:?}", cell.event_lines);
        assert_eq!(cell.state.jobs().len(), jobs);
        assert_eq!(cell.ok(fire(70)), Done::Unchanged);
    }

    #[test]
    fn what_happens_while_the_last_run_goes_on() {
        check_overlap(Overlap::Allow, "runs as ubar/tick-197001010110", 2);
        check_overlap(Overlap::Skip, "of 197001010110 skipped: the last run still goes on", 1);
        check_overlap(Overlap::Replace, "ubar/tick-197001010100/0 told to stop", 2);
    }

    #[test]
    fn runs_beyond_those_kept_are_forgotten_and_kept_ones_outlive_a_purge() {
        let mut cell = with(|spec| spec.keep_runs = 2);
        for minutes in [60, 70, 80] {
            cell.now = minutes * MINUTE;
            cell.ok(fire(minutes));
            let run = format!("tick-19700101{:02}{:02}", minutes / 60, minutes % 60);
            cell.run(&run, 0, "m1");
            cell.report(&run, 0, Observed::Finished);
        }
        assert_eq!(cron(&cell).runs, [JobId(1), JobId(2)]);
        assert_eq!(cell.state.jobs().len(), 2);
        assert_eq!(cell.ok(Command::PurgeJobs { ended_before: Time::NEVER }), Done::Unchanged);
        cell.ok(set(spec(|spec| spec.keep_runs = 1)));
        assert_eq!(cron(&cell).runs, [JobId(2)]);
        assert_eq!(cell.state.jobs().len(), 1);
        cell.ok(cron::Command::Remove { cron: key("ubar/tick"), expect: None });
        assert_eq!(cell.ok(Command::PurgeJobs { ended_before: Time::NEVER }), Done::Applied);
    }

    #[test]
    fn changes_are_versioned_and_a_new_schedule_misses_nothing_old() {
        let mut cell = with(|spec| spec.missed = MissedRuns::RunAll { max: 9 });
        assert_eq!(due_slots(cron(&cell), Time(cell.now)).len(), 6);
        let paused = |paused| spec(|spec| spec.paused = paused);
        assert_eq!(cell.ok(set(paused(true))), Done::Version(2));
        assert_eq!(cell.ok(set(paused(true))), Done::Unchanged);
        let what = "not possible while periodic job ubar/tick is paused";
        cell.now = 70 * MINUTE;
        assert_eq!(cell.rejection_text(fire(70)), what);
        let stale = cron::Command::Set {
            owner: name("ubar"),
            spec: Box::new(paused(false)),
            expect: Some(1),
        };
        let expected = "periodic job ubar/tick is at version 2, not 1; read it again and retry";
        assert_eq!(cell.rejection_text(stale), expected);
        assert_eq!(cell.ok(set(paused(false))), Done::Version(3));
        assert_eq!(due_slots(cron(&cell), Time(cell.now)), []);
        assert_eq!(cell.ok(fire(70)), Done::Unchanged);
        let user = Command::RemoveUser { name: name("ubar"), expect: None };
        assert_eq!(cell.rejection_text(user), "not possible while user ubar has 1 periodic job");
        cell.ok(Command::AddUser { name: name("ufoo") });
        let remove = |expect| cron::Command::Remove { cron: key("ubar/tick"), expect };
        assert!(cell.send_as("ufoo", remove(None)).is_err());
        assert!(cell.send_as("ufoo", set(paused(true))).is_err());
        assert!(cell.rejection_text(remove(Some(1))).contains("version 3, not 1"));
        assert_eq!(cell.send_as("ubar", remove(Some(3))), Ok(Done::Applied));
        assert_eq!(cell.rejection_text(remove(None)), "there is no periodic job ubar/tick");
    }
}
