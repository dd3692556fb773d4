//! Files and directories that hold keys or a cell's data: only their owner can read or write them.
//!
//! An account that may write there can replace files; one that may read gets the names of what
//! runs, tokens and packages. A directory that is open to others is refused and not narrowed: its
//! content may have been read already, and that is for a person to know.

use rustix::process::geteuid;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Permission bits that group and others must not have. To traverse a directory is not to read it.
const FORBIDDEN_MODE_BITS: u32 = 0o066;

/// Makes a directory with this mode where there is none, and refuses one that is open to others.
///
/// # Errors
/// When it cannot be made or inspected, belongs to another account, or others may read or write it.
pub fn ensure_private_dir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    let metadata = fs::metadata(path)?;
    let (owner, own) = (metadata.uid(), geteuid().as_raw());
    if owner != own {
        let text = format!(
            "{} is of account {owner}, who can change what is in it; allowed: a folder of the \
             account that runs this ({own})",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let found = metadata.permissions().mode() & 0o7777;
    if found & FORBIDDEN_MODE_BITS == 0 {
        return Ok(());
    }
    let text = format!(
        "{} is open to others: its mode is {found:04o}, allowed: {mode:04o} (no reading or writing \
         by group and others); see who read it, then: chmod {mode:o} {}",
        path.display(),
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Writes a new file that only its owner can read; it is on disk when this returns.
///
/// # Errors
/// When it exists already or cannot be written. A file that could not be written completely, as on
/// a full disk, is removed: it would block the next attempt.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    PrivateFile::create(path)?.write(bytes)
}

/// A new file as of [`write_private`] whose content is still to come; dropped without content, it
/// is removed.
pub struct PrivateFile {
    path: PathBuf,
    file: Option<File>,
}

impl PrivateFile {
    /// # Errors
    /// When it exists already or cannot be made.
    pub fn create(path: &Path) -> io::Result<PrivateFile> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(PrivateFile { path: path.to_owned(), file: Some(file) })
    }

    /// # Errors
    /// When it cannot be written completely; then it is removed.
    pub fn write(mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.take().map_or(Ok(()), |file| write_or_remove(file, &self.path, bytes))
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            // An empty file that stays blocks the next attempt and harms nothing else.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn write_or_remove(mut file: File, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        drop(std::fs::remove_file(path));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_read_or_write_is_refused_with_its_mode_and_the_command() {
        let path = std::env::temp_dir().join(format!("cellwright-private-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        ensure_private_dir(&path, 0o700).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&path), 0o700);
        for open in [0o755, 0o740, 0o702, 0o770, 0o1777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(open)).unwrap();
            let message = ensure_private_dir(&path, 0o700).unwrap_err().to_string();
            assert!(message.contains(&format!("its mode is {open:04o}")), "{message}");
            assert!(message.contains(&format!("chmod 700 {}", path.display())), "{message}");
            assert_eq!(mode(&path), open, "it is left as it was");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).unwrap();
        ensure_private_dir(&path, 0o711).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            let message = ensure_private_dir(&path, 0o711).unwrap_err().to_string();
            assert!(message.contains("is of account 65534"), "{message}");
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_file_that_a_full_disk_cut_short_is_not_left_behind() {
        let name = format!("cellwright-private-key-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "").unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let wrong = write_or_remove(full, &path, b"a key").unwrap_err();
        assert_eq!(wrong.kind(), io::ErrorKind::StorageFull);
        assert!(!path.exists());
    }
}
