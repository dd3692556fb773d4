//! Enforcement of per-user bounds on the state (`crate::bounds`): setting the figures, and making
//! room for new jobs by purging the owner's own dead ones.

use super::Context;
use crate::admit;
use crate::bounds::{BoundKind, Bounds, Growth, encoded_bytes};
use crate::command::{Actor, Done, Verdict};
use crate::event::EventKind;
use crate::id::{JobId, UserId};
use crate::job::Job;
use crate::name::Name;
use crate::priority::Band;
use crate::reason::{Allowed, Given, Reason, Rejection};
use crate::resource::MAX_QUANTITY;
use crate::spec::JobSpec;
use crate::time::Time;
use std::collections::BTreeSet;

/// Purging frees this part of the bound at once, so that jobs are searched once for many additions.
const HEADROOM_DIVISOR: u64 = 16;
/// In one dimension: two hundred thousand tasks of it stay far from overflow.
const MAX_LEAST_CHARGE: u64 = 1 << 30;

impl Context<'_> {
    pub(super) fn set_bounds(&mut self, bounds: &Bounds) -> Verdict {
        admit::check_bounded("least_charge", bounds.least_charge, MAX_LEAST_CHARGE)?;
        admit::check_bounded("default_disk", bounds.default_disk(), MAX_QUANTITY)?;
        if bounds.machine_tasks == 0 {
            let (value, allowed) = (Given::text(0), Allowed::AtLeast(1));
            return Err(Rejection::bad_field("machine_tasks", value, allowed));
        }
        if self.state.bounds == *bounds {
            return Ok(Done::Unchanged);
        }
        self.state.set_bounds(*bounds);
        let users: Vec<UserId> = self.state.users.iter().map(|(id, _)| id).collect();
        let bands = users.iter().flat_map(|user| Band::ALL.map(|band| (*user, band)));
        self.charged.extend(bands);
        self.emit(EventKind::BoundsChanged, Reason::Requested);
        Ok(Done::Applied)
    }

    /// The growth of what its owner has by a job of this spec; `before`: the job it changes.
    pub(super) fn growth(before: Option<&Job>, spec: &JobSpec) -> Growth {
        let rows = before.map_or(0, |job| job.tasks.len() as u64);
        Growth {
            jobs: u64::from(before.is_none()),
            tasks: u64::from(spec.count).saturating_sub(rows),
            spec_bytes: encoded_bytes(spec),
        }
    }

    /// The user's dead jobs that have to be purged to make room, oldest first; none of those in
    /// `needed`. Decides only.
    pub(crate) fn jobs_to_purge(
        &self,
        user: UserId,
        growth: Growth,
        needed: impl Fn(JobId) -> bool,
    ) -> Result<BTreeSet<JobId>, Rejection> {
        let Some(load) = self.state.user_load(user) else { return Ok(BTreeSet::new()) };
        let mut held = Growth { jobs: load.jobs, tasks: load.tasks, spec_bytes: load.spec_bytes };
        let mut to_purge = BTreeSet::new();
        let Err(rejection) = self.check_bounds(user, held, growth, 0) else { return Ok(to_purge) };
        let runs = self.state.crons().iter().flat_map(|(_, cron)| cron.runs.iter().copied());
        let kept: BTreeSet<JobId> = runs.collect();
        let own = |id: JobId, job: &Job| job.user == user && !kept.contains(&id) && !needed(id);
        let ended = |id: JobId| self.state.jobs.get(id).and_then(|job| job.ended_at);
        let mut dead: Vec<(Option<Time>, JobId)> =
            self.purgeable_jobs(own).into_keys().map(|id| (ended(id), id)).collect();
        dead.sort_unstable();
        for (_, id) in dead {
            if self.check_bounds(user, held, growth, HEADROOM_DIVISOR).is_ok() {
                break;
            }
            let Some(job) = self.state.jobs.get(id) else { continue };
            let bytes = job.specs.values().map(encoded_bytes).fold(0, u64::saturating_add);
            held.jobs = held.jobs.saturating_sub(1);
            held.tasks = held.tasks.saturating_sub(job.tasks.len() as u64);
            held.spec_bytes = held.spec_bytes.saturating_sub(bytes);
            to_purge.insert(id);
        }
        // It is too much even without the dead jobs: purging them would not help.
        self.check_bounds(user, held, growth, 0).map_err(|_| rejection)?;
        Ok(to_purge)
    }

    /// Purges the jobs that [`Context::jobs_to_purge`] chose.
    pub(crate) fn purge_selected(&mut self, to_purge: &BTreeSet<JobId>) {
        if !to_purge.is_empty() {
            self.purge(|id, _| to_purge.contains(&id));
        }
    }

    /// `headroom_divisor`: a part of each bound, as its denominator, that is to stay free; 0 for
    /// none.
    fn check_bounds(
        &self,
        user: UserId,
        held: Growth,
        growth: Growth,
        headroom_divisor: u64,
    ) -> Result<(), Rejection> {
        let Some(row) = self.state.users.get(user) else { return Ok(()) };
        let bounds = &self.state.bounds;
        let most = |bound: u64| bound - bound.checked_div(headroom_divisor).unwrap_or(0);
        for (what, held, requested, bound) in [
            (BoundKind::Jobs, held.jobs, growth.jobs, bounds.jobs),
            (BoundKind::Tasks, held.tasks, growth.tasks, bounds.tasks),
            (BoundKind::SpecBytes, held.spec_bytes, growth.spec_bytes, bounds.spec_bytes),
        ] {
            Bounds::check(&row.name, what, (held, requested), most(bound))?;
        }
        Ok(())
    }

    /// Checks whether the actor may have one more row of something it has `held` of. Agents are
    /// checked because they run where tasks may break out; the cell's other parts are trusted.
    pub(crate) fn check_one_more(
        &self,
        what: BoundKind,
        held: usize,
        most: u64,
    ) -> Result<(), Rejection> {
        match self.by {
            Actor::User(name) | Actor::Agent(name) => {
                Self::check_one_more_for(name, what, held, most)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check_one_more_for(
        name: &Name,
        what: BoundKind,
        held: usize,
        most: u64,
    ) -> Result<(), Rejection> {
        Bounds::check(name, what, (held as u64, 1), most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, all, job, key, name};
    use crate::command::{Command, Observed};
    use crate::job_size::JobSize;
    use crate::resource::Resources;

    fn bounded(change: impl FnOnce(&mut Bounds)) -> Cell {
        let mut cell = Cell::with_machines(1);
        let mut bounds = Bounds::default();
        change(&mut bounds);
        assert_eq!(cell.ok(Command::SetBounds(bounds)), Done::Applied);
        assert_eq!(cell.ok(Command::SetBounds(bounds)), Done::Unchanged);
        cell
    }

    fn submit(cell: &mut Cell, job: &str, count: u32) -> String {
        let mut spec = crate::apply::fixture::job(job, count, 100);
        spec.task.limits = all(1);
        let verdict =
            cell.send_as("ubar", Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec) });
        crate::words::verdict(&cell.state, &verdict)
    }

    #[test]
    fn only_the_cell_itself_sets_bounds() {
        let mut cell = Cell::with_machines(1);
        let verdict = cell.send_as("ubar", Command::SetBounds(Bounds::default()));
        assert!(matches!(verdict, Err(Rejection::WrongActor { .. })), "{verdict:?}");
    }

    #[test]
    fn a_user_has_so_many_jobs_and_the_oldest_dead_one_makes_way() {
        let mut cell = bounded(|bounds| bounds.jobs = 2);
        assert_eq!(submit(&mut cell, "one", 1), "done, now at version 1");
        assert_eq!(submit(&mut cell, "two", 1), "done, now at version 1");
        let full = "refused: user ubar has 2 jobs on record and asks for 1 more; at most 2 for \
                    each user";
        assert_eq!(submit(&mut cell, "three", 1), full);
        cell.run("one", 0, "m1");
        cell.report("one", 0, Observed::Finished);
        assert_eq!(submit(&mut cell, "three", 1), "done, now at version 1");
        assert!(cell.state.job_named(&key("ubar/one")).is_none(), "it ended first");
        assert!(cell.state.job_named(&key("ubar/two")).is_some());
    }

    #[test]
    fn tasks_of_all_jobs_of_a_user_are_counted_together() {
        let mut cell = bounded(|bounds| bounds.tasks = 10);
        assert_eq!(submit(&mut cell, "one", 6), "done, now at version 1");
        assert!(submit(&mut cell, "two", 5).contains("6 tasks on record and asks for 5 more"));
        assert_eq!(submit(&mut cell, "two", 4), "done, now at version 1");
        let resize = |count| Command::ResizeJob {
            job: key("ubar/one"),
            size: JobSize::tasks(count),
            expect: None,
        };
        assert!(cell.rejection_text(resize(7)).contains("asks for 1 more; at most 10"));
        // Rows live as long as their job, so a job that shrank grows back into them.
        cell.ok(resize(2));
        cell.ok(resize(6));
    }

    #[test]
    fn specs_are_bounded_in_bytes_updates_and_schedules_included() {
        let spec_bytes = 2 * encoded_bytes(&job("one", 1, 100)) + 10;
        let mut cell = bounded(|bounds| bounds.spec_bytes = spec_bytes);
        assert_eq!(submit(&mut cell, "one", 1), "done, now at version 1");
        let mut large = job("two", 1, 100);
        large.task.env.insert("A".into(), "x".repeat(500));
        let owner = name("ubar");
        let message =
            cell.rejection_text(Command::SubmitJob { owner: owner.clone(), spec: Box::new(large) });
        assert!(message.contains("bytes of job specs"), "{message}");
        let mut larger = job("one", 1, 100);
        larger.task.env.insert("A".into(), "x".repeat(500));
        let message =
            cell.rejection_text(Command::UpdateJob { owner, spec: Box::new(larger), expect: None });
        assert!(message.contains("bytes of job specs"), "{message}");
    }

    /// Replacing something of the same size takes no more room.
    #[test]
    fn a_user_at_the_bound_of_bytes_still_resizes() {
        let mut cell = Cell::with_machines(1);
        assert_eq!(submit(&mut cell, "one", 5), "done, now at version 1");
        let bounds = Bounds { spec_bytes: 10, ..Bounds::default() };
        cell.ok(Command::SetBounds(bounds));
        let resize = |count| Command::ResizeJob {
            job: key("ubar/one"),
            size: JobSize::tasks(count),
            expect: None,
        };
        cell.ok(resize(2));
        cell.ok(resize(5));
        let message = submit(&mut cell, "two", 1);
        assert!(message.contains("bytes of job specs"), "{message}");
    }

    #[test]
    fn no_task_is_free_where_there_is_a_least_charge() {
        let least_charge = Resources::new(2, 5, 0, 0);
        let mut cell = bounded(|bounds| bounds.least_charge = least_charge);
        let mut spec = job("nothing", 4, 100);
        spec.task.limits = Resources::ZERO;
        spec.task.isolation.slack_ram = true;
        cell.submit(&spec);
        assert_eq!(cell.charged(Band::Batch), Resources::new(8, 20, 0, 0));
        let mut little = job("little", 1, 100);
        little.task.limits = Resources::new(1, 9, 3, 3);
        cell.submit(&little);
        assert_eq!(cell.charged(Band::Batch), Resources::new(10, 29, 3, 3));
        // New limits apply to what is there already, and an excess is flagged.
        let bounds = Bounds { least_charge: all(1000), ..Bounds::default() };
        cell.ok(Command::SetBounds(bounds));
        assert_eq!(cell.charged(Band::Batch), all(5000));
        let user = cell.state.users().get(UserId(0)).unwrap();
        assert!(user.exceeded.contains(&Band::Batch));
        cell.ok(Command::SetBounds(Bounds::default()));
        assert_eq!(cell.charged(Band::Batch), Resources::new(1, 9, 3, 3));
    }

    #[test]
    fn a_least_charge_takes_quota_that_zero_limits_would_not() {
        let mut cell = bounded(|bounds| bounds.least_charge = all(10));
        let mut spec = job("nothing", 1, 100);
        spec.task.limits = Resources::ZERO;
        spec.count = 100_000;
        let message =
            cell.rejection_text(Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec) });
        assert!(message.contains("quota of ubar"), "{message}");
    }
}
