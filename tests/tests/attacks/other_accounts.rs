//! Another account of a machine waits for what masters, agents and those who care for them leave
//! behind: a folder that was restored and stayed open, memory in core dumps, files of tasks, and
//! secrets put into a place that it made first.

use crate::secure_master::SecureMaster;
use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_open_cell;
use cellwright_tests::process::Process;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT, skip};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tokio::time::sleep;

/// Everything below a folder.
fn entries_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir()) {
            found.extend(entries_below(&path));
        }
        found.push(path);
    }
    found
}

/// Files that group or others may read or write, and folders that they may list or write to.
fn open_to_others(folder: &Path) -> Vec<String> {
    let describe = |path: PathBuf| {
        // Some come and go while a part works.
        let about = fs::symlink_metadata(&path).ok()?;
        let open = !about.is_symlink() && about.mode() & 0o066 != 0;
        open.then(|| format!("{} {:04o}", path.display(), about.mode() & 0o7777))
    };
    entries_below(folder).into_iter().chain([folder.to_owned()]).filter_map(describe).collect()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < TIMEOUT, "never: {what}");
        sleep(POLL_INTERVAL).await;
    }
}

/// As the guide restores a cell, and as somebody does who forgets the mode.
#[tokio::test]
async fn a_folder_that_others_may_read_is_refused_by_whoever_would_write_there() {
    let master = SecureMaster::start().await;
    master.cell(&["checkpoint", "save"]).expect("a checkpoint");
    let checkpoints = master.folder.path("guarded/checkpoints");
    let made = || {
        entries_below(&checkpoints)
            .into_iter()
            .find(|path| path.extension().is_some_and(|e| e == "ckpt"))
    };
    until("a checkpoint is on the disk", || made().is_some()).await;
    let kept = master.folder.path("kept.ckpt");
    fs::copy(made().expect("a checkpoint"), &kept).expect("a copy");

    let data = master.folder.path("restored");
    fs::create_dir(&data).expect("a folder");
    let identity = Command::new("cp")
        .arg("-r")
        .arg(master.folder.path("guarded/identity"))
        .arg(data.join("identity"))
        .status();
    assert!(identity.is_ok_and(|status| status.success()));
    let config = master.folder.path("restored.toml");
    let text = fs::read_to_string(master.folder.path("master.toml")).expect("a configuration");
    let guarded = master.folder.path("guarded");
    let text = text.replace(guarded.to_str().expect("a path"), data.to_str().expect("a path"));
    fs::write(&config, text).expect("a file");
    let restore = || {
        let mut command = Command::new(cell());
        command_output(
            command.args(["checkpoint", "restore"]).arg(&kept).arg("--config").arg(&config),
        )
    };
    let mode = |mode: u32| {
        fs::set_permissions(&data, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    for open in [0o755, 0o750, 0o770, 0o777] {
        mode(open);
        let rejection = restore().expect_err("it is open to others");
        assert!(rejection.contains(&format!("its mode is {open:04o}")), "{rejection}");
        assert!(!data.join("log").exists(), "nothing is written there");
    }
    mode(0o700);
    restore().expect("it is restored");
    assert_eq!(open_to_others(&data), [""; 0]);
    // And by a master that is to start there.
    mode(0o755);
    let mut start = Command::new(cell());
    let rejection = command_output(start.args(["master", "start", "--config"]).arg(&config));
    let rejection = rejection.expect_err("it is open to others");
    assert!(rejection.contains("chmod 700"), "{rejection}");
}

/// The children of a process, and theirs.
fn descendants(of: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<_>>())
        .collect();
    let further = children.iter().flat_map(|child| descendants(*child)).collect::<Vec<u32>>();
    [vec![of], children, further].concat()
}

fn core_limit(process: u32) -> Option<String> {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max core file size"))?;
    Some(line.split_whitespace().skip(4).take(2).collect::<Vec<_>>().join(" "))
}

/// Started by somebody whose processes may leave as much as they like.
fn with_core_dumps(program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    // Root may have more than it was given, others have just that.
    let most = r#"ulimit -H -c unlimited 2>/dev/null; ulimit -S -c "$(ulimit -H -c)" && exec "$@""#;
    command.args(["-c", most, "sh"]);
    command.arg(program).args(words);
    command
}

/// Whether a process that is none of ours could leave its memory here: only then does it tell
/// anything that ours cannot.
async fn can_leave_cores(folder: &Folder) -> bool {
    let words = ["1000"];
    let sleeps =
        Process::start(with_core_dumps(Path::new("sleep"), &words), &folder.path("sleep.log"));
    let is_program = || {
        let line = fs::read(format!("/proc/{}/cmdline", sleeps.id())).unwrap_or_default();
        line.starts_with(b"sleep")
    };
    until("the control is its program", is_program).await;
    core_limit(sleeps.id()).is_some_and(|limit| !limit.starts_with("0 "))
}

#[tokio::test]
async fn no_process_leaves_its_memory_in_a_file() {
    let folder = Folder::new();
    if !can_leave_cores(&folder).await {
        return skip("the hard limit of core files is 0 here, so nobody leaves any");
    }
    let master = SecureMaster::start().await;
    let config = master.folder.path("master.toml");
    let data = folder.path("data");
    let data = data.to_str().expect("a path");
    let words = ["dev", "--listen", "127.0.0.1:0", "--driver", "process", "--data-dir", data];
    let dev = Process::start(with_core_dumps(cell(), &words), &folder.path("cell.log"));
    let address = || {
        let output = dev.output();
        let rest = output.split_once("serves http://")?.1;
        rest.split_whitespace().next().map(str::to_owned)
    };
    until("it serves", || address().is_some()).await;
    let job = json!({ "name": "sleeps", "priority": 100, "task": { "notice": 0,
        "limits": { "cpu": "100m", "ram": 64 << 20 }, "command": ["sleep", "1000"] } });
    let file = folder.path("sleeps.json");
    fs::write(&file, job.to_string()).expect("a file");
    let address = address().expect("an address");
    let run = ["--master", &address, "run", file.to_str().expect("a path")];
    command_output(Command::new(cell()).args(run)).expect("it is taken");
    let words = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ")
    };
    let runs =
        |what: &str| descendants(dev.id()).iter().any(|process| words(process).starts_with(what));
    until("the task runs", || runs("sleep 1000")).await;
    let all = descendants(dev.id());
    for process in &all {
        let found = core_limit(*process);
        assert!(found.is_none() || found.as_deref() == Some("0 0"), "{} {found:?}", words(process));
    }
    assert!(all.len() >= 3, "master, shim and task: {all:?}");
    let apart = ["scheduler", "--config", config.to_str().expect("a path"), "--shard", "1"];
    let scheduler = Process::start(with_core_dumps(cell(), &apart), &folder.path("scheduler.log"));
    // Until the shell has become the program.
    until("it is the program", || !words(&scheduler.id()).starts_with("sh ")).await;
    until("it leaves no memory", || core_limit(scheduler.id()).as_deref() == Some("0 0")).await;
    dev.kill();
}

