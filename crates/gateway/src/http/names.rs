//! Names: where jobs are reached, from the same picture every other read is answered from. DNS
//! follows the log instead ([`cellwright_master::replicated`]), because it is asked too often to
//! look at rows.

use super::call::Call;
use super::watch::{Beat, KEEP_ALIVE, Pulse, frame};
use super::{Answered, Api, jobs, reply};
use bytes::Bytes;
use cellwright_api::types::{EndpointView, NameView};
use cellwright_cell::label;
use cellwright_cell::name::JobKey;
use cellwright_cell::state::State;
use cellwright_names::Directory;
use cellwright_names::directory::{Size, endpoints_of, size_of};
use cellwright_names::discovery::prometheus;
use futures::stream;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two looks at a job's names: an entry of the log may be about any job.
const GATHER: Duration = Duration::from_millis(100);

impl Api {
    pub(super) async fn look_up_job(&self, call: Call) -> Answered {
        let key = call.job()?;
        let (view, consistent) = call.view(self).await?;
        jobs::find(&view.state, &key)?;
        let item = self.name_of(&view.state, &key);
        reply::one(&call, view.index, consistent, item)
    }

    fn name_of(&self, state: &State, key: &JobKey) -> NameView {
        let zone = &self.settings.zone;
        let endpoints = endpoints_of(state, key).into_iter().filter_map(|(task, found)| {
            let machine = state.machines().get(found.machine)?.spec.name.clone();
            let name = zone.task(key, task);
            Some(EndpointView { task, name, machine, address: found.address, ports: found.ports })
        });
        let Size { tasks, healthy, ill } = size_of(state, key);
        NameView { name: zone.job(key), endpoints: endpoints.collect(), tasks, healthy, ill }
    }

    /// Every frame is the whole answer, so there is nothing to resume.
    pub(super) async fn watch_names(&self, call: Call) -> Answered {
        let key = call.job()?;
        jobs::find(&self.handle.read().state, &key)?;
        let pulse = Pulse::new(self, &call);
        let begun = (self.clone(), pulse, key, None::<NameView>, false);
        let chunks = stream::unfold(begun, |(api, mut pulse, key, told, over)| async move {
            if over {
                return None;
            }
            let mut out = String::new();
            let since = Instant::now();
            loop {
                pulse.take();
                let state = api.handle.read().state;
                if jobs::find(&state, &key).is_err() {
                    frame(&mut out, "gone", None::<&str>, &serde_json::json!({}));
                    return Some((Bytes::from(out), (api, pulse, key, told, true)));
                }
                let name = api.name_of(&state, &key);
                if told.as_ref() != Some(&name) {
                    frame(&mut out, "name", None::<&str>, &name);
                    return Some((Bytes::from(out), (api, pulse, key, Some(name), false)));
                }
                match pulse.next().await? {
                    // Others change all the time; the reader needs a sign of life all the same.
                    Beat::Changed if since.elapsed() < KEEP_ALIVE => sleep(GATHER).await,
                    Beat::Changed | Beat::Quiet => {
                        out.push_str(": still here\n\n");
                        return Some((Bytes::from(out), (api, pulse, key, told, false)));
                    }
                }
            }
        });
        self.streaming(&call, chunks)
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
