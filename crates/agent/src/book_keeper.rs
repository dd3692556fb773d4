//! The book of usage on the agent's disk: what it is opened with, and when it is written.
//!
//! It is replaced as a whole, when entries were closed and from time to time besides, so that the
//! next boot of the machine finds what tasks had used shortly before. After a boot the file may be
//! older than what was sent, and so it goes on as another book: its numbers would be taken for
//! those that a master has.

use crate::boot;
use crate::record::{self, Durability, RecordError};
use cellwright_agent_core::book::{ClockCorrection, Clocks, UsageBook};
use cellwright_messages::UsageReport;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// The book is written at least this often, in milliseconds.
const WRITE_INTERVAL: u64 = 60_000;

pub struct BookKeeper {
    pub book: UsageBook,
    /// Of the machine's clock, by what the masters say.
    pub correction: ClockCorrection,
    path: PathBuf,
    /// Number of the newest entry that is on disk.
    written: u64,
    /// When it was last written, or that failed, on the boot clock.
    tried_at: u64,
}

/// What was there when a book was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Book,
    /// None: what tasks that run already have used may be in a book that is lost.
    Nothing,
}

impl BookKeeper {
    /// # Errors
    /// When it cannot be read, or a newer build wrote it.
    pub fn open(path: PathBuf, rebooted: bool) -> Result<(BookKeeper, Found), RecordError> {
        let (mut book, found) = match record::read::<UsageBook>(&path) {
            Ok(Some(book)) => (book, Found::Book),
            Ok(None) => (UsageBook::new(new_id()), Found::Nothing),
            Err(error @ RecordError::Damaged { .. }) => {
                tracing::error!(%error, "what tasks have used until now is in no history");
                (UsageBook::new(new_id()), Found::Nothing)
            }
            Err(error) => return Err(error),
        };
        let mut written = book.last();
        if rebooted && found == Found::Book {
            book.renew(new_id());
            written = 0;
        }
        let correction = ClockCorrection::default();
        Ok((BookKeeper { book, correction, path, written, tried_at: 0 }, found))
    }

    /// Writes it if entries were closed since, or it is time.
    pub fn write_if_due(&mut self) {
        let is_old = boot::now().saturating_sub(self.tried_at) >= WRITE_INTERVAL;
        if self.book.last() > self.written || is_old {
            self.write(Durability::Process);
        }
    }

    /// The folders of attempts whose last entries are not on disk are about to be put aside.
    pub fn write_last_entries(&mut self) {
        if self.book.last() > self.written {
            self.write(Durability::PowerCut);
        }
    }

    fn write(&mut self, durability: Durability) {
        self.tried_at = boot::now();
        match record::write(&self.path, &self.book, durability) {
            Ok(()) => self.written = self.book.last(),
            // What is not on disk is not sent; it is tried again.
            Err(error) => tracing::error!(%error, "what tasks have used cannot be written"),
        }
    }

    /// Both clocks of this machine.
    #[must_use]
    pub fn clocks(&self) -> Clocks {
        let wall = self.correction.correct(cellwright_identity::clock::wall());
        Clocks { wall, boot: boot::now() }
    }

    /// What goes with a report.
    #[must_use]
    pub fn report(&mut self) -> UsageReport {
        self.book.report(self.written, boot::now())
    }
}

/// An id that no book of this machine had.
fn new_id() -> u64 {
    let (boot_id, wall) =
        (boot::boot_id().unwrap_or_default(), cellwright_identity::clock::wall().0);
    xxh3_64(format!("{boot_id} {wall} {}", std::process::id()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_orders::work;
    use crate::state_dir::scratch::Scratch;
    use cellwright_agent_core::book::FinalReading;
    use cellwright_cell::id::{Attempt, TaskId};

    fn end_one(keeper: &mut BookKeeper, task: u32, cpu_micros: u64) {
        let (attempt, now) = (Attempt::new(TaskId(task), 1), keeper.clocks());
        keeper.book.begin(attempt, "ann/web/0", &work(), now.boot, now);
        let (started, ended) = (now.boot, now.boot + 50);
        let reading = FinalReading { started, ended, cpu_micros, io_bytes: 0, ram_peak: 0 };
        keeper.book.end(attempt, Some(reading));
    }

    fn sent(keeper: &mut BookKeeper) -> Vec<(u64, u64)> {
        let closed = keeper.report().closed;
        closed.iter().map(|entry| (entry.number, entry.cpu_micros)).collect()
    }

    #[test]
    fn nothing_is_sent_that_the_next_agent_does_not_find() {
        let scratch = Scratch::new();
        let path = scratch.path("usage");
        let (mut keeper, found) = BookKeeper::open(path.clone(), false).unwrap();
        assert_eq!(found, Found::Nothing);
        keeper.write_if_due();
        end_one(&mut keeper, 1, 48_000);
        assert_eq!(sent(&mut keeper), [], "not on disk yet");
        keeper.write_if_due();
        end_one(&mut keeper, 2, 7);
        assert_eq!(sent(&mut keeper), [(1, 48_000)]);
        drop(keeper);
        let (mut keeper, found) = BookKeeper::open(path.clone(), false).unwrap();
        assert_eq!((found, sent(&mut keeper)), (Found::Book, vec![(1, 48_000)]));
        let book = keeper.report().book;
        end_one(&mut keeper, 2, 7);
        keeper.write_last_entries();
        assert_eq!(sent(&mut keeper), [(1, 48_000), (2, 7)]);
        // After a boot it may be older than what was sent.
        let (mut keeper, _) = BookKeeper::open(path, true).unwrap();
        assert_ne!(keeper.report().book, book);
        assert_eq!(sent(&mut keeper), []);
        keeper.write_if_due();
        assert_eq!(sent(&mut keeper), [(1, 48_000), (2, 7)]);
    }

    #[test]
    fn a_damaged_book_is_told_from_one_that_was_never_there() {
        let scratch = Scratch::new();
        let path = scratch.path("usage");
        std::fs::write(&path, "cell-record 1 0000000000000000\n{}\n").unwrap();
        let (mut keeper, found) = BookKeeper::open(path, false).unwrap();
        assert_eq!((found, sent(&mut keeper)), (Found::Nothing, vec![]));
    }
}