/// The place for secrets, and what another account put there before: a link to a folder of its own,
/// and such a folder.
const SQUATTING_SCRIPTS: [&str; 2] = [
    "mkdir -m 777 /dev/shm/mine; ln -s /dev/shm/mine /dev/shm/cellwright-secrets",
    "mkdir -m 777 /dev/shm/cellwright-secrets",
];

#[tokio::test]
async fn nobody_is_given_secrets_by_being_first_at_their_place() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act as another account");
    }
    for squat in SQUATTING_SCRIPTS {
        let folder = Folder::new();
        fs::create_dir(folder.path("run")).expect("a folder");
        // With a /run on the disk, as some machines have it, the place is one where all may write.
        let begin = r#"set -e; mount --bind "$1" /run; mount -t tmpfs -o mode=1777 shm /dev/shm
            setpriv --reuid=65534 --regid=65534 --clear-groups sh -c "$2"; shift 2; exec "$@""#;
        let mut dev = Command::new("unshare");
        dev.args(["--mount", "--propagation", "private", "sh", "-c", begin, "sh"]);
        dev.arg(folder.path("run")).arg(squat).arg(cell());
        dev.args(["dev", "--listen", "127.0.0.1:0", "--driver", "process", "--data-dir"]);
        dev.arg(folder.path("data"));
        let dev = Process::start(dev, &folder.path("cell.log"));
        let address = || {
            let output = dev.output();
            let rest = output.split_once("serves http://")?.1;
            rest.split_whitespace().next().map(str::to_owned)
        };
        until(&format!("it serves: {}", dev.output()), || address().is_some()).await;
        let script = r#"cat "$CELL_SECRETS/key"; echo " $CELL_SECRETS"; exec sleep 1000"#;
        let job = json!({ "name": "knows", "priority": 100, "task": { "notice": 0,
            "limits": { "cpu": "100m", "ram": 64 << 20 }, "secrets": { "key": "rosebud" },
            "command": ["sh", "-c", script] } });
        let file = folder.path("knows.json");
        fs::write(&file, job.to_string()).expect("a file");
        let address = address().expect("an address");
        let on = |words: &[&str]| {
            command_output(Command::new(cell()).args(["--master", &address]).args(words))
                .unwrap_or_default()
        };
        on(&["run", file.to_str().expect("a path")]);
        let logs = || on(&["logs", "dev/knows/0"]);
        until("it says what it knows", || logs().ends_with('\n')).await;
        let logs = logs();
        assert!(logs.starts_with("rosebud /dev/shm/cellwright-secrets/"), "{squat}: {logs}");
        // As the other account, where the cell is.
        let look = "find /dev/shm -type f 2> /dev/null | xargs -r grep -l rosebud 2> /dev/null; \
                    ls /dev/shm/cellwright-secrets/ 2>&1; echo looked";
        let mut thief = Command::new("nsenter");
        thief.args(["--mount", "--target", &dev.id().to_string(), "setpriv", "--reuid=65534"]);
        thief.args(["--regid=65534", "--clear-groups", "sh", "-c", look]);
        let found = command_output(&mut thief).expect("it looks");
        assert!(found.ends_with("looked\n") && found.contains("denied"), "{squat}: {found}");
        assert!(
            !found.lines().any(|line| line.starts_with("/dev/shm/") && !line.contains("ls:")),
            "{squat}: {found}"
        );
        dev.kill();
    }
}

