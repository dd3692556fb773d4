//! Deterministic simulation of whole cells in one process (B27): the real masters, raft and store,
//! the real scheduler and virtual agents, with virtual time, network and disks. A run is a function
//! of its seed; faults are injected for a while, then everything is healed and must settle with
//! every promise kept.
//!
//! **Invariant:** nothing here reads a real clock, a real disk or a real socket.

mod agent_link;
mod checker;
pub mod client;
pub mod clocks;
pub mod disk;
mod duty_checker;
pub mod failpoints;
pub mod faults;
pub mod fixtures;
pub mod ledger;
mod membership;
pub mod net;
mod scaling_checker;
pub mod scenario;
mod scheduler_link;
mod upgrade;
mod usage_checker;
mod usage_recorder;
pub mod violations;
pub mod watches;
pub mod world;

use cellwright_cell::command::Command;
use cellwright_cell::job::{Job, JobState};
use cellwright_cell::priority::Priority;
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobKind, JobSpec};
use cellwright_cell::time::Time;
use cellwright_master::handle::Caller;
use cellwright_supervise::{catch_panic, lock, record_panics};
use checker::{Checker, check_healed};
use client::Client;
pub use failpoints::PanicPoint;
use ledger::{CheckFailure, Ledger};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use scenario::Scenario;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
pub use world::{CellShape, Cluster, PlantedBugs};

/// Time between two steps of the checker.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Checks without anything left to stop after which nothing more is expected.
const IDLE_CHECKS: u32 = 20;
/// A healed cell that has not settled after this long never will.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// A run that is not over after this long waits for something that never comes.
const RUN_TIMEOUT: Duration = Duration::from_secs(1800);

/// Quota that never limits.
const UNLIMITED_QUOTA: Resources =
    Resources { cpu: 1 << 40, ram: 1 << 50, disk: 1 << 50, disk_rate: 1 << 50 };

#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    pub seed: u64,
    pub shape: CellShape,
    pub bugs: PlantedBugs,
    /// Faults that are injected before everything is healed.
    pub faults: u32,
    /// Steps of the checker, ten a second, between two faults: at least and fewer than.
    pub checks_between_faults: (u32, u32),
    /// Only this fault is injected, if given.
    pub only_fault: Option<faults::Fault>,
    pub clients: u64,
    /// What is done before clients and faults begin.
    pub scenario: Option<Scenario>,
}

impl RunPlan {
    /// The run with this seed: mostly three masters, sometimes five or one.
    #[must_use]
    pub fn of(seed: u64) -> RunPlan {
        let masters = [3, 3, 3, 5, 3, 1][usize::try_from(seed % 6).unwrap_or(0)];
        let shape = CellShape { masters, machines: 5, schedulers: 2, upgrades: false };
        RunPlan {
            seed,
            shape,
            bugs: PlantedBugs::default(),
            faults: 8,
            checks_between_faults: (3, 15),
            only_fault: None,
            clients: 3,
            scenario: None,
        }
    }

    /// A small cell in which only this is done, without faults.
    #[must_use]
    pub fn of_scenario(scenario: Scenario) -> RunPlan {
        let mut plan = RunPlan { faults: 0, clients: 0, scenario: Some(scenario), ..Self::of(0) };
        (plan.shape.masters, plan.shape.machines) = (1, scenario.machines());
        plan
    }
}

/// What a run did, for reports and to compare two runs of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub seed: u64,
    pub acknowledged: u64,
    pub reads: u64,
    pub entries: u64,
    pub messages: u64,
    pub virtual_millis: u64,
    pub hash: u64,
    /// The level that the cell is at.
    pub level: u32,
}

/// Runs one simulated cell to its end.
///
/// # Errors
/// The first promise found broken, or the first panic, with the seed that reproduces it.
pub fn run(plan: RunPlan) -> Result<Summary, String> {
    let seed = plan.seed;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()))
        .build()
        .map_err(|error| error.to_string())?;
    let whole = async {
        let over = tokio::time::timeout(RUN_TIMEOUT, simulate(plan)).await;
        over.unwrap_or_else(|_| Err(CheckFailure(format!("stuck: not over after {RUN_TIMEOUT:?}"))))
    };
    // A panic of the simulator itself is a failure like any other, and other seeds go on.
    let (done, panics) = record_panics(|| {
        let done = catch_panic(|| runtime.block_on(whole));
        // All remaining tasks are dropped with it.
        drop(runtime);
        done.unwrap_or_else(|panicked| Err(CheckFailure(format!("the run {panicked}"))))
    });
    // A panic that its caller took for a missing answer still counts.
    let done = match panics.into_iter().next() {
        Some(line) if done.is_ok() => Err(CheckFailure(format!("a task {line}"))),
        _ => done,
    };
    done.map_err(|failure| format!("seed {seed}: {failure}"))
}

