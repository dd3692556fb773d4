//! Packages on several machines: who gave them to whom, how little the masters have to, and that a
//! machine that lies, is damaged or dies half-way costs nobody their package. What came from where
//! is what agents and masters themselves say to an operator.

use cellwright_api::types::{MachinePackages, PackageOnMachine};
use cellwright_cell::spec::PackageRef;
use cellwright_identity::secret::{hex, sha256};
use cellwright_tests::binary::command_output;
use cellwright_tests::machines::{
    Machine, Machines, MachinesPlan, SLEEP_FOREVER, name, on, spread,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const MEGABYTE: usize = 1 << 20;
/// A master is always asked for the beginning of a package, where the digests of the rest are.
const HEAD: u64 = 64 << 10;

/// A cell where what a machine has is known soon.
async fn launch_fast() -> Option<Machines> {
    let changes = [("poll_interval = \"5s\"", "poll_interval = \"200ms\"")];
    Machines::launch_with(&MachinesPlan { changes: &changes, ..MachinesPlan::default() }).await
}

/// Makes a package of so many megabytes and a little, and brings it to the masters.
fn push(cell: &Machines, name: &str, megabytes: u8) -> PackageRef {
    let folder = cell.masters.folder.path(name);
    fs::create_dir(&folder).expect("a folder");
    let mut content = Vec::new();
    (0..megabytes).for_each(|n| content.resize(content.len() + MEGABYTE, n));
    fs::write(folder.join("content"), content).expect("written");
    fs::write(folder.join("name"), name).expect("written");
    let folder = folder.to_str().expect("a path in UTF-8");
    let words = ["package", "push", folder, "--name", name, "-o", "json"];
    let pushed = cell.masters.cell(&words).expect("it is stored");
    serde_json::from_str(&pushed).expect("a package in JSON")
}

/// A job whose tasks stay, once they have read a file of the package.
fn job(cell: &Machines, name: &str, count: u32, package: &PackageRef) -> Value {
    let of = &package.name;
    let read =
        format!("test \"$(cat \"$CELL_PACKAGES/{of}/name\")\" = {of} || exit 3{SLEEP_FOREVER}");
    let mut job = cell.job(name, count, &read);
    job["task"]["packages"] = json!([package]);
    job
}

/// Runs it on one machine, and waits until the masters know that the machine has it.
async fn run_until_reported(cell: &Machines, name: &str, machine: Machine, package: &PackageRef) {
    let mut job = job(cell, name, 1, package);
    job["constraints"] = on(machine);
    cell.submit(&job).await;
    cell.wait_until_running(name).await;
    cell.until("the machine says what it has", async |cell| {
        let held = package_status(cell, machine).await.packages.len();
        (cell.machine(machine).await?.packages as usize == held).then_some(())
    })
    .await;
}

async fn package_status(cell: &Machines, machine: Machine) -> MachinePackages {
    cell.until("the agent answers", async |cell| {
        Some(cell.client().machine_packages(&name(machine)).await.ok()?.value)
    })
    .await
}

async fn wait_for_package(
    cell: &Machines,
    machine: Machine,
    package: &PackageRef,
) -> PackageOnMachine {
    let status = package_status(cell, machine).await;
    let mut found = status.packages.into_iter().filter(|held| held.digest == package.digest);
    found.next().unwrap_or_else(|| panic!("n{machine} has no {}", package.name))
}

fn of_machine(held: &PackageOnMachine, machine: Machine) -> u64 {
    let machine = name(machine);
    let from = held.from.iter().filter(|from| from.name == machine.as_str());
    from.map(|from| from.bytes).sum()
}

fn of_masters(held: &PackageOnMachine) -> u64 {
    held.from.iter().filter(|from| from.is_master).map(|from| from.bytes).sum()
}

/// What the masters have given of packages, as they count it.
async fn given_by_masters(cell: &Machines) -> u64 {
    let page = cell.client().text("/metrics").await.expect("metrics");
    let line = page.lines().find(|line| line.starts_with("cell_package_bytes_given_total "));
    let value = line.and_then(|line| line.split(' ').nth(1)).expect("it is counted");
    value.parse().expect("a number")
}

fn file(cell: &Machines, machine: Machine, package: &PackageRef) -> PathBuf {
    cell.data(machine).join("packages/files").join(package.digest.as_str())
}

fn is_whole(cell: &Machines, machine: Machine, package: &PackageRef) -> bool {
    let bytes = fs::read(file(cell, machine, package)).expect("it is there");
    hex(&sha256(&bytes)) == package.digest.as_str()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_go_where_their_package_is_and_it_comes_from_there_and_not_from_the_masters() {
    const MEGABYTES: u8 = 8;
    let Some(cell) = launch_fast().await else { return };
    let package = push(&cell, "server", MEGABYTES);
    run_until_reported(&cell, "first", 2, &package).await;
    let first = wait_for_package(&cell, 2, &package).await;
    assert!(of_masters(&first) >= package.bytes, "nobody else had it: {first:#?}");
    assert!(first.from.iter().all(|from| from.is_master), "{first:#?}");
    // Three machines of a kind; without regard for packages they would share these.
    cell.submit(&job(&cell, "near", 6, &package)).await;
    let near = cell.wait_until_running("near").await;
    let machines: Vec<_> = near.iter().map(|task| task.machine.clone()).collect();
    assert!(machines.iter().all(|place| *place == Some(name(2))), "{machines:?}");

    let before = given_by_masters(&cell).await;
    run_until_reported(&cell, "second", 3, &package).await;
    let second = wait_for_package(&cell, 3, &package).await;
    let body = usize::from(MEGABYTES) * MEGABYTE;
    assert!(of_machine(&second, 2) >= body as u64, "{second:#?}");
    assert!(of_masters(&second) <= HEAD, "{second:#?}");
    assert!(given_by_masters(&cell).await - before <= HEAD);
    assert!(package_status(&cell, 2).await.to_machines >= body as u64);
    let output = cell.masters.cell(&["machine", "packages", "n3"]).expect("it is shown");
    assert!(output.contains("server") && output.contains("n2 8"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_that_want_a_package_at_once_get_most_of_it_from_each_other() {
    let Some(cell) = launch_fast().await else { return };
    let package = push(&cell, "server", 32);
    let mut all = job(&cell, "all", 3, &package);
    all["spread"] = spread(1);
    cell.submit(&all).await;
    cell.wait_until_running("all").await;
    let (mut masters, mut machines) = (0, 0);
    for machine in 1..=3 {
        let status = package_status(&cell, machine).await;
        masters += status.from_masters;
        machines += status.from_machines;
        assert!(is_whole(&cell, machine, &package));
    }
    // Three times the package came in all, and somebody has to have it first.
    let shares = format!("{masters} from masters, {machines} from machines");
    assert!(masters + machines >= 3 * package.bytes, "{shares}");
    assert!(masters < 2 * package.bytes, "{shares}");
    assert!(given_by_masters(&cell).await >= masters, "{shares}");
}

/// Changes the first chunk of a package's file, and in its head the digest of that chunk: whoever
/// has it believes that it is right.
fn forge(bytes: &mut [u8]) {
    let length = bytes.len();
    let end = bytes[512..].iter().position(|byte| *byte == 0).expect("the head is padded") + 512;
    let head: Value = serde_json::from_slice(&bytes[512..end]).expect("a head in JSON");
    let body = head["body_bytes"].as_u64().and_then(|bytes| usize::try_from(bytes).ok());
    let start = length - body.expect("a length");
    let right = head["chunks"][0].as_str().expect("a digest").to_owned();
    let chunk = &mut bytes[start..start + MEGABYTE];
    chunk[MEGABYTE / 2] ^= 1;
    let wrong = hex(&sha256(chunk));
    let at = bytes[..end].windows(right.len()).position(|part| part == right.as_bytes());
    let at = at.expect("the digest is in the head");
    bytes[at..at + right.len()].copy_from_slice(wrong.as_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_liar_or_a_damaged_machine_has_is_fetched_elsewhere() {
    let Some(cell) = launch_fast().await else { return };
    let (server, data) = (push(&cell, "server", 4), push(&cell, "data", 4));
    run_until_reported(&cell, "server-1", 1, &server).await;
    run_until_reported(&cell, "data-1", 1, &data).await;
    let change = |package: &PackageRef, how: fn(&mut [u8])| {
        let path = file(&cell, 1, package);
        let mut bytes = fs::read(&path).expect("it is there");
        how(&mut bytes);
        fs::write(&path, bytes).expect("it can be changed");
        assert!(!is_whole(&cell, 1, package));
    };
    change(&server, forge);
    run_until_reported(&cell, "server-2", 2, &server).await;
    assert!(is_whole(&cell, 2, &server));
    let held_now = wait_for_package(&cell, 2, &server).await;
    let liar = held_now.from.iter().find(|from| from.name == "n1");
    assert!(liar.is_some_and(|liar| liar.is_wrong), "{held_now:#?}");
    assert!(of_masters(&held_now) >= MEGABYTE as u64, "{held_now:#?}");
    assert_eq!(package_status(&cell, 2).await.avoided.len(), 1);
    // One that finds the damage itself gives nothing away, and is no liar.
    change(&data, |bytes| bytes[bytes.len() / 2] ^= 1);
    run_until_reported(&cell, "data-3", 3, &data).await;
    assert!(is_whole(&cell, 3, &data));
    assert!(wait_for_package(&cell, 1, &data).await.is_damaged);
    let held_now = wait_for_package(&cell, 3, &data).await;
    assert!(held_now.from.iter().all(|from| !from.is_wrong), "{held_now:#?}");
    assert!(of_masters(&held_now) >= MEGABYTE as u64, "{held_now:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_whose_source_dies_half_way_comes_from_elsewhere() {
    let Some(mut cell) = launch_fast().await else { return };
    let package = push(&cell, "server", 16);
    run_until_reported(&cell, "first", 1, &package).await;
    // Two megabytes a second: there is a half-way.
    let mut narrow = cell.masters.hosts.command(cell.host(1), "tc");
    narrow.args("qdisc add dev eth0 root tbf rate 16mbit burst 64kb latency 400ms".split(' '));
    command_output(&mut narrow).expect("a line can be made narrow");
    let mut job = job(&cell, "second", 1, &package);
    job["constraints"] = on(2);
    cell.submit(&job).await;
    let incoming = cell.data(2).join("packages/incoming");
    cell.until("a megabyte has arrived", async |_| {
        let partial = fs::read_dir(&incoming).ok()?.flatten().next()?;
        // It has its full length from the beginning; blocks say how much is there.
        let arrived = partial.metadata().ok()?.blocks() * 512;
        (arrived >= MEGABYTE as u64).then_some(())
    })
    .await;
    cell.kill_agent(1);
    cell.wait_until_running("second").await;
    assert!(is_whole(&cell, 2, &package));
    let second = wait_for_package(&cell, 2, &package).await;
    assert!(of_machine(&second, 1) >= MEGABYTE as u64, "{second:#?}");
    assert!(of_masters(&second) > HEAD, "{second:#?}");
    assert!(of_machine(&second, 1) + of_masters(&second) >= package.bytes, "{second:#?}");
}
