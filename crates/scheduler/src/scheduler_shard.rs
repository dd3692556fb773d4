//! Which jobs a scheduler looks after. A cell may run several schedulers at once, each with its own
//! lane: the jobs whose label `scheduler` names it.
//!
//! The empty lane takes the jobs that do not have the label, or have it empty, and no others. A job
//! labelled for a lane nobody serves waits, visibly, until somebody does. Rejected: letting the
//! empty lane adopt such jobs. It cannot know which lanes are served, so it would place work that
//! was deliberately kept away from it whenever the other scheduler is only restarting.

use cellwright_cell::name::Token;
use cellwright_cell::spec::JobSpec;
use std::fmt;

/// The label that names a job's lane.
pub const LABEL: &str = "scheduler";

/// A share of the cell's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerShard {
    name: String,
    label: Token,
}

impl SchedulerShard {
    /// # Errors
    /// When the name could not stand in a label that selects it.
    pub fn new(name: &str) -> Result<SchedulerShard, crate::config::InvalidConfig> {
        let bad = || crate::config::InvalidConfig {
            field: "lane",
            value: name.to_owned(),
            allowed: "nothing, or 1 to 128 printable ASCII characters without spaces",
        };
        if !name.is_empty() {
            Token::new(name).map_err(|_| bad())?;
        }
        let label = Token::new(LABEL).map_err(|_| bad())?;
        Ok(SchedulerShard { name: name.to_owned(), label })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether jobs of this spec are this lane's.
    #[must_use]
    pub fn owns(&self, spec: &JobSpec) -> bool {
        spec.labels.get(&self.label).map_or("", String::as_str) == self.name
    }
}

impl fmt::Display for SchedulerShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.name.is_empty() { "(default)" } else { &self.name })
    }
}
