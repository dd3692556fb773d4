//! Machines and the resources that applications define on them, as readers see them.

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
    /// Absent: unlimited.
    pub capacity: Option<u64>,
    /// Absent: unlimited.
    pub available: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineView {
    pub name: Name,
    pub status: MachineStatus,
    pub draining: bool,
    /// Of a drain with a deadline: when what is still there ends, whatever budgets and notices say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_by: Option<Time>,
    /// More is reserved than it has: tasks will be evicted.
    pub over_committed: bool,
    /// Version of the machine: send it back as `If-Match` to change only what you have seen.
    pub generation: u32,
    /// Incarnation number of the machine.
    pub incarnation: u64,
    pub spec: MachineSpec,
    /// Reserved by all tasks, and retained disk.
    pub reserved: Resources,
    /// Limits of the tasks that are placed by them: latency-sensitive ones of production and
    /// monitoring.
    pub prod_limits: Resources,
    /// Limits of all tasks.
    pub limits: Resources,
    /// Recent usage of its tasks. Absent where none was reported.
    pub used: Option<Resources>,
    /// What non-production work could still get.
    pub available: Resources,
    /// What production work could still get, without evictions.
    pub available_prod: Resources,
    /// Tasks bound to the machine, including those that are stopping.
    pub tasks: u32,
    pub stopping: u32,
    pub named: Vec<NamedView>,
    /// Milli-shares in use, by device position.
    pub devices_used: Vec<u16>,
    pub packages: u32,
    /// Disk kept for log savers.
    pub retained_bytes: u64,
    /// Of a machine that drains: jobs whose tasks have to stay for now, because the job's
    /// disruption limit or its limit of tasks down at once is reached.
    pub drain_waits: Vec<DrainWaitView>,
    /// What it lacks although its agent throttles every task that it may; while there is something,
    /// the machine takes only production tasks.
    pub resource_pressure: Vec<ResourcePressureView>,
    /// By how many milliseconds its clock is ahead of the cell's. Absent where it is unknown: only
    /// the leader measures it.
    pub clock_ahead_ms: Option<i64>,
    /// When it came up, or went down.
    pub since: Time,
    /// Why its agent is not heard, or is rejected. Absent where all is well.
    pub trouble: Option<TroubleView>,
}

/// The kind of trouble between a machine's agent and the masters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// No master hears it.
    Silent,
    /// Masters hear it, and reject its reports.
    Refused,
}

/// Why the cell considers a machine unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TroubleView {
    pub kind: Trouble,
    pub since: Time,
    pub reason: String,
    /// What to do about it.
    pub next: String,
}

/// A limit that a job sets on its disruption.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DrainLimit {
    /// Disruptions in a period of time.
    Disruptions,
    /// Tasks that may be down at once.
    MaxDown,
}

/// Tasks that stay on a draining machine until a limit of a job permits their eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainWaitView {
    /// The job with the limit.
    pub job: JobKey,
    /// Tasks, or allocs with tasks of the job inside.
    pub tasks: u32,
    /// When the next of them may be evicted, in milliseconds since the Unix epoch. Absent with
    /// `max_down`, and where an alloc contains more of them than may ever be evicted at once; those
    /// move one by one, as other allocs of the set have room.
    pub next: Option<Time>,
    pub limit: DrainLimit,
    /// With `max_down`: tasks of the job that are down now, on any machine.
    pub down: u32,
}

/// Where a machine got a package, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PackageSource {
    /// The name of a machine, or the address of a master.
    pub name: String,
    pub is_master: bool,
    /// Bytes it sent that were correct.
    pub bytes: u64,
    /// It sent wrong bytes as well, and is avoided for a while.
    pub is_wrong: bool,
}

/// One package in the cache of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PackageOnMachine {
    pub digest: Token,
    /// Its name in the last job that used it. Absent: no job has since the agent started.
    pub name: Option<Token>,
    /// Disk space it takes, as a file for other machines and as a directory for tasks.
    pub disk_bytes: u64,
    /// Whether a task runs from it.
    pub in_use: bool,
    /// Its file is corrupt: it is not sent to others.
    pub is_damaged: bool,
    /// Its sources. Empty: it was there when the agent started.
    pub from: Vec<PackageSource>,
    /// Milliseconds from the first request until it was unpacked. Absent: it was there before.
    pub fetched_in: Option<u64>,
}

/// The packages of a machine, and their sources, as its agent reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachinePackages {
    /// By digest.
    pub packages: Vec<PackageOnMachine>,
    /// Bytes on disk, those being fetched included.
    pub taken_bytes: u64,
    /// Limit of the bytes on disk.
    pub most_bytes: u64,
    /// Bytes fetched from masters since the agent started.
    pub from_masters: u64,
    /// Bytes fetched from other machines since then.
    pub from_machines: u64,
    /// Bytes sent to other machines since then.
    pub to_machines: u64,
    /// Addresses that sent wrong bytes lately and are avoided at present.
    pub avoided: Vec<String>,
}

/// A resource that a machine is short of, or was until lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourcePressureView {
    pub dimension: Dimension,
    /// Milliseconds since the Unix epoch.
    pub since: Time,
    /// The pressure is over; the agent waits a while to see that this lasts.
    pub over: bool,
}

/// An ephemeral resource on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceOnMachine {
    pub machine: Name,
    /// Absent: unlimited.
    pub capacity: Option<u64>,
    pub used: u64,
}

/// A resource that an application defined (E1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceView {
    pub namespace: Token,
    pub name: Token,
    /// Absent: the cell itself.
    pub owner: Option<Name>,
    /// Milliseconds since the Unix epoch; the resource is removed then unless renewed.
    pub lease_until: Time,
    pub machines: Vec<ResourceOnMachine>,
}
