//! What can be set about a scheduler, with the values that suit nearly everybody.

use crate::lane::Lane;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_sched::Options;

/// Assignments and victims in one command. 20,000 are about a quarter of a megabyte in the log,
/// which replicates and applies in tens of milliseconds: other clients' entries fit between.
pub const DEFAULT_CHUNK: usize = 20_000;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Who this is, in leases and logs.
    pub name: Name,
    pub lane: Lane,
    /// Fixed for the life of the process: a board forgets its cached scores when it changes.
    pub seed: u64,
    pub options: Options,
    /// Assignments and victims in one command, unless a single group has more.
    pub chunk: usize,
    /// How long the master may hang a question for news.
    pub poll: Span,
    /// How long an answer may take beyond that.
    pub patience: Span,
    /// First and longest pause after a failure.
    pub retry: Span,
    pub retry_max: Span,
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("setting {field}: value {value:?} is not valid; allowed: {allowed}")]
pub struct BadSetting {
    pub field: &'static str,
    pub value: String,
    pub allowed: &'static str,
}

impl Settings {
    #[must_use]
    pub fn new(name: Name, lane: Lane, seed: u64) -> Settings {
        Settings {
            name,
            lane,
            seed,
            options: Options::default(),
            chunk: DEFAULT_CHUNK,
            poll: Span::seconds(5),
            patience: Span::seconds(10),
            retry: Span(100),
            retry_max: Span::seconds(5),
        }
    }

    /// # Errors
    /// The first setting that cannot be.
    pub fn check(&self) -> Result<(), BadSetting> {
        let bad = |field, value: String, allowed| Err(BadSetting { field, value, allowed });
        if self.chunk == 0 {
            return bad("chunk", "0".into(), "1 or more assignments");
        }
        if self.patience == Span::ZERO {
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

    fn check(change: fn(&mut Settings), want: &str) {
        let mut settings = Settings::new(Name::new("s1").unwrap(), Lane::new("").unwrap(), 1);
        change(&mut settings);
        let said = settings.check().map_or_else(|e| e.field, |()| "fine");
        assert_eq!(said, want);
    }

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        check(|_| {}, "fine");
        check(|s| s.chunk = 0, "chunk");
        check(|s| s.patience = Span::ZERO, "patience");
        check(|s| s.retry = Span::ZERO, "retry");
        check(|s| s.retry_max = Span(1), "retry_max");
        let error = Lane::new("two words").unwrap_err();
        assert_eq!((error.field, error.value.as_str()), ("lane", "two words"));
    }
}
