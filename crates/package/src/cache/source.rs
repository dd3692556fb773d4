//! Sources of packages.

use crate::digest::PackageDigest;
use bytes::Bytes;
use futures::future::BoxFuture;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("does not have it")]
    Lacks,
    #[error("gave wrong bytes")]
    Wrong,
    #[error("{0}")]
    Failed(String),
}

/// A source that may have a package: a master, or another machine.
pub trait Source: Send + Sync + 'static {
    /// For errors, and to identify it.
    fn name(&self) -> &str;

    /// The name of the machine, by which people know it.
    fn machine(&self) -> Option<&str> {
        None
    }

    /// Whether it is trusted on the chunks' digests. True of masters, which decide what is run in
    /// the first place; another machine is only trusted as far as its bytes can be verified.
    fn is_trusted(&self) -> bool;

    /// Exactly these bytes of the package's file.
    fn read(
        &self,
        package: PackageDigest,
        from: u64,
        length: u32,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>>;
}
