//! The configuration of a scheduler, with defaults that suit nearly every cell.

use crate::scheduler_shard::SchedulerShard;
use cellwright_api::level::known_level;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_sched::Options;

/// Assignments and victims in one command. 20,000 are about a quarter of a megabyte in the log,
/// which replicates and applies in tens of milliseconds: other clients' entries fit between.
pub const DEFAULT_CHUNK: usize = 20_000;

#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// The scheduler's name in leases and logs.
    pub name: Name,
    pub shard: SchedulerShard,
    /// Fixed for the life of the process: the score cache is cleared when it changes.
    pub seed: u64,
    pub options: Options,
    /// Assignments and victims in one command, unless a single group has more.
    pub chunk_size: usize,
    /// How long the master may hold a long poll of the log.
    pub poll_wait: Span,
    /// How long an answer may take beyond that.
    pub answer_timeout: Span,
    /// First and longest backoff after a failure.
    pub retry: Span,
    pub retry_max: Span,
    /// The newest level of the cell that it knows; what is beyond it is of a newer build.
    pub known_level: u32,
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("setting {field}: value {value:?} is not valid; allowed: {allowed}")]
pub struct InvalidConfig {
    pub field: &'static str,
    pub value: String,
    pub allowed: &'static str,
}

impl SchedulerConfig {
    #[must_use]
    pub fn new(name: Name, shard: SchedulerShard, seed: u64) -> SchedulerConfig {
        SchedulerConfig {
            name,
            shard,
            seed,
            options: Options::default(),
            chunk_size: DEFAULT_CHUNK,
            poll_wait: Span::seconds(5),
            answer_timeout: Span::seconds(10),
            retry: Span(100),
            retry_max: Span::seconds(5),
            known_level: known_level(),
        }
    }

    /// # Errors
    /// The first invalid setting.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let bad = |field, value: String, allowed| Err(InvalidConfig { field, value, allowed });
        if self.chunk_size == 0 {
            return bad("chunk", "0".into(), "1 or more assignments");
        }
        if self.answer_timeout == Span::ZERO {
            return bad("patience", "0".into(), "1 or more milliseconds");
        }
        if self.retry == Span::ZERO {
            return bad("retry", "0".into(), "1 or more milliseconds");
        }
        if self.retry_max < self.retry {
            return bad("retry_max", self.retry_max.0.to_string(), "not less than retry");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: fn(&mut SchedulerConfig), want: &str) {
        let mut settings =
            SchedulerConfig::new(Name::new("s1").unwrap(), SchedulerShard::new("").unwrap(), 1);
        change(&mut settings);
        let rejected_field = settings.validate().map_or_else(|e| e.field, |()| "fine");
        assert_eq!(rejected_field, want);
    }

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        check(|_| {}, "fine");
        check(|s| s.chunk_size = 0, "chunk");
        check(|s| s.answer_timeout = Span::ZERO, "patience");
        check(|s| s.retry = Span::ZERO, "retry");
        check(|s| s.retry_max = Span(1), "retry_max");
        let error = SchedulerShard::new("two words").unwrap_err();
        assert_eq!((error.field, error.value.as_str()), ("shard", "two words"));
    }
}
