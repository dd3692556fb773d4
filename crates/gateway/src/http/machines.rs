//! Handlers for machines.

use super::call::Call;
use super::output::{Agent, agent_error};
use super::{Api, ApiResult, reply, view};
use cellwright_api::client::internal_calls::MACHINE_PACKAGES_PATH;
use cellwright_api::error::ApiError;
use cellwright_api::types::{MachinePackages, MachineView};
use cellwright_cell::command::Command;
use cellwright_cell::label;
use cellwright_cell::machine::{Machine, MachineSpec, MachineStatus};
use cellwright_cell::reason::Rejection;
use std::time::Duration;

/// Timeout for an agent's answer.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

fn has_status(row: &Machine, want: &str) -> bool {
    match want {
        "up" => row.status == MachineStatus::Up,
        "down" => row.status == MachineStatus::Down,
        _ => row.draining,
    }
}

impl Api {
    pub(super) async fn list_machines(&self, call: Call) -> ApiResult {
        let terms = call.selector()?;
        let status_filter = call.query("status").map(str::to_owned);
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let rows = state.machines().iter().filter(|(_, row)| {
            status_filter.as_deref().is_none_or(|want| has_status(row, want))
                && label::selects(&terms, &row.spec.labels)
        });
        let rows = rows.map(|(id, _)| (u64::from(id.0), id));
        let usage = self.handle.usage().await;
        let (skews, troubles) = (self.handle.skews(), self.machine_troubles(state).await);
        let show = |id| {
            let machine = troubles.with_trouble(view::machine(state, &usage, id)?, id);
            Some(MachineView { clock_ahead_ms: skews.machines.get(&id).copied(), ..machine })
        };
        let page = call.page('m', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_machine(&self, call: Call) -> ApiResult {
        let name = call.name("machine")?;
        let (view, consistent) = call.view(self).await?;
        let id = view.state.machine_named(&name);
        let usage = self.handle.usage().await;
        let troubles = self.machine_troubles(&view.state).await;
        let machine_view =
            |id| view::machine(&view.state, &usage, id).map(|view| troubles.with_trouble(view, id));
        let unknown = || match troubles.of_unknown(&name) {
            None => ApiError::from(Rejection::NoSuchMachine(name.clone())),
            Some(rejected_poll) => {
                let error = ApiError::from(Rejection::NoSuchMachine(name.clone()));
                let message =
                    format!("{}: its agent is refused: {}", error.message, rejected_poll.reason);
                ApiError { message, hint: rejected_poll.next.clone(), ..error }
            }
        };
        let mut machine = id.and_then(machine_view).ok_or_else(unknown)?;
        machine.clock_ahead_ms = id.and_then(|id| self.handle.skews().machines.get(&id).copied());
        reply::one(&call, view.index, consistent, machine)
    }

    pub(super) async fn list_machine_tasks(&self, call: Call) -> ApiResult {
        let name = call.name("machine")?;
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let id = state.machine_named(&name).ok_or(Rejection::NoSuchMachine(name))?;
        let tasks = state.machine_load(id).map(|load| load.tasks.clone()).unwrap_or_default();
        let usage = self.handle.usage().await;
        let rows = tasks.into_iter().map(|id| (u64::from(id.0), id));
        let show = |id| view::task(state, &usage, id);
        let page = call.page('t', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    /// The agent is asked: the state has the packages of a machine, not their sources.
    pub(super) async fn machine_packages(&self, call: Call) -> ApiResult {
        let name = call.name("machine")?;
        let _seat = self.output_reader_permit(&call)?;
        let view = self.handle.read();
        let id = view.state.machine_named(&name).ok_or(Rejection::NoSuchMachine(name))?;
        let Agent { machine, address } = Agent::of(&view.state, id)?;
        let mut line = self.config.agents.dial(&machine, &address).await.map_err(agent_error)?;
        let packages: MachinePackages =
            line.get(MACHINE_PACKAGES_PATH, AGENT_TIMEOUT).await.map_err(agent_error)?;
        Ok(reply::json(&call, view.index, &packages))
    }

    pub(super) async fn add_machine(&self, mut call: Call) -> ApiResult {
        let spec: MachineSpec = call.json(self).await?;
        self.change(&call, Command::AddMachine(spec)).await
    }

    pub(super) async fn update_machine(&self, mut call: Call) -> ApiResult {
        let spec: MachineSpec = call.json(self).await?;
        let name = call.name("machine")?;
        if spec.name != name {
            let allowed = format!("{name}, as in the path");
            return Err(ApiError::field("name", spec.name.as_str(), &allowed));
        }
        let expect = call.expect()?;
        self.change(&call, Command::UpdateMachine { spec, expect }).await
    }

    pub(super) async fn remove_machine(&self, call: Call) -> ApiResult {
        let (name, expect) = (call.name("machine")?, call.expect()?);
        let command = if call.flag("force") {
            Command::RemoveMachine { name, expect }
        } else {
            Command::RemoveEmptyMachine { name, expect }
        };
        self.change(&call, command).await
    }

    pub(super) async fn drain(&self, call: Call, start: bool) -> ApiResult {
        let (name, expect) = (call.name("machine")?, call.expect()?);
        let command = match (start, call.span("within")?) {
            (true, Some(within)) => Command::DrainWithin { name, within, expect },
            (true, None) => Command::StartDrain { name, expect },
            (false, _) => Command::StopDrain { name, expect },
        };
        self.change(&call, command).await
    }
}