#[tokio::test]
async fn what_an_agent_keeps_is_for_its_account_and_its_tasks() {
    let folder = Folder::new();
    let (process, address) = start_open_cell(&folder, &["--driver", "process"]).await;
    let job = json!({ "name": "writes", "priority": 100, "task": { "notice": 0,
        "limits": { "cpu": "100m", "ram": 64 << 20 }, "env": { "KEY": "rosebud" },
        "files": { "conf": "rosebud" },
        "command": ["sh", "-c", "echo rosebud; echo rosebud > own; exec sleep 1000"] } });
    let file = folder.path("writes.json");
    fs::write(&file, job.to_string()).expect("a file");
    let on = |words: &[&str]| {
        command_output(Command::new(cell()).args(["--master", &address]).args(words))
            .unwrap_or_default()
    };
    on(&["run", file.to_str().expect("a path")]);
    until("it has written", || on(&["logs", "dev/writes/0"]).ends_with('\n')).await;
    if !rustix::process::geteuid().is_root() {
        process.kill();
        return skip("only root can act as another account");
    }
    // By their whole paths, for folders that cannot be listed can be passed through.
    let holds = |path: &PathBuf| {
        fs::read(path).is_ok_and(|text| text.windows(7).any(|piece| piece == b"rosebud"))
    };
    let with_it: Vec<PathBuf> =
        entries_below(&folder.path("data")).into_iter().filter(holds).collect();
    assert!(with_it.len() >= 4, "log of the cell, order, files and output: {with_it:?}");
    // Whoever can open a lock can take it, and keep an agent from starting again.
    let is_lock = |path: &PathBuf| path.is_file() && path.ends_with("agent.lock");
    let locks: Vec<PathBuf> =
        entries_below(&folder.path("data")).into_iter().filter(is_lock).collect();
    assert!(!locks.is_empty(), "an agent has a lock");
    for path in with_it.into_iter().chain(locks) {
        let mut thief = Command::new("setpriv");
        thief.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"]);
        thief.arg(r#"exec cat -- "$0""#).arg(&path);
        let read = thief.output().expect("it runs");
        assert!(!read.status.success() && read.stdout.is_empty(), "{}", path.display());
    }
    process.kill();
}
