//! Machines and the resources applications make up on them, as readers see them.

use cellwright_cell::machine::{MachineSpec, MachineStatus};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::named::ResourceName;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One named resource of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedView {
    pub name: ResourceName,
    /// Absent: it never runs out.
    pub capacity: Option<u64>,
    /// Absent: it never runs out.
    pub available: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineView {
    pub name: Name,
    pub status: MachineStatus,
    pub draining: bool,
    /// Holds more than it has: somebody will be evicted.
    pub over_committed: bool,
    /// Version of the machine: send it back as `If-Match` to change only what you have seen.
    pub generation: u32,
    /// Number of the agent's life.
    pub incarnation: u64,
    pub spec: MachineSpec,
    /// Reserved by all tasks, and retained disk.
    pub reserved: Resources,
    /// Limits of production and monitoring tasks.
    pub prod_limits: Resources,
    /// Limits of all tasks.
    pub limits: Resources,
    /// What its tasks used lately. Absent where nobody has said so.
    #[serde(default)]
    pub used: Option<Resources>,
    /// What non-production work could still get.
    pub available: Resources,
    /// What production work could still get, without evicting anybody.
    pub available_prod: Resources,
    /// Tasks bound to the machine, those on their way out too.
    pub tasks: u32,
    pub leaving: u32,
    pub named: Vec<NamedView>,
    /// Milli-shares in use, by device position.
    pub devices_used: Vec<u16>,
    pub packages: u32,
    /// Disk kept for log savers.
    pub retained_bytes: u64,
    /// What it lacks although its agent holds back whoever it may; while there is something, it
    /// takes only production.
    #[serde(default)]
    pub shortages: Vec<ShortageView>,
}

/// Something that a machine is short of, or was until lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShortageView {
    pub dimension: Dimension,
    /// Milliseconds since the Unix epoch.
    pub since: Time,
    /// It is well again; its agent waits a while to see that last.
    pub over: bool,
}

/// An ephemeral resource on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceOnMachine {
    pub machine: Name,
    /// Absent: it never runs out.
    pub capacity: Option<u64>,
    pub used: u64,
}

/// A resource an application made up (E1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceView {
    pub namespace: Token,
    pub name: Token,
    /// Absent: the cell itself.
    pub owner: Option<Name>,
    /// Milliseconds since the Unix epoch; gone then unless renewed.
    pub lease_until: Time,
    pub machines: Vec<ResourceOnMachine>,
}
