//! Processes as `/proc` lists them: their parents, and their CPU time. Without cgroups this is how
//! all processes of a task are found; the shim is the reaper of all its descendants, so nothing
//! that a task starts can leave the tree.

use std::collections::BTreeMap;
use std::fs;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub session: i32,
    /// Has exited, and waits to be reaped by its parent.
    pub is_zombie: bool,
    /// Stopped by a signal: it forks no more until it continues.
    pub is_stopped: bool,
    /// Ticks of CPU of its own and of its children that ended.
    pub ticks: u64,
    /// Ticks after boot at which it was born.
    pub born: u64,
    pub resident_pages: u64,
}

/// All current processes. One that goes away meanwhile is left out.
#[must_use]
pub fn list() -> BTreeMap<i32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(get).map(|process| (process.pid, process)).collect()
}

/// The process with this pid.
#[must_use]
pub fn get(pid: i32) -> Option<Process> {
    // A program can have any name, even one that is not UTF-8.
    let raw = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&String::from_utf8_lossy(&raw))
}

/// Ticks of CPU of the children that this process has reaped, and of those that they had.
#[must_use]
pub fn reaped_ticks() -> Option<u64> {
    let stat = fs::read("/proc/self/stat").ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_ascii_whitespace().skip(13);
    let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
    user.checked_add(system)
}

/// Its children and theirs, in order of their pids.
#[must_use]
pub fn descendants(all: &BTreeMap<i32, Process>, root: i32) -> Vec<Process> {
    let is_below = |process: &&Process| {
        let mut at = process.parent;
        // A chain of parents is never longer than the list, whatever changed while it was read.
        for _ in 0..all.len() {
            match all.get(&at) {
                _ if at == root => return true,
                Some(parent) => at = parent.parent,
                None => return false,
            }
        }
        false
    };
    all.values().filter(is_below).copied().collect()
}

/// The name in parentheses may contain anything, so fields are counted from its end.
fn parse(stat: &str) -> Option<Process> {
    let (head, rest) = stat.rsplit_once(')')?;
    let pid = head.split_once(' ')?.0.parse().ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let signed = |at: usize| fields.get(at)?.parse::<i32>().ok();
    Some(Process {
        pid,
        parent: signed(1)?,
        session: signed(3)?,
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
        is_stopped: matches!(*fields.first()?, "T" | "t"),
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
        born: number(19)?,
        resident_pages: number(21)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_program_calls_itself() {
        let line = "7 (a) 9 (b) S 3 7 5 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 900 1 33 1 1 1";
        let want = Process {
            pid: 7,
            parent: 3,
            session: 5,
            is_zombie: false,
            is_stopped: false,
            ticks: 100,
            born: 900,
            resident_pages: 33,
        };
        assert_eq!(parse(line), Some(want));
        assert_eq!(parse("7 (a) Z"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn descendants_are_found_and_strangers_are_not() {
        let process = |pid, parent| Process {
            pid,
            parent,
            session: 1,
            is_zombie: false,
            is_stopped: false,
            ticks: 0,
            born: 0,
            resident_pages: 0,
        };
        let list = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (8, 9), (9, 8)];
        let all = list.into_iter().map(|(pid, parent)| (pid, process(pid, parent))).collect();
        let found: Vec<i32> = descendants(&all, 2).iter().map(|process| process.pid).collect();
        assert_eq!(found, [3, 4]);
        assert_eq!(get(1).map(|process| process.parent), Some(0));
    }
}
