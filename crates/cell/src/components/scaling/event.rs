//! Events of the scaling of jobs, and their text.

use super::ScalingId;
use crate::components::ComponentEvent;
use crate::id::JobId;
use crate::scale::{Decision, SignalName};
use crate::state::State;
use crate::tables::RowRef;
use crate::words;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub scaling: ScalingId,
    pub job: JobId,
    pub change: ScalingChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScalingChange {
    /// What it used in a minute. `None`: nothing was measured.
    Measured {
        need: Option<(SignalName, u32)>,
    },
    Decided {
        decision: Decision,
    },
    /// Its size is its owner's from now on, or the cell's again.
    ModeChanged {
        manual: bool,
    },
    Forgotten,
}

impl ComponentEvent for Event {
    fn kind(&self) -> &'static str {
        "scaling"
    }

    fn row(&self) -> RowRef {
        self.scaling.into()
    }

    fn related_row(&self) -> Option<RowRef> {
        Some(self.job.into())
    }

    fn removes_row(&self) -> bool {
        self.change == ScalingChange::Forgotten
    }

    fn label_and_detail(&self) -> (&'static str, Option<String>) {
        match &self.change {
            ScalingChange::Measured { need } => {
                let text = |(_, need): &(_, u32)| format!("need {}", words::scaling::tasks(*need));
                ("measured", need.as_ref().map(text))
            }
            ScalingChange::Decided { decision } => {
                let label = if decision.changes_size() { "scaled" } else { "decided" };
                (label, Some(words::scaling::detail(decision)))
            }
            ScalingChange::ModeChanged { manual } => {
                ("mode-changed", Some(if *manual { "manual" } else { "auto" }.to_owned()))
            }
            ScalingChange::Forgotten => ("forgotten", None),
        }
    }

    fn object_name(&self, state: &State) -> String {
        words::job_name(state, self.job)
    }

    fn describe(&self, state: &State) -> String {
        let _ = state;
        match &self.change {
            ScalingChange::Measured { need: None } => "was not measured".into(),
            ScalingChange::Measured { need: Some((by, need)) } => {
                let (by, need) = (words::scaling::signal(by), words::scaling::tasks(*need));
                format!("needs {need} tasks by {by}")
            }
            ScalingChange::Decided { decision } => words::scaling::decision(decision),
            ScalingChange::ModeChanged { manual: true } => "is sized by hand".into(),
            ScalingChange::ModeChanged { manual: false } => "is sized by the cell".into(),
            ScalingChange::Forgotten => "is scaled no more".into(),
        }
    }

    fn may_free_room(&self) -> bool {
        matches!(&self.change, ScalingChange::Decided { decision } if decision.changes_size())
    }
}
