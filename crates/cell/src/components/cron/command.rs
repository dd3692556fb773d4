//! Commands for periodic jobs. Their names are like names of jobs, in a separate namespace.

use super::CronSpec;
use crate::actor::ControllerName;
use crate::apply::authorize::{Rights, UserRight};
use crate::components::ComponentCommand;
use crate::name::{JobKey, Name};
use crate::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    Set {
        owner: Name,
        spec: Box<CronSpec>,
        /// The version the client saw; `None` applies the change to any version.
        expect: Option<u32>,
    },
    Remove {
        cron: JobKey,
        expect: Option<u32>,
    },
    /// Controllers: submit the run of one moment of the schedule. A slot that was handled before
    /// changes nothing.
    Fire {
        cron: JobKey,
        slot: Time,
    },
    /// Submit a run now, whatever the schedule says; also of one that is paused.
    Run {
        cron: JobKey,
    },
}

impl ComponentCommand for Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Set { .. } => "set_cron",
            Command::Remove { .. } => "remove_cron",
            Command::Fire { .. } => "fire_cron",
            Command::Run { .. } => "run_cron",
        }
    }

    fn rights(&self) -> Rights<'_> {
        match self {
            Command::Set { owner, spec, .. } => {
                Rights::users(UserRight::Job { user: owner, job: &spec.name })
            }
            Command::Remove { cron, .. } | Command::Run { cron } => {
                Rights::users(UserRight::Job { user: &cron.user, job: &cron.job })
            }
            Command::Fire { .. } => Rights::controller(ControllerName::Cron),
        }
    }

    fn object(&self) -> String {
        match self {
            Command::Set { owner, spec, .. } => format!("{owner}/{}", spec.name),
            Command::Remove { cron, .. } | Command::Fire { cron, .. } | Command::Run { cron } => {
                cron.to_string()
            }
        }
    }

    fn frees_space(&self) -> bool {
        matches!(self, Command::Remove { .. })
    }
}
