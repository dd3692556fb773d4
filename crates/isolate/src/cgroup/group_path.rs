//! The path of a cgroup in the hierarchies. A path is checked when it is created, so that no name
//! that comes from a job can leave the tree or be mistaken for a file of the kernel.

use super::Controller;
use crate::Error;
use std::fmt;
use std::path::{Path, PathBuf};

/// A relative path of cgroups, such as `cellwright/batch/task-7-1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupPath(String);

const ALLOWED: &str = "names of 1 to 200 letters, digits, `-`, `_` and `.` joined by `/`, none \
                       that starts with a dot or is a file of the kernel (`cpu.…`, `tasks`)";

impl GroupPath {
    /// # Errors
    /// When a part could leave the tree or be mistaken for a file of the kernel.
    pub fn new(path: &str) -> Result<GroupPath, Error> {
        if path.split('/').all(is_valid_name) {
            return Ok(GroupPath(path.to_owned()));
        }
        Err(Error::invalid("control group", path, ALLOWED))
    }

    /// # Errors
    /// When `name` is not one plain name.
    pub fn child(&self, name: &str) -> Result<GroupPath, Error> {
        if is_valid_name(name) {
            return Ok(GroupPath(format!("{}/{name}", self.0)));
        }
        Err(Error::invalid("control group", name, ALLOWED))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn directory_in(&self, mount: &Path) -> PathBuf {
        mount.join(&self.0)
    }

    /// The path's own prefixes, outermost first, itself last.
    pub(super) fn lineage(&self) -> impl Iterator<Item = GroupPath> {
        let ends = self.0.match_indices('/').map(|(at, _)| at).chain([self.0.len()]);
        ends.map(|end| GroupPath(self.0[..end].to_owned()))
    }
}

fn is_valid_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let prefix = name.split('.').next().unwrap_or("");
    let is_kernel_file = Controller::ALL.iter().any(|c| c.as_str() == prefix)
        || ["cgroup", "blkio", "cpuacct"].contains(&prefix);
    (1..=200).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.starts_with('.')
        && !(is_kernel_file && name.contains('.'))
        && !["tasks", "notify_on_release", "release_agent"].contains(&name)
}

impl fmt::Display for GroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_paths_are_taken_and_have_a_lineage() {
        let path = GroupPath::new("system.slice/cell-agent.service").unwrap();
        let task = path.child("task-1_2").unwrap();
        let lineage: Vec<String> = task.lineage().map(|p| p.to_string()).collect();
        let expected = [
            "system.slice",
            "system.slice/cell-agent.service",
            "system.slice/cell-agent.service/task-1_2",
        ];
        assert_eq!(lineage, expected);
    }

    #[test]
    fn nothing_leaves_the_tree_or_hides_behind_a_file() {
        for bad in ["", "/", "/a", "a/", "a//b", "..", "a/../b", "a/.hidden", "a b", "é"] {
            assert!(GroupPath::new(bad).is_err(), "{bad}");
        }
        let base = GroupPath::new("base").unwrap();
        for bad in ["cgroup.procs", "cpu.max", "memory.x", "tasks", "a/b", ".."] {
            assert!(base.child(bad).is_err(), "{bad}");
        }
    }
}
