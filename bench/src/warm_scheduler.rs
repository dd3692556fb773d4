//! A warm scheduler on the full cell: passes over new tasks, steady churn, and what anti-affinity
//! costs.

use crate::report::{Report, percentile};
use crate::trace::google2011;
use cellwright_cell::State;
use cellwright_cell::id::{JobId, TaskId, UserId};
use cellwright_cell::spec::{Domain, JobSpec, SpreadLimit};
use cellwright_cell::time::Time;
use cellwright_sched::cluster_snapshot::{JobInfo, PendingTaskInfo, PlacedTaskInfo, TaskPhase};
use cellwright_sched::executor::Sequential;
use cellwright_sched::{ClusterSnapshot, Options, PassOutcome, Solver};
use cellwright_sim::experiment::process_metrics::process_cpu;
use cellwright_sim::experiment::scheduler::{commit, solve};
use cellwright_sim::plot::{Chart, Mark, Series};
use cellwright_sim::trace::stable_rng::StableRng;
use std::io;
use std::sync::Arc;
use std::time::Instant;

const SEED: u64 = 1;
const PASSES: usize = 500;
const NEW_TASKS: u32 = 1000;
const CLASSES: u32 = 30;

/// The packed cell and the specs its jobs have.
pub struct Cell {
    state: State,
    specs: Vec<(UserId, Arc<JobSpec>)>,
}

fn packed() -> io::Result<Cell> {
    let loaded = google2011(1)?;
    let mut state = loaded.state;
    let solved = solve(&state, Options::default(), SEED, &Sequential);
    commit(&mut state, solved.outcome.plan).map_err(io::Error::other)?;
    Ok(Cell::of(state))
}

impl Cell {
    pub fn of(state: State) -> Cell {
        let specs = state.jobs().iter().map(|(_, job)| (job.user, job.spec().clone())).collect();
        Cell { state, specs }
    }
}

/// Puts `count` pending tasks of a new job with `spec` onto the board.
fn add_pending(
    snapshot: &mut ClusterSnapshot,
    job: JobId,
    version: u32,
    spec: &(UserId, Arc<JobSpec>),
    tasks: &[TaskId],
) {
    let facts = JobInfo {
        user: spec.0,
        spec: &spec.1,
        version,
        alloc_set: None,
        machines: &Arc::default(),
        budget: None,
        in_transition: 0,
    };
    snapshot.put_job(job, &facts);
    for (index, task) in tasks.iter().enumerate() {
        let pending = PendingTaskInfo {
            job,
            index: index as u32,
            attempt: 0,
            not_before: Time::ZERO,
            reservation: None,
            avoid: &[],
        };
        snapshot.put_pending(*task, &pending);
    }
}

struct Timings {
    pass: Vec<f64>,
    total: Vec<f64>,
    placed: usize,
    evicted: usize,
}

/// Takes the new tasks off the board again and puts those they evicted back where they were, so
/// that every pass meets the same full cell.
fn put_back(
    snapshot: &mut ClusterSnapshot,
    state: &State,
    arrived: &[TaskId],
    outcome: &PassOutcome,
) {
    arrived.iter().for_each(|task| snapshot.drop_task(*task));
    let victims = outcome.plan.groups.iter().flat_map(|group| &group.victims);
    for victim in victims.filter(|victim| !arrived.contains(&victim.task)) {
        let Some(row) = state.tasks().get(victim.task) else { continue };
        let (Some(machine), Some(spec)) = (row.machine(), state.spec_of(row)) else { continue };
        let held = PlacedTaskInfo {
            job: row.job,
            index: row.index,
            attempt: row.attempt,
            spec,
            version: row.version,
            limits: row.counted_limits(spec.limits_of(row.index)),
            phase: TaskPhase::Assigned,
            machine,
            alloc: row.alloc(),
            reservation: row.reservation,
            ports: row.ports(),
            devices: row.devices(),
        };
        snapshot.put_placed(victim.task, &held);
    }
}