async fn simulate(plan: RunPlan) -> Result<Summary, CheckFailure> {
    let mut rng = ChaCha8Rng::seed_from_u64(plan.seed);
    let mut cluster =
        Cluster::start(plan.seed, plan.shape, plan.bugs).await.map_err(CheckFailure)?;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut checker = Checker::default();
    bootstrap_cell(&cluster, &mut checker).await?;
    if let Some(scenario) = plan.scenario {
        play(scenario, &cluster, &mut checker, &ledger).await?;
    }
    let clients: Vec<JoinHandle<()>> = (0..plan.clients)
        .map(|number| {
            let client = Client {
                net: cluster.net.clone(),
                node_address: world::FIRST_CLIENT_ADDRESS + number,
                masters: plan.shape.masters,
                ledger: ledger.clone(),
                bugs: plan.bugs,
                clocks: cluster.clocks.clone(),
                seed: plan.seed ^ (number + 1),
                failpoint: cluster.failpoint(),
            };
            cluster.supervisor.spawn_essential("a client", client.run())
        })
        .collect();
    // Tasks must run before a fault can affect them.
    run_and_check(&cluster, &mut checker, &ledger, 10).await?;
    for _ in 0..plan.faults {
        let fault = plan.only_fault.unwrap_or_else(|| faults::draw_fault(&mut rng));
        faults::inject(&mut cluster, fault, &mut rng).await.map_err(CheckFailure)?;
        let checks = rng.random_range(plan.checks_between_faults.0..plan.checks_between_faults.1);
        run_and_check(&cluster, &mut checker, &ledger, checks).await?;
    }
    faults::heal(&mut cluster).await.map_err(CheckFailure)?;
    if plan.shape.upgrades {
        cluster.upgrade_all().await.map_err(|why| CheckFailure(why.to_string()))?;
        run_and_check(&cluster, &mut checker, &ledger, 50).await?;
    }
    for client in clients {
        client.abort();
        // An aborted task is cancelled; any other failure was reported by the task itself.
        let _ = client.await;
    }
    stop_endless_jobs(&cluster).await?;
    let state = settle(&mut cluster, &mut checker).await?;
    lock(&ledger).check_end(&state, client::counter_value(&state))?;
    checker::check_event_feeds(&cluster)?;
    let mut state = state;
    let (acknowledged, reads) = {
        let ledger = lock(&ledger);
        (ledger.acknowledged, ledger.reads)
    };
    let summary = Summary {
        seed: plan.seed,
        acknowledged,
        reads,
        entries: checker.entries,
        messages: cluster.net.calls(),
        virtual_millis: cluster.now(),
        hash: state.hash(),
        level: state.level(),
    };
    cluster.shut_down().await.map_or(Ok(summary), |violation| Err(CheckFailure(violation)))
}

/// Runs the cell for a while and checks it all the time.
async fn run_and_check(
    cluster: &Cluster,
    checker: &mut Checker,
    ledger: &Mutex<Ledger>,
    checks: u32,
) -> Result<(), CheckFailure> {
    for _ in 0..checks {
        tokio::time::sleep(CHECK_INTERVAL).await;
        cluster.failpoint().reach(PanicPoint::Checker);
        checker.step(cluster).await?;
        lock(ledger).check()?;
    }
    Ok(())
}

