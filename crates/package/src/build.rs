//! Builds a package from a folder.
//!
//! Of the modes only what version control keeps is used, executable or not: with the rest, the same
//! sources checked out under two umasks would be two packages.

use crate::digest::PackageDigest;
use crate::error::{PackageError, at};
use crate::kind::{FOLDER_MODE, Kind};
use crate::path::{EntryPath, truncate};
use crate::writer::Writer;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A package that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    pub digest: PackageDigest,
    /// Length of the file.
    pub bytes: u64,
    pub entries: u64,
    /// Bytes of all files together.
    pub content: u64,
}

/// Writes the content of `folder` as a package to `target`, which is replaced once the package is
/// complete.
///
/// # Errors
/// When something in the folder cannot be read or is not allowed in a package.
pub fn build(folder: &Path, target: &Path) -> Result<Built, PackageError> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).map_err(at(&dir))? {
            let path = entry.map_err(at(&dir))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(at(&path))?;
            if metadata.is_dir() {
                open.push(path.clone());
            }
            found.insert(entry_path(folder, &path)?, (path, metadata));
        }
    }
    let mut writer = Writer::new(target)?;
    for (entry, (path, metadata)) in &found {
        add(&mut writer, entry, path, metadata)?;
    }
    writer.finish()
}

fn entry_path(folder: &Path, path: &Path) -> Result<EntryPath, PackageError> {
    let inside = path.strip_prefix(folder).unwrap_or(path);
    let text = inside.to_str().ok_or_else(|| PackageError::BadPath {
        path: truncate(&inside.to_string_lossy()),
        rule: "it is not UTF-8",
    })?;
    EntryPath::new(text)
}

fn add(
    writer: &mut Writer,
    entry: &EntryPath,
    path: &PathBuf,
    metadata: &Metadata,
) -> Result<(), PackageError> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        return writer.add(entry, &Kind::Folder { mode: FOLDER_MODE }, &mut io::empty());
    }
    if kind.is_symlink() {
        let target = fs::read_link(path).map_err(at(path))?;
        let target = target.to_str().ok_or_else(|| PackageError::BadLink {
            path: entry.to_string(),
            target: truncate(&target.to_string_lossy()),
            rule: "the target is not UTF-8",
        })?;
        let link = Kind::SymbolicLink { target: target.to_owned() };
        return writer.add(entry, &link, &mut io::empty());
    }
    if !kind.is_file() {
        let kind = match () {
            () if kind.is_fifo() => "a FIFO",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        return Err(PackageError::BadKind { path: entry.to_string(), kind });
    }
    let executable = metadata.permissions().mode() & 0o111 != 0;
    let mode = if executable { 0o755 } else { 0o644 };
    let mut file = File::open(path).map_err(at(path))?;
    writer.add(entry, &Kind::File { mode, bytes: metadata.len() }, &mut file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Folder, write_tree};
    use std::os::unix::fs::symlink;

    #[test]
    fn equal_folders_are_equal_packages_whatever_their_times_and_umask() {
        let folder = Folder::new();
        for (name, mode) in [("one", 0o600), ("two", 0o664)] {
            write_tree(&folder.path(name), &[("b/c", "text"), ("a", "x"), ("b.d", "")]);
            let file = folder.path(name).join("a");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            symlink("../a", folder.path(name).join("b/link")).unwrap();
        }
        let one = build(&folder.path("one"), &folder.path("one.package")).unwrap();
        let two = build(&folder.path("two"), &folder.path("two.package")).unwrap();
        assert_eq!(one, two);
        let bytes = fs::read(folder.path("one.package")).unwrap();
        assert_eq!(bytes, fs::read(folder.path("two.package")).unwrap());
        assert_eq!((one.bytes, one.entries, one.content), (bytes.len() as u64, 5, 5));
        assert_eq!(one.digest, PackageDigest::of(&bytes));
        fs::write(folder.path("two/a"), "y").unwrap();
        let three = build(&folder.path("two"), &folder.path("two.package")).unwrap();
        assert_ne!(one.digest, three.digest);
        let parts = folder.list().into_iter().filter(|name| name.ends_with(".part"));
        assert_eq!(parts.count(), 0);
    }

    /// Jobs that name the digest rely on it.
    #[test]
    fn the_digest_of_a_folder_never_changes() {
        let folder = Folder::new();
        let long = format!("{}/{}", "d".repeat(150), "n".repeat(150));
        write_tree(
            &folder.path("in"),
            &[("bin/run", "#!/bin/sh\n"), (&long, "long"), ("data", "")],
        );
        let built = build(&folder.path("in"), &folder.path("out")).unwrap();
        let expected = "269b97dd0f7f513834b247258fbfb673f754dd0a082750f6523aaf185cf3f828";
        assert_eq!(built.digest.to_string(), expected);
    }

    #[test]
    fn what_has_no_place_in_a_package_is_named() {
        let folder = Folder::new();
        let check = |case: &str, make: &dyn Fn(&Path), expected: &str| {
            let here = folder.path(case);
            fs::create_dir_all(here.join("sub")).unwrap();
            make(&here.join("sub/it"));
            let error = build(&here, &folder.path("out")).unwrap_err().to_string();
            assert!(error.contains("sub/it") && error.contains(expected), "{error}");
            assert!(!folder.path("out").exists());
        };
        check("absolute", &|at| symlink("/etc/passwd", at).unwrap(), "starts at the root");
        check("above", &|at| symlink("../../x", at).unwrap(), "above the package's root");
        let socket = |at: &Path| drop(std::os::unix::net::UnixListener::bind(at).unwrap());
        check("socket", &socket, "is a socket");
    }
}
