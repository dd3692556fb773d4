//! What a store of objects has to do, and how it fails.

use bytes::Bytes;
use cellwright_cell::time::Time;
use futures::future::BoxFuture;
use std::path::PathBuf;

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectInfo {
    pub name: String,
    pub bytes: u64,
    /// When it was written, by the clock of the store.
    pub modified: Time,
}

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{path}: {why}")]
    File { path: PathBuf, why: std::io::Error },
    /// Nobody answers, or not in time.
    #[error("{0}")]
    Unreachable(String),
    /// It answers that it will not.
    #[error("{place} answers {status} {code}: {message}")]
    Refused { place: String, status: u16, code: String, message: String },
    #[error("{name} is damaged: {why}")]
    Damaged { name: String, why: String },
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(String),
}

/// A store of objects by name. Names are relative, of letters, digits and `-._` between slashes.
pub trait ObjectStore: Send + Sync {
    /// Writes an object, in place of one of its name. When this returns it is there for good, and
    /// whole; when it fails, the object is as it was before, or new and whole.
    fn put<'a>(&'a self, name: &'a str, content: Bytes) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The content of an object, if there is one.
    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;

    /// At most so many objects whose names begin with `prefix`, in the order of the bytes of their
    /// names, after that name. An empty list is the end.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<ObjectInfo>, StoreError>>;

    /// Removes an object; one that is not there is fine.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Where it is, for people.
    fn place(&self) -> String;
}
