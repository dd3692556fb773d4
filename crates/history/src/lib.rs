//! History: events of the cell and resource usage of its tasks, in tables that answer SQL queries.
//!
//! [`History`] is the one writer of a history directory. It folds the event feed into SQLite, its
//! cursor in the same transaction, and moves old days into Parquet files beside it.
//! [`HistoryReader`] answers queries over both while the writer continues. The tables are described
//! in [`tables`].
//!
//! Damage by the disk is detected by checksums (`crate::page_checksums`) before a query is
//! answered, or soon after for a large database; damaged files are set aside and rebuilt
//! (`crate::repair`).
//!
//! Events come from the feed: a lost directory is rebuilt as far back as the feed reaches. Usage is
//! in no feed; replicas fetch from each other what each has written (`crate::usage_exchange`).
//! Nothing in the cell waits for any of it.

mod archive;
mod columns;
mod day;
mod error;
mod event_rows;
mod page_checksums;
mod parquet_table;
mod present;
mod query;
mod repair;
mod restored;
mod schema;
pub mod sql_functions;
mod store;
pub mod tables;
mod usage;
mod usage_exchange;

pub use archive::{ArchivedFile, RetentionResult, archived_files, exists};
pub use day::day_of;
pub use error::HistoryError;
pub use event_rows::{FeedEvent, Submission};
pub use present::{FillTable, Present, PresentTable, mentions_table};
pub use query::{Answer, HistoryReader, MAX_ARGS, MAX_SQL, QueryError, QueryLimits, Value};
pub use repair::damaged_file_count;
pub use restored::{RestoredPart, drop_restored_part, restore_part, restored_parts};
pub use store::{FeedPosition, FeedSlice, History, RetentionConfig};
pub use usage::UsageRow;
pub use usage_exchange::{UsageBatch, UsageCursor};

#[cfg(test)]
mod differential;
#[cfg(test)]
mod other_readers;
#[cfg(test)]
mod pages_tests;
#[cfg(test)]
mod past_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
