//! Creating, limiting, reading and removing cgroups, for both versions.

use super::CpuList;
use super::group_path::GroupPath;
use super::kill;
use super::layout::{Controller, ControllerMount, Layout};
use super::limits::{BlockDevice, Limits};
use super::{GroupUsage, OomCounts, v1, v2};
use crate::Error;
use crate::kernel_file::{number, read, write};
use rustix::process::Signal;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Controllers that v2 cgroups delegate to those inside them.
const DELEGATED: [Controller; 5] =
    [Controller::Cpu, Controller::Cpuset, Controller::Memory, Controller::Pids, Controller::Io];

/// All cgroups of one agent, below one base.
#[derive(Clone, Debug)]
pub struct Tree {
    layout: Arc<Layout>,
    base: GroupPath,
}

impl Tree {
    #[must_use]
    pub fn new(layout: Layout, base: GroupPath) -> Tree {
        Tree { layout: Arc::new(layout), base }
    }

    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A handle; nothing is created.
    ///
    /// # Errors
    /// When `name` is not one plain name.
    pub fn group(&self, name: &str) -> Result<Group, Error> {
        Ok(self.at(self.base.child(name)?))
    }

    /// The cgroup around all others.
    #[must_use]
    pub fn base(&self) -> Group {
        self.at(self.base.clone())
    }

    /// The cgroup of this path, which may be outside of the base.
    #[must_use]
    pub fn at(&self, path: GroupPath) -> Group {
        Group { layout: self.layout.clone(), path }
    }

