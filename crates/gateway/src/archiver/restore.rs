//! Days of history that somebody wants back: a request is an object of its own in the archive, so
//! every master learns of it, fetches the days, and drops them when their time is over.
//!
//! Rejected: putting them back where they were. They are old, and the next cleaning would take
//! them.

use super::Archive;
use cellwright_archive::StoreError;
use cellwright_archive::names::{DayObject, HISTORY};
use cellwright_cell::time::Time;
use cellwright_history::{HistoryError, drop_restored_part, restore_part, restored_parts};
use cellwright_master::handle::MasterHandle;
use cellwright_store::Role;
use cellwright_supervise::failpoint;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::sleep;

/// What names of requests begin with.
const REQUESTS: &str = "state/restored/";
/// Between two looks at what is wanted.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Requests that are heeded, and files that one master fetches for all of them.
const MAX_REQUESTS: usize = 100;
pub const MAX_FILES: usize = 1000;
const PAGE: usize = 1000;

/// Days that are wanted until a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreRequest {
    pub from: String,
    pub to: String,
    pub until: Time,
}

impl RestoreRequest {
    fn name(&self) -> String {
        format!("{REQUESTS}{}_{}_{:015}", self.from, self.to, self.until.0)
    }

    fn parse(name: &str) -> Option<RestoreRequest> {
        let mut parts = name.strip_prefix(REQUESTS)?.split('_');
        let (from, to) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        Some(RestoreRequest { from, to, until: Time(parts.next()?.parse().ok()?) })
    }

    fn wants(&self, day: &DayObject) -> bool {
        (self.from.as_str()..=self.to.as_str()).contains(&day.day())
    }
}

/// Why days did not come back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error("{files} files of history are between these days; allowed: {MAX_FILES} at once")]
    TooMany { files: usize },
}

impl Archive {
    /// The files of these days in the archive, and their bytes.
    ///
    /// # Errors
    /// When the store does not answer, or there are too many of them.
    pub async fn days_between(
        &self,
        request: &RestoreRequest,
    ) -> Result<Vec<(DayObject, u64)>, RestoreError> {
        let mut days = Vec::new();
        let mut after = String::new();
        loop {
            let page = self.store().list(HISTORY, &after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after.clone_from(&last.name);
            let found = page
                .iter()
                .filter_map(|object| Some((DayObject::parse(&object.name)?, object.bytes)));
            days.extend(found.filter(|(day, _)| request.wants(day)));
        }
        match days.len() {
            files if files > MAX_FILES => Err(RestoreError::TooMany { files }),
            _ => Ok(days),
        }
    }

    /// Has all masters fetch these days, and fetches them to this one.
    ///
    /// # Errors
    /// When the store or the disk fails.
    pub async fn restore_days(
        &self,
        request: &RestoreRequest,
        history: &Path,
        now: Time,
    ) -> Result<(), RestoreError> {
        self.store().put(&request.name(), bytes::Bytes::new()).await?;
        self.fetch_wanted(history, now, false).await
    }

    /// Fetches what is wanted and drops what is not any more. `tidies`: requests that are over go.
    async fn fetch_wanted(
        &self,
        history: &Path,
        now: Time,
        tidies: bool,
    ) -> Result<(), RestoreError> {
        let mut wanted = BTreeSet::new();
        for object in self.store().list(REQUESTS, "", MAX_REQUESTS).await? {
            let Some(request) = RestoreRequest::parse(&object.name) else { continue };
            if request.until > now {
                let days = self.days_between(&request).await?;
                wanted.extend(days.into_iter().map(|(day, _)| (day.table, day.part)));
            } else if tidies {
                self.store().remove(&object.name).await?;
            }
        }
        let here = restored_parts(history);
        for part in here.difference(&wanted) {
            drop_restored_part(history, part)?;
        }
        for (table, part) in wanted.difference(&here).take(MAX_FILES) {
            let name = DayObject { table: table.clone(), part: part.clone() }.name();
            let Some(content) = self.store().get(&name).await? else { continue };
            let (history, table, part) = (history.to_owned(), table.clone(), part.clone());
            let work = move || restore_part(&history, &table, &part, &content);
            let done = tokio::task::spawn_blocking(work).await;
            done.unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}

/// Runs for as long as the replica runs.
pub async fn run(archive: Archive, handle: MasterHandle, history: PathBuf) {
    loop {
        failpoint("restoring history");
        let leads = handle.status().role == Role::Leader;
        // Who leads is known, or nobody removes anything.
        if let Err(error) = archive.fetch_wanted(&history, handle.log_time(), leads).await {
            tracing::warn!(%error, "days of history did not come back");
        }
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archiver::ArchiveConfig;
    use bytes::Bytes;
    use cellwright_archive::ArchivePlace;
    use cellwright_control::controller::testing::name;

    #[tokio::test]
    async fn days_come_back_on_every_master_until_their_time_is_over() {
        let folder = std::env::temp_dir().join(format!("restore-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        let place = ArchivePlace::Folder(folder.join("archive"));
        let archive = Archive::new(name("aa"), ArchiveConfig::keeping_all(place));
        let day = |part: &str| DayObject { table: "task_events".into(), part: part.into() };
        for part in ["2026-11-01", "2026-11-02", "2026-11-02.2", "2026-11-03"] {
            let content = Bytes::from_static(b"PAR1PAR1");
            archive.store().put(&day(part).name(), content).await.unwrap();
        }
        let (from, to) = ("2026-11-02".to_owned(), "2026-11-02".to_owned());
        let request = RestoreRequest { from, to, until: Time(1000) };
        assert_eq!(RestoreRequest::parse(&request.name()), Some(request.clone()));
        let (one, other) = (folder.join("one"), folder.join("other"));
        archive.restore_days(&request, &one, Time(5)).await.unwrap();
        let parts = |history: &Path| {
            restored_parts(history).into_iter().map(|(_, part)| part).collect::<Vec<_>>()
        };
        assert_eq!(parts(&one), ["2026-11-02", "2026-11-02.2"]);
        archive.fetch_wanted(&other, Time(6), false).await.unwrap();
        assert_eq!(parts(&other), parts(&one), "the other was not asked");
        archive.fetch_wanted(&one, Time(1000), true).await.unwrap();
        assert!(parts(&one).is_empty());
        assert!(archive.store().list(REQUESTS, "", 10).await.unwrap().is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
