//! What stands around a task on the machine: its control group, its container, its secrets. The
//! shim takes them down when the task has ended; the agent does, when the shim did not live to.

use crate::protocol::{Launch, OomCause};
use cellwright_isolate::Error;
use cellwright_isolate::cgroup::{Group, GroupPath, Layout, OomCounts, OomVerdict, Tree};
use cellwright_isolate::container::{Bundle, ContainerId, Runc, Runtime};
use rustix::process::Pid;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The walls of one task; all of them may be missing.
#[derive(Debug, Default)]
pub struct Sandbox {
    pub group: Option<Group>,
    pub container: Option<(Runc, Bundle)>,
    /// Folders of its secrets and its identity.
    secret_dirs: Vec<PathBuf>,
}

/// Who is still within the walls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// [`Sandbox::kill`] saw it empty.
    Empty,
    /// Nobody looked: a start may have been cut short.
    Unknown,
}

impl Sandbox {
    /// What `launch` says is around its program, whether it is there or not.
    ///
    /// # Errors
    /// When the machine has no control groups, or a name cannot be one.
    pub fn of(launch: &Launch) -> Result<Sandbox, Error> {
        let group = launch.group.as_deref().map(open_group).transpose()?;
        let container = match &launch.container {
            Some(at) => {
                let bundle = Bundle::at(&at.run, &ContainerId::new(&at.id)?);
                Some((Runc::new(&at.runtime, &at.state), bundle))
            }
            None => None,
        };
        let secret_dirs =
            [&launch.secrets, &launch.papers].into_iter().flatten().cloned().collect();
        Ok(Sandbox { group, container, secret_dirs })
    }

    /// Kills all there is in the group. True when it was seen empty.
    pub fn kill(&self) -> bool {
        match &self.group {
            // Whoever is still there is looked at again by the caller, who has other work too.
            Some(group) => group.kill(Duration::ZERO).is_ok(),
            None => true,
        }
    }

    /// Has all hierarchies know of a program that entered its group by itself, and was not reaped.
    pub fn count_in_all_hierarchies(&self, program: Pid) {
        let entered = self.group.as_ref().filter(|_| self.container.is_none());
        if let (Some(group), Ok(pid)) = (entered, u32::try_from(program.as_raw_nonzero().get())) {
            // Limits and kills do without it; what is lost is a count of how long it waits.
            let _ = group.count_members(pid);
        }
    }

    /// What memory had to do with what happened to the group so far.
    pub fn memory(&self) -> OomCause {
        let counts = self.group.as_ref().and_then(|group| group.oom_counts().ok());
        match counts.map(|counts| counts.since(OomCounts::default())) {
            Some(OomVerdict::OwnLimit) => OomCause::OwnLimit,
            Some(OomVerdict::Bystander) => OomCause::Bystander,
            Some(OomVerdict::None) | None => OomCause::Nothing,
        }
    }

    /// Takes the walls down, once nobody is inside; whoever was not seen gone goes with them. What
    /// does not go is said and left to the next start of the agent.
    pub fn tear_down(&self, occupancy: Occupancy) -> Vec<String> {
        let mut leftovers = Vec::new();
        if let Some((runtime, bundle)) = &self.container {
            let gone = match occupancy {
                Occupancy::Empty => runtime.forget(bundle.id()),
                Occupancy::Unknown => runtime.delete(bundle.id()),
            };
            leftovers.extend(gone.err().map(|error| error.to_string()));
            leftovers.extend(bundle.remove().err().map(|error| error.to_string()));
        }
        if let Some(group) = &self.group {
            leftovers.extend(group.remove().err().map(|error| error.to_string()));
        }
        for folder in &self.secret_dirs {
            let removed = remove_dir(folder);
            leftovers.extend(removed.err().map(|why| format!("{}: {why}", folder.display())));
        }
        leftovers
    }
}

/// Removes a folder with all that is in it. One that is not there is fine.
///
/// # Errors
/// When the disk refuses.
pub fn remove_dir(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A group by its path in the hierarchies.
///
/// # Errors
/// When the machine has no control groups, or the path cannot be one.
pub fn open_group(path: &str) -> Result<Group, Error> {
    Ok(Tree::new(Layout::detect()?, GroupPath::new(path)?).base())
}
