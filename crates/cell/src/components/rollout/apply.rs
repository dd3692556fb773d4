//! Keeping versions on record, and going back to one.

use super::{Event, JobVersion, JobVersionId, RolledBack, RolloutChange, VersionOrigin};
use crate::apply::Context;
use crate::command::{Actor, ApplyOutcome, ControllerName, Done, Verdict};
use crate::id::{JobId, UserId};
use crate::name::JobKey;
use crate::reason::{Allowed, Given, Reason, Rejection};
use crate::spec::JobSpec;
use crate::spec_change;
use std::sync::Arc;

/// Most versions that a rejection names.
const MAX_NAMED_VERSIONS: usize = 20;

impl Context<'_> {
    /// The job has just got a version, whose spec is in its row.
    pub(crate) fn record_version(
        &mut self,
        job: JobId,
        origin: VersionOrigin,
        old: Option<&JobSpec>,
    ) {
        let Some(row) = self.state.jobs.get(job) else { return };
        let (version, user, spec) = (row.version, row.user, row.spec().clone());
        let changed = old.map_or_else(Vec::new, |old| self.changed_fields(user, old, &spec));
        self.state.insert_version(JobVersion {
            job,
            version,
            at: self.now,
            by: self.by.clone(),
            origin,
            changed,
            spec: None,
            rolled_back: None,
        });
        self.drop_oldest_versions(job);
    }

    /// Fields in which two specs of a job of `owner` differ, as its history says it to all who may
    /// see its specs: whether somebody else hit upon the secret that was there, it does not.
    fn changed_fields(&self, owner: UserId, old: &JobSpec, new: &JobSpec) -> Vec<String> {
        let changes = spec_change::spec_changes(old, new);
        let mut fields: Vec<String> =
            changes.into_iter().map(|change| change.field.to_owned()).collect();
        let secrets = "task.secrets";
        let is_known = fields.iter().any(|field| field == secrets);
        if !new.task.secrets.is_empty() && !is_known && !self.compares_secrets(owner) {
            fields.push(secrets.to_owned());
        }
        fields
    }

    /// The job has dropped these specs: they are kept with their versions, as far as there is room.
    pub(crate) fn keep_dropped_specs(&mut self, job: JobId, dropped: Vec<(u32, Arc<JobSpec>)>) {
        for (version, spec) in dropped {
            if let Some(id) = self.state.components.rollout.id_of(job, version) {
                self.state.keep_spec(id, spec);
            }
        }
        self.drop_oldest_versions(job);
    }

    /// Drops the oldest versions that are not in use, until the job has no more than it may, and
    /// its owner no more bytes of them.
    fn drop_oldest_versions(&mut self, job: JobId) {
        let Some(user) = self.state.jobs.get(job).map(|row| row.user) else { return };
        let bounds = self.state.bounds;
        loop {
            let tables = &self.state.components.rollout;
            let ids = tables.of_job(job);
            let fits =
                ids.len() as u64 <= bounds.versions && tables.bytes_of(user) <= bounds.spec_bytes;
            let idle: Vec<(JobVersionId, &JobVersion)> = ids
                .iter()
                .filter_map(|id| Some((*id, tables.versions.get(*id)?)))
                .filter(|(_, row)| row.spec.is_some())
                .collect();
            // Sizes that the cell chose by itself are the least that anybody goes back to.
            let scaled = idle.iter().find(|(_, row)| is_of_scaling(row));
            let Some(&(id, JobVersion { version, .. })) = scaled.or(idle.first()).filter(|_| !fits)
            else {
                return;
            };
            let version = *version;
            self.state.remove_version(id);
            let event = Event { job, version, change: RolloutChange::Dropped };
            self.emit(event, Reason::TooManyVersions);
        }
    }

    /// The newest version with this spec that the cell rolled back, and nobody asked for again.
    pub(crate) fn rolled_back_alike(
        &self,
        job: JobId,
        owner: UserId,
        spec: &JobSpec,
    ) -> Option<u32> {
        let counts = |row: &&JobVersion| row.rolled_back.is_some_and(|mark| !mark.retried);
        let marked: Vec<u32> =
            self.state.versions_of(job).filter(counts).map(|row| row.version).collect();
        let is_alike = |version: &u32| {
            let old = self.state.spec_of_version(job, *version);
            old.is_some_and(|old| self.is_same_spec(owner, old, spec))
        };
        marked.into_iter().rev().find(is_alike)
    }

    /// An update to the spec of an earlier version. Where that is where the open update came from,
    /// it is undone: the same, without another version.
    pub(super) fn revert_job(
        &mut self,
        key: &JobKey,
        version: u32,
        expect: Option<u32>,
    ) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let Some(spec) = self.state.spec_of_version(id, version).cloned() else {
            let kept: Vec<u32> = self.state.versions_of(id).map(|row| row.version).collect();
            let latest = kept[kept.len().saturating_sub(MAX_NAMED_VERSIONS)..].to_vec();
            let allowed = Allowed::VersionKept(latest);
            return Err(Rejection::bad_field("version", Given::text(version), allowed));
        };
        let present =
            Done::Job { became: ApplyOutcome::Unchanged, version: job.version, closed: None };
        if version == job.version || self.is_same_spec(job.user, job.spec(), &spec) {
            return Ok(present);
        }
        self.check_expected_version(key, &job, expect)?;
        if job.update.as_ref().is_some_and(|update| update.from == version && !update.undoing) {
            self.undo_update(key, None)?;
            let became = ApplyOutcome::Updated;
            return Ok(Done::Job { became, version, closed: None });
        }
        let origin = VersionOrigin::Reverted { from: job.version, to: version };
        let (done, closed) = self.after_complete_update(key, |context| {
            let sized = spec.with_size_of(job.spec());
            context.open_update(&key.user, &sized, None, origin)
        })?;
        self.mark_retried(id, version);
        Ok(match done {
            Done::Version(version) => Done::Job { became: ApplyOutcome::Updated, version, closed },
            _ => present,
        })
    }

    /// Its owner asked for a version that was rolled back: it counts as failed no more.
    fn mark_retried(&mut self, job: JobId, version: u32) {
        let mark = self.state.job_version(job, version).and_then(|row| row.rolled_back);
        if let Some(mark) = mark.filter(|mark| !mark.retried) {
            self.state.mark_rolled_back(job, version, RolledBack { retried: true, ..mark });
        }
    }
}

