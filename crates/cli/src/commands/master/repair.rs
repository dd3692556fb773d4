//! `cell master repair`: a replica whose log is damaged is rebuilt from its peers.
//!
//! It comes back under a new number with an empty log, and its peers send it all. Rejected:
//! fetching the damaged stretch alone. A replica that lost bytes it had promised to keep must not
//! vote as if it had them, and only a member that begins at nothing has promised nothing. What was
//! there is set aside, never removed; blobs and history are taken along, since both are checked by
//! themselves.

use super::join::number;
use crate::clock;
use crate::commands::enrol::enrol;
use crate::commands::{DEFAULT_CONFIG, Success};
use crate::failure::Failure;
use crate::output::print;
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::enroll::{JoinAnswer, JoinToken};
use cellwright_api::types::{AddJoinToken, Changed, Joiner, MasterStatus, NewToken};
use cellwright_cell::time::Span;
use cellwright_master::config::Config;
use cellwright_master::init::{Joining, Place};
use cellwright_master::membership::remember_masters;
use cellwright_store::{OfflineLog, OpenError, RealDisk};
use clap::Args;
use hyper::Method;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const VALID_FOR: Span = Span(10 * 60 * 1000);
/// What is taken along from the data that is set aside.
const TAKEN_ALONG: [&str; 2] = ["blobs", "history"];
const STOPPED: &str = "stop the replica first, then: cell master repair";
const SET_ASIDE: &str = "see that the folder can be renamed and written, then repair it again";

#[derive(Debug, Args)]
pub struct RepairArgs {
    /// The configuration file of the replica
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,

    /// Rebuild it also if nothing is wrong with its log
    #[arg(long)]
    force: bool,
}

impl RepairArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let text = fs::read_to_string(&self.config)
            .map_err(|why| Failure::work(&why, "name the file with --config"))?;
        let config = Config::parse(&text).map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: "correct the file, or name another with --config".into(),
        })?;
        let lock = RealDisk::open(&config.data_dir).map_err(|why| Failure::work(&why, STOPPED))?;
        let damage = match OfflineLog::open(&config.data_dir) {
            Err(OpenError::Damaged { file, offset, what }) => {
                format!("{file} is damaged at byte {offset}: {what}")
            }
            Err(error) => return Err(Failure::work(&error, "see the guide on masters")),
            Ok(_) if self.force => "its log is whole, and is rebuilt all the same".to_owned(),
            Ok(_) => {
                print(&format!(
                    "replica {}: its log is whole, nothing is to be repaired\n",
                    config.name
                ))?;
                return Ok(Success::Done);
            }
        };
        print(&format!("replica {}: {damage}\n", config.name))?;
        let cell = reach.cell()?;
        let taken = ask(taken_out(&cell, &config))?;
        let masters = taken.masters.clone();
        let aside = set_aside(&config.data_dir).map_err(|why| Failure::work(&why, SET_ASIDE))?;
        drop(lock);
        self.come_back(&config, &text, taken)?;
        remember_masters(&config.data_dir, &masters)?;
        take_along(&aside, &config.data_dir).map_err(|why| Failure::work(&why, SET_ASIDE))?;
        print(&format!(
            "what was there is in {}; remove it when the replica has caught up\n\
             next:\n  cell master start --config {}\n  cell master status\n",
            aside.display(),
            self.config.display(),
        ))?;
        Ok(Success::Done)
    }

    /// Keys of the new member, and the old configuration with its new number.
    fn come_back(&self, config: &Config, text: &str, taken: TakenOut) -> Result<(), Failure> {
        let failed = |why: io::Error| Failure::work(&why, SET_ASIDE);
        let written = self.config.with_extension("toml.new");
        let place = Place {
            data_dir: config.data_dir.clone(),
            config: written.clone(),
            listen: config.listen.to_string(),
            advertise: config.advertise.clone(),
        };
        let id = number(&taken.token);
        let completed = taken.joining.complete(taken.answer, id, &place);
        completed.map_err(|error| Failure::work(&error, SET_ASIDE))?;
        fs::write(&written, with_number(text, id)).map_err(failed)?;
        fs::rename(&written, &self.config).map_err(failed)
    }
}

/// A replica that is no member any more, with what it needs to become one.
struct TakenOut {
    masters: Vec<String>,
    token: JoinToken,
    joining: Joining,
    answer: JoinAnswer,
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
    let joining = Joining::prepare(&made.token, &config.hosts()).map_err(|error| failed(&error))?;
    let answer = enrol(&masters, &joining.trust, &joining.request).await?;
    Ok(TakenOut { masters, token, joining, answer })
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

fn set_aside(data_dir: &Path) -> io::Result<PathBuf> {
    let aside = data_dir.with_extension(format!("damaged-{}", clock::now().0 / 1000));
    fs::rename(data_dir, &aside)?;
    Ok(aside)
}

fn take_along(aside: &Path, data_dir: &Path) -> io::Result<()> {
    for what in TAKEN_ALONG {
        match fs::rename(aside.join(what), data_dir.join(what)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
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
    fn only_the_number_of_a_configuration_changes() {
        let old = "# id = 1 is the first\nname = \"m2\"\nid = 7\nidle = 3\n";
        assert_eq!(with_number(old, 9), "# id = 1 is the first\nname = \"m2\"\nid = 9\nidle = 3\n");
        assert_eq!(with_number("name = \"m1\"\n", 9), "id = 9\nname = \"m1\"\n");
    }
}
