//! Containers: a task with its own file system, process list, host name and, on request, network,
//! and with no privilege that it could use against the machine.
//!
//! A [`ContainerSpec`] becomes a [`Bundle`] on disk (a root filesystem over the packages, and a
//! config in the OCI format), from which an OCI runtime behind [`Runtime`] starts a process.
//! Rejected: entering namespaces ourselves, which takes unsafe code and years of escapes to learn
//! from; a library runtime in our process, because a fork of a threaded process is fragile.
//!
//! How a shim uses it, so that it is the parent that learns the exit status: become the subreaper,
//! create the cgroup, prepare the bundle, [`Runtime::run`] (which returns the process, in its
//! cgroup since before its first instruction), wait for the process, read the cgroup's usage, kill
//! the cgroup, [`Runtime::forget`], [`Bundle::remove`].

mod bundle;
mod config;
mod device;
mod host_volume;
mod orphans;
mod probe;
mod runtime;
mod seccomp;
mod spec;
mod users;

pub use bundle::{Bundle, is_world_traversable, write_private};
pub use device::DeviceNode;
pub use host_volume::PinnedHostPath;
pub use orphans::{SweepReport, sweep};
pub use probe::{Obstacle, Probe, probe};
pub use runtime::{Exec, Runc, Runtime, Streams};
pub use spec::{
    Bind, ContainerId, ContainerSpec, HostVolumeMount, IdRange, Network, Rlimit, RlimitKind,
    Scratch, User,
};
pub use users::{IdMap, UserNsOwner};
