//! Ephemeral resources (E1). Which nodes a change is for is settled here, against what is available
//! in the leader's own picture, so that the command in the log has no choice left in it.

use super::call::Call;
use super::{Answered, Api, reply, view};
use crate::handle::Caller;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{AvailableNodes, NodeSpec, SetResource};
use cellwright_cell::command::Command;
use cellwright_cell::id::MachineId;
use cellwright_cell::load::MachineLoad;
use cellwright_cell::machine::Machine;
use cellwright_cell::name::Name;
use cellwright_cell::named::{NamedAmount, ResourceName, UNBOUNDED};
use cellwright_cell::reason::Refusal;
use cellwright_cell::state::State;

impl Call {
    fn resource(&self) -> Result<ResourceName, ApiError> {
        let namespace = Some(self.token("namespace")?);
        Ok(ResourceName { namespace, name: self.token("name")? })
    }
}

impl Api {
    pub(super) async fn list_resources(&self, call: Call) -> Answered {
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let owner = call.query("user");
        let rows = state.resources().iter().filter(|(_, row)| {
            let name = row.owner.and_then(|user| state.users().get(user));
            let name = name.map_or("", |user| user.name.as_str());
            row.name.namespace.is_some() && owner.is_none_or(|owner| name == owner)
        });
        let rows = rows.map(|(id, row)| (u64::from(id.0), row));
        let show = |row| view::resource(state, row);
        let page = call.page('r', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_resource(&self, call: Call) -> Answered {
        let name = call.resource()?;
        let (view, consistent) = call.view(self).await?;
        let row = view.state.resource_named(&name).and_then(|id| view.state.resources().get(id));
        let resource = row.and_then(|row| view::resource(&view.state, row));
        let resource = resource.ok_or_else(|| ApiError::from(Refusal::NoSuchResource(name)))?;
        reply::one(&call, view.index, consistent, resource)
    }

    pub(super) async fn set_resource(&self, mut call: Call) -> Answered {
        let body: SetResource = call.json(self).await?;
        let (namespace, name) = (call.token("namespace")?, call.token("name")?);
        if matches!(call.caller()?, Caller::Agent(_)) && body.nodes != NodeSpec::Local {
            let message = "an agent speaks of its own machine only";
            return Err(ApiError::new(Code::NotAllowed, message).hint("send nodes: \"local\""));
        }
        let print = format!("{namespace}/{name} {body:?}");
        let make = || {
            let nodes = self
                .handle
                .replicated()
                .with(|view| choose(&view.state, &body.nodes, call.caller()?))?;
            let changes = nodes.into_iter().map(|machine| (machine, body.capacity)).collect();
            let lease_until = self.clock.wall().plus(body.lease);
            let (namespace, name) = (namespace.clone(), name.clone());
            Ok(Command::SetResource { namespace, name, lease_until, changes })
        };
        let command = self.memo.command(&call, &print, make)?;
        self.change(&call, command).await
    }

    pub(super) async fn delete_resource(&self, call: Call) -> Answered {
        let (namespace, name) = (call.token("namespace")?, call.token("name")?);
        self.change(&call, Command::DeleteResource { namespace, name }).await
    }
}

/// The nodes the change is for.
fn choose(state: &State, nodes: &NodeSpec, caller: &Caller) -> Result<Vec<MachineId>, ApiError> {
    let one = |name: &Name| match state.machine_named(name) {
        Some(id) => Ok(vec![id]),
        None => Err(ApiError::from(Refusal::NoSuchMachine(name.clone()))),
    };
    match (nodes, caller) {
        (NodeSpec::Node(name), _) | (NodeSpec::Local, Caller::Agent(name)) => one(name),
        (NodeSpec::Local, _) => {
            let allowed = "node or available, as the caller is not the agent of a machine";
            Err(ApiError::field("nodes", "local", allowed))
        }
        (NodeSpec::Available(wanted), _) => matching(state, wanted),
    }
}

fn matching(state: &State, wanted: &AvailableNodes) -> Result<Vec<MachineId>, ApiError> {
    let none = MachineLoad::default();
    let fits = |id: MachineId, row: &Machine| {
        let load = state.machine_load(id).unwrap_or(&none);
        let has = |asked: &NamedAmount| match row.named_capacity(&asked.name) {
            UNBOUNDED => true,
            all => asked.amount <= all.saturating_sub(load.named_used(&asked.name)),
        };
        row.schedulable()
            && wanted.resources.within(view::available(row, load))
            && wanted.named.iter().all(has)
    };
    let rows = state.machines().iter().filter(|(id, row)| fits(*id, row));
    let mut found: Vec<(&Name, MachineId)> = rows.map(|(id, row)| (&row.spec.name, id)).collect();
    let least = wanted.num_nodes.map_or(1, |n| n as usize);
    if wanted.num_nodes == Some(0) {
        return Err(ApiError::field("nodes.available.num_nodes", "0", "1 or more"));
    }
    if found.len() < least {
        let message = format!("{} nodes have that much available, {least} are asked", found.len());
        return Err(ApiError::new(Code::TooFewNodes, message)
            .with("matching", found.len())
            .with("asked", least));
    }
    if let Some(most) = wanted.num_nodes {
        found.sort_unstable();
        found.truncate(most as usize);
    }
    let mut ids: Vec<MachineId> = found.into_iter().map(|(_, id)| id).collect();
    ids.sort_unstable();
    Ok(ids)
}
