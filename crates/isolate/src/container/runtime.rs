//! The OCI runtime as a program, behind a trait so that another one, or none, can stand in.
//!
//! Starting that program costs more than anything else in a short task's life, so a container takes
//! one start of it. Rejected: `create`, `start` and `delete`, which are three; the pause between
//! the first two is for callers that have something to do in it.

use super::bundle::Bundle;
use super::spec::ContainerId;
use crate::Error;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the container's first process gets as its standard streams.
pub struct Streams {
    pub stdin: Stdio,
    pub stdout: Stdio,
    pub stderr: Stdio,
}

impl Streams {
    #[must_use]
    pub fn null() -> Streams {
        Streams { stdin: Stdio::null(), stdout: Stdio::null(), stderr: Stdio::null() }
    }
}

/// A process executed beside the task, in its namespaces and its cgroup. The runtime reads it from
/// a file: everybody on the machine can read a command line, and an environment holds passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    pub uid: u32,
    pub gid: u32,
    /// The caller's standard streams are a terminal, and the process shall have one too.
    pub terminal: bool,
}

pub trait Runtime {
    /// Name and version; an error says why it cannot be used at all.
    ///
    /// # Errors
    /// When it cannot be started.
    fn version(&self) -> Result<String, Error>;

    /// Creates the container, starts its program and returns its first process, which may have
    /// exited by then. The runtime itself has exited: the process is a child of the nearest
    /// subreaper.
    ///
    /// # Errors
    /// With the runtime's message: that the program is not there, mostly. Nothing is left then.
    fn run(&self, bundle: &Bundle, streams: Streams) -> Result<u32, Error>;

    /// Removes the record of a container without processes: its cgroup was found empty. One that is
    /// not there is fine.
    ///
    /// # Errors
    /// With the runtime's message, or when its record cannot be removed.
    fn forget(&self, id: &ContainerId) -> Result<(), Error>;

    /// Kills what is left of the container and deletes it, its cgroup included: read usage before.
    /// One that is not there is fine.
    ///
    /// # Errors
    /// With the runtime's message.
    fn delete(&self, id: &ContainerId) -> Result<(), Error>;

    /// Containers it knows, running or not.
    ///
    /// # Errors
    /// With the runtime's message.
    fn list(&self) -> Result<Vec<ContainerId>, Error>;

    /// A command that executes the process in `file` ([`Exec::description`]) in the container; its
    /// exit code is the program's. With `inner`, in that cgroup inside the container's own, which
    /// must be there.
    fn exec(&self, id: &ContainerId, file: &Path, inner: Option<&str>) -> Command;
}

/// runc, or a program with the same command line.
#[derive(Clone, Debug)]
pub struct Runc {
    program: PathBuf,
    /// Where it keeps the state of its containers; ours alone, so that everything in it is ours.
    state: PathBuf,
}

impl Runc {
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Runc {
        Runc { program: program.into(), state: state.into() }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.state).arg(verb);
        command
    }

    fn logged(&self, log: &Path, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.state).arg("--log").arg(log);
        command.args(["--log-format", "json", verb]);
        command
    }

    fn failed(&self, verb: &'static str, id: &ContainerId, message: String) -> Error {
        Error::Runtime { program: self.program.clone(), verb, id: id.to_string(), message }
    }

    fn spawn_error(&self) -> impl FnOnce(io::Error) -> Error {
        let program = self.program.clone();
        move |source| Error::Spawn { program, source }
    }

    /// Removes the record of a container, as long as it has the expected form: plain files in one
    /// directory. No directory is walked through, so no files of others can be hit.
    fn remove_record(&self, id: &ContainerId) -> io::Result<()> {
        let record = self.state.join(id.as_str());
        let entries = match fs::read_dir(&record) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            fs::remove_file(entry?.path())?;
        }
        fs::remove_dir(&record)
    }
}

impl Runtime for Runc {
    fn version(&self) -> Result<String, Error> {
        let output =
            Command::new(&self.program).arg("--version").output().map_err(self.spawn_error())?;
        let text = String::from_utf8_lossy(&output.stdout);
        match text.lines().next() {
            Some(line) if output.status.success() => Ok(line.to_owned()),
            _ => {
                let status = output.status.to_string();
                Err(Error::invalid("runtime", status, "a program that tells its version"))
            }
        }
    }

