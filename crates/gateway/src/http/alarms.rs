//! Alarms that this replica knows of: silent machines and clocks, on the leader, and the disks.
//! Metrics report the same numbers, from this very list.

use super::call::Call;
use super::{Api, ApiResult, reply};
use cellwright_api::types::{Alarm, AlarmView, Alarms, ClockOwner};
use cellwright_cell::state::State;
use cellwright_control::input::Alarm as Noticed;
use cellwright_control::log_time::ClockSource;
use cellwright_store::Role;

impl Api {
    pub(super) async fn list_alarms(&self, call: Call) -> ApiResult {
        let status = self.handle.status();
        let items = self.alarms().into_iter().map(AlarmView::from).collect();
        let replica = self.replica_name(status.id);
        let leads = status.role == Role::Leader;
        let index = status.applied.unwrap_or(0);
        Ok(reply::json(&call, index, &Alarms { replica, leads, items }))
    }

    /// All alarms; single silent machines come last, because there may be many.
    pub(super) fn alarms(&self) -> Vec<Alarm> {
        let noticed = self.handle.alarms();
        let state = self.handle.read().state;
        let mut alarms = Vec::new();
        if let Some(long) = self.handle.leaderless_for() {
            alarms.push(Alarm::NoLeader { seconds: long.as_secs() });
        }
        alarms.extend(noticed.iter().filter_map(|noticed| match noticed {
            Noticed::MostMachinesSilent { silent, up } => {
                Some(Alarm::MostMachinesSilent { silent: *silent, up: *up })
            }
            Noticed::DownRateLimited { waiting } => {
                Some(Alarm::DownRateLimited { waiting: *waiting })
            }
            Noticed::MachineSilent { .. } | Noticed::ClockSkew { .. } => None,
        }));
        let parts = u32::try_from(self.disk_damage().len()).unwrap_or(u32::MAX);
        if parts > 0 {
            let replica = self.replica_name(self.handle.status().id);
            alarms.push(Alarm::DiskDamage { replica, parts });
        }
        alarms.extend(noticed.iter().filter_map(|noticed| match noticed {
            Noticed::ClockSkew { source: whose, seconds } => {
                Some(Alarm::ClockSkew { clock: self.clock(&state, whose)?, seconds: *seconds })
            }
            _ => None,
        }));
        alarms.extend(self.disks());
        alarms.extend(noticed.iter().filter_map(|noticed| match noticed {
            Noticed::MachineSilent { machine, silent } => {
                let machine = state.machines().get(*machine)?.spec.name.to_string();
                Some(Alarm::MachineSilent { machine, seconds: silent.0 / 1000 })
            }
            _ => None,
        }));
        alarms
    }

    /// Of all replicas on the leader, which polls them; of itself on others.
    fn disks(&self) -> Vec<Alarm> {
        let (rooms, members) = (self.handle.replica().disk_spaces(), self.handle.status().members);
        let disk_alarm = |(id, room): (&u64, &cellwright_store::DiskSpace)| {
            let (replica, free_bytes) = (members.get(id)?.peer.name.clone(), room.free);
            if room.is_below_reserve() {
                Some(Alarm::DiskShort { replica, free_bytes })
            } else if room.is_low() {
                Some(Alarm::DiskLow { replica, free_bytes })
            } else {
                None
            }
        };
        rooms.iter().filter_map(disk_alarm).collect()
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
