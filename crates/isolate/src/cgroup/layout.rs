//! The machine's cgroup hierarchies, from the list of mounts, and the mount of each controller.

use crate::Error;
use crate::kernel_file;
use crate::mounts::{self, MountEntry};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    Cpu,
    Cpuset,
    Memory,
    Pids,
    Io,
    /// A controller of its own in v1 only; v2 counts CPU time in every group.
    CpuAccount,
    /// In v1 only; v2 freezes by a file in every group.
    Freezer,
    /// In v1 only; in v2 device rules are programs that the container runtime loads.
    Devices,
}

impl Controller {
    pub const ALL: [Controller; 8] = [
        Controller::Cpu,
        Controller::Cpuset,
        Controller::Memory,
        Controller::Pids,
        Controller::Io,
        Controller::CpuAccount,
        Controller::Freezer,
        Controller::Devices,
    ];

    /// The name that v2 uses, and v1 too except for `io` and `cpu-account`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Cpuset => "cpuset",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Io => "io",
            Controller::CpuAccount => "cpuacct",
            Controller::Freezer => "freezer",
            Controller::Devices => "devices",
        }
    }

    fn v1_name(self) -> &'static str {
        if self == Controller::Io { "blkio" } else { self.as_str() }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a controller is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerMount<'a> {
    V1(&'a Path),
    V2(&'a Path),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutKind {
    V1,
    /// v1 controllers beside a unified hierarchy.
    Hybrid,
    V2,
}

impl LayoutKind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LayoutKind::V1 => "v1",
            LayoutKind::Hybrid => "hybrid",
            LayoutKind::V2 => "v2",
        }
    }
}

/// The hierarchies of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    v1: BTreeMap<Controller, PathBuf>,
    /// v1 hierarchies without a controller of ours; a container runtime creates cgroups there too.
    other_v1: Vec<PathBuf>,
    unified: Option<PathBuf>,
    unified_controllers: Vec<Controller>,
}

impl Layout {
    /// # Errors
    /// When nothing is mounted, or the list of mounts cannot be read.
    pub fn detect() -> Result<Layout, Error> {
        Layout::from_mounts(&mounts::list()?, |unified| {
            kernel_file::read(&unified.join("cgroup.controllers"))
        })
    }

    fn from_mounts(
        mounts: &[MountEntry],
        controllers_of: impl Fn(&Path) -> Result<String, Error>,
    ) -> Result<Layout, Error> {
        let mut layout = Layout {
            v1: BTreeMap::new(),
            other_v1: Vec::new(),
            unified: None,
            unified_controllers: Vec::new(),
        };
        for mount in mounts {
            match mount.fs_type.as_str() {
                "cgroup" => layout.add_v1(mount),
                "cgroup2" if layout.unified.is_none() => layout.unified = Some(mount.path.clone()),
                _ => {}
            }
        }
        if let Some(unified) = &layout.unified {
            let text = controllers_of(unified)?;
            let has = |c: &Controller| text.split_whitespace().any(|name| name == c.as_str());
            layout.unified_controllers = Controller::ALL.into_iter().filter(has).collect();
        }
        if layout.unified.is_none() && layout.v1.is_empty() {
            return Err(Error::NoCgroups);
        }
        Ok(layout)
    }

    fn add_v1(&mut self, mount: &MountEntry) {
        let mut is_ours = false;
        for controller in Controller::ALL {
            if mount.options.split(',').any(|option| option == controller.v1_name()) {
                self.v1.entry(controller).or_insert_with(|| mount.path.clone());
                is_ours = true;
            }
        }
        if !is_ours {
            self.other_v1.push(mount.path.clone());
        }
    }

    /// v1 hierarchies for a test.
    #[cfg(test)]
    pub(super) fn of_v1(mounts: &[(Controller, &Path)]) -> Layout {
        let v1 = mounts.iter().map(|(controller, at)| (*controller, at.to_path_buf()));
        let (other_v1, unified_controllers) = (Vec::new(), Vec::new());
        Layout { v1: v1.collect(), other_v1, unified: None, unified_controllers }
    }

    #[must_use]
    pub fn kind(&self) -> LayoutKind {
        match (&self.unified, self.v1.is_empty()) {
            (Some(_), true) => LayoutKind::V2,
            (Some(_), false) => LayoutKind::Hybrid,
            (None, _) => LayoutKind::V1,
        }
    }

