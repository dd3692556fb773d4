//! Containers beside each other: the user of each on the machine, its host volumes, and what the
//! kernel counts against which.

use crate::lab::Lab;
use cellwright_isolate::cgroup::Limits;
use cellwright_isolate::container::{
    Bundle, ContainerId, HostVolumeMount, IdMap, IdRange, PinnedHostPath, Scratch, User,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

const FIRST: IdRange = IdRange { first: 0x6f00_0000, count: 65_536 };
const SECOND: IdRange = IdRange { first: 0x6f01_0000, count: 65_536 };

#[test]
fn scratch_is_open_to_the_tasks_user_whatever_its_package_says() {
    let Some(lab) = Lab::open("scratch") else { return };
    fs::create_dir(lab.layer.join("tmp")).unwrap();
    fs::set_permissions(lab.layer.join("tmp"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut spec = lab.spec("scratch", "echo mine > /tmp/file && cat /tmp/file");
    spec.users = Some(IdMap::shifted(FIRST));
    spec.scratch = vec![Scratch { target: "/tmp".into(), bytes: 1 << 20 }];
    let ended = lab.run("scratch", &spec, &Limits::default());
    assert_eq!(ended.output, "mine\n", "{ended:?}");
}

/// The folder is replaced by a link into the machine's own after it was checked, as a task that may
/// write around it can do at any moment.
#[test]
fn what_was_looked_at_is_what_is_mounted() {
    let Some(lab) = Lab::open("swap") else { return };
    let shared = lab.run.join("lent");
    fs::create_dir_all(shared.join("inner")).unwrap();
    fs::write(shared.join("inner/file"), "lent\n").unwrap();
    let private = lab.run.join("kept");
    fs::create_dir(&private).unwrap();
    fs::write(private.join("file"), "the machine's\n").unwrap();
    let folder = PinnedHostPath::open(&shared.join("inner")).unwrap();
    fs::rename(shared.join("inner"), shared.join("aside")).unwrap();
    symlink(&private, shared.join("inner")).unwrap();
    let script = "cat /data/file; echo written > /data/out; \
                  chmod 4755 /data/out || chmod 2755 /data/out || echo no set-id; \
                  chmod 755 /data/out; \
                  umask 0; /bin/busybox mkfifo -m 644 /data/fifo; ls -n /data/out | head -c 10";
    let mut spec = lab.spec("swap", script);
    spec.users = Some(IdMap { range: FIRST, kept: Some((1000, 1001)) });
    spec.user = User { uid: 1000, gid: 1001, groups: vec![] };
    spec.host_volumes = vec![HostVolumeMount { folder, target: "/data".into(), writable: true }];
    spec.set_id_files = false;
    chown(shared.join("aside"), Some(1000), Some(1001)).unwrap();
    let ended = lab.run("swap", &spec, &Limits::default());
    let denied = ended.output.matches("Operation not permitted").count();
    assert!(ended.output.starts_with("lent\n") && denied == 2, "{ended:?}");
    assert!(
        ended.output.contains("no set-id\n") && ended.output.ends_with("-rwxr-xr-x"),
        "{ended:?}"
    );
    // The account of a task with a host volume has the same numbers outside.
    let made = fs::metadata(shared.join("aside/out")).unwrap();
    assert_eq!((made.uid(), made.gid()), (1000, 1001));
    assert_eq!(fs::read_dir(&private).unwrap().count(), 1);
}

#[test]
fn a_bundle_behind_a_closed_door_has_shifted_users_all_the_same() {
    let Some(lab) = Lab::open("closed") else { return };
    fs::set_permissions(&lab.run, fs::Permissions::from_mode(0o700)).unwrap();
    let mut spec = lab.spec("closed", "id -u; cat /proc/self/uid_map");
    spec.users = Some(IdMap::shifted(FIRST));
    let ended = lab.run("closed", &spec, &Limits::default());
    let words: Vec<&str> = ended.output.split_whitespace().collect();
    assert_eq!(words, ["65534", "0", &FIRST.first.to_string(), "65536"], "{ended:?}");
    let left = fs::read_dir("/run/cellwright-roots").unwrap().flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().ends_with("-closed"));
    assert_eq!(left.count(), 0);
}

#[test]
fn a_package_whose_links_choose_where_things_are_mounted_is_refused() {
    let Some(lab) = Lab::open("links") else { return };
    symlink("/bin", lab.layer.join("tmp")).unwrap();
    let mut spec = lab.spec("links", "true");
    spec.scratch = vec![Scratch { target: "/tmp".into(), bytes: 1 << 20 }];
    let bundle = Bundle::at(&lab.run, &ContainerId::new("links").unwrap());
    let error = bundle.prepare(&spec).unwrap_err().to_string();
    assert!(error.starts_with("mount target /tmp: /tmp is a link in the package"), "{error}");
    assert!(!bundle.directory().exists());
}

/// The kernel's limit of inotify instances per user: a task takes all it gets, and leaves its
/// neighbours and root what they had.
#[test]
fn one_task_takes_nothing_of_what_the_kernel_lets_another_have() {
    const PERL: &str = "/usr/bin/perl";
    const TAKE: &str = "$n = 0; while (1) { $r = syscall(294, 0); last if $r < 0; $n++ } \
                        $| = 1; print \"$n\\n\"; sleep 1000 if $ARGV[0];";
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: numbers of system calls are those of x86-64");
    }
    let Some(lab) = Lab::open("watches") else { return };
    assert!(Path::new(PERL).exists(), "perl is missing, which every Debian has");
    for name in ["lib", "lib64"] {
        symlink(format!("usr/{name}"), lab.layer.join(name)).unwrap();
    }
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    let most: u64 = most.trim().parse().unwrap();
    let spec = |name: &str, range: IdRange, stay: &str| {
        let mut spec = lab.spec(name, "");
        spec.command = [PERL, "-e", TAKE, stay].map(str::to_owned).to_vec();
        spec.users = Some(IdMap::shifted(range));
        spec.binds = vec![cellwright_isolate::container::Bind {
            source: "/usr".into(),
            target: "/usr".into(),
            writable: false,
        }];
        spec
    };
    let mut first = lab.start("first", &spec("first", FIRST, "1"), &Limits::default());
    let taken: u64 = first.read_until("\n").trim().parse().unwrap();
    assert_eq!(taken, most);
    let second = lab.run("second", &spec("second", SECOND, ""), &Limits::default());
    assert_eq!(second.output.trim(), most.to_string(), "{second:?}");
    let root = Command::new(PERL).args(["-e", TAKE]).output().unwrap();
    let root: u64 = String::from_utf8_lossy(&root.stdout).trim().parse().unwrap();
    assert!(root > 0, "root has none left");
    first.group.kill(crate::lab::PATIENCE).unwrap();
    first.finish();
}
