//! Machines (B1): what an operator or the machine's own agent specifies, and the machine's status.

use crate::constraint::Attributes;
use crate::device::Device;
use crate::id::TaskId;
use crate::label::Labels;
use crate::load::MachineLoad;
use crate::name::{Name, Token};
use crate::named::NamedAmount;
use crate::resource::{Dimension, Resources};
use crate::spec::PackageRef;
use crate::time::{Span, Time};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Inclusive range of the ports that the system assigns on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl Default for PortRange {
    /// Below the range that Linux uses for outgoing connections.
    fn default() -> PortRange {
        PortRange { first: 20_000, last: 31_999 }
    }
}

impl PortRange {
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
    #[must_use]
    pub fn count(self) -> u32 {
        (u32::from(self.last) + 1).saturating_sub(u32::from(self.first))
    }
}

/// Most machines that a cell can ever have had: ids are never reused, and the scheduler packs them
/// into its score keys.
pub const MAX_MACHINES: usize = 1 << 22;
/// Most of one dimension in all machines together, so that sums over the cell stay exact.
pub const MAX_CELL_CAPACITY: u64 = 1 << 62;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    pub name: Name,
    pub capacity: Resources,
    /// Left out: none.
    #[serde(default)]
    pub attributes: Attributes,
    /// Left out: none.
    #[serde(default)]
    pub labels: Labels,
    /// Failure domains; `None` when not specified.
    pub rack: Option<Token>,
    pub power: Option<Token>,
    /// Left out: none.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Operator-given countable resources, sorted by name, without namespace. Left out: none.
    #[serde(default)]
    pub named: Vec<NamedAmount>,
    /// Left out: 20000 to 31999.
    #[serde(default)]
    pub ports: PortRange,
    /// Address at which its tasks are reached. Left out: they have no DNS names.
    #[serde(default)]
    pub address: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MachineStatus {
    /// Never heard from, or silent too long; nothing is placed there.
    Down,
    Up,
}

/// Disk that outlives its alloc or task until it is saved or its time is over. Stays charged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetainedDisk {
    pub task: TaskId,
    pub attempt: u32,
    pub bytes: u64,
    pub until: Time,
    /// The log saver's run that is due, from 1; `None` when there is no log saver.
    pub run: Option<u32>,
}

/// A resource the machine is short of although its agent throttles all the tasks it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResourcePressure {
    pub dimension: Dimension,
    pub since: Time,
    /// How often its agent has requested an eviction; 0: the shortage is over, and the machine is
    /// watched for a while longer.
    pub requested: u32,
    /// The latest of these requests for which a task was ordered to leave.
    pub answered: u32,
}

impl ResourcePressure {
    /// Whether a task has to leave the machine for it now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.requested > self.answered
    }
}

/// A shortage as an agent reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResourcePressureReport {
    pub dimension: Dimension,
    /// Duration of the shortage. Clocks differ, spans do not.
    pub lasted: Span,
    /// See [`ResourcePressure::requested`].
    pub requested: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Machine {
    pub spec: MachineSpec,
    pub status: MachineStatus,
    pub draining: bool,
    /// Of a drain with a deadline: from then on neither budgets nor notices keep a task here.
    /// Invariant: none unless it drains.
    pub drain_by: Option<Time>,
    /// Incarnation number of the agent; reports of an earlier incarnation are rejected.
    pub incarnation: u64,
    /// Counts changes to spec or status, so that a plan made against an older one is recognized.
    pub generation: u32,
    /// Packages that the agent reports as installed.
    pub packages: BTreeSet<PackageRef>,
    pub retained: Vec<RetainedDisk>,
    /// Over-committed: tasks must be evicted. Invariant: true exactly when
    /// [`crate::load::MachineLoad::exceeds`] says so.
    pub over_committed: bool,
    /// What it is short of, or was a short while ago; each dimension at most once, sorted.
    pub resource_pressure: Vec<ResourcePressure>,
    /// When the status last changed to up or down.
    pub since: Time,
}

/// Most packages that a machine's row records: the row is copied when it changes.
pub const MAX_PACKAGES: usize = 4096;

impl Machine {
    #[must_use]
    pub fn is_schedulable(&self) -> bool {
        self.status == MachineStatus::Up && !self.draining
    }

    /// Whether the machine is closed to new non-production tasks: they would only be throttled, and
    /// production would go short.
    #[must_use]
    pub fn accepts_only_prod(&self) -> bool {
        !self.resource_pressure.is_empty()
    }

    /// What is available to new tasks.
    #[must_use]
    pub fn available(&self, load: &MachineLoad) -> Resources {
        if self.is_schedulable() && !self.accepts_only_prod() {
            self.spec.capacity.minus(load.reserved)
        } else {
            Resources::ZERO
        }
    }
}
