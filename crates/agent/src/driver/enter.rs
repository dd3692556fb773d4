//! What a session in an attempt runs: the command where the task is, with what the task has and
//! held to what the task is held to. What was launched decides, not the driver of the present
//! agent: an attempt outlives the agent that launched it, and another driver may have been chosen
//! since.

use super::DriverError;
use crate::shim::protocol::Launch;
use cellwright_isolate::container::{ContainerId, Exec, Runc, Runtime};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the runtime itself needs of an environment: to find its helpers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a session asks for.
pub struct Enter<'a> {
    /// What the attempt's shim launched.
    pub launch: &'a Launch,
    pub command: Vec<String>,
    /// The command gets a terminal, of this kind.
    pub terminal: bool,
    pub term: Option<&'a str>,
}

/// What a session runs, and as whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub command: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    pub directory: PathBuf,
    /// User and group. Absent: those of the agent.
    pub identity: Option<(u32, u32)>,
    /// The control group it is put into. Absent: none, or the runtime sees to it.
    pub group: Option<String>,
    /// Whether the command itself is started, and not a runtime that enters a container.
    pub plain: bool,
}

/// # Errors
/// When this attempt cannot be entered.
pub fn enter(enter: &Enter<'_>) -> Result<Entry, DriverError> {
    let launch = enter.launch;
    let mut env = launch.env.clone();
    if enter.terminal {
        env.retain(|(name, _)| name != "TERM");
        env.push(("TERM".to_owned(), enter.term.unwrap_or("dumb").to_owned()));
    }
    let Some(container) = &launch.container else {
        return Ok(Entry {
            command: enter.command.clone(),
            env,
            directory: launch.directory.clone(),
            identity: launch.identity,
            group: launch.group.clone(),
            plain: true,
        });
    };
    let (uid, gid) = launch.identity.unwrap_or((0, 0));
    let exec = Exec {
        command: enter.command.clone(),
        env: env.into_iter().collect(),
        cwd: launch.directory.clone(),
        uid,
        gid,
        terminal: enter.terminal,
    };
    let runtime = Runc::new(&container.runtime, &container.state);
    let command = runtime.exec(&ContainerId::new(&container.id)?, &exec);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    Ok(Entry {
        command: words.map(|word| word.to_string_lossy().into_owned()).collect(),
        env: vec![("PATH".to_owned(), PATH.to_owned())],
        directory: "/".into(),
        identity: None,
        group: None,
        plain: false,
    })
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
            identity: Some((33, 34)),
            logs: LogSettings { file_bytes: 4096, files: 2, rate: 4096 },
            lease_until: None,
            max_run: None,
            group: Some("/cell/7-1".into()),
            container,
            secrets: None,
        }
    }

    fn entry(launch: &Launch, terminal: bool) -> Entry {
        let command = vec!["sh".to_owned(), "-c".to_owned(), "date".to_owned()];
        enter(&Enter { launch, command, terminal, term: Some("vt220") }).unwrap()
    }

    #[test]
    fn a_plain_process_is_entered_as_it_was_launched() {
        let found = entry(&launch(None), true);
        assert_eq!(found.command, ["sh", "-c", "date"]);
        assert!(found.env.contains(&("TERM".into(), "vt220".into())) && found.env.len() == 2);
        assert_eq!((found.identity, found.group.as_deref()), (Some((33, 34)), Some("/cell/7-1")));
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
        assert_eq!((found.identity, found.group), (None, None));
        let line = found.command.join(" ");
        assert!(line.starts_with("/bin/runc --root /run/state exec --user 33:34"), "{line}");
        assert!(line.contains("--env A=1") && line.ends_with(" 7-1 sh -c date"), "{line}");
        assert!(!line.contains("--tty"), "{line}");
    }
}
