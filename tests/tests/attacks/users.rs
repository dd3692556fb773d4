//! Who a task is on its machine: a package has no say in it, and no two tasks are the same.

use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_open_cell;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT, skip};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tokio::time::sleep;

/// Binds a port so that others of the same user could bind it too, says whether that went, and
/// stays.
const LISTEN: &str = r#"perl -MSocket -e '$| = 1; socket(S, PF_INET, SOCK_STREAM, 0);
    setsockopt(S, SOL_SOCKET, 15, pack("i", 1)) or die;
    print bind(S, sockaddr_in($ENV{PORT}, INADDR_LOOPBACK)) && listen(S, 1) ? "has it\n" : "$!\n";
    sleep 1000'"#;

pub struct Cell<'a> {
    pub folder: &'a Folder,
    pub address: String,
}

impl Cell<'_> {
    pub fn cell(&self, words: &[&str]) -> String {
        let done =
            command_output(Command::new(cell()).args(["--master", &self.address]).args(words));
        done.unwrap_or_else(|why| why)
    }

    /// Runs a job of one task once.
    pub fn run(&self, name: &str, script: &str, more: &Value) {
        let mut task = json!({
            "limits": { "cpu": "100m", "ram": 64 << 20 }, "notice": 0,
            "command": ["sh", "-c", script],
        });
        for (name, value) in more.as_object().expect("an object") {
            task[name] = value.clone();
        }
        let job = json!({ "name": name, "priority": 100, "task": task,
            "restart": { "max_failures": 0, "backoff": 1, "backoff_max": 1 } });
        let file = self.folder.path(&format!("{name}.json"));
        fs::write(&file, job.to_string()).expect("a file");
        self.cell(&["run", file.to_str().expect("text")]);
    }

    /// What the job's task wrote, once it has written a line.
    pub async fn wait_for_output(&self, name: &str, stream: &[&str]) -> String {
        let begun = Instant::now();
        let task = format!("dev/{name}/0");
        loop {
            let output = self.cell(&[&["logs", &task][..], stream].concat());
            if output.ends_with('\n') && !output.contains("error") {
                return output;
            }
            assert!(begun.elapsed() < TIMEOUT, "{name} says nothing: {output}");
            sleep(POLL_INTERVAL).await;
        }
    }

    fn push(&self, name: &str, folder: &Path) -> Value {
        let folder = folder.to_str().expect("text");
        let pushed = self.cell(&["package", "push", folder, "--name", name, "-o", "json"]);
        let pushed: Value = serde_json::from_str(&pushed).expect("JSON");
        let package = json!({
            "name": name, "digest": pushed["digest"], "bytes": pushed["bytes"]
        });
        json!({ "packages": [package], "isolation": { "root": name } })
    }

    /// Folders of attempts that run now.
    fn attempts(&self) -> Vec<PathBuf> {
        let tasks = fs::read_dir(self.folder.path("data/agent/tasks")).expect("a folder");
        tasks.flatten().map(|entry| entry.path()).collect()
    }
}

/// Whether containers can be had here.
pub fn can_run_containers() -> bool {
    let lacks = match Command::new("runc").arg("--version").output() {
        _ if !rustix::process::geteuid().is_root() => "containers need root".to_owned(),
        Ok(_) => return true,
        Err(why) => format!("runc: {why}"),
    };
    skip(&lacks);
    false
}

/// A root with one program in it.
fn root(folder: &Folder, name: &str, passwd: &str) -> PathBuf {
    let root = folder.path(name);
    fs::create_dir_all(root.join("bin")).expect("a folder");
    fs::create_dir_all(root.join("etc")).expect("a folder");
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox is there");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(root.join("bin/busybox"), open).expect("a mode");
    symlink("busybox", root.join("bin/sh")).expect("a link");
    fs::write(root.join("etc/passwd"), passwd).expect("a file");
    root
}

