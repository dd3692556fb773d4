//! Packages that a job names and nobody has: neither the masters nor a machine that is up.
//!
//! Such a job is taken all the same, and what it lacks is said in its plan and wherever it is asked
//! why it does not run. Rejected: refusing it. Jobs are kept in files and submitted in any order
//! with what they need, periodic jobs long before; and a package that the masters were told to
//! forget is still good on the machines that have it.

use cellwright_api::types::ObstacleView;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::Token;
use cellwright_cell::spec::{JobSpec, PackageRef};
use cellwright_cell::state::State;

/// Digits of a digest in a sentence.
const SHORT: usize = 12;

pub(super) fn packages(state: &State, spec: &JobSpec) -> Vec<ObstacleView> {
    let missing = spec.task.packages.iter().filter(|package| !is_here(state, &package.digest));
    missing.map(obstacle).collect()
}

fn is_here(state: &State, digest: &Token) -> bool {
    state.blob_named(digest).is_some()
        || state.machines().iter().any(|(_, row)| {
            row.status == MachineStatus::Up
                && row.packages.iter().any(|held| held.digest == *digest)
        })
}

fn obstacle(package: &PackageRef) -> ObstacleView {
    let PackageRef { name, digest, .. } = package;
    let short: String = digest.as_str().chars().take(SHORT).collect();
    ObstacleView {
        code: "package-not-in-cell".to_owned(),
        message: format!("package {name} ({short}) is not in the cell"),
        hint: format!("bring it with `cell package push FILE --name {name}`"),
    }
}
