//! `cell cp`, `cell port-forward`, `cell edit`, and `cell logs -f` of a job that grows, with the
//! real binary on a running cell.

use super::agent::{dev, is_running_attempt, submit, wait};
use super::secure_cell::SecureCell;
use crate::support::{Folder, Running, cell, command, poll_until, stdout_of, text};
use hyper::Method;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn run_waiting(folder: &Folder, address: &str, job: &str, script: &str, more: &serde_json::Value) {
    submit(folder, address, job, 1, script, &more.to_string());
    wait(address, job, is_running_attempt(1));
}

fn mode(path: &str) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn files_are_copied_both_ways_with_their_modes_and_no_link_leads_out() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    run_waiting(&folder, &address, "web", "exec sleep 1000", &serde_json::json!({}));
    let cp = |from: &str, to: &str| cell(&["--master", &address, "cp", from, to]);
    let done = |from: &str, to: &str| {
        let output = cp(from, to);
        assert!(output.status.success(), "{from} {to}: {}", text(&output.stderr));
        text(&output.stderr)
    };
    let exec = |script: &str| {
        stdout_of(&["--master", &address, "exec", "dev/web/0", "--", "sh", "-c", script])
    };
    let tree = folder.path("tree");
    fs::create_dir_all(format!("{tree}/deep")).unwrap();
    let bytes: Vec<u8> = (0..3_u32 << 20).map(|at| (at ^ (at >> 9)) as u8).collect();
    fs::write(format!("{tree}/deep/data"), &bytes).unwrap();
    fs::write(format!("{tree}/run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(format!("{tree}/run"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("/etc/passwd", format!("{tree}/link")).unwrap();

    let said = done(&tree, "web/0:");
    assert!(said.contains("link: left out: a link"), "{said}");
    assert_eq!(exec("stat -c %a tree/run; test -e tree/link || echo none"), "750\nnone\n");
    done(&format!("{tree}/run"), "dev/web/0:tree/other");
    exec("ln -s /etc/passwd tree/out; mkfifo tree/pipe; chmod 700 tree/deep");
    let said = done("web/0:tree", &folder.path("back"));
    assert!(said.contains("out: left out: a link") && said.contains("pipe: left out"), "{said}");
    let back = folder.path("back");
    assert_eq!(fs::read(format!("{back}/deep/data")).unwrap(), bytes);
    assert_eq!((mode(&format!("{back}/run")), mode(&format!("{back}/deep"))), (0o750, 0o700));
    assert!(Path::new(&format!("{back}/other")).exists());
    assert!(!Path::new(&format!("{back}/out")).exists());
    // A link is not written through.
    exec("ln -s ../escaped tree/hole");
    for (from, to, why) in [
        (format!("{tree}/run"), "web/0:tree/hole".to_owned(), "hole"),
        ("web/0:absent".to_owned(), folder.path("x"), "absent"),
        (folder.path("absent"), "web/0:".to_owned(), "absent"),
        (format!("{tree}/run"), "web/0:no/such/folder".to_owned(), "no/such/folder"),
        ("web/0:tree/pipe".to_owned(), folder.path("x"), "neither a file nor a folder"),
    ] {
        let refused = cp(&from, &to);
        assert_eq!(refused.status.code(), Some(1), "{from} {to}");
        assert!(text(&refused.stderr).contains(why), "{}", text(&refused.stderr));
    }
    assert_eq!(exec("test -e escaped || echo none"), "none\n");
    assert_eq!(cp("here", "there").status.code(), Some(2));
    running.stop();
}

/// The port that the task was given.
fn port_of(address: &str, job: &str) -> u16 {
    let tasks = wait(address, job, |task| !task.ports.is_empty());
    tasks[0].ports[0]
}

/// What the server at this address answers.
fn ask(address: &str) -> String {
    poll_until("nobody answers", || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(b"ping\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        (!answer.is_empty()).then_some(answer)
    })
}

/// Answers one connection after the other.
const SERVER: &str =
    "while :; do echo pong | busybox nc -l -p \"$CELL_PORT0\" 2>&1 || sleep 0.1; done";

#[test]
fn a_port_of_a_task_is_reached_here_until_its_attempt_ends() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    let task = serde_json::json!({ "task": {
        "limits": { "cpu": "100m", "ram": 64 << 20 }, "ports": 1, "command": ["sh", "-c", SERVER],
    }});
    submit(&folder, &address, "web", 1, "", &task.to_string());
    wait(&address, "web", is_running_attempt(1));
    let port = port_of(&address, "web");
    let forward = ["--master", &address, "port-forward", "web/0"];
    let open = Running::spawn_args(&[&forward[..], &[&format!("0:{port}")]].concat());
    let line = open.wait_for_line(&format!("is port {port} of dev/web/0"));
    let here = line.split_whitespace().next().unwrap().to_owned();
    assert!(here.starts_with("127.0.0.1:"), "{line}");
    for _ in 0..3 {
        assert_eq!(ask(&here), "pong\n");
    }
    // One that is not the task's may be somebody else's: that of the agent, of another task.
    let foreign = Running::spawn_args(&[&forward[..], &["0:22"]].concat());
    let line = foreign.wait_for_line("is port 22 of dev/web/0");
    let mut stream = TcpStream::connect(line.split_whitespace().next().unwrap()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "");
    foreign.wait_for_line("port 22: not one of the task's");
    stdout_of(&["--master", &address, "stop", "dev/web"]);
    open.wait_for_line("attempt 1 of dev/web/0 has ended");
    foreign.kill();
    running.stop();
}

