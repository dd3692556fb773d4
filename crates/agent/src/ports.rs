//! Who listens where it was not told to. On the machine's network nothing keeps a task from a port
//! that was given to another; so what tasks listen on is looked at every few seconds, and said.
//!
//! The kernel lists listening sockets by number, and the open files of a process name the same
//! numbers. Rejected: watching every call of `bind`, which takes a program in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// What the kernel calls a socket that listens.
const LISTENS: &str = "0A";

/// TCP sockets of this machine's network that listen: number of the socket, port.
#[must_use]
pub fn listening() -> BTreeMap<u64, u16> {
    let lists = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    lists.into_iter().flatten().flat_map(|text| parse(&text)).collect()
}

fn parse(text: &str) -> Vec<(u64, u16)> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (state == LISTENS).then_some((inode.parse().ok()?, port))
    };
    text.lines().skip(1).filter_map(socket).collect()
}

/// Ports that one of these processes listens on and that are not among `given`.
#[must_use]
pub fn ungiven(processes: &[u32], listening: &BTreeMap<u64, u16>, given: &[u16]) -> BTreeSet<u16> {
    if listening.is_empty() {
        return BTreeSet::new();
    }
    let sockets = processes.iter().flat_map(|pid| sockets_of(*pid));
    let ports = sockets.filter_map(|socket| listening.get(&socket).copied());
    ports.filter(|port| !given.contains(port)).collect()
}

/// A process that has ended, or is not ours to look at, has none.
fn sockets_of(pid: u32) -> Vec<u64> {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let socket = |file: fs::DirEntry| {
        let target = fs::read_link(file.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    files.flatten().filter_map(socket).collect()
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
        assert_eq!(parse(text), [(4242, 8080)]);
    }

    #[test]
    fn this_very_process_is_found_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (own, seen) = ([std::process::id()], listening());
        assert!(ungiven(&own, &seen, &[]).contains(&port));
        assert!(!ungiven(&own, &seen, &[port]).contains(&port));
        assert!(ungiven(&[], &seen, &[]).is_empty());
    }
}
