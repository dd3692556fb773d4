//! The build ID of a shim covers all that it is built from, and nothing else.

#[path = "../build/sources.rs"]
mod sources;

use serde_json::Value;
use sources::{checksum, crate_closure, source_paths};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHIM: &str = "crates/shim";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The same closure, as cargo understands the manifests: packages by their folder, and what each
/// needs beside its tests.
fn closure_of_cargo(root: &Path) -> BTreeSet<PathBuf> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let answer = command.current_dir(root).output().unwrap();
    let text = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success(), "{text}");
    let metadata: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let text = |value: &Value| PathBuf::from(value.as_str().unwrap());
    let packages: BTreeMap<PathBuf, BTreeSet<PathBuf>> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let needs = package["dependencies"].as_array().unwrap().iter();
            let needs = needs.filter(|one| one["kind"] != "dev" && one["path"].is_string());
            let folder = text(&package["manifest_path"]).parent().unwrap().to_owned();
            (folder, needs.map(|one| text(&one["path"])).collect())
        })
        .collect();
    let mut found = BTreeSet::new();
    let mut queue = vec![root.join(SHIM)];
    while let Some(folder) = queue.pop() {
        queue.extend(packages[&folder].difference(&found).cloned());
        found.insert(folder);
    }
    found
}

#[test]
fn every_crate_that_a_shim_is_built_from_is_in_the_sum() {
    let root = workspace();
    let expected = closure_of_cargo(&root);
    assert!(expected.contains(&root.join("crates/cell")), "{expected:?}");
    assert_eq!(crate_closure(&root, SHIM).unwrap(), expected);
    let paths = source_paths(&root, SHIM).unwrap();
    for folder in &expected {
        for name in ["Cargo.toml", "src"] {
            assert!(paths.contains(&folder.join(name)), "{name} of {}", folder.display());
        }
    }
    for name in ["Cargo.toml", "Cargo.lock"] {
        assert!(paths.contains(&root.join(name)), "{name}");
    }
}

/// A shim that needs `near` by the table of the workspace, `far` through it, `maker` for its build
/// script, `linux` on some platforms, and `tester` for its tests.
const TREE: [(&str, &str); 16] = [
    ("Cargo.toml", "[workspace.dependencies]\nnear = { path = \"crates/near\" }\n"),
    ("Cargo.lock", ""),
    (
        "crates/shim/Cargo.toml",
        "[dependencies]\nnear.workspace = true\nserde = \"1\"\n\
         [target.'cfg(target_os = \"linux\")'.dependencies]\nlinux = { path = \"../linux\" }\n\
         [build-dependencies]\nmaker = { path = \"../maker\" }\n\
         [dev-dependencies]\ntester = { path = \"../tester\" }\n",
    ),
    ("crates/shim/build.rs", ""),
    ("crates/shim/src/lib.rs", ""),
    ("crates/shim/tests/all.rs", ""),
    ("crates/near/Cargo.toml", "[dependencies]\nfar = { path = \"../far\" }\n"),
    ("crates/near/src/deep/down.rs", ""),
    // Whoever needs a crate that needs it is no news.
    ("crates/far/Cargo.toml", "[dependencies]\nnear = { path = \"../near\" }\n"),
    ("crates/far/src/lib.rs", ""),
    ("crates/linux/Cargo.toml", ""),
    ("crates/linux/src/lib.rs", ""),
    ("crates/maker/Cargo.toml", ""),
    ("crates/maker/src/lib.rs", ""),
    ("crates/tester/Cargo.toml", ""),
    ("crates/tester/src/lib.rs", ""),
];

#[test]
fn each_file_of_the_sources_counts_and_no_other() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sources-of-a-shim");
    if root.exists() {
        fs::remove_dir_all(&root).unwrap();
    }
    for (path, text) in TREE {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let sum = || checksum(&root, &source_paths(&root, SHIM).unwrap()).unwrap();
    let before = sum();
    for (path, text) in TREE {
        fs::write(root.join(path), format!("{text}# changed\n")).unwrap();
        let is_source = !path.contains("/tests/") && !path.contains("/tester/");
        assert_eq!(sum() != before, is_source, "{path}");
        fs::write(root.join(path), text).unwrap();
        assert_eq!(sum(), before, "{path}");
    }
    fs::write(root.join("crates/far/src/more.rs"), "").unwrap();
    assert_ne!(sum(), before, "a file more");
}