    /// `None` when the machine does not have the controller.
    #[must_use]
    pub fn controller_mount(&self, controller: Controller) -> Option<ControllerMount<'_>> {
        let unified = self.unified.as_deref();
        match (self.v1.get(&controller), unified) {
            (Some(mount), _) => Some(ControllerMount::V1(mount)),
            (None, Some(mount)) if self.is_unified(controller) => Some(ControllerMount::V2(mount)),
            _ => None,
        }
    }

    /// v2 counts CPU time without a controller.
    fn is_unified(&self, controller: Controller) -> bool {
        controller == Controller::CpuAccount || self.unified_controllers.contains(&controller)
    }

    /// # Errors
    /// [`Error::NoController`].
    pub(super) fn require(&self, controller: Controller) -> Result<ControllerMount<'_>, Error> {
        self.controller_mount(controller).ok_or(Error::NoController(controller))
    }

    pub(super) fn v1_mount(&self, controller: Controller) -> Option<&Path> {
        self.v1.get(&controller).map(PathBuf::as_path)
    }

    pub(super) fn unified(&self) -> Option<&Path> {
        self.unified.as_deref()
    }

    /// Whether the unified hierarchy is beside v1 hierarchies that have all controllers there are,
    /// so that it has no limits.
    pub(super) fn unified_only_counts(&self) -> bool {
        !self.v1.is_empty() && self.unified_controllers.is_empty()
    }

    /// v1 mounts, each once: controllers can share one.
    pub(super) fn v1_mounts(&self) -> Vec<&Path> {
        let mut mounts: Vec<&Path> = self.v1.values().chain(&self.other_v1).map(|p| &**p).collect();
        mounts.sort_unstable();
        mounts.dedup();
        mounts
    }

    pub(super) fn mounts(&self) -> Vec<&Path> {
        self.v1_mounts().into_iter().chain(self.unified()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 1 0:5 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
25 24 0:21 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
26 24 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
27 24 0:23 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
28 24 0:24 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
29 24 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const V2: &str = "29 24 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

    fn layout(text: &str, controllers: &str) -> Result<Layout, Error> {
        let mounts = mounts::parse(Path::new("mountinfo"), text.as_bytes()).unwrap();
        Layout::from_mounts(&mounts, |_| Ok(controllers.to_owned()))
    }

    #[test]
    fn a_hybrid_machine_limits_by_v1() {
        let found = layout(HYBRID, "").unwrap();
        assert_eq!(found.kind(), LayoutKind::Hybrid);
        let shared = Path::new("/sys/fs/cgroup/cpu,cpuacct");
        assert_eq!(found.controller_mount(Controller::Cpu), Some(ControllerMount::V1(shared)));
        assert_eq!(
            found.controller_mount(Controller::CpuAccount),
            Some(ControllerMount::V1(shared))
        );
        let blkio = Path::new("/sys/fs/cgroup/blkio");
        assert_eq!(found.controller_mount(Controller::Io), Some(ControllerMount::V1(blkio)));
        assert_eq!(found.controller_mount(Controller::Pids), None);
        assert_eq!(found.v1_mounts().len(), 4);
        assert!(found.unified_only_counts());
        assert_eq!(found.mounts().len(), 5);
        let missing = found.require(Controller::Pids).unwrap_err().to_string();
        assert_eq!(missing, "this machine has no pids controller for control groups");
    }

    #[test]
    fn each_controller_is_where_it_is() {
        let found = layout(HYBRID, "pids memory").unwrap();
        let unified = Path::new("/sys/fs/cgroup/unified");
        assert_eq!(found.controller_mount(Controller::Pids), Some(ControllerMount::V2(unified)));
        let memory = Path::new("/sys/fs/cgroup/memory");
        assert_eq!(found.controller_mount(Controller::Memory), Some(ControllerMount::V1(memory)));
        assert!(!found.unified_only_counts());
    }

    #[test]
    fn v2_and_v1_alone_and_nothing() {
        let found = layout(V2, "cpuset cpu io memory hugetlb pids rdma misc").unwrap();
        assert_eq!(found.kind(), LayoutKind::V2);
        assert!(!found.unified_only_counts());
        let root = Path::new("/sys/fs/cgroup");
        let there = [Controller::Cpu, Controller::CpuAccount, Controller::Memory, Controller::Io];
        for controller in there {
            assert_eq!(found.controller_mount(controller), Some(ControllerMount::V2(root)));
        }
        assert_eq!(found.controller_mount(Controller::Freezer), None);
        let v1_only: String = HYBRID.lines().take(5).map(|l| format!("{l}\n")).collect();
        assert_eq!(layout(&v1_only, "").unwrap().kind(), LayoutKind::V1);
        let none = "22 1 0:4 / /proc rw - proc proc rw\n";
        assert!(matches!(layout(none, ""), Err(Error::NoCgroups)));
    }
}
