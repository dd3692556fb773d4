//! Benchmarks: each prints its figures and records them in `bench/reports`. They measure; they
//! assert nothing about time. Without arguments all run; with names, those. `masters WHAT` and
//! `agent WHAT` run one figure of these, with options of its own.

mod agent;
mod apply;
mod cli_latency;
mod compact;
mod flags;
mod gpu_packing;
mod growth;
mod history;
mod lang;
mod masters;
mod packing;
mod process_usage;
mod reclaim;
mod report;
mod scale;
mod section_report;
mod trace;
mod warm_scheduler;

type Benchmark = fn() -> std::io::Result<()>;

const BENCHMARKS: [(&str, Benchmark); 14] = [
    ("reclaim", reclaim::main),
    ("scale", scale::main),
    ("apply", apply::main),
    ("pack", packing::main),
    ("online", warm_scheduler::main),
    ("growth", growth::main),
    ("compact", compact::main),
    // Has nothing to do when `compact` has just run.
    ("compact-missing", compact::run_missing),
    ("openb", gpu_packing::main),
    ("history", history::main),
    ("masters", masters::all),
    ("agent", agent::all),
    ("user", cli_latency::main),
    ("lang", lang::main),
];

fn main() -> std::io::Result<()> {
    let requested: Vec<String> = std::env::args().skip(1).collect();
    if requested == [cellwright_lang::CHILD_COMMAND] {
        // The child that evaluates a file; whoever started it looks at what it said.
        let _ = cellwright_lang::run_child();
        return Ok(());
    }
    match requested.split_first() {
        Some((first, rest)) if first == "masters" => return masters::run(rest),
        Some((first, rest)) if first == "agent" => return agent::run(rest),
        _ => {}
    }
    for name in &requested {
        if !BENCHMARKS.iter().any(|(known, _)| known == name) {
            let known: Vec<&str> = BENCHMARKS.iter().map(|(name, _)| *name).collect();
            let allowed = known.join(", ");
            let message = format!("benchmark {name:?} is unknown; allowed: {allowed}");
            return Err(std::io::Error::other(message));
        }
    }
    for (name, benchmark) in BENCHMARKS {
        if requested.is_empty() || requested.iter().any(|w| w == name) {
            println!("== {name}");
            benchmark()?;
        }
    }
    Ok(())
}
