//! Probes whether containers work here, by trying, with all the reasons when they do not: an
//! operator who fixes one thing should not find the next only after a restart.

use super::bundle::mount_overlay;
use super::runtime::Runtime;
use super::spec::IdRange;
use super::users::{IdMap, UserNsOwner, pin_namespace};
use crate::cgroup::Layout;
use crate::{Error, mounts};
use std::fmt;
use std::fs;
use std::path::Path;

/// The first runc that knows the action of our seccomp filter's rules for kills
/// (`SCMP_ACT_KILL_PROCESS`): an earlier one would reject every container.
const MIN_RUNC: (u32, u32, u32) = (1, 1, 3);

/// Why containers do not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    NotRoot { uid: u32 },
    NoRuntime { error: String },
    OldRuntime { runtime: String },
    NoOverlay { error: String },
    NoCgroups { error: String },
    NoUsers { error: String },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotRoot { uid } => write!(f, "the agent runs as user {uid}, not as root"),
            Obstacle::NoRuntime { error } => write!(f, "no container runtime: {error}"),
            Obstacle::OldRuntime { runtime } => {
                let (major, minor, patch) = MIN_RUNC;
                write!(f, "the container runtime is too old: {runtime}; allowed: runc ")?;
                write!(f, "{major}.{minor}.{patch} or later")
            }
            Obstacle::NoOverlay { error } => write!(f, "no overlay file system: {error}"),
            Obstacle::NoCgroups { error } => write!(f, "no control groups: {error}"),
            Obstacle::NoUsers { error } => write!(f, "no namespaces of users: {error}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    Ready {
        runtime: String,
        /// Who can create user namespaces here.
        userns_owner: UserNsOwner,
    },
    Off {
        obstacles: Vec<Obstacle>,
    },
}

impl Probe {
    /// Why not, in one line; `None` when containers work.
    #[must_use]
    pub fn unavailable_reason(&self) -> Option<String> {
        let Probe::Off { obstacles } = self else { return None };
        let texts: Vec<String> = obstacles.iter().map(Obstacle::to_string).collect();
        Some(texts.join("; "))
    }
}

/// Tries everything that a container needs, with bundles below `run`.
#[must_use]
pub fn probe(runtime: &dyn Runtime, run: &Path) -> Probe {
    let uid = rustix::process::geteuid().as_raw();
    let mut obstacles = Vec::new();
    if uid != 0 {
        obstacles.push(Obstacle::NotRoot { uid });
    }
    if let Err(e) = Layout::detect() {
        obstacles.push(Obstacle::NoCgroups { error: e.to_string() });
    }
    // Without root the try below would fail for that reason with a misleading message.
    if let (0, Err(e)) = (uid, try_overlay(&run.join("probe"))) {
        obstacles.push(Obstacle::NoOverlay { error: e.to_string() });
    }
    let mut userns_owner = UserNsOwner::default();
    match try_users(&run.join("probe")) {
        Ok(found) => userns_owner = found,
        Err(e) if uid == 0 => obstacles.push(Obstacle::NoUsers { error: e.to_string() }),
        Err(_) => {}
    }
    let version = runtime.version();
    if let Ok(runtime) = &version
        && is_too_old(runtime)
    {
        obstacles.push(Obstacle::OldRuntime { runtime: runtime.clone() });
    }
    match version {
        Ok(runtime) if obstacles.is_empty() => {
            Probe::Ready { runtime: with_vulnerabilities(&runtime), userns_owner }
        }
        Ok(_) => Probe::Off { obstacles },
        Err(e) => {
            obstacles.push(Obstacle::NoRuntime { error: e.to_string() });
            Probe::Off { obstacles }
        }
    }
}

/// The known vulnerabilities of a version of runc, in its text. Not an obstacle: distributions fix
/// them without changing the number, and only their users know.
fn with_vulnerabilities(runtime: &str) -> String {
    match missing_fixes(runtime) {
        Some(missing) => {
            format!("{runtime} (open to {missing}, unless your distribution mended it)")
        }
        None => runtime.to_owned(),
    }
}

