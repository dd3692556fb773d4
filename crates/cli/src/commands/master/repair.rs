//! `cell master repair`: rebuilds a replica with a damaged log from its peers.
//!
//! It comes back under a new member id with an empty log, which its peers replicate to it.
//! Rejected: fetching only the damaged part. A replica that lost durable bytes must not vote as if
//! it had them, and only a member that begins with an empty log has acknowledged nothing.
//!
//! The old files are moved to a backup folder in `data_dir`, never removed. Rejected: renaming
//! `data_dir` itself, which is often a mount point and then cannot be renamed. Blobs and history
//! stay in place, since both have checksums of their own. The log is moved last, so a backup
//! without a log in place means that a repair was interrupted, and the same command continues it.

use super::admission::request_admission;
use super::confirm::confirm;
use super::join::member_id;
use crate::clock;
use crate::commands::{DEFAULT_CONFIG, Success};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::print_prose;
use crate::runtime::block_on;
use cellwright_api::types::{AddJoinToken, Changed, ConfirmMaster, Joiner, MasterStatus, NewToken};
use cellwright_cell::time::Span;
use cellwright_gateway::config::Config;
use cellwright_gateway::init::{Admitted, Joining, ReplicaLocation};
use cellwright_gateway::membership::{masters_to_join, remember_masters};
use cellwright_identity::enroll::{JoinToken, PendingConfirmation};
use cellwright_store::{OfflineLog, OpenError, RealDisk};
use clap::Args;
use hyper::Method;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const VALID_FOR: Span = Span(10 * 60 * 1000);
/// The prefix of backup folders.
const BACKUP_PREFIX: &str = "damaged-";
const LOG: &str = "log";
/// Entries that are not moved to the backup: the lock, which is held; data that the new replica can
/// use; and a folder that belongs to the file system.
const KEPT_ENTRIES: [&str; 4] = [RealDisk::LOCK, "blobs", "history", "lost+found"];
const STOP_FIRST: &str = "stop the replica first, then: cell master repair";
const RETRY_REPAIR: &str = "see that it can be written, then: cell master repair once more";

#[derive(Debug, Args)]
pub struct RepairArgs {
    /// The configuration file of the replica
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,

    /// Rebuild it also if nothing is wrong with its log, or there is none
    #[arg(long)]
    force: bool,
}