    /// Names of the cgroups directly below the base, in any hierarchy: after a crash, orphaned ones
    /// are found here.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for mount in self.layout.mounts() {
            for child in children(&self.base.directory_in(mount))? {
                names.extend(child.file_name().and_then(|n| n.to_str()).map(str::to_owned));
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

/// One cgroup in all hierarchies.
#[derive(Clone, Debug)]
pub struct Group {
    layout: Arc<Layout>,
    path: GroupPath,
}

impl Group {
    #[must_use]
    pub fn path(&self) -> &GroupPath {
        &self.path
    }

    /// A cgroup inside this one. In v2 a cgroup with members may not have limited cgroups inside
    /// it, so one holds either processes or cgroups.
    ///
    /// # Errors
    /// When `name` is not one plain name.
    pub fn child(&self, name: &str) -> Result<Group, Error> {
        Ok(Group { layout: self.layout.clone(), path: self.path.child(name)? })
    }

    /// Creates the cgroup and those around it. One that is there already is fine.
    ///
    /// # Errors
    /// When the kernel refuses, mostly for lack of permission.
    pub fn create(&self) -> Result<(), Error> {
        for mount in self.layout.v1_mounts() {
            // Those around it are there, except for the first time and after they were removed.
            if !self.make_v1(mount, &self.path)? {
                for step in self.path.lineage() {
                    create_dir(&step.directory_in(mount))?;
                    self.make_v1(mount, &step)?;
                }
            }
        }
        let Some(unified) = self.layout.unified() else { return Ok(()) };
        if self.layout.unified_only_counts()
            && create_if_parent_exists(&self.path.directory_in(unified))?
        {
            return Ok(());
        }
        let mut directory = unified.to_owned();
        for step in self.path.lineage() {
            v2::delegate_controllers(&directory, &DELEGATED)?;
            directory = step.directory_in(unified);
            create_dir(&directory)?;
        }
        Ok(())
    }

    /// Creates the cgroup of this path in a v1 hierarchy. False when there is none around it.
    fn make_v1(&self, mount: &Path, path: &GroupPath) -> Result<bool, Error> {
        let directory = path.directory_in(mount);
        if !create_if_parent_exists(&directory)? {
            return Ok(false);
        }
        if Some(mount) == self.layout.v1_mount(Controller::Cpuset) {
            v1::inherit_cpuset(&directory)?;
        }
        if Some(mount) == self.layout.v1_mount(Controller::Memory) {
            v1::use_hierarchy(&directory)?;
        }
        Ok(true)
    }

    /// Creates a cgroup inside this one for some of its own processes: it has no limits but those
    /// around it, which is why v2 lets it be beside members.
    ///
    /// # Errors
    /// When `name` is not one plain name, or the kernel refuses.
    pub fn create_nested(&self, name: &str) -> Result<Group, Error> {
        let inner = self.child(name)?;
        for mount in self.layout.mounts() {
            let directory = inner.path.directory_in(mount);
            create_dir(&directory)?;
            if Some(mount) == self.layout.v1_mount(Controller::Cpuset) {
                v1::inherit_cpuset(&directory)?;
            }
        }
        Ok(inner)
    }

    /// Sets the given limits. Returns the controllers that they need and the machine does not have:
    /// what these would have limited is not limited, which has to be reported.
    ///
    /// # Errors
    /// When a value is out of range or the kernel refuses it.
    pub fn apply(&self, limits: &Limits) -> Result<Vec<Controller>, Error> {
        let mut missing = Vec::new();
        let mut record = |result: Result<(), Error>| match result {
            Err(Error::NoController(controller)) => {
                missing.push(controller);
                Ok(())
            }
            other => other,
        };
        if limits.cpu_idle {
            record(self.set_cpu_idle(true))?;
        } else if let Some(weight) = limits.cpu_weight {
            record(self.set_cpu_weight(weight))?;
        }
        if limits.cpu_cap.is_some() {
            record(self.set_cpu_cap(limits.cpu_cap))?;
        }
        if limits.memory_limit.is_some() {
            record(self.set_memory_limit(limits.memory_limit))?;
        }
        if limits.pids_max.is_some() {
            record(self.set_pids_max(limits.pids_max))?;
        }
        if let Some(cpus) = &limits.cpus {
            record(self.set_cpus(cpus))?;
        }
        missing.dedup();
        Ok(missing)
    }

    fn with_controller<T>(
        &self,
        controller: Controller,
        on_v1: impl FnOnce(&Path) -> Result<T, Error>,
        on_v2: impl FnOnce(&Path) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.layout.require(controller)? {
            ControllerMount::V1(mount) => on_v1(&self.path.directory_in(mount)),
            ControllerMount::V2(mount) => on_v2(&self.path.directory_in(mount)),
        }
    }

    /// # Errors
    /// Out of 1 to 10000; refused by a cgroup that is idle.
    pub fn set_cpu_weight(&self, weight: u64) -> Result<(), Error> {
        self.with_controller(
            Controller::Cpu,
            |group| v1::set_cpu_weight(group, weight),
            |group| v2::set_cpu_weight(group, weight),
        )
    }

    /// An idle cgroup gets the CPU time that no other wants and is preempted at once, which a small
    /// weight alone does not give. Kernels before 5.15 have nothing better than that weight.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_cpu_idle(&self, idle: bool) -> Result<(), Error> {
        let switch = |group: &Path| Some(group.join("cpu.idle")).filter(|path| path.exists());
        match self.with_controller(
            Controller::Cpu,
            |group| Ok(switch(group)),
            |group| Ok(switch(group)),
        )? {
            Some(path) => write(&path, if idle { "1" } else { "0" }),
            None => self.set_cpu_weight(if idle { 1 } else { 100 }),
        }
    }

    /// `None` lifts the cap.
    ///
    /// # Errors
    /// When the cap is 0.
    pub fn set_cpu_cap(&self, milli_cores: Option<u64>) -> Result<(), Error> {
        self.with_controller(
            Controller::Cpu,
            |group| v1::set_cpu_cap(group, milli_cores),
            |group| v2::set_cpu_cap(group, milli_cores),
        )
    }

    /// # Errors
    /// v1 refuses a limit below the used memory that cannot be reclaimed.
    pub fn set_memory_limit(&self, bytes: Option<u64>) -> Result<(), Error> {
        self.with_controller(
            Controller::Memory,
            |group| v1::set_memory_limit(group, bytes),
            |group| v2::set_memory_limit(group, bytes),
        )
    }

    /// Lowers the memory limit to `bytes`, unless that is below what the cgroup could not give
    /// back: a kernel with v2 would kill for it. Returns whether it was lowered.
    ///
    /// # Errors
    /// When the kernel refuses for another reason.
    pub fn lower_memory_limit(&self, bytes: u64) -> Result<bool, Error> {
        self.with_controller(
            Controller::Memory,
            |group| v1::lower_memory_limit(group, bytes),
            |group| v2::lower_memory_limit(group, bytes),
        )
    }

    /// Memory up to `protect` is reclaimed last; above `throttle` the cgroup is made to free some
    /// first. v1 has one soft limit for both, and the throttle counts where there is one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_memory_soft(&self, protect: u64, throttle: Option<u64>) -> Result<(), Error> {
        self.with_controller(
            Controller::Memory,
            |group| v1::set_memory_soft(group, throttle.or((protect > 0).then_some(protect))),
            |group| {
                v2::set_memory_protection(group, protect)?;
                v2::set_memory_throttle(group, throttle)
            },
        )
    }

    /// # Errors
    /// When the kernel refuses.
    pub fn set_pids_max(&self, most: Option<u64>) -> Result<(), Error> {
        let value = most.map_or("max".to_owned(), |most| most.to_string());
        let set = |group: &Path| write(&group.join("pids.max"), &value);
        self.with_controller(Controller::Pids, set, set)
    }

