//! What the leader misses: machines that are up and that nobody hears, and other alarms.
//!
//! Only the leader knows, and it does not write it into the log: a machine that answers again a
//! second later was never down. So it is asked for its metrics, which say the same to everybody.

use crate::format;
use crate::reach::Cell;
use cellwright_api::types::{MasterStatus, MemberView};
use cellwright_cell::time::Span;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);
/// Where to look when nobody leads; of no use to whoever looks there.
pub const NEXT: &str = "; next: cell master status";

/// What a page of metrics says of alarms.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// In words.
    pub alarms: Vec<String>,
    /// Seconds since machines that are up were heard from, by name.
    pub silent: BTreeMap<String, u64>,
    /// Nobody leads; said in `alarms` too.
    pub is_leaderless: bool,
}

impl Alarms {
    pub fn read(page: &str) -> Alarms {
        let mut found = Alarms::default();
        for line in page.lines() {
            let Some((metric, value)) = line.rsplit_once(' ') else { continue };
            if let Some(clock) = label(metric, "cell_clock_alarm_seconds{clock=") {
                let seconds: i64 = value.parse().unwrap_or(0);
                found.alarms.push(apart(clock, seconds));
            }
            let Ok(value) = value.parse() else { continue };
            if let Some(alarm) = label(metric, "cell_alarms{alarm=") {
                found.alarms.push(in_words(alarm, value));
            } else if let Some(machine) = label(metric, "cell_machine_silent_seconds{machine=") {
                found.silent.insert(machine.to_owned(), value);
            } else if let Some(replica) = label(metric, "cell_disk_short_bytes{replica=") {
                found.alarms.push(short_of_disk(replica, value));
            } else if let Some(replica) = label(metric, "cell_disk_low_bytes{replica=") {
                found.alarms.push(low_on_disk(replica, value));
            }
        }
        found
    }

    /// Asks the replica at this address.
    async fn of(cell: &Cell, address: &str) -> Result<Alarms, String> {
        let page = cell.client.bytes_at(address, "/metrics", PATIENCE).await;
        let page = page.map_err(|error| error.to_string())?;
        Ok(Alarms::read(&String::from_utf8_lossy(&page)))
    }

    /// Asks whoever leads; nothing when nobody can be asked, for this is only an addition. That
    /// nobody leads is an alarm: what any master shows is then as old as the last leader.
    pub async fn of_leader(cell: &Cell) -> Alarms {
        let status = cell.client.get::<MasterStatus>("/v1/masters").await;
        let Ok(status) = status.map(|answer| answer.value) else { return Alarms::default() };
        let mut asked = vec![status];
        if leader_of(&asked[0]).is_none() {
            asked.extend(others(cell, &asked[0]).await);
        }
        Alarms::among(cell, &asked).await.unwrap_or_default()
    }

    /// Asks the leader that one of those who answered knows, one at least. That none does is the
    /// alarm.
    pub async fn among(cell: &Cell, asked: &[MasterStatus]) -> Result<Alarms, String> {
        let mut found = match asked.iter().find_map(leader_of) {
            Some(address) => Alarms::of(cell, &address).await?,
            None => {
                let alarms = vec![leaderless(asked)];
                Alarms { alarms, is_leaderless: true, ..Alarms::default() }
            }
        };
        found.alarms.extend(asked.iter().flat_map(damage));
        Ok(found)
    }

    /// One line for each thing a person should look at.
    pub fn lines(&self) -> Vec<String> {
        let silent = |(machine, seconds): (&String, &u64)| {
            format!("machine {machine} has not been heard from for {seconds} s")
        };
        self.alarms.iter().cloned().chain(self.silent.iter().map(silent)).collect()
    }
}

/// What a replica says of its disk.
fn damage(status: &MasterStatus) -> impl Iterator<Item = String> {
    let own = status.members.iter().find(|member| member.id == status.id);
    let name = own.map_or(status.id.to_string(), |member| member.name.clone());
    status.damage.iter().map(move |what| format!("{name}: {what}"))
}

/// Where the leader is, if this replica knows one that leads for sure.
fn leader_of(status: &MasterStatus) -> Option<String> {
    let leader = status.members.iter().find(|member| Some(member.id) == status.leader)?;
    status.leaderless_ms.is_none().then(|| leader.address.clone())
}

/// The other replicas that answer.
async fn others(cell: &Cell, first: &MasterStatus) -> Vec<MasterStatus> {
    let mut answered = Vec::new();
    for member in first.members.iter().filter(|member| member.id != first.id) {
        let asked = cell.client.bytes_at(&member.address, "/v1/masters", PATIENCE).await;
        answered.extend(asked.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()));
    }
    answered
}

