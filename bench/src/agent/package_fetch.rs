//! How long until a task runs whose package has to be fetched first: from the masters, from another
//! machine, and, to compare, when it is there already.

use super::cell::{Cell, Driver, wait_for_changes};
use super::{BOOK, quantile};
use crate::flags::Flags;
use crate::masters::cell::until;
use crate::section_report::Section;
use cellwright_api::client::Watch;
use cellwright_api::types::{EventView, MachinePackages};
use cellwright_cell::event::TaskChange;
use cellwright_cell::name::Name;
use cellwright_cell::spec::PackageRef;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

const MEGABYTE: u64 = 1 << 20;

pub async fn main(flags: Flags) -> io::Result<()> {
    let rounds: u64 = flags.number("rounds", 5)?;
    let megabytes: u64 = flags.number("megabytes", 100)?;
    let mut section = Section::new(
        "Start of a task with a package",
        &format!(
            "{rounds} packages of {megabytes} MiB, each in one file, pushed before anything is \
             timed. For each a job of one task, plain processes, timed from the request until the \
             event feed says that the task runs: on a first machine, where nobody but the master \
             has it; on a second one, where the first has it; and on the first again. Both \
             machines are agents on this computer, with a disk and a loopback in common. Beside it \
             as many bytes written twice and synced, which is what an arrival leaves on disk: the \
             package as a file and as a folder."
        ),
    );
    let mut taken = Taken::default();
    let shares = run_rounds(&mut taken, rounds, megabytes).await?;
    section.row("from the masters, p50", quantile(&mut taken.masters, 0.5), "ms", "");
    section.row("... longest", quantile(&mut taken.masters, 1.0), "ms", "");
    section.row("from another machine, p50", quantile(&mut taken.machine, 0.5), "ms", "");
    section.row("... longest", quantile(&mut taken.machine, 1.0), "ms", "");
    section.row("... of its bytes from that machine", shares, "%", "");
    section.row("there already, p50", quantile(&mut taken.cached, 0.5), "ms", "");
    section.row(
        "written twice and synced by hand, p50",
        quantile(&mut taken.without_package, 0.5),
        "ms",
        "",
    );
    section.limits(
        "every byte is read, checked by digest twice (chunk by chunk, and whole when it is \
         unpacked) and written twice, on the disk and the processors that both sides share.",
    );
    section.save(&BOOK, "fetch")
}

/// Milliseconds of each round.
#[derive(Default)]
struct Taken {
    masters: Vec<f64>,
    machine: Vec<f64>,
    cached: Vec<f64>,
    without_package: Vec<f64>,
}

/// Part of the second machine's bytes that came from the first, in hundredths.
async fn run_rounds(taken: &mut Taken, rounds: u64, megabytes: u64) -> io::Result<f64> {
    let mut cell = Cell::start("fetch").await?;
    for (name, number) in [("m1", 1), ("m2", 2)] {
        let more = format!("attributes = {{ number = {{ integer = {number} }} }}");
        cell.agent(name, Driver::Process, &more).await?;
    }
    // Before the rounds: the log of a push is flushed too.
    let packages: Vec<PackageRef> =
        (0..rounds).map(|round| make(&cell, round, megabytes)).collect::<io::Result<_>>()?;
    let mut feed = cell.events();
    for (round, package) in packages.iter().enumerate() {
        let job = |what: &str, number| spec(&format!("{what}-{round}"), number, package);
        taken.masters.push(start(&cell, &mut feed, job("first", 1)).await?);
        wait_for_packages(&cell, "m1", round + 1).await?;
        taken.machine.push(start(&cell, &mut feed, job("second", 2)).await?);
        taken.cached.push(start(&cell, &mut feed, job("again", 1)).await?);
        taken.without_package.push(written_twice(cell.folder.path(), megabytes)?);
    }
    let MachinePackages { from_masters, from_machines, .. } =
        wait_for_packages(&cell, "m2", 0).await?;
    Ok(100.0 * from_machines as f64 / (from_masters + from_machines) as f64)
}

/// A package unlike all others, with the masters.
fn make(cell: &Cell, round: u64, megabytes: u64) -> io::Result<PackageRef> {
    let folder = cell.folder.path().join(format!("package-{round}"));
    fs::create_dir(&folder)?;
    let mut out = File::create(folder.join("content"))?;
    for megabyte in 0..megabytes {
        out.write_all(&block(round * megabytes + megabyte))?;
    }
    let package = cell.push(&folder, "data")?;
    fs::remove_dir_all(&folder)?;
    Ok(package)
}

/// A megabyte that is different for every number.
fn block(number: u64) -> Vec<u8> {
    let words = (0..MEGABYTE / 8).map(|word| (number * MEGABYTE + word).wrapping_mul(0x9e37_79b9));
    words.flat_map(u64::to_le_bytes).collect()
}

/// A job of one task with the package, on the machine of that number.
fn spec(name: &str, number: u64, package: &PackageRef) -> Value {
    json!({
        "name": name, "count": 1, "priority": 150,
        "constraints": [
            { "attribute": "number", "operator": { "equal": { "integer": number } } },
        ],
        "task": {
            "limits": { "cpu": 100, "ram": Driver::Process.min_ram() }, "packages": [package],
            "command": ["sleep", "1000"], "notice": 0,
        },
    })
}

/// Milliseconds until its task runs.
async fn start(cell: &Cell, feed: &mut Watch<EventView>, spec: Value) -> io::Result<f64> {
    let begun = Instant::now();
    let job = cell.submit(spec).await?;
    wait_for_changes(feed, &job, 1, |change| matches!(change, TaskChange::Started { .. })).await?;
    let millis = begun.elapsed().as_secs_f64() * 1000.0;
    cell.stop_and_wait(&job).await?;
    Ok(millis)
}

/// Waits until the masters know of so many packages of a machine, and says what its agent tells.
async fn wait_for_packages(
    cell: &Cell,
    machine: &str,
    count: usize,
) -> io::Result<MachinePackages> {
    let name = Name::new(machine).map_err(|error| io::Error::other(error.to_string()))?;
    until("a machine's packages are known", async || {
        let known = cell.client.machine(&name).await.ok()?.value.item.packages as usize;
        let packages = cell.client.machine_packages(&name).await.ok()?.value;
        (known >= count).then_some(packages)
    })
    .await
}

fn written_twice(folder: &Path, megabytes: u64) -> io::Result<f64> {
    let blocks: Vec<Vec<u8>> = (0..megabytes).map(block).collect();
    let begun = Instant::now();
    for name in ["one", "two"] {
        let mut out = File::create(folder.join(name))?;
        blocks.iter().try_for_each(|block| out.write_all(block))?;
        out.sync_all()?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1000.0)
}
