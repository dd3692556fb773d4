//! The agent as its users meet it: the product's own program, real tasks, this machine.
//!
//! `agent WHAT` measures one thing and replaces its section of `bench/reports/agent.md`. What the
//! system is compared with runs in the same minute: the same program started by hand, by the
//! container runtime alone, or by a shim that nobody ordered.

mod cell;
mod fetch;
mod loss;
mod rate;
mod rest;
mod share;
mod start;

use crate::flags::Flags;
use crate::masters::block_on;
use crate::record::Book;
use std::io;

const FIGURES: [&str; 6] = ["start", "fetch", "rate", "rest", "share", "loss"];

pub const BOOK: Book = Book {
    name: "agent",
    about: "One machine with a master, a scheduler and an agent as processes on it, over HTTP on \
            loopback without TLS. `cargo build --release -p cellwright-cli -p cellwright-shim`, \
            then `cargo run --release -p cellwright-bench agent WHAT` measures one section again.",
    figures: &FIGURES,
};

pub fn all() -> io::Result<()> {
    FIGURES.iter().try_for_each(|what| run(&[(*what).to_owned()]))
}

/// `agent` and what follows it on the command line.
pub fn run(arguments: &[String]) -> io::Result<()> {
    let Some((what, rest)) = arguments.split_first() else { return all() };
    let flags = Flags::parse(rest)?;
    match what.as_str() {
        "start" => block_on(start::main(flags)),
        "fetch" => block_on(fetch::main(flags)),
        "rate" => block_on(rate::main(flags)),
        "rest" => block_on(rest::main(flags)),
        "share" => block_on(share::main(flags)),
        "loss" => block_on(loss::main(flags)),
        // A task of `share`.
        "answer" => share::answer(&flags),
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
