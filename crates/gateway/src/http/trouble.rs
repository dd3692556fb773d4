//! Why the cell does not count on a machine: nobody hears its agent, or what it says is refused.

use super::Api;
use cellwright_api::types::{MachineView, Trouble, TroubleView};
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::{Machine, MachineStatus};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_control::input::Alarm;
use cellwright_master::refused::RefusedPoll;
use std::collections::BTreeMap;

const LOOK: &str = "on its machine: does the agent run (systemctl status cell-agent), what does it \
                    log, does it reach a master";
const JOIN: &str = "start its agent: cell agent start; if it never joined: cell token create \
                    --agent MACHINE --token-file FILE, cell agent join --token-file FILE";

/// What is known of it now, for all machines.
pub(super) struct Troubles {
    now: Time,
    refused: BTreeMap<Name, RefusedPoll>,
    /// For how long nobody heard machines that are up.
    silent: BTreeMap<MachineId, Span>,
}

impl Api {
    /// Other replicas are asked only if there is a machine that they may refuse.
    pub(super) async fn troubles(&self, state: &State) -> Troubles {
        let alarms = self.handle.alarms();
        let silent = alarms.into_iter().filter_map(|alarm| match alarm {
            Alarm::MachineSilent { machine, silent } => Some((machine, silent)),
            _ => None,
        });
        let silent: BTreeMap<MachineId, Span> = silent.collect();
        let is_down = |(_, row): (_, &Machine)| row.status == MachineStatus::Down;
        let refused = match silent.is_empty() && !state.machines().iter().any(is_down) {
            true => BTreeMap::new(),
            false => self.handle.refused_polls().await,
        };
        Troubles { now: self.handle.log_time(), refused, silent }
    }
}

impl Troubles {
    pub fn told(&self, mut view: MachineView, id: MachineId) -> MachineView {
        let is_down = view.status == MachineStatus::Down;
        let ago = |millis: u64| Time(self.now.0.saturating_sub(millis));
        let silent = self.silent.get(&id);
        if !is_down && silent.is_none() {
            return view;
        }
        let refused = self.refused.get(&view.name).map(|refused| TroubleView {
            what: Trouble::Refused,
            since: ago(refused.lasted),
            reason: refused.reason.clone(),
            next: refused.next.clone(),
        });
        let (reason, next) = match view.incarnation {
            0 => ("its agent was never heard", JOIN),
            _ => ("no master hears its agent", LOOK),
        };
        let unheard = TroubleView {
            what: Trouble::Silent,
            since: silent.map_or(view.since, |silent| ago(silent.0)),
            reason: reason.into(),
            next: next.into(),
        };
        view.trouble = Some(refused.unwrap_or(unheard));
        view
    }

    /// Of a machine that the cell does not know: its agent may have joined and be refused.
    pub fn of_unknown(&self, machine: &Name) -> Option<&RefusedPoll> {
        self.refused.get(machine)
    }
}
