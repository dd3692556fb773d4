//! Gives a build an ID: a checksum of the sources that a shim is built from. `cell` and `cell-shim`
//! are two files, and an agent uses only shims that were built from the same sources as itself.

#[path = "build/sources.rs"]
mod sources;

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let root = Path::new("../..");
    let paths = sources::source_paths(root, "crates/shim")?;
    for path in &paths {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let sum = sources::checksum(root, &paths)?;
    // Failpoints, for one, are in some profiles and not in others.
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=CELL_SHIM_BUILD={sum:016x}-{profile}");
    Ok(())
}
