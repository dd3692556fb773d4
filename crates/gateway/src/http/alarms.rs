//! Alarms of the cell: silent machines, clocks and disks as the leader knows them, and what each
//! replica knows of its own files. Metrics report the same of this replica alone, for their reader
//! reads all of them.

use super::call::Call;
use super::{Api, ApiResult, reply};
use cellwright_api::types::{Alarm, AlarmView, Alarms, ClockOwner};
use cellwright_cell::state::State;
use cellwright_control::input::Alarm as Noticed;
use cellwright_control::log_time::ClockSource;
use cellwright_master::replica_alarms::ReplicaAlarms;
use cellwright_store::{DiskSpace, NodeId};
use std::collections::BTreeMap;

impl Api {
    pub(super) async fn list_alarms(&self, call: Call) -> ApiResult {
        let known = self.handle.all_alarms().await;
        let leader = known.iter().find(|(_, alarms)| alarms.leads);
        let leader = leader.map(|(id, _)| self.replica_name(*id));
        let items = self.alarms(&known).into_iter().map(AlarmView::from).collect();
        let status = self.handle.status();
        let replica = self.replica_name(status.id);
        let index = status.applied.unwrap_or(0);
        Ok(reply::json(&call, index, &Alarms { replica, leader, items }))
    }

    /// Those of this replica alone.
    pub(super) fn local_alarms(&self) -> Vec<Alarm> {
        let own = (self.handle.status().id, self.handle.local_alarms());
        self.alarms(&BTreeMap::from([own]))
    }

    /// All alarms; single silent machines come last, because there may be many.
    fn alarms(&self, known: &BTreeMap<NodeId, ReplicaAlarms>) -> Vec<Alarm> {
        let state = self.handle.read().state;
        let own = known.get(&self.handle.status().id);
        // Others know no more of machines, clocks and disks than what is of themselves.
        let leader = known.values().find(|alarms| alarms.leads);
        let Some(first) = leader.or(own) else { return Vec::new() };
        let noticed = &first.noticed;
        let mut alarms = Vec::new();
        if let (None, Some(seconds)) = (leader, first.leaderless_seconds) {
            alarms.push(Alarm::NoLeader { seconds });
        }
        alarms.extend(noticed.iter().filter_map(|noticed| match noticed {
            Noticed::MostMachinesSilent { silent, up } => {
                Some(Alarm::MostMachinesSilent { silent: *silent, up: *up })
            }
            Noticed::DownRateLimited { waiting } => {
                Some(Alarm::DownRateLimited { waiting: *waiting })
            }
            Noticed::ArchiveFailing { seconds, waiting, lost } => {
                Some(Alarm::ArchiveFailing { seconds: *seconds, waiting: *waiting, lost: *lost })
            }
            Noticed::MachineSilent { .. } | Noticed::ClockSkew { .. } => None,
        }));
        alarms.extend(known.iter().filter(|(_, known)| !known.damage.is_empty()).map(
            |(id, known)| {
                let parts = u32::try_from(known.damage.len()).unwrap_or(u32::MAX);
                Alarm::DiskDamage { replica: self.replica_name(*id), parts }
            },
        ));
        alarms.extend(noticed.iter().filter_map(|noticed| match noticed {
            Noticed::ClockSkew { source: whose, seconds } => {
                Some(Alarm::ClockSkew { clock: self.clock(&state, whose)?, seconds: *seconds })
            }
            _ => None,
        }));
        alarms.extend(first.disks.iter().filter_map(|(id, room)| self.disk(*id, room)));
        alarms.extend(noticed.iter().filter_map(|noticed| match noticed {
            Noticed::MachineSilent { machine, silent } => {
                let machine = state.machines().get(*machine)?.spec.name.to_string();
                Some(Alarm::MachineSilent { machine, seconds: silent.0 / 1000 })
            }
            _ => None,
        }));
        alarms
    }

    fn disk(&self, id: NodeId, room: &DiskSpace) -> Option<Alarm> {
        let replica = self.handle.status().members.get(&id)?.peer.name.clone();
        let free_bytes = room.free;
        if room.is_below_reserve() {
            Some(Alarm::DiskShort { replica, free_bytes })
        } else if room.is_low() {
            Some(Alarm::DiskLow { replica, free_bytes })
        } else {
            None
        }
    }

    /// `None` for a machine that was removed.
    fn clock(&self, state: &State, owner: &ClockSource) -> Option<ClockOwner> {
        Some(match owner {
            ClockSource::Log => ClockOwner::Log,
            ClockSource::Replica(id) => ClockOwner::Master(self.replica_name(*id)),
            ClockSource::Scheduler(name) => ClockOwner::Scheduler(printable(name)),
            ClockSource::Machine(id) => {
                ClockOwner::Machine(state.machines().get(*id)?.spec.name.to_string())
            }
        })
    }

    pub(super) fn replica_name(&self, replica: u64) -> String {
        let status = self.handle.status();
        let member = status.members.get(&replica);
        member.map_or_else(|| replica.to_string(), |member| member.peer.name.clone())
    }
}

/// A scheduler chooses its own name, so it is sanitized.
fn printable(name: &str) -> String {
    let fine = |c: &char| c.is_ascii_alphanumeric() || "-_./".contains(*c);
    name.chars().filter(fine).take(64).collect()
}
