//! `cell master status`: all replicas, each asked for itself, since only it knows how far it is.

use crate::args::OutputArgs;
use crate::commands::Success;
use crate::commands::silence::Alarms;
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::{format, table};
use cellwright_api::types::{MasterStatus, MemberView};
use clap::Args;
use serde::Serialize;
use std::time::Duration;

/// How long a single replica may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// One replica as its cell and itself see it.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    member: MemberView,
    /// Absent when it does not answer.
    own: Option<MasterStatus>,
    /// Entries the answering replica has and this one has not applied.
    lag: Option<u64>,
}

#[derive(Serialize)]
struct Answer {
    term: u64,
    leader: Option<u64>,
    last_log: u64,
    members: Vec<Shown>,
    alarms: Vec<String>,
}

impl StatusArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.any_master()?;
        let answer = ask(look(&cell))?;
        match self.output.output {
            Output::Json => print_json(&answer)?,
            Output::Table => print(&shown(&answer))?,
        }
        Ok(Success::Done)
    }
}

async fn look(cell: &Cell) -> Result<Answer, Failure> {
    let first = cell.client.master_status().await?.value;
    let mut members = Vec::new();
    for member in first.members {
        let asked = cell.client.bytes_at(&member.address, "/v1/masters", PATIENCE).await;
        let own: Option<MasterStatus> =
            asked.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        members.push((member, own));
    }
    let own = members.iter().filter_map(|(_, own)| own.as_ref());
    let newest = own.max_by_key(|own| (own.term, own.last_log));
    let (term, leader, last_log) = newest
        .map_or((first.term, first.leader, first.last_log), |own| {
            (own.term, own.leader, own.last_log)
        });
    let members = members.into_iter().map(|(member, own)| {
        let lag = own.as_ref().map(|own| last_log.saturating_sub(own.applied));
        Shown { member, own, lag }
    });
    let members: Vec<Shown> = members.collect();
    let alarms = alarms(cell, &members, leader).await;
    Ok(Answer { term, leader, last_log, members, alarms })
}

/// What alarms the leader, who alone can tell; without one, that is the alarm.
async fn alarms(cell: &Cell, members: &[Shown], leader: Option<u64>) -> Vec<String> {
    let leader = members.iter().find(|shown| Some(shown.member.id) == leader);
    let Some(leader) = leader else { return vec!["no leader is known".into()] };
    match Alarms::of(cell, &leader.member.address).await {
        Err(error) => vec![format!("the leader does not answer: {error}")],
        Ok(found) => found.lines(),
    }
}

fn shown(answer: &Answer) -> String {
    let leader = answer.members.iter().find(|shown| Some(shown.member.id) == answer.leader);
    let leader = leader.map_or("nobody leads", |shown| shown.member.name.as_str());
    let mut out = format!(
        "leader {leader}, term {}, log at {}\n\n",
        answer.term,
        format::count(answer.last_log)
    );
    let rows: Vec<Vec<String>> = answer
        .members
        .iter()
        .map(|Shown { member, own, lag }| {
            let known = |pick: fn(&MasterStatus) -> u64| {
                own.as_ref().map_or("?".into(), |own| format::count(pick(own)))
            };
            vec![
                member.name.clone(),
                own.as_ref().map_or("no answer".into(), |own| own.role.clone()),
                if member.voter { "yes" } else { "not yet" }.into(),
                known(|own| own.applied),
                lag.map_or("?".into(), format::count),
                known(|own| own.snapshot),
                member.address.clone(),
            ]
        })
        .collect();
    let header = ["replica", "role", "votes", "applied", "lag", "snapshot", "address"];
    out.push_str(&table::render(&header, &rows));
    out.push('\n');
    match answer.alarms.as_slice() {
        [] => out.push_str("no alarms\n"),
        alarms => alarms.iter().for_each(|alarm| out.push_str(&format!("alarm {alarm}\n"))),
    }
    out
}
