//! Restricts the imports of a file to files in its own folder and below, in the library folders
//! that were named, and `cell.libsonnet`, which is built into the program. No other file is ever
//! opened, whatever symbolic links point to.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// The name under which the library is imported, from any folder.
pub const LIBRARY_NAME: &str = "cell.libsonnet";
/// The text of the library.
pub const LIBRARY: &str = include_str!("../cell.libsonnet");

/// The folders that may be imported from, all of them canonical.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportFolders {
    /// The folder of the file.
    pub own: PathBuf,
    /// In the order in which they are searched.
    pub libraries: Vec<PathBuf>,
}

impl ImportFolders {
    /// # Errors
    /// A message if one of them is no folder that can be read.
    pub fn new(own: &Path, libraries: &[PathBuf]) -> Result<ImportFolders, String> {
        let real = |folder: &Path, what: &str| {
            let real = folder.canonicalize().and_then(|real| {
                if real.is_dir() {
                    Ok(real)
                } else {
                    Err(io::Error::from(io::ErrorKind::NotADirectory))
                }
            });
            real.map_err(|error| format!("{what}{} cannot be read: {error}", folder.display()))
        };
        let libraries = libraries.iter().map(|folder| real(folder, "the library folder "));
        Ok(ImportFolders { own: real(own, "")?, libraries: libraries.collect::<Result<_, _>>()? })
    }

    /// The canonical path of `wanted`, as written in a file of `folder`, with all symbolic links
    /// resolved: in that folder, else in the first library folder that has it.
    ///
    /// # Errors
    /// A message if it does not exist or is below none of the folders.
    pub fn resolve(&self, folder: &Path, wanted: &str) -> Result<PathBuf, String> {
        let path = Path::new(wanted);
        if path.components().any(|part| matches!(part, Component::RootDir | Component::Prefix(_))) {
            return Err(self.outside(wanted));
        }
        let mut missing = io::Error::from(io::ErrorKind::NotFound);
        for base in std::iter::once(folder).chain(self.libraries.iter().map(PathBuf::as_path)) {
            match base.join(path).canonicalize() {
                Ok(real) if self.contains(&real) => return Ok(real),
                Ok(_) => return Err(self.outside(wanted)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing = error,
                Err(error) => return Err(format!("{wanted:?} cannot be read: {error}")),
            }
        }
        Err(format!("{wanted:?} cannot be read: {missing}"))
    }

    fn contains(&self, real: &Path) -> bool {
        real.starts_with(&self.own) || self.libraries.iter().any(|folder| real.starts_with(folder))
    }

    fn outside(&self, wanted: &str) -> String {
        let others = if self.libraries.is_empty() { "" } else { ", and outside its libraries" };
        format!("{wanted:?} is outside {}, the folder of the file{others}", self.own.display())
    }

    /// What may be imported, for errors.
    pub fn allowed(&self) -> String {
        let own = "files in the folder of the file and below it";
        let names: Vec<String> =
            self.libraries.iter().map(|folder| folder.display().to_string()).collect();
        match names.as_slice() {
            [] => format!("{own}, in library folders that are named (-J), and cell.libsonnet"),
            names => format!("{own}, in the libraries {}, and cell.libsonnet", names.join(", ")),
        }
    }
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
