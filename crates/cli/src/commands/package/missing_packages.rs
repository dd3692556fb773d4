//! Warnings about packages that jobs name and the masters do not have. They are printed before such
//! a job is run; it is submitted all the same, since its packages may be on the way.

use super::list_packages;
use crate::connection::Cell;
use crate::failure::Failure;
use cellwright_api::packages;
use cellwright_cell::spec::PackageRef;
use cellwright_lang::Document;
use std::collections::BTreeSet;

/// The warnings, one line each.
///
/// # Errors
/// If the cell cannot be reached.
pub async fn warnings(cell: &Cell, documents: &[Document]) -> Result<Vec<String>, Failure> {
    let jobs = || documents.iter().map(Document::job);
    if jobs().all(|job| job.task.packages.is_empty()) {
        return Ok(Vec::new());
    }
    let stored: BTreeSet<String> =
        list_packages(cell).await?.into_iter().map(|blob| blob.digest).collect();
    let missing = packages::missing_packages(jobs(), |digest| stored.contains(digest.as_str()));
    Ok(missing.into_values().map(warning).collect())
}

fn warning(package: &PackageRef) -> String {
    format!(
        "warning: {} is not with the masters, so only machines that have it can run it\nnext: {}",
        packages::describe(package),
        packages::push_command(package)
    )
}