    fn run(&self, bundle: &Bundle, streams: Streams) -> Result<u32, Error> {
        let mut command = self.logged(&bundle.runtime_log(), "run");
        command.arg("--detach").arg("--bundle").arg(bundle.directory());
        command.arg("--pid-file").arg(bundle.pid_file());
        command.arg(bundle.id().as_str());
        // The container's first process must not get the agent's variables, but a runtime given by
        // name alone is found through one of them.
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.stdin(streams.stdin).stdout(streams.stdout).stderr(streams.stderr);
        let status = command.status().map_err(self.spawn_error())?;
        if !status.success() {
            let log = fs::read_to_string(bundle.runtime_log()).unwrap_or_default();
            let message = last_error(&log).unwrap_or_else(|| status.to_string());
            return Err(self.failed("run", bundle.id(), message));
        }
        bundle.first_process()
    }

    /// The content of its record is internal to the runtime: a record of another form is left to
    /// the runtime itself.
    fn forget(&self, id: &ContainerId) -> Result<(), Error> {
        self.remove_record(id).or_else(|_| self.delete(id))
    }

    fn delete(&self, id: &ContainerId) -> Result<(), Error> {
        let mut command = self.command("delete");
        let output =
            command.arg("--force").arg(id.as_str()).output().map_err(self.spawn_error())?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        Err(self.failed("delete", id, message.trim().to_owned()))
    }

    fn list(&self) -> Result<Vec<ContainerId>, Error> {
        // The names in its directory are the containers; asking the runtime costs a process and
        // fails as a whole when one container's record is damaged.
        let entries = match fs::read_dir(&self.state) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::file("list", &self.state)(e)),
        };
        let mut ids: Vec<ContainerId> = entries
            .filter_map(|entry| ContainerId::new(entry.ok()?.file_name().to_str()?).ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    fn exec(&self, id: &ContainerId, file: &Path, inner: Option<&str>) -> Command {
        let mut command = self.command("exec");
        command.arg("--process").arg(file);
        if let Some(inner) = inner {
            command.arg("--cgroup").arg(inner);
        }
        command.arg(id.as_str());
        command
    }
}

/// The runtime writes one object a line; the last error is the one that made it fail.
fn last_error(log: &str) -> Option<String> {
    let message = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_error = matches!(value["level"].as_str(), Some("error" | "fatal"));
        is_error.then(|| value["msg"].as_str().map(str::to_owned)).flatten()
    };
    log.lines().filter_map(message).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_the_log_is_the_reason() {
        let log = "{\"level\":\"warning\",\"msg\":\"w\"}\n{\"level\":\"error\",\"msg\":\"first\"}\n\
                   not json\n{\"level\":\"error\",\"msg\":\"exec: no such file\"}\n";
        assert_eq!(last_error(log).as_deref(), Some("exec: no such file"));
        assert_eq!(last_error(""), None);
    }

    #[test]
    fn a_record_of_plain_files_is_removed_without_the_runtime_and_no_other_is() {
        let state = std::env::temp_dir().join(format!("cellwright-state-{}", std::process::id()));
        // Not there, so every operation that needs the runtime fails.
        let runc = Runc::new("/no/such/runtime", &state);
        let (plain, odd) = (ContainerId::new("1-1").unwrap(), ContainerId::new("2-1").unwrap());
        for id in [&plain, &odd] {
            fs::create_dir_all(state.join(id.as_str())).unwrap();
            fs::write(state.join(id.as_str()).join("state.json"), "{}").unwrap();
        }
        fs::create_dir(state.join("2-1/inner")).unwrap();
        fs::write(state.join("2-1/inner/file"), "somebody's").unwrap();
        runc.forget(&plain).unwrap();
        runc.forget(&plain).unwrap();
        assert!(runc.forget(&odd).is_err());
        assert_eq!(runc.list().unwrap(), [odd]);
        assert!(state.join("2-1/inner/file").exists());
        fs::remove_dir_all(state).unwrap();
    }

    #[test]
    fn a_runtime_that_is_not_there_is_named() {
        let runc = Runc::new("/no/such/runtime", "/no/such/state");
        let error = runc.version().unwrap_err().to_string();
        assert!(error.starts_with("cannot run /no/such/runtime: "), "{error}");
        assert_eq!(runc.list().unwrap(), []);
    }
}
