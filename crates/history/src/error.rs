//! Errors of the history store.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("history database: {0}")]
    Database(#[from] rusqlite::Error),
    #[error("{path}: {why}")]
    File { path: PathBuf, why: io::Error },
    #[error("{path} is no archive: {why}")]
    Archive { path: PathBuf, why: String },
    #[error("{path} is still written by another process; it is tried again until that has ended")]
    InUse { path: PathBuf },
    #[error("{path} is damaged: {what}")]
    Damaged { path: PathBuf, what: String },
    #[error(
        "{path} was written by a newer build (format {found}, this one knows {known}); \
         run that build, or move the folder away: it is made again from the feed"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
}

impl HistoryError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HistoryError {
        let path = path.into();
        move |why| HistoryError::File { path, why }
    }
}
