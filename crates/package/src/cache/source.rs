//! Where packages come from.

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

/// Somebody who may have a package: a master, or another machine.
pub trait Source: Send + Sync + 'static {
    /// For errors, and to know it again.
    fn name(&self) -> &str;

    /// The machine that it is, by which people know it.
    fn machine(&self) -> Option<&str> {
        None
    }

    /// Whether its word is taken on what the chunks' digests are. True of masters, who say what is
    /// run in the first place; another machine is only believed what can be checked.
    fn is_trusted(&self) -> bool;

    /// Exactly these bytes of the package's file.
    fn read(
        &self,
        package: PackageDigest,
        from: u64,
        length: u32,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>>;
}