impl RepairArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let text = fs::read_to_string(&self.config).map_err(|why| Failure::Operation {
            message: format!("{}: {why}", self.config.display()),
            next: "name the file with --config".into(),
        })?;
        let config = Config::parse(&text).map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: "correct the file, or name another with --config".into(),
        })?;
        let data_dir = &config.data_dir;
        let lock = RealDisk::open(data_dir).map_err(|why| Failure::from_error(&why, STOP_FIRST))?;
        let Some(damage) = self.find_damage(&config)? else { return Ok(Success::Done) };
        print_prose(&format!("replica {}: {damage}\n", config.name))?;
        let cell = connection.cell()?;
        // Before any request to the cell: without write access there is no repair.
        let backup = create_backup_folder(data_dir)?;
        let membership = block_on(replace_member(&cell, &config)).inspect_err(|_| {
            // An empty folder that is left behind does no harm.
            let _ = fs::remove_dir(&backup);
        })?;
        let masters = membership.masters.clone();
        move_to_backup(data_dir, &backup)?;
        self.install_new_member(&config, &text, membership)?;
        remember_masters(data_dir, &masters)?;
        drop(lock);
        print_prose(&format!(
            "what was there is in {}*; remove it when the replica has caught up\n{}",
            data_dir.join(BACKUP_PREFIX).display(),
            self.start_hint(),
        ))?;
        Ok(Success::Done)
    }

    /// The damage to be repaired; if there is none, that is printed.
    fn find_damage(&self, config: &Config) -> Result<Option<String>, Failure> {
        let data_dir = &config.data_dir;
        let (name, at) = (&config.name, data_dir.display());
        let error = match OfflineLog::open(data_dir) {
            Ok(_) if self.force => {
                return Ok(Some("its log is whole, and is rebuilt all the same".into()));
            }
            Ok(_) => {
                print_prose(&format!(
                    "replica {name}: its log is whole, nothing is to be repaired\n"
                ))?;
                return Ok(None);
            }
            Err(error) => error,
        };
        match &error {
            OpenError::Damaged { file, offset, what } => {
                Ok(Some(format!("{file} is damaged at byte {offset}: {what}")))
            }
            OpenError::Disk { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                if self.force {
                    return Ok(Some(format!("{at} has no log, and is rebuilt all the same")));
                }
                // Written last, and removed when the replica has its vote.
                if !masters_to_join(data_dir)?.is_empty() {
                    print_prose(&format!(
                        "replica {name}: {at} is ready to join, nothing is to be repaired\n{}",
                        self.start_hint()
                    ))?;
                    return Ok(None);
                }
                if entries(data_dir)?.iter().any(|entry| is_backup(entry)) {
                    return Ok(Some(format!("goes on with a repair of {at} that was cut short")));
                }
                let next = format!(
                    "if what was in it is lost: cell master repair --force --config {}",
                    self.config.display()
                );
                Err(Failure::Operation { message: error.to_string(), next })
            }
            _ => Err(Failure::from_error(&error, "see the guide on masters")),
        }
    }

    fn start_hint(&self) -> String {
        let config = self.config.display();
        format!("next:\n  cell master start --config {config}\n  cell master status\n")
    }

    /// Writes the keys of the new member, and the old configuration with its new member id.
    fn install_new_member(
        &self,
        config: &Config,
        text: &str,
        membership: NewMembership,
    ) -> Result<(), Failure> {
        let written = self.config.with_extension("toml.new");
        // An interrupted repair may have left one.
        match fs::remove_file(&written) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                return Err(io_failure(&written, &why));
            }
            _ => {}
        }
        let location = ReplicaLocation {
            data_dir: config.data_dir.clone(),
            config: written.clone(),
            listen: config.listen.to_string(),
            advertise: config.advertise.clone(),
        };
        let id = member_id(&membership.token);
        let completed = membership.joining.complete(membership.admitted, id, &location);
        completed.map_err(|error| Failure::from_error(&error, RETRY_REPAIR))?;
        fs::write(&written, with_member_id(text, id)).map_err(|why| io_failure(&written, &why))?;
        fs::rename(&written, &self.config).map_err(|why| io_failure(&self.config, &why))
    }
}

/// A replica that has been removed, with what it needs to join again.
struct NewMembership {
    masters: Vec<String>,
    token: JoinToken,
    joining: Joining,
    admitted: Admitted,
}

/// Removes the replica from the cell and gets credentials for its new membership. Removal
/// invalidates the credentials and tokens of its name, so it comes first; if interrupted in
/// between, the same command continues from there.
async fn replace_member(cell: &Cell, config: &Config) -> Result<NewMembership, Failure> {
    let status = cell.client.master_status().await?.value;
    let member = status.members.iter().find(|member| member.name == config.name.as_str());
    let masters = other_voters(&status, config)?;
    if let Some(member) = member {
        let path = format!("/v1/masters/{}", member.id);
        cell.client.create::<_, Changed>(Method::DELETE, &path, None::<&()>).await?;
    }
    let body =
        AddJoinToken { joiner: Joiner::Replica, name: config.name.clone(), valid_for: VALID_FOR };
    let made: NewToken =
        cell.client.create(Method::POST, "/v1/tokens/join", Some(&body)).await?.value;
    let failed = |error: &dyn std::fmt::Display| Failure::Operation {
        message: error.to_string(),
        next: "cell master repair once more".into(),
    };
    let token = JoinToken::parse(&made.token).map_err(|error| failed(&error))?;
    let joining = Joining::prepare(&token, &config.hosts()).map_err(|error| failed(&error))?;
    // The operator is the one who repairs it, and may confirm replicas: otherwise there would be no
    // token.
    let fingerprint = joining.key_print().map_err(|error| failed(&error))?.to_string();
    let body = ConfirmMaster { name: config.name.clone(), fingerprint };
    let confirmed = async |_: &PendingConfirmation| confirm(&cell.client, body).await;
    let (admitted, _) = request_admission(&masters, &joining, confirmed).await?;
    Ok(NewMembership { masters, token, joining, admitted })
}