#[tokio::test]
async fn a_package_chooses_neither_its_users_outside_nor_where_things_are_mounted() {
    if !can_run_containers() {
        return;
    }
    let folder = Folder::new();
    let (process, address) = start_open_cell(&folder, &["--driver", "container"]).await;
    let cell = Cell { folder: &folder, address };
    let passwd = "root:x:0:0::/:/bin/sh\nnobody:x:101:70000::/:/bin/sh\nweb:x:33:33::/:\n";
    let own = root(&folder, "own", passwd);
    let mut package = cell.push("own", &own);
    package["user"] = "nobody".into();
    cell.run("outside", "exec busybox sleep 1000", &package);
    let output = cell.wait_for_output("outside", &["--stderr"]).await;
    let why = "task.user: nobody; allowed: an account with numbers from 0 to 65535, not 101:70000; \
               /etc/passwd of the task's root package, line 2";
    assert!(output.contains(why), "{output}");
    package["user"] = "web".into();
    let script = "/bin/busybox id -u; echo t > /tmp/t && /bin/busybox cat /tmp/t; \
                  /bin/busybox cp /bin/busybox set && /bin/busybox chmod 4755 set; \
                  /bin/busybox chmod 755 /work; echo done; exec /bin/busybox sleep 1000";
    package["command"] = json!(["/bin/sh", "-c", script]);
    cell.run("inside", "", &package);
    let begun = Instant::now();
    while !cell.wait_for_output("inside", &[]).await.contains("done") {
        assert!(begun.elapsed() < TIMEOUT);
        sleep(POLL_INTERVAL).await;
    }
    assert_eq!(cell.wait_for_output("inside", &[]).await, "33\nt\ndone\n");
    let file = |attempt: &PathBuf| attempt.join("work/set");
    let made = cell.attempts().into_iter().find(|attempt| file(attempt).exists()).expect("a file");
    let about = fs::metadata(file(&made)).expect("it is there");
    assert!(about.uid() >= 0x7740_0000 && about.uid() % 65_536 == 33, "{}", about.uid());
    assert_eq!(about.mode() & 0o7777, 0o4755);
    // Whoever else is on the machine does not get to it.
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    // A program of its own first: until then it has root's rights to pass through folders.
    stranger.args(["sh", "-c", r#"exec "$0" true"#]).arg(file(&made));
    let tried = command_output(&mut stranger).expect_err("a stranger runs it");
    assert!(tried.contains("Permission denied"), "{tried}");
    symlink("bin", own.join("work")).expect("a link");
    let mut linked = cell.push("linked", &own);
    linked["command"] = json!(["/bin/sh", "-c", "exec /bin/busybox sleep 1000"]);
    cell.run("linked", "", &linked);
    let output = cell.wait_for_output("linked", &["--stderr"]).await;
    assert!(output.contains("mount target /work: /work is a link in the package"), "{output}");
    process.kill();
}

async fn ports_are_not_shared(driver: &str) {
    let folder = Folder::new();
    let (process, address) = start_open_cell(&folder, &["--driver", driver]).await;
    let cell = Cell { folder: &folder, address };
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let number = port.local_addr().expect("it has an address").port().to_string();
    drop(port);
    let env = json!({ "env": { "PORT": number } });
    cell.run("owner", LISTEN, &env);
    assert_eq!(cell.wait_for_output("owner", &[]).await, "has it\n", "{driver}");
    cell.run("thief", LISTEN, &env);
    assert_eq!(cell.wait_for_output("thief", &[]).await, "Address already in use\n", "{driver}");
    let owners: Vec<u32> = cell
        .attempts()
        .iter()
        .map(|attempt| fs::metadata(attempt.join("work")).expect("a folder").uid())
        .collect();
    assert!(owners.len() == 2 && owners[0] != owners[1], "{driver}: {owners:?}");
    process.kill();
}

#[tokio::test]
async fn a_neighbour_in_a_container_does_not_share_a_port() {
    if can_run_containers() {
        ports_are_not_shared("container").await;
    }
}

#[tokio::test]
async fn a_neighbour_that_is_a_plain_process_does_not_share_a_port() {
    if can_run_containers() {
        ports_are_not_shared("process").await;
    }
}

/// Tries to share a port, and says whether it may and whether it has it.
const SHARE: &str = r#"perl -MSocket -e '$| = 1; socket(S, PF_INET, SOCK_STREAM, 0);
    my $may = setsockopt(S, SOL_SOCKET, 15, pack("i", 1)) ? "shares" : "alone";
    print bind(S, sockaddr_in($ENV{PORT}, INADDR_LOOPBACK)) && listen(S, 1)
        ? "$may: has it\n" : "$may: $!\n";
    sleep 1000'"#;
/// Makes a program that would run as its owner, in every way there is.
const SET_ID: &str = r#"cd /data; cp /bin/true set; chmod 4755 set; chmod 2755 set; chmod u+s set
    perl -e 'use Fcntl; sysopen(F, "made", O_CREAT | O_RDWR, 06755); chmod 06755, "set"'
    ls set > /dev/null && echo tried; exec sleep 1000"#;

/// Whoever borrows a folder of the machine is an account of the machine, and so are others.
#[tokio::test]
async fn neighbours_that_borrow_as_one_account_share_no_port_and_leave_no_program_of_theirs() {
    if !can_run_containers() {
        return;
    }
    let folder = Folder::new();
    let shared = folder.path("lent");
    fs::create_dir(&shared).expect("a folder");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).expect("a mode");
    let lend = shared.to_str().expect("a path");
    let (process, address) =
        start_open_cell(&folder, &["--driver", "container", "--volume", lend]).await;
    let cell = Cell { folder: &folder, address };
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let number = port.local_addr().expect("it has an address").port().to_string();
    drop(port);
    let volume = json!({ "source": lend, "target": "/data", "writable": true });
    let more = json!({ "env": { "PORT": number }, "isolation": { "volumes": [volume] } });
    cell.run("owner", SHARE, &more);
    assert_eq!(cell.wait_for_output("owner", &[]).await, "alone: has it\n");
    cell.run("thief", SHARE, &more);
    assert_eq!(cell.wait_for_output("thief", &[]).await, "alone: Address already in use\n");
    cell.run("sets", SET_ID, &more);
    assert_eq!(cell.wait_for_output("sets", &["--stdout"]).await, "tried\n");
    let made: Vec<PathBuf> =
        fs::read_dir(&shared).expect("it").flatten().map(|e| e.path()).collect();
    assert!(made.iter().any(|path| path.ends_with("set")), "{made:?}");
    for path in made {
        let mode = fs::metadata(&path).expect("it is there").mode();
        assert_eq!(mode & 0o6000, 0, "{} {mode:o}", path.display());
    }
    process.kill();
}
