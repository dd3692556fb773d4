//! Events of periodic jobs, and their text.

use super::schedule::stamp;
use crate::components::ComponentEvent;
use crate::id::{CronId, JobId};
use crate::state::State;
use crate::tables::RowRef;
use crate::time::Time;
use crate::words;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub cron: CronId,
    pub change: CronChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CronChange {
    Added,
    Updated {
        version: u32,
    },
    Removed,
    /// The slot's run was submitted.
    Fired {
        slot: Time,
        job: JobId,
    },
    /// The slot has no run: the last one is still active.
    Skipped {
        slot: Time,
    },
    /// The slot's run was not admitted; the rejection of the job says why.
    Rejected {
        slot: Time,
    },
    /// Somebody asked for this run.
    RunByHand {
        job: JobId,
    },
}

impl ComponentEvent for Event {
    fn kind(&self) -> &'static str {
        "cron"
    }

    fn row(&self) -> RowRef {
        self.cron.into()
    }

    fn related_row(&self) -> Option<RowRef> {
        match self.change {
            CronChange::Fired { job, .. } | CronChange::RunByHand { job } => Some(job.into()),
            _ => None,
        }
    }

    fn removes_row(&self) -> bool {
        self.change == CronChange::Removed
    }

    fn label_and_detail(&self) -> (&'static str, Option<String>) {
        match self.change {
            CronChange::Added => ("added", None),
            CronChange::Updated { version } => ("updated", Some(format!("version {version}"))),
            CronChange::Removed => ("removed", None),
            CronChange::Fired { slot, .. } => ("fired", Some(format!("slot {}", slot.0))),
            CronChange::Skipped { slot } => ("skipped", Some(format!("slot {}", slot.0))),
            CronChange::Rejected { slot } => ("rejected", Some(format!("slot {}", slot.0))),
            CronChange::RunByHand { .. } => ("run-by-hand", None),
        }
    }

    fn object_kind(&self) -> Option<&'static str> {
        Some("periodic job")
    }

    fn object_name(&self, state: &State) -> String {
        let key = state.cron_key(self.cron);
        key.map_or_else(|| format!("cron#{}", self.cron.0), |key| key.to_string())
    }

    fn describe(&self, state: &State) -> String {
        match self.change {
            CronChange::Added => "added".into(),
            CronChange::Updated { version } => format!("changed to version {version}"),
            CronChange::Removed => "removed".into(),
            CronChange::Fired { slot, job } => {
                format!("of {} runs as {}", stamp(slot), words::job_name(state, job))
            }
            CronChange::Skipped { slot } => format!("of {} skipped", stamp(slot)),
            CronChange::Rejected { slot } => format!("of {} does not run", stamp(slot)),
            CronChange::RunByHand { job } => {
                format!("runs by hand as {}", words::job_name(state, job))
            }
        }
    }
}
