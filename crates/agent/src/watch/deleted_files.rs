//! Disk usage of a task that no folder lists: deleted files that its processes hold open or mapped
//! go on taking space. Descriptors in flight in a Unix socket are in no list of open files, and the
//! kernel shows only how many there are.
//!
//! A task can have millions of files open, so each pass inspects a limited number, and the next
//! continues there. Files that were found are inspected again in each pass, for as long as they are
//! there. Threads can have open files of their own where no seccomp filter prevents it; a few of
//! them are inspected in each pass, in turn.

use super::WatchedTask;
use crate::ports::{open_files, readable_thread, threads};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The unit of `stat`'s blocks.
const BLOCK: u64 = 512;
/// Passes in a row that find descriptors in flight in the same socket before they count as kept
/// there: a minute. A service that passes connections to its workers is through with each long
/// before, and its sockets are empty now and then.
const MAX_LOOKS_IN_FLIGHT: u32 = 12;
/// Most passes that it may take to inspect all open files once: what is passed on faster than that
/// is not found. Sockets are open files as well, and the largest servers have a few million.
const MAX_LOOKS_PER_ROUND: u32 = 32;
/// Open files of threads that are inspected in each pass, beside those of their processes. Nearly
/// always they are the same ones.
const MAX_THREAD_FILES: usize = 4096;

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletedFileUse {
    pub bytes: u64,
    /// Why the usage cannot be determined.
    pub failure: Option<ScanFailure>,
}

/// What cannot be inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFailure {
    /// Descriptors in flight in a socket that are never received.
    InFlight { looks: u32 },
    /// More open files, or deleted ones among them, than are inspected.
    TooMany { most: usize },
}

impl fmt::Display for ScanFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScanFailure::InFlight { looks } => write!(
                out,
                "disk: descriptors were in one of its sockets, not received, at {looks} looks in a \
                 row; nobody can see what files they hold"
            ),
            ScanFailure::TooMany { most } => write!(
                out,
                "disk: its processes have {most} files and sockets open or more, too many to be \
                 looked through for removed files"
            ),
        }
    }
}

/// The scan of one task's processes, from pass to pass.
#[derive(Clone, Debug, Default)]
pub struct DeletedFileScan {
    processes: ScanPosition,
    threads: ScanPosition,
    /// Passes since the first process was inspected.
    looks: u32,
    results: ScanResults,
}

impl DeletedFileScan {
    /// Continues through all processes of the task's cgroup, by at most `most` open files and
    /// mappings.
    pub fn scan(&mut self, task: &WatchedTask, most: usize) -> DeletedFileUse {
        let processes = task.group.processes().unwrap_or_default();
        self.resume(&processes, &task.folder, task.limits.disk > 0, most)
    }

    /// Whether a file or socket has to be inspected again even if the task did nothing since.
    pub fn is_open(&self) -> bool {
        self.looks > 0 || !self.results.waiting.is_empty()
    }

    fn resume(
        &mut self,
        processes: &[u32],
        folder: &Path,
        sockets: bool,
        most: usize,
    ) -> DeletedFileUse {
        let Ok(disk) = fs::metadata(folder).map(|about| about.dev()) else {
            return DeletedFileUse::default();
        };
        let main_threads: BTreeSet<u32> =
            processes.iter().map(|pid| readable_thread(*pid)).collect();
        let all: BTreeSet<u32> = processes.iter().flat_map(|pid| threads(*pid)).collect();
        let others: BTreeSet<u32> = all.difference(&main_threads).copied().collect();
        let before = std::mem::take(&mut self.results);
        let mut pass =
            ScanPass { disk, sockets, most, before: &before, results: ScanResults::default() };
        for (process, link) in before.links().filter(|(process, _)| all.contains(process)) {
            pass.inspect(process, link.clone());
        }
        let everything = |process: u32| open_files(process).chain(deleted_mappings(process));
        let is_over = self.processes.advance(&main_threads, most, everything, &mut pass);
        self.threads.advance(&others, MAX_THREAD_FILES, open_files, &mut pass);
        self.results = pass.results;
        if !is_over {
            // Those that were not reached yet may be under another number by now.
            for (socket, waiting) in before.waiting {
                self.results.waiting.entry(socket).or_insert(waiting);
            }
        }
        self.looks = if is_over { 0 } else { self.looks.saturating_add(1) };
        DeletedFileUse { bytes: self.results.bytes(), failure: self.scan_failure(most) }
    }

