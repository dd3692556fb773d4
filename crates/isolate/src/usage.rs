//! Resource usage of a task, from its cgroup or, where there are no cgroups, from the list of
//! processes.
//!
//! Reading and computing are separate: the readers below only read, `agent-core` computes rates.

use crate::Error;
use crate::cgroup::GroupUsage;
use crate::kernel_file::parse;
use cellwright_agent_core::usage::Reading;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// The usage of a cgroup as a reading.
#[must_use]
pub fn group_reading(usage: &GroupUsage) -> Reading {
    Reading {
        cpu: usage.cpu,
        cpu_stalled: usage.cpu_stalled,
        ram: usage.working_set,
        ram_peak: usage.memory_peak.unwrap_or(0),
        io: usage.io_read.saturating_add(usage.io_written),
    }
}

/// One snapshot of all processes, from which any number of trees can be read.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    by_pid: BTreeMap<u32, Process>,
    children: BTreeMap<u32, Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    /// Its own and that of the children it has waited for.
    cpu: Duration,
    ram: u64,
}

impl Processes {
    /// # Errors
    /// When the list cannot be read. A process that ends meanwhile is left out.
    pub fn snapshot() -> Result<Processes, Error> {
        let directory = Path::new("/proc");
        let mut found = Processes::default();
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let page = rustix::param::page_size() as u64;
        for entry in fs::read_dir(directory).map_err(Error::file("list", directory))? {
            let Ok(entry) = entry else { continue };
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let path = entry.path().join("stat");
            // Bytes: the kernel writes a name there as the program set it.
            let Ok(line) = fs::read(&path) else { continue };
            let process = process(&path, &String::from_utf8_lossy(&line), ticks, page)?;
            found.children.entry(process.parent).or_default().push(pid);
            found.by_pid.insert(pid, process);
        }
        Ok(found)
    }

    /// `root` and all its descendants, ascending. Orphans belong to the subreaper above them, so
    /// below a shim nothing that a task forked is missed.
    #[must_use]
    pub fn tree(&self, root: u32) -> Vec<u32> {
        let mut members = BTreeSet::new();
        let mut open = vec![root];
        while let Some(pid) = open.pop() {
            if self.by_pid.contains_key(&pid) && members.insert(pid) {
                open.extend(self.children.get(&pid).into_iter().flatten());
            }
        }
        members.into_iter().collect()
    }

    /// The usage of a tree; `None` when its root is gone. Memory that two processes share counts
    /// twice, and CPU time of a child shows late when it ended without being waited for.
    #[must_use]
    pub fn reading(&self, root: u32) -> Option<Reading> {
        self.by_pid.get(&root)?;
        let mut sum = Reading::default();
        for pid in self.tree(root) {
            let process = self.by_pid[&pid];
            sum.cpu += process.cpu;
            sum.ram += process.ram;
            sum.io += io_of(pid);
        }
        sum.ram_peak = sum.ram;
        Some(sum)
    }
}

/// One line of `/proc/PID/stat`. The name, in brackets, may contain anything, brackets included.
fn process(path: &Path, text: &str, ticks: u64, page: u64) -> Result<Process, Error> {
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let fields: Vec<&str> = after.split_whitespace().collect();
    let field = |index: usize, name| parse(path, name, fields.get(index).copied().unwrap_or(""));
    let mut spent = 0;
    for (index, name) in [(11, "utime"), (12, "stime"), (13, "cutime"), (14, "cstime")] {
        spent += field(index, name)?;
    }
    let millis = spent.saturating_mul(1000) / ticks;
    Ok(Process {
        parent: u32::try_from(field(1, "ppid")?).unwrap_or(u32::MAX),
        cpu: Duration::from_millis(millis),
        ram: field(21, "rss")?.saturating_mul(page),
    })
}

/// Zero for a process that has ended or that we may not inspect.
fn io_of(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/io");
    let text = fs::read_to_string(path).unwrap_or_default();
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    bytes("read_bytes:").saturating_add(bytes("write_bytes:"))
}

/// Space that a directory takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    pub bytes: u64,
    pub entries: u64,
    /// False when there was more than may be looked at: `bytes` is then a lower bound.
    pub complete: bool,
}

/// The minimum cost of an entry. An empty file takes no block, but an inode and an entry in its
/// directory; were it free, nothing would bound how many there are.
const MIN_ENTRY_BYTES: u64 = 4096;

/// How deep a tree of directories is followed; each level holds a descriptor.
const MAX_DEPTH: usize = 64;