fn is_of_scaling(row: &JobVersion) -> bool {
    row.by == Actor::Controller(ControllerName::Scaling)
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{ApplyOutcome, Command, Done, Observed};
    use crate::rollout::{self, JobVersion, VersionOrigin};
    use crate::spec::JobSpec;
    use crate::task::ExitClass;
    use crate::time::Span;
    use crate::update_policy::RollbackLimit;

    fn apply(spec: &JobSpec) -> Command {
        Command::ApplyJob {
            owner: name("ubar"),
            spec: Box::new(spec.clone()),
            expect: None,
            again: false,
        }
    }

    fn revert(version: u32, expect: Option<u32>) -> Command {
        rollout::Command::Revert { job: key("ubar/jfoo"), version, expect }.into()
    }

    fn versions(cell: &Cell) -> Vec<JobVersion> {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        cell.state.versions_of(id).cloned().collect()
    }

    fn numbers(cell: &Cell) -> Vec<u32> {
        versions(cell).iter().map(|row| row.version).collect()
    }

    /// A change without a restart, so that its update is complete at once.
    fn with_priority(spec: &JobSpec, priority: u16) -> JobSpec {
        let mut new = spec.clone();
        new.priority.0 = priority;
        new
    }

    fn running() -> (Cell, JobSpec) {
        let spec = job("jfoo", 1, 100);
        let mut cell = Cell::with_machines(1);
        cell.ok(apply(&spec));
        cell.run("jfoo", 0, "m1");
        (cell, spec)
    }

    #[test]
    fn every_version_is_on_record_with_what_changed() {
        let (mut cell, spec) = running();
        cell.ok(apply(&with_priority(&spec, 101)));
        cell.ok(apply(&with_priority(&spec, 102)));
        let size = crate::job_size::JobSize::tasks(2);
        cell.ok(Command::ResizeJob { job: key("ubar/jfoo"), size, expect: None });
        let rows = versions(&cell);
        let seen: Vec<_> =
            rows.iter().map(|row| (row.version, row.origin, row.changed.join(" "))).collect();
        assert_eq!(
            seen,
            [
                (1, VersionOrigin::Submitted, String::new()),
                (2, VersionOrigin::Updated { from: 1 }, "priority".into()),
                (3, VersionOrigin::Updated { from: 2 }, "priority".into()),
                (4, VersionOrigin::Resized { from: 3 }, "count".into()),
            ]
        );
        let own: Vec<bool> = rows.iter().map(|row| row.spec.is_some()).collect();
        assert_eq!(own, [true, true, true, false], "the job itself has the last");
    }

    #[test]
    fn so_many_versions_are_kept_and_none_that_is_in_use_is_dropped() {
        let (mut cell, spec) = running();
        let mut bounds = crate::bounds::Bounds { versions: 3, ..Default::default() };
        cell.ok(Command::SetBounds(bounds));
        for priority in 101..105 {
            cell.ok(apply(&with_priority(&spec, priority)));
        }
        // The last update is complete and open: it may be undone to version 4.
        assert_eq!(numbers(&cell), [3, 4, 5]);
        let refused = cell.rejection_text(revert(1, None));
        assert!(refused.contains("allowed: a version that is kept: 3, 4, 5"), "{refused}");
        bounds.versions = 1;
        cell.ok(Command::SetBounds(bounds));
        cell.ok(apply(&with_priority(&spec, 110)));
        assert_eq!(numbers(&cell), [5, 6]);
        assert!(cell.event_lines.iter().any(|line| {
            line == "ubar/jfoo version 4 no longer kept: newer versions take its place"
        }));
    }

    #[test]
    fn bytes_of_old_specs_are_bounded_for_each_user() {
        let (mut cell, spec) = running();
        let one = crate::bounds::encoded_bytes(&spec);
        let spec_bytes = 2 * one + one / 2;
        let bounds = crate::bounds::Bounds { spec_bytes, ..Default::default() };
        cell.ok(Command::SetBounds(bounds));
        for priority in 101..104 {
            cell.ok(apply(&with_priority(&spec, priority)));
            cell.ok(Command::CloseUpdate { job: key("ubar/jfoo"), expect: None });
        }
        assert_eq!(numbers(&cell), [2, 3, 4], "two old ones fit");
    }

    #[test]
    fn going_back_is_an_update_to_the_old_spec() {
        let (mut cell, spec) = running();
        cell.ok(apply(&with_priority(&spec, 101)));
        cell.ok(apply(&with_priority(&spec, 102)));
        let stale = cell.rejection_text(revert(1, Some(2)));
        assert!(stale.contains("is at version 3, not 2"), "{stale}");
        let back = Done::Job { became: ApplyOutcome::Updated, version: 4, closed: Some(3) };
        assert_eq!(cell.ok(revert(1, Some(3))), back);
        let last = versions(&cell).pop().unwrap();
        assert_eq!(last.origin, VersionOrigin::Reverted { from: 3, to: 1 });
        assert_eq!(last.changed, ["priority"]);
        let same = Done::Job { became: ApplyOutcome::Unchanged, version: 4, closed: None };
        assert_eq!(cell.ok(revert(4, None)), same);
        assert_eq!(cell.ok(revert(1, Some(9))), same, "it is so already");
    }

    #[test]
    fn going_back_from_an_open_update_undoes_it() {
        let (mut cell, spec) = running();
        let mut new = spec.clone();
        new.task.command = vec!["new".into()];
        cell.ok(apply(&new));
        let undone = Done::Job { became: ApplyOutcome::Updated, version: 1, closed: None };
        assert_eq!(cell.ok(revert(1, None)), undone);
        assert_eq!(cell.event_lines[0], "ubar/jfoo update undone, back to version 1: requested");
    }

    #[test]
    fn a_version_that_was_rolled_back_is_run_again_only_on_request() {
        let (mut cell, mut spec) = running();
        spec.update.rollback = Some(RollbackLimit { failures: 1, within: Span::seconds(60) });
        spec.restart.max_failures = None;
        spec.task.command = vec!["new".into()];
        cell.ok(apply(&spec));
        cell.ok(Command::StepUpdate { job: key("ubar/jfoo"), index: 0 });
        cell.report("jfoo", 0, Observed::Stopped);
        cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(1)));
        assert!(versions(&cell)[1].rolled_back.is_some());
        cell.ok(Command::CloseUpdate { job: key("ubar/jfoo"), expect: None });
        let refused = cell.rejection_text(apply(&spec));
        assert!(refused.contains("version 2 of job ubar/jfoo, which has this spec"), "{refused}");
        // Another one may be run, and the same one when it is named.
        let done = Done::Job { became: ApplyOutcome::Updated, version: 3, closed: None };
        assert_eq!(cell.ok(revert(2, None)), done);
        assert!(versions(&cell)[1].rolled_back.is_some_and(|mark| mark.retried));
    }

    #[test]
    fn versions_go_with_their_job() {
        let (mut cell, _) = running();
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!(numbers(&cell), [1], "its end is no reason to forget it");
        cell.now += 1000;
        let ended_before = crate::time::Time(cell.now);
        cell.ok(Command::PurgeJobs { ended_before });
        assert_eq!(cell.state.versions().iter().count(), 0);
    }
}
