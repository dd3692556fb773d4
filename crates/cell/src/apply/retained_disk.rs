//! Disk that outlives an alloc or a task: how it is charged, saved and released (B9). It stays
//! charged to its machine until its log saver has succeeded, until its time is over, or until the
//! machine is gone.

use super::Context;
use crate::command::{Done, Verdict};
use crate::event::{EventKind, MachineChange, TaskChange};
use crate::id::{MachineId, TaskId};
use crate::machine::RetainedDisk;
use crate::reason::Reason;
use crate::task::{ExitClass, Task, TaskState};

impl Context<'_> {
    pub(super) fn retain_disk(&mut self, id: TaskId, task: &Task, machine: MachineId) {
        let Some(retain) = self.task_spec(task).and_then(|s| s.retain_disk.clone()) else { return };
        // Only a task that ran can have left data behind; a task inside an alloc left it in the
        // alloc's disk, which the alloc retains.
        if task.state == TaskState::Assigned || task.alloc().is_some() {
            return;
        }
        let until = self.now.plus(retain.keep);
        let (attempt, bytes) = (task.attempt, retain.bytes);
        let run = retain.log_saver.is_some().then_some(1);
        let entry = RetainedDisk { task: id, attempt, bytes, until, run };
        self.state.edit_machine(machine, |m| m.retained.push(entry));
        self.touched.push(machine);
        let change = MachineChange::DiskRetained { bytes };
        self.emit(EventKind::Machine { machine, change }, Reason::Retention);
    }

    /// The attempt that left it may have ended long ago.
    fn retained_disk_event(&mut self, entry: &RetainedDisk, change: TaskChange, reason: Reason) {
        if let Some(row) = self.state.tasks.get(entry.task) {
            let (task, attempt) = (entry.task, entry.attempt);
            let (job, index) = (row.job, row.index);
            self.emit(EventKind::Task { task, job, index, attempt, change }, reason);
        }
    }

    pub(super) fn expire_retained(&mut self) {
        let now = self.now;
        let over: Vec<(MachineId, RetainedDisk)> = self
            .state
            .machines
            .iter()
            .flat_map(|(id, row)| row.retained.iter().map(move |r| (id, r)))
            .filter(|(_, retained)| retained.until <= now)
            .map(|(id, retained)| (id, retained.clone()))
            .collect();
        let mut machines: Vec<MachineId> = over.iter().map(|(machine, _)| *machine).collect();
        machines.dedup();
        for machine in machines {
            self.state.edit_machine(machine, |m| m.retained.retain(|r| r.until > now));
            self.touched.push(machine);
        }
        for (machine, entry) in over {
            if entry.run.is_some() {
                self.retained_disk_event(
                    &entry,
                    TaskChange::NotSaved { machine },
                    Reason::Retention,
                );
            }
            let change = MachineChange::DiskReleased { bytes: entry.bytes };
            self.machine_event(machine, change, Reason::Retention);
        }
    }

    /// The log saver has saved the disk.
    pub(super) fn release_retained(
        &mut self,
        machine: MachineId,
        task: TaskId,
        attempt: u32,
    ) -> Verdict {
        let row = self.machine_row(machine)?;
        let at = row.retained.iter().position(|r| r.task == task && r.attempt == attempt);
        let Some(at) = at else {
            // Released or expired before: releasing twice is harmless.
            return Ok(Done::Unchanged);
        };
        let entry = row.retained[at].clone();
        self.state.edit_machine(machine, |m| {
            m.retained.remove(at);
        });
        self.touched.push(machine);
        if entry.run.is_some() {
            self.retained_disk_event(&entry, TaskChange::Saved { machine }, Reason::Succeeded);
        }
        let change = MachineChange::DiskReleased { bytes: entry.bytes };
        self.machine_event(machine, change, Reason::Retention);
        Ok(Done::Applied)
    }

    /// The next run is due. A run that is no longer due was reported before.
    pub(super) fn saver_failed(
        &mut self,
        machine: MachineId,
        (task, attempt, run): (TaskId, u32, u32),
        exit: Option<ExitClass>,
    ) -> Verdict {
        let row = self.machine_row(machine)?;
        let due = |r: &RetainedDisk| (r.task, r.attempt, r.run) == (task, attempt, Some(run));
        let Some(at) = row.retained.iter().position(due) else { return Ok(Done::Unchanged) };
        let entry = row.retained[at].clone();
        self.state.edit_machine(machine, |m| {
            m.retained[at].run = Some(run.saturating_add(1));
        });
        let reason = exit.map_or(Reason::AgentReport, Reason::Exited);
        self.retained_disk_event(&entry, TaskChange::LogSaverFailed { machine }, reason);
        Ok(Done::Applied)
    }
}
