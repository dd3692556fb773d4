//! Days of history that are files already: each goes into the archive as it is, once, under the
//! name of its table and day.

use super::{Archive, Archiver};
use cellwright_archive::StoreError;
use cellwright_archive::names::{DayObject, HISTORY};
use cellwright_history::{ArchivedFile, archived_files};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks at what history has. Days become files once in ten minutes at most.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Files that are written in one round.
const PER_ROUND: usize = 16;
const PAGE: usize = 1000;

#[derive(Default)]
pub(super) struct DayBacklog {
    /// What the store has; absent until it was asked.
    stored: Option<BTreeSet<DayObject>>,
    waiting: Vec<(DayObject, ArchivedFile)>,
    looked_at: Option<Instant>,
}

impl DayBacklog {
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Writes some of the files. Returns how many.
    pub async fn write(
        &mut self,
        archive: &Archive,
        archiver: &Archiver,
    ) -> Result<u64, StoreError> {
        if self.waiting.is_empty() && self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.look(archive, &archiver.history).await?;
            self.tell_history(archiver);
        }
        let mut written = 0;
        for _ in 0..PER_ROUND {
            let Some((day, file)) = self.waiting.last().cloned() else { break };
            match tokio::task::spawn_blocking(move || fs::read(&file.path)).await {
                Ok(Ok(content)) => {
                    archive.store().put(&day.name(), content.into()).await?;
                    written += 1;
                    self.stored.get_or_insert_default().insert(day);
                }
                // It was removed meanwhile, or does not read: history says so itself.
                _ => tracing::warn!(table = day.table, part = day.part, "a day cannot be read"),
            }
            self.waiting.pop();
        }
        if written > 0 {
            self.tell_history(archiver);
        }
        Ok(written)
    }

    /// Says to history which of its files may be forgotten when they are old.
    fn tell_history(&self, archiver: &Archiver) {
        let stored = self.stored.iter().flatten();
        let files = stored.map(|day| (day.table.clone(), day.part.clone())).collect();
        archiver.services.history.set_archived(archiver.archive.0.config.wait, files);
    }

    async fn look(&mut self, archive: &Archive, history: &Path) -> Result<(), StoreError> {
        if self.stored.is_none() {
            let (mut stored, mut after) = (BTreeSet::new(), String::new());
            loop {
                let page = archive.store().list(HISTORY, &after, PAGE).await?;
                let Some(last) = page.last() else { break };
                after.clone_from(&last.name);
                stored.extend(page.iter().filter_map(|object| DayObject::parse(&object.name)));
            }
            self.stored = Some(stored);
        }
        self.looked_at = Some(Instant::now());
        let folder = history.to_owned();
        let files = tokio::task::spawn_blocking(move || archived_files(&folder)).await;
        // A history that cannot be read is an alarm of its own.
        let Ok(Ok(files)) = files else { return Ok(()) };
        let known = self.stored.get_or_insert_default();
        let object = |file: ArchivedFile| {
            let day = DayObject { table: file.table.clone(), part: file.part.clone() };
            (!known.contains(&day)).then_some((day, file))
        };
        self.waiting = files.into_iter().filter_map(object).collect();
        // The oldest is the last of the list, and has its turn first.
        self.waiting.sort_by(|one, other| other.0.part.cmp(&one.0.part));
        Ok(())
    }
}
