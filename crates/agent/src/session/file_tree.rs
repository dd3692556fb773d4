//! Files and folders as an archive, for `cell cp`: read below a root, and written below a folder,
//! on either side. Neither side trusts the other. Every name is opened by the kernel's rules:
//! nothing outside of the root, whatever links say and however fast a task swaps them; and of what
//! is written, no part of a path may be a link.
//!
//! Links, devices, pipes and sockets are left out, and said to be: a link that one side makes and
//! the other follows is how such copies were led astray elsewhere. Of modes the permissions are
//! kept, not those that lend somebody's rights.

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, ftruncate, mkdirat,
    openat, openat2, statat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use tar::{Archive, Builder, EntryType, Header};

/// What is copied is called so in the archive; the receiver knows its name.
const TOP: &str = "copied";
/// The permissions that are kept.
const MODE: u32 = 0o777;
/// Folders inside of each other, each of which is held open.
const MAX_DEPTH: usize = 100;
/// Files and folders of one copy.
const MAX_ENTRIES: u64 = 10_000_000;
/// How names below the target are opened.
const NO_LINKS: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Where paths begin.
pub enum Root {
    /// This machine, for the command line.
    Machine,
    /// A task's: links are followed within it, as they are for the task.
    Within { root: OwnedFd, directory: PathBuf },
}

impl Root {
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        Ok(match self {
            Root::Machine => openat(CWD, path, flags, Mode::empty())?,
            Root::Within { root, directory } => {
                let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                openat2(root, directory.join(path), flags, Mode::empty(), resolve)?
            }
        })
    }

    /// What is to be copied: a file or a folder, open for reading.
    ///
    /// # Errors
    /// When it is not there, is something else, or may not be read.
    pub fn open_source(&self, path: &Path) -> io::Result<OwnedFd> {
        let named = |error: io::Error| io::Error::new(error.kind(), describe(path, &error));
        // A device may do something when it is opened.
        check_kind(&self.open(path, OFlags::PATH).map_err(named)?).map_err(named)?;
        let source = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(named)?;
        check_kind(&source).map_err(named)?;
        Ok(source)
    }
}

fn describe(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

fn invalid(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, describe(path, &why))
}

fn kind_of(file: impl AsFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode))
}

fn check_kind(file: &OwnedFd) -> io::Result<()> {
    match kind_of(file)? {
        FileType::RegularFile | FileType::Directory => Ok(()),
        _ => Err(io::Error::other("neither a file nor a folder")),
    }
}

/// Writes an archive of a file or a folder with all that is in it. `report` is told what is left
/// out, and why.
///
/// # Errors
/// When something cannot be read or written.
pub fn pack(
    source: OwnedFd,
    to: impl Write,
    report: &mut dyn FnMut(&Path, &str),
) -> io::Result<()> {
    let mut archive = Builder::new(to);
    add(&mut archive, source, Path::new(TOP), 0, report)?;
    archive.finish()
}

fn add(
    archive: &mut Builder<impl Write>,
    source: OwnedFd,
    name: &Path,
    depth: usize,
    report: &mut dyn FnMut(&Path, &str),
) -> io::Result<()> {
    let about = fstat(&source)?;
    let mut header = Header::new_gnu();
    header.set_mode(about.st_mode & MODE);
    header.set_mtime(u64::try_from(about.st_mtime).unwrap_or(0));
    if FileType::from_raw_mode(about.st_mode).is_file() {
        let size = u64::try_from(about.st_size).unwrap_or(0);
        header.set_entry_type(EntryType::Regular);
        header.set_size(size);
        // The archive has as many bytes as its header says, whatever becomes of the file.
        let content = File::from(source).take(size).chain(io::repeat(0)).take(size);
        return archive.append_data(&mut header, name, content);
    }
    header.set_entry_type(EntryType::Directory);
    header.set_size(0);
    archive.append_data(&mut header, name, io::empty())?;
    if depth >= MAX_DEPTH {
        return Err(invalid(name, "too many folders inside of each other"));
    }
    for entry in Dir::read_from(&source)? {
        let entry = entry?;
        let file_name = OsStr::from_bytes(entry.file_name().to_bytes());
        if file_name == "." || file_name == ".." {
            continue;
        }
        let inside = name.join(file_name);
        match open_entry(&source, file_name) {
            Ok(file) => add(archive, file, &inside, depth + 1, report)?,
            Err(error) => report(inside.strip_prefix(TOP).unwrap_or(&inside), &error.to_string()),
        }
    }
    Ok(())
}

