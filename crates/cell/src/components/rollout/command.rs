//! What a job's owner asks of its versions and of its open update.

use crate::actor::ControllerName;
use crate::apply::authorize::{Rights, UserRight};
use crate::components::ComponentCommand;
use crate::name::JobKey;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// An update to the spec of an earlier version.
    Revert {
        job: JobKey,
        version: u32,
        /// The version the client saw; `None` applies the change to any version.
        expect: Option<u32>,
    },
    /// The tasks that waited for the canaries get the new version too. By the controller: once the
    /// canaries were well for long enough.
    Promote { job: JobKey, expect: Option<u32> },
    /// Tasks that an update skipped get the job's version after all.
    Finish { job: JobKey, expect: Option<u32> },
}

impl Command {
    fn job(&self) -> &JobKey {
        match self {
            Command::Revert { job, .. }
            | Command::Promote { job, .. }
            | Command::Finish { job, .. } => job,
        }
    }
}

impl ComponentCommand for Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Revert { .. } => "revert_job",
            Command::Promote { .. } => "promote_update",
            Command::Finish { .. } => "finish_update",
        }
    }

    fn rights(&self) -> Rights<'_> {
        let JobKey { user, job } = self.job();
        let owner = Rights::users(UserRight::Job { user, job });
        match self {
            Command::Promote { .. } => Rights { controller: Some(ControllerName::Update), ..owner },
            Command::Revert { .. } | Command::Finish { .. } => owner,
        }
    }

    fn object(&self) -> String {
        self.job().to_string()
    }

    fn frees_space(&self) -> bool {
        false
    }
}
