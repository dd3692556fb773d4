//! Restricts the imports of a file to files in its own folder and below, and `cell.libsonnet`,
//! which is built into the program. No other file is ever opened, whatever symbolic links point to.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The name under which the library is imported, from any folder.
pub const LIBRARY_NAME: &str = "cell.libsonnet";
/// The text of the library.
pub const LIBRARY: &str = include_str!("../cell.libsonnet");

/// The canonical path of `wanted`, as written in a file of `folder`, with all symbolic links
/// resolved.
///
/// # Errors
/// A message if it does not exist or is not below `root`.
pub fn resolve(root: &Path, folder: &Path, wanted: &str) -> Result<PathBuf, String> {
    let path = Path::new(wanted);
    let outside = || format!("{wanted:?} is outside {}, the folder of the file", root.display());
    if path.components().any(|part| matches!(part, Component::RootDir | Component::Prefix(_))) {
        return Err(outside());
    }
    let real = folder.join(path).canonicalize();
    let real = real.map_err(|error| format!("{wanted:?} cannot be read: {error}"))?;
    if real.starts_with(root) { Ok(real) } else { Err(outside()) }
}

/// Reads a regular file.
///
/// # Errors
/// A message if it is not a regular file, is too large, or cannot be read.
pub fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, String> {
    let cannot = |why: &dyn std::fmt::Display| format!("{} cannot be read: {why}", path.display());
    // Opening a named pipe would block.
    let kind = std::fs::metadata(path).map_err(|error| cannot(&error))?;
    if !kind.is_file() {
        return Err(cannot(&"it is not a plain file"));
    }
    let file = File::open(path).map_err(|error| cannot(&error))?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    if bytes.len() as u64 > max_bytes {
        Err(cannot(&format!("it is larger than the file limit of {max_bytes} bytes")))
    } else {
        Ok(bytes)
    }
}
