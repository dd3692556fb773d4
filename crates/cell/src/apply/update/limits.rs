//! Limits that change while tasks run (B7): other limits for a job and nothing else, and what
//! agents report of limits in force.
//!
//! Growth is charged before a task may use it, and a cut when its agent has reported it: until then
//! [`crate::task::Task::counted_limits`] counts the most that the machine may still allow. A report
//! names the change that it is about by its number, so that one that was delayed confirms no later
//! change; see `docs/decisions/0043-limits-change-in-place.md`.
//!
//! New limits by themselves are no version to return to: the update that rolls them is over when
//! every task has them, and another change of limits takes its place. Rejected: an update like any
//! other. Whoever sets limits by measured use would leave one open after each change, and nobody
//! could update the job any more.

use super::super::reports::clear_waits;
use super::super::{Context, apply_job::job_outcome, jobs::next_version};
use super::with_update;
use crate::admit;
use crate::command::{ApplyOutcome, Done, Verdict};
use crate::event::{JobChange, TaskChange};
use crate::id::{JobId, TaskId};
use crate::name::JobKey;
use crate::reason::{Conflict, Reason, Rejection};
use crate::resource::Resources;
use crate::rollout::VersionOrigin;
use crate::spec::{JobSpec, LimitsOverride};

impl Context<'_> {
    /// Other limits for every task that has none of its own, and nothing else.
    pub(in crate::apply) fn resize_limits(
        &mut self,
        key: &JobKey,
        limits: LimitsOverride,
        expect: Option<u32>,
    ) -> Verdict {
        let (_, job) = self.job_to_change(key)?;
        let (old, version) = (job.spec(), job.version);
        let mut spec = JobSpec::clone(old);
        spec.task.limits = limits.over(old.task.limits);
        if spec == **old {
            return Ok(Done::Job { became: ApplyOutcome::Unchanged, version, closed: None });
        }
        self.check_expected_version(key, &job, expect)?;
        self.change_size(key, &spec)
    }

    /// Another size for a job, which is at some other: `spec` differs in nothing else.
    pub(in crate::apply) fn change_size(&mut self, key: &JobKey, spec: &JobSpec) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        if spec.task.limits.ram != job.spec().task.limits.ram {
            // There is no job file that would have been checked for it.
            admit::check(spec, admit::has_memory_to_start)?;
        }
        let change = |context: &mut Context<'_>| context.set_size(key, spec);
        let (done, closed) = match &job.update {
            // It is replaced, complete or not.
            Some(update) if update.limits_only && !update.undoing => (change(self)?, None),
            _ => self.after_complete_update(key, change)?,
        };
        self.note_sized_by_hand(id);
        Ok(job_outcome(done, ApplyOutcome::Resized, closed))
    }

    fn set_size(&mut self, key: &JobKey, spec: &JobSpec) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        if job.update.as_ref().is_some_and(|update| !update.limits_only || update.undoing) {
            return Err(Rejection::WrongState(Conflict::UpdateOpen(key.clone())));
        }
        admit::check_job(spec)?;
        self.check_room_for_tasks((spec.count as usize).saturating_sub(job.tasks.len()))?;
        let version = next_version(&job)?;
        let mut resized = with_update(&job, spec, version, self.now);
        if let Some(update) = &mut resized.update {
            update.limits_only = true;
            // What a job may use is nothing that some of its tasks could try for the others.
            update.canaries = 0;
        }
        self.check_quota(Some(&job), &resized)?;
        let growth = Self::growth(Some(&job), spec);
        let going = self.jobs_to_purge(job.user, growth, |_| false)?;
        self.purge_selected(&going);
        let old = job.spec().clone();
        self.touch_quotas(id);
        self.state.edit_job(id, |job| *job = resized);
        self.record_version(id, VersionOrigin::Resized { from: job.version }, Some(&*old));
        self.roll_to(id, old.count, JobChange::LimitsChanged { version }, self.size_reason());
        self.close_complete_resize(id);
        Ok(Done::Version(version))
    }

    /// A change of limits that every task has is over.
    fn close_complete_resize(&mut self, id: JobId) {
        let Some(job) = self.state.jobs.get(id) else { return };
        let Some(load) = self.state.job_loads.get(id) else { return };
        if load.at_version.keys().all(|version| *version == job.version) {
            self.touch_quotas(id);
            self.state.edit_job(id, |job| job.update = None);
            self.drop_unused_versions(id);
        }
    }

    /// The agent reports which limits are in force after so many changes; returns whether that is
    /// news.
    pub(in crate::apply) fn limits_reported(
        &mut self,
        id: TaskId,
        resizes: u32,
        in_force: Resources,
    ) -> bool {
        let Some(task) = self.state.tasks.get(id).cloned() else { return false };
        let Some(spec) = self.task_spec(&task) else { return false };
        let Some(before) = task.limits_in_force.as_deref().copied() else { return false };
        if task.resizes != resizes {
            return false;
        }
        let limits = spec.limits_of(task.index);
        let counted = task.counted_limits(limits);
        // Never more than what counts already: it has room for no more.
        let after = in_force.min(counted);
        if after == before && after != limits {
            return false;
        }
        let left = (after != limits).then_some(after);
        let counted = left.map_or(limits, |left| left.max(limits));
        let is_estimated = spec.reclaimable && spec.kind.runs_programs();
        let reservation = if is_estimated { task.reservation.min(counted) } else { counted };
        self.touch_quotas(task.job);
        self.touch_machines(id);
        self.state.edit_task(id, |row| {
            row.limits_in_force = left.map(Box::new);
            row.reservation = reservation;
            if let (None, true, Some(hold)) =
                (left, spec.kind.runs_programs(), row.holds.primary_mut())
            {
                clear_waits(&mut hold.grant);
            }
        });
        self.task_event(id, TaskChange::Resized { before, after }, Reason::AgentReport);
        true
    }

    /// The attempt whose limits were being changed ends: nothing of it counts any more.
    pub(in crate::apply) fn forget_limits_in_force(&mut self, id: TaskId) {
        let found = self.state.tasks.get(id).filter(|task| task.limits_in_force.is_some());
        let Some(task) = found.cloned() else { return };
        let Some(spec) = self.task_spec(&task) else { return };
        let limits = spec.limits_of(task.index);
        self.touch_quotas(task.job);
        self.touch_machines(id);
        self.state.edit_task(id, |row| {
            row.limits_in_force = None;
            row.reservation = row.reservation.min(limits);
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::admit::MIN_RAM;
    use crate::apply::fixture::{Cell, all, job, key, machine, name};
    use crate::command::{
        Actor, ApplyOutcome, Command, ControllerName, Done, Observed, ReservationChange,
    };
    use crate::desired::{Action, desired_tasks};
    use crate::id::MachineId;
    use crate::load::MachineLoad;
    use crate::observed::{LimitsInForce, ObservedState, ObservedTask, differences};
    use crate::priority::Band;
    use crate::resource::Resources;
    use crate::spec::{JobKind, JobSpec, LimitsOverride};
    use crate::task::{StopCause, TaskState};
    use TaskState::{Pending, Running, Stopping};

    const M1: MachineId = MachineId(0);

    /// Amounts of which one is enough memory to start with.
    fn units(amount: u64) -> Resources {
        all(amount * MIN_RAM)
    }

    /// `machines` machines of 100, and quotas of 100.
    fn cell(machines: u32) -> Cell {
        let mut cell = Cell::with_machines(0);
        for number in 0..machines {
            let name = format!("m{}", number + 1);
            cell.ok(Command::AddMachine(machine(&name, 100 * MIN_RAM)));
            cell.ok(Command::MachineUp { machine: MachineId(number), incarnation: 1 });
        }
        cell.grant("ubar", Band::Batch, 100 * MIN_RAM);
        cell.grant("ubar", Band::Production, 100 * MIN_RAM);
        cell
    }

    fn sized(name: &str, count: u32, priority: u16, amount: u64) -> JobSpec {
        let mut spec = job(name, count, priority);
        spec.task.limits = units(amount);
        spec
    }

    fn limits(amount: u64) -> Command {
        let (job, limits) = (key("ubar/jfoo"), units(amount).into());
        Command::ResizeLimits { job, limits, expect: None }
    }

    fn update(spec: &JobSpec) -> Command {
        Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec.clone()), expect: None }
    }

    /// `jfoo` of two tasks of 10 each, on `m1`.
    fn running(priority: u16) -> Cell {
        let mut cell = cell(2);
        cell.submit(&sized("jfoo", 2, priority, 10));
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        cell
    }

    fn load(cell: &Cell) -> MachineLoad {
        cell.state.machine_load(M1).unwrap().clone()
    }

    fn confirm(cell: &mut Cell, index: usize, amount: u64) {
        let resizes = cell.task("jfoo", index).resizes;
        cell.report("jfoo", index, Observed::LimitsInForce { resizes, limits: units(amount) });
    }

    #[test]
    fn growth_counts_at_once_and_restarts_nothing() {
        let mut cell = running(200);
        let done = cell.ok(limits(30));
        assert_eq!(done, Done::Job { became: ApplyOutcome::Resized, version: 2, closed: None });
        assert_eq!(cell.states("jfoo"), [Running, Running]);
        assert_eq!(cell.event_lines[0], "ubar/jfoo takes other limits as version 2: requested");
        assert_eq!((load(&cell).prod_limits, load(&cell).reserved), (units(60), units(60)));
        assert_eq!(cell.charged(Band::Production), units(60));
        let orders = desired_tasks(&cell.state, M1);
        let Action::Run(work) = &orders[0].action else { panic!("{orders:?}") };
        assert_eq!((work.limits, orders[0].resizes, orders[0].attempt), (units(30), 1, 1));
        confirm(&mut cell, 0, 30);
        let [line] = &cell.event_lines[..] else { panic!("{:?}", cell.event_lines) };
        assert!(line.starts_with("ubar/jfoo/0 resized, cpu 20,971.52 cores -> "), "{line}");
        assert!(line.contains(", ram 20 MiB -> 60 MiB, "), "{line}");
        assert!(line.ends_with(": seen by the machine's agent"), "{line}");
        assert_eq!(cell.task("jfoo", 0).limits_in_force, None);
        assert!(cell.task("jfoo", 1).limits_in_force.is_some());
        // There is no update to close.
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        let row = cell.state.jobs().get(id).unwrap();
        assert!(row.update.is_none() && row.specs.len() == 1);
    }

    #[test]
    fn a_cut_counts_when_the_agent_has_reported_it() {
        let mut cell = running(200);
        cell.ok(limits(4));
        assert_eq!(load(&cell).prod_limits, units(20), "both may still use ten");
        assert_eq!(cell.charged(Band::Production), units(20));
        // Memory is still used, so the first is cut as far as that goes.
        let held = Resources { ram: 7 * MIN_RAM, ..units(4) };
        let report = Observed::LimitsInForce { resizes: 1, limits: held };
        cell.report("jfoo", 0, report);
        assert_eq!(load(&cell).prod_limits, held.plus(units(10)));
        confirm(&mut cell, 0, 4);
        confirm(&mut cell, 1, 4);
        assert_eq!((load(&cell).prod_limits, load(&cell).reserved), (units(8), units(8)));
        assert_eq!(cell.charged(Band::Production), units(8));
    }

    #[test]
    fn a_report_about_an_earlier_change_confirms_no_later_one() {
        let mut cell = running(200);
        cell.ok(limits(30));
        cell.ok(limits(10));
        let task = cell.task_id("jfoo", 0);
        let report = |resizes, amount| {
            let limits = Some(LimitsInForce { resizes, limits: units(amount) });
            let state = ObservedState::Running { healthy: true };
            ObservedTask { task, attempt: 1, log_saver_run: 0, state, limits }
        };
        let found = |cell: &Cell, seen: ObservedTask| {
            let all = differences(&cell.state, M1, 1, &[seen]);
            all.into_iter().filter(|report| report.task == task).count()
        };
        // It has the limits of now, from before it was allowed more in between.
        assert_eq!(found(&cell, report(0, 10)) + found(&cell, report(1, 10)), 0);
        let late = Command::TaskReports {
            machine: M1,
            incarnation: 1,
            reports: vec![crate::command::TaskReport {
                task,
                attempt: 1,
                what: Observed::LimitsInForce { resizes: 1, limits: units(10) },
            }],
        };
        assert_eq!(cell.ok(late), Done::Unchanged);
        assert_eq!(cell.task("jfoo", 0).limits_in_force.as_deref(), Some(&units(30)));
        assert_eq!(found(&cell, report(2, 30)), 0, "no news");
        assert_eq!(found(&cell, report(2, 10)), 1);
        confirm(&mut cell, 0, 10);
        assert_eq!(found(&cell, report(2, 10)), 0);
    }

    #[test]
    fn only_what_no_longer_fits_moves_and_nothing_is_left_open() {
        let mut cell = running(200);
        cell.grant("ubar", Band::Production, 200 * MIN_RAM);
        cell.ok(limits(60));
        // The first fits beside the second as it was, the second beside nobody.
        let versions = |cell: &Cell| [0, 1].map(|index| cell.task("jfoo", index).version);
        assert_eq!(versions(&cell), [2, 1]);
        let step = |index| Command::StepUpdate { job: key("ubar/jfoo"), index };
        cell.ok(step(1));
        assert_eq!(cell.states("jfoo"), [Running, Stopping(StopCause::UpdateMoves)]);
        // Another change takes the place of this one.
        cell.ok(limits(50));
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!(cell.states("jfoo"), [Running, Pending]);
        assert_eq!(versions(&cell), [3, 3]);
        let close = Command::CloseUpdate { job: key("ubar/jfoo"), expect: Some(3) };
        let by = Actor::Controller(ControllerName::Update);
        cell.apply(by, close).unwrap();
    }

    #[test]
    fn an_update_of_more_than_limits_is_not_replaced() {
        let mut cell = running(200);
        let mut spec = sized("jfoo", 2, 200, 10);
        spec.task.command = vec!["new".into()];
        cell.ok(update(&spec));
        let open = "not possible while an update of job ubar/jfoo is open; \
                    close it or undo it first";
        assert_eq!(cell.rejection_text(limits(5)), open);
    }

    #[test]
    fn limits_of_a_changed_file_apply_in_place_and_can_be_undone() {
        let mut cell = running(200);
        let spec = sized("jfoo", 2, 200, 20);
        cell.ok(update(&spec));
        assert_eq!(cell.states("jfoo"), [Running, Running]);
        confirm(&mut cell, 0, 20);
        cell.ok(Command::UndoUpdate { job: key("ubar/jfoo"), expect: None });
        assert_eq!(cell.task("jfoo", 0).version, 1);
        assert_eq!(load(&cell).prod_limits, units(40), "until it is confirmed");
        confirm(&mut cell, 0, 10);
        confirm(&mut cell, 1, 10);
        assert_eq!(load(&cell).prod_limits, units(20));
    }

    #[test]
    fn what_was_estimated_stays_and_what_grows_is_reserved_whole() {
        let mut cell = running(100);
        let estimate = |cell: &Cell, reservation| {
            let task = cell.task_id("jfoo", 0);
            Command::SetReservations(vec![ReservationChange { task, attempt: 1, reservation }])
        };
        let command = estimate(&cell, units(3));
        cell.ok(command);
        let (more, less) = (Some(20 * MIN_RAM), Some(2 * MIN_RAM));
        let change = LimitsOverride { cpu: more, ram: less, ..LimitsOverride::default() };
        let resize = Command::ResizeLimits { job: key("ubar/jfoo"), limits: change, expect: None };
        cell.ok(resize);
        let row = cell.task("jfoo", 0);
        assert_eq!(row.reservation, Resources { cpu: 20 * MIN_RAM, ..units(3) });
        // More than the new limit may still be used, so it may be reserved.
        let command = estimate(&cell, Resources { cpu: 20 * MIN_RAM, ..units(9) });
        cell.ok(command);
        let now = Resources { cpu: 20 * MIN_RAM, ram: 2 * MIN_RAM, ..units(10) };
        cell.report("jfoo", 0, Observed::LimitsInForce { resizes: 1, limits: now });
        let row = cell.task("jfoo", 0);
        assert_eq!(row.reservation, now.min(Resources { cpu: 20 * MIN_RAM, ..units(9) }));
    }

    #[test]
    fn an_attempt_that_ends_takes_its_limits_along() {
        let mut cell = running(200);
        cell.ok(limits(4));
        cell.report("jfoo", 0, Observed::Lost);
        let row = cell.task("jfoo", 0);
        assert_eq!((row.limits_in_force.clone(), row.reservation), (None, units(4)));
        let mut spec = sized("jfoo", 2, 200, 4);
        spec.task.command = vec!["new".into()];
        cell.ok(update(&spec));
        cell.ok(Command::StepUpdate { job: key("ubar/jfoo"), index: 1 });
        let leaving = Stopping(StopCause::RestartInPlace);
        assert_eq!(cell.states("jfoo"), [Pending, leaving]);
        assert_eq!(load(&cell).prod_limits, units(10), "it is still there");
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!(load(&cell).prod_limits, units(4));
        assert_eq!(cell.charged(Band::Production), units(8));
    }

    #[test]
    fn an_alloc_gives_back_what_its_agent_no_longer_allows_it() {
        let mut cell = cell(1);
        let mut set = sized("jfoo", 1, 200, 40);
        set.kind = JobKind::AllocSet;
        cell.submit(&set);
        cell.run("jfoo", 0, "m1");
        cell.ok(limits(20));
        assert_eq!((load(&cell).prod_limits, load(&cell).reserved), (units(40), units(40)));
        // Nobody is placed into what it is about to lose.
        let mut inner = sized("inner", 1, 200, 30);
        inner.alloc_set = Some(key("ubar/jfoo"));
        cell.submit(&inner);
        let (task, alloc) = (cell.task_id("inner", 0), cell.task_id("jfoo", 0));
        let candidate = crate::fit::Candidate::of(&cell.state, task).unwrap();
        let infeasible = crate::fit::infeasible_reason(&cell.state, &candidate, M1, Some(alloc));
        assert!(infeasible.is_some());
        confirm(&mut cell, 0, 20);
        assert_eq!((load(&cell).prod_limits, load(&cell).reserved), (units(20), units(20)));
    }

    #[test]
    fn the_controller_that_sizes_jobs_may_and_others_may_not() {
        let mut cell = running(200);
        let as_part = |cell: &mut Cell, name| cell.apply(Actor::Controller(name), limits(5));
        assert!(as_part(&mut cell, ControllerName::Update).is_err());
        assert!(as_part(&mut cell, ControllerName::Scaling).is_ok());
        cell.ok(Command::AddUser { name: name("ufoo") });
        assert!(cell.send_as("ufoo", limits(6)).is_err());
        assert!(cell.send_as("ubar", limits(6)).is_ok());
    }
}
