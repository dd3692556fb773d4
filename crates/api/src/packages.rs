//! Packages that jobs name and a place does not have: what is the same of it at both ends of the
//! line. Which place is meant is for whoever asks: a client knows what the masters store, a master
//! also what its machines have.

use cellwright_cell::name::Token;
use cellwright_cell::spec::{JobSpec, PackageRef};
use std::collections::BTreeMap;

/// Digits of a digest in a sentence.
const SHORT_DIGEST_LEN: usize = 12;

/// Packages that the jobs name and the place does not have, each content once. It is the digest
/// that counts: what a job calls a package is its own affair.
pub fn missing_packages<'a>(
    jobs: impl IntoIterator<Item = &'a JobSpec>,
    has: impl Fn(&Token) -> bool,
) -> BTreeMap<&'a Token, &'a PackageRef> {
    let named = jobs.into_iter().flat_map(|job| &job.task.packages);
    let lacking = named.filter(|package| !has(&package.digest));
    lacking.map(|package| (&package.digest, package)).collect()
}

/// The package as a sentence names it.
#[must_use]
pub fn describe(package: &PackageRef) -> String {
    let short: String = package.digest.as_str().chars().take(SHORT_DIGEST_LEN).collect();
    format!("package {} ({short})", package.name)
}

/// What to type to bring it.
#[must_use]
pub fn push_command(package: &PackageRef) -> String {
    format!("cell package push FILE --name {}", package.name)
}
