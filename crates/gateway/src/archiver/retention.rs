//! What the archive has kept for long enough goes. Names and times of objects say enough: nothing
//! is opened.

use super::Archive;
use cellwright_archive::names::{DayObject, HISTORY, JOBS, JobObject, LOGS, LogObject};
use cellwright_archive::{ObjectInfo, StoreError};
use cellwright_cell::time::{Span, Time};
use cellwright_history::day_of;

/// Between two looks at everything.
const EVERY: Span = Span::seconds(3600);
const PAGE: usize = 1000;

#[derive(Default)]
pub(super) struct Retention {
    looked_at: Option<Time>,
}

impl Retention {
    /// Removes what is old by now. Returns how many objects.
    pub async fn enforce(&mut self, archive: &Archive, now: Time) -> Result<u64, StoreError> {
        if self.looked_at.is_some_and(|at| now.since(at) < EVERY) {
            return Ok(0);
        }
        let config = &archive.0.config;
        let mut removed = 0;
        let kinds: [(&str, Option<Span>, IsOld); 3] = [
            (JOBS, config.keep_jobs, is_old_job),
            (LOGS, config.keep_logs, is_old_log),
            (HISTORY, config.keep_history, is_old_day),
        ];
        for (prefix, keep, is_old) in kinds {
            let Some(keep) = keep else { continue };
            let line = Time(now.0.saturating_sub(keep.0));
            let mut after = String::new();
            loop {
                let page = archive.store().list(prefix, &after, PAGE).await?;
                let Some(last) = page.last() else { break };
                after.clone_from(&last.name);
                for object in page.iter().filter(|object| is_old(object, line)) {
                    archive.store().remove(&object.name).await?;
                    removed += 1;
                }
            }
        }
        self.looked_at = Some(now);
        Ok(removed)
    }
}

/// Whether an object is from before a time. What is no object of ours is none that is removed.
type IsOld = fn(&ObjectInfo, Time) -> bool;

fn is_old_job(object: &ObjectInfo, line: Time) -> bool {
    JobObject::parse(&object.name).is_some_and(|job| job.ended < line)
}

/// A log is written when its attempt is over.
fn is_old_log(object: &ObjectInfo, line: Time) -> bool {
    LogObject::parse(&object.name).is_some() && object.modified < line
}

fn is_old_day(object: &ObjectInfo, line: Time) -> bool {
    DayObject::parse(&object.name).is_some_and(|day| day.day() < day_of(line.0).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archiver::ArchiveConfig;
    use bytes::Bytes;
    use cellwright_archive::ArchivePlace;
    use cellwright_control::controller::testing::{key, name};

    #[tokio::test]
    async fn each_kind_is_kept_for_its_own_time() {
        let folder = std::env::temp_dir().join(format!("retention-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        let days = |days: u64| Span::seconds(days * 86_400);
        let now = cellwright_identity::clock::wall();
        let ago = |span: Span| Time(now.0 - span.0);
        let config = ArchiveConfig {
            place: ArchivePlace::Folder(folder.clone()),
            wait: Span::ZERO,
            keep_jobs: Some(days(10)),
            keep_logs: Some(days(20)),
            keep_history: Some(days(30)),
        };
        let archive = Archive::new(name("aa"), config);
        let job = |ended: Time| JobObject { job: key("web"), submitted: Time(5), ended }.name();
        let log = LogObject { job: key("web"), submitted: Time(5), index: 0, attempt: 1 }.name();
        let day = |at: Time| DayObject { table: "events".into(), part: day_of(at.0) }.name();
        let stays =
            [job(ago(days(9))), log.clone(), day(ago(days(29))), "jobs/ann/notes".to_owned()];
        let goes = [job(ago(days(11))), day(ago(days(31)))];
        for name in stays.iter().chain(&goes) {
            archive.store().put(name, Bytes::new()).await.unwrap();
        }
        let mut retention = Retention::default();
        assert_eq!(retention.enforce(&archive, now).await.unwrap(), 2);
        for name in &stays {
            assert!(archive.store().get(name).await.unwrap().is_some(), "{name}");
        }
        for name in &goes {
            assert!(archive.store().get(name).await.unwrap().is_none(), "{name}");
        }
        // The log was written just now; in a month it is old.
        let later = now.plus(days(25));
        assert_eq!(retention.enforce(&archive, now.plus(Span(1))).await.unwrap(), 0, "not yet");
        assert!(retention.enforce(&archive, later).await.unwrap() >= 2);
        assert!(archive.store().get(&log).await.unwrap().is_none());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
