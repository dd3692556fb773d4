//! The scheduler shard: which jobs a scheduler is responsible for. A cell may run several
//! schedulers at once, each with its own shard: the jobs whose label `scheduler` names it.
//!
//! The empty shard has the jobs without the label, or with an empty one, and no others. A job
//! labelled for a shard without a scheduler stays pending, visibly, until there is one. Rejected:
//! letting the empty shard adopt such jobs. It cannot know which shards are served, so it would
//! place work that was deliberately kept away from it whenever the other scheduler is only
//! restarting.

use cellwright_cell::name::Token;
use cellwright_cell::spec::JobSpec;
use std::fmt;

/// The label that names a job's scheduler shard.
pub const LABEL: &str = "scheduler";

/// A part of the cell's jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerShard {
    name: String,
    label: Token,
}

impl SchedulerShard {
    /// # Errors
    /// When the name is not valid as the value of the label.
    pub fn new(name: &str) -> Result<SchedulerShard, crate::config::InvalidConfig> {
        let bad = || crate::config::InvalidConfig {
            field: "shard",
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

    /// Whether jobs with this spec belong to this shard.
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
