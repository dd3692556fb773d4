//! `cell master repair`: a replica whose log is damaged is rebuilt from its peers.
//!
//! It comes back under a new number with an empty log, and its peers send it all. Rejected:
//! fetching the damaged stretch alone. A replica that lost bytes it had promised to keep must not
//! vote as if it had them, and only a member that begins at nothing has promised nothing.
//!
//! What was there is set aside in a folder of `data_dir`, never removed. Rejected: renaming
//! `data_dir` itself, which is often where a disk is mounted and then cannot be renamed. Blobs and
//! history stay where they are, since both are checked by themselves. The log goes last, so things
//! set aside and no log mean that a repair was cut short, and the same command goes on with it.

use super::admitted::admitted;
use super::confirm::confirm;
use super::join::number;
use crate::clock;
use crate::commands::{DEFAULT_CONFIG, Success};
use crate::failure::Failure;
use crate::output::say;
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::types::{AddJoinToken, Changed, ConfirmMaster, Joiner, MasterStatus, NewToken};
use cellwright_cell::time::Span;
use cellwright_gateway::config::Config;
use cellwright_gateway::init::{Admitted, Joining, Place};
use cellwright_gateway::membership::{masters_to_join, remember_masters};
use cellwright_identity::enroll::{JoinToken, ToConfirm};
use cellwright_store::{OfflineLog, OpenError, RealDisk};
use clap::Args;
use hyper::Method;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const VALID_FOR: Span = Span(10 * 60 * 1000);
/// What folders of things set aside begin with.
const ASIDE: &str = "damaged-";
const LOG: &str = "log";
/// What is not set aside: the lock, which is held; what is of use to the new replica; and a folder
/// that belongs to the file system.
const STAYS: [&str; 4] = [RealDisk::LOCK, "blobs", "history", "lost+found"];
const STOPPED: &str = "stop the replica first, then: cell master repair";
const SET_ASIDE: &str = "see that it can be written, then: cell master repair once more";

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
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let text = fs::read_to_string(&self.config).map_err(|why| Failure::Work {
            message: format!("{}: {why}", self.config.display()),
            next: "name the file with --config".into(),
        })?;
        let config = Config::parse(&text).map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: "correct the file, or name another with --config".into(),
        })?;
        let data_dir = &config.data_dir;
        let lock = RealDisk::open(data_dir).map_err(|why| Failure::work(&why, STOPPED))?;
        let Some(damage) = self.damage(&config)? else { return Ok(Success::Done) };
        say(&format!("replica {}: {damage}\n", config.name))?;
        let cell = reach.cell()?;
        // Before the cell is asked for anything: what cannot be written cannot be repaired.
        let aside = room_aside(data_dir)?;
        let taken = ask(taken_out(&cell, &config)).inspect_err(|_| {
            // Left behind, an empty folder does no harm.
            let _ = fs::remove_dir(&aside);
        })?;
        let masters = taken.masters.clone();
        set_aside(data_dir, &aside)?;
        self.come_back(&config, &text, taken)?;
        remember_masters(data_dir, &masters)?;
        drop(lock);
        say(&format!(
            "what was there is in {}*; remove it when the replica has caught up\n{}",
            data_dir.join(ASIDE).display(),
            self.started_next(),
        ))?;
        Ok(Success::Done)
    }

    /// What is to be repaired; nothing, and said so, if nothing is.
    fn damage(&self, config: &Config) -> Result<Option<String>, Failure> {
        let data_dir = &config.data_dir;
        let (name, at) = (&config.name, data_dir.display());
        let error = match OfflineLog::open(data_dir) {
            Ok(_) if self.force => {
                return Ok(Some("its log is whole, and is rebuilt all the same".into()));
            }
            Ok(_) => {
                say(&format!("replica {name}: its log is whole, nothing is to be repaired\n"))?;
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
                // Written last of all, and removed when the replica votes.
                if !masters_to_join(data_dir)?.is_empty() {
                    say(&format!(
                        "replica {name}: {at} is ready to join, nothing is to be repaired\n{}",
                        self.started_next()
                    ))?;
                    return Ok(None);
                }
                if entries(data_dir)?.iter().any(|entry| is_aside(entry)) {
                    return Ok(Some(format!("goes on with a repair of {at} that was cut short")));
                }
                let next = format!(
                    "if what was in it is lost: cell master repair --force --config {}",
                    self.config.display()
                );
                Err(Failure::Work { message: error.to_string(), next })
            }
            _ => Err(Failure::work(&error, "see the guide on masters")),
        }
    }

    fn started_next(&self) -> String {
        let config = self.config.display();
        format!("next:\n  cell master start --config {config}\n  cell master status\n")
    }

    /// Keys of the new member, and the old configuration with its new number.
    fn come_back(&self, config: &Config, text: &str, taken: TakenOut) -> Result<(), Failure> {
        let written = self.config.with_extension("toml.new");
        // A repair that was cut short may have left one.
        match fs::remove_file(&written) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                return Err(cannot(&written, &why));
            }
            _ => {}
        }
        let place = Place {
            data_dir: config.data_dir.clone(),
            config: written.clone(),
            listen: config.listen.to_string(),
            advertise: config.advertise.clone(),
        };
        let id = number(&taken.token);
        let completed = taken.joining.complete(taken.admitted, id, &place);
        completed.map_err(|error| Failure::work(&error, SET_ASIDE))?;
        fs::write(&written, with_number(text, id)).map_err(|why| cannot(&written, &why))?;
        fs::rename(&written, &self.config).map_err(|why| cannot(&self.config, &why))
    }
}

