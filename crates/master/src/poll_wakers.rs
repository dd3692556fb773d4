//! Wakes hanging polls: only those of machines whose orders an entry may have changed. Ten thousand
//! polls hang at once, and an entry touches a few.

use cellwright_cell::event::{Event, EventKind, JobChange, TaskChange};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::state::State;
use cellwright_supervise::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

#[derive(Default)]
pub struct Wakers {
    waiting: Mutex<BTreeMap<MachineId, Arc<Notify>>>,
}

impl Wakers {
    /// What to wait on for changes of a machine's orders. Get it before reading the state, so that
    /// no change falls between the read and the wait.
    #[must_use]
    pub fn waker_for(&self, machine: MachineId) -> Arc<Notify> {
        self.lock().entry(machine).or_default().clone()
    }

    pub fn wake_affected(&self, events: &[Event], state: &State) {
        let touched: BTreeSet<MachineId> =
            events.iter().filter_map(|event| affected_machine(event, state)).collect();
        if touched.is_empty() {
            return;
        }
        let waiting = self.lock();
        for machine in touched {
            if let Some(notify) = waiting.get(&machine) {
                notify.notify_waiters();
            }
        }
    }

    pub fn wake_all(&self) {
        self.lock().values().for_each(|notify| notify.notify_waiters());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MachineId, Arc<Notify>>> {
        lock(&self.waiting)
    }
}

/// The machine whose orders the event may change.
fn affected_machine(event: &Event, state: &State) -> Option<MachineId> {
    match &event.kind {
        EventKind::Task { task, job, attempt, change, .. } => match change {
            TaskChange::Scheduled { machine }
            | TaskChange::Stopping { machine }
            | TaskChange::Evicted { machine }
            | TaskChange::Completed { machine }
            | TaskChange::Failed { machine }
            | TaskChange::Lost { machine }
            | TaskChange::Restarted { machine } => Some(*machine),
            // The agent reported it itself.
            TaskChange::Started { .. }
            | TaskChange::ReservationChanged
            | TaskChange::Resized { .. } => None,
            // No agent needs to know of resources that are only reserved.
            TaskChange::HoldReserved { .. } | TaskChange::HoldReleased { .. } => None,
            TaskChange::LogSaverFailed { machine }
            | TaskChange::Saved { machine }
            | TaskChange::NotSaved { machine }
            | TaskChange::Left { machine, .. } => Some(*machine),
            _ => state
                .tasks()
                .get(*task)
                .and_then(|row| row.machine())
                .or_else(|| retained_data_machine(state, *job, (*task, *attempt))),
        },
        EventKind::Machine { machine, .. } => Some(*machine),
        EventKind::Job { change: JobChange::Purged, .. } => None,
        _ => None,
    }
}

/// The machine on which an attempt that is over left data: the transfer that saves it starts now.
/// Searches all machines, for the few jobs that leave any data.
fn retained_data_machine(state: &State, job: JobId, left: (TaskId, u32)) -> Option<MachineId> {
    state.jobs().get(job)?.spec().retain_disk.as_ref()?;
    let mut machines = state.machines().iter();
    let here = machines.find(|(_, machine)| {
        machine.retained.iter().any(|entry| (entry.task, entry.attempt) == left)
    });
    here.map(|(machine, _)| machine)
}