    /// # Errors
    /// When the list is empty or has a CPU that the parent cgroup does not have.
    pub fn set_cpus(&self, cpus: &CpuList) -> Result<(), Error> {
        if cpus.is_empty() {
            return Err(Error::invalid("CPUs", "", "at least one"));
        }
        self.with_controller(
            Controller::Cpuset,
            |group| v1::set_cpus(group, cpus),
            |group| v2::set_cpus(group, cpus),
        )
    }

    /// Bytes a second that may be read from, and written to, `disk`; `None` lifts it.
    ///
    /// # Errors
    /// When the rate is 0 or the kernel refuses.
    pub fn set_io_cap(&self, disk: BlockDevice, rate: Option<u64>) -> Result<(), Error> {
        if rate == Some(0) {
            return Err(Error::invalid("disk rate cap", 0, "1 byte a second or more, or none"));
        }
        self.with_controller(
            Controller::Io,
            |group| v1::set_io_cap(group, disk, rate),
            |group| v2::set_io_cap(group, disk, rate),
        )
    }

    /// Moves a process here, in every hierarchy. What it forks from now on is here too.
    ///
    /// # Errors
    /// When there is no such process, or the kernel refuses.
    pub fn add(&self, pid: u32) -> Result<(), Error> {
        for mount in self.layout.mounts() {
            write(&self.path.directory_in(mount).join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// # Errors
    /// When a file is missing or cannot be parsed.
    pub fn usage(&self) -> Result<GroupUsage, Error> {
        let mut usage = GroupUsage::default();
        type Read = fn(&Path, &mut GroupUsage) -> Result<(), Error>;
        let readers: [(Controller, Read, Read); 4] = [
            (Controller::Cpu, v1::read_cpu, v2::read_cpu),
            (Controller::CpuAccount, v1::read_cpu_account, v2::read_cpu_account),
            (Controller::Memory, v1::read_memory, v2::read_memory),
            (Controller::Io, v1::read_io, v2::read_io),
        ];
        let counts =
            matches!(self.layout.controller_mount(Controller::Cpu), Some(ControllerMount::V2(_)));
        for (controller, on_v1, on_v2) in readers {
            match self.layout.controller_mount(controller) {
                // One file of v2 has both, and was read already.
                Some(ControllerMount::V2(_)) if controller == Controller::CpuAccount && counts => {}
                Some(ControllerMount::V1(mount)) => {
                    on_v1(&self.path.directory_in(mount), &mut usage)?
                }
                Some(ControllerMount::V2(mount)) => {
                    on_v2(&self.path.directory_in(mount), &mut usage)?
                }
                None => {}
            }
        }
        if let Some(unified) = self.layout.unified() {
            v2::read_pressure(&self.path.directory_in(unified), &mut usage)?;
        }
        if let Some(ControllerMount::V1(mount) | ControllerMount::V2(mount)) =
            self.layout.controller_mount(Controller::Pids)
        {
            let path = self.path.directory_in(mount).join("pids.current");
            usage.threads = Some(number(&path, &read(&path)?)?);
        }
        Ok(usage)
    }

    /// How often memory ran out, which is one file of the many that [`Group::usage`] reads.
    ///
    /// # Errors
    /// When a file is missing or cannot be parsed.
    pub fn oom_counts(&self) -> Result<OomCounts, Error> {
        self.with_controller(Controller::Memory, v1::oom_counts, v2::oom_counts)
    }

    /// As [`Group::usage`], where a cgroup that has had no CPU since `before` is taken to be as it
    /// was: without CPU it neither allocates memory nor writes. One file is read then instead of
    /// many.
    ///
    /// # Errors
    /// As [`Group::usage`].
    pub fn usage_after(&self, before: GroupUsage) -> Result<GroupUsage, Error> {
        let mut now = GroupUsage::default();
        match self.layout.controller_mount(Controller::CpuAccount) {
            Some(ControllerMount::V1(mount)) => {
                v1::read_cpu_account(&self.path.directory_in(mount), &mut now)?
            }
            Some(ControllerMount::V2(mount)) => {
                v2::read_cpu_account(&self.path.directory_in(mount), &mut now)?
            }
            None => return self.usage(),
        }
        if now.cpu == before.cpu { Ok(before) } else { self.usage() }
    }

    /// Processes of the cgroup and of those inside it, ascending.
    ///
    /// # Errors
    /// When the cgroup cannot be read. One that is gone has none.
    pub fn processes(&self) -> Result<Vec<u32>, Error> {
        kill::processes(&self.directories())
    }

    /// Sends `signal` to all current processes of the cgroup.
    ///
    /// # Errors
    /// When the cgroup cannot be read.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        kill::signal(&self.directories(), signal).map(|_| ())
    }

    /// Kills all processes of the cgroup, however fast they fork, and waits until it is found
    /// empty.
    ///
    /// # Errors
    /// [`Error::StillAlive`] when that took longer than `timeout`.
    pub fn kill(&self, timeout: Duration) -> Result<(), Error> {
        if self.layout.controller_mount(Controller::Pids).is_some() && self.exists() {
            // No new member from here on; a fork bomb loses the race at once. Where that does not
            // work (a crash may have left the cgroup in some hierarchies and not in this one), it
            // is killed all the same, if later.
            let _ = self.set_pids_max(Some(0));
        }
        kill::kill(self, timeout)
    }

    /// Freezes all threads of the cgroup, or thaws them.
    ///
    /// # Errors
    /// [`Error::NotFrozen`] when they did not come to a stop within `timeout`.
    pub fn freeze(&self, frozen: bool, timeout: Duration) -> Result<(), Error> {
        kill::freeze(self, frozen, timeout)
    }

    #[must_use]
    pub fn exists(&self) -> bool {
        self.directories().iter().any(|directory| directory.exists())
    }

    /// Removes the cgroup and those inside it, innermost first. One that is not there is fine.
    ///
    /// # Errors
    /// When it still has members.
    pub fn remove(&self) -> Result<(), Error> {
        self.directories().iter().try_for_each(|directory| remove(directory))
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn directories(&self) -> Vec<PathBuf> {
        self.layout.mounts().into_iter().map(|mount| self.path.directory_in(mount)).collect()
    }

    /// Its directory in the unified hierarchy, where there is one and the cgroup is in it.
    pub(super) fn unified(&self) -> Option<PathBuf> {
        self.layout
            .unified()
            .map(|mount| self.path.directory_in(mount))
            .filter(|path| path.exists())
    }

    pub(super) fn freezer(&self) -> Option<PathBuf> {
        self.layout.v1_mount(Controller::Freezer).map(|mount| self.path.directory_in(mount))
    }

    /// Whether the kernel counts members; `None` where it does not report it.
    pub(super) fn populated(&self) -> Result<Option<bool>, Error> {
        let Some(unified) = self.unified() else { return Ok(None) };
        let text = read(&unified.join("cgroup.events"))?;
        Ok(Some(text.lines().any(|line| line == "populated 1")))
    }
}

/// False when the parent directory is not there.
fn create_if_parent_exists(directory: &Path) -> Result<bool, Error> {
    match fs::create_dir(directory) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(_) => create_dir(directory).map(|()| true),
    }
}

fn create_dir(directory: &Path) -> Result<(), Error> {
    match fs::create_dir(directory) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        Err(e) => Err(Error::file("make", directory)(e)),
    }
}

fn remove(directory: &Path) -> Result<(), Error> {
    // Few have others inside.
    if fs::remove_dir(directory).is_ok() {
        return Ok(());
    }
    for child in children(directory)? {
        remove(&child)?;
    }
    match fs::remove_dir(directory) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::file("remove", directory)(e)),
    }
}

