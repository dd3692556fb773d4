//! `cell master status`: the status of all replicas, each requested from the replica itself, since
//! only it knows how far it has applied the log.

use crate::args::{OutputArgs, WatchArgs};
use crate::commands::Success;
use crate::commands::alarms::Alarms;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::runtime::block_on;
use crate::{clock, format, table};
use cellwright_api::types::{AlarmView, MasterStatus, MemberView, WaitingReplica};
use clap::Args;
use serde::Serialize;
use std::time::Duration;

/// The timeout for the status of a single replica.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// The status of one replica, by the cell and by itself.
#[derive(Serialize)]
struct ReplicaStatus {
    #[serde(flatten)]
    member: MemberView,
    /// Absent when it does not answer.
    own: Option<MasterStatus>,
    /// How many entries this replica has applied fewer than the answering one.
    lag: Option<u64>,
}

#[derive(Serialize)]
struct MastersReport {
    term: u64,
    leader: Option<u64>,
    last_log: u64,
    members: Vec<ReplicaStatus>,
    /// Replicas that have requested to join and wait for confirmation.
    waiting: Vec<WaitingReplica>,
    alarms: Vec<AlarmView>,
    /// Why the alarms of the leader, which alone knows most of them, could not be fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_error: Option<String>,
}

impl StatusArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.any_master()?;
        let report = block_on(fetch_report(&cell))?;
        match self.output.output {
            Output::Json => print_json(&report)?,
            Output::Table => print_prose(&render(&report))?,
        }
        Ok(Success::Done)
    }
}

async fn fetch_report(cell: &Cell) -> Result<MastersReport, Failure> {
    let answered = cell.client.master_status().await?.value;
    let mut members = Vec::new();
    for member in answered.members.clone() {
        let reply = cell.client.bytes_at(&member.address, "/v1/masters", REPLICA_TIMEOUT).await;
        let own: Option<MasterStatus> =
            reply.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        members.push((member, own));
    }
    let mut reply: Vec<MasterStatus> = members.iter().filter_map(|(_, own)| own.clone()).collect();
    // The newest status decides who leads.
    reply.sort_by_key(|own| std::cmp::Reverse((own.term, own.last_log)));
    if reply.is_empty() {
        reply.push(answered);
    }
    let newest = &reply[0];
    let (term, last_log) = (newest.term, newest.last_log);
    let waiting = newest.waiting.clone();
    let members = members.into_iter().map(|(member, own)| {
        let lag = own.as_ref().map(|own| last_log.saturating_sub(own.applied));
        ReplicaStatus { member, own, lag }
    });
    let members: Vec<ReplicaStatus> = members.collect();
    let (alarms, leader_error) = match Alarms::from_known_leader(cell, &reply).await {
        Ok(alarms) => (alarms, None),
        Err(error) => (Alarms::default(), Some(error)),
    };
    let mut certain = reply.iter().filter(|own| own.leaderless_ms.is_none());
    let leader = certain.find_map(|own| own.leader).filter(|_| !alarms.is_leaderless);
    let alarms = alarms.items;
    Ok(MastersReport { term, leader, last_log, members, waiting, alarms, leader_error })
}

fn render(report: &MastersReport) -> String {
    let leader = report.members.iter().find(|replica| Some(replica.member.id) == report.leader);
    let leader =
        leader.map_or("nobody leads".into(), |replica| format!("leader {}", replica.member.name));
    let mut out =
        format!("{leader}, term {}, log at {}\n\n", report.term, format::count(report.last_log));
    let rows: Vec<Vec<String>> = report
        .members
        .iter()
        .map(|ReplicaStatus { member, own, lag }| {
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
    out.push_str(&render_waiting(&report.waiting));
    out.push('\n');
    let leader_error = report.leader_error.iter();
    let leader_error = leader_error.map(|error| format!("the leader does not answer: {error}"));
    let alarms = report.alarms.iter().map(|alarm| alarm.message.clone());
    let lines: Vec<String> =
        leader_error.chain(alarms).map(|line| format!("alarm {line}\n")).collect();
    if lines.is_empty() {
        out.push_str("no alarms\n")
    } else {
        out.push_str(&lines.concat())
    }
    out
}

/// The replicas that wait for confirmation. The confirm command is not printed ready to copy: the
/// fingerprint must come from the new replica's own screen, or the comparison would be void.
fn render_waiting(replicas: &[WaitingReplica]) -> String {
    let now = clock::now();
    let render_replica = |one: &WaitingReplica| {
        let WaitingReplica { name, fingerprint, address, token, .. } = one;
        let since = format::elapsed(one.since, now);
        let request_text = format!(
            "\nreplica {name} asks to join, for {since}, from {address}; its fingerprint is\n  \
             {fingerprint}\n"
        );
        if one.confirmed {
            return format!("{request_text}it is confirmed and goes on by itself\n");
        }
        format!(
            "{request_text}it waits to be confirmed with the fingerprint on its own screen:\n  \
             cell master confirm {name} FINGERPRINT\n\
             If that differs from the one above, somebody else asks in its name;\n\
             send it away: cell token revoke {token}\n"
        )
    };
    replicas.iter().map(render_replica).collect()
}
