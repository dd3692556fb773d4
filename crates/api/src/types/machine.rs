//! Machines and the resources applications make up on them, as readers see them.

use cellwright_cell::machine::{MachineSpec, MachineStatus};
use cellwright_cell::name::{JobKey, Name, Token};
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
    /// Of a machine that drains: jobs whose tasks have to wait there, for they were disrupted as
    /// often as they allow, or are down in as great a number.
    #[serde(default)]
    pub drain_waits: Vec<DrainWaitView>,
    /// What it lacks although its agent holds back whoever it may; while there is something, it
    /// takes only production.
    #[serde(default)]
    pub shortages: Vec<ShortageView>,
    /// By how many milliseconds its clock is ahead of the cell's. Absent where it is not known:
    /// only the leader measures.
    #[serde(default)]
    pub clock_ahead_ms: Option<i64>,
    /// When it came to be up, or down.
    #[serde(default)]
    pub since: Time,
    /// Why nobody hears its agent, or listens to it. Absent where all is well.
    #[serde(default)]
    pub trouble: Option<TroubleView>,
}

/// What is between a machine's agent and the masters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// No master hears it.
    Silent,
    /// Masters hear it, and refuse what it says.
    Refused,
}

/// Why the cell does not count on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TroubleView {
    pub what: Trouble,
    pub since: Time,
    pub reason: String,
    /// What to do about it.
    pub next: String,
}

/// What a job says of how it may be disrupted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DrainLimit {
    /// How often, over time.
    #[default]
    Disruptions,
    /// How many may be down at once.
    MaxDown,
}

/// Tasks that stay on a machine that drains until a limit of a job lets them go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainWaitView {
    /// Whose limit it is.
    pub job: JobKey,
    /// Tasks, or allocs with tasks of the job inside.
    pub tasks: u32,
    /// When the next of them may leave, in milliseconds since the Unix epoch. Absent with
    /// `max_down`, and where inside an alloc are more of them than may ever leave at once; they go
    /// one by one, as other allocs of the set have room.
    pub next: Option<Time>,
    #[serde(default)]
    pub limit: DrainLimit,
    /// With `max_down`: tasks of the job that are down now, here or elsewhere.
    #[serde(default)]
    pub down: u32,
}

/// Who gave a machine a package, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PackageSource {
    /// The name of a machine, or the address of a master.
    pub name: String,
    pub is_master: bool,
    /// Bytes it gave that were right.
    pub bytes: u64,
    /// It gave wrong bytes as well, and is not asked again for a while.
    pub is_wrong: bool,
}

/// One package in the cache of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PackageOnMachine {
    pub digest: Token,
    /// What the last job calls it that asked for it. Absent: none has since the agent started.
    pub name: Option<Token>,
    /// What it takes on disk, as a file for other machines and as a folder for tasks.
    pub disk_bytes: u64,
    /// Whether a task runs from it.
    pub in_use: bool,
    /// Its file is not what it should be: it is given to nobody.
    pub is_damaged: bool,
    /// Who gave it. Nobody: it was there when the agent started.
    pub from: Vec<PackageSource>,
    /// Milliseconds from the first request until it was unpacked. Absent: it was there before.
    pub fetched_in: Option<u64>,
}

/// The packages of a machine, and where they came from, as its agent says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachinePackages {
    /// By digest.
    pub packages: Vec<PackageOnMachine>,
    /// Bytes on disk, those on their way included.
    pub taken_bytes: u64,
    /// What they may take at most.
    pub most_bytes: u64,
    /// Bytes fetched from masters since the agent started.
    pub from_masters: u64,
    /// Bytes fetched from other machines since then.
    pub from_machines: u64,
    /// Bytes given to other machines since then.
    pub given: u64,
    /// Addresses of those who gave wrong bytes lately and are not asked at present.
    pub shunned: Vec<String>,
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
