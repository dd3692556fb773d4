//! Daemons follow the machines of the cell: one task for each machine that is theirs, none for any
//! other ([`crate::daemon`] says which are). A controller asks for it whenever they differ; a
//! daemon that is submitted or updated follows at once.
//!
//! The owner is charged for the tasks that are there, and a daemon grows as far as quota goes: the
//! machines beyond it stay without a task, and the job says how many. Rejected: a task for every
//! machine whatever the quota. Whoever adds a machine would spend what others own.

use super::Context;
use crate::bounds::Growth;
use crate::command::{Done, Verdict};
use crate::daemon::{self, MachineChanges};
use crate::event::JobChange;
use crate::id::{JobId, MachineId, TaskId};
use crate::job::Job;
use crate::name::{JobKey, Name};
use crate::reason::{Reason, Rejection, Storage};
use crate::spec::MAX_TASKS;
use crate::task::StopCause;
use crate::time::Time;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Context<'_> {
    /// Controllers: a daemon shall have a task for each of its machines.
    pub(super) fn match_machines(&mut self, key: &JobKey) -> Verdict {
        let (id, _) = self.job_to_change(key)?;
        let done =
            if self.follow_machines(id, Time::ZERO) { Done::Applied } else { Done::Unchanged };
        Ok(done)
    }

    /// The job with a task for each machine that is its own now, as far as charges go; other jobs
    /// as they are.
    pub(super) fn on_all_machines<'j>(&self, job: &'j Job) -> Cow<'j, Job> {
        let changes = daemon::machine_changes(self.state, job);
        if changes.join.is_empty() {
            return Cow::Borrowed(job);
        }
        Cow::Owned(with_machines(job, &changes.join))
    }

    /// Brings the tasks of a daemon in line with its machines, as far as quota goes; new rows wait
    /// until `earliest`. Returns whether anything changed.
    pub(super) fn follow_machines(&mut self, id: JobId, earliest: Time) -> bool {
        let Some(before) = self.state.jobs.get(id).cloned() else { return false };
        let MachineChanges { join, leave } = daemon::machine_changes(self.state, &before);
        self.touch_quotas(id);
        for (index, why) in &leave {
            self.leave_machine(id, *index, why.clone());
        }
        let left_out = self.join_machines(id, &join, earliest);
        self.touch_quotas(id);
        let machines = self.state.jobs.get(id).map(|job| job.machines.clone()).unwrap_or_default();
        if machines != before.machines {
            let change = JobChange::MachinesMatched { tasks: machines.len() as u32 };
            self.job_event(id, change, Reason::MachinesChanged);
        }
        if left_out != before.machines_left_out {
            self.state.edit_job(id, |job| job.machines_left_out = left_out);
            let change = JobChange::MachinesLeftOut { machines: left_out };
            self.job_event(id, change, Reason::MachinesChanged);
        }
        machines != before.machines || left_out != before.machines_left_out
    }

    /// A machine that is removed is nobody's any more. Its tasks are ended here, so that losing
    /// them does not put them back into the queue.
    pub(super) fn forget_machine(&mut self, machine: MachineId) {
        let with_it = |(id, job): (JobId, &Job)| {
            let index = job.machines.iter().find(|(_, held)| **held == machine)?.0;
            Some((id, *index))
        };
        let found: Vec<(JobId, u32)> = self.state.jobs.iter().filter_map(with_it).collect();
        for (id, index) in found {
            self.touch_quotas(id);
            self.leave_machine(id, index, Reason::MachineRemoved);
            let tasks = self.state.jobs.get(id).map_or(0, |job| job.machines.len() as u32);
            let change = JobChange::MachinesMatched { tasks };
            self.job_event(id, change, Reason::MachinesChanged);
        }
    }

    fn leave_machine(&mut self, id: JobId, index: u32, why: Reason) {
        let mut task = None;
        self.state.edit_job(id, |job| {
            Arc::make_mut(&mut job.machines).remove(&index);
            task = job.tasks.get(index as usize).copied();
        });
        if let Some(task) = task {
            self.stop_task(task, StopCause::Killed, why);
        }
    }

    /// Gives tasks to the first of these machines, as many as quota and limits allow; returns how
    /// many are left out.
    fn join_machines(&mut self, id: JobId, join: &[MachineId], earliest: Time) -> u32 {
        let Some(job) = self.state.jobs.get(id).cloned() else { return 0 };
        let (mut fits, mut beyond) = (0, join.len() + 1);
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            match self.check_room_for_machines(&job, &join[..middle]) {
                Ok(()) => fits = middle,
                Err(_) => beyond = middle,
            }
        }
        let (taken, left) = join.split_at(fits);
        if !taken.is_empty() {
            self.give_tasks(id, &job, taken, earliest);
        }
        left.len() as u32
    }

    fn check_room_for_machines(&self, job: &Job, join: &[MachineId]) -> Result<(), Rejection> {
        self.check_quota(Some(job), &with_machines(job, join))?;
        let rows = new_rows(job, &self.indices_for(job, join));
        self.check_room_for_tasks(rows)?;
        if job.tasks.len() + rows > MAX_TASKS as usize {
            return Err(Rejection::Full(Storage::Tasks));
        }
        self.jobs_to_purge(job.user, more_tasks(rows), |_| false).map(drop)
    }

    fn give_tasks(&mut self, id: JobId, job: &Job, taken: &[MachineId], earliest: Time) {
        let indices = self.indices_for(job, taken);
        let rows = new_rows(job, &indices);
        // It was checked that there is room once they are gone.
        let going = self.jobs_to_purge(job.user, more_tasks(rows), |_| false).unwrap_or_default();
        self.purge_selected(&going);
        self.state.edit_job(id, |job| {
            let machines = Arc::make_mut(&mut job.machines);
            machines.extend(indices.iter().copied().zip(taken.iter().copied()));
        });
        let earliest = earliest.max(self.leases_end(id));
        let mut tasks = (*job.tasks).clone();
        for index in indices {
            match tasks.get(index as usize) {
                Some(task) => self.start_again(*task),
                None => tasks.extend(self.new_task(id, index, earliest)),
            }
        }
        let tasks = Arc::new(tasks);
        self.state.edit_job(id, |job| job.tasks = tasks);
    }

    /// An index for each of the machines: the one that it had, else the lowest of a task that is
    /// gone, else a new one.
    fn indices_for(&self, job: &Job, machines: &[MachineId]) -> Vec<u32> {
        let unused = |index: &u32| !job.machines.contains_key(index);
        let mut free: Vec<(u32, TaskId)> =
            (0u32..).zip(job.tasks.iter().copied()).filter(|(index, _)| unused(index)).collect();
        let mut chosen: BTreeMap<MachineId, u32> = BTreeMap::new();
        for machine in machines {
            let Some(row) = self.state.machines.get(*machine) else { continue };
            if let Some(at) =
                free.iter().position(|(_, task)| self.was_on(*task, *machine, &row.spec.name))
            {
                chosen.insert(*machine, free.remove(at).0);
            }
        }
        free.retain(|(_, task)| self.state.tasks.get(*task).is_some_and(|row| row.state.is_dead()));
        let new = job.tasks.len() as u32;
        let mut rest = free.into_iter().map(|(index, _)| index).chain(new..);
        let index = |machine: &MachineId| match chosen.get(machine) {
            Some(index) => Some(*index),
            None => rest.next(),
        };
        machines.iter().filter_map(index).collect()
    }

    /// Whether the task is still on the machine, or ran on one of that name last.
    fn was_on(&self, task: TaskId, machine: MachineId, name: &Name) -> bool {
        let Some(row) = self.state.tasks.get(task) else { return false };
        row.machine() == Some(machine)
            || row.last_end.as_ref().is_some_and(|end| end.machine == *name)
    }
}

