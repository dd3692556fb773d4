//! Packages (B36): what a task runs, as one immutable file named by its own digest.
//!
//! ```text
//!   folder ──build──► package file ──► masters (blobs) ──► cache of a machine ──► folder
//!   OCI image ─import─┘                 other machines ──┘   verified, bounded, shared
//!   (file, or registry)
//! ```
//!
//! A name that is the content's SHA-256 can be fetched from anybody: whoever holds the bytes is as
//! good a source as any other, and a wrong byte shows. That is what lets a thousand machines pass a
//! package among themselves while the masters give it away a few times.
//!
//! Everything that reads a package takes it for an attack until it is unpacked: see [`mod@unpack`].

pub mod build;
pub mod cache;
pub mod digest;
mod error;
pub mod head;
pub mod http;
mod kind;
pub mod oci;
pub mod path;
pub mod registry;
mod tar_stream;
#[cfg(test)]
mod testing;
pub mod unpack;
mod unpack_dir;
mod writer;

pub use build::{Built, build};
pub use cache::{Cache, Pinned};
pub use digest::PackageDigest;
pub use error::{Limit, PackageError};
pub use head::Head;
pub use unpack::{Limits, Unpacked, unpack};
