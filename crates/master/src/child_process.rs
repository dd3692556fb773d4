//! Supervises one child process of the master: its scheduler.
//!
//! The child ends with its standard input: when the master ends, however it ends, the pipe closes
//! and the child ends too. Rejected: a process group to kill. A master that was itself killed
//! cannot do that, and its successor would find an unknown process holding the scheduler's lease.

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

/// First and longest backoff before a child that ended is started again.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A child that ran this long was healthy: the next backoff is a short one again.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(30);
/// How long a child may take to end after its input is closed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// What to run. It must end when its standard input closes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// Starts the child, and again whenever it ends, until `stop` completes.
pub async fn supervise_child(command: ChildCommand, stop: impl Future<Output = ()>) {
    tokio::pin!(stop);
    let mut pause = BACKOFF_MIN;
    loop {
        let started = Instant::now();
        match spawn_child(&command) {
            Err(error) => tracing::error!(program = ?command.program, %error, "cannot be started"),
            Ok(mut child) => {
                // Waiting for a child closes its input, if it still holds it.
                let input = child.stdin.take();
                tokio::select! {
                    ended = child.wait() => log_exit(ended),
                    () = &mut stop => return stop_child(child, input).await,
                }
            }
        }
        if started.elapsed() >= BACKOFF_RESET_AFTER {
            pause = BACKOFF_MIN;
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(BACKOFF_MAX),
            () = &mut stop => return,
        }
    }
}

fn spawn_child(command: &ChildCommand) -> std::io::Result<Child> {
    Command::new(&command.program)
        .args(&command.arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

fn log_exit(ended: std::io::Result<ExitStatus>) {
    match ended {
        Ok(status) => tracing::warn!(%status, "the scheduler ended; it is started again"),
        Err(error) => tracing::warn!(%error, "the scheduler was lost; it is started again"),
    }
}

async fn stop_child(mut child: Child, input: Option<ChildStdin>) {
    drop(input);
    if timeout(SHUTDOWN_TIMEOUT, child.wait()).await.is_err() {
        tracing::warn!("the scheduler did not end in time and is killed");
        if let Err(error) = child.kill().await {
            tracing::warn!(%error, "the scheduler could not be killed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tokio::sync::oneshot;

    fn shell_command(script: String) -> ChildCommand {
        let arguments = vec![OsString::from("-c"), OsString::from(script)];
        ChildCommand { program: Path::new("/bin/sh").to_owned(), arguments }
    }

    #[tokio::test]
    async fn a_child_that_ends_is_started_again_and_goes_with_its_master() {
        let folder = crate::testing::TempFolder::new();
        std::fs::create_dir_all(&folder.0).unwrap();
        let fifo = folder.0.join("said");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        // Prints its number; the first two end at once, the third when its input closes.
        let count = folder.0.join("count");
        let script = format!(
            "echo x >> {count}; n=$(wc -l < {count}); echo $n > {fifo}; \
             if [ $n -ge 3 ]; then cat > /dev/null; echo bye > {fifo}; fi",
            count = count.display(),
            fifo = fifo.display()
        );
        let (stop, stopped) = oneshot::channel::<()>();
        let supervisor = tokio::spawn(supervise_child(shell_command(script), async {
            drop(stopped.await);
        }));
        let read = |path: PathBuf| async move {
            tokio::task::spawn_blocking(move || std::fs::read_to_string(path).unwrap())
                .await
                .unwrap()
        };
        for expected in ["1\n", "2\n", "3\n"] {
            assert_eq!(read(fifo.clone()).await.trim_start(), expected);
        }
        let last = tokio::spawn(read(fifo.clone()));
        drop(stop);
        assert_eq!(last.await.unwrap(), "bye\n");
        supervisor.await.unwrap();
    }
}
