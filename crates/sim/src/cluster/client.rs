//! Clients of a simulated cell: submit jobs, add to a counter, read. Each request keeps its id over
//! retries, so it takes effect once however often it is sent.

use super::clocks::Clocks;
use super::failpoints::{Failpoint, PanicPoint};
use super::fixtures;
use super::ledger::Ledger;
use super::net::{MessageLost, NodeAddress, VirtualNet, replica_of_address};
use super::world::{PlantedBugs, machine_spec};
use cellwright_cell::admit::MAX_SPAN;
use cellwright_cell::command::{Command, RequestId, TasksToStart};
use cellwright_cell::ephemeral::{self, CapacityChange, NodeChoice};
use cellwright_cell::health::{HealthCheck, Probe};
use cellwright_cell::name::{JobKey, Name, Token};
use cellwright_cell::named::ResourceName;
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::rollout;
use cellwright_cell::spec::{JobKind, LimitsOverride};
use cellwright_cell::state::State;
use cellwright_cell::time::Span;
use cellwright_cell::update_policy::{RollbackLimit, UpdatePolicy};
use cellwright_master::handle::{Caller, CommittedVerdict, MasterHandle};
use cellwright_messages::Unavailable;
use cellwright_store::NodeId;
use cellwright_supervise::lock;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The namespace of resources that clients lease.
pub const LEASED_NAMESPACE: &str = "leased";
/// How long they lease it.
pub const LEASE_DURATION: Span = Span(5000);

/// How long their gangs may lack a task.
const GANG_REPAIR: Span = Span(3000);

/// The health check that some of their tasks have.
const HEALTH_CHECK: HealthCheck = HealthCheck {
    probe: Probe::Tcp { port: 0 },
    interval: Span(1000),
    timeout: Span(500),
    start_period: Span(500),
    failures: 2,
};

/// The user that owns these jobs.
#[must_use]
pub fn client_user() -> Name {
    Name::new("ubar").unwrap_or_else(|bad| panic!("{bad}"))
}

fn token(text: &str) -> Token {
    Token::new(text).unwrap_or_else(|bad| panic!("{bad}"))
}

/// The counter all clients add to.
#[must_use]
pub fn counter_value(state: &State) -> u64 {
    let name = ResourceName { namespace: Some(token("sim")), name: token("counter") };
    let first = state.machine_named(&machine_spec(0).name);
    first.map_or(0, |machine| state.named_capacity(machine, &name))
}

pub struct Client {
    pub net: VirtualNet,
    pub node_address: NodeAddress,
    pub masters: u64,
    pub ledger: Arc<Mutex<Ledger>>,
    pub bugs: PlantedBugs,
    pub clocks: Clocks,
    pub seed: u64,
    pub failpoint: Failpoint,
}

