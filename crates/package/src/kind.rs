//! The allowed kinds of entries, with their modes.

use crate::error::PackageError;
use crate::path::{EntryPath, check_link};

/// One entry of a package, without the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder {
        mode: u32,
    },
    File {
        mode: u32,
        bytes: u64,
    },
    /// To an earlier file of the same package.
    HardLink {
        target: EntryPath,
    },
    SymbolicLink {
        target: String,
    },
}

/// The default mode of a folder.
pub(crate) const FOLDER_MODE: u32 = 0o755;

/// Folders stay open to their owner, or a machine without root could not remove them; set-user-ID
/// programs are not allowed on a machine that others use.
const FOLDER_MODES: &str = "0700 to 1777 with all of 0700";
const FILE_MODES: &str = "0400 to 0777 with 0400";

/// # Errors
/// When mode or target are not allowed.
pub(crate) fn check(path: &EntryPath, kind: &Kind) -> Result<(), PackageError> {
    let reject =
        |mode, allowed| Err(PackageError::BadMode { path: path.to_string(), mode, allowed });
    match *kind {
        Kind::Folder { mode } if mode & 0o700 != 0o700 || mode & !0o1777 != 0 => {
            reject(mode, FOLDER_MODES)
        }
        Kind::File { mode, .. } if mode & 0o400 != 0o400 || mode & !0o777 != 0 => {
            reject(mode, FILE_MODES)
        }
        Kind::SymbolicLink { ref target } => check_link(path, target),
        _ => Ok(()),
    }
}
