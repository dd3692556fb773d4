//! Request bodies other than specs, and their answers. Unknown fields are rejected.

use crate::error::ApiError;
use cellwright_cell::command::{ApplyOutcome, Command, Done, TasksToStart};
use cellwright_cell::credential::PartKind;
use cellwright_cell::cron::{self, CronSpec};
use cellwright_cell::ephemeral::{AvailableNodes, CapacityChange};
use cellwright_cell::job_size::JobSize;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::priority::Band;
use cellwright_cell::quota::{Capability, Quota};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitJob {
    /// The owner of the job. Left out: the caller.
    pub owner: Option<Name>,
    pub spec: JobSpec,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddUser {
    pub name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetCapabilities {
    /// All capabilities the user should have; those not listed are taken away.
    pub capabilities: BTreeSet<Capability>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddUserToken {
    /// Milliseconds the token is valid for, if the token it is made with is valid for as long.
    #[schemars(extend("minimum" = 1))]
    pub valid_for: Span,
}

/// The kind of part that may join with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Joiner {
    Agent,
    Replica,
    /// A scheduler that runs apart from the masters.
    Scheduler,
}

/// The replica that may get the authority's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmMaster {
    pub name: Name,
    /// 32 hexadecimal digits, as the replica prints them where it joins; dashes are ignored.
    pub fingerprint: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddJoinToken {
    pub joiner: Joiner,
    /// The machine, replica or scheduler; the token is valid for this name alone.
    pub name: Name,
    /// Milliseconds the token is valid for: at most 15 minutes, and no longer than the token it is
    /// made with.
    #[schemars(extend("minimum" = 1, "maximum" = 900_000))]
    pub valid_for: Span,
}

/// A part whose certificates are revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartRevocation {
    pub part: PartKind,
    /// The machine, replica or scheduler.
    pub name: Name,
}

/// Which nodes an ephemeral resource is on (E1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NodeSpec {
    /// The node of this name.
    Node(Name),
    /// Every node that has this much available now.
    Available(AvailableNodes),
    /// The node of the caller; for agents only.
    Local,
}

/// `set_resource(name, capacity, node_spec)` (E1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetResource {
    /// A change relative to the present capacity, so that two writers add up; on a node that has
    /// none it is the capacity.
    pub capacity: CapacityChange,
    pub nodes: NodeSpec,
    /// Milliseconds from now after which the resource is gone unless renewed. Left out: an hour.
    #[serde(default = "an_hour")]
    pub lease: Span,
}

fn an_hour() -> Span {
    Span::seconds(3600)
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddMaster {
    #[schemars(range(min = 1))]
    pub id: u64,
    pub name: Name,
    /// `host:port` under which the other replicas reach it.
    #[schemars(length(min = 1, max = 255))]
    pub address: String,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// The log index at which it is durable.
    pub index: u64,
    /// False when nothing had to be changed.
    pub changed: bool,
    /// The version the object is at now, where the change made one.
    pub version: Option<u32>,
    /// Items that were rejected, by position; the others took effect.
    pub rejected: Vec<RejectedItem>,
    /// How many tokens were revoked with it; left out when none were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_revoked: Option<u32>,
    /// What applying a job did; left out for other changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub became: Option<ApplyOutcome>,
    /// The version of an update that was complete and was closed first; left out when none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_update: Option<u32>,
    /// What the job asks for and does not get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RejectedItem {
    pub position: u32,
    pub error: ApiError,
}

impl Changed {
    #[must_use]
    pub fn new(index: u64, done: &Done) -> Changed {
        let mut changed = Changed {
            index,
            changed: true,
            version: None,
            rejected: vec![],
            tokens_revoked: None,
            became: None,
            closed_update: None,
            warnings: vec![],
        };
        match done {
            Done::Applied => {}
            Done::Unchanged => changed.changed = false,
            Done::Version(version) => changed.version = Some(*version),
            Done::Revoked(tokens) => changed.tokens_revoked = Some(*tokens),
            Done::Job { became, version, closed } => {
                changed.changed = !matches!(became, ApplyOutcome::Unchanged | ApplyOutcome::Ended);
                changed.version = Some(*version);
                changed.became = Some(*became);
                changed.closed_update = *closed;
            }
            Done::Partly(refused) => {
                let item = |(position, rejection): &(u32, _)| RejectedItem {
                    position: *position,
                    error: ApiError::from(rejection),
                };
                changed.rejected = refused.iter().map(item).collect();
            }
        }
        changed
    }
}

/// Many changes in one call. They take effect in order, each independently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    #[schemars(length(min = 1, max = 10_000))]
    pub items: Vec<BatchItem>,
}

/// Most items of one batch.
pub const MAX_BATCH: usize = 10_000;

