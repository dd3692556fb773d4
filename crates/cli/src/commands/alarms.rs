//! Alarms of the cell: machines that are up but silent, and others.
//!
//! Any replica asks the leader for them. It is asked itself, at its own address, because of a cell
//! without a leader people are told who answers, and since when.

use crate::connection::Cell;
use crate::format;
use cellwright_api::types::{self, Alarm, AlarmView, MasterStatus, MemberView};
use cellwright_cell::time::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Shows more about a missing leader.
const MASTER_STATUS_HINT: &str = "; next: cell master status";

/// The alarms that the leader reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    pub items: Vec<AlarmView>,
    /// No replica leads; `items` contains an alarm for it too.
    pub is_leaderless: bool,
}

impl Alarms {
    /// Asks the replica at this address for its alarms.
    async fn from_replica(cell: &Cell, address: &str) -> Result<Alarms, String> {
        let answer = cell.client.bytes_at(address, "/v1/alarms", ANSWER_TIMEOUT).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let found_alarms: types::Alarms =
            serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        Ok(Alarms { items: found_alarms.items, is_leaderless: false })
    }

    /// Asks the leader for its alarms; returns none if no replica can be asked, since alarms only
    /// supplement other output. A missing leader is an alarm itself: what any master returns is
    /// then as old as the last leader.
    pub async fn from_leader(cell: &Cell) -> Alarms {
        let status = cell.client.get::<MasterStatus>("/v1/masters").await;
        let Ok(status) = status.map(|answer| answer.value) else { return Alarms::default() };
        let mut statuses = vec![status];
        if leader_of(&statuses[0]).is_none() {
            statuses.extend(other_replicas(cell, &statuses[0]).await);
        }
        let mut alarms = Alarms::from_known_leader(cell, &statuses).await.unwrap_or_default();
        let leaderless = |view: &&mut AlarmView| matches!(view.alarm, Alarm::NoLeader { .. });
        for view in alarms.items.iter_mut().filter(leaderless) {
            view.message.push_str(MASTER_STATUS_HINT);
        }
        alarms
    }

    /// Asks the leader that one of the replicas in `statuses` knows; at least one replica has
    /// answered. If none knows a leader, that is the alarm.
    pub async fn from_known_leader(
        cell: &Cell,
        statuses: &[MasterStatus],
    ) -> Result<Alarms, String> {
        let mut found_alarms = match statuses.iter().find_map(leader_of) {
            Some(address) => Alarms::from_replica(cell, &address).await?,
            None => Alarms { items: vec![leaderless_alarm(statuses)], is_leaderless: true },
        };
        // These replicas say what it is that is damaged, and the leader how many parts.
        let details: Vec<AlarmView> = statuses.iter().flat_map(damage_alarms).collect();
        let damaged = |view: &AlarmView| match &view.alarm {
            Alarm::DiskDamage { replica, .. } => Some(replica.clone()),
            _ => None,
        };
        let detailed: BTreeSet<String> = details.iter().filter_map(damaged).collect();
        found_alarms.items.retain(|view| damaged(view).is_none_or(|of| !detailed.contains(&of)));
        // Alarms about silent machines may be many, and come last.
        let is_silent = |view: &AlarmView| matches!(view.alarm, Alarm::MachineSilent { .. });
        let at = found_alarms.items.iter().position(is_silent).unwrap_or(found_alarms.items.len());
        found_alarms.items.splice(at..at, details);
        Ok(found_alarms)
    }

    /// Seconds since the last message from each silent machine, by name.
    pub fn silent_machines(&self) -> BTreeMap<String, u64> {
        let silent_alarm = |view: &AlarmView| match &view.alarm {
            Alarm::MachineSilent { machine, seconds } => Some((machine.clone(), *seconds)),
            _ => None,
        };
        self.items.iter().filter_map(silent_alarm).collect()
    }
}

/// The alarms about the disk of a replica.
fn damage_alarms(status: &MasterStatus) -> impl Iterator<Item = AlarmView> {
    let own = status.members.iter().find(|member| member.id == status.id);
    let name = own.map_or(status.id.to_string(), |member| member.name.clone());
    status.damage.iter().map(move |what| AlarmView {
        message: format!("{name}: {what}"),
        alarm: Alarm::DiskDamage { replica: name.clone(), parts: 1 },
    })
}

/// The address of the leader, if this replica knows one for certain.
fn leader_of(status: &MasterStatus) -> Option<String> {
    let leader = status.members.iter().find(|member| Some(member.id) == status.leader)?;
    status.leaderless_ms.is_none().then(|| leader.address.clone())
}

/// The statuses of the other replicas that answer.
async fn other_replicas(cell: &Cell, first: &MasterStatus) -> Vec<MasterStatus> {
    let mut answered = Vec::new();
    for member in first.members.iter().filter(|member| member.id != first.id) {
        let response = cell.client.bytes_at(&member.address, "/v1/masters", ANSWER_TIMEOUT).await;
        answered.extend(response.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()));
    }
    answered
}

/// The alarm for a missing leader: what is wrong, since when, and which replicas answer. At
/// least one replica answered.
fn leaderless_alarm(statuses: &[MasterStatus]) -> AlarmView {
    let longest =
        statuses.iter().filter_map(|status| status.leaderless_ms).max().unwrap_or_default();
    let members = statuses.first().map_or(&[][..], |status| &status.members[..]);
    let answers = |member: &&MemberView| statuses.iter().any(|status| status.id == member.id);
    let names: Vec<&str> =
        members.iter().filter(answers).map(|member| member.name.as_str()).collect();
    let answering = if names.is_empty() {
        "only one that is no member answers".to_owned()
    } else if members.len() == 1 {
        "its only replica answers".to_owned()
    } else {
        format!("of {} replicas answer: {}", members.len(), names.join(", "))
    };
    let message = format!(
        "no leader for {}: nothing can change, and what is shown may be old; \
         {answering}",
        format::duration(Span(longest))
    );
    AlarmView { alarm: Alarm::NoLeader { seconds: longest / 1000 }, message }
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
        let statuses = [replica(2, None, Some(4000)), replica(3, None, Some(61_000))];
        assert_eq!(
            leaderless_alarm(&statuses).message,
            "no leader for 61 s: nothing can change, and what is shown may be old; of 3 \
             replicas answer: m2, m3"
        );
    }

    #[test]
    fn machines_that_are_silent_are_told_by_name_and_damage_by_its_replica() {
        let silent_alarm = Alarm::MachineSilent { machine: "n1".into(), seconds: 40 };
        let limited = Alarm::DownRateLimited { waiting: 2 };
        let items = [limited, silent_alarm].map(AlarmView::from).to_vec();
        let found_alarms = Alarms { items, is_leaderless: false };
        assert_eq!(found_alarms.silent_machines(), BTreeMap::from([("n1".to_owned(), 40)]));
        let mut hurt = replica(2, Some(1), None);
        hurt.damage = vec!["snapshot 7 is damaged".into()];
        let damage_alarms_of_replica: Vec<AlarmView> = damage_alarms(&hurt).collect();
        assert_eq!(damage_alarms_of_replica[0].message, "m2: snapshot 7 is damaged");
        assert_eq!(
            damage_alarms_of_replica[0].alarm,
            Alarm::DiskDamage { replica: "m2".into(), parts: 1 }
        );
    }
}
