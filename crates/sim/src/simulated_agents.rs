//! Simulated agents: thousands of virtual agents in one process, polling real masters over the real
//! protocol.
//!
//! The master cannot distinguish them from real ones, so what it does for ten thousand machines can
//! be seen and measured on one. Each agent does as a real one does: one hanging poll at a time,
//! reports of changes in between, another master when one does not answer or redirects it.

use crate::agent::{VirtualAgent, VirtualAgentConfig};
use cellwright_api::client::{Client, ClientError};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::time::Span;
use cellwright_supervise::Supervisor;
use serde::Serialize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// Intervals are counted by the millisecond up to here; longer ones are counted as this long.
const MAX_INTERVAL_MILLIS: usize = 120_000;
/// How long the first poll may hang; later ones follow the master's interval.
const FIRST_HANG: Span = Span::seconds(5);
/// Pause of an agent whose masters do not answer.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Agents that connect in one second at the start: machines do not boot all at once either.
const DIALS_PER_SECOND: u64 = 2000;

/// One simulated machine.
pub struct SimulatedMachine {
    pub spec: MachineSpec,
    /// Presents the machine's certificate, unless the master is an open one.
    pub client: Client,
}

/// Statistics of the polls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PollSummary {
    pub agents: usize,
    /// Agents that were answered at least once.
    pub connected: u64,
    pub polls: u64,
    pub failures: u64,
    pub tasks_running: usize,
    /// Milliseconds between two polls of one agent; nothing before the second poll.
    pub interval_p50: Option<u32>,
    pub interval_p95: Option<u32>,
    pub interval_max: Option<u32>,
}

struct PollCounters {
    intervals: Vec<AtomicU32>,
    connected: AtomicU64,
    polls: AtomicU64,
    failures: AtomicU64,
}

pub struct SimulatedAgents {
    agents: Vec<Arc<Mutex<VirtualAgent>>>,
    counters: Arc<PollCounters>,
    tasks: Vec<JoinHandle<()>>,
}

impl SimulatedAgents {
    /// Starts all of them. What ran on the same machines in an earlier simulation is gone.
    #[must_use]
    pub fn start(machines: Vec<SimulatedMachine>, settings: VirtualAgentConfig) -> SimulatedAgents {
        let counters = Arc::new(PollCounters {
            intervals: (0..=MAX_INTERVAL_MILLIS).map(|_| AtomicU32::new(0)).collect(),
            connected: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        });
        let started = Instant::now();
        let supervisor = Supervisor::default();
        let mut simulated = SimulatedAgents { agents: Vec::new(), counters, tasks: Vec::new() };
        for (number, SimulatedMachine { spec, client }) in (0..).zip(machines) {
            let agent = Arc::new(Mutex::new(VirtualAgent::new(spec, settings)));
            simulated.agents.push(agent.clone());
            let counters = simulated.counters.clone();
            let line = AgentPoller { agent, client, counters, started };
            let running = supervisor.spawn_essential("a virtual machine", line.run(number));
            simulated.tasks.push(running);
        }
        simulated
    }

    #[must_use]
    pub fn summary(&self) -> PollSummary {
        let counts: Vec<u64> = self
            .counters
            .intervals
            .iter()
            .map(|count| u64::from(count.load(Ordering::Relaxed)))
            .collect();
        PollSummary {
            agents: self.agents.len(),
            connected: self.counters.connected.load(Ordering::Relaxed),
            polls: self.counters.polls.load(Ordering::Relaxed),
            failures: self.counters.failures.load(Ordering::Relaxed),
            tasks_running: self.agents.iter().map(|agent| lock(agent).running()).sum(),
            interval_p50: percentile(&counts, 50),
            interval_p95: percentile(&counts, 95),
            interval_max: percentile(&counts, 100),
        }
    }
}

