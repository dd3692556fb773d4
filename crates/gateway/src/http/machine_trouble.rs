//! Machine trouble: why the cell considers a machine unavailable. Its agent is not heard, or its
//! reports are rejected.

use super::Api;
use cellwright_api::types::{MachineView, Trouble, TroubleView};
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::{Machine, MachineStatus};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_control::input::Alarm;
use cellwright_master::rejected_polls::RejectedPoll;
use std::collections::BTreeMap;

const SILENT_HINT: &str = "on its machine: does the agent run (systemctl status cell-agent), \
                           what does it log, does it reach a master";
const NEVER_JOINED_HINT: &str = "start its agent: cell agent start; if it never joined: cell token \
                                 create --agent MACHINE --token-file FILE, cell agent join \
                                 --token-file FILE";

/// The present trouble of all machines.
pub(super) struct MachineTroubles {
    now: Time,
    rejected_polls: BTreeMap<Name, RejectedPoll>,
    /// For how long machines that are up have not been heard.
    silent: BTreeMap<MachineId, Span>,
}

impl Api {
    /// Other replicas are asked only if there is a machine that they may reject.
    pub(super) async fn machine_troubles(&self, state: &State) -> MachineTroubles {
        let alarms = self.handle.alarms();
        let silent = alarms.into_iter().filter_map(|alarm| match alarm {
            Alarm::MachineSilent { machine, silent } => Some((machine, silent)),
            _ => None,
        });
        let silent: BTreeMap<MachineId, Span> = silent.collect();
        let is_down = |(_, row): (_, &Machine)| row.status == MachineStatus::Down;
        let rejected_polls = if silent.is_empty() && !state.machines().iter().any(is_down) {
            BTreeMap::new()
        } else {
            self.handle.rejected_polls().await
        };
        MachineTroubles { now: self.handle.log_time(), rejected_polls, silent }
    }
}

impl MachineTroubles {
    pub fn with_trouble(&self, mut view: MachineView, id: MachineId) -> MachineView {
        let is_down = view.status == MachineStatus::Down;
        let ago = |millis: u64| Time(self.now.0.saturating_sub(millis));
        let silent = self.silent.get(&id);
        if !is_down && silent.is_none() {
            return view;
        }
        let rejected = self.rejected_polls.get(&view.name).map(|refused| TroubleView {
            kind: Trouble::Refused,
            since: ago(refused.lasted),
            reason: refused.reason.clone(),
            next: refused.next.clone(),
        });
        let (reason, next) = match view.incarnation {
            0 => ("its agent was never heard", NEVER_JOINED_HINT),
            _ => ("no master hears its agent", SILENT_HINT),
        };
        let silent_trouble = TroubleView {
            kind: Trouble::Silent,
            since: silent.map_or(view.since, |silent| ago(silent.0)),
            reason: reason.into(),
            next: next.into(),
        };
        view.trouble = Some(rejected.unwrap_or(silent_trouble));
        view
    }

    /// For a machine that the cell does not know: its agent may have joined and be rejected.
    pub fn of_unknown(&self, machine: &Name) -> Option<&RejectedPoll> {
        self.rejected_polls.get(machine)
    }
}
