//! Names: where jobs are reached, from the same picture every other read is answered from. DNS
//! follows the log instead ([`crate::replicated`]), because it is asked too often to look at rows.

use super::call::Call;
use super::{Answered, Api, jobs, reply};
use cellwright_api::types::{EndpointView, NameView};
use cellwright_cell::label;
use cellwright_names::Directory;
use cellwright_names::directory::endpoints_of;
use cellwright_names::discovery::prometheus;

impl Api {
    pub(super) async fn look_up_job(&self, call: Call) -> Answered {
        let key = call.job()?;
        let (view, consistent) = call.view(self).await?;
        jobs::find(&view.state, &key)?;
        let zone = &self.settings.zone;
        let endpoints = endpoints_of(&view.state, &key).into_iter().filter_map(|(task, found)| {
            let machine = view.state.machines().get(found.machine)?.spec.name.clone();
            let name = zone.task(&key, task);
            Some(EndpointView { task, name, machine, address: found.address, ports: found.ports })
        });
        let item = NameView { name: zone.job(&key), endpoints: endpoints.collect() };
        reply::one(&call, view.index, consistent, item)
    }

    pub(super) async fn prometheus_targets(&self, call: Call) -> Answered {
        let terms = call.selector()?;
        let (view, consistent) = call.view(self).await?;
        let directory = Directory::from_state(&view.state, view.index);
        let wanted = |labels: &_| label::selects(&terms, labels);
        let groups = prometheus(&directory, &view.state, &self.settings.zone, wanted);
        Ok(reply::read(&call, view.index, consistent, &groups))
    }
}
