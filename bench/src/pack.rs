//! Packing the cell of 2011 from scratch: with all techniques, with each switched off, eight times
//! over, and the growth from a thousand to a hundred thousand machines (parts of the cell, then
//! copies of it).

use crate::report::{Report, peak_rss_bytes, reports};
use crate::trace::{google2011, google2011_part};
use cellwright_sched::Options;
use cellwright_sched::executor::Sequential;
use cellwright_sim::experiment::load::Loaded;
use cellwright_sim::experiment::scheduler::{commit, solve};
use cellwright_sim::plot::{Chart, Mark, Series, render};
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

fn pack(loaded: &mut Loaded, options: Options) -> io::Result<Packed> {
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
fn best(loaded: &mut Loaded, options: Options, runs: u32) -> io::Result<Packed> {
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
    growth(&mut report, &default)?;
    report.save()
}

fn techniques(report: &mut Report, loaded: &mut Loaded, all_on: &Packed) -> io::Result<()> {
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

fn growth(report: &mut Report, single: &Packed) -> io::Result<()> {
    let per_task = |p: &Packed| p.solve * 1e6 / p.tasks as f64;
    let mut points = Vec::new();
    for share in [12, 6, 3] {
        let mut part = google2011_part(share)?;
        let packed = best(&mut part, Options::default(), 5)?;
        points.push((packed.machines as f64, per_task(&packed)));
    }
    points.push((single.machines as f64, per_task(single)));
    let mut memory = Vec::new();
    for copies in [2, 4, 8] {
        let mut loaded = google2011(copies)?;
        let packed = best(&mut loaded, Options::default(), 2)?;
        points.push((packed.machines as f64, per_task(&packed)));
        memory.push((packed.machines as f64, peak_rss_bytes() as f64 / 1e9));
        if copies == 8 {
            report.row("8 x: machines", packed.machines as f64, "", "");
            report.row("8 x: tasks", packed.tasks as f64, "", "");
            report.row("8 x: placed", packed.placed as f64, "tasks", "");
            report.row("8 x: solve", packed.solve, "s", "≤ 10");
            let ratio = per_task(&packed) / per_task(single);
            report.row("8 x: time per task against the single cell", ratio, "x", "≤ 2");
            report.row("8 x: peak memory", peak_rss_bytes() as f64 / 1e9, "GB", "≤ 4.3");
        }
    }
    for (machines, micros) in &points {
        report.row(&format!("solve per task at {machines:.0} machines"), *micros, "us", "");
    }
    let time = ("Time per task as the cell grows", "microseconds per task", "solve");
    plot("growth", time, points)?;
    let peak = ("Memory as the cell grows", "GB at peak, loading included", "peak memory");
    plot("memory", peak, memory)
}

fn plot(file: &str, texts: (&str, &str, &str), points: Vec<(f64, f64)>) -> io::Result<()> {
    let (title, y_title, name) = texts;
    let chart = Chart {
        title: title.into(),
        subtitle: "packing the 2011 cell from scratch; one core, all techniques on".into(),
        x_title: "machines".into(),
        y_title: y_title.into(),
        series: vec![Series { name: name.into(), mark: Mark::Line, points }],
    };
    std::fs::create_dir_all(reports())?;
    std::fs::write(reports().join(format!("{file}.svg")), render(&chart))
}