/// What, since when, who answers, and what to type next. `asked`: those that answered, one at
/// least.
fn leaderless(asked: &[MasterStatus]) -> String {
    let longest = asked.iter().filter_map(|status| status.leaderless_ms).max().unwrap_or_default();
    let members = asked.first().map_or(&[][..], |status| &status.members[..]);
    let answers = |member: &&MemberView| asked.iter().any(|status| status.id == member.id);
    let names: Vec<&str> =
        members.iter().filter(answers).map(|member| member.name.as_str()).collect();
    let who = match names.is_empty() {
        true => "only one that is no member answers".to_owned(),
        false if members.len() == 1 => "its only replica answers".to_owned(),
        false => format!("of {} replicas answer: {}", members.len(), names.join(", ")),
    };
    format!(
        "no leader for {}: nothing can change, and what is shown may be old; {who}{NEXT}",
        format::span(Span(longest))
    )
}

fn label<'a>(metric: &'a str, start: &str) -> Option<&'a str> {
    metric.strip_prefix(start)?.strip_prefix('"')?.strip_suffix("\"}")
}

/// `free`: bytes.
fn short_of_disk(replica: &str, free: u64) -> String {
    format!(
        "master {replica} has {} free on the disk of its log, less than its reserve: it leads \
         only if no other has room, and takes nothing but removals then; free some of it",
        format::bytes(free)
    )
}

fn low_on_disk(replica: &str, free: u64) -> String {
    format!(
        "master {replica} has {} free on the disk of its log, less than twice its reserve: it \
         takes no packages; free some of it",
        format::bytes(free)
    )
}

/// Of whom, by how much, and what is to be done.
fn apart(clock: &str, seconds: i64) -> String {
    let by = format::apart(seconds.saturating_mul(1000));
    match clock {
        "the log" => format!("the time of the log is {by} the masters' clocks"),
        _ => format!("the clock of {clock} is {by} the cell's: set it, or keep it by NTP"),
    }
}

fn in_words(alarm: &str, value: u64) -> String {
    match alarm {
        "most_machines_silent" => format!(
            "{} silent, more than half of the cell: none is declared down and nothing moves",
            format::counted(value, "machine")
        ),
        "disk_damage" => format!(
            "{} of the leader: cell master status",
            format::counted(value, "damaged or missing part")
        ),
        "down_rate_limited" => format!(
            "{} to be declared down, a few a minute",
            match value {
                1 => "1 silent machine waits".to_owned(),
                _ => format!("{} silent machines wait", format::count(value)),
            }
        ),
        _ => format!("{alarm} {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(id: u64, leader: Option<u64>, leaderless_ms: Option<u64>) -> MasterStatus {
        let member = |id: u64| MemberView {
            id,
            name: format!("m{id}"),
            address: format!("127.0.0.1:{id}"),
            voter: true,
            leader: leader == Some(id),
        };
        MasterStatus {
            id,
            role: "follower".into(),
            term: 2,
            leader,
            last_log: 9,
            applied: 9,
            snapshot: 0,
            purged: 0,
            members: (1..=3).map(member).collect(),
            version: "1".into(),
            level: 1,
            leaderless_ms,
            damage: Vec::new(),
            waiting: Vec::new(),
        }
    }

    #[test]
    fn a_leader_without_a_majority_is_none_and_who_answers_is_said() {
        assert_eq!(leader_of(&replica(2, Some(1), None)), Some("127.0.0.1:1".into()));
        assert_eq!(leader_of(&replica(1, Some(1), Some(4000))), None);
        assert_eq!(leader_of(&replica(2, None, None)), None);
        let asked = [replica(2, None, Some(4000)), replica(3, None, Some(61_000))];
        assert_eq!(
            leaderless(&asked),
            "no leader for 61 s: nothing can change, and what is shown may be old; of 3 \
             replicas answer: m2, m3; next: cell master status"
        );
    }

    #[test]
    fn a_page_of_metrics_is_read_as_sentences() {
        let page = "# HELP cell_alarms What a person should look at.\n\
                    cell_raft_term 3\n\
                    cell_alarms{alarm=\"most_machines_silent\"} 1\n\
                    cell_alarms{alarm=\"of_the_future\"} 7\n\
                    cell_disk_short_bytes{replica=\"m1\"} 209715200\n\
                    cell_clock_alarm_seconds{clock=\"machine n2\"} -3600\n\
                    cell_machine_silent_seconds{machine=\"n1\"} 40\n";
        let found = Alarms::read(page);
        assert_eq!(found.silent, BTreeMap::from([("n1".to_owned(), 40)]));
        assert_eq!(
            found.lines(),
            [
                "1 machine silent, more than half of the cell: none is declared down and nothing \
                 moves",
                "of_the_future 7",
                "master m1 has 200 MiB free on the disk of its log, less than its reserve: it \
                 leads only if no other has room, and takes nothing but removals then; free some \
                 of it",
                "the clock of machine n2 is 60 min behind the cell's: set it, or keep it by NTP",
                "machine n1 has not been heard from for 40 s",
            ]
        );
        assert_eq!(Alarms::read("cell_raft_term 3\n").lines(), [""; 0]);
    }
}
