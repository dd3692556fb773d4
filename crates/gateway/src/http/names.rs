//! Names: the endpoints of jobs, from the same state as every other read. DNS follows the log
//! instead ([`cellwright_master::replicated_state`]), because it has too many queries to read rows
//! for each.

use super::call::Call;
use super::watch::{ChangeSignal, ChangeWatch, KEEP_ALIVE, write_frame};
use super::{Api, ApiResult, jobs, reply};
use bytes::Bytes;
use cellwright_api::types::{EndpointView, NameView};
use cellwright_cell::label;
use cellwright_cell::name::JobKey;
use cellwright_cell::state::State;
use cellwright_names::Directory;
use cellwright_names::directory::{JobSize, endpoints_of, job_size};
use cellwright_names::discovery::prometheus_targets;
use futures::stream;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Minimum interval between two reads of a job's names: an entry of the log may be about any job.
const COALESCE_INTERVAL: Duration = Duration::from_millis(100);

impl Api {
    pub(super) async fn look_up_job(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        let (view, consistent) = call.view(self).await?;
        jobs::find_job(&view.state, &key)?;
        let item = self.name_of(&view.state, &key);
        reply::one(&call, view.index, consistent, item)
    }

    fn name_of(&self, state: &State, key: &JobKey) -> NameView {
        let zone = &self.config.zone;
        let endpoints = endpoints_of(state, key).into_iter().filter_map(|(task, found)| {
            let machine = state.machines().get(found.machine)?.spec.name.clone();
            let name = zone.task(key, task);
            Some(EndpointView { task, name, machine, address: found.address, ports: found.ports })
        });
        let JobSize { tasks, healthy, unhealthy } = job_size(state, key);
        NameView { name: zone.job(key), endpoints: endpoints.collect(), tasks, healthy, unhealthy }
    }

    /// Every frame is the whole answer, so there is nothing to resume.
    pub(super) async fn watch_names(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        jobs::find_job(&self.handle.read().state, &key)?;
        let changes = ChangeWatch::new(self, &call);
        let initial = (self.clone(), changes, key, None::<NameView>, false);
        let chunks =
            stream::unfold(initial, |(api, mut changes, key, last_sent, over)| async move {
                if over {
                    return None;
                }
                let mut out = String::new();
                let since = Instant::now();
                loop {
                    changes.mark_seen();
                    let state = api.handle.read().state;
                    if jobs::find_job(&state, &key).is_err() {
                        write_frame(&mut out, "gone", None::<&str>, &serde_json::json!({}));
                        return Some((Bytes::from(out), (api, changes, key, last_sent, true)));
                    }
                    let name = api.name_of(&state, &key);
                    if last_sent.as_ref() != Some(&name) {
                        write_frame(&mut out, "name", None::<&str>, &name);
                        return Some((Bytes::from(out), (api, changes, key, Some(name), false)));
                    }
                    match changes.next().await? {
                        // Other jobs change all the time; the reader needs a keep-alive all the
                        // same.
                        ChangeSignal::Changed if since.elapsed() < KEEP_ALIVE => {
                            sleep(COALESCE_INTERVAL).await
                        }
                        ChangeSignal::Changed | ChangeSignal::Idle => {
                            out.push_str(": still here\n\n");
                            return Some((Bytes::from(out), (api, changes, key, last_sent, false)));
                        }
                    }
                }
            });
        self.stream_response(&call, chunks)
    }

    pub(super) async fn prometheus_targets(&self, call: Call) -> ApiResult {
        let terms = call.selector()?;
        let (view, consistent) = call.view(self).await?;
        let directory = Directory::from_state(&view.state, view.index);
        let is_selected = |labels: &_| label::selects(&terms, labels);
        let groups = prometheus_targets(&directory, &view.state, &self.config.zone, is_selected);
        Ok(reply::read(&call, view.index, consistent, &groups))
    }
}