/// A replica that is no member any more, with what it needs to become one.
struct TakenOut {
    masters: Vec<String>,
    token: JoinToken,
    joining: Joining,
    admitted: Admitted,
}

/// Takes the replica out of the cell and gets papers for it to come back with. Papers and
/// tokens of its name are worth nothing once it is out, so it is out before it gets new ones; cut
/// short in between, the same command goes on from there.
async fn taken_out(cell: &Cell, config: &Config) -> Result<TakenOut, Failure> {
    let status = cell.client.master_status().await?.value;
    let member = status.members.iter().find(|member| member.name == config.name.as_str());
    let masters = others(&status, config)?;
    if let Some(member) = member {
        let path = format!("/v1/masters/{}", member.id);
        cell.client.make::<_, Changed>(Method::DELETE, &path, None::<&()>).await?;
    }
    let body =
        AddJoinToken { joiner: Joiner::Replica, name: config.name.clone(), valid_for: VALID_FOR };
    let made: NewToken =
        cell.client.make(Method::POST, "/v1/tokens/join", Some(&body)).await?.value;
    let failed = |error: &dyn std::fmt::Display| Failure::Work {
        message: error.to_string(),
        next: "cell master repair once more".into(),
    };
    let token = JoinToken::parse(&made.token).map_err(|error| failed(&error))?;
    let joining = Joining::prepare(&token, &config.hosts()).map_err(|error| failed(&error))?;
    // Whoever repairs it is there, and may let replicas in: else there were no token.
    let fingerprint = joining.key_print().map_err(|error| failed(&error))?.to_string();
    let body = ConfirmMaster { name: config.name.clone(), fingerprint };
    let confirmed = async |_: &ToConfirm| confirm(&cell.client, body).await;
    let (admitted, _) = admitted(&masters, &joining, confirmed).await?;
    Ok(TakenOut { masters, token, joining, admitted })
}

/// Where the other voters are; there must be one to rebuild it from.
fn others(status: &MasterStatus, config: &Config) -> Result<Vec<String>, Failure> {
    let name = config.name.as_str();
    let others = status.members.iter().filter(|member| member.voter && member.name != name);
    let others: Vec<String> = others.map(|member| member.address.clone()).collect();
    if others.is_empty() {
        return Err(Failure::Work {
            message: format!("no other replica votes: there is nobody to rebuild {name} from"),
            next: "go back to a checkpoint: cell checkpoint ls, cell checkpoint restore".into(),
        });
    }
    Ok(others)
}

fn cannot(path: &Path, why: &io::Error) -> Failure {
    Failure::Work { message: format!("{}: {why}", path.display()), next: SET_ASIDE.into() }
}

fn entries(data_dir: &Path) -> Result<Vec<OsString>, Failure> {
    let listed: io::Result<Vec<OsString>> = fs::read_dir(data_dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    listed.map_err(|why| cannot(data_dir, &why))
}

fn is_aside(entry: &OsStr) -> bool {
    entry.to_str().is_some_and(|name| name.starts_with(ASIDE))
}

/// A new folder for what is set aside, on the file system of what goes there.
fn room_aside(data_dir: &Path) -> Result<PathBuf, Failure> {
    let mut second = clock::now().0 / 1000;
    loop {
        let aside = data_dir.join(format!("{ASIDE}{second}"));
        match fs::DirBuilder::new().mode(0o700).create(&aside) {
            Ok(()) => return Ok(aside),
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => second += 1,
            Err(why) => return Err(cannot(&aside, &why)),
        }
    }
}

fn set_aside(data_dir: &Path, aside: &Path) -> Result<(), Failure> {
    let mut entries = entries(data_dir)?;
    entries.retain(|entry| {
        !is_aside(entry) && !STAYS.iter().any(|stays| entry.as_os_str() == OsStr::new(stays))
    });
    // Where there is no log, the rest has gone before it.
    entries.sort_by_key(|entry| entry.as_os_str() == OsStr::new(LOG));
    for entry in entries {
        let from = data_dir.join(&entry);
        fs::rename(&from, aside.join(&entry)).map_err(|why| cannot(&from, &why))?;
    }
    Ok(())
}

/// The same configuration under another number: what the operator set stays set.
fn with_number(text: &str, id: u64) -> String {
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
        let aside = room_aside(&data_dir).unwrap();
        assert_ne!(room_aside(&data_dir).unwrap(), aside, "one repair soon after another");
        set_aside(&data_dir, &aside).unwrap();
        assert!(RealDisk::open(&data_dir).is_err(), "the lock is held all the while");
        drop(lock);
        let sorted = |folder: &Path| {
            let mut found = entries(folder).unwrap();
            found.sort();
            found
        };
        assert_eq!(sorted(&aside), ["identity", "log", "snap"]);
        let stayed: Vec<OsString> =
            sorted(&data_dir).into_iter().filter(|entry| !is_aside(entry)).collect();
        assert_eq!(stayed, ["LOCK", "blobs", "history", "lost+found"]);
        fs::remove_dir_all(&data_dir).unwrap();
    }

    #[test]
    fn only_the_number_of_a_configuration_changes() {
        let old = "# id = 1 is the first\nname = \"m2\"\nid = 7\nidle = 3\n";
        assert_eq!(with_number(old, 9), "# id = 1 is the first\nname = \"m2\"\nid = 9\nidle = 3\n");
        assert_eq!(with_number("name = \"m1\"\n", 9), "id = 9\nname = \"m1\"\n");
    }
}
