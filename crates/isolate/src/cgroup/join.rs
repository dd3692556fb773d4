//! A process that joins its cgroup by itself, before it executes a program.
//!
//! Moving another process blocks every fork of the machine meanwhile, and the kernel waits for a
//! grace period of RCU before that begins: 7 to 15 ms, the longest part of a start. It does without
//! for a thread that moves itself alone ("0" written to `tasks`, since Linux 5.5), and a process of
//! one thread is moved by that as a whole. The unified hierarchy has no such file for cgroups that
//! are domains, and there the wait stays; but beside v1 hierarchies that hold all limits it does
//! nothing but count and kill, and a program can begin before it is counted.
//!
//! Rejected: `clone3` into the cgroup, which is right for v2 and takes unsafe code or a C library
//! newer than those we build on; fewer hierarchies, for each one costs 0.02 ms and the wait comes
//! with the first.

use super::Controller;
use super::kill::processes;
use super::tree::Group;
use crate::Error;
use crate::kernel_file::write;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// A process writes this to mean itself.
pub const SELF_PID: &str = "0";
/// Passes that look for processes which were forked while their parent was being counted. Each
/// finds fewer than the one before, except with endless forking; those are found in the other
/// hierarchies when they are killed.
const COUNT_PASSES: u32 = 4;

impl Group {
    /// Files into which a process of one thread writes [`SELF_PID`], in this order, to join the
    /// cgroup. It has joined for good, as far as limits go, once
    /// [`Group::add_to_limitless_hierarchies`] has been called too.
    #[must_use]
    pub fn join_files(&self) -> Vec<PathBuf> {
        let mut mounts = self.layout().v1_mounts();
        // Last: a process with little CPU would have to wait for it between two files.
        let cpu = self.layout().v1_mount(Controller::Cpu);
        mounts.sort_by_key(|mount| Some(*mount) == cpu);
        mounts.into_iter().map(|mount| self.path().directory_in(mount).join("tasks")).collect()
    }

    /// Adds a process to the hierarchy with limits that it cannot join by itself: the unified one,
    /// if that has controllers of ours.
    ///
    /// # Errors
    /// When there is no such process, or the kernel refuses.
    pub fn add_to_limitless_hierarchies(&self, pid: u32) -> Result<(), Error> {
        match self.layout().unified() {
            Some(unified) if !self.layout().unified_only_counts() => {
                join(&self.path().directory_in(unified), pid)
            }
            _ => Ok(()),
        }
    }

    /// Has the unified hierarchy count the members, where it has no other use and so was left out
    /// of [`Group::add_to_limitless_hierarchies`]. `first` is a child of the caller that was not
    /// waited for: its pid cannot be reused, however long the kernel takes. The others follow at
    /// once, in less time than it takes to use up all pids.
    ///
    /// # Errors
    /// When the kernel refuses. A process that is gone is not counted.
    pub fn count_members(&self, first: u32) -> Result<(), Error> {
        let Some(unified) = self.layout().unified() else { return Ok(()) };
        let Some(other) = self.layout().v1_mounts().into_iter().next() else { return Ok(()) };
        if !self.layout().unified_only_counts() {
            return Ok(());
        }
        let (counted, other) = (self.path().directory_in(unified), self.path().directory_in(other));
        join_if_there(&counted, first)?;
        for _ in 0..COUNT_PASSES {
            let counted_pids = processes(std::slice::from_ref(&counted))?;
            let member_pids = processes(std::slice::from_ref(&other))?;
            let new: Vec<u32> = member_pids
                .into_iter()
                .filter(|pid| counted_pids.binary_search(pid).is_err())
                .collect();
            if new.is_empty() {
                break;
            }
            new.into_iter().try_for_each(|pid| join_if_there(&counted, pid))?;
        }
        Ok(())
    }
}

fn join(group: &Path, pid: u32) -> Result<(), Error> {
    write(&group.join("cgroup.procs"), &pid.to_string())
}

fn join_if_there(group: &Path, pid: u32) -> Result<(), Error> {
    match join(group, pid) {
        Err(Error::Write { source, .. })
            if source.raw_os_error() == Some(Errno::SRCH.raw_os_error()) =>
        {
            Ok(())
        }
        joined => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::super::group_path::GroupPath;
    use super::super::layout::Layout;
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn the_door_to_the_cpu_is_the_last() {
        let mounts = [Controller::Cpu, Controller::Memory, Controller::Pids];
        let mounts = mounts.map(|controller| (controller, PathBuf::from(controller.as_str())));
        let mounts: Vec<(Controller, &Path)> =
            mounts.iter().map(|(controller, path)| (*controller, path.as_path())).collect();
        let group = Tree::new(Layout::of_v1(&mounts), GroupPath::new("x").unwrap()).base();
        let expected = ["memory/x/tasks", "pids/x/tasks", "cpu/x/tasks"].map(PathBuf::from);
        assert_eq!(group.join_files(), expected);
    }
}