/// The addresses of the other voters; at least one is needed to rebuild from.
fn other_voters(status: &MasterStatus, config: &Config) -> Result<Vec<String>, Failure> {
    let name = config.name.as_str();
    let others = status.members.iter().filter(|member| member.voter && member.name != name);
    let others: Vec<String> = others.map(|member| member.address.clone()).collect();
    if others.is_empty() {
        return Err(Failure::Operation {
            message: format!("no other replica votes: there is nobody to rebuild {name} from"),
            next: "go back to a checkpoint: cell checkpoint ls, cell checkpoint restore".into(),
        });
    }
    Ok(others)
}

fn io_failure(path: &Path, why: &io::Error) -> Failure {
    Failure::Operation { message: format!("{}: {why}", path.display()), next: RETRY_REPAIR.into() }
}

fn entries(data_dir: &Path) -> Result<Vec<OsString>, Failure> {
    let listed: io::Result<Vec<OsString>> = fs::read_dir(data_dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    listed.map_err(|why| io_failure(data_dir, &why))
}

fn is_backup(entry: &OsStr) -> bool {
    entry.to_str().is_some_and(|name| name.starts_with(BACKUP_PREFIX))
}

/// Creates a backup folder on the file system of the files to be moved.
fn create_backup_folder(data_dir: &Path) -> Result<PathBuf, Failure> {
    let mut second = clock::now().0 / 1000;
    loop {
        let backup = data_dir.join(format!("{BACKUP_PREFIX}{second}"));
        match fs::DirBuilder::new().mode(0o700).create(&backup) {
            Ok(()) => return Ok(backup),
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => second += 1,
            Err(why) => return Err(io_failure(&backup, &why)),
        }
    }
}

fn move_to_backup(data_dir: &Path, backup: &Path) -> Result<(), Failure> {
    let mut entries = entries(data_dir)?;
    entries.retain(|entry| {
        !is_backup(entry) && !KEPT_ENTRIES.iter().any(|kept| entry.as_os_str() == OsStr::new(kept))
    });
    // The log is last, so that without a log the rest has been moved.
    entries.sort_by_key(|entry| entry.as_os_str() == OsStr::new(LOG));
    for entry in entries {
        let from = data_dir.join(&entry);
        fs::rename(&from, backup.join(&entry)).map_err(|why| io_failure(&from, &why))?;
    }
    Ok(())
}

/// The same configuration under another member id: the operator's settings stay.
fn with_member_id(text: &str, id: u64) -> String {
    let is_number = |line: &str| {
        line.trim_start().strip_prefix("id").is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| if is_number(line) { format!("id = {id}") } else { line.to_owned() })
        .collect();
    if !text.lines().any(is_number) {
        lines.insert(0, format!("id = {id}"));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_what_stays_is_set_aside_and_found_again() {
        let name = format!("cell-repair-{}", std::process::id());
        let data_dir = std::env::temp_dir().join(name);
        for folder in ["log", "snap", "identity", "blobs", "history", "lost+found"] {
            fs::create_dir_all(data_dir.join(folder)).unwrap();
        }
        let lock = RealDisk::open(&data_dir).unwrap();
        let backup = create_backup_folder(&data_dir).unwrap();
        assert_ne!(
            create_backup_folder(&data_dir).unwrap(),
            backup,
            "one repair soon after another"
        );
        move_to_backup(&data_dir, &backup).unwrap();
        assert!(RealDisk::open(&data_dir).is_err(), "the lock is held all the while");
        drop(lock);
        let sorted = |folder: &Path| {
            let mut found = entries(folder).unwrap();
            found.sort();
            found
        };
        assert_eq!(sorted(&backup), ["identity", "log", "snap"]);
        let kept: Vec<OsString> =
            sorted(&data_dir).into_iter().filter(|entry| !is_backup(entry)).collect();
        assert_eq!(kept, ["LOCK", "blobs", "history", "lost+found"]);
        fs::remove_dir_all(&data_dir).unwrap();
    }

    #[test]
    fn only_the_number_of_a_configuration_changes() {
        let old = "# id = 1 is the first\nname = \"m2\"\nid = 7\nidle = 3\n";
        assert_eq!(
            with_member_id(old, 9),
            "# id = 1 is the first\nname = \"m2\"\nid = 9\nidle = 3\n"
        );
        assert_eq!(with_member_id("name = \"m1\"\n", 9), "id = 9\nname = \"m1\"\n");
    }
}
