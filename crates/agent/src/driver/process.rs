//! The `process` driver: a program as a plain child of its shim. Needs no root and no kernel
//! features, and keeps tasks from little: they see the machine's files, network and each other.
//! Limits of memory and CPU are not enforced; all that a task starts is still found and killed with
//! it, because the shim reaps whatever is below it.
//!
//! What the program is told, in its environment and in `ports` beside its folder: who it is, which
//! ports were given to it, and where it may write.

use super::{Driver, DriverError, Start};
use crate::shim::protocol::{Launch, LogSettings};
use cellwright_cell::spec::LogLimits;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Of the agent's own environment, what a program may need to find others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessDriver;

impl Driver for ProcessDriver {
    fn name(&self) -> &'static str {
        "process"
    }

    fn off(&self) -> Option<String> {
        None
    }

    fn gaps(&self) -> Vec<String> {
        vec![
            "files, network and processes of the machine are not hidden".into(),
            "limits of memory, CPU and disk are not enforced".into(),
            "ports that were not given can be used".into(),
        ]
    }

    fn prepare(&self, start: &Start<'_>) -> Result<Launch, DriverError> {
        if let Some(package) = start.work.packages.first() {
            return Err(DriverError::Cannot {
                field: "task.packages",
                value: package.name.to_string(),
                allowed: "none with the process driver, which has no root of its own".into(),
            });
        }
        let account = start.work.user.as_ref().map(|user| account(user.as_str())).transpose()?;
        write_files(start, account)?;
        let ports: Vec<String> = start.work.ports.iter().map(ToString::to_string).collect();
        let path = start.folder.join("ports");
        let text: String = ports.iter().map(|port| format!("{port}\n")).collect();
        fs::write(&path, text).map_err(|why| DriverError::Io { path: path.clone(), why })?;
        Ok(Launch {
            name: start.name.to_owned(),
            command: start.work.command.clone(),
            env: environment(start, &ports, &path.display().to_string()).into_iter().collect(),
            directory: start.directory.clone(),
            identity: account,
            logs: logs(start),
            lease_until: start.lease_until,
            max_run: start.work.max_run.map(|length| length.0),
        })
    }
}

/// A job can have less kept than the machine's operator allows, and not more.
fn logs(start: &Start<'_>) -> LogSettings {
    let most = start.logs;
    start.work.logs.map_or(most, |LogLimits { file_bytes, files, rate }| LogSettings {
        file_bytes: file_bytes.min(most.file_bytes),
        files: files.min(most.files),
        rate: rate.min(most.rate),
    })
}

/// User and group of an account of this machine. Only root can become another.
fn account(user: &str) -> Result<(u32, u32), DriverError> {
    let path = PathBuf::from("/etc/passwd");
    let text = fs::read_to_string(&path).map_err(|why| DriverError::Io { path, why })?;
    let cannot = |allowed: &str| DriverError::Cannot {
        field: "task.user",
        value: user.to_owned(),
        allowed: allowed.to_owned(),
    };
    let found = find_account(&text, user).ok_or_else(|| cannot("an account of this machine"))?;
    let own = rustix::process::geteuid();
    if own.is_root() || own.as_raw() == found.0 {
        return Ok(found);
    }
    Err(cannot("the agent's own account: an agent that is not root cannot become another"))
}

fn find_account(passwd: &str, user: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, ..] = fields[..] else { return None };
        if name != user {
            return None;
        }
        Some((uid.parse().ok()?, gid.parse().ok()?))
    })
}

/// Nothing of the task runs yet, so nobody can have laid a trap in the folder.
fn write_files(start: &Start<'_>, account: Option<(u32, u32)>) -> Result<(), DriverError> {
    let own = |path: &Path| match account {
        Some((user, group)) => std::os::unix::fs::chown(path, Some(user), Some(group)),
        None => Ok(()),
    };
    let io = |path: &Path| {
        let path = path.to_owned();
        move |why| DriverError::Io { path, why }
    };
    own(&start.directory).map_err(io(&start.directory))?;
    for (name, text) in &start.work.files {
        let mut folder = start.directory.clone();
        let (parents, last) = name.rsplit_once('/').unwrap_or(("", name));
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            folder.push(part);
            fs::create_dir_all(&folder).and_then(|()| own(&folder)).map_err(io(&folder))?;
        }
        let path = folder.join(last);
        write_secret(&path, text).and_then(|()| own(&path)).map_err(io(&path))?;
    }
    Ok(())
}

/// For the task's account alone.
fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// What the cell says, and over it what the owner says.
fn environment(start: &Start<'_>, ports: &[String], file: &str) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let mut tell = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
    let mut parts = start.name.split('/');
    for name in ["CELL_USER", "CELL_JOB", "CELL_INDEX"] {
        tell(name, parts.next().unwrap_or_default());
    }
    let directory = start.directory.display().to_string();
    tell("PATH", PATH);
    tell("HOME", &directory);
    tell("CELL_DIR", &directory);
    tell("CELL_MACHINE", start.machine);
    tell("CELL_ATTEMPT", &start.attempt.number.to_string());
    tell("CELL_PORTS", &ports.join(","));
    tell("CELL_PORTS_FILE", file);
    for (number, port) in ports.iter().enumerate() {
        tell(&format!("CELL_PORT{number}"), port);
    }
    if let Some(alloc) = &start.alloc {
        tell("CELL_ALLOC_DIR", &alloc.display().to_string());
    }
    env.extend(start.work.env.clone());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_looked_up_by_their_whole_name() {
        let passwd = "root:x:0:0:root:/:/bin/sh\nbroken\nwww:x:33:34:www:/var:/bin/sh\n";
        assert_eq!(find_account(passwd, "www"), Some((33, 34)));
        assert_eq!(find_account(passwd, "ww"), None);
        assert_eq!(find_account(passwd, "broken"), None);
        let error = account("no-such-account").unwrap_err().to_string();
        assert!(error.contains("task.user") && error.contains("no-such-account"), "{error}");
    }
}