impl Client {
    /// Works until aborted; a request that never gets an answer is repeated for ever.
    pub async fn run(self) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut replica = 1 + self.node_address % self.masters;
        for sequence in 1.. {
            self.failpoint.reach(PanicPoint::Client);
            match rng.random_range(0..13) {
                0..3 => self.submit(sequence, &mut rng, &mut replica).await,
                3 => self.submit_set(sequence, &mut rng, &mut replica).await,
                4..6 => self.stop_or_restart(sequence, &mut rng, &mut replica).await,
                6 => self.increment_counter(sequence, &mut replica).await,
                7 => self.acquire_lease(sequence, &mut replica).await,
                8 => self.update(sequence, &mut rng, &mut replica).await,
                9 => self.resize(sequence, &mut rng, &mut replica).await,
                _ => self.read(&mut replica).await,
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(60..240))).await;
        }
    }

    async fn submit(&self, sequence: u64, rng: &mut ChaCha8Rng, replica: &mut NodeId) {
        let name = format!("j{}-{sequence}", self.node_address);
        let (count, cpu) = (rng.random_range(1..3), rng.random_range(200..1500));
        let mut spec = match rng.random_range(0..6) {
            0 => fixtures::job(&name, count, cpu, &["sim", "finish", "300"]),
            1 => fixtures::job(&name, count, cpu, &["sim", "fail", "200"]),
            2 => fixtures::job(&name, 1, cpu, &["serve"]),
            // More CPU than its limit, which it may use while others leave it free.
            3 => fixtures::job(&name, 1, cpu, &["sim", "use", "300", "50"]),
            // More memory than its limit, for which it is killed.
            4 => fixtures::job(&name, 1, cpu, &["sim", "use", "50", "120"]),
            _ => fixtures::job(&name, count, cpu, &["sim", "finish", "2000"]),
        };
        spec.restart.max_failures = Some(2);
        spec.priority = *[Priority(0), Priority(110)].choose(rng).unwrap_or(&Priority(0));
        if rng.random_bool(0.4) {
            spec.at_most_one = Some(Span(4000));
        }
        if rng.random_bool(0.2) {
            spec.task.max_run = Some(Span(1000));
        }
        if rng.random_bool(0.3) {
            (spec.task.ports, spec.task.health) = (1, Some(HEALTH_CHECK));
        }
        if spec.count > 1 && rng.random_bool(0.3) {
            (spec.gang, spec.repair) = (true, Some(GANG_REPAIR));
        }
        // Not drawn, so that the other draws stay what they were.
        if sequence % 3 == 1 {
            spec.appclass = Some(AppClass::LatencySensitive);
        }
        if sequence % 5 == 2 {
            (spec.kind, spec.count) = (JobKind::Daemon, 1);
            // It is on every machine, and others want to run.
            spec.task.limits.cpu = 200;
        } else if sequence % 7 == 3 {
            // Whatever it does: some end while they are scaled, and some use what they are given.
            (spec.gang, spec.repair) = (false, None);
            spec.scale = Some(fixtures::scale_policy(1, 4));
        }
        let job = spec.name.clone();
        let command = Command::SubmitJob { owner: client_user(), spec: Box::new(spec) };
        if let Some(index) = self.request(sequence * 2, command, replica).await {
            self.ledger().jobs.insert(job, index);
        }
    }

    /// An alloc, and a task for it.
    async fn submit_set(&self, sequence: u64, rng: &mut ChaCha8Rng, replica: &mut NodeId) {
        let name = format!("s{}-{sequence}", self.node_address);
        let mut set = fixtures::job(&name, 1, 300, &[]);
        set.kind = JobKind::AllocSet;
        set.task.limits.ram = 4 << 20;
        set.task.command.clear();
        let key = JobKey { user: client_user(), job: set.name.clone() };
        let command = Command::SubmitJob { owner: client_user(), spec: Box::new(set) };
        if self.request(sequence * 2, command, replica).await.is_none() {
            return;
        }
        let words: &[&str] =
            if rng.random_bool(0.5) { &["serve"] } else { &["sim", "finish", "500"] };
        let mut inside =
            fixtures::job(&format!("j{}-{sequence}", self.node_address), 1, 200, words);
        inside.alloc_set = Some(key);
        let job = inside.name.clone();
        let command = Command::SubmitJob { owner: client_user(), spec: Box::new(inside) };
        if let Some(index) = self.request(sequence * 2 + 1, command, replica).await {
            self.ledger().jobs.insert(job, index);
        }
    }

    /// Stops one of its jobs, restarts it, or has what failed of it run again; it may have ended.
    async fn stop_or_restart(&self, sequence: u64, rng: &mut ChaCha8Rng, replica: &mut NodeId) {
        let own = format!("j{}-{}", self.node_address, rng.random_range(1..=sequence));
        let Ok(job) = Name::new(&own) else { return };
        let job = JobKey { user: client_user(), job };
        let command = match rng.random_range(0..6) {
            0 => Command::RestartTasks { job, index: None },
            1 => Command::StartTasks { job, which: TasksToStart::Failed },
            _ => Command::StopJob { job, expect: None },
        };
        self.request(sequence * 2, command, replica).await;
    }

    /// Updates one of its jobs to a version that may fail, with canaries or without, or takes it
    /// back to its first; it may have ended.
    async fn update(&self, sequence: u64, rng: &mut ChaCha8Rng, replica: &mut NodeId) {
        let own = format!("j{}-{}", self.node_address, rng.random_range(1..=sequence));
        let words: &[&[&str]] = &[&["sim", "fail", "200"], &["sim", "finish", "2000"], &["serve"]];
        let words = *words.choose(rng).unwrap_or(&words[0]);
        let mut spec = fixtures::job(&own, rng.random_range(1..3), 300, words);
        spec.restart.max_failures = Some(2);
        spec.update = UpdatePolicy {
            canaries: rng.random_range(0..2),
            promote_after: Some(Span(500)),
            rollback: Some(RollbackLimit { failures: 1, within: Span(5000) }),
        };
        let owner = client_user();
        let command = if rng.random_bool(0.3) {
            let job = JobKey { user: owner, job: spec.name };
            rollout::Command::Revert { job, version: 1, expect: None }.into()
        } else {
            Command::UpdateJob { owner, spec: Box::new(spec), expect: None }
        };
        self.request(sequence * 2, command, replica).await;
    }

    /// Gives one of its jobs or alloc sets other limits; it may have ended.
    async fn resize(&self, sequence: u64, rng: &mut ChaCha8Rng, replica: &mut NodeId) {
        let kind = if rng.random_bool(0.2) { "s" } else { "j" };
        let own = format!("{kind}{}-{}", self.node_address, rng.random_range(1..=sequence));
        let limits = LimitsOverride {
            cpu: Some(rng.random_range(100..1500)),
            ram: Some(rng.random_range(2..12u64) << 20),
            ..LimitsOverride::default()
        };
        let Ok(job) = Name::new(&own) else { return };
        let job = JobKey { user: client_user(), job };
        let command = Command::ResizeLimits { job, limits, expect: None };
        self.request(sequence * 2, command, replica).await;
    }

    async fn increment_counter(&self, sequence: u64, replica: &mut NodeId) {
        let command = ephemeral::Command::Set {
            namespace: token("sim"),
            name: token("counter"),
            lease: MAX_SPAN,
            changes: vec![(NodeChoice::Node(machine_spec(0).name), CapacityChange::Add(1))],
        };
        self.ledger().perhaps_added += 1;
        let done = self.request(sequence * 2, command.into(), replica).await;
        let mut ledger = self.ledger();
        ledger.perhaps_added -= 1;
        if done.is_some() {
            ledger.added += 1;
        }
    }

    /// Requests a resource under a lease of its own, which nothing can reject.
    async fn acquire_lease(&self, sequence: u64, replica: &mut NodeId) {
        let lease = if self.bugs.leases_by_clock {
            self.lease_by_clock(replica).await
        } else {
            LEASE_DURATION
        };
        let command = ephemeral::Command::Set {
            namespace: token(LEASED_NAMESPACE),
            name: token(&format!("r{}-{sequence}", self.node_address)),
            lease,
            changes: Vec::new(),
        };
        if self.request(sequence * 2, command.into(), replica).await.is_none() {
            self.ledger().record_failure(format!("a lease of {} ms was refused", LEASE_DURATION.0));
        }
    }

    /// The lease as computed by a master that took its own clock for log time.
    async fn lease_by_clock(&self, replica: &NodeId) -> Span {
        let wall = self.clocks.clock_time(*replica);
        let work = |master: MasterHandle| async move { master.read().state.now() };
        let log = self.net.call_replica(self.node_address, *replica, work).await.unwrap_or(wall);
        wall.plus(LEASE_DURATION).since(log)
    }

    async fn read(&self, replica: &mut NodeId) {
        let (floor, known) = {
            let ledger = self.ledger();
            (ledger.acknowledged_floor(), ledger.jobs.keys().cloned().collect::<Vec<_>>())
        };
        let stale = self.bugs.reads_stale;
        if stale {
            // With this bug, any replica is read.
            *replica = 1 + floor % self.masters;
        }
        let work = |master: MasterHandle| async move {
            if stale { Ok(master.read()) } else { master.read_linearizable().await }
        };
        match self.net.call_replica(self.node_address, *replica, work).await {
            Ok(Ok(view)) => self.ledger().read(view.index, floor, &view.state, &known),
            other => self.switch_replica(replica, other.map(|r| r.map(|_| ()))).await,
        }
    }

    /// Sends until there is a verdict. `None`: rejected by the cell's rules, so nothing happened.
    async fn request(&self, number: u64, command: Command, replica: &mut NodeId) -> Option<u64> {
        let floor = self.ledger().acknowledged_floor();
        let mut sequence = number * 1000;
        loop {
            let id = RequestId { client: self.node_address, sequence };
            let sent = command.clone();
            let caller = Caller::Operator;
            let work =
                |master: MasterHandle| async move { master.submit(&caller, Some(id), sent).await };
            let answer = self.net.call_replica(self.node_address, *replica, work).await;
            if self.bugs.acks_early {
                return Some(floor + 1);
            }
            match answer {
                Ok(Ok(CommittedVerdict { index, verdict, .. })) => {
                    self.ledger().acknowledge(index, floor);
                    return verdict.is_ok().then_some(index);
                }
                other => self.switch_replica(replica, other.map(|r| r.map(|_| ()))).await,
            }
            if self.bugs.forgets_request_id {
                sequence += 1;
            }
        }
    }

    async fn switch_replica(
        &self,
        replica: &mut NodeId,
        why: Result<Result<(), Unavailable>, MessageLost>,
    ) {
        let answer = match why {
            Ok(Err(Unavailable::NotLeader { leader: Some(address) })) => {
                replica_of_address(&address)
            }
            _ => None,
        };
        *replica = answer.unwrap_or(1 + *replica % self.masters);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }
}
