//! What is set up around a task on the machine: its cgroup, its container, its secrets. The shim
//! tears it down when the task has ended; the agent does, when the shim died before.

use crate::protocol::{Launch, OomCause};
use cellwright_agent_core::book::FinalReading;
use cellwright_isolate::Error;
use cellwright_isolate::cgroup::{Group, GroupPath, Layout, OomCounts, OomVerdict, Tree};
use cellwright_isolate::container::{Bundle, ContainerId, Runc, Runtime};
use rustix::process::Pid;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The sandbox of one task; all parts may be missing.
#[derive(Debug, Default)]
pub struct Sandbox {
    pub group: Option<Group>,
    pub container: Option<(Runc, Bundle)>,
    /// Folders of its secrets and its identity.
    secret_dirs: Vec<PathBuf>,
}

/// Whether processes are still inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// [`Sandbox::kill`] found it empty.
    Empty,
    /// Not checked: a start may have been cut short.
    Unknown,
}

impl Sandbox {
    /// The sandbox that `launch` describes, whether it is there or not.
    ///
    /// # Errors
    /// When the machine has no cgroups, or a name is invalid.
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
            [&launch.secrets, &launch.identity_dir].into_iter().flatten().cloned().collect();
        Ok(Sandbox { group, container, secret_dirs })
    }

    /// Kills all processes in the cgroup. True when it was found empty.
    pub fn kill(&self) -> bool {
        match &self.group {
            // The caller, which has other work too, checks for remaining processes again.
            Some(group) => group.kill(Duration::ZERO).is_ok(),
            None => true,
        }
    }

    /// Adds a program that joined its cgroup by itself, and was not reaped, to all hierarchies.
    pub fn count_in_all_hierarchies(&self, program: Pid) {
        let entered = self.group.as_ref().filter(|_| self.container.is_none());
        if let (Some(group), Ok(pid)) = (entered, u32::try_from(program.as_raw_nonzero().get())) {
            // Limits and kills work without it; only the accounting of its CPU stalls is lost.
            let _ = group.count_members(pid);
        }
    }

    /// What the task had used when the last of its processes was gone, from its cgroup. Without
    /// one, from this process, which has reaped all of them; the kernel rounds that to a hundredth
    /// of a second.
    pub fn final_reading(&self, started: u64, ended: u64) -> FinalReading {
        self.group_reading(started, ended).unwrap_or_else(|| {
            let ticks = crate::proc::reaped_ticks().unwrap_or(0);
            let second = rustix::param::clock_ticks_per_second().max(1);
            let cpu_micros = ticks.saturating_mul(1_000_000) / second;
            FinalReading { started, ended, cpu_micros, io_bytes: 0, ram_peak: 0 }
        })
    }

    /// The counters of its cgroup; nothing when it has none, or none that can be read.
    #[must_use]
    pub fn group_reading(&self, started: u64, ended: u64) -> Option<FinalReading> {
        let usage = self.group.as_ref()?.usage().ok()?;
        Some(FinalReading {
            started,
            ended,
            cpu_micros: u64::try_from(usage.cpu.as_micros()).unwrap_or(u64::MAX),
            io_bytes: usage.io_read.saturating_add(usage.io_written),
            ram_peak: usage.memory_peak.unwrap_or(0),
        })
    }

    /// Out-of-memory kills in the cgroup so far.
    pub fn memory(&self) -> OomCause {
        let counts = self.group.as_ref().and_then(|group| group.oom_counts().ok());
        match counts.map(|counts| counts.since(OomCounts::default())) {
            Some(OomVerdict::OwnLimit) => OomCause::OwnLimit,
            Some(OomVerdict::Bystander) => OomCause::Bystander,
            Some(OomVerdict::None) | None => OomCause::Nothing,
        }
    }

    /// Tears the sandbox down, once it is empty; processes that may remain are killed with it.
    /// Returns what could not be removed, which is left to the next start of the agent.
    pub fn tear_down(&self, occupancy: Occupancy) -> Vec<String> {
        let mut leftovers = Vec::new();
        if let Some((runtime, bundle)) = &self.container {
            let result = match occupancy {
                Occupancy::Empty => runtime.forget(bundle.id()),
                Occupancy::Unknown => runtime.delete(bundle.id()),
            };
            leftovers.extend(result.err().map(|error| error.to_string()));
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

/// Removes a folder with all its content. One that is not there is fine.
///
/// # Errors
/// When the disk refuses.
pub fn remove_dir(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A cgroup by its path in the hierarchies.
///
/// # Errors
/// When the machine has no cgroups, or the path is invalid.
pub fn open_group(path: &str) -> Result<Group, Error> {
    Ok(Tree::new(Layout::detect()?, GroupPath::new(path)?).base())
}
