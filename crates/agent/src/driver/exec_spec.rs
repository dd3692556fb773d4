//! What a session (exec) runs in an attempt: the command beside the task, with the task's
//! environment and limits. The stored launch decides, not the current agent's driver: an attempt
//! outlives the agent that launched it, and another driver may have been selected since.

use super::DriverError;
use crate::session::program_lookup::ProgramLookup;
use crate::shim::protocol::Launch;
use cellwright_isolate::container::{Bundle, ContainerId, Exec, Runc, Runtime};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment that the runtime itself needs to find its helpers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The request for a session.
pub struct ExecRequest<'a> {
    /// What the attempt's shim launched.
    pub launch: &'a Launch,
    pub command: Vec<String>,
    /// The command gets a terminal.
    pub terminal: bool,
    pub term: Option<&'a str>,
}

/// What a session runs, and as which user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    pub command: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    pub directory: PathBuf,
    /// User and group. Absent: those of the agent.
    pub identity: Option<(u32, u32)>,
    /// The cgroup it joins. Absent: none, or the runtime sees to it.
    pub group: Option<String>,
    /// For a session in a container: what the runtime reads, and from which file. Absent: the
    /// command itself is started.
    pub within: Option<ContainerExec>,
    /// The lookup of the program before anything is started. Absent: it was not requested, or
    /// cannot be done.
    pub sought: Option<ProgramLookup>,
}

/// What executing in a container takes beside a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerExec {
    /// The process description for the runtime, and the file to write it to.
    pub description: String,
    pub file: PathBuf,
    /// The container's cgroup, and the name of the one inside it that all this runs in: processes
    /// that the command leaves behind become children of the container's init, and are found and
    /// killed there.
    pub group: String,
    pub inner: String,
}

/// # Errors
/// When no session is possible in this attempt.
pub fn exec_spec(enter: &ExecRequest<'_>) -> Result<ExecSpec, DriverError> {
    let launch = enter.launch;
    let mut env = launch.env.clone();
    if enter.terminal {
        env.retain(|(name, _)| name != "TERM");
        env.push(("TERM".to_owned(), enter.term.unwrap_or("dumb").to_owned()));
    }
    let sought = ProgramLookup {
        program: enter.command.first().cloned().unwrap_or_default(),
        task: launch.name.clone(),
        path: env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone()),
        directory: launch.directory.clone(),
        root_of: None,
        group: None,
    };
    let Some(container) = &launch.container else {
        return Ok(ExecSpec {
            command: enter.command.clone(),
            env,
            directory: launch.directory.clone(),
            identity: launch.run_as,
            group: launch.group.clone(),
            within: None,
            sought: Some(sought),
        });
    };
    let (uid, gid) = launch.run_as.unwrap_or((0, 0));
    let exec = Exec {
        command: enter.command.clone(),
        env: env.into_iter().collect(),
        cwd: launch.directory.clone(),
        uid,
        gid,
        terminal: enter.terminal,
    };
    let no_cgroup = || DriverError::Cannot {
        field: "control group",
        value: "none".into(),
        allowed: "one for every container".into(),
    };
    let runtime = Runc::new(&container.runtime, &container.state);
    let inner = unique_name();
    let bundle = Bundle::at(&container.run, &ContainerId::new(&container.id)?);
    let within = ContainerExec {
        description: exec.description()?,
        file: bundle.exec_file(&inner),
        group: launch.group.clone().ok_or_else(no_cgroup)?,
        inner,
    };
    // If its first process is not known, the runtime has to find it.
    let first = bundle.first_process().ok();
    let group = launch.group.clone();
    let sought = first.map(|process| ProgramLookup { root_of: Some(process), group, ..sought });
    let command = runtime.exec(bundle.id(), &within.file, Some(&within.inner));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    Ok(ExecSpec {
        command: words.map(|word| word.to_string_lossy().into_owned()).collect(),
        env: vec![("PATH".to_owned(), PATH.to_owned())],
        directory: "/".into(),
        identity: None,
        group: None,
        within: Some(within),
        sought,
    })
}

/// No other session at this time has it, by this agent or by one before.
fn unique_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("exec-{}-{number}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::protocol::{Container, LogSettings};

    fn launch(container: Option<Container>) -> Launch {
        Launch {
            name: "u/j/0".into(),
            command: vec!["serve".into()],
            env: vec![("A".into(), "1".into()), ("TERM".into(), "none".into())],
            directory: "/work".into(),
            run_as: Some((33, 34)),
            logs: LogSettings { file_bytes: 4096, files: 2, rate: 4096 },
            lease_until: None,
            max_run: None,
            group: Some("/cell/7-1".into()),
            container,
            secrets: None,
            identity_dir: None,
        }
    }

    fn entry(launch: &Launch, terminal: bool) -> ExecSpec {
        let command = vec!["sh".to_owned(), "-c".to_owned(), "date".to_owned()];
        exec_spec(&ExecRequest { launch, command, terminal, term: Some("vt220") }).unwrap()
    }

    #[test]
    fn a_plain_process_is_entered_as_it_was_launched() {
        let found = entry(&launch(None), true);
        assert_eq!(found.command, ["sh", "-c", "date"]);
        assert!(found.env.contains(&("TERM".into(), "vt220".into())) && found.env.len() == 2);
        assert_eq!((found.identity, found.group.as_deref()), (Some((33, 34)), Some("/cell/7-1")));
        let sought = found.sought.unwrap();
        assert_eq!((sought.program.as_str(), sought.task.as_str()), ("sh", "u/j/0"));
        assert_eq!((sought.root_of, sought.group), (None, None));
    }

    #[test]
    fn a_container_is_entered_by_its_runtime() {
        let container = Container {
            runtime: "/bin/runc".into(),
            state: "/run/state".into(),
            run: "/run/containers".into(),
            id: "7-1".into(),
            owner: (1, 2),
        };
        let found = entry(&launch(Some(container)), false);
        assert_eq!((found.identity, &found.group), (None, &None));
        let line = found.command.join(" ");
        let within = found.within.unwrap();
        let (file, inner) = (within.file.display(), &within.inner);
        let expected =
            format!("/bin/runc --root /run/state exec --process {file} --cgroup {inner} 7-1");
        assert_eq!(line, expected, "what is in the environment is not on the command line");
        assert!(within.file.starts_with("/run/containers/7-1/private"), "{within:?}");
        assert_eq!(within.group, "/cell/7-1");
        let read: serde_json::Value = serde_json::from_str(&within.description).unwrap();
        assert_eq!(read["args"], serde_json::json!(["sh", "-c", "date"]));
        assert_eq!(read["env"], serde_json::json!(["A=1", "TERM=none"]));
        assert_eq!((&read["user"]["uid"], &read["user"]["gid"]), (&33.into(), &34.into()));
        assert_eq!(read["noNewPrivileges"], serde_json::json!(true));
        assert_ne!(entry(&launch(None), false).within, Some(within));
    }
}
