//! Packages that jobs name and the masters do not have: said before such a job is run, which is
//! taken all the same, for its packages may be on the way.

use super::{all, short};
use crate::failure::Failure;
use crate::reach::Cell;
use cellwright_cell::spec::PackageRef;
use cellwright_lang::Document;
use std::collections::BTreeSet;

/// A line for each.
///
/// # Errors
/// When the cell cannot be asked.
pub async fn warnings(cell: &Cell, documents: &[Document]) -> Result<Vec<String>, Failure> {
    let named = documents.iter().flat_map(|document| &document.job().task.packages);
    let named: BTreeSet<&PackageRef> = named.collect();
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let stored: BTreeSet<String> = all(cell).await?.into_iter().map(|blob| blob.digest).collect();
    let missing = named.into_iter().filter(|package| !stored.contains(package.digest.as_str()));
    Ok(missing.map(warning).collect())
}

fn warning(package: &PackageRef) -> String {
    let PackageRef { name, digest, .. } = package;
    format!(
        "warning: package {name} ({}) is not with the masters, so only machines that have it can \
         run it\nnext: cell package push FILE --name {name}",
        short(digest.as_str())
    )
}
