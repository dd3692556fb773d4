//! Machines (B1): what an operator or the machine's own agent says of it, and how it stands.

use crate::constraint::Attributes;
use crate::device::Device;
use crate::id::TaskId;
use crate::label::Labels;
use crate::load::MachineLoad;
use crate::name::{Name, Token};
use crate::named::{NamedAmount, ResourceName};
use crate::resource::{Dimension, Resources};
use crate::spec::PackageRef;
use crate::time::{Span, Time};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Inclusive range of the ports the system hands out on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl Default for PortRange {
    /// Below what Linux hands out for outgoing connections.
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

/// Machines that a cell can ever have had: ids are never reused, and the scheduler packs them into
/// its score keys.
pub const MAX_MACHINES: usize = 1 << 22;
/// Most of one dimension in all machines together: sums over the cell stay exact.
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
    /// Failure domains; `None` when the operator did not say.
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
    /// Where its tasks are reached. Left out: they have no names.
    #[serde(default)]
    pub address: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MachineStatus {
    /// Known, never heard from or silent too long; nothing is placed there.
    Down,
    Up,
}

/// Disk that outlives its alloc or task until fetched or out of time. Stays charged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetainedDisk {
    pub task: TaskId,
    pub attempt: u32,
    pub bytes: u64,
    pub until: Time,
    /// The run of its saver that is due, from 1; `None` when it has none.
    pub run: Option<u32>,
}

/// Something the machine lacks although its agent holds back whoever it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResourcePressure {
    pub dimension: Dimension,
    pub since: Time,
    /// How often its agent has asked for relief; 0: it is well again, and watched for a while yet.
    pub asked: u32,
    /// Up to which of these times somebody was told to leave.
    pub answered: u32,
}

impl ResourcePressure {
    /// Whether somebody has to leave for it now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.asked > self.answered
    }
}

/// A shortage as an agent tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResourcePressureReport {
    pub dimension: Dimension,
    /// For how long. Clocks differ, spans do not.
    pub lasted: Span,
    /// See [`ResourcePressure::asked`].
    pub asked: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Machine {
    pub spec: MachineSpec,
    pub status: MachineStatus,
    pub draining: bool,
    /// Number of the agent's life; reports of an earlier life are refused.
    pub incarnation: u64,
    /// Counts changes to spec or status: a plan made against an older one can be told.
    pub generation: u32,
    /// Packages the agent says are installed.
    pub packages: BTreeSet<PackageRef>,
    pub retained: Vec<RetainedDisk>,
    /// Holds more than it can; somebody must be evicted.
    /// Invariant: true exactly when [`crate::load::MachineLoad::exceeds`] says so.
    pub over_committed: bool,
    /// What it is short of, or was a short while ago; each dimension once, in their order.
    pub shortages: Vec<ResourcePressure>,
    /// When it came to be up, or down.
    pub since: Time,
}

/// Packages that a machine is known to have: its row is copied when it changes.
pub const MAX_PACKAGES: usize = 4096;

impl Machine {
    #[must_use]
    pub fn is_schedulable(&self) -> bool {
        self.status == MachineStatus::Up && !self.draining
    }

    /// Whether there is no place for more of non-production: it would only be held back, and
    /// production go short.
    #[must_use]
    pub fn accepts_only_prod(&self) -> bool {
        !self.shortages.is_empty()
    }

    /// What new tasks find here.
    #[must_use]
    pub fn available(&self, load: &MachineLoad) -> Resources {
        match self.is_schedulable() && !self.accepts_only_prod() {
            true => self.spec.capacity.minus(load.reserved),
            false => Resources::ZERO,
        }
    }

    /// Operator-given capacity of a named resource, zero when unknown. With ephemeral ones:
    /// [`crate::state::State::named_capacity`].
    #[must_use]
    pub(crate) fn configured_capacity(&self, name: &ResourceName) -> u64 {
        let list = &self.spec.named;
        list.binary_search_by(|a| a.name.cmp(name)).map_or(0, |at| list[at].amount)
    }
}
