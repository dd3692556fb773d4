//! `cell exec`, tested with the real binary: terminals and pipes, exit codes and signals,
//! permissions, and everything that ends a session without leaving processes behind.

use super::agent::{
    SplitCell, dev, first_line, is_alive, is_running_attempt, kill, make_fifo, submit, wait,
    wait_gone,
};
use super::containers::can_run;
use super::secure_cell::SecureCell;
use crate::support::{Folder, Running, TIMEOUT, cell, command, stdout_of, text};
use hyper::Method;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// Runs a job whose only task waits, with limits large enough for sessions beside it.
fn run_waiting_job(folder: &Folder, address: &str) {
    let more = serde_json::json!({ "restart": { "backoff": 1 }, "task": {
        "limits": { "cpu": "1000m", "ram": 128 << 20 }, "command": ["sleep", "1000"],
        "env": { "SHARED": folder.path("") },
    }});
    submit(folder, address, "web", 1, "", &more.to_string());
    wait(address, "web", is_running_attempt(1));
}

/// A pseudo-terminal that runs `cell`.
pub struct Screen {
    own: File,
    pieces: Receiver<Vec<u8>>,
    output: String,
    child: Child,
}

impl Screen {
    pub fn open(size: (u16, u16), args: &[&str]) -> Screen {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs: OwnedFd = rustix::fs::open(&name, flags, Mode::empty()).unwrap();
        resize(&own, size);
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = command(args);
        command.env("TERM", "vt220").env_remove("NO_COLOR");
        command.stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        let own = File::from(own);
        let mut reader = own.try_clone().unwrap();
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Screen { own, pieces, output: String::new(), child }
    }

    fn type_keys(&mut self, keys: &str) {
        self.own.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this text is on the screen, after the text of the last wait.
    pub fn wait_for_text(&mut self, part: &str) {
        while !self.output.contains(part) {
            let piece = self.pieces.recv_timeout(TIMEOUT);
            let piece = piece.unwrap_or_else(|_| panic!("never shows {part:?}: {:?}", self.output));
            self.output.push_str(&text(&piece));
        }
        let end = self.output.find(part).unwrap() + part.len();
        self.output.drain(..end);
    }

    /// The rest of the output until the command has ended.
    pub fn remaining_text(mut self) -> String {
        self.child.wait().unwrap();
        self.pieces.iter().for_each(|piece| self.output.push_str(&text(&piece)));
        self.output
    }
}

fn resize(own: &impl std::os::fd::AsFd, (ws_row, ws_col): (u16, u16)) {
    let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(own, size).unwrap();
}

#[test]
fn a_terminal_in_a_task_has_its_size_its_keys_and_its_exit_code() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    run_waiting_job(&folder, &address);
    let args = ["--master", &address, "exec", "-t", "dev/web/0", "--"];
    let args = [&args[..], &["sh", "-c", "echo ready; exec sh -i"]].concat();
    let mut screen = Screen::open((33, 99), &args);
    screen.wait_for_text("ready");
    screen.type_keys("echo \"<$(stty size) $TERM $CELL_JOB>\"\r");
    screen.wait_for_text("<33 99 vt220 web>");
    resize(&screen.own, (40, 120));
    // The kernel signals the terminal's foreground processes; here there are none.
    kill("-WINCH", screen.child.id());
    screen.type_keys("until test \"$(stty size)\" = '40 120'; do :; done; echo size $((1 + 1))\r");
    screen.wait_for_text("size 2");
    // The output shows that the command has started: before that, the key would go to the shell.
    let begin = "sh -c 'echo begin $((2 + 1)); exec sleep 1000'; echo \"<code $?>\"\r";
    screen.type_keys(begin);
    screen.wait_for_text("begin 3");
    screen.type_keys("\u{3}");
    screen.type_keys("echo \"<then $?>\"\r");
    screen.wait_for_text("<then 130>");
    screen.type_keys("exit 3\r");
    assert_eq!(screen.child.wait().unwrap().code(), Some(3));
    // The local terminal has its former settings.
    let echoes = rustix::termios::tcgetattr(&screen.own).unwrap().local_modes;
    assert!(echoes.contains(rustix::termios::LocalModes::ECHO));
    let no_terminal = cell(&args);
    assert_eq!(no_terminal.status.code(), Some(2), "{}", text(&no_terminal.stderr));
    running.stop();
}