fn open_entry(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let about = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(about.st_mode);
    if kind.is_symlink() {
        return Err(io::Error::other("left out: a link"));
    }
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::other("left out: neither a file nor a folder"));
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty())?;
    check_kind(&file)?;
    Ok(file)
}

/// Where an archive is written: under a name in a folder.
pub struct Target {
    folder: OwnedFd,
    name: OsString,
}

impl Target {
    /// In the folder `path` under `name`; where there is no such folder, as `path` itself.
    ///
    /// # Errors
    /// When neither is possible.
    pub fn find(root: &Root, path: &Path, name: impl AsRef<OsStr>) -> io::Result<Target> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let named = |error: io::Error| io::Error::new(error.kind(), describe(path, &error));
        let name = name.as_ref();
        match root.open(path, flags) {
            Ok(folder) if is_plain(name) => {
                return Ok(Target { folder, name: name.to_owned() });
            }
            Ok(_) => return Err(invalid(path, "a folder; say the name of what is in it")),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::NOTDIR) => {}
                _ => return Err(named(error)),
            },
        }
        let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
        let (Some(name), false) = (path.file_name(), is_folder) else {
            return Err(invalid(path, "no such folder"));
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = root.open(parent.unwrap_or(Path::new(".")), flags).map_err(named)?;
        Ok(Target { folder, name: name.to_owned() })
    }

    /// The folder of a path below, and its last part.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or_else(|| invalid(path, "not a name"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = parent.unwrap_or(Path::new("."));
        Ok((openat2(&self.folder, parent, flags, Mode::empty(), NO_LINKS)?, name))
    }

    /// Makes a folder, if there is none; whether it did.
    fn make_folder(&self, path: &Path) -> io::Result<bool> {
        let (parent, name) = self.parent(path)?;
        match mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat(&parent, name, flags, Mode::empty())?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn write_file(&self, path: &Path, mode: u32, content: &mut impl Read) -> io::Result<u64> {
        let (parent, name) = self.parent(path)?;
        // A pipe in its place makes nobody wait.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(&parent, name, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
        if !kind_of(&file)?.is_file() {
            return Err(io::Error::other("there is something else of this name"));
        }
        ftruncate(&file, 0)?;
        let mut file = File::from(file);
        let count = io::copy(content, &mut file)?;
        fchmod(&file, Mode::from_raw_mode(mode & MODE))?;
        Ok(count)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(&parent, name, flags, Mode::empty())?;
        Ok(fchmod(&folder, Mode::from_raw_mode(mode & MODE))?)
    }
}

/// Whether it is the name of something in a folder.
fn is_plain(name: &OsStr) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None)
        if only == name)
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub files: u64,
    pub bytes: u64,
}

/// Writes what is in an archive.
///
/// # Errors
/// When it is not an archive of [`pack`], or something cannot be written.
pub fn unpack(target: &Target, from: impl Read) -> io::Result<Totals> {
    let mut archive = Archive::new(from);
    let (mut folders, mut totals, mut entries) = (Vec::new(), Totals::default(), 0);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = path_below(&target.name, &entry.path()?)?;
        let mode = entry.header().mode()?;
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(invalid(&path, "more files than one copy may have"));
        }
        let named = |error: io::Error| io::Error::new(error.kind(), describe(&path, &error));
        match entry.header().entry_type() {
            EntryType::Directory => {
                if target.make_folder(&path).map_err(named)? {
                    folders.push((path, mode));
                }
            }
            EntryType::Regular => {
                totals.bytes += target.write_file(&path, mode, &mut entry).map_err(named)?;
                totals.files += 1;
            }
            _ => return Err(invalid(&path, "neither a file nor a folder")),
        }
    }
    if entries == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "nothing was sent"));
    }
    // The innermost first: one that may not be written to would keep out what is in it.
    for (path, mode) in folders.iter().rev() {
        target.set_mode(path, *mode)?;
    }
    Ok(totals)
}

