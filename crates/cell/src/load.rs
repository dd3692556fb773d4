//! Derived sums: what the rows of tasks add up to on machines, in allocs, for jobs and users.
//!
//! None of this is saved or hashed: it is rebuilt from the rows on load, so a damaged checkpoint
//! cannot hold sums that disagree with their parts. Every decision that reads it is canonical:
//! the same rows give the same sums, whatever happened on the way.

use crate::device::WHOLE_DEVICE;
use crate::id::{MachineId, TaskId};
use crate::machine::Machine;
use crate::name::Token;
use crate::named::ResourceName;
use crate::priority::Band;
use crate::resource::Resources;
use crate::spec::Domain;
use crate::task::{TaskOutcome, TaskState};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is held on one machine. Tasks inside allocs appear in `tasks`, `held_for` and `ports` only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineLoad {
    /// Limits of what is packed by them: latency-sensitive tasks and allocs of prod.
    pub prod_limits: Resources,
    /// Logged reservations of all tasks, and retained disk: everything else is packed by these.
    pub reserved: Resources,
    /// Limits of all tasks, for reports.
    pub limits: Resources,
    /// All tasks on the machine, including those that are stopping, sorted.
    pub tasks: Vec<TaskId>,
    /// Tasks that run elsewhere and hold room here, sorted. Nothing of them runs here; in every sum
    /// they count like tasks that do.
    pub held_for: Vec<TaskId>,
    /// How many of `tasks` are stopping and hold nothing any more.
    pub stopping: u32,
    /// Ports in use and their tasks, sorted. Ports of stopping tasks are free for others already.
    pub ports: Vec<(u16, TaskId)>,
    /// Milli-shares in use by device position.
    pub devices: Vec<u16>,
    /// Sorted by name.
    pub named: Vec<(ResourceName, u64)>,
    /// Holders of a device that is not, or no longer, of the kind and model they asked for, sorted.
    pub wrong_devices: Vec<TaskId>,
    /// Allocs here inside which more is reserved than they have, sorted.
    pub overfull_allocs: Vec<TaskId>,
}

impl MachineLoad {
    /// Whether more is held than there is: of the machine, of a device, or of an alloc on it. Some
    /// tasks have to leave then; see [`crate::overcommit_eviction`].
    #[must_use]
    pub fn exceeds(&self, machine: &Machine) -> bool {
        let capacity = machine.spec.capacity;
        let known = machine.spec.devices.len();
        let mut devices = self.devices.iter().enumerate();
        let device_excess =
            devices.any(|(i, used)| *used > WHOLE_DEVICE || (i >= known && *used > 0));
        !self.prod_limits.within(capacity)
            || !self.reserved.within(capacity)
            || device_excess
            || !self.wrong_devices.is_empty()
            || !self.overfull_allocs.is_empty()
    }

    /// Number of tasks that hold something here, including those inside allocs and those that run
    /// elsewhere.
    #[must_use]
    pub fn holder_count(&self) -> u64 {
        let here = (self.tasks.len() as u64).saturating_sub(u64::from(self.stopping));
        here + self.held_for.len() as u64
    }

    #[must_use]
    pub fn named_used(&self, name: &ResourceName) -> u64 {
        self.named.binary_search_by(|(n, _)| n.cmp(name)).map_or(0, |at| self.named[at].1)
    }

    #[must_use]
    pub fn port_holder(&self, port: u16) -> Option<TaskId> {
        self.ports.binary_search_by_key(&port, |(p, _)| *p).ok().map(|at| self.ports[at].1)
    }

    #[must_use]
    pub fn device_free(&self, position: usize) -> u16 {
        WHOLE_DEVICE.saturating_sub(self.devices.get(position).copied().unwrap_or(0))
    }
}

/// What tasks inside one alloc hold of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocLoad {
    pub prod_limits: Resources,
    pub reserved: Resources,
    /// Sorted, including those that are stopping.
    pub tasks: Vec<TaskId>,
    /// Tasks that run in another alloc and hold room in this one, sorted.
    pub held_for: Vec<TaskId>,
}

impl AllocLoad {
    /// Whether more is held inside than an alloc with these limits has. Only reservations can
    /// exceed it: limits of prod are checked whenever something is placed, changed or shrunk.
    #[must_use]
    pub fn exceeds(&self, limits: Resources) -> bool {
        !self.prod_limits.within(limits) || !self.reserved.within(limits)
    }
}