#[test]
fn bytes_travel_both_ways_and_streams_stay_apart() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    run_waiting_job(&folder, &address);
    let exec = ["--master", &address, "exec", "dev/web/0", "--"];
    let bytes: Vec<u8> = (0..10_u32 << 20).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
    let mut command = command(&[&exec[..], &["cat"]].concat());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout == bytes, "{} bytes came back", output.stdout.len());
    let script = "echo out; echo problem >&2; test \"$HOME\" = \"$PWD\" || exit 9; exit 7";
    let output = cell(&[&exec[..], &["sh", "-c", script]].concat());
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("out\n".into(), "problem\n".into()));
    assert_eq!(output.status.code(), Some(7));
    let output = cell(&[&exec[..], &["sh", "-c", "kill -TERM $$"]].concat());
    assert_eq!(output.status.code(), Some(128 + 15));
    check_missing_programs(&address);
    let output = cell(&["--master", &address, "exec", "dev/web/1", "--", "true"]);
    assert!(text(&output.stderr).contains("no-such-task"), "{}", text(&output.stderr));
    assert!(text(&output.stderr).ends_with(": cell status dev/web\n"), "{}", text(&output.stderr));
    stdout_of(&["--master", &address, "job", "stop", "dev/web"]);
    wait(&address, "web", |task| matches!(task.state, cellwright_cell::task::TaskState::Dead(_)));
    let output = cell(&[&exec[..], &["true"]].concat());
    assert!(text(&output.stderr).contains("does not run"), "{}", text(&output.stderr));
    running.stop();
}

/// A missing program, or a file that is not one, is reported with the exit code that shells use,
/// with a terminal and without.
fn check_missing_programs(address: &str) {
    let exec = ["--master", address, "exec", "dev/web/0", "--"];
    let on_screen = ["--master", address, "exec", "-t", "dev/web/0", "--"];
    let absent = "error: no program \"no-such-program\" in the task dev/web/0";
    let passive = "error: \"/etc/passwd\" in the task dev/web/0 is not executable";
    for (program, code, expected) in
        [("no-such-program", 127, absent), ("/etc/passwd", 126, passive)]
    {
        let output = cell(&[&exec[..], &[program]].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.starts_with(expected) && error.contains("\nnext: "), "{error}");
        let mut screen = Screen::open((24, 80), &[&on_screen[..], &[program]].concat());
        screen.wait_for_text(expected);
        assert_eq!(screen.child.wait().unwrap().code(), Some(code));
    }
}

/// Prints its pid, and keeps running, with a child that tries to escape.
const STAYING_SCRIPT: &str = r#"setsid sleep 1000 & echo $! >> "$SHARED/child"
    echo $$ >> "$SHARED/session"; echo here; exec sleep 1000"#;

/// Starts a session that keeps running, and returns the processes in it.
fn start_staying_session(folder: &Folder, exec: &[&str]) -> (Running, [u32; 2]) {
    for name in ["child", "session"] {
        // Left by an earlier session, if there was one.
        let _ = std::fs::remove_file(folder.path(name));
    }
    let session = Running::spawn_args(&[exec, &["sh", "-c", STAYING_SCRIPT]].concat());
    session.wait_for_line("here");
    (session, [first_line(folder, "session"), first_line(folder, "child")])
}

#[test]
fn a_session_ends_with_its_caller_and_with_its_task_and_leaves_nobody() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    run_waiting_job(&folder, &address);
    let exec = ["--master", &address, "exec", "dev/web/0", "--"];
    let (session, pids) = start_staying_session(&folder, &exec);
    session.kill();
    pids.into_iter().for_each(wait_gone);
    // A session whose input is not read, so that no component on the way waits for more of it.
    let mut command = command(&[&exec[..], &["sh", "-c", STAYING_SCRIPT]].concat());
    for name in ["child", "session"] {
        std::fs::remove_file(folder.path(name)).unwrap();
    }
    command.stdin(File::open("/dev/zero").unwrap()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let pids = [first_line(&folder, "session"), first_line(&folder, "child")];
    child.kill().unwrap();
    child.wait().unwrap();
    pids.into_iter().for_each(wait_gone);
    let (session, pids) = start_staying_session(&folder, &exec);
    stdout_of(&["--master", &address, "job", "stop", "dev/web"]);
    session.wait_for_line("the session was ended");
    pids.into_iter().for_each(wait_gone);
    running.stop();
}

#[test]
fn an_agent_that_dies_ends_sessions_and_not_tasks() {
    let apart = SplitCell::new();
    let master = apart.master();
    let agent = apart.agent();
    let tasks = apart.tasks(1);
    let exec = ["--master", &apart.address, "exec", "dev/waits/0", "--"];
    let (session, pids) = start_staying_session(&apart.folder, &exec);
    agent.kill();
    pids.into_iter().for_each(wait_gone);
    session.wait_for_line("error:");
    assert!(is_alive(tasks[0]));
    let agent = apart.agent();
    // The masters learn the new agent's port from its first report.
    let begun = Instant::now();
    while text(&cell(&[&exec[..], &["echo", "again"]].concat()).stdout) != "again\n" {
        assert!(begun.elapsed() < TIMEOUT, "no session with the next agent");
    }
    stdout_of(&["--master", &apart.address, "job", "stop", "dev/waits"]);
    wait_gone(tasks[0]);
    agent.stop();
    master.stop();
}

