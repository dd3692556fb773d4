//! Samples what the tasks of scaled jobs use and the numbers that they tell, and writes it into the
//! replicated log once a minute: the leading master does it, for it decides. Agents report to the
//! replica that polls them; the others' reports are asked for, as for readers of usage.
//!
//! A cell without scaled jobs costs a look at its jobs.

use crate::handle::MasterHandle;
use cellwright_cell::command::Command;
use cellwright_control::controller::scaling::LoadFeed;
use cellwright_store::Role;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Between two samples: four of them are a minute.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(15);
/// Samples of a report.
const SAMPLES: u32 = 4;

/// Runs for as long as the replica runs; samples `every` so often.
pub async fn sample_loads_periodically(handle: MasterHandle, every: Duration) {
    let status = handle.replica().watch();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut feed = LoadFeed::default();
    let mut samples = 0;
    loop {
        ticks.tick().await;
        if status.has_changed().is_err() {
            return;
        }
        if status.borrow().role != Role::Leader || !has_scaled_jobs(&handle) {
            // A new leader begins a new minute.
            (feed, samples) = (LoadFeed::default(), 0);
            continue;
        }
        let usage = handle.usage().await;
        let sampled = |machine, task, attempt| usage.of_task(machine, task, attempt);
        let told =
            |machine, task, attempt, series: &_| usage.number(machine, task, attempt, series);
        handle.replicated().with(|view| feed.sample(&view.state, sampled, told));
        samples += 1;
        if samples >= SAMPLES {
            samples = 0;
            let now = handle.log_time();
            let reports = handle.replicated().with(|view| feed.report(&view.state, now));
            for report in reports {
                submit(&handle, report).await;
            }
        }
    }
}

fn has_scaled_jobs(handle: &MasterHandle) -> bool {
    handle.replicated().with(|view| {
        let mut jobs = view.state.jobs().iter();
        jobs.any(|(_, job)| !job.is_dead() && job.spec().scale.is_some())
    })
}

async fn submit(handle: &MasterHandle, report: Command) {
    let sent = async { handle.submit(&handle.own_caller()?, None, report).await };
    match sent.await {
        Ok(answer) => {
            if let Err(rejection) = answer.verdict {
                tracing::error!(%rejection, "what scaled jobs use was refused");
            }
        }
        // The next minute has its own.
        Err(error) => tracing::debug!(%error, "what scaled jobs use did not reach the log"),
    }
}
