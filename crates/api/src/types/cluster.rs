//! The cell as a whole and the replicas that run it, as readers see them.

use super::TaskCounts;
use super::machine::NamedView;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One node of `get_cluster_status` (E1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStatus {
    pub node: Name,
    pub status: MachineStatus,
    pub draining: bool,
    pub capacity: Resources,
    /// What a new non-production task could get; empty on nodes that take none.
    pub available: Resources,
    /// Named resources, the operator's and the applications'.
    pub named: Vec<NamedView>,
}

/// `get_cluster_status` (E1): capacity, what is available, which nodes failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterStatus {
    pub nodes: Vec<NodeStatus>,
    /// Nodes that are down.
    pub failed: Vec<Name>,
    pub machines: u32,
    pub machines_up: u32,
    pub machines_draining: u32,
    /// Sum over all nodes.
    pub capacity: Resources,
    /// Sum over the nodes that take new work.
    pub available: Resources,
    pub jobs: u32,
    pub tasks: TaskCounts,
    pub users: u32,
    /// The drivers with which the machines run tasks.
    pub drivers: Vec<DriverView>,
    /// Time of the last change; milliseconds since the Unix epoch.
    pub now: Time,
    /// The log index of this snapshot.
    pub index: u64,
    pub consistent: bool,
}

/// Machines that run tasks with the same driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DriverView {
    /// `container` or `process`; absent where the machine does not report it.
    pub driver: Option<String>,
    /// Why tasks do not run in containers there.
    pub off: Option<String>,
    pub machines: u32,
}

/// One replica of the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberView {
    pub id: u64,
    pub name: String,
    pub address: String,
    /// Whether it votes, or is still catching up.
    pub voter: bool,
    pub leader: bool,
}

/// How the replica that answers sees the replicated log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MasterStatus {
    /// The replica that answers.
    pub id: u64,
    pub role: String,
    pub term: u64,
    pub leader: Option<u64>,
    /// Last entry in the log, applied, in the newest snapshot, and removed from the log.
    pub last_log: u64,
    pub applied: u64,
    pub snapshot: u64,
    pub purged: u64,
    pub members: Vec<MemberView>,
    /// Version of the software that answers.
    pub version: String,
    /// Newest level of the log that the software supports; the cell is raised to the level that all
    /// support.
    pub level: u32,
    /// Milliseconds for which the replica has known no leader, or for which the leader has heard
    /// from no majority; absent while all is well.
    pub leaderless_ms: Option<u64>,
    /// What is damaged or missing on the disk of the replica, one text each.
    pub damage: Vec<String>,
    /// Replicas that requested to join and are not confirmed yet.
    pub waiting: Vec<WaitingReplica>,
}

/// A replica that requested to join: it gets nothing before somebody who may manage users has
/// confirmed its fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingReplica {
    pub name: Name,
    /// Fingerprint of its key, as it prints it itself.
    pub fingerprint: String,
    /// The address its request came from.
    pub address: String,
    /// Milliseconds since the Unix epoch.
    pub since: Time,
    /// It must be confirmed by then, or join with another token.
    pub until: Time,
    pub confirmed: bool,
    /// The token it joins with, which can be revoked.
    pub token: Name,
}

/// A saved snapshot of the whole state (B22).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointView {
    pub name: String,
    /// The replica that has it.
    pub replica: String,
    /// Where it is on that replica's machine.
    pub path: String,
    pub index: u64,
    pub term: u64,
    /// Milliseconds since the Unix epoch.
    pub at: Time,
    pub bytes: u64,
    /// Digest of the state, as 16 hex digits.
    pub hash: String,
}

/// Stored content, by digest. Listed for those who stored it or whose jobs name it, and for users
/// with read_specs or administrate_jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlobView {
    /// SHA-256 as 64 hex digits.
    pub digest: String,
    pub bytes: u64,
    /// Milliseconds since the Unix epoch.
    pub created: Time,
    pub by: Option<Name>,
    /// Whether the replica that answers has the bytes. A replica without them serves them all the
    /// same as long as another has them.
    pub held: bool,
    /// Names that jobs give it, including jobs that have ended and are still retained. Content
    /// itself has no name.
    pub names: Vec<String>,
    /// Jobs that have not ended and periodic jobs that name it, and so keep it: `user/job` of the
    /// first ten.
    pub used_by: Vec<String>,
    /// How many such jobs there are in all.
    pub uses: u32,
}