/// `COUNT_PASSES` times: 1,000 new tasks of 30 classes come, a pass places what it can, all is put
/// back.
/// The classes are drawn anew each time; a new job of each comes under a new version.
fn passes(cell: &Cell, options: Options) -> Timings {
    let mut snapshot = ClusterSnapshot::from_state(&cell.state);
    let solver = Solver::new(options);
    let mut draws = StableRng::from_seed(SEED, 17);
    let (jobs, tasks) = (cell.state.jobs().slots() as u32, cell.state.tasks().slots() as u32);
    let ids: Vec<TaskId> = (0..NEW_TASKS).map(|i| TaskId(tasks + i)).collect();
    let per_class = (NEW_TASKS / CLASSES + 1) as usize;
    let mut out = Timings { pass: Vec::new(), total: Vec::new(), placed: 0, evicted: 0 };
    for round in 0..PASSES + 20 {
        let chosen: Vec<usize> = (0..CLASSES)
            .filter_map(|_| Some(draws.below(cell.specs.len() as u64)? as usize))
            .collect();
        let started = Instant::now();
        for (i, group) in ids.chunks(per_class).enumerate() {
            let version = round as u32 + 1;
            add_pending(
                &mut snapshot,
                JobId(jobs + i as u32),
                version,
                &cell.specs[chosen[i]],
                group,
            );
        }
        let pass_started = Instant::now();
        let outcome = solver.pass(&mut snapshot, Time::ZERO, SEED);
        let (pass, whole) = (pass_started.elapsed(), started.elapsed());
        // The first rounds warm the caches up.
        if round >= 20 {
            out.pass.push(pass.as_secs_f64() * 1e3);
            out.total.push(whole.as_secs_f64() * 1e3);
            out.placed += outcome.placed;
            out.evicted += outcome.preempted;
        }
        put_back(&mut snapshot, &cell.state, &ids, &outcome);
    }
    out.pass.sort_by(f64::total_cmp);
    out.total.sort_by(f64::total_cmp);
    out
}

/// Steady state: tasks finish, as many arrive, a pass decides. Decisions a second of processor
/// time, everything included, and the share that found a place.
pub fn churn(cell: &Cell) -> (f64, f64) {
    let mut snapshot = ClusterSnapshot::from_state(&cell.state);
    let solver = Solver::new(Options::default());
    let mut draws = StableRng::from_seed(SEED, 23);
    let slots = cell.state.tasks().slots() as u64;
    let (batch, rounds) = (500, 400);
    let (mut decided, mut placed, mut seconds) = (0usize, 0usize, 0.0);
    for round in 0..rounds + 20 {
        let ending: Vec<TaskId> = (0..batch)
            .filter_map(|_| Some(TaskId(draws.below(slots)? as u32)))
            .filter(|task| snapshot.placement_of(*task).is_some_and(|p| p.machine().is_some()))
            .collect();
        let before = process_cpu();
        let mut arrived = 0;
        for task in &ending {
            let Some((job, index)) = snapshot.identity_of(*task) else { continue };
            let attempt = snapshot.attempt_of(*task).unwrap_or(0) + 1;
            let reservation = snapshot.placement_of(*task).map(|p| p.reservation());
            let pending = PendingTaskInfo {
                job,
                index,
                attempt,
                not_before: Time::ZERO,
                reservation,
                avoid: &[],
            };
            // The next task of the same job takes the place of the one that ended.
            snapshot.put_pending(*task, &pending);
            arrived += 1;
        }
        let outcome = solver.pass(&mut snapshot, Time::ZERO, SEED);
        let victims = outcome.plan.groups.iter().flat_map(|group| &group.victims);
        for victim in victims {
            let Some(row) = cell.state.tasks().get(victim.task) else { continue };
            // Evicted tasks wait again, as they would in a live cell.
            let pending = PendingTaskInfo {
                job: row.job,
                index: row.index,
                attempt: victim.attempt + 1,
                not_before: Time::ZERO,
                reservation: Some(row.reservation),
                avoid: &[],
            };
            snapshot.put_pending(victim.task, &pending);
        }
        if round >= 20 {
            seconds += (process_cpu() - before).as_secs_f64();
            decided += arrived;
            placed += outcome.placed;
        }
    }
    (decided as f64 / seconds, placed as f64 / decided as f64)
}

