//! One process of the cell under measurement: this program again, as a replica, a scheduler or a
//! fleet of machines.
//!
//! Its standard input is held open; a part ends when that closes, so that nothing is left behind
//! when the benchmark itself dies. A line written there is a question, answered with one line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub struct CellProcess {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl CellProcess {
    /// What it has to complain about goes to `log`.
    pub fn start(what: &str, flags: &[(&str, String)], log: &Path) -> io::Result<CellProcess> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["masters", what]);
        for (name, value) in flags {
            command.arg(format!("--{name}")).arg(value);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(log)?)
            .spawn()?;
        let pipes = (process.stdin.take(), process.stdout.take());
        let (Some(stdin), Some(stdout)) = pipes else {
            return Err(io::Error::other("a process was started without its pipes"));
        };
        Ok(CellProcess { process, stdin, stdout: BufReader::new(stdout) })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Asks a question and waits for the line that answers it.
    pub fn request(&mut self, question: &str) -> io::Result<String> {
        writeln!(self.stdin, "{question}")?;
        let mut line = String::new();
        match self.stdout.read_line(&mut line)? {
            0 => Err(io::Error::other(format!("process {} ended", self.pid()))),
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// `kill -9`, and waits until the process is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }
}

impl Drop for CellProcess {
    fn drop(&mut self) {
        // It may be gone already, which is all that is wanted.
        let _ = self.kill();
    }
}

/// Answers every line of standard input with one line; done when it closes.
pub async fn answer_questions<F>(mut answer: F) -> io::Result<()>
where
    F: AsyncFnMut(String) -> io::Result<String>,
{
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        println!("{}", answer(line).await?);
    }
    Ok(())
}
