//! A compact overview of the whole cell, for readers that draw it: columns instead of rows,
//! percentages instead of amounts. A cell of twelve thousand machines takes half a megabyte this
//! way, and the changes of a second a small part of that.
//!
//! Rejected: the list of machines for the same purpose. It has every detail of each, at two
//! kilobytes a machine, and a grid of squares needs a colour.

use super::TaskCounts;
use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bits of `state` in [`MachineColumns`].
pub const MACHINE_DOWN: u8 = 1;
pub const MACHINE_DRAINING: u8 = 2;
pub const MACHINE_OVER_COMMITTED: u8 = 4;
pub const MACHINE_SHORT: u8 = 8;

/// Machines in columns, one for each property; the same position in every column is the same
/// machine. Usage is in percent of the machine's capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineColumns {
    /// Stays with a machine and is never reused for another.
    pub id: Vec<u32>,
    pub name: Vec<Name>,
    /// Bits: 1 down, 2 draining, 4 over-committed, 8 under resource pressure and open to production
    /// only.
    pub state: Vec<u8>,
    /// Tasks bound to the machine.
    pub tasks: Vec<u32>,
    /// Usage of its tasks; null where none was reported lately.
    pub cpu_used: Vec<Option<u16>>,
    pub cpu_reserved: Vec<u16>,
    pub cpu_limit: Vec<u16>,
    /// Limits of production and monitoring tasks.
    pub cpu_production: Vec<u16>,
    pub ram_used: Vec<Option<u16>>,
    pub ram_reserved: Vec<u16>,
    pub ram_limit: Vec<u16>,
    pub ram_production: Vec<u16>,
}

/// The cell at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Overview {
    /// Whether all machines are listed, or only those that changed since the previous overview.
    pub whole: bool,
    pub machines: MachineColumns,
    /// Ids of machines in the previous overview that were removed since.
    pub gone: Vec<u32>,
    pub machines_total: u32,
    pub machines_up: u32,
    pub machines_draining: u32,
    pub capacity: Resources,
    /// Limits of all tasks.
    pub limits: Resources,
    /// Limits of production and monitoring tasks.
    pub production: Resources,
    pub reserved: Resources,
    /// Usage of tasks on the machines that report it.
    pub used: Resources,
    /// Machines that report usage.
    pub machines_measured: u32,
    pub jobs: u32,
    pub tasks: TaskCounts,
    pub users: u32,
    /// Time of the last change; milliseconds since the Unix epoch.
    pub now: Time,
    /// The log index of this snapshot.
    pub index: u64,
    pub consistent: bool,
}
