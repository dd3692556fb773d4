//! The `process` driver: a program as a plain child of its shim. Needs no root and no container
//! runtime, and hides nothing: tasks see the machine's files, network and each other. Where the
//! agent is root, a task has a control group all the same, with its limits; without, all that a
//! task starts is still found and killed with it, because the shim reaps whatever is below it.

use super::told::{
    Ids, Places, check_package_name, environment, find_account, io, logs, open_alloc, remove,
    write_files, write_ports, write_secrets,
};
use super::{Driver, DriverError, Start};
use crate::shim::protocol::Launch;
use cellwright_cell::isolation::Network;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

#[derive(Clone, Debug, Default)]
pub struct ProcessDriver {
    /// Why tasks have no control groups, if they have none.
    pub groups_off: Option<String>,
}

impl Driver for ProcessDriver {
    fn name(&self) -> &'static str {
        "process"
    }

    fn gaps(&self) -> Vec<String> {
        let mut gaps = vec![
            "files, network and processes of the machine are not hidden".to_owned(),
            "ports that were not given can be used".into(),
        ];
        if let Some(why) = &self.groups_off {
            gaps.push(format!("limits of memory, CPU and disk are not enforced: {why}"));
        }
        gaps
    }

    fn prepare(&self, start: &Start<'_>) -> Result<Launch, DriverError> {
        refuse_what_takes_a_container(start)?;
        let account = start.work.user.as_ref().map(|user| account(user.as_str())).transpose()?;
        write_files(start, account)?;
        open_alloc(start)?;
        let places = Places {
            directory: start.directory.clone(),
            ports: write_ports(start)?,
            packages: link_packages(start)?,
            alloc: start.alloc.clone(),
            secrets: write_secrets(start, account)?,
        };
        Ok(Launch {
            name: start.name.to_owned(),
            command: start.work.command.clone(),
            env: environment(start, &places).into_iter().collect(),
            directory: start.directory.clone(),
            identity: account,
            logs: logs(start),
            lease_until: start.lease_until,
            max_run: start.work.max_run.map(|length| length.0),
            group: start.group.as_ref().map(|group| group.path().to_string()),
            container: None,
            secrets: places.secrets,
        })
    }

    /// A plain process leaves nothing but its folder and its group.
    fn sweep(&self, _: &BTreeSet<String>) {}
}

fn refuse_what_takes_a_container(start: &Start<'_>) -> Result<(), DriverError> {
    let asked = &start.work.isolation;
    let volumes: Vec<&str> = asked.volumes.iter().map(|volume| volume.source.as_str()).collect();
    let own = (asked.network == Network::Own).then(|| "own".to_owned());
    let wishes = [
        ("task.isolation.root", asked.root.as_ref().map(ToString::to_string)),
        ("task.isolation.network", own),
        ("task.isolation.volumes", (!volumes.is_empty()).then(|| volumes.join(", "))),
    ];
    for (field, asked) in wishes {
        if let Some(value) = asked {
            let allowed = "none on this machine, whose tasks are plain processes".to_owned();
            return Err(DriverError::Cannot { field, value, allowed });
        }
    }
    Ok(())
}

/// The unpacked packages, each under its name, beside the task's folder.
fn link_packages(start: &Start<'_>) -> Result<PathBuf, DriverError> {
    let folder = start.folder.join("packages");
    if start.packages.is_empty() {
        return Ok(folder);
    }
    remove(&folder).map_err(io(&folder))?;
    fs::create_dir_all(&folder).map_err(io(&folder))?;
    for (name, unpacked) in start.packages {
        check_package_name(name)?;
        let link = folder.join(name);
        symlink(unpacked, &link).map_err(io(&link))?;
    }
    Ok(folder)
}

/// User and group of an account of this machine. Only root can become another.
fn account(user: &str) -> Result<Ids, DriverError> {
    let path = PathBuf::from("/etc/passwd");
    let text = fs::read_to_string(&path).map_err(io(&path))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_is_not_there_is_named() {
        let error = account("no-such-account").unwrap_err().to_string();
        assert!(error.contains("task.user") && error.contains("no-such-account"), "{error}");
    }
}
