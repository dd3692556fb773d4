//! Writes: 1,000 clients with one job each, batches, and one client alone, beside etcd.

use super::cell::Cell;
use super::etcd::{self, Etcd};
use super::load::{Length, Load, Outcome, Request, post};
use super::workload;
use crate::flags::Flags;
use crate::section_report::Section;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const MANY: usize = 1000;
const BATCH: u64 = 100;
/// Clients that send batches: 10,000 jobs on their way are enough to keep every part busy.
const BATCHERS: usize = 100;

pub async fn main(flags: Flags) -> io::Result<()> {
    let time = Duration::from_secs(flags.number("seconds", 10)?);
    let mut section = Section::new(
        "Writes",
        "Three replicas. Every request is answered when it is flushed on a majority and applied. \
         Clients have one HTTP connection to the leader each and one request on its way. Beside \
         it three members of etcd on the same disk with the same clients through its HTTP \
         gateway, each put as long as a job's request, and with etcd's own tool in its own \
         protocol.",
    );
    // A report without the peer would look whole, and say nothing of what it is for.
    let missing = || io::Error::other("etcd is not installed: scripts/install-tools.sh bench");
    let version = etcd::version().ok_or_else(missing)?;
    let cell = measure_master(&mut section, time).await?;
    measure_etcd(&mut section, time, &version, cell).await?;
    section.limits(
        "two cores for three replicas and all clients: the processors are busy throughout, and \
         the clients' share of them counts against both. `etcdctl check perf --load xl` asks for \
         at most 15,000 puts a second, with keys and values of its own size.",
    );
    section.save(&super::BOOK, "write")
}

/// What is compared with etcd.
struct MasterRates {
    many: f64,
    batches: f64,
    alone: f64,
}

async fn measure_master(section: &mut Section, time: Duration) -> io::Result<MasterRates> {
    let cell = Cell::start("write", 3).await?;
    let many = run(&cell, MANY, time, 1, one_job("many")).await?;
    section.row("1,000 clients, one job a request", many.rate(), "jobs/s", "");
    section.row("... p50", many.latency(0.5), "ms", "");
    section.row("... p99", many.latency(0.99), "ms", "");
    drop(cell);
    let cell = Cell::start("batch", 3).await?;
    let batches = run(&cell, BATCHERS, time, BATCH, batch()).await?;
    let rate = batches.rate() * BATCH as f64;
    section.row("100 clients, batches of 100 jobs", rate, "jobs/s", "");
    section.row("... p50", batches.latency(0.5), "ms", "");
    section.row("... p99", batches.latency(0.99), "ms", "");
    drop(cell);
    let cell = Cell::start("alone", 3).await?;
    let alone = run(&cell, 1, time, 1, one_job("alone")).await?;
    section.row("one client, one job a request, p50", alone.latency(0.5), "ms", "");
    section.row("... p99", alone.latency(0.99), "ms", "");
    section.row("...", alone.rate(), "jobs/s", "");
    Ok(MasterRates { many: many.rate(), batches: rate, alone: alone.latency(0.5) })
}

/// `jobs` of one task in each request.
async fn run(
    cell: &Cell,
    clients: usize,
    time: Duration,
    jobs: u64,
    request: Request,
) -> io::Result<Outcome> {
    let (leader, _) = cell.leader().await?;
    let address = cell.member(leader).to_owned();
    let load = Load { address, clients, length: Length::For(time), request };
    let outcome = load.run().await?.all_done()?;
    all_accepted(cell, outcome.done * jobs).await?;
    Ok(outcome)
}

/// A batch is answered with 200 whatever became of its items, and a rejected item costs little.
///
/// # Errors
/// When the cell has not as many waiting tasks as were written; it has no machine.
async fn all_accepted(cell: &Cell, written: u64) -> io::Result<()> {
    let status = cell.client().cluster_status().await.map_err(io::Error::other)?.value;
    let waiting = u64::from(status.tasks.pending) + u64::from(status.tasks.deferred);
    if waiting == written {
        return Ok(());
    }
    Err(io::Error::other(format!("{written} jobs were acknowledged, the cell has {waiting}")))
}

async fn measure_etcd(
    section: &mut Section,
    time: Duration,
    version: &str,
    ours: MasterRates,
) -> io::Result<()> {
    let etcd = Etcd::start().await?;
    let value = workload::job_json("many-1000-100000", 1);
    let gateway = async |clients| {
        let (address, length) = (etcd.leader()?, Length::For(time));
        let request = etcd::put(&value);
        Load { address, clients, length, request }.run().await?.all_done()
    };
    let many = gateway(MANY).await?;
    section.row(&format!("{version}, 1,000 clients over HTTP"), many.rate(), "puts/s", "");
    section.row("... p50", many.latency(0.5), "ms", "");
    section.row("... p99", many.latency(0.99), "ms", "");
    let alone = gateway(1).await?;
    section.row("etcd, one client over HTTP, p50", alone.latency(0.5), "ms", "");
    section.row("... p99", alone.latency(0.99), "ms", "");
    // Its tool gives up where members are too slow for it, and gives no rate then.
    let own = etcd.check_perf();
    match &own {
        Ok(own) => section.row("etcd, 1,000 clients of its own tool", *own, "puts/s", ""),
        Err(error) => eprintln!("{error}"),
    }
    let times = |ours: f64, theirs: f64| ours / theirs;
    section.row("jobs/s over etcd's puts/s, HTTP", times(ours.many, many.rate()), "x", "≥ 3");
    if let Ok(own) = own {
        section.row("jobs/s over etcd's puts/s, its own tool", times(ours.many, own), "x", "≥ 3");
        section.row("in batches, over its own tool", times(ours.batches, own), "x", "≥ 10");
    }
    section.row("in batches, over HTTP", times(ours.batches, many.rate()), "x", "≥ 10");
    let alone = times(ours.alone, alone.latency(0.5));
    section.row("one client's p50 over etcd's, HTTP", alone, "x", "≤ 1");
    Ok(())
}

/// A job of a name nobody else takes, with an idempotency key as the product's client sends it.
pub fn one_job(prefix: &'static str) -> Request {
    Arc::new(move |client, round, out| {
        let body = workload::job_json(&format!("{prefix}-{client}-{round}"), 1);
        let key = format!("idempotency-key: {client:016x}-{round}\r\n");
        post(out, "/v1/jobs", &key, &body);
    })
}

fn batch() -> Request {
    Arc::new(|client, round, out| {
        let job = |at| workload::job_json(&format!("batch-{round}-{at}"), 1);
        let items: Vec<String> =
            (0..BATCH).map(|at| format!("{{\"submit_job\":{}}}", job(at))).collect();
        let key = format!("idempotency-key: {client:016x}-{round}\r\n");
        post(out, "/v1/batch", &key, &format!("{{\"items\":[{}]}}", items.join(",")));
    })
}
