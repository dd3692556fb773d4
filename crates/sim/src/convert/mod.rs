//! From rows of a trace to machines and jobs of a cell. Each choice that the trace does not settle
//! is a parameter with a stated default, and a note that comes with every result.

mod checkpoint;
mod example;
mod google2011;
mod openb;
mod swf;

pub use checkpoint::{checkpoint, running_cell};
pub(crate) use example::constraint;
pub use example::example;
pub use google2011::{Google2011Options, google2011};
pub use openb::{OpenbCell, openb_cell};
pub use swf::swf;

use crate::workload::{ReservedShare, WorkloadMachine};
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::{InvalidName, Name};
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use std::collections::{BTreeMap, BTreeSet};

/// Why a trace could not be converted to a workload.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(transparent)]
    Trace(#[from] crate::trace::TraceError),
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Load(#[from] crate::trace::openb::LoadError),
    #[error(transparent)]
    Checkpoint(#[from] cellwright_master::checkpoint::CheckpointError),
    #[error("{field} of {of}: value {value} is not valid; allowed: {allowed}")]
    Field { field: &'static str, of: String, value: String, allowed: &'static str },
}

/// How usage relates to limits where the trace does not say, and what the estimator makes of it.
#[derive(Clone, Copy, Debug)]
pub struct UsageModel {
    /// Usage as thousandths of the limit.
    pub cpu_permille: u32,
    pub ram_permille: u32,
    pub settings: cellwright_cell::reclaim::ReclaimConfig,
}

impl UsageModel {
    /// Usage plus the estimator's margin, in the long run: what a reservation decays to.
    #[must_use]
    pub fn reserved(&self) -> ReservedShare {
        let with_margin = |used: u32, dimension: usize| {
            let margin = u64::from(self.settings.dimensions[dimension].margin_permille);
            (u64::from(used) * (1000 + margin)).div_ceil(1000).min(1000) as u32
        };
        ReservedShare {
            cpu_permille: with_margin(self.cpu_permille, 0),
            ram_permille: with_margin(self.ram_permille, 1),
        }
    }
}

/// The substitute for usage, as a note for people.
pub(crate) fn usage_note(usage: Option<UsageModel>) -> String {
    let percent = |permille: u32| format!("{}.{} %", permille / 10, permille % 10);
    let Some(model) = usage else { return "reservations equal limits: no reclamation".into() };
    let share = model.reserved();
    format!(
        "usage is not in the trace: modelled as {} of CPU and {} of RAM limits \
         (--usage-cpu, --usage-ram); with the estimator's margin tasks reserve {} and {}",
        percent(model.cpu_permille),
        percent(model.ram_permille),
        percent(share.cpu_permille),
        percent(share.ram_permille),
    )
}

/// A machine with nothing but a name and a size.
pub(crate) fn plain_machine(name: Name, capacity: Resources) -> WorkloadMachine {
    WorkloadMachine {
        spec: MachineSpec {
            name,
            capacity,
            attributes: BTreeMap::new(),
            labels: BTreeMap::new(),
            rack: None,
            power: None,
            devices: Vec::new(),
            named: Vec::new(),
            ports: PortRange { first: 20_000, last: 32_000 },
            address: None,
        },
        packages: BTreeSet::new(),
        is_up: true,
    }
}

/// A job of `count` equal tasks that requests resources and nothing else.
#[must_use]
pub fn plain_job(name: Name, count: u32, priority: Priority, limits: Resources) -> JobSpec {
    let mut spec = JobSpec::new(name, count, priority, limits);
    spec.task.command = vec!["run".into()];
    if priority.is_prod() {
        spec.restart.restart_on_success = true;
    }
    spec
}
