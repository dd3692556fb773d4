//! History: what happened in the cell and what its tasks used, in tables that answer SQL.
//!
//! [`History`] is the one writer of a folder. It folds the event feed into SQLite, its cursor in
//! the same transaction, and moves old days into Parquet files beside it. [`Reader`] answers
//! queries over both while the writer goes on. The tables are described in [`tables`].
//!
//! What the disk does to any of it is seen (`crate::pages`) before an answer is given from it, or
//! soon after where it is large, and what is damaged is set aside and made again.
//!
//! Events follow from the feed: a folder that is lost is made again as far back as the feed
//! reaches. Usage is in no feed; replicas fetch from each other what each has written
//! (`crate::share`). Nothing in the cell waits for any of it.

mod archive;
mod columns;
mod day;
mod error;
mod fold;
mod pages;
mod parquet_table;
mod query;
mod repair;
mod share;
mod store;
pub mod tables;
mod usage;
pub mod words;

pub use archive::{Tidied, is_here};
pub use day::day_of;
pub use error::HistoryError;
pub use fold::Fact;
pub use query::{Answer, Bounds, MAX_ARGS, MAX_SQL, QueryError, Reader, Value};
pub use repair::set_aside_in;
pub use share::{Mark, Told};
pub use store::{History, Place, Settings, Stretch};
pub use usage::{Measured, UsageRow, WINDOW, Whose, Windows};

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
