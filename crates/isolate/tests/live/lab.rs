//! What the tests share: a tree of cgroups and a directory of their own, a small root from busybox,
//! and running a container the way a shim does.

use cellwright_isolate::cgroup::{Group, GroupPath, GroupUsage, Layout, Limits, Tree};
use cellwright_isolate::container::{
    Bundle, ContainerId, ContainerSpec, Runc, Runtime, Streams, probe,
};
use cellwright_isolate::mounts;
use rustix::process::{Pid, WaitOptions, WaitStatus, set_child_subreaper, waitpid};
use std::fs;
use std::io::{PipeReader, Read, pipe};
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Far beyond what a kill takes; only a hung kernel uses it up.
pub const PATIENCE: Duration = Duration::from_secs(30);

const BUSYBOX: &str = "/bin/busybox";
const APPLETS: &[&str] = &[
    "sh", "cat", "chmod", "chroot", "echo", "head", "hostname", "id", "ls", "mknod", "mount",
    "setsid", "sleep", "tail", "true", "umount",
];

/// A tree of cgroups of this test's own, if this machine allows it; prints why not otherwise.
pub fn tree(test: &str) -> Option<OwnTree> {
    let base = format!("cellwright-test-{test}-{}", std::process::id());
    let tree = match Layout::detect() {
        Ok(layout) => Tree::new(layout, GroupPath::new(&base).unwrap()),
        Err(e) => return skip(test, &e.to_string()),
    };
    if let Err(e) = tree.base().create() {
        return skip(test, &e.to_string());
    }
    Some(OwnTree(tree))
}

/// A tree that leaves nothing behind, wherever its test stopped.
pub struct OwnTree(Tree);

impl Deref for OwnTree {
    type Target = Tree;
    fn deref(&self) -> &Tree {
        &self.0
    }
}

impl Drop for OwnTree {
    fn drop(&mut self) {
        let _ = self.base().kill(PATIENCE);
        let _ = self.base().remove();
    }
}

/// Tests may be skipped only without root where `CI` is not set, or on request.
fn skip<T>(test: &str, why: &str) -> Option<T> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let is_root = rustix::process::geteuid().is_root();
    let may = is_set("CELL_TEST_SKIP") || !is_root && !is_set("CI");
    assert!(may, "{test}: {why}; scripts/install-tools.sh test, or CELL_TEST_SKIP=1");
    println!("skipped {test}: {why}");
    None
}

pub struct Lab {
    pub tree: OwnTree,
    pub runc: Runc,
    pub run: PathBuf,
    pub layer: PathBuf,
}

/// How a container ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub output: String,
    pub usage: GroupUsage,
}

pub struct Running<'a> {
    lab: &'a Lab,
    pub group: Group,
    pub bundle: Bundle,
    pub pid: u32,
    pub output: PipeReader,
}

impl Lab {
    pub fn open(test: &str) -> Option<Lab> {
        let run = std::env::temp_dir().join(format!("cellwright-{test}-{}", std::process::id()));
        let runc = Runc::new("runc", run.join("state"));
        if let Some(why) = probe(&runc, &run).unavailable_reason() {
            return skip(test, &why);
        }
        if !Path::new(BUSYBOX).exists() {
            return skip(test, "there is no busybox to make a root of");
        }
        let layer = run.join("layer");
        fs::create_dir_all(layer.join("bin")).unwrap();
        fs::copy(BUSYBOX, layer.join("bin/busybox")).unwrap();
        fs::set_permissions(layer.join("bin/busybox"), fs::Permissions::from_mode(0o755)).unwrap();
        for applet in APPLETS {
            symlink("busybox", layer.join("bin").join(applet)).unwrap();
        }
        set_child_subreaper(Pid::from_raw(1)).unwrap();
        Some(Lab { tree: tree(test)?, runc, run, layer })
    }

    /// A spec that runs `script`.
    pub fn spec(&self, name: &str, script: &str) -> ContainerSpec {
        let group = self.tree.group(name).unwrap().path().clone();
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let mut spec = ContainerSpec::new(command, vec![self.layer.clone()], group);
        spec.env.insert("PATH".into(), "/bin".into());
        spec.rlimits.clear();
        spec
    }

    pub fn start(&self, name: &str, spec: &ContainerSpec, limits: &Limits) -> Running<'_> {
        let group = self.tree.group(name).unwrap();
        group.create().unwrap();
        assert_eq!(group.apply(limits).unwrap(), []);
        let bundle = Bundle::at(&self.run, &ContainerId::new(name).unwrap());
        bundle.prepare(spec).unwrap();
        let (output, write) = pipe().unwrap();
        let (stdout, stderr) = (write.try_clone().unwrap().into(), write.into());
        let streams = Streams { stdin: Stdio::null(), stdout, stderr };
        let pid = self.runc.run(&bundle, streams).unwrap();
        Running { lab: self, group, bundle, pid, output }
    }

    /// From start to removal.
    pub fn run(&self, name: &str, spec: &ContainerSpec, limits: &Limits) -> Ended {
        self.start(name, spec, limits).finish()
    }
}

impl Running<'_> {
    /// Reads its output up to and with `word`.
    pub fn read_until(&mut self, word: &str) -> String {
        let mut read = Vec::new();
        let mut byte = [0u8];
        while self.output.read(&mut byte).unwrap() == 1 {
            read.push(byte[0]);
            if read.ends_with(word.as_bytes()) {
                break;
            }
        }
        String::from_utf8_lossy(&read).into_owned()
    }

    /// Waits for its exit, then cleans up and checks that nothing is left.
    pub fn finish(mut self) -> Ended {
        let mut output = String::new();
        self.output.read_to_string(&mut output).unwrap();
        let pid = Pid::from_raw(i32::try_from(self.pid).unwrap());
        let (_, status) = waitpid(pid, WaitOptions::empty()).unwrap().unwrap();
        let usage = self.group.usage().unwrap();
        self.clear_up();
        let (code, signal) = (exit_code(status), status.terminating_signal());
        Ended { code, signal, output, usage }
    }

    fn clear_up(&self) {
        self.group.kill(PATIENCE).unwrap();
        self.lab.runc.forget(self.bundle.id()).unwrap();
        assert!(!self.lab.runc.list().unwrap().contains(self.bundle.id()));
        self.bundle.remove().unwrap();
        self.group.remove().unwrap();
        assert!(!self.group.exists() && !self.bundle.directory().exists());
    }
}

fn exit_code(status: WaitStatus) -> Option<i32> {
    status.exit_status()
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Also after a failed assertion: kill what this test started, wherever it stopped.
        let _ = self.tree.base().kill(PATIENCE);
        for id in self.runc.list().unwrap_or_default() {
            let _ = self.runc.delete(&id);
        }
        let _ = mounts::remove_tree(&self.run);
    }
}
