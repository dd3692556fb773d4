//! Whether containers work here, found out by trying, with all the reasons when they do not: an
//! operator who fixes one thing should not meet the next only after a restart.

use super::bundle::mount_overlay;
use super::runtime::Runtime;
use crate::cgroup::Layout;
use crate::{Error, mounts};
use std::fmt;
use std::fs;
use std::path::Path;

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    NotRoot { uid: u32 },
    NoRuntime { error: String },
    NoOverlay { error: String },
    NoCgroups { error: String },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotRoot { uid } => write!(f, "the agent runs as user {uid}, not as root"),
            Obstacle::NoRuntime { error } => write!(f, "no container runtime: {error}"),
            Obstacle::NoOverlay { error } => write!(f, "no overlay file system: {error}"),
            Obstacle::NoCgroups { error } => write!(f, "no control groups: {error}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    Ready { runtime: String },
    Off { obstacles: Vec<Obstacle> },
}

impl Probe {
    /// Why not, in one line; `None` when containers work.
    #[must_use]
    pub fn why_not(&self) -> Option<String> {
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
    // Without root the try below would fail for that reason and say something misleading.
    if let (0, Err(e)) = (uid, try_overlay(&run.join("probe"))) {
        obstacles.push(Obstacle::NoOverlay { error: e.to_string() });
    }
    match runtime.version() {
        Ok(runtime) if obstacles.is_empty() => Probe::Ready { runtime },
        Ok(_) => Probe::Off { obstacles },
        Err(e) => {
            obstacles.push(Obstacle::NoRuntime { error: e.to_string() });
            Probe::Off { obstacles }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::Runc;

    #[test]
    fn every_obstacle_is_named() {
        let run = std::env::temp_dir().join(format!("cellwright-probe-{}", std::process::id()));
        let runc = Runc::new("/no/such/runtime", run.join("state"));
        let why = probe(&runc, &run).why_not().expect("there is no such runtime");
        assert!(why.contains("no container runtime: cannot run /no/such/runtime"), "{why}");
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(why.contains("not as root"), !is_root, "{why}");
        assert!(!run.join("probe").exists());
        mounts::remove_tree(&run).unwrap();
    }
}
