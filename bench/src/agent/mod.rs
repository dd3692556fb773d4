//! The agent as its users meet it: the product's own program, real tasks, this machine.
//!
//! `agent WHAT` measures one thing and replaces its section of `bench/reports/agent.md`. What the
//! system is compared with runs in the same minute: the same program started by hand, by the
//! container runtime alone, or by a shim that nobody ordered.

mod cell;
mod idle_cost;
mod interference;
mod machine_loss;
mod package_fetch;
mod start_latency;
mod task_rate;

use crate::flags::Flags;
use crate::masters::block_on;
use crate::section_report::SectionedReport;
use std::io;

const FIGURES: [&str; 6] = ["start", "fetch", "rate", "rest", "share", "loss"];

pub const BOOK: SectionedReport = SectionedReport {
    name: "agent",
    about: "One machine with a master, a scheduler and an agent as processes on it, over HTTP on \
            loopback without TLS. `cargo build --release -p cellwright-cli -p cellwright-shim`, \
            then `cargo run --release -p cellwright-bench agent WHAT` measures one section again.",
    figures: &FIGURES,
};

pub fn all() -> io::Result<()> {
    FIGURES.iter().try_for_each(|figure| run(&[(*figure).to_owned()]))
}

/// `agent` and what follows it on the command line.
pub fn run(arguments: &[String]) -> io::Result<()> {
    let Some((figure, rest)) = arguments.split_first() else { return all() };
    let flags = Flags::parse(rest)?;
    match figure.as_str() {
        "start" => block_on(start_latency::main(flags)),
        "fetch" => block_on(package_fetch::main(flags)),
        "rate" => block_on(task_rate::main(flags)),
        "rest" => block_on(idle_cost::main(flags)),
        "share" => block_on(interference::main(flags)),
        "loss" => block_on(machine_loss::main(flags)),
        // A task of `interference`.
        "answer" => interference::answer(&flags),
        other => {
            let allowed = FIGURES.join(", ");
            Err(io::Error::other(format!("figure {other:?} is unknown; allowed: {allowed}")))
        }
    }
}

/// The value below which this part of the values lies.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 - 1.0) * part).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}
