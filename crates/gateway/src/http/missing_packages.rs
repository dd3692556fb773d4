//! Packages that a job names and that are not available anywhere: neither from the masters nor from
//! a machine that is up.
//!
//! Such a job is admitted all the same, and its missing packages are reported in its plan and in
//! its explanation. Rejected: refusing it. Jobs are kept in files and submitted in any order with
//! what they need, periodic jobs long before; and a package that was deleted from the masters is
//! still usable on the machines that have it.

use cellwright_api::packages;
use cellwright_api::types::ObstacleView;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::Token;
use cellwright_cell::spec::{JobSpec, PackageRef};
use cellwright_cell::state::State;
use std::collections::BTreeSet;

/// Digests of packages that are not available anywhere.
pub(super) struct MissingPackages(BTreeSet<Token>);

impl MissingPackages {
    /// The missing packages of all given jobs. Machines are scanned once however many packages
    /// there are; in a large cell that is still fast enough for an async thread.
    pub(super) fn of<'a>(
        state: &State,
        specs: impl IntoIterator<Item = &'a JobSpec>,
    ) -> MissingPackages {
        let unknown =
            packages::missing_packages(specs, |digest| state.blob_named(digest).is_some());
        let mut missing: BTreeSet<Token> = unknown.into_keys().cloned().collect();
        for (_, row) in state.machines().iter() {
            if missing.is_empty() {
                break;
            }
            if row.status == MachineStatus::Up {
                for held in &row.packages {
                    missing.remove(&held.digest);
                }
            }
        }
        MissingPackages(missing)
    }

    /// The obstacles of one of those jobs.
    pub(super) fn obstacles(&self, spec: &JobSpec) -> Vec<ObstacleView> {
        let missing = spec.task.packages.iter().filter(|package| self.0.contains(&package.digest));
        missing.map(obstacle).collect()
    }
}

fn obstacle(package: &PackageRef) -> ObstacleView {
    ObstacleView {
        code: "package-not-in-cell".to_owned(),
        message: format!("{} is not in the cell", packages::describe(package)),
        hint: format!("bring it with `{}`", packages::push_command(package)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::command::Command;
    use cellwright_cell::id::MachineId;
    use cellwright_control::controller::testing::{Cell, job};

    fn package(name: &str) -> PackageRef {
        let digest = Token::new(&name.repeat(64)).unwrap();
        PackageRef { name: Token::new(name).unwrap(), digest, bytes: 9 }
    }

    fn needs(packages: &[&str]) -> JobSpec {
        let mut spec = job("jfoo", 1);
        spec.task.packages = packages.iter().map(|name| package(name)).collect();
        spec
    }

    /// A plan of all jobs at once reports for each what it reports for each alone.
    #[test]
    fn each_job_lacks_what_neither_the_masters_nor_a_machine_that_is_up_has() {
        let mut cell = Cell::with_machines(3);
        let held: [&[&str]; 3] = [&["a"], &["b", "c"], &["d"]];
        for (machine, held) in (0..).map(MachineId).zip(held) {
            let packages = held.iter().map(|name| package(name)).collect();
            cell.ok(Command::SetMachinePackages { machine, packages });
        }
        cell.ok(Command::MachineDown { machine: MachineId(2) });
        let cases = [
            (needs(&[]), vec![]),
            (needs(&["a", "b"]), vec![]),
            (needs(&["c", "d", "e"]), vec!["d", "e"]),
            (needs(&["e", "a"]), vec!["e"]),
        ];
        let all = MissingPackages::of(&cell.state, cases.iter().map(|(spec, _)| spec));
        for (spec, lacks) in &cases {
            let want: Vec<_> = lacks.iter().map(|name| obstacle(&package(name))).collect();
            assert_eq!(all.obstacles(spec), want);
            assert_eq!(MissingPackages::of(&cell.state, [spec]).obstacles(spec), want);
        }
    }
}