    fn scan_failure(&self, most: usize) -> Option<ScanFailure> {
        let looks = self.results.waiting.values().map(|waiting| waiting.looks).max().unwrap_or(0);
        if looks >= MAX_LOOKS_IN_FLIGHT {
            return Some(ScanFailure::InFlight { looks });
        }
        if self.results.removed.len() >= most {
            return Some(ScanFailure::TooMany { most });
        }
        let most = most.saturating_mul(MAX_LOOKS_PER_ROUND as usize);
        (self.looks > MAX_LOOKS_PER_ROUND).then_some(ScanFailure::TooMany { most })
    }
}

/// Where a scan through open files continues.
#[derive(Clone, Copy, Debug, Default)]
struct ScanPosition {
    process: u32,
    files: usize,
}

impl ScanPosition {
    /// Inspects up to the limit of this pass. True when those were the last; the next pass begins
    /// anew.
    fn advance<Files: Iterator<Item = PathBuf>>(
        &mut self,
        processes: &BTreeSet<u32>,
        most: usize,
        files: impl Fn(u32) -> Files,
        pass: &mut ScanPass<'_>,
    ) -> bool {
        let mut left = most;
        for process in processes.range(self.process..) {
            if *process != self.process {
                *self = ScanPosition { process: *process, files: 0 };
            }
            for link in files(*process).skip(self.files) {
                if left == 0 {
                    return false;
                }
                left -= 1;
                self.files += 1;
                pass.inspect(*process, link);
            }
        }
        *self = ScanPosition::default();
        true
    }
}

/// What was found and is there still, by its inode number and device.
#[derive(Clone, Debug, Default)]
struct ScanResults {
    removed: BTreeMap<u64, DeletedFile>,
    waiting: BTreeMap<u64, InFlightSocket>,
}

/// A deleted file, counted once however many processes hold it.
#[derive(Clone, Debug)]
struct DeletedFile {
    process: u32,
    link: PathBuf,
    bytes: u64,
}

/// A socket with descriptors in flight.
#[derive(Clone, Debug)]
struct InFlightSocket {
    process: u32,
    link: PathBuf,
    /// Passes in a row in which it had some.
    looks: u32,
}

impl ScanResults {
    fn bytes(&self) -> u64 {
        self.removed.values().fold(0, |sum, removed| sum.saturating_add(removed.bytes))
    }

    /// Processes and their links in `/proc` to these files and sockets.
    fn links(&self) -> impl Iterator<Item = (u32, &PathBuf)> {
        let removed = self.removed.values().map(|removed| (removed.process, &removed.link));
        removed.chain(self.waiting.values().map(|waiting| (waiting.process, &waiting.link)))
    }
}

/// One pass.
struct ScanPass<'a> {
    disk: u64,
    /// Whether sockets are inspected.
    sockets: bool,
    /// Most deleted files, and sockets, that are tracked.
    most: usize,
    before: &'a ScanResults,
    results: ScanResults,
}

impl ScanPass<'_> {
    /// Records the file behind a link in `/proc`, if it is deleted and on this disk, and the socket
    /// if descriptors are in flight there.
    fn inspect(&mut self, process: u32, link: PathBuf) {
        let Ok(about) = fs::metadata(&link) else { return };
        let number = about.ino();
        if about.is_file() && about.nlink() == 0 && about.dev() == self.disk {
            let bytes = about.blocks().saturating_mul(BLOCK);
            let has_room = self.results.removed.len() < self.most;
            if bytes > 0 && (has_room || self.results.removed.contains_key(&number)) {
                self.results.removed.insert(number, DeletedFile { process, link, bytes });
            }
        } else if self.sockets
            && about.file_type().is_socket()
            && !self.results.waiting.contains_key(&number)
            && self.results.waiting.len() < self.most
            && has_queued_descriptors(&link)
        {
            let before = self.before.waiting.get(&number).map_or(0, |before| before.looks);
            let looks = before.saturating_add(1);
            self.results.waiting.insert(number, InFlightSocket { process, link, looks });
        }
    }
}