/// Tasks a second onto the empty cell, plain and with each machine taken once per job.
fn spread_rate(cell: &Cell, spread: bool) -> f64 {
    let mut best = 0.0f64;
    for _ in 0..5 {
        let mut snapshot = ClusterSnapshot::from_state(&cell.state);
        let slots = cell.state.tasks().slots() as u32;
        (0..slots).for_each(|task| snapshot.drop_task(TaskId(task)));
        let mut next = 0;
        let mut count = 0;
        for (number, (user, spec)) in cell.specs.iter().enumerate().filter(|(_, s)| s.1.count >= 10)
        {
            let mut spec = (**spec).clone();
            spec.spread.clear();
            if spread {
                spec.spread.push(SpreadLimit { domain: Domain::Machine, limit: 1 });
            }
            spec.count = spec.count.min(1000);
            let ids: Vec<TaskId> = (0..spec.count).map(|i| TaskId(next + i)).collect();
            next += spec.count;
            count += spec.count;
            // A version the board has not seen, so that the new limits make new classes.
            add_pending(&mut snapshot, JobId(number as u32), 1000, &(*user, Arc::new(spec)), &ids);
        }
        let started = Instant::now();
        Solver::new(Options::default()).pass(&mut snapshot, Time::ZERO, SEED);
        best = best.max(f64::from(count) / started.elapsed().as_secs_f64());
    }
    best
}

pub fn main() -> io::Result<()> {
    let cell = packed()?;
    let mut report = Report::new(
        "online",
        "A warm scheduler on the full Google cell of 2011 (12,477 machines, all tasks placed that \
         fit), one core.",
        SEED,
    );
    let timings = passes(&cell, Options::default());
    let p = |share| percentile(&timings.pass, share);
    report.row("1,000 new tasks of 30 classes: pass, median", p(0.5), "ms", "");
    report.row("1,000 new tasks of 30 classes: pass, p99", p(0.99), "ms", "≤ 5");
    let whole = percentile(&timings.total, 0.99);
    report.row("the same with putting them on the board, p99", whole, "ms", "");
    let placed = 100.0 * timings.placed as f64 / (PASSES as f64 * f64::from(NEW_TASKS));
    report.row("of which placed", placed, "%", "");
    let evicted = timings.evicted as f64 / PASSES as f64;
    report.row("lower priorities evicted for them, per pass", evicted, "tasks", "");
    let exact = passes(&cell, Options::exact());
    report.row("exact mode, p99", percentile(&exact.pass, 0.99), "ms", "");
    let (rate, placed) = churn(&cell);
    report.row("steady churn", rate, "decisions/s", "≥ 200,000");
    report.row("of which placed", 100.0 * placed, "%", "");
    let (plain, apart) = (spread_rate(&cell, false), spread_rate(&cell, true));
    report.row("empty cell, plain tasks", plain, "tasks/s", "");
    report.row("empty cell, all on different machines", apart, "tasks/s", "");
    report.row("different machines against plain", apart / plain, "x", "≥ 0.5");
    let curve = |name: &str, sorted: &[f64]| Series {
        name: name.into(),
        mark: Mark::Line,
        points: (1..=100)
            .map(|i| (percentile(sorted, f64::from(i) / 100.0), f64::from(i)))
            .collect(),
    };
    let chart = Chart {
        title: "Online passes: 1,000 new tasks into the full cell".into(),
        subtitle: format!("{PASSES} passes, warm, one core"),
        x_title: "milliseconds".into(),
        y_title: "% of passes".into(),
        series: vec![curve("all techniques", &timings.pass), curve("exact", &exact.pass)],
    };
    report.plot("online", &chart)?;
    report.save()
}
