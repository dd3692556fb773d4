//! Commands for the scaling of jobs.

use crate::actor::ControllerName;
use crate::apply::authorize::{Rights, UserRight};
use crate::components::ComponentCommand;
use crate::id::JobId;
use crate::name::JobKey;
use crate::scale::{Decision, SignalName, Untold};
use serde::{Deserialize, Serialize};

/// What one job used in a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobLoad {
    pub job: JobId,
    /// The measure that asked for the most tasks, and for how many thousandths of one. `None`: no
    /// task was measured, or the policy has no measure.
    pub need: Option<(SignalName, u32)>,
    /// Tasks that should run and were not measured.
    pub missing: u32,
    /// The most that one task used: milli-cores and bytes.
    pub peak_cpu: u64,
    pub peak_ram: u64,
    /// The largest limit at which a task was killed for want of memory, in bytes; 0: none was.
    pub oom_limit: u64,
    /// The number that was told by the fewest tasks, unless all told all: `need` is no more than
    /// a part then.
    #[serde(default)]
    pub untold: Option<Untold>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Masters: what the scaled jobs used since the last of these.
    Measure { loads: Vec<JobLoad> },
    /// Controllers: what a job's size shall be, and why. Changes nothing when the job is no longer
    /// as the decision says.
    Decide { job: JobId, decision: Decision },
    /// Hands the size of a job to its owner, or back to the cell.
    SetMode { job: JobKey, manual: bool },
    /// Controllers: nothing is to be remembered of a job that has ended, or has no policy.
    Forget { job: JobId },
}

impl ComponentCommand for Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Measure { .. } => "measure_jobs",
            Command::Decide { .. } => "scale_job",
            Command::SetMode { .. } => "set_scale_mode",
            Command::Forget { .. } => "forget_scaling",
        }
    }

    fn rights(&self) -> Rights<'_> {
        match self {
            Command::Measure { .. } => Rights::REPLICA,
            Command::SetMode { job, .. } => {
                Rights::users(UserRight::Job { user: &job.user, job: &job.job })
            }
            Command::Decide { .. } | Command::Forget { .. } => {
                Rights::controller(ControllerName::Scaling)
            }
        }
    }

    fn object(&self) -> String {
        match self {
            Command::Measure { loads } => format!("{} jobs", loads.len()),
            Command::SetMode { job, .. } => job.to_string(),
            Command::Decide { job, .. } | Command::Forget { job } => format!("job#{}", job.0),
        }
    }

    fn frees_space(&self) -> bool {
        matches!(self, Command::Forget { .. })
    }
}
