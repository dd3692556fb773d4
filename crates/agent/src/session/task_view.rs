//! What a task sees, for a helper that serves a session in it without running a program there: its
//! files and its network. The helper is then the task's user, within the task's limits, and holds
//! nothing of the machine but the descriptor of the task's root.
//!
//! Rejected: running a program of the task, `tar` or another. Many tasks have none, and what a task
//! put in its place would be run in its stead.

use crate::driver::DriverError;
use crate::shim::protocol::Launch;
use crate::shim::sandbox::open_group;
use crate::shim::spawn::{close_inherited_fds, drop_privileges};
use cellwright_isolate::container::{Bundle, ContainerId};
use rustix::fs::{Gid, Mode, OFlags, Uid, fstat, open};
use rustix::thread::{
    LinkNameSpaceType, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// Whose view it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// A process of the task, whose root and network are the task's. Absent: those of the machine.
    process: Option<u32>,
    /// The cgroup that this process is in: its pid may be reused.
    group: Option<String>,
    /// The task's folder, as it sees it.
    pub directory: PathBuf,
    /// User and group, as the machine numbers them. Absent: those of the agent.
    identity: Option<(u32, u32)>,
}

impl TaskView {
    /// # Errors
    /// When the task's first process is not known.
    pub fn of(launch: &Launch) -> Result<TaskView, DriverError> {
        let (group, directory) = (launch.group.clone(), launch.directory.clone());
        let Some(container) = &launch.container else {
            return Ok(TaskView { process: None, group, directory, identity: launch.run_as });
        };
        let bundle = Bundle::at(&container.run, &ContainerId::new(&container.id)?);
        let process = Some(bundle.first_process()?);
        Ok(TaskView { process, group, directory, identity: Some(container.owner) })
    }

    /// The root of the task.
    ///
    /// # Errors
    /// When it cannot be opened, or is not the task's any more.
    pub fn open_root(&self) -> io::Result<OwnedFd> {
        let root = match self.process {
            Some(process) => format!("/proc/{process}/root"),
            None => "/".to_owned(),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(&root, flags, Mode::empty())?;
        self.check_process()?;
        Ok(root)
    }

    /// Moves this thread, and those it starts, into the network of the task; returns whether that
    /// is another than the machine's.
    ///
    /// # Errors
    /// When it cannot be entered.
    pub fn enter_network(&self) -> io::Result<bool> {
        let Some(process) = self.process else { return Ok(false) };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let its_own = open(format!("/proc/{process}/ns/net"), flags, Mode::empty())?;
        let ours = open("/proc/self/ns/net", flags, Mode::empty())?;
        self.check_process()?;
        let (one, other) = (fstat(&its_own)?, fstat(&ours)?);
        if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
            return Ok(false);
        }
        move_into_link_name_space(its_own.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(true)
    }

    /// After something of it was opened: a process that is there now was there before.
    fn check_process(&self) -> io::Result<()> {
        let Some(process) = self.process else { return Ok(()) };
        let group = self.group.as_deref().and_then(|path| open_group(path).ok());
        let members = group.and_then(|group| group.processes().ok());
        if members.is_some_and(|all| all.contains(&process)) {
            return Ok(());
        }
        Err(io::Error::other("the task has ended"))
    }

    /// Becomes the task's user, within its limits. Only before this process has other threads.
    ///
    /// # Errors
    /// When the kernel refuses; then nothing must be done for the session.
    pub fn become_user(&self) -> io::Result<()> {
        close_inherited_fds();
        if let Some(path) = &self.group {
            let joined = open_group(path).and_then(|group| group.add(std::process::id()));
            // A container's cgroup may be one that only cgroups are in. What this process needs is
            // small and does not grow, so there it stays outside.
            if self.process.is_none() {
                joined.map_err(io::Error::other)?;
            }
        }
        if let Some((user, group)) = self.identity {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
            set_thread_groups(&[group])?;
            set_thread_res_gid(group, group, group)?;
            set_thread_res_uid(user, user, user)?;
        }
        drop_privileges()
    }
}
