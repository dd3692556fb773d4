//! Gives a build an ID: a checksum of the sources that a shim is built from. `cell` and `cell-shim`
//! are two files, and an agent uses only shims that were built from the same sources as itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Crates whose sources determine what a shim does, beside this one.
const SOURCES: [&str; 3] = ["src", "../isolate/src", "../supervise/src"];

fn main() -> io::Result<()> {
    let mut files = vec![PathBuf::from("build.rs")];
    for folder in SOURCES {
        println!("cargo::rerun-if-changed={folder}");
        collect_files(Path::new(folder), &mut files)?;
    }
    println!("cargo::rerun-if-changed=build.rs");
    files.sort();
    let mut sum = FNV_START;
    for file in files {
        sum = fnv1a(sum, file.to_string_lossy().as_bytes());
        sum = fnv1a(sum, &fs::read(&file)?);
    }
    // Failpoints, for one, are in some profiles and not in others.
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=CELL_SHIM_BUILD={sum:016x}-{profile}");
    Ok(())
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// FNV-1a, which is enough to tell one build from another and needs no dependency.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_FACTOR: u64 = 0x0000_0100_0000_01b3;

fn fnv1a(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(FNV_FACTOR))
}
