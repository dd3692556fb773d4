//! Which crate may depend on which.
//!
//! The table is the architecture: a new edge is a decision, made here and in ARCHITECTURE.md, not a
//! line slipped into a manifest. Test dependencies count too; a test that needs the layer above
//! belongs to the layer above.

use super::Finding;
use crate::manifest::Manifest;
use crate::repo::Repo;

const PREFIX: &str = "cellwright-";

enum Allowed {
    Only(&'static [&'static str]),
    /// Everything but these.
    AllBut(&'static [&'static str]),
}

use Allowed::{AllBut, Only};

const CRATES: &[(&str, Allowed)] = &[
    ("rows", Only(&[])),
    ("cell", Only(&["rows"])),
    ("supervise", Only(&[])),
    ("store", Only(&["supervise"])),
    ("scale", Only(&["cell"])),
    ("sched", Only(&["cell"])),
    ("lang", Only(&["cell"])),
    ("identity", Only(&["cell"])),
    ("messages", Only(&["cell"])),
    ("api", Only(&["cell", "messages", "identity"])),
    ("names", Only(&["cell", "supervise"])),
    ("package", Only(&["cell", "identity", "api", "supervise"])),
    ("history", Only(&["cell"])),
    ("archive", Only(&["cell", "identity", "supervise"])),
    ("agent-core", Only(&["cell", "messages"])),
    ("control", Only(&["cell", "messages", "scale"])),
    ("isolate", Only(&["cell", "agent-core"])),
    ("shim", Only(&["cell", "agent-core", "isolate", "supervise"])),
    (
        "agent",
        Only(&[
            "cell",
            "messages",
            "identity",
            "api",
            "names",
            "package",
            "agent-core",
            "isolate",
            "shim",
            "supervise",
        ]),
    ),
    ("scheduler", Only(&["cell", "messages", "sched", "identity", "api", "supervise"])),
    (
        "master",
        Only(&[
            "cell",
            "messages",
            "store",
            "identity",
            "api",
            "control",
            "names",
            "history",
            "supervise",
        ]),
    ),
    (
        "gateway",
        Only(&[
            "cell",
            "messages",
            "sched",
            "store",
            "identity",
            "api",
            "control",
            "names",
            "history",
            "archive",
            "master",
            "supervise",
        ]),
    ),
    ("sim", AllBut(&["cli"])),
    ("cli", AllBut(&[])),
];

/// Packages beside the product: they use it, nothing uses them.
const NON_PRODUCT_CRATES: &[(&str, Allowed)] = &[
    ("bench", AllBut(&["cli"])),
    ("fuzz", Only(&["cell", "messages", "identity", "api", "master", "names", "package", "store"])),
    ("tests", AllBut(&[])),
    ("xtask", Only(&[])),
];

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = workspace_aliases(repo);
    for package in repo.packages() {
        let path = format!("{package}/Cargo.toml");
        let manifest = Manifest::parse(repo.text(&path).unwrap_or(""));
        let name_and_rule = match package.strip_prefix("crates/") {
            Some(folder) => CRATES.iter().find(|(name, _)| *name == folder),
            None => NON_PRODUCT_CRATES.iter().find(|(name, _)| *name == package),
        };
        let Some((name, allowed)) = name_and_rule else {
            let message = "unknown crate: give it a place among the layers in \
                           xtask/src/tidy/crate_dependencies.rs and ARCHITECTURE.md first";
            findings.push(Finding::new(&path, 0, message));
            continue;
        };
        if package.starts_with("crates/") {
            findings.extend(misnamed(&path, name, &manifest));
        }
        findings.extend(forbidden_edges(&path, name, allowed, &manifest));
    }
    findings
}

fn misnamed(path: &str, folder: &str, manifest: &Manifest) -> Option<Finding> {
    let expected = format!("{PREFIX}{folder}");
    let actual = manifest.package.as_deref().unwrap_or("");
    let message = || {
        format!("package is named `{actual}`, must be `{expected}`: a crate is found by its folder")
    };
    (actual != expected).then(|| Finding::new(path, 0, message()))
}

