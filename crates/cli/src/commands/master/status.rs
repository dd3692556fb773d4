//! `cell master status`: all replicas, each asked for itself, since only it knows how far it is.

use crate::args::{OutputArgs, WatchArgs};
use crate::commands::Success;
use crate::commands::silence::{Alarms, NEXT};
use crate::failure::Failure;
use crate::output::{Output, print_json, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::{clock, format, table};
use cellwright_api::types::{AlarmView, MasterStatus, MemberView, WaitingReplica};
use clap::Args;
use serde::Serialize;
use std::time::Duration;

/// How long a single replica may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    watch: WatchArgs,

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
    /// Who asked to join and is not in yet.
    waiting: Vec<WaitingReplica>,
    alarms: Vec<AlarmView>,
    /// Why the leader, who alone knows of most alarms, could not be asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_error: Option<String>,
}

impl StatusArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.any_master()?;
        let answer = ask(look(&cell))?;
        match self.output.output {
            Output::Json => print_json(&answer)?,
            Output::Table => say(&shown(&answer))?,
        }
        Ok(Success::Done)
    }
}

async fn look(cell: &Cell) -> Result<Answer, Failure> {
    let answered = cell.client.master_status().await?.value;
    let mut members = Vec::new();
    for member in answered.members.clone() {
        let asked = cell.client.bytes_at(&member.address, "/v1/masters", PATIENCE).await;
        let own: Option<MasterStatus> =
            asked.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        members.push((member, own));
    }
    let mut asked: Vec<MasterStatus> = members.iter().filter_map(|(_, own)| own.clone()).collect();
    // What the newest says of the leader counts.
    asked.sort_by_key(|own| std::cmp::Reverse((own.term, own.last_log)));
    if asked.is_empty() {
        asked.push(answered);
    }
    let newest = &asked[0];
    let (term, last_log) = (newest.term, newest.last_log);
    let waiting = newest.waiting.clone();
    let members = members.into_iter().map(|(member, own)| {
        let lag = own.as_ref().map(|own| last_log.saturating_sub(own.applied));
        Shown { member, own, lag }
    });
    let members: Vec<Shown> = members.collect();
    let (alarms, leader_error) = match alarms(cell, &asked).await {
        Ok(alarms) => (alarms, None),
        Err(error) => (Alarms::default(), Some(error)),
    };
    let mut sure = asked.iter().filter(|own| own.leaderless_ms.is_none());
    let leader = sure.find_map(|own| own.leader).filter(|_| !alarms.is_leaderless);
    let alarms = alarms.items;
    Ok(Answer { term, leader, last_log, members, waiting, alarms, leader_error })
}

/// What alarms the leader, who alone can tell, and whether there is one: one that hears no majority
/// is none, as in `cell status`.
async fn alarms(cell: &Cell, asked: &[MasterStatus]) -> Result<Alarms, String> {
    let mut found = Alarms::among(cell, asked).await?;
    for view in &mut found.items {
        if let Some(length) = view.message.strip_suffix(NEXT).map(str::len) {
            view.message.truncate(length);
        }
    }
    Ok(found)
}

fn shown(answer: &Answer) -> String {
    let leader = answer.members.iter().find(|shown| Some(shown.member.id) == answer.leader);
    let leader =
        leader.map_or("nobody leads".into(), |shown| format!("leader {}", shown.member.name));
    let mut out =
        format!("{leader}, term {}, log at {}\n\n", answer.term, format::count(answer.last_log));
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
    out.push_str(&waiting(&answer.waiting));
    out.push('\n');
    let silent = answer.leader_error.iter();
    let silent = silent.map(|error| format!("the leader does not answer: {error}"));
    let alarms = answer.alarms.iter().map(|alarm| alarm.message.clone());
    let lines: Vec<String> = silent.chain(alarms).map(|line| format!("alarm {line}\n")).collect();
    match lines.is_empty() {
        true => out.push_str("no alarms\n"),
        false => out.push_str(&lines.concat()),
    }
    out
}

/// Who waits. What confirms it is not shown ready to be copied: the fingerprint is to come from the
/// newcomer's own screen, or the comparison compares nothing.
fn waiting(replicas: &[WaitingReplica]) -> String {
    let now = clock::now();
    let one = |one: &WaitingReplica| {
        let WaitingReplica { name, fingerprint, address, token, .. } = one;
        let since = format::since(one.since, now);
        let asks = format!(
            "\nreplica {name} asks to join, for {since}, from {address}; its fingerprint is\n  \
             {fingerprint}\n"
        );
        if one.confirmed {
            return format!("{asks}it is confirmed and goes on by itself\n");
        }
        format!(
            "{asks}it waits to be confirmed with the fingerprint on its own screen:\n  \
             cell master confirm {name} FINGERPRINT\n\
             If that differs from the one above, somebody else asks in its name;\n\
             send it away: cell token revoke {token}\n"
        )
    };
    replicas.iter().map(one).collect()
}