#[test]
fn a_master_that_dies_is_told_of_and_the_task_goes_on() {
    let apart = SplitCell::new();
    let master = apart.master();
    let agent = apart.agent();
    let tasks = apart.tasks(1);
    let exec = ["--master", &apart.address, "exec", "dev/waits/0", "--"];
    let (session, _) = start_staying_session(&apart.folder, &exec);
    master.kill();
    session.wait_for_line("the connection to the master was lost; the task dev/waits/0 goes on");
    assert!(is_alive(tasks[0]));
    let master = apart.master();
    stdout_of(&["--master", &apart.address, "stop", "dev/waits"]);
    wait_gone(tasks[0]);
    agent.stop();
    master.stop();
}

#[test]
fn sessions_are_for_owners_and_holders_are_audited_and_end_with_the_token() {
    let walled = SecureCell::new();
    make_fifo(&walled.folder.path("never"));
    walled.run("ann", "web", "exec sleep 1000");
    let exec = |user: &str| [&walled.args(user)[..], &["exec", "ann/web/0", "--"]].concat();
    let run = |user: &str| cell(&[&exec(user)[..], &["echo", "inside"]].concat());
    assert_eq!(text(&run("ann").stdout), "inside\n");
    assert_eq!(text(&run("admin").stdout), "inside\n");
    let rejected = run("bob");
    assert!(text(&rejected.stderr).contains("not-allowed"), "{}", text(&rejected.stderr));
    assert!(rejected.stdout.is_empty());
    let granted = serde_json::json!({ "capabilities": ["enter_tasks"] });
    walled.change(Method::PUT, "/v1/users/bob/capabilities", &granted);
    let (session, pids) = start_staying_session(&walled.folder, &exec("bob"));
    walled.change(
        Method::PUT,
        "/v1/users/bob/capabilities",
        &serde_json::json!({ "capabilities": [] }),
    );
    session.wait_for_line("the session was ended");
    pids.into_iter().for_each(wait_gone);
    let (session, pids) = start_staying_session(&walled.folder, &exec("ann"));
    walled.change(
        Method::DELETE,
        &format!("/v1/tokens/{}", walled.token_of("ann")),
        &serde_json::Value::Null,
    );
    session.wait_for_line("the session was ended");
    pids.into_iter().for_each(wait_gone);
    let audit = walled.audit();
    for line in [
        r#"user:ann | exec ["echo","inside"] | ann/web/0 | done"#,
        r#"user:admin | exec ["echo","inside"] | ann/web/0 | done"#,
        "user:bob | POST | /v1/jobs/ann/web/tasks/0/exec | not-allowed",
    ] {
        assert!(audit.iter().any(|found| found == line), "{line}: {audit:#?}");
    }
    walled.stop();
}

#[test]
fn a_task_has_so_many_sessions_and_no_more() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    run_waiting_job(&folder, &address);
    let exec = ["--master", &address, "exec", "dev/web/0", "--"];
    let open: Vec<Running> = (0..8)
        .map(|_| {
            let session =
                Running::spawn_args(&[&exec[..], &["sh", "-c", "echo in; sleep 1000"]].concat());
            session.wait_for_line("in");
            session
        })
        .collect();
    let rejected = cell(&[&exec[..], &["true"]].concat());
    assert!(text(&rejected.stderr).contains("overloaded"), "{}", text(&rejected.stderr));
    drop(open);
    let begun = Instant::now();
    while !cell(&[&exec[..], &["true"]].concat()).status.success() {
        assert!(begun.elapsed() < TIMEOUT, "seats are not given back");
    }
    running.stop();
}

#[test]
fn a_container_is_entered_where_its_task_is() {
    if !can_run("a_container_is_entered_where_its_task_is") {
        return;
    }
    let folder = Folder::new();
    let data = folder.path("data");
    let args = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--driver", "container"];
    let running = Running::spawn_args(&args);
    let address = running.address();
    run_waiting_job(&folder, &address);
    let exec = ["--master", &address, "exec", "dev/web/0", "--", "sh", "-c"];
    let inside = "pwd; id -u; echo $CELL_JOB; cat /proc/1/comm; exit 7";
    let output = cell(&[&exec[..], &[inside]].concat());
    assert_eq!(text(&output.stdout), "/work\n65534\nweb\nsleep\n", "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(7));
    let exec = ["--master", &address, "exec", "-t", "dev/web/0", "--", "sh", "-c"];
    let script = "stty size; echo ready; read word; echo \"<$word $TERM>\"; exit 4";
    let mut screen = Screen::open((33, 99), &[&exec[..], &[script]].concat());
    screen.wait_for_text("ready");
    screen.type_keys("hello\r");
    screen.wait_for_text("<hello vt220>");
    assert_eq!(screen.child.wait().unwrap().code(), Some(4));
    check_missing_programs(&address);
    running.stop();
}