/// Links of a directory without subdirectories: its name, and its own entry for itself. File
/// systems that do not count say 1.
const LEAF_LINK_COUNT: u64 = 2;

/// Cgroups directly inside; none when the directory is not there.
pub(super) fn children(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    // A cgroup has dozens of files, and few have others inside.
    if fs::symlink_metadata(directory).is_ok_and(|about| about.nlink() == LEAF_LINK_COUNT) {
        return Ok(Vec::new());
    }
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::file("list", directory)(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::file("list", directory))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// A cgroup that is in one hierarchy and not in the one of `pids`.
    fn partial_group(base: &Path, pid: u32) -> Group {
        let (memory, pids) = (base.join("memory"), base.join("pids"));
        fs::create_dir_all(memory.join("x")).unwrap();
        fs::create_dir_all(&pids).unwrap();
        fs::write(memory.join("x/cgroup.procs"), format!("{pid}\n")).unwrap();
        let mounts = [(Controller::Memory, memory.as_path()), (Controller::Pids, pids.as_path())];
        Tree::new(Layout::of_v1(&mounts), GroupPath::new("x").unwrap()).base()
    }

    #[test]
    fn a_group_that_is_torn_is_killed_all_the_same() {
        let base = std::env::temp_dir().join(format!("cellwright-torn-{}", std::process::id()));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let group = partial_group(&base, child.id());
        // The list of members is a plain file here, so no process ever leaves it.
        let killed = group.kill(Duration::ZERO);
        assert!(matches!(killed, Err(Error::StillAlive { .. })), "{killed:?}");
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        fs::remove_dir_all(base).unwrap();
    }
}