/// An item of a batch. `expect` is the version the client saw; left out: any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BatchItem {
    SubmitJob(SubmitJob),
    /// Submits the job, updates the one of its name that lives, or leaves it alone. `expect` 0:
    /// there must be none.
    ApplyJob {
        /// The owner of the job. Left out: the caller.
        owner: Option<Name>,
        spec: JobSpec,
        expect: Option<u32>,
        /// Run it again if it is a batch job that has ended with this very spec. Left out: false.
        #[serde(default)]
        again: bool,
    },
    /// Tasks that run stop and start again where they are, as budgets allow; with an index, that
    /// one.
    RestartTasks {
        job: JobKey,
        index: Option<u32>,
    },
    /// Tasks that have ended run again: the one of an index, or all that failed for good.
    StartTasks {
        job: JobKey,
        which: TasksToStart,
    },
    UpdateJob {
        owner: Name,
        spec: JobSpec,
        expect: Option<u32>,
    },
    /// What of its size is left out stays as it is.
    ResizeJob {
        job: JobKey,
        size: JobSize,
        expect: Option<u32>,
    },
    StopJob {
        job: JobKey,
        expect: Option<u32>,
    },
    UndoUpdate {
        job: JobKey,
        expect: Option<u32>,
    },
    CloseUpdate {
        job: JobKey,
        expect: Option<u32>,
    },
    AddMachine(MachineSpec),
    UpdateMachine {
        spec: MachineSpec,
        expect: Option<u32>,
    },
    /// Rejected while it is up with tasks on it, unless forced.
    RemoveMachine {
        name: Name,
        expect: Option<u32>,
        #[serde(default)]
        force: bool,
    },
    StartDrain {
        name: Name,
        expect: Option<u32>,
    },
    StopDrain {
        name: Name,
        expect: Option<u32>,
    },
    AddUser(AddUser),
    RemoveUser {
        name: Name,
        expect: Option<u32>,
    },
    SetCapabilities {
        user: Name,
        capabilities: BTreeSet<Capability>,
        expect: Option<u32>,
    },
    SetQuota {
        user: Name,
        band: Band,
        quota: Option<Quota>,
        expect: Option<u32>,
    },
    SetCron {
        owner: Name,
        spec: CronSpec,
        expect: Option<u32>,
    },
    RemoveCron {
        cron: JobKey,
        expect: Option<u32>,
    },
}

/// A size that names something.
///
/// # Errors
/// When it names nothing.
fn named_size(size: JobSize) -> Result<JobSize, ApiError> {
    if size.is_empty() {
        return Err(ApiError::field(
            "count",
            "none",
            "one of count, cpu, ram, disk and disk_rate, or several",
        ));
    }
    Ok(size)
}

/// The command that gives a job this size: limits alone leave the number of its tasks alone.
///
/// # Errors
/// When the size names nothing.
pub fn resize_command(
    job: JobKey,
    size: JobSize,
    expect: Option<u32>,
) -> Result<Command, ApiError> {
    let size = named_size(size)?;
    Ok(match size.count {
        None => Command::ResizeLimits { job, limits: size.limits(), expect },
        Some(_) => Command::ResizeJob { job, size, expect },
    })
}

impl BatchItem {
    /// The command of the item; `caller` is the owner where none is named.
    ///
    /// # Errors
    /// When a job has no owner and the caller is not a user.
    pub fn into_command(self, caller: Option<&Name>) -> Result<Command, ApiError> {
        Ok(match self {
            BatchItem::SubmitJob(SubmitJob { owner, spec }) => {
                Command::SubmitJob { owner: owner_or(owner, caller)?, spec: Box::new(spec) }
            }
            BatchItem::ApplyJob { owner, spec, expect, again } => Command::ApplyJob {
                owner: owner_or(owner, caller)?,
                spec: Box::new(spec),
                expect,
                again,
            },
            BatchItem::RestartTasks { job, index } => Command::RestartTasks { job, index },
            BatchItem::StartTasks { job, which } => Command::StartTasks { job, which },
            BatchItem::UpdateJob { owner, spec, expect } => {
                Command::UpdateJob { owner, spec: Box::new(spec), expect }
            }
            BatchItem::ResizeJob { job, size, expect } => resize_command(job, size, expect)?,
            BatchItem::StopJob { job, expect } => Command::StopJob { job, expect },
            BatchItem::UndoUpdate { job, expect } => Command::UndoUpdate { job, expect },
            BatchItem::CloseUpdate { job, expect } => Command::CloseUpdate { job, expect },
            BatchItem::AddMachine(spec) => Command::AddMachine(spec),
            BatchItem::UpdateMachine { spec, expect } => Command::UpdateMachine { spec, expect },
            BatchItem::RemoveMachine { name, expect, force: true } => {
                Command::RemoveMachine { name, expect }
            }
            BatchItem::RemoveMachine { name, expect, force: false } => {
                Command::RemoveEmptyMachine { name, expect }
            }
            BatchItem::StartDrain { name, expect } => Command::StartDrain { name, expect },
            BatchItem::StopDrain { name, expect } => Command::StopDrain { name, expect },
            BatchItem::AddUser(AddUser { name }) => Command::AddUser { name },
            BatchItem::RemoveUser { name, expect } => Command::RemoveUser { name, expect },
            BatchItem::SetCapabilities { user, capabilities, expect } => {
                Command::SetCapabilities { user, capabilities, expect }
            }
            BatchItem::SetQuota { user, band, quota, expect } => {
                Command::SetQuota { user, band, quota, expect }
            }
            BatchItem::SetCron { owner, spec, expect } => {
                cron::Command::Set { owner, spec: Box::new(spec), expect }.into()
            }
            BatchItem::RemoveCron { cron, expect } => cron::Command::Remove { cron, expect }.into(),
        })
    }
}

/// # Errors
/// When no owner is named and the caller is not a user.
pub fn owner_or(owner: Option<Name>, caller: Option<&Name>) -> Result<Name, ApiError> {
    owner.or_else(|| caller.cloned()).ok_or_else(|| {
        ApiError::field("owner", "none", "the name of a user, as the caller is not one")
    })
}

/// The result of one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemVerdict {
    Done(Changed),
    Rejected(ApiError),
}

/// One verdict for each item, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchAnswer {
    /// The log index at which all of it is durable.
    pub index: u64,
    pub verdicts: Vec<ItemVerdict>,
}