/// Counts of a job's tasks by state and place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobLoad {
    pub deferred: u32,
    pub pending: u32,
    pub assigned: u32,
    pub running: u32,
    pub stopping: u32,
    pub finished: u32,
    pub failed: u32,
    pub killed: u32,
    /// Holds of tasks by machine: a task with holds on two machines counts on both. Only for jobs
    /// with spread limits.
    pub on_machine: Arc<BTreeMap<MachineId, u32>>,
    pub in_rack: Arc<BTreeMap<Token, u32>>,
    pub in_power: Arc<BTreeMap<Token, u32>>,
    pub in_cell: u32,
    /// Task rows by the version of the job's spec they are at.
    pub at_version: BTreeMap<u32, u32>,
    /// Running tasks that are to be restarted.
    pub to_restart: u32,
}

impl JobLoad {
    pub(crate) fn counter(&mut self, state: TaskState) -> &mut u32 {
        match state {
            TaskState::Deferred => &mut self.deferred,
            TaskState::Pending => &mut self.pending,
            TaskState::Assigned => &mut self.assigned,
            TaskState::Running => &mut self.running,
            TaskState::Stopping(_) => &mut self.stopping,
            TaskState::Dead(TaskOutcome::Finished) => &mut self.finished,
            TaskState::Dead(TaskOutcome::Failed(_)) => &mut self.failed,
            TaskState::Dead(TaskOutcome::Killed | TaskOutcome::DependencyFailed) => {
                &mut self.killed
            }
        }
    }

    pub(crate) fn count_version(&mut self, version: u32, add: bool) {
        bump(&mut self.at_version, version, add);
    }

    pub(crate) fn count_restart(&mut self, add: bool) {
        let left = self.to_restart;
        self.to_restart = if add { left + 1 } else { left.saturating_sub(1) };
    }

    /// Tasks that should run and do not: the number that disruption budgets bound.
    #[must_use]
    pub fn down(&self) -> u32 {
        self.deferred + self.pending + self.assigned + self.stopping
    }

    #[must_use]
    pub fn live(&self) -> u32 {
        self.down() + self.running
    }

    #[must_use]
    pub fn in_domain(&self, domain: Domain, machine: MachineId, row: &Machine) -> u32 {
        let count = |map: &BTreeMap<Token, u32>, key: &Option<Token>| {
            key.as_ref().and_then(|k| map.get(k)).copied().unwrap_or(0)
        };
        match domain {
            Domain::Machine => self.on_machine.get(&machine).copied().unwrap_or(0),
            Domain::Rack => count(&self.in_rack, &row.spec.rack),
            Domain::Power => count(&self.in_power, &row.spec.power),
            Domain::Cell => self.in_cell,
        }
    }

    /// Adds one task on `machine` to the domain counts, or takes one away.
    pub(crate) fn count_domains(&mut self, machine: MachineId, row: &Machine, add: bool) {
        bump(Arc::make_mut(&mut self.on_machine), machine, add);
        if let Some(rack) = &row.spec.rack {
            bump(Arc::make_mut(&mut self.in_rack), rack.clone(), add);
        }
        if let Some(power) = &row.spec.power {
            bump(Arc::make_mut(&mut self.in_power), power.clone(), add);
        }
        self.in_cell = if add { self.in_cell + 1 } else { self.in_cell.saturating_sub(1) };
    }
}

fn bump<K: Ord>(map: &mut BTreeMap<K, u32>, key: K, add: bool) {
    if add {
        *map.entry(key).or_insert(0) += 1;
    } else if let Some(n) = map.get_mut(&key) {
        *n -= 1;
        if *n == 0 {
            map.remove(&key);
        }
    }
}

/// Charges of a user's jobs by band, and what the cell stores of the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLoad {
    pub charged: BTreeMap<Band, Resources>,
    pub live_jobs: u32,
    /// Including ended ones.
    pub jobs: u64,
    /// Rows of tasks of all these jobs.
    pub tasks: u64,
    /// Encoded bytes of specs of jobs and periodic jobs in a checkpoint.
    pub spec_bytes: u64,
}