/// Whether descriptors are in flight in this socket; none are in one of another kind.
fn has_queued_descriptors(link: &Path) -> bool {
    let number = link.file_name().and_then(|name| name.to_str());
    let process = link.parent().and_then(Path::parent);
    let (Some(number), Some(process)) = (number, process) else { return false };
    let text = fs::read_to_string(process.join("fdinfo").join(number)).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.and_then(|count| count.trim().parse::<u64>().ok()).is_some_and(|count| count > 0)
}

/// Deleted files that a process has mapped.
fn deleted_mappings(process: u32) -> impl Iterator<Item = PathBuf> {
    let list = fs::File::open(format!("/proc/{process}/maps")).ok().map(BufReader::new);
    // A name that is no text ends like others.
    let lines = list.into_iter().flat_map(|list| list.split(b'\n').map_while(Result::ok));
    lines.filter(|line| line.ends_with(b" (deleted)")).filter_map(move |line| {
        let line = String::from_utf8_lossy(&line);
        let address_range = line.split(' ').next()?;
        Some(PathBuf::from(format!("/proc/{process}/map_files/{address_range}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    /// A deleted file of a megabyte, held by `$f`.
    const WRITE: &str = "use IO::Handle; open($f, '+>', 'big'); print $f 'x' x 1048576; \
        $f->flush(); unlink('big')";
    /// A message of one byte with one descriptor, as sendmsg(2) wants it.
    const SOCKETS: &str = "use Socket; socketpair($a, $b, AF_UNIX, SOCK_STREAM, 0)";
    const SEND: &str = "$d = 'd'; $i = pack('PQ', $d, 1); \
        $c = pack('QiiiI', 20, 1, 1, fileno($f), 0); \
        $m = pack('QLLPQPQiI', 0, 0, 0, $i, 1, $c, 24, 0, 0); \
        syscall(46, fileno($a), $m, 0) == 1 or die $!";

    fn can_run() -> bool {
        let can = cfg!(target_arch = "x86_64") && rustix::process::geteuid().is_root();
        if !can {
            println!("skipped: needs root, and numbers of system calls of x86-64");
        }
        can
    }

    /// A process that runs `script`, in a folder of its own.
    struct Holder {
        folder: Scratch,
        child: Child,
        search: DeletedFileScan,
    }

    impl Holder {
        /// Returns when the script has printed a first letter.
        fn start(script: &str) -> Holder {
            let folder = Scratch::new();
            let perl = format!("$| = 1; {script}");
            let mut command = Command::new("perl");
            command.args(["-e", &perl]).current_dir(folder.path(""));
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let child = child.expect("perl is there");
            let mut holder = Holder { folder, child, search: DeletedFileScan::default() };
            holder.read_byte();
            holder
        }

        fn read_byte(&mut self) {
            let mut byte = [0u8];
            self.child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        }

        /// Has it go on until it has printed another letter.
        fn go_on(&mut self) {
            self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            self.read_byte();
        }

        fn scan_pass(&mut self, most: usize) -> DeletedFileUse {
            self.search.resume(&[self.child.id()], &self.folder.path(""), true, most)
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn megabyte(found: DeletedFileUse) {
        assert!(found.bytes >= 1 << 20 && found.failure.is_none(), "{found:?}");
    }

    #[test]
    fn files_without_a_name_are_found_open_mapped_and_in_flight() {
        if !can_run() {
            return;
        }
        let wait = "print 'x'; <STDIN>; close($f); print 'y'; <STDIN>";
        let mut open = Holder::start(&format!("{WRITE}; {wait}"));
        megabyte(open.scan_pass(1000));
        megabyte(open.scan_pass(1000));
        open.go_on();
        assert_eq!(open.scan_pass(1000), DeletedFileUse::default(), "it is closed");
        // Shared, read and write; its descriptor is closed.
        let map = "syscall(9, 0, 1048576, 3, 1, fileno($f), 0) > 0 or die; close($f)";
        megabyte(Holder::start(&format!("{WRITE}; {map}; {wait}")).scan_pass(1000));
        let sent = format!("{WRITE}; {SOCKETS}; {SEND}; close($f); {wait}");
        let mut sent = Holder::start(&sent);
        let found = (0..MAX_LOOKS_IN_FLIGHT).map(|_| sent.scan_pass(1000)).last().unwrap();
        assert_eq!((found.bytes, found.failure), (0, Some(ScanFailure::InFlight { looks: 12 })));
    }

    #[test]
    fn whoever_passes_descriptors_all_the_time_keeps_none() {
        if !can_run() {
            return;
        }
        // A receiver that reads the byte alone drops the descriptor.
        let pass = "while (1) { SEND; print 'x'; <STDIN>; sysread($b, $z, 1); print 'y'; <STDIN> }";
        let pass = pass.replace("SEND", SEND);
        let mut passes = Holder::start(&format!("{WRITE}; {SOCKETS}; {pass}"));
        for _ in 0..3 {
            for _ in 1..MAX_LOOKS_IN_FLIGHT {
                megabyte(passes.scan_pass(1000));
            }
            assert!(passes.search.is_open());
            passes.go_on();
            megabyte(passes.scan_pass(1000));
            assert!(!passes.search.is_open());
            passes.go_on();
        }
    }

    #[test]
    fn files_of_a_thread_with_a_list_of_its_own_and_after_the_first_thread_are_found() {
        if !can_run() {
            return;
        }
        let thread = |before: &str, first: &str| {
            format!(
                "use threads; use threads::shared; my $ok :shared; $p = $$; \
                 threads->create(sub {{ {before}; {WRITE}; \
                 {{ lock($ok); $ok = 1; cond_signal($ok); }} {first}; print 'x'; sleep 1000 }}); \
                 {{ lock($ok); cond_wait($ok) until $ok; }}"
            )
        };
        // close_range(2) of nothing, which gives the thread a file table of its own.
        let apart = thread("syscall(436, 4000, 4001, 2) == 0 or die $!", "");
        let mut apart = Holder::start(&format!("{apart} sleep 1000"));
        assert_eq!(open_removed(apart.child.id()), 0, "its process does not show it");
        megabyte(apart.scan_pass(1000));
        // The first thread ends by itself, and is a zombie from then on.
        let zombie = "1 until do { open($s, '<', \"/proc/$p/stat\"); <$s> =~ /\\) Z / }";
        let ended = thread("", zombie);
        let mut ended = Holder::start(&format!("{ended} syscall(60, 0)"));
        assert_eq!(open_files(ended.child.id()).count(), 0, "it shows nothing");
        megabyte(ended.scan_pass(1000));
    }

    fn open_removed(process: u32) -> usize {
        let removed = |link: &PathBuf| fs::metadata(link).is_ok_and(|about| about.nlink() == 0);
        open_files(process).filter(removed).filter(|link| link.is_file()).count()
    }

    #[test]
    fn who_has_many_sockets_open_is_looked_through_in_several_looks() {
        if !can_run() {
            return;
        }
        let many = "push(@s, $_) for map { socket(my $s, AF_UNIX, SOCK_STREAM, 0); $s } 1..200";
        let script = format!("{SOCKETS}; {many}; {WRITE}; print 'x'; <STDIN>");
        let mut holder = Holder::start(&script);
        let looks: Vec<DeletedFileUse> = (0..25).map(|_| holder.scan_pass(10)).collect();
        assert!(looks.iter().all(|found| found.failure.is_none()), "{looks:?}");
        assert_eq!(looks[0].bytes, 0);
        megabyte(looks[24]);
        // What cannot be inspected in any time is reported, with an error of its own.
        holder.search = DeletedFileScan::default();
        let found = (0..40).map(|_| holder.scan_pass(5)).find_map(|found| found.failure).unwrap();
        assert_eq!(found, ScanFailure::TooMany { most: 5 * MAX_LOOKS_PER_ROUND as usize });
        let removed = "for (1..30) { open($f, '+>', 'x'); print $f 'x' x 9999; $f->flush(); \
            unlink('x'); push(@f, $f); undef($f) }";
        let mut holder = Holder::start(&format!("use IO::Handle; {removed}; print 'x'; <STDIN>"));
        let looks: Vec<Option<ScanFailure>> =
            (0..4).map(|_| holder.scan_pass(20).failure).collect();
        assert_eq!(looks.last(), Some(&Some(ScanFailure::TooMany { most: 20 })), "{looks:?}");
        assert_eq!(holder.search.results.removed.len(), 20, "no more is remembered");
        assert!(found.to_string().contains("have 160 files and sockets open or more"), "{found}");
    }
}
