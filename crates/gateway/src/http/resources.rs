//! Ephemeral resources (E1). The command carries the client's request unchanged: from when a lease
//! counts and which nodes a change is for is decided when it is applied. So a request that is sent
//! again, to this leader or to the next, is the same one, and the log recognises it by its key.

use super::call::Call;
use super::{Api, ApiResult, reply, view};
use cellwright_api::error::ApiError;
use cellwright_api::types::{NodeSpec, SetResource};
use cellwright_cell::ephemeral::{Command, NodeChoice};
use cellwright_cell::named::ResourceName;
use cellwright_cell::reason::Rejection;
use cellwright_master::handle::Caller;

impl Call {
    fn resource(&self) -> Result<ResourceName, ApiError> {
        let namespace = Some(self.token("namespace")?);
        Ok(ResourceName { namespace, name: self.token("name")? })
    }
}

impl Api {
    pub(super) async fn list_resources(&self, call: Call) -> ApiResult {
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

    pub(super) async fn get_resource(&self, call: Call) -> ApiResult {
        let name = call.resource()?;
        let (view, consistent) = call.view(self).await?;
        let row = view.state.resource_named(&name).and_then(|id| view.state.resources().get(id));
        let resource = row.and_then(|row| view::resource(&view.state, row));
        let resource = resource.ok_or_else(|| ApiError::from(Rejection::NoSuchResource(name)))?;
        reply::one(&call, view.index, consistent, resource)
    }

    pub(super) async fn set_resource(&self, mut call: Call) -> ApiResult {
        let body: SetResource = call.json(self).await?;
        let (namespace, name) = (call.token("namespace")?, call.token("name")?);
        let changes = vec![(choice(body.nodes, call.caller()?)?, body.capacity)];
        let command = Command::Set { namespace, name, lease: body.lease, changes };
        self.change(&call, command.into()).await
    }

    pub(super) async fn delete_resource(&self, call: Call) -> ApiResult {
        let (namespace, name) = (call.token("namespace")?, call.token("name")?);
        self.change(&call, Command::Delete { namespace, name }.into()).await
    }
}

/// The nodes of the change, in a form that means the same when the request is sent again.
fn choice(nodes: NodeSpec, caller: &Caller) -> Result<NodeChoice, ApiError> {
    match (nodes, caller) {
        (NodeSpec::Node(name), _) => Ok(NodeChoice::Node(name)),
        (NodeSpec::Local, Caller::Agent(name)) => Ok(NodeChoice::Node(name.clone())),
        (NodeSpec::Local, _) => {
            let allowed = "node or available, as the caller is not the agent of a machine";
            Err(ApiError::field("nodes", "local", allowed))
        }
        (NodeSpec::Available(wanted), _) => Ok(NodeChoice::Available(wanted)),
    }
}
