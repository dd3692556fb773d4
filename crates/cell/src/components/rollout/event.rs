//! Events of rollouts, and their text. Versions that are made and rolled back have those of their
//! job.

use super::JobVersionId;
use crate::components::ComponentEvent;
use crate::id::JobId;
use crate::state::State;
use crate::tables::RowRef;
use crate::words;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub job: JobId,
    /// The version that the update leads to, or that was dropped.
    pub version: u32,
    pub change: RolloutChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RolloutChange {
    /// The tasks that waited for canaries get the version too.
    Promoted,
    /// The tasks that were skipped get the version too.
    Finishing,
    /// The version is no longer kept.
    Dropped,
}

impl ComponentEvent for Event {
    fn kind(&self) -> &'static str {
        "job"
    }

    fn row(&self) -> RowRef {
        self.job.into()
    }

    fn removes_row(&self) -> bool {
        false
    }

    fn label_and_detail(&self) -> (&'static str, Option<String>) {
        let label = match self.change {
            RolloutChange::Promoted => "promoted",
            RolloutChange::Finishing => "finishing",
            RolloutChange::Dropped => "version-dropped",
        };
        (label, Some(format!("version {}", self.version)))
    }

    fn object_name(&self, state: &State) -> String {
        words::job_name(state, self.job)
    }

    fn describe(&self, state: &State) -> String {
        let version = self.version;
        match self.change {
            RolloutChange::Promoted => format!("version {version} promoted to all tasks"),
            RolloutChange::Finishing => {
                let left: u32 = state.job_load(self.job).map_or(0, |load| {
                    load.at_version.iter().filter(|(at, _)| **at != version).map(|(_, n)| *n).sum()
                });
                let left = crate::units::pluralize(u64::from(left), "task");
                format!("update to version {version} goes on with {left}")
            }
            RolloutChange::Dropped => format!("version {version} no longer kept"),
        }
    }

    fn changed_rows(&self, before: &State, after: &State) -> Vec<RowRef> {
        let of = |state: &State| state.components.rollout.id_of(self.job, self.version);
        match self.change {
            RolloutChange::Promoted | RolloutChange::Finishing => vec![self.job.into()],
            RolloutChange::Dropped => {
                let dropped: Option<JobVersionId> = of(before).or_else(|| of(after));
                dropped.into_iter().map(Into::into).collect()
            }
        }
    }
}
