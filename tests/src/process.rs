//! A process of ours: ended by its own id when it goes out of scope, its output kept in a file.

use crate::{POLL_INTERVAL, TIMEOUT};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;
use tokio::time::sleep;

pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it; what it says is added to the file `log`.
    #[must_use]
    pub fn start(mut command: Command, log: &Path) -> Process {
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.expect("the log can be written");
        let again = file.try_clone().expect("a file can be had twice");
        command.stdin(Stdio::null()).stdout(file).stderr(again);
        let child = command.spawn().unwrap_or_else(|why| panic!("{command:?}: {why}"));
        Process { child, log: log.to_owned() }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a process of ours");
    }

    /// Ends it without asking.
    pub fn kill(mut self) {
        self.end();
    }

    /// Everything it said so far.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return status;
            }
            assert!(begin.elapsed() < TIMEOUT, "it does not end:\n{}", self.output());
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