/// Vulnerabilities through which a task can escape, by the first versions without them.
fn missing_fixes(runtime: &str) -> Option<&'static str> {
    match runc_version(runtime)? {
        (1, 1, patch) if patch >= 12 => Some("CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881"),
        (1, 2, 8..) | (1, 3, 3..) | (1, 4.., _) | (2.., ..) => None,
        (1, 2.., _) => Some("CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881"),
        _ => Some("CVE-2024-21626, CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881"),
    }
}

/// A runtime of another name, or without a version number, is accepted.
fn is_too_old(runtime: &str) -> bool {
    runc_version(runtime).is_some_and(|version| version < MIN_RUNC)
}

fn runc_version(runtime: &str) -> Option<(u32, u32, u32)> {
    let version = runtime.strip_prefix("runc version ")?;
    let mut numbers = version.split(|sign: char| !sign.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    Some((next()?, next()?, next().unwrap_or(0)))
}

/// Some file systems cannot be the upper layer of an overlay, so only mounting one tells.
fn try_overlay(directory: &Path) -> Result<(), Error> {
    mounts::remove_tree(directory)?;
    let parts = ["lower", "upper", "work", "at"].map(|name| directory.join(name));
    for part in &parts {
        fs::create_dir_all(part).map_err(Error::file("make", part))?;
    }
    let [lower, upper, work, at] = parts.each_ref().map(|part| part.display());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let tried = mount_overlay(Path::new(&at.to_string()), &options);
    mounts::remove_tree(directory)?;
    tried
}

/// Some kernels let only root create user namespaces, and some let no one.
fn try_users(directory: &Path) -> Result<UserNsOwner, Error> {
    // Any numbers but root's do.
    let map = IdMap::shifted(IdRange { first: 0x7fff_0000, count: 1 });
    let attempt = |userns_owner: UserNsOwner| {
        mounts::remove_tree(directory)?;
        fs::create_dir_all(directory).map_err(Error::file("make", directory))?;
        let tried = pin_namespace(&map, userns_owner, &directory.join("users"));
        mounts::remove_tree(directory)?;
        tried.map(|()| userns_owner)
    };
    attempt(UserNsOwner::FirstOfRange).or_else(|_| attempt(UserNsOwner::Root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::Runc;

    #[test]
    fn holes_of_a_version_are_named() {
        let missing =
            |version: &str| missing_fixes(&format!("runc version {version}")).map(str::len);
        let (all, late) = (missing("1.1.5+ds1"), missing("1.1.12"));
        assert!(all > late && late.is_some());
        assert_eq!((missing("1.2.7"), missing("1.3.2"), missing("1.0.0-rc93")), (late, late, all));
        for fixed in ["1.2.8", "1.3.3", "1.4.0", "1.10.1", "2.0.0"] {
            assert_eq!(missing(fixed), None, "{fixed}");
        }
        assert_eq!(missing_fixes("crun version 1.8"), None);
    }

    #[test]
    fn a_runtime_that_would_refuse_the_filter_is_an_obstacle() {
        for old in ["1.0.0-rc93", "1.0.3", "1.1.0", "1.1.2+ds1"] {
            assert!(is_too_old(&format!("runc version {old}")), "{old}");
        }
        for new in ["1.1.3", "1.1.5+ds1", "1.2.0-rc.1", "1.10.0", "2.0.0", "unknown"] {
            assert!(!is_too_old(&format!("runc version {new}")), "{new}");
        }
        assert!(!is_too_old("crun version 1.0.1"));
        let old = Obstacle::OldRuntime { runtime: "runc version 1.1.2".into() };
        let why = Probe::Off { obstacles: vec![old] }.unavailable_reason().unwrap_or_default();
        assert!(why.ends_with("runc version 1.1.2; allowed: runc 1.1.3 or later"), "{why}");
    }

    #[test]
    fn every_obstacle_is_named() {
        let run = std::env::temp_dir().join(format!("cellwright-probe-{}", std::process::id()));
        let runc = Runc::new("/no/such/runtime", run.join("state"));
        let why = probe(&runc, &run).unavailable_reason().expect("there is no such runtime");
        assert!(why.contains("no container runtime: cannot run /no/such/runtime"), "{why}");
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(why.contains("not as root"), !is_root, "{why}");
        assert!(!run.join("probe").exists());
        mounts::remove_tree(&run).unwrap();
    }
}