/// Does what the scenario says, and checks the cell all the time.
async fn play(
    scenario: Scenario,
    cluster: &Cluster,
    checker: &mut Checker,
    ledger: &Mutex<Ledger>,
) -> Result<(), CheckFailure> {
    for act in scenario.acts() {
        let (_, leader) = cluster.leader().ok_or(CheckFailure("there is no leader".into()))?;
        let commands = act.commands.into_iter().map(|command| (None, command)).collect();
        let done = leader.submit_many(&Caller::Operator, commands).await;
        let done = done.map_err(|error| CheckFailure(format!("{scenario:?}: {error}")))?;
        if let Some(refused) = done.verdicts.iter().find_map(|verdict| verdict.as_ref().err()) {
            return Err(CheckFailure(format!("{scenario:?}: {refused}")));
        }
        run_and_check(cluster, checker, ledger, act.checks).await?;
    }
    Ok(())
}

/// Waits for the first leader and gives the clients their user.
async fn bootstrap_cell(cluster: &Cluster, checker: &mut Checker) -> Result<(), CheckFailure> {
    for _ in 0..200 {
        tokio::time::sleep(CHECK_INTERVAL).await;
        checker.step(cluster).await?;
        let Some((_, leader)) = cluster.leader() else { continue };
        let caller = Caller::Operator;
        let known = leader.read().state.machines().iter().count();
        let all = usize::try_from(cluster.shape.machines).unwrap_or(0);
        let user = client::client_user();
        let quota = Quota { amount: UNLIMITED_QUOTA, from: Time::ZERO, until: Time::NEVER };
        let (band, quota) = (Priority(110).band(), Some(quota));
        let commands = vec![
            (None, Command::AddUser { name: user.clone() }),
            (None, Command::SetQuota { user, band, quota, expect: None }),
        ];
        if known == all && leader.submit_many(&caller, commands).await.is_ok() {
            return Ok(());
        }
    }
    Err(CheckFailure("the cell did not form within 20 s".into()))
}

/// Stops jobs that would run for ever, so that every waiting task can be placed. Repeats for a
/// while: the clients' last requests may still be on their way into the log.
async fn stop_endless_jobs(cluster: &Cluster) -> Result<(), CheckFailure> {
    let mut still = 0;
    for _ in 0..600 {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some((_, leader)) = cluster.leader() else { continue };
        let Ok(view) = leader.read_linearizable().await else { continue };
        // Jobs that are stopping take as long as their machines.
        let is_left = |job: &Job| !job.is_dead() && job.state != JobState::Stopping;
        let keys = view.state.jobs().iter();
        // Also what its update may yet go back to.
        let endless = |job: &Job| job.specs.values().any(|spec| is_endless(spec));
        let keys = keys.filter(|(_, job)| is_left(job) && endless(job));
        let stops: Vec<_> = keys
            .filter_map(|(id, _)| view.state.job_key(id))
            .map(|job| (None, Command::StopJob { job, expect: None }))
            .collect();
        let caller = Caller::Operator;
        if stops.is_empty() {
            still += 1;
        } else {
            // Rejected or lost ones are found again.
            let _again = leader.submit_many(&caller, stops).await;
            still = 0;
        }
        if still == IDLE_CHECKS {
            return Ok(());
        }
    }
    Err(CheckFailure("no leader within a minute of healing".into()))
}

/// Runs until it is stopped, or is inside an alloc set that does.
fn is_endless(spec: &JobSpec) -> bool {
    let words: Vec<&str> = spec.task.command.iter().map(String::as_str).collect();
    let is_inside = spec.kind == JobKind::AllocSet || spec.alloc_set.is_some();
    // A daemon waits for machines, whatever its tasks did.
    is_inside
        || spec.kind == JobKind::Daemon
        || matches!(words.as_slice(), ["serve"] | ["sim", "use", ..])
}

async fn settle(
    cluster: &mut Cluster,
    checker: &mut Checker,
) -> Result<cellwright_cell::State, CheckFailure> {
    let until = tokio::time::Instant::now() + SETTLE_TIMEOUT;
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        checker.step(cluster).await?;
        if !cluster.failed_replicas().is_empty() {
            faults::heal(cluster).await.map_err(CheckFailure)?;
        }
        let all = cluster.readd_members();
        match check_healed(cluster)
            .and_then(|state| all.then_some(state).ok_or("members are out".into()))
        {
            Ok(state) => return Ok(state),
            Err(why) if tokio::time::Instant::now() >= until => {
                return Err(CheckFailure(format!(
                    "not at rest {SETTLE_TIMEOUT:?} after healing: {why}"
                )));
            }
            Err(_) => {}
        }
    }
}
