//! The archive of a cell: finished jobs, logs that their jobs asked to keep, and history, as
//! objects in a folder or in a store that speaks S3.
//!
//! ```text
//!   jobs/OWNER/JOB/SUBMITTED-ENDED.json.gz
//!   logs/OWNER/JOB/SUBMITTED/INDEX/ATTEMPT.ndjson.gz
//!   history/TABLE/DAY.parquet
//!   state/…                                  how far the archive has come
//! ```
//!
//! The name of an object follows from what is in it, so writing it a second time, by whichever
//! master, replaces it by the same. An object is whole or absent. This crate knows names and bytes;
//! what is in them is the masters' business (`crates/gateway/src/archiver`).
//!
//! Rejected: the crates for object stores. The protocol that is needed is four requests and their
//! signature, which is a page, and a client that is compiled for every cloud costs a minute of
//! every build (`docs/decisions/0051-archive.md`).

mod folder;
mod gzip;
pub mod names;
mod s3;
mod store;

pub use folder::FolderStore;
pub use gzip::{GzipWriter, compress, decompress};
pub use s3::{Credentials, S3Config, S3Store, is_endpoint};
pub use store::{ObjectInfo, ObjectStore, StoreError};

use cellwright_cell::name::Name;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the archive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchivePlace {
    /// A folder, the same for all masters: on one machine, or a file system that they share.
    Folder(PathBuf),
    S3(S3Config),
}

impl ArchivePlace {
    /// The archive of this cell, below its name: cells can share a place.
    #[must_use]
    pub fn open(&self, cell: &Name) -> Arc<dyn ObjectStore> {
        match self {
            ArchivePlace::Folder(folder) => Arc::new(FolderStore::new(folder.join(cell.as_str()))),
            ArchivePlace::S3(config) => Arc::new(S3Store::new(config.clone(), cell.as_str())),
        }
    }
}