#[test]
fn copies_and_ports_are_for_owners_and_holders_and_are_audited() {
    let walled = SecureCell::new();
    walled.run("ann", "web", "exec sleep 1000");
    fs::write(walled.folder.path("file"), "mine").unwrap();
    let file = walled.folder.path("file");
    let cp =
        |user: &str| cell(&[&walled.args(user)[..], &["cp", &file, "ann/web/0:file"]].concat());
    assert!(cp("ann").status.success());
    let rejected = cp("bob");
    assert!(text(&rejected.stderr).contains("not-allowed"), "{}", text(&rejected.stderr));
    let granted = serde_json::json!({ "capabilities": ["enter_tasks"] });
    walled.change(Method::PUT, "/v1/users/bob/capabilities", &granted);
    let args = walled.args("bob");
    let forward = [&args[..], &["port-forward", "ann/web/0", "0:80"]].concat();
    let open = Running::spawn_args(&forward);
    let line = open.wait_for_line("is port 80 of ann/web/0");
    let none = serde_json::json!({ "capabilities": [] });
    walled.change(Method::PUT, "/v1/users/bob/capabilities", &none);
    // The next connection is refused, and so would be every other.
    drop(TcpStream::connect(line.split_whitespace().next().unwrap()).unwrap());
    open.wait_for_line("not-allowed");
    let audit = walled.audit();
    for line in [
        r#"user:ann | copy into "file" | ann/web/0 | done"#,
        "user:bob | POST | /v1/jobs/ann/web/tasks/0/copy | not-allowed",
        "user:bob | POST | /v1/jobs/ann/web/tasks/0/forward | not-allowed",
    ] {
        assert!(audit.iter().any(|found| found == line), "{line}: {audit:#?}");
    }
    walled.stop();
}

#[test]
fn a_job_is_edited_in_place_and_nothing_is_lost_when_it_is_refused() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    run_waiting(&folder, &address, "web", "exec sleep 1000", &serde_json::json!({}));
    let edit = |editor: &str, more: &[&str]| {
        let mut command = command(&[&["--master", &address, "edit", "web"], more].concat());
        command.env_remove("VISUAL").env("EDITOR", editor).env("TMPDIR", folder.path(""));
        command.stdin(std::process::Stdio::null()).output().unwrap()
    };
    let version = || stdout_of(&["--master", &address, "job", "status", "dev/web", "-o", "json"]);
    let before = version();
    let unchanged = edit("true", &["--yes"]);
    assert_eq!(text(&unchanged.stdout), "dev/web: nothing was changed\n");
    for (editor, why) in [
        ("sed -i 's/^count: .*/count: many/'", "count"),
        ("sed -i 's/^count: .*/count: 3000000000/'", "count"),
        ("sed -i 's/^name: .*/name: other/'", "the file is of the job dev/other"),
        ("false", "did not end well"),
    ] {
        let refused = edit(editor, &["--yes"]);
        assert_eq!(refused.status.code(), Some(1), "{editor}: {}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains(why), "{editor}: {}", text(&refused.stderr));
    }
    assert_eq!(version(), before);
    let kept = fs::read_dir(folder.path("")).unwrap().flatten();
    let kept = kept.filter(|entry| entry.file_name().to_string_lossy().starts_with("cell-edit-"));
    assert_eq!(kept.count(), 3, "what was written and not applied is kept");
    let nobody = edit("sed -i 's/^count: .*/count: 2/'", &[]);
    assert_eq!(nobody.status.code(), Some(2), "{}", text(&nobody.stderr));
    // Somebody else is quicker.
    let binary = cellwright_tests::binary::cell().display();
    let resize = format!("{binary} --master {address} resize web --tasks 4 >/dev/null");
    let other = format!("sh -c '{resize}; sed -i s/^priority:.*/priority:\\ 120/ \"$1\"' sh");
    let late = edit(&other, &["--yes"]);
    assert!(text(&late.stderr).contains("stale-version"), "{}", text(&late.stderr));
    for (format, to) in [("yaml", "2"), ("jsonnet", "3")] {
        let editor = format!("sed -Ei 's/(count\"?: ).*[0-9](,?)$/\\1{to}\\2/'");
        // Not before the update before is complete.
        let said = poll_until("it is never edited", || {
            let done = edit(&editor, &["--yes", "--format", format]);
            done.status.success().then(|| text(&done.stdout))
        });
        assert!(said.contains("job dev/web: version"), "{said}");
        assert!(version().contains(&format!("\"count\": {to}")), "{}", version());
    }
    running.stop();
}

#[test]
fn tasks_that_are_added_are_followed() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    let script = "echo here is $CELL_INDEX >&2; exec sleep 1000";
    run_waiting(&folder, &address, "web", script, &serde_json::json!({}));
    let follower = Running::spawn_args(&["--master", &address, "logs", "web", "-f"]);
    follower.wait_for_line("here is 0");
    stdout_of(&["--master", &address, "resize", "web", "--tasks", "2"]);
    follower.wait_for_line("dev/web/1 stderr here is 1");
    stdout_of(&["--master", &address, "stop", "dev/web"]);
    follower.wait_success();
    running.stop();
}
