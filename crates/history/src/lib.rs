//! History: what happened in the cell and what its tasks used, in tables that answer SQL.
//!
//! [`History`] is the one writer of a folder. It folds the event feed into SQLite, its cursor in
//! the same transaction, and moves old days into Parquet files beside it. [`HistoryReader`] answers
//! queries over both while the writer goes on. The tables are described in [`tables`].
//!
//! What the disk does to any of it is seen (`crate::page_checksums`) before an answer is given from it, or
//! soon after where it is large, and what is damaged is set aside and made again.
//!
//! Events follow from the feed: a folder that is lost is made again as far back as the feed
//! reaches. Usage is in no feed; replicas fetch from each other what each has written
//! (`crate::usage_exchange`). Nothing in the cell waits for any of it.

mod archive;
mod columns;
mod day;
mod error;
mod event_rows;
mod page_checksums;
mod parquet_table;
mod query;
mod repair;
pub mod sql_functions;
mod store;
pub mod tables;
mod usage;
mod usage_exchange;

pub use archive::{RetentionResult, exists};
pub use day::day_of;
pub use error::HistoryError;
pub use event_rows::FeedEvent;
pub use query::{Answer, HistoryReader, MAX_ARGS, MAX_SQL, QueryError, QueryLimits, Value};
pub use repair::damaged_file_count;
pub use store::{FeedPosition, FeedSlice, History, RetentionConfig};
pub use usage::{UsageOwner, UsageRow, UsageSample, UsageWindows, WINDOW};
pub use usage_exchange::{UsageBatch, UsageCursor};

#[cfg(test)]
mod differential;
#[cfg(test)]
mod other_readers;
#[cfg(test)]
mod pages_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
