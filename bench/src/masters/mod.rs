//! The master as its users meet it: real processes, real files, real sockets on this machine.
//!
//! `masters WHAT` measures one thing and replaces its section of `bench/reports/masters.md`, so
//! that a long run that is cut short leaves what it had. The program starts itself again for
//! replicas, schedulers and virtual machines: what is killed and weighed is then a process of its
//! own, as it is in a cell.
//!
//! Rejected: all parts in one process. The figures would be better, and about something else.

mod agents;
pub mod cell;
mod cell_process;
mod etcd;
mod failover;
mod load;
mod placement;
mod poll;
mod replica;
mod restart;
mod workload;
mod write;

use crate::flags::Flags;
use crate::section_report::SectionedReport;
use std::future::Future;
use std::io;

/// What can be measured, in the order of the report.
const FIGURES: [&str; 7] = ["write", "place", "failover", "soak", "resume", "poll", "restart"];

pub const BOOK: SectionedReport = SectionedReport {
    name: "masters",
    about: "The master as processes on one machine: replicas with flushes to disk, HTTP on \
            loopback without TLS, clients, schedulers and virtual machines beside them on the same \
            cores. `cargo run --release -p cellwright-bench masters WHAT` measures one section \
            again.",
    figures: &FIGURES,
};

/// All figures with their usual lengths.
pub fn all() -> io::Result<()> {
    FIGURES.iter().try_for_each(|figure| run(&[(*figure).to_owned()]))
}

/// `masters` and what follows it on the command line.
pub fn run(arguments: &[String]) -> io::Result<()> {
    let Some((figure, rest)) = arguments.split_first() else { return all() };
    let flags = Flags::parse(rest)?;
    match figure.as_str() {
        "write" => block_on(write::main(flags)),
        "place" => block_on(placement::main(flags)),
        "failover" => block_on(failover::main(flags)),
        "soak" => block_on(failover::soak(flags)),
        "resume" => block_on(failover::resume(flags)),
        "poll" => block_on(poll::main(flags)),
        "restart" => block_on(restart::main(flags)),
        "replica" => block_on(replica::main(flags)),
        "scheduler" => block_on(agents::scheduler(flags)),
        "agents" => block_on(agents::main(flags)),
        other => {
            let allowed = FIGURES.join(", ");
            Err(io::Error::other(format!("figure {other:?} is unknown; allowed: {allowed}")))
        }
    }
}

pub fn block_on(work: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // A thread may still wait for a line of input that never comes.
    runtime.shutdown_background();
    done
}
