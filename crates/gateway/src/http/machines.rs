//! Machines.

use super::call::Call;
use super::output::{Agent, of_agent};
use super::{Answered, Api, reply, view};
use cellwright_api::client::parts::HOLDINGS_PATH;
use cellwright_api::error::ApiError;
use cellwright_api::types::{MachinePackages, MachineView};
use cellwright_cell::command::Command;
use cellwright_cell::label;
use cellwright_cell::machine::{Machine, MachineSpec, MachineStatus};
use cellwright_cell::reason::Refusal;
use std::time::Duration;

/// What an agent may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);

fn stands(row: &Machine, want: &str) -> bool {
    match want {
        "up" => row.status == MachineStatus::Up,
        "down" => row.status == MachineStatus::Down,
        _ => row.draining,
    }
}

impl Api {
    pub(super) async fn list_machines(&self, call: Call) -> Answered {
        let terms = call.selector()?;
        let wanted = call.query("status").map(str::to_owned);
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let rows = state.machines().iter().filter(|(_, row)| {
            wanted.as_deref().is_none_or(|want| stands(row, want))
                && label::selects(&terms, &row.spec.labels)
        });
        let rows = rows.map(|(id, _)| (u64::from(id.0), id));
        let usage = self.handle.usage().await;
        let (skews, troubles) = (self.handle.skews(), self.troubles(state).await);
        let show = |id| {
            let machine = troubles.told(view::machine(state, &usage, id)?, id);
            Some(MachineView { clock_ahead_ms: skews.machines.get(&id).copied(), ..machine })
        };
        let page = call.page('m', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_machine(&self, call: Call) -> Answered {
        let name = call.name("machine")?;
        let (view, consistent) = call.view(self).await?;
        let id = view.state.machine_named(&name);
        let usage = self.handle.usage().await;
        let troubles = self.troubles(&view.state).await;
        let shown = |id| view::machine(&view.state, &usage, id).map(|view| troubles.told(view, id));
        let unknown = || match troubles.of_unknown(&name) {
            None => ApiError::from(Refusal::NoSuchMachine(name.clone())),
            Some(refused) => {
                let error = ApiError::from(Refusal::NoSuchMachine(name.clone()));
                let message =
                    format!("{}: its agent is refused: {}", error.message, refused.reason);
                ApiError { message, hint: refused.next.clone(), ..error }
            }
        };
        let mut machine = id.and_then(shown).ok_or_else(unknown)?;
        machine.clock_ahead_ms = id.and_then(|id| self.handle.skews().machines.get(&id).copied());
        reply::one(&call, view.index, consistent, machine)
    }

    pub(super) async fn list_machine_tasks(&self, call: Call) -> Answered {
        let name = call.name("machine")?;
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let id = state.machine_named(&name).ok_or(Refusal::NoSuchMachine(name))?;
        let tasks = state.machine_load(id).map(|load| load.tasks.clone()).unwrap_or_default();
        let usage = self.handle.usage().await;
        let rows = tasks.into_iter().map(|id| (u64::from(id.0), id));
        let show = |id| view::task(state, &usage, id);
        let page = call.page('t', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    /// Asked of its agent: the state knows which packages are there, not how they came.
    pub(super) async fn machine_packages(&self, call: Call) -> Answered {
        let name = call.name("machine")?;
        let _seat = self.seat(&call)?;
        let view = self.handle.read();
        let id = view.state.machine_named(&name).ok_or(Refusal::NoSuchMachine(name))?;
        let Agent { machine, address } = Agent::of(&view.state, id)?;
        let mut line = self.settings.agents.dial(&machine, &address).await.map_err(of_agent)?;
        let told: MachinePackages = line.get(HOLDINGS_PATH, ANSWER).await.map_err(of_agent)?;
        Ok(reply::json(&call, view.index, &told))
    }

    pub(super) async fn add_machine(&self, mut call: Call) -> Answered {
        let spec: MachineSpec = call.json(self).await?;
        self.change(&call, Command::AddMachine(spec)).await
    }

    pub(super) async fn update_machine(&self, mut call: Call) -> Answered {
        let spec: MachineSpec = call.json(self).await?;
        let name = call.name("machine")?;
        if spec.name != name {
            let allowed = format!("{name}, as in the path");
            return Err(ApiError::field("name", spec.name.as_str(), &allowed));
        }
        let expect = call.expect()?;
        self.change(&call, Command::UpdateMachine { spec, expect }).await
    }

    pub(super) async fn remove_machine(&self, call: Call) -> Answered {
        let (name, expect) = (call.name("machine")?, call.expect()?);
        let command = match call.flag("force") {
            true => Command::RemoveMachine { name, expect },
            false => Command::RemoveEmptyMachine { name, expect },
        };
        self.change(&call, command).await
    }

    pub(super) async fn drain(&self, call: Call, start: bool) -> Answered {
        let (name, expect) = (call.name("machine")?, call.expect()?);
        let command = match start {
            true => Command::StartDrain { name, expect },
            false => Command::StopDrain { name, expect },
        };
        self.change(&call, command).await
    }
}