fn forbidden_edges(path: &str, name: &str, allowed: &Allowed, manifest: &Manifest) -> Vec<Finding> {
    let edges = manifest.dependencies.iter().filter_map(|dependency| {
        let target = dependency.package.strip_prefix(PREFIX)?;
        let fine = match allowed {
            Only(list) => list.contains(&target),
            AllBut(list) => !list.contains(&target),
        };
        let message = match allowed {
            Only([]) => format!("`{name}` may depend on no crate of ours, not on `{target}`"),
            Only(list) => {
                format!("`{name}` may depend on {} only, not on `{target}`", list.join(", "))
            }
            AllBut(_) => format!("`{name}` may not depend on `{target}`, nothing does"),
        };
        let reason =
            "layers stay testable apart; the table is in xtask/src/tidy/crate_dependencies.rs";
        (!fine).then(|| Finding::new(path, dependency.line, format!("{message}: {reason}")))
    });
    edges.collect()
}

/// An alias in the workspace table would hide an edge from the check above.
fn workspace_aliases(repo: &Repo) -> Vec<Finding> {
    let path = "Cargo.toml";
    let manifest = Manifest::parse(repo.text(path).unwrap_or(""));
    let aliases = manifest
        .dependencies
        .iter()
        .filter(|dependency| dependency.package.starts_with(PREFIX))
        .filter(|dependency| dependency.key != dependency.package);
    aliases
        .map(|d| {
            let message = format!("`{}` renames `{}`: an alias hides an edge", d.key, d.package);
            Finding::new(path, d.line, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::messages;

    fn manifest(name: &str, dependencies: &str) -> String {
        format!("[package]\nname = \"{name}\"\n[dependencies]\n{dependencies}\n")
    }

    #[test]
    fn downward_edges_are_fine() {
        let sched = manifest("cellwright-sched", "cellwright-cell.workspace = true\nserde = \"1\"");
        let cli = manifest("cellwright-cli", "cellwright-sim.workspace = true");
        let bench = manifest("cellwright-bench", "cellwright-sim.workspace = true");
        let files = [
            ("crates/sched/Cargo.toml", sched.as_str()),
            ("crates/cli/Cargo.toml", &cli),
            ("bench/Cargo.toml", &bench),
        ];
        assert_eq!(messages(check, &files), Vec::<String>::new());
    }

    #[test]
    fn other_edges_names_and_crates_are_refused() {
        for (path, text, expected) in [
            ("crates/rows", manifest("cellwright-rows", "cellwright-cell = \"1\""), "no crate"),
            ("crates/cell", manifest("cellwright-cell", "cellwright-sched = \"1\""), "rows only"),
            ("crates/sched", manifest("cellwright-sched", "cellwright-sim = \"1\""), "cell only"),
            (
                "crates/master",
                manifest("cellwright-master", "x = { package = \"cellwright-sim\" }"),
                "not on `sim`",
            ),
            ("crates/sim", manifest("cellwright-sim", "cellwright-cli = \"1\""), "nothing does"),
            ("crates/store", manifest("storage", ""), "must be `cellwright-store`"),
            ("crates/utils", manifest("cellwright-utils", ""), "unknown crate"),
            ("xtask", manifest("xtask", "cellwright-cell = \"1\""), "no crate"),
        ] {
            let found = messages(check, &[(&format!("{path}/Cargo.toml"), &text)]);
            assert_eq!(found.len(), 1, "{path}: {found:?}");
            assert!(found[0].contains(expected), "{path}: {found:?}");
        }
    }

    #[test]
    fn workspace_aliases_are_refused() {
        let root = "[workspace.dependencies]\ncore = { package = \"cellwright-cell\" }\n";
        let found = messages(check, &[("Cargo.toml", root)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("Cargo.toml:2: `core` renames"), "{found:?}");
    }
}
