//! Packages that jobs name and that are missing somewhere: the logic shared by client and master.
//! The caller decides what is present: a client knows what the masters store, a master also what
//! its machines have.

use cellwright_cell::name::Token;
use cellwright_cell::spec::{JobSpec, PackageRef};
use std::collections::BTreeMap;

/// Digits of a digest in messages.
const SHORT_DIGEST_LEN: usize = 12;

/// Packages that the jobs name and that are not present, each content once. The digest decides, not
/// the name that a job gives the package.
pub fn missing_packages<'a>(
    jobs: impl IntoIterator<Item = &'a JobSpec>,
    has: impl Fn(&Token) -> bool,
) -> BTreeMap<&'a Token, &'a PackageRef> {
    let named = jobs.into_iter().flat_map(|job| &job.task.packages);
    let lacking = named.filter(|package| !has(&package.digest));
    lacking.map(|package| (&package.digest, package)).collect()
}

/// The package as messages name it.
#[must_use]
pub fn describe(package: &PackageRef) -> String {
    let short: String = package.digest.as_str().chars().take(SHORT_DIGEST_LEN).collect();
    format!("package {} ({short})", package.name)
}

/// The command that uploads it.
#[must_use]
pub fn push_command(package: &PackageRef) -> String {
    format!("cell package push FILE --name {}", package.name)
}
