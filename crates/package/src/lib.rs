//! Packages (B36): what a task runs, as one immutable file named by its own digest.
//!
//! ```text
//!   folder ──build──► package file ──► masters (blobs) ──► cache of a machine ──► folder
//!   OCI image ─import─┘                 other machines ──┘   verified, bounded, shared
//!   (file, or registry)
//! ```
//!
//! Content that is named by its SHA-256 can be fetched from any source: every holder of the bytes
//! is as good as another, and a wrong byte is detected. That lets a thousand machines distribute a
//! package among themselves while the masters serve it a few times.
//!
//! All code that reads a package treats it as hostile until it is unpacked: see [`mod@unpack`].

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
