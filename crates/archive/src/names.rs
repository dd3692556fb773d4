//! Names of objects. A name holds what an object is looked for by, and what retention needs to
//! know: a list of names is all that either reads. Times are milliseconds in so many digits that
//! their order is that of the names.

use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::time::Time;

pub const JOBS: &str = "jobs/";
pub const LOGS: &str = "logs/";
pub const HISTORY: &str = "history/";
/// Everything that ended before the time in this object is in the archive.
pub const ARCHIVED_BEFORE: &str = "state/archived-before";

const JOB_ENDING: &str = ".json.gz";
const LOG_ENDING: &str = ".ndjson.gz";
const PARQUET_ENDING: &str = ".parquet";

/// A job that has ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobObject {
    pub job: JobKey,
    /// With the name, what makes it this job and no other.
    pub submitted: Time,
    /// A job whose tasks were started again ends once more, and is archived once more.
    pub ended: Time,
}

impl JobObject {
    #[must_use]
    pub fn name(&self) -> String {
        let JobObject { job, submitted, ended } = self;
        format!("{}{:015}-{:015}{JOB_ENDING}", Self::prefix(job), submitted.0, ended.0)
    }

    /// What the names of all jobs of this name begin with.
    #[must_use]
    pub fn prefix(job: &JobKey) -> String {
        format!("{JOBS}{}/{}/", job.user, job.job)
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<JobObject> {
        let [user, job, times] = parts(name.strip_prefix(JOBS)?)?;
        let (submitted, ended) = times.strip_suffix(JOB_ENDING)?.split_once('-')?;
        Some(JobObject { job: key(user, job)?, submitted: time(submitted)?, ended: time(ended)? })
    }
}

/// What one attempt of a task wrote.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogObject {
    pub job: JobKey,
    pub submitted: Time,
    pub index: u32,
    pub attempt: u32,
}

impl LogObject {
    #[must_use]
    pub fn name(&self) -> String {
        let prefix = Self::prefix(&self.job, self.submitted);
        format!("{prefix}{:06}/{:08}{LOG_ENDING}", self.index, self.attempt)
    }

    /// What the names of all logs of this job begin with.
    #[must_use]
    pub fn prefix(job: &JobKey, submitted: Time) -> String {
        format!("{}{:015}/", Self::prefix_of_name(job), submitted.0)
    }

    /// The same for all jobs that were ever called so.
    #[must_use]
    pub fn prefix_of_name(job: &JobKey) -> String {
        format!("{LOGS}{}/{}/", job.user, job.job)
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<LogObject> {
        let [user, job, submitted, index, attempt] = parts(name.strip_prefix(LOGS)?)?;
        Some(LogObject {
            job: key(user, job)?,
            submitted: time(submitted)?,
            index: index.parse().ok()?,
            attempt: attempt.strip_suffix(LOG_ENDING)?.parse().ok()?,
        })
    }
}

/// Rows of history of one day; of a day that came in several parts, one of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DayObject {
    pub table: String,
    /// `2026-11-19`, or `2026-11-19.2` for the second part.
    pub part: String,
}

impl DayObject {
    #[must_use]
    pub fn name(&self) -> String {
        format!("{HISTORY}{}/{}{PARQUET_ENDING}", self.table, self.part)
    }

    /// The day alone.
    #[must_use]
    pub fn day(&self) -> &str {
        self.part.split('.').next().unwrap_or_default()
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<DayObject> {
        let [table, file] = parts(name.strip_prefix(HISTORY)?)?;
        let part = file.strip_suffix(PARQUET_ENDING)?;
        let day = part.split('.').next().unwrap_or_default();
        let is_day = day.len() == 10 && day.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        is_day.then(|| DayObject { table: table.to_owned(), part: part.to_owned() })
    }
}

/// Whether a name can be one of an object: relative, without anything that a file system or a
/// server could take for something else.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !name.is_empty()
        && name
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.') && part.bytes().all(plain))
}

fn parts<const N: usize>(text: &str) -> Option<[&str; N]> {
    text.split('/').collect::<Vec<_>>().try_into().ok()
}

fn key(user: &str, job: &str) -> Option<JobKey> {
    Some(JobKey { user: Name::new(user).ok()?, job: Name::new(job).ok()? })
}

fn time(text: &str) -> Option<Time> {
    text.parse().ok().map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web() -> JobKey {
        key("ann", "web").unwrap()
    }

    #[test]
    fn names_are_read_as_they_were_written() {
        let job = JobObject {
            job: web(),
            submitted: Time(1_700_000_000_123),
            ended: Time(1_700_000_000_999),
        };
        assert_eq!(job.name(), "jobs/ann/web/001700000000123-001700000000999.json.gz");
        assert_eq!(JobObject::parse(&job.name()), Some(job.clone()));
        let log = LogObject { job: web(), submitted: job.submitted, index: 7, attempt: 12 };
        assert_eq!(log.name(), "logs/ann/web/001700000000123/000007/00000012.ndjson.gz");
        assert_eq!(LogObject::parse(&log.name()), Some(log.clone()));
        let day = DayObject { table: "events".into(), part: "2026-11-19.2".into() };
        assert_eq!(day.name(), "history/events/2026-11-19.2.parquet");
        assert_eq!((DayObject::parse(&day.name()), day.day()), (Some(day.clone()), "2026-11-19"));
        for name in [job.name(), log.name(), day.name(), ARCHIVED_BEFORE.to_owned()] {
            assert!(is_plain(&name), "{name}");
        }
    }

    #[test]
    fn what_others_left_there_is_no_object_of_ours() {
        for name in ["jobs/ann/web", "jobs/ann/web/x-1.json.gz", "jobs/Ann/web/1-2.json.gz", "x"] {
            assert_eq!(JobObject::parse(name), None, "{name}");
        }
        for name in ["logs/ann/web/1/2/x.ndjson.gz", "logs/ann/web/1/2/3.gz"] {
            assert_eq!(LogObject::parse(name), None, "{name}");
        }
        assert_eq!(DayObject::parse("history/events/notes.parquet"), None);
        for name in ["", "/etc", "a/../b", "a//b", ".tmp/a", "a/.b", "a b", "a?b"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