/// The path of an entry, with the target's name in the place of the archive's.
fn path_below(name: &OsStr, entry: &Path) -> io::Result<PathBuf> {
    let mut components = entry.components();
    let outside = || invalid(entry, "not a path below what is copied");
    if components.next() != Some(Component::Normal(OsStr::new(TOP))) {
        return Err(outside());
    }
    let mut path = PathBuf::from(name);
    for component in components {
        let Component::Normal(part) = component else { return Err(outside()) };
        path.push(part);
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn within(root: &Path, directory: &str) -> Root {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, root, flags, Mode::empty()).unwrap();
        Root::Within { root, directory: directory.into() }
    }

    fn packed(root: &Root, path: &str) -> io::Result<(Vec<u8>, Vec<String>)> {
        let (mut bytes, mut left_out) = (Vec::new(), Vec::new());
        let mut report =
            |name: &Path, why: &str| left_out.push(format!("{}: {why}", name.display()));
        pack(root.open_source(Path::new(path))?, &mut bytes, &mut report)?;
        left_out.sort();
        Ok((bytes, left_out))
    }

    fn unpacked(root: &Root, path: &str, name: &str, bytes: &[u8]) -> io::Result<Totals> {
        unpack(&Target::find(root, Path::new(path), name)?, bytes)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_and_folders_arrive_with_their_modes_and_without_links() {
        let scratch = Scratch::new();
        let (from, to) = (scratch.path("from"), scratch.path("to"));
        fs::create_dir_all(from.join("work/data/deep")).unwrap();
        fs::create_dir_all(to.join("in")).unwrap();
        let long = "n".repeat(200);
        for (name, text, bits) in
            [("run", "#!/bin/sh\n", 0o4755), ("deep/secret", "x", 0o600), (&long, "", 0o644)]
        {
            fs::write(from.join("work/data").join(name), text).unwrap();
            let bits = fs::Permissions::from_mode(bits);
            fs::set_permissions(from.join("work/data").join(name), bits).unwrap();
        }
        fs::set_permissions(from.join("work/data/deep"), fs::Permissions::from_mode(0o555))
            .unwrap();
        symlink("/etc/passwd", from.join("work/data/link")).unwrap();
        let fifo = FileType::Fifo;
        rustix::fs::mknodat(CWD, from.join("work/data/pipe"), fifo, Mode::RUSR, 0).unwrap();
        let (bytes, left_out) = packed(&within(&from.join("work"), "/"), "data").unwrap();
        let want = ["link: left out: a link", "pipe: left out: neither a file nor a folder"];
        assert_eq!(left_out, want);
        // Into a folder, under its name; and as a new one.
        for (path, place) in [("in", "in/data"), ("in/new", "in/new")] {
            let totals = unpacked(&within(&to, "/"), path, "data", &bytes).unwrap();
            assert_eq!(totals, Totals { files: 3, bytes: 11 });
            let place = to.join(place);
            assert_eq!(fs::read_to_string(place.join("run")).unwrap(), "#!/bin/sh\n");
            assert_eq!(mode(&place.join("run")), 0o755, "nobody's rights are lent");
            assert_eq!(
                (mode(&place.join("deep")), mode(&place.join("deep/secret"))),
                (0o555, 0o600)
            );
            assert!(place.join(&long).exists() && !place.join("link").exists());
        }
        // A single file, over one that was longer.
        fs::write(to.join("in/file"), "much longer than it").unwrap();
        let (bytes, _) = packed(&within(&from.join("work"), "/data"), "run").unwrap();
        unpacked(&within(&to, "/in"), "file", "run", &bytes).unwrap();
        assert_eq!(fs::read_to_string(to.join("in/file")).unwrap(), "#!/bin/sh\n");
        for folder in ["in/data/deep", "in/new/deep"] {
            fs::set_permissions(to.join(folder), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::set_permissions(from.join("work/data/deep"), fs::Permissions::from_mode(0o755))
            .unwrap();
    }

    #[test]
    fn nothing_is_led_out_of_the_root() {
        let scratch = Scratch::new();
        let root = scratch.path("root");
        fs::create_dir_all(root.join("job")).unwrap();
        fs::write(scratch.path("outside"), "secret").unwrap();
        fs::create_dir(scratch.path("folder")).unwrap();
        symlink(scratch.path("outside"), root.join("job/absolute")).unwrap();
        symlink("../../outside", root.join("job/relative")).unwrap();
        symlink(scratch.path("folder"), root.join("job/away")).unwrap();
        symlink("/proc/self/root", root.join("job/magic")).unwrap();
        let view = within(&root, "/job");
        for path in ["absolute", "relative", "../../outside", "../../../outside", "magic/etc"] {
            assert!(packed(&view, path).is_err(), "{path}");
        }
        fs::write(root.join("job/file"), "mine").unwrap();
        let (bytes, _) = packed(&view, "file").unwrap();
        for path in ["away/file", "absolute", "relative", "away"] {
            // Where a link leads to nothing in the root, it is not written through either.
            assert!(unpacked(&view, path, "new", &bytes).is_err(), "{path}");
        }
        assert_eq!(fs::read_to_string(scratch.path("outside")).unwrap(), "secret");
        assert_eq!(fs::read_dir(scratch.path("folder")).unwrap().count(), 0);
        // A link in the middle of what is written is not followed, even within the root.
        fs::create_dir(root.join("elsewhere")).unwrap();
        fs::create_dir(root.join("job/tree")).unwrap();
        symlink("/elsewhere", root.join("job/tree/sub")).unwrap();
        let mut archive = Builder::new(Vec::new());
        for (path, kind) in
            [("copied", EntryType::Directory), ("copied/sub/file", EntryType::Regular)]
        {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            header.set_mode(0o755);
            archive.append_data(&mut header, path, io::empty()).unwrap();
        }
        let bytes = archive.into_inner().unwrap();
        assert!(unpacked(&view, ".", "tree", &bytes).is_err());
        assert_eq!(fs::read_dir(root.join("elsewhere")).unwrap().count(), 0);
    }

    #[test]
    fn an_archive_of_anything_else_is_refused() {
        let scratch = Scratch::new();
        let view = within(&scratch.path(""), "/");
        let archive = |name: &str, kind: EntryType| {
            let mut header = Header::new_gnu();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(kind);
            header.set_size(0);
            header.set_mode(0o644);
            header.set_cksum();
            let mut archive = Builder::new(Vec::new());
            archive.append(&header, io::empty()).unwrap();
            archive.into_inner().unwrap()
        };
        for (name, kind) in [
            ("other", EntryType::Regular),
            ("copied/../other", EntryType::Regular),
            ("../copied", EntryType::Regular),
            ("/copied", EntryType::Regular),
            ("copied", EntryType::Symlink),
            ("copied", EntryType::Link),
            ("copied", EntryType::Char),
            ("copied", EntryType::Fifo),
        ] {
            let refused = unpacked(&view, ".", "new", &archive(name, kind));
            assert!(refused.is_err(), "{name} {kind:?}");
        }
        assert!(unpacked(&view, ".", "new", b"").is_err());
        let good = archive("copied", EntryType::Regular);
        for name in ["", ".", "..", "a/b", "/a"] {
            assert!(unpacked(&view, ".", name, &good).is_err(), "{name:?}");
        }
        assert!(unpacked(&view, "absent/", "new", &good).is_err());
        unpacked(&view, ".", "new", &good).unwrap();
        assert!(scratch.path("new").exists());
    }
}
