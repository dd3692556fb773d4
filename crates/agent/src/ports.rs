//! Finds tasks that listen on ports that were not assigned to them. On the machine's network
//! nothing keeps a task from a port that was assigned to another; so the listening sockets of tasks
//! are scanned every few seconds, and reported.
//!
//! The kernel lists listening sockets by inode number, and the open files of a process name the
//! same numbers. Rejected: tracing every call of `bind`, which takes a program in the kernel
//! (eBPF).

mod sock_diag;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The state of a listening socket in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";

/// TCP sockets of this machine's network that listen: inode number, port.
#[must_use]
pub fn listening_sockets() -> BTreeMap<u64, u16> {
    sock_diag::listening_sockets().unwrap_or_else(|_| listed_sockets())
}

/// The same from the kernel's lists, which cost more, for kernels that do not answer questions.
fn listed_sockets() -> BTreeMap<u64, u16> {
    let lists = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    lists.into_iter().flatten().flat_map(|text| parse_tcp_table(&text)).collect()
}

fn parse_tcp_table(text: &str) -> Vec<(u64, u16)> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (state == TCP_LISTEN).then_some((inode.parse().ok()?, port))
    };
    text.lines().skip(1).filter_map(socket).collect()
}

/// A scan of one task's processes for ports that were not assigned to it. Each pass inspects a
/// limited number of open files, and the next one continues there: a task can have millions.
#[derive(Clone, Debug, Default)]
pub struct PortScan {
    /// Open files inspected so far in this round.
    offset: usize,
    /// What this round has found.
    found: BTreeSet<u16>,
    /// What was reported last.
    reported: BTreeSet<u16>,
}

/// Most open files of a task that are inspected in one pass.
const MAX_FILES_PER_PASS: usize = 4096;

impl PortScan {
    /// Continues the scan; returns the ports when they have changed. A port that was found before
    /// counts until a complete round does not find it again.
    pub fn resume(
        &mut self,
        processes: &[u32],
        listening: &BTreeMap<u64, u16>,
        assigned: &[u16],
    ) -> Option<BTreeSet<u16>> {
        let files = processes.iter().flat_map(|pid| open_files(readable_thread(*pid)));
        let mut files = files.skip(self.offset);
        let mut inspected = 0;
        for file in files.by_ref().take(MAX_FILES_PER_PASS) {
            inspected += 1;
            let port = socket_inode(&file).and_then(|socket| listening.get(&socket).copied());
            self.found.extend(port.filter(|port| !assigned.contains(port)));
        }
        let now = if inspected < MAX_FILES_PER_PASS {
            self.offset = 0;
            std::mem::take(&mut self.found)
        } else {
            self.offset += inspected;
            &self.found | &self.reported
        };
        let changed = now != self.reported;
        self.reported.clone_from(&now);
        changed.then_some(now)
    }
}

/// The open files of a process or a thread. One that has ended, or may not be inspected, has none.
pub fn open_files(id: u32) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    files.map(|file| file.path())
}

/// The threads of a process.
pub fn threads(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
}

/// The thread that shows what a process has open and mapped: its first one, unless that has ended
/// before others, and then shows nothing.
pub fn readable_thread(pid: u32) -> u32 {
    let has_ended = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before the state is the program's choice, and may contain anything.
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['Z', 'X']))
    };
    if !has_ended(pid) {
        return pid;
    }
    threads(pid).into_iter().find(|thread| *thread != pid).unwrap_or(pid)
}

/// The inode number of an open file that is a socket.
fn socket_inode(file: &Path) -> Option<u64> {
    let target = fs::read_link(file).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn only_sockets_that_listen_count() {
        let text = "  sl  local_address rem_address st tx rx tr tm retr uid timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4242 1\n\
            1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 0 0 4243 1\n\
            broken\n";
        assert_eq!(parse_tcp_table(text), [(4242, 8080)]);
    }

    #[test]
    fn a_question_and_the_lists_have_the_same_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let inode_of = |sockets: BTreeMap<u64, u16>| {
            sockets.into_iter().find(|(_, listens)| *listens == port).map(|(inode, _)| inode)
        };
        let asked = inode_of(sock_diag::listening_sockets().unwrap());
        assert!(asked.is_some());
        assert_eq!(asked, inode_of(listed_sockets()));
    }

    #[test]
    fn this_very_process_is_found_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (own, seen) = ([std::process::id()], listening_sockets());
        let mut search = PortScan::default();
        assert!(search.resume(&own, &seen, &[]).unwrap().contains(&port));
        assert_eq!(search.resume(&own, &seen, &[]), None, "nothing new");
        let other = search.resume(&own, &seen, &[port]);
        assert!(other.is_some_and(|ports| !ports.contains(&port)));
        search.resume(&own, &seen, &[]);
        assert_eq!(search.resume(&[], &seen, &[]), Some(BTreeSet::new()));
    }

    #[test]
    fn who_has_many_files_open_is_found_out_a_little_later() {
        let many: Vec<fs::File> =
            (0..MAX_FILES_PER_PASS / 4).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // As if there were as many processes: each is scanned on its own.
        let (own, seen) = ([std::process::id(); 5], listening_sockets());
        let mut search = PortScan::default();
        let found =
            (0..3).filter_map(|_| search.resume(&own, &seen, &[])).any(|p| p.contains(&port));
        assert!(found);
        drop(many);
    }
}
