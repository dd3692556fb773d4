//! Test support: runs `cell` as a process, reads its output, and ends it by its process id.

use cellwright_tests::{binary, leftovers};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Bounds every wait; no wait takes nearly as long.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// The interval of polling.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(binary::cell());
    command.current_dir(repo()).args(args);
    command
}

/// Runs `cell` to its end.
pub fn cell(args: &[&str]) -> Output {
    command(args).output().expect("cell runs")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The standard output of a successful run.
pub fn stdout_of(args: &[&str]) -> String {
    let output = cell(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&stdout_of(args)).expect("output is JSON")
}

/// Polls until there is a result, and panics with `never` on timeout.
pub fn poll_until<T>(never: &str, poll: impl FnMut() -> Option<T>) -> T {
    poll_within(TIMEOUT, never, poll)
}

#[expect(clippy::disallowed_methods, reason = "there is no event to wait for; looks are bounded")]
pub fn poll_within<T>(limit: Duration, never: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(begun.elapsed() < limit, "{never}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A temporary folder, removed at the end of the test together with the processes in it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("cell-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder can be made");
        // Tasks of an agent that runs as root are unprivileged users, and write to this folder.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, open).expect("it is opened to all");
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        leftovers::remove(&self.0);
    }
}

/// An address that most likely nothing listens on.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    listener.local_addr().expect("it has an address").to_string()
}

/// A running `cell`.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub fn spawn_args(args: &[&str]) -> Running {
        Running::spawn(command(args))
    }

    pub fn spawn(mut command: Command) -> Running {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().expect("cell starts");
        let (sender, lines) = mpsc::channel();
        let outputs: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("stdout is piped")),
            Box::new(child.stderr.take().expect("stderr is piped")),
        ];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    // The test may have stopped reading.
                    let _ = sender.send(line);
                }
            });
        }
        Running { child, lines }
    }

    /// The next line that contains `part`.
    pub fn wait_for_line(&self, part: &str) -> String {
        let mut lines_seen = Vec::new();
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => lines_seen.push(line),
                Err(why) => panic!("never said {part:?} ({why}):\n{}", lines_seen.join("\n")),
            }
        }
    }

    /// `host:port` of the URL that it announces.
    pub fn address(&self) -> String {
        let line = self.wait_for_line(" serves http");
        let url = line.split_whitespace().find(|word| word.starts_with("http"));
        let (_, address) = url.and_then(|url| url.split_once("://")).expect("a URL");
        address.to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process, as a power failure would.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is gone");
    }

    /// Waits until it ends by itself, successfully.
    pub fn wait_success(mut self) {
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
    }

    /// Sends ctrl-c as soon as its handler is installed; returns the output and the exit code.
    pub fn interrupt(mut self) -> (Vec<String>, Option<i32>) {
        let pid = self.child.id().to_string();
        let status = format!("/proc/{pid}/status");
        // The second lowest bit stands for signal 2, which is SIGINT.
        let listens = || {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0) & 2 != 0
        };
        poll_until("it never listens for ctrl-c", || listens().then_some(()));
        let status_of_kill = Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
        assert!(status_of_kill.success());
        let child = &mut self.child;
        let ended = poll_until("ctrl-c never ends it", || child.try_wait().expect("it is ours"));
        (self.lines.iter().collect(), ended.code())
    }

    /// Stops the process as an operator would.
    pub fn stop(mut self) {
        let pid = self.child.id().to_string();
        let status_of_kill =
            Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert!(status_of_kill.success());
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Has already ended, unless a test failed half-way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