impl Drop for SimulatedAgents {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// The smallest interval that `percent` of all are not above.
fn percentile(counts: &[u64], percent: u64) -> Option<u32> {
    let all: u64 = counts.iter().sum();
    let wanted = (all * percent).div_ceil(100).max(1);
    let mut seen = 0;
    let at = counts.iter().position(|count| {
        seen += count;
        seen >= wanted
    })?;
    u32::try_from(at).ok()
}

struct AgentPoller {
    agent: Arc<Mutex<VirtualAgent>>,
    client: Client,
    counters: Arc<PollCounters>,
    started: Instant,
}

impl AgentPoller {
    async fn run(self, number: u64) {
        sleep(Duration::from_millis(number * 1000 / DIALS_PER_SECOND)).await;
        let mut tries = usize::try_from(number).unwrap_or(0);
        let Some(mut master) = self.choose_master(tries) else { return };
        let mut hang = FIRST_HANG;
        let mut connected = false;
        let mut last: Option<Instant> = None;
        loop {
            let started = Instant::now();
            if let Some(before) = last.replace(started) {
                self.count_interval(started - before);
            }
            match self.poll(&master, hang).await {
                Ok(answered) => {
                    self.counters.connected.fetch_add(u64::from(!connected), Ordering::Relaxed);
                    connected = true;
                    hang = answered.hang;
                    master = answered.redirect.unwrap_or(master);
                }
                Err(_) => {
                    self.counters.failures.fetch_add(1, Ordering::Relaxed);
                    tries += 1;
                    master = self.choose_master(tries).unwrap_or(master);
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// One hanging poll, and reports of changes in between.
    async fn poll(&self, master: &str, hang: Span) -> Result<PollOutcome, ClientError> {
        let hanging = self.call_master(master, Some(hang));
        tokio::pin!(hanging);
        loop {
            let due = lock(&self.agent).next_change();
            let at = due.map(|at| self.started + Duration::from_millis(at));
            let send_news = async {
                match at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answered = &mut hanging => return answered,
                () = send_news => {
                    let changed = lock(&self.agent).advance(self.now());
                    if changed {
                        // A lost message costs nothing: the next poll repeats it.
                        let _ = self.call_master(master, None).await;
                    }
                }
            }
        }
    }

    async fn call_master(
        &self,
        master: &str,
        hang: Option<Span>,
    ) -> Result<PollOutcome, ClientError> {
        let sent = self.now();
        let wall = cellwright_identity::clock::wall();
        let report = lock(&self.agent).report(hang.is_some(), wall, sent);
        let orders = self.client.poll(master, &report, hang.unwrap_or(Span::ZERO)).await?;
        self.counters.polls.fetch_add(1, Ordering::Relaxed);
        let answered = PollOutcome { hang: orders.poll, redirect: orders.redirect.clone() };
        let mut agent = lock(&self.agent);
        agent.apply_orders(orders, sent, self.now());
        // The run events are not used here.
        drop(agent.take_run_events());
        Ok(answered)
    }

    fn choose_master(&self, number: usize) -> Option<String> {
        let masters = self.client.masters();
        masters.get(number % masters.len().max(1)).cloned()
    }

    fn count_interval(&self, interval: Duration) {
        let millis = usize::try_from(interval.as_millis()).unwrap_or(usize::MAX);
        self.counters.intervals[millis.min(MAX_INTERVAL_MILLIS)].fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

struct PollOutcome {
    hang: Span,
    redirect: Option<String>,
}

fn lock(agent: &Mutex<VirtualAgent>) -> MutexGuard<'_, VirtualAgent> {
    agent.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_intervals_that_happened() {
        let mut counts = vec![0; 100];
        assert_eq!(percentile(&counts, 50), None);
        (counts[10], counts[20], counts[90]) = (94, 5, 1);
        let found = [1, 50, 94, 95, 99, 100].map(|percent| percentile(&counts, percent));
        assert_eq!(found, [10, 10, 10, 20, 20, 90].map(Some));
    }
}
