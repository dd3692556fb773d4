//! The `process` driver: a program as a plain child of its shim. Needs no root and no container
//! runtime, and isolates nothing: tasks see the machine's files, network and each other. Where the
//! agent is root, a task has a cgroup all the same, with its limits; without one, all processes of
//! a task are still found and killed with it, because the shim reaps all its descendants.
//!
//! Under a root agent each task has a user of its own, unless its job names an account that the
//! operator lets jobs have.

use super::task_env::{
    TaskPaths, check_package_name, environment, io, log_limits, open_alloc, remove_dir,
    restrict_access, sweep_secrets, write_credentials, write_devices, write_files, write_ports,
    write_secrets,
};
use super::task_user::process_ids;
use super::{Driver, DriverError, StartContext};
use crate::devices::GrantedDevice;
use crate::shim::protocol::Launch;
use cellwright_cell::isolation::Network;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default)]
pub struct ProcessDriver {
    /// Why tasks have no cgroups, if they have none.
    pub groups_off: Option<String>,
    /// Accounts that jobs may name, beside `nobody`.
    pub users: Vec<String>,
    /// The agent's folder, if other accounts cannot pass through all the folders around it.
    pub inaccessible_root: Option<PathBuf>,
}

impl Driver for ProcessDriver {
    fn name(&self) -> &'static str {
        "process"
    }

    fn isolation_gaps(&self) -> Vec<String> {
        let mut gaps = vec![
            "files, network and processes of the machine are not hidden".to_owned(),
            "ports that were not given can be used".into(),
            "devices are open to whoever may open their nodes".into(),
        ];
        if rustix::process::geteuid().is_root() {
            gaps.extend(self.inaccessible_root.as_ref().map(|closed| {
                let closed = closed.display();
                format!("{closed} is closed to others: tasks reach what is below it by short paths")
            }));
        }
        if let Some(why) = &self.groups_off {
            gaps.push(format!("limits of memory, CPU and disk are not enforced: {why}"));
        }
        gaps
    }

    fn prepare(&self, start: &StartContext<'_>) -> Result<Launch, DriverError> {
        reject_container_only_settings(start)?;
        let user = start.work.user.as_ref().map(|user| user.as_str());
        let account = process_ids(user, &self.users, start.range)?;
        restrict_access(start, account.map(|(_, group)| group))?;
        write_files(start, account)?;
        open_alloc(start)?;
        // The nodes are the machine's, and so are their permissions.
        let paths = |granted: &'_ GrantedDevice| granted.host_device.nodes.clone();
        let seen: Vec<Vec<PathBuf>> = start.devices.iter().map(paths).collect();
        let task_paths = TaskPaths {
            directory: start.directory.clone(),
            ports: write_ports(start)?,
            packages: link_packages(start)?,
            alloc: start.alloc.clone(),
            devices: write_devices(start, &seen)?,
            secrets: write_secrets(start, account)?,
            credentials: write_credentials(start, account)?,
        };
        Ok(Launch {
            name: start.name.to_owned(),
            command: start.work.command.clone(),
            env: environment(start, &task_paths).into_iter().collect(),
            directory: start.directory.clone(),
            run_as: account,
            logs: log_limits(start),
            lease_until: start.lease_until,
            max_run: start.work.max_run.map(|length| length.0),
            group: start.group.as_ref().map(|group| group.path().to_string()),
            container: None,
            secrets: task_paths.secrets,
            identity_dir: task_paths.credentials,
        })
    }

    /// Apart from its secrets a plain process leaves nothing but its folder and its cgroup.
    fn sweep(&self, tasks: &Path, kept: &BTreeSet<String>) {
        sweep_secrets(tasks, kept);
    }
}

fn reject_container_only_settings(start: &StartContext<'_>) -> Result<(), DriverError> {
    let isolation = &start.work.isolation;
    let volumes: Vec<&str> =
        isolation.volumes.iter().map(|volume| volume.source.as_str()).collect();
    let own = (isolation.network == Network::Own).then(|| "own".to_owned());
    let container_settings = [
        ("task.isolation.root", isolation.root.as_ref().map(ToString::to_string)),
        ("task.isolation.network", own),
        ("task.isolation.volumes", (!volumes.is_empty()).then(|| volumes.join(", "))),
    ];
    for (field, requested) in container_settings {
        if let Some(value) = requested {
            let allowed = "none on this machine, whose tasks are plain processes".to_owned();
            return Err(DriverError::Cannot { field, value, allowed });
        }
    }
    Ok(())
}

/// The unpacked packages, each under its name, beside the task's folder.
fn link_packages(start: &StartContext<'_>) -> Result<PathBuf, DriverError> {
    let folder = start.folder.join("packages");
    if start.packages.is_empty() {
        return Ok(folder);
    }
    remove_dir(&folder).map_err(io(&folder))?;
    fs::create_dir_all(&folder).map_err(io(&folder))?;
    for (name, unpacked) in start.packages {
        check_package_name(name)?;
        let link = folder.join(name);
        symlink(unpacked, &link).map_err(io(&link))?;
    }
    Ok(folder)
}