/// Adds up a directory that a task can write to meanwhile: no link is followed, no name is used
/// twice, and the count stops after `most_entries`.
///
/// # Errors
/// When `root` itself cannot be opened.
pub fn disk_use(root: &Path, most_entries: u64) -> Result<DiskUse, Error> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(root, flags, Mode::empty());
    let opened = opened.map_err(|e| Error::file("open", root)(e.into()))?;
    let mut walk = Walk {
        total: DiskUse { complete: true, ..DiskUse::default() },
        most_entries,
        seen: BTreeSet::new(),
    };
    walk.directory(&opened, MAX_DEPTH);
    Ok(walk.total)
}

struct Walk {
    total: DiskUse,
    most_entries: u64,
    /// Files with several names, which take their space once.
    seen: BTreeSet<(u64, u64)>,
}

impl Walk {
    fn directory(&mut self, at: &OwnedFd, depth: usize) {
        let Ok(entries) = Dir::read_from(at) else {
            self.total.complete = false;
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.total.entries >= self.most_entries {
                self.total.complete = false;
                return;
            }
            self.total.entries += 1;
            let Ok(about) = statat(at, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let many_names = about.st_nlink > 1 && !is_directory(&about);
            if !many_names || self.seen.insert((about.st_dev, about.st_ino)) {
                let blocks = u64::try_from(about.st_blocks).unwrap_or(0);
                let bytes = blocks.saturating_mul(512).max(MIN_ENTRY_BYTES);
                self.total.bytes = self.total.bytes.saturating_add(bytes);
            }
            if is_directory(&about) {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match openat(at, name, flags, Mode::empty()) {
                    Ok(inner) if depth > 0 => self.directory(&inner, depth - 1),
                    _ => self.total.complete = false,
                }
            }
        }
    }
}

fn is_directory(about: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(about.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_may_be_called_anything() {
        let line = "7 (a) b) (c) S 3 7 7 0 -1 4194560 1 0 0 0 150 50 20 30 20 0 1 0 99 8192 10 9\n";
        let found = process(Path::new("stat"), line, 100, 4096).unwrap();
        let expected = Process { parent: 3, cpu: Duration::from_millis(2500), ram: 40_960 };
        assert_eq!(found, expected);
        assert!(process(Path::new("stat"), "7 (x)", 100, 4096).is_err());
    }

    #[test]
    fn a_process_whose_name_is_no_text_is_there_with_all_below_it() {
        let base = std::env::temp_dir().join(format!("cellwright-name-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let program =
            base.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff\xfe"));
        fs::copy("/bin/cat", &program).unwrap();
        let mut child = Command::new(&program).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let found = Processes::snapshot().unwrap().tree(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        fs::remove_dir_all(base).unwrap();
        assert_eq!(found, [child.id()]);
    }

    #[test]
    fn a_tree_holds_children_and_not_strangers() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let processes = Processes::snapshot().unwrap();
        let own = processes.tree(std::process::id());
        assert!(own.contains(&child.id()) && !own.contains(&1));
        assert!(processes.reading(std::process::id()).unwrap().ram > 0);
        assert_eq!(processes.tree(child.id()), [child.id()]);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(Processes::snapshot().unwrap().reading(child.id()), None);
    }

    #[test]
    fn disk_use_counts_once_follows_nothing_and_stops() {
        let base = std::env::temp_dir().join(format!("cellwright-disk-{}", std::process::id()));
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("a/one"), vec![1u8; 64 << 10]).unwrap();
        let alone = disk_use(&base, 100).unwrap();
        assert!(alone.complete && alone.bytes >= 64 << 10, "{alone:?}");
        fs::hard_link(base.join("a/one"), base.join("a/b/two")).unwrap();
        std::os::unix::fs::symlink("/", base.join("a/b/all")).unwrap();
        std::os::unix::fs::symlink(&base, base.join("a/b/loop")).unwrap();
        let linked = disk_use(&base, 100).unwrap();
        assert!(linked.complete && linked.entries == 6, "{linked:?}");
        assert!(linked.bytes < alone.bytes + (64 << 10), "{linked:?}");
        assert!(!disk_use(&base, 3).unwrap().complete);
        for empty in 0..50 {
            fs::write(base.join(format!("a/b/{empty}")), b"").unwrap();
        }
        let crowded = disk_use(&base, 100).unwrap();
        assert!(crowded.bytes >= linked.bytes + 50 * 4096, "{crowded:?}");
        assert!(disk_use(&base.join("a/b/loop"), 100).is_err());
        fs::remove_dir_all(base).unwrap();
    }
}