/// The job with these machines as well: which indices they get does not matter for charges.
fn with_machines(job: &Job, join: &[MachineId]) -> Job {
    let mut grown = job.clone();
    let after = grown.machines.last_key_value().map_or(0, |(index, _)| index + 1);
    let first = after.max(job.tasks.len() as u32);
    Arc::make_mut(&mut grown.machines).extend((first..).zip(join.iter().copied()));
    grown
}

/// Rows that the job does not have yet, for tasks with these indices.
fn new_rows(job: &Job, indices: &[u32]) -> usize {
    indices.iter().filter(|index| **index as usize >= job.tasks.len()).count()
}

fn more_tasks(rows: usize) -> Growth {
    Growth { jobs: 0, tasks: rows as u64, spec_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key, machine, name};
    use crate::bounds::Bounds;
    use crate::command::{Command, Done, Observed};
    use crate::constraint::{Constraint, Operator, Strength};
    use crate::daemon::{self, DaemonMachines};
    use crate::fit;
    use crate::id::MachineId;
    use crate::job::JobState;
    use crate::job_size::JobSize;
    use crate::name::Token;
    use crate::priority::Band;
    use crate::spec::{JobKind, JobSpec};
    use crate::task::{ExitClass, StopCause, TaskOutcome, TaskState};
    use TaskState::{Assigned, Pending, Running};

    fn spec() -> JobSpec {
        let mut spec = job("dae", 1, 100);
        spec.kind = JobKind::Daemon;
        spec.restart.max_failures = None;
        spec
    }

    fn follow(cell: &mut Cell) -> Done {
        cell.ok(Command::MatchMachines { job: key("ubar/dae") })
    }

    fn add_machine(cell: &mut Cell, text: &str) -> MachineId {
        cell.ok(Command::AddMachine(machine(text, 100)));
        let machine = cell.state.machine_named(&name(text)).unwrap();
        cell.ok(Command::MachineUp { machine, incarnation: 1 });
        machine
    }

    /// Names of the machines by index.
    fn machines(cell: &Cell) -> Vec<(u32, String)> {
        let id = cell.state.job_named(&key("ubar/dae")).unwrap();
        let job = cell.state.jobs().get(id).unwrap();
        let name = |id: &MachineId| cell.state.machines().get(*id).unwrap().spec.name.to_string();
        job.machines.iter().map(|(index, machine)| (*index, name(machine))).collect()
    }

    fn seen(cell: &Cell) -> DaemonMachines {
        let id = cell.state.job_named(&key("ubar/dae")).unwrap();
        daemon::machines_of(&cell.state, cell.state.jobs().get(id).unwrap()).unwrap()
    }

    fn on(list: &[(u32, &str)]) -> Vec<(u32, String)> {
        list.iter().map(|(index, name)| (*index, (*name).to_owned())).collect()
    }

    #[test]
    fn every_machine_has_one_task_and_a_machine_that_joins_gets_one() {
        let mut cell = Cell::with_machines(2);
        cell.submit(&spec());
        assert_eq!(cell.states("dae"), [Pending; 2]);
        assert_eq!(machines(&cell), on(&[(0, "m1"), (1, "m2")]));
        cell.run("dae", 0, "m1");
        cell.run("dae", 1, "m2");
        assert_eq!(cell.charged(Band::Batch), all(20));
        assert_eq!(follow(&mut cell), Done::Unchanged);
        add_machine(&mut cell, "m3");
        assert_eq!(follow(&mut cell), Done::Applied);
        let lines = &cell.event_lines;
        assert!(lines.iter().any(|line| line.contains("3 machines")), "{lines:?}");
        assert_eq!(cell.states("dae"), [Running, Running, Pending]);
        assert_eq!(cell.charged(Band::Batch), all(30));
        // It fits nowhere but on its own machine.
        let task = cell.task_id("dae", 2);
        let candidate = fit::Candidate::of(&cell.state, task).unwrap();
        let why = fit::infeasible_reason(&cell.state, &candidate, MachineId(0), None).unwrap();
        assert_eq!(why.code(), "other-machine");
        cell.run("dae", 2, "m3");
        cell.ok(Command::RemoveMachine { name: name("m2"), expect: None });
        assert_eq!(machines(&cell), on(&[(0, "m1"), (2, "m3")]));
        let killed = TaskState::Dead(TaskOutcome::Killed);
        assert_eq!(cell.states("dae"), [Running, killed, Running]);
        assert_eq!(cell.charged(Band::Batch), all(20));
        // The next machine takes the index that is free.
        add_machine(&mut cell, "m4");
        follow(&mut cell);
        assert_eq!(machines(&cell), on(&[(0, "m1"), (1, "m4"), (2, "m3")]));
        cell.run("dae", 1, "m4");
    }

    #[test]
    fn a_machine_that_comes_back_has_its_index_again() {
        let mut cell = Cell::with_machines(3);
        cell.submit(&spec());
        for (index, machine) in ["m1", "m2", "m3"].into_iter().enumerate() {
            cell.run("dae", index, machine);
        }
        cell.ok(Command::MachineDown { machine: MachineId(1) });
        cell.ok(Command::MachineDown { machine: MachineId(0) });
        follow(&mut cell);
        assert_eq!(machines(&cell), on(&[(2, "m3")]));
        let want = DaemonMachines { matching: 3, with_task: 1, down: 2, ..Default::default() };
        assert_eq!(seen(&cell), want);
        // No task of a machine that is down counts against the job's budget.
        let id = cell.state.job_named(&key("ubar/dae")).unwrap();
        assert_eq!(cell.state.job_load(id).unwrap().down(), 0);
        cell.ok(Command::MachineUp { machine: MachineId(1), incarnation: 2 });
        follow(&mut cell);
        assert_eq!(machines(&cell), on(&[(1, "m2"), (2, "m3")]));
        assert_eq!(cell.states("dae")[1], Pending);
    }

    #[test]
    fn a_daemon_leaves_a_draining_machine_last_and_comes_back_after_it() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&spec());
        cell.run("dae", 0, "m1");
        cell.submit(&job("web", 1, 100));
        cell.run("web", 0, "m1");
        cell.ok(Command::StartDrain { name: name("m1"), expect: None });
        assert_eq!(follow(&mut cell), Done::Unchanged);
        let (task, attempt) = (cell.task_id("web", 0), 1);
        let cause = crate::command::EvictCause::Drain;
        cell.ok(Command::Evict { task, attempt, cause });
        assert_eq!(follow(&mut cell), Done::Unchanged, "it is still leaving");
        cell.report("web", 0, Observed::Stopped);
        assert_eq!(follow(&mut cell), Done::Applied);
        assert_eq!(cell.states("dae"), [TaskState::Stopping(StopCause::Killed)]);
        cell.report("dae", 0, Observed::Stopped);
        assert_eq!(cell.states("dae"), [TaskState::Dead(TaskOutcome::Killed)]);
        let want = DaemonMachines { matching: 1, draining: 1, ..Default::default() };
        assert_eq!(seen(&cell), want);
        // The job lives on without tasks, and can be changed.
        let mut other = spec();
        other.task.command = vec!["other".into()];
        cell.ok(Command::ApplyJob {
            owner: name("ubar"),
            spec: Box::new(other),
            expect: None,
            again: false,
        });
        cell.ok(Command::StopDrain { name: name("m1"), expect: None });
        follow(&mut cell);
        assert_eq!(cell.states("dae"), [Pending]);
        // A stop that is taken back before the task is gone.
        cell.run("dae", 0, "m1");
        cell.ok(Command::StartDrain { name: name("m1"), expect: None });
        follow(&mut cell);
        cell.ok(Command::StopDrain { name: name("m1"), expect: None });
        follow(&mut cell);
        cell.report("dae", 0, Observed::Stopped);
        assert_eq!((cell.states("dae"), machines(&cell)), (vec![Pending], on(&[(0, "m1")])));
        cell.run("dae", 0, "m1");
    }

    #[test]
    fn it_grows_as_far_as_quota_goes_and_says_what_is_left_out() {
        let mut cell = Cell::with_machines(2);
        cell.grant("ubar", Band::Batch, 19);
        let text =
            cell.rejection_text(Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec()) });
        assert!(text.contains("quota of ubar") && text.contains("short by"), "{text}");
        cell.grant("ubar", Band::Batch, 25);
        cell.submit(&spec());
        for at in 3..6 {
            add_machine(&mut cell, &format!("m{at}"));
        }
        assert_eq!(follow(&mut cell), Done::Applied);
        assert_eq!(cell.event_lines.len(), 1, "{:?}", cell.event_lines);
        assert!(cell.event_lines[0].contains("3 more machines"), "{:?}", cell.event_lines);
        assert_eq!((seen(&cell).with_task, seen(&cell).without_quota), (2, 3));
        assert_eq!(follow(&mut cell), Done::Unchanged);
        cell.grant("ubar", Band::Batch, 40);
        assert_eq!(follow(&mut cell), Done::Applied);
        assert_eq!((seen(&cell).with_task, seen(&cell).without_quota), (4, 1));
        assert_eq!(cell.charged(Band::Batch), all(40));
        // A cut takes no task away.
        cell.grant("ubar", Band::Batch, 10);
        assert_eq!(follow(&mut cell), Done::Unchanged);
        cell.grant("ubar", Band::Batch, 100);
        let bound = Bounds { tasks: 4, ..Bounds::default() };
        cell.ok(Command::SetBounds(bound));
        assert_eq!(follow(&mut cell), Done::Unchanged, "as many tasks as its owner may have");
        cell.ok(Command::SetBounds(Bounds::default()));
        follow(&mut cell);
        assert_eq!((seen(&cell).with_task, seen(&cell).without_quota), (5, 0));
    }

    #[test]
    fn constraints_choose_the_machines_and_an_update_may_choose_others() {
        let mut cell = Cell::with_machines(2);
        let has_flash = |wanted: bool| Constraint {
            attribute: Token::new("flash").unwrap(),
            operator: if wanted { Operator::Exists } else { Operator::Absent },
            strength: Strength::Hard,
        };
        let mut flash = machine("m2", 100);
        let yes = crate::constraint::AttributeValue::Text("yes".into());
        flash.attributes.insert(Token::new("flash").unwrap(), yes);
        cell.ok(Command::UpdateMachine { spec: flash, expect: None });
        let mut spec = spec();
        spec.constraints = vec![has_flash(true)];
        cell.submit(&spec);
        assert_eq!((machines(&cell), seen(&cell).matching), (on(&[(0, "m2")]), 1));
        cell.run("dae", 0, "m2");
        spec.constraints = vec![has_flash(false)];
        cell.ok(Command::ApplyJob {
            owner: name("ubar"),
            spec: Box::new(spec.clone()),
            expect: None,
            again: false,
        });
        assert_eq!(machines(&cell), on(&[(1, "m1")]));
        let leaves = TaskState::Stopping(StopCause::Killed);
        assert_eq!(cell.states("dae"), [leaves, Pending]);
        cell.report("dae", 0, Observed::Stopped);
        cell.run("dae", 1, "m1");
        // The operator changes the machine.
        let mut flash = machine("m1", 100);
        let yes = crate::constraint::AttributeValue::Text("yes".into());
        flash.attributes.insert(Token::new("flash").unwrap(), yes);
        cell.ok(Command::UpdateMachine { spec: flash, expect: None });
        follow(&mut cell);
        assert_eq!(machines(&cell), on(&[]));
    }

    #[test]
    fn an_update_keeps_to_the_budget_and_to_the_machines() {
        let mut cell = Cell::with_machines(2);
        let mut spec = spec();
        spec.max_down = Some(1);
        cell.submit(&spec);
        cell.run("dae", 0, "m1");
        cell.run("dae", 1, "m2");
        spec.task.command = vec!["other".into()];
        cell.ok(Command::ApplyJob {
            owner: name("ubar"),
            spec: Box::new(spec.clone()),
            expect: None,
            again: false,
        });
        let step = |index| Command::StepUpdate { job: key("ubar/dae"), index };
        cell.ok(step(0));
        assert!(cell.rejection_text(step(1)).contains("at most 1 allowed"));
        cell.report("dae", 0, Observed::Stopped);
        assert_eq!(cell.states("dae")[0], Assigned);
        cell.report("dae", 0, Observed::Started);
        cell.ok(step(1));
        cell.report("dae", 1, Observed::Stopped);
        cell.report("dae", 1, Observed::Started);
        assert_eq!(machines(&cell), on(&[(0, "m1"), (1, "m2")]));
    }

    #[test]
    fn a_daemon_that_keeps_crashing_is_tried_again_on_its_machine() {
        let mut cell = Cell::with_machines(2);
        cell.submit(&spec());
        for _ in 0..4 {
            cell.now += 1_000_000;
            cell.run("dae", 0, "m1");
            cell.report("dae", 0, Observed::Failed(ExitClass::Code(1)));
            assert_eq!(cell.states("dae")[0], Pending);
        }
        cell.now += 1_000_000;
        cell.run("dae", 0, "m1");
    }

    #[test]
    fn what_the_cell_decides_is_not_said_by_a_job_and_a_stop_ends_it() {
        let mut cell = Cell::with_machines(1);
        let refuses = |cell: &mut Cell, change: fn(&mut JobSpec), field: &str| {
            let mut spec = spec();
            change(&mut spec);
            let text = cell
                .rejection_text(Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec) });
            assert!(text.contains(&format!("field {field}: ")), "{text}");
        };
        refuses(&mut cell, |s| s.count = 2, "count");
        refuses(&mut cell, |s| s.gang = true, "gang");
        refuses(&mut cell, |s| s.alloc_set = Some(key("ubar/set")), "alloc_set");
        cell.submit(&spec());
        let resize =
            Command::ResizeJob { job: key("ubar/dae"), size: JobSize::tasks(3), expect: None };
        assert!(cell.rejection_text(resize).contains("a daemon has one task"));
        // One task alone is stopped for good.
        cell.run("dae", 0, "m1");
        let job = key("ubar/dae");
        cell.ok(Command::StopTask { job: job.clone(), index: 0, expect: None });
        cell.report("dae", 0, Observed::Stopped);
        assert_eq!(follow(&mut cell), Done::Unchanged);
        cell.ok(Command::StopJob { job: job.clone(), expect: None });
        let id = cell.state.job_named(&job).unwrap();
        let row = cell.state.jobs().get(id).unwrap();
        assert!(matches!(row.state, JobState::Dead(_)) && row.machines.is_empty());
    }
}
