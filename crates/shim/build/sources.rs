//! The sources that a shim is built from: its crate, every crate of the workspace below it, and
//! what says how they are built. Read from the manifests, so that a crate that comes in later is
//! in.
//!
//! Rejected: `cargo metadata`, which would be a cargo inside a cargo that holds its locks, and a
//! list by hand, from which crates were missing.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Versions, features and profiles of everything.
const OF_WORKSPACE: [&str; 2] = ["Cargo.toml", "Cargo.lock"];
/// What is beside the sources of a crate and in no shim.
const NO_SOURCES: [&str; 4] = ["benches", "examples", "target", "tests"];

/// The folders of a crate and of all crates of the workspace that it is built from.
///
/// # Errors
/// When a manifest cannot be read.
pub fn crate_closure(root: &Path, first: &str) -> io::Result<BTreeSet<PathBuf>> {
    let root = root.canonicalize()?;
    let workspace = read_manifest(&root)?;
    let shared = workspace.get("workspace").and_then(|table| table.get("dependencies"));
    let mut found = BTreeSet::new();
    let mut queue = vec![root.join(first)];
    while let Some(folder) = queue.pop() {
        let manifest = read_manifest(&folder)?;
        for (name, dependency) in dependencies(&manifest) {
            let is_shared = dependency.get("workspace").is_some();
            let shared = shared.and_then(|shared| shared.get(name)).filter(|_| is_shared);
            let (base, entry) = shared.map_or((&folder, dependency), |entry| (&root, entry));
            if let Some(path) = entry.get("path").and_then(Value::as_str) {
                let next = base.join(path).canonicalize()?;
                if !found.contains(&next) {
                    queue.push(next);
                }
            }
        }
        found.insert(folder);
    }
    Ok(found)
}

/// Files and folders that determine what a shim does.
///
/// # Errors
/// When a manifest or a folder cannot be read.
pub fn source_paths(root: &Path, first: &str) -> io::Result<BTreeSet<PathBuf>> {
    let root = root.canonicalize()?;
    let mut paths: BTreeSet<PathBuf> = OF_WORKSPACE.iter().map(|name| root.join(name)).collect();
    for folder in crate_closure(&root, first)? {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if !NO_SOURCES.iter().any(|name| entry.file_name() == *name) {
                paths.insert(entry.path());
            }
        }
    }
    Ok(paths)
}

/// Of the names below `root` and the bytes of all files in these paths.
///
/// # Errors
/// When one cannot be read.
pub fn checksum(root: &Path, paths: &BTreeSet<PathBuf>) -> io::Result<u64> {
    let root = root.canonicalize()?;
    let mut files = BTreeSet::new();
    for path in paths {
        collect_files(path, &mut files)?;
    }
    let mut sum = FNV_START;
    for file in files {
        let name = file.strip_prefix(&root).unwrap_or(&file);
        sum = fnv1a(sum, name.to_string_lossy().as_bytes());
        sum = fnv1a(sum, &fs::read(&file)?);
    }
    Ok(sum)
}

fn read_manifest(folder: &Path) -> io::Result<Table> {
    let path = folder.join("Cargo.toml");
    let wrong =
        |why: &dyn std::fmt::Display| io::Error::other(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(&path).map_err(|why| wrong(&why))?;
    text.parse().map_err(|why: toml::de::Error| wrong(&why))
}

/// What a crate and its build script are built from, on any platform; not what its tests need.
fn dependencies(manifest: &Table) -> Vec<(&String, &Value)> {
    let platforms = manifest.get("target").and_then(Value::as_table);
    let platforms = platforms.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    let mut all = Vec::new();
    for table in platforms.chain([manifest]) {
        for kind in ["dependencies", "build-dependencies"] {
            all.extend(table.get(kind).and_then(Value::as_table).into_iter().flatten());
        }
    }
    all
}

fn collect_files(path: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    if !path.is_dir() {
        files.insert(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        collect_files(&entry?.path(), files)?;
    }
    Ok(())
}

/// FNV-1a, which is enough to tell one build from another and needs no dependency.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_FACTOR: u64 = 0x0000_0100_0000_01b3;

fn fnv1a(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(FNV_FACTOR))
}
