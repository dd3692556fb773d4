//! Packing the cell of 2011 from scratch: with all techniques, with each switched off, eight times
//! over. What lies between is in the growth report.

use crate::report::{Report, peak_rss_bytes};
use crate::trace::google2011;
use cellwright_sched::Options;
use cellwright_sched::executor::Sequential;
use cellwright_sim::experiment::load::LoadedCell;
use cellwright_sim::experiment::scheduler::{commit, solve};
use std::io;

const SEED: u64 = 1;

struct Packed {
    machines: usize,
    tasks: u64,
    placed: usize,
    snapshot: f64,
    solve: f64,
    apply: f64,
}

fn pack(loaded: &mut LoadedCell, options: Options) -> io::Result<Packed> {
    let solved = solve(&loaded.state, options, SEED, &Sequential);
    let started = std::time::Instant::now();
    let mut state = loaded.state.clone();
    commit(&mut state, solved.outcome.plan).map_err(io::Error::other)?;
    Ok(Packed {
        machines: loaded.workload.machines.len(),
        tasks: loaded.workload.tasks(),
        placed: solved.outcome.placed,
        snapshot: solved.snapshot_seconds,
        solve: solved.solve_seconds,
        apply: started.elapsed().as_secs_f64(),
    })
}

/// The best of several runs: the machine may be busy with something else.
fn best(loaded: &mut LoadedCell, options: Options, runs: u32) -> io::Result<Packed> {
    let mut best = pack(loaded, options)?;
    for _ in 1..runs {
        let again = pack(loaded, options)?;
        if again.solve < best.solve {
            best = again;
        }
    }
    Ok(best)
}

pub fn main() -> io::Result<()> {
    let mut report = Report::new(
        "pack",
        "The Google cell of 2011 (12,477 machines, 144,339 tasks) packed from scratch on one core, \
         reclamation on by the usage model (40 % of CPU and 55 % of RAM limits plus the medium \
         margin). Solve time is the scheduling pass alone; loading, the board's build and the \
         recheck of every placement by `apply` are rows of their own.",
        SEED,
    );
    let mut loaded = google2011(1)?;
    report.row("read the trace", loaded.read_seconds, "s", "");
    report.row("submit everything by commands", loaded.submit_seconds, "s", "");
    let default = best(&mut loaded, Options::default(), 5)?;
    report.row("build the board", default.snapshot, "s", "");
    let work = "solve, all techniques on (best of 5)";
    report.row(work, default.solve, "s", "≤ 1 (Borg: a few hundred)");
    report.row("placed", default.placed as f64, "tasks", "");
    report.row("pending", (default.tasks - default.placed as u64) as f64, "tasks", "");
    report.row("apply the plan, every placement rechecked", default.apply, "s", "");
    techniques(&mut report, &mut loaded, &default)?;
    report.row("peak memory so far", peak_rss_bytes() as f64 / 1e6, "MB", "");
    drop(loaded);
    eightfold(&mut report, &default)?;
    report.save()
}

fn techniques(report: &mut Report, loaded: &mut LoadedCell, all_on: &Packed) -> io::Result<()> {
    let on = Options::default();
    let switched = [
        ("solve, relaxed randomisation off (exact)", Options { randomization: None, ..on }, 3),
        ("solve, score cache off", Options { score_cache: false, ..on }, 1),
        // The cache is kept per class, so it goes with them.
        ("solve, equivalence classes off, cache with them", Options { classes: false, ..on }, 1),
        ("solve, all three off (the reference)", Options::reference(), 1),
    ];
    for (name, options, runs) in switched {
        let packed = best(loaded, options, runs)?;
        report.row(name, packed.solve, "s", "");
        report.row(&format!("{name}: slower by"), packed.solve / all_on.solve, "x", "");
        let pending = packed.tasks - packed.placed as u64;
        report.row(&format!("{name}: pending"), pending as f64, "tasks", "");
    }
    Ok(())
}

fn eightfold(report: &mut Report, single: &Packed) -> io::Result<()> {
    let mut loaded = google2011(8)?;
    let packed = best(&mut loaded, Options::default(), 2)?;
    report.row("8 x: machines", packed.machines as f64, "", "");
    report.row("8 x: tasks", packed.tasks as f64, "", "");
    report.row("8 x: placed", packed.placed as f64, "tasks", "");
    report.row("8 x: solve", packed.solve, "s", "≤ 10");
    let per_task = |p: &Packed| p.solve / p.tasks as f64;
    let ratio = per_task(&packed) / per_task(single);
    report.row("8 x: time per task against the single cell", ratio, "x", "≤ 2");
    report.row("8 x: peak memory", peak_rss_bytes() as f64 / 1e9, "GB", "≤ 4.3");
    Ok(())
}
