//! Three and five masters as real processes on hosts of their own, with clients at work: whatever
//! happens to the leader, nothing acknowledged is lost, no linearizable read is stale, and the cell
//! heals by itself. How long writes stood still is printed, not judged: that depends on the
//! machine.

#[path = "faults/damage.rs"]
mod damage;
#[path = "faults/members.rs"]
mod members;
#[path = "faults/room.rs"]
mod room;

use cellwright_api::error::Code;
use cellwright_tests::TIMEOUT;
use cellwright_tests::hosts::Host;
use cellwright_tests::load::{Load, add_register, read, write};
use cellwright_tests::replicas::{Leader, Replicas, master};
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

const CLIENTS: usize = 8;
/// How long a stopped process stays stopped, at least: many election timeouts.
const STOPPED: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    /// The victims hear nobody else.
    Deaf,
    /// Nobody else hears the victims.
    Mute,
    /// Both.
    Cut,
}

impl Fault {
    fn apply(self, cell: &mut Replicas, victims: &[Host]) {
        for &victim in victims {
            match self {
                Fault::Kill => cell.kill(victim),
                Fault::Stop => cell.signal(victim, Signal::STOP),
                Fault::Deaf | Fault::Mute | Fault::Cut => {
                    for other in cell.hosts.all().filter(|host| !victims.contains(host)) {
                        if self != Fault::Mute {
                            cell.hosts.deafen(victim, other);
                        }
                        if self != Fault::Deaf {
                            cell.hosts.deafen(other, victim);
                        }
                    }
                }
            }
        }
    }

    fn heal(self, cell: &mut Replicas, victims: &[Host]) {
        for &victim in victims {
            match self {
                Fault::Kill => cell.start(victim),
                Fault::Stop => cell.signal(victim, Signal::CONT),
                Fault::Deaf | Fault::Mute | Fault::Cut => cell.hosts.heal(),
            }
        }
    }
}

/// A cell at work, its leader and so many of its followers struck, healed, and checked.
async fn survives(masters: usize, fault: Fault, followers: usize) {
    let Some(mut cell) = Replicas::launch(masters).await else { return };
    let load = Load::start(&cell, CLIENTS).await;
    load.wait_for_writes(&cell, 100).await;
    let old = cell.leader().await;
    // The prober has a connection before the fault, as a client at work would.
    load.probe(old.host, TIMEOUT).await;
    let mut victims = vec![old.host];
    victims.extend(cell.hosts.all().filter(|host| *host != old.host).take(followers));
    load.ledger().fault_begins();
    let struck = Instant::now();
    fault.apply(&mut cell, &victims);
    load.wait_for_writes(&cell, 200).await;
    let outage = load.ledger().outage();
    if fault == Fault::Stop {
        sleep_until(struck + STOPPED).await;
        resume_with_pending_read(&cell, &load, old).await;
    } else {
        let answered = load.probe(old.host, Duration::from_secs(3)).await;
        assert!(!answered, "a leader without a quorum answered a linearizable read");
        fault.heal(&mut cell, &victims);
    }
    load.wait_for_writes(&cell, 100).await;
    let ledger = load.stop_and_check(&cell).await;
    let new = cell.leader().await;
    assert!(new.term > old.term, "{new:?} after {old:?}");
    println!(
        "{masters} masters, {fault:?}: no write acknowledged for {} ms; {} writes, {} reads; \
         term {} to {}",
        outage.as_millis(),
        *ledger.acknowledged().borrow(),
        ledger.reads(),
        old.term,
        new.term
    );
}

/// A read is waiting for the stopped leader when it continues; others lead by then. It may refuse,
/// and it may answer with what is new, which the ledger judges.
async fn resume_with_pending_read(cell: &Replicas, load: &Load, old: Leader) {
    let mut question = std::pin::pin!(load.probe(old.host, TIMEOUT));
    let early = timeout(Duration::from_millis(200), &mut question).await;
    assert!(early.is_err(), "a stopped process answered");
    cell.signal(old.host, Signal::CONT);
    question.await;
    // It has stepped down once it follows somebody in a later term.
    let now = cell.leader().await;
    assert!(now.term > old.term, "{now:?} after {old:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_masters_survive_the_kill_of_the_leader() {
    survives(3, Fault::Kill, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_masters_survive_a_leader_that_stands_still() {
    survives(3, Fault::Stop, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_masters_survive_a_leader_that_hears_nothing() {
    survives(3, Fault::Deaf, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_masters_survive_a_leader_that_is_not_heard() {
    survives(3, Fault::Mute, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_masters_survive_a_leader_that_is_cut_off() {
    survives(3, Fault::Cut, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_masters_survive_the_kill_of_the_leader_and_another() {
    survives(5, Fault::Kill, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_masters_survive_the_cut_of_the_leader_with_another() {
    survives(5, Fault::Cut, 1).await;
}

/// A follower that does not hear the leader, and is heard, asks for votes again and again; nobody
/// who hears the leader may listen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_hears_nothing_does_not_stop_the_others() {
    let Some(cell) = Replicas::launch(3).await else { return };
    let load = Load::start(&cell, CLIENTS).await;
    load.wait_for_writes(&cell, 100).await;
    let leader = cell.leader().await.host;
    let victim = cell.hosts.all().find(|host| *host != leader).expect("a follower");
    load.ledger().fault_begins();
    cell.hosts.deafen(victim, leader);
    load.wait_for_writes(&cell, 300).await;
    let outage = load.ledger().outage();
    cell.hosts.heal();
    load.wait_for_writes(&cell, 100).await;
    load.stop_and_check(&cell).await;
    println!("deaf follower: no write acknowledged for {} ms", outage.as_millis());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_writes_are_refused_clearly_and_stale_reads_go_on() {
    let Some(mut cell) = Replicas::launch(3).await else { return };
    let client = cell.client();
    add_register(&client, 0).await.expect("a user is added");
    write(&client, 0, 1).await.expect("a write");
    let leader = cell.leader().await.host;
    let others: Vec<Host> = cell.hosts.all().filter(|host| *host != leader).collect();
    for &host in &others {
        cell.kill(host);
    }
    let mut impatient = cell.settings(&[leader]);
    impatient.deadline = Duration::from_secs(5);
    impatient.attempt_timeout = impatient.deadline;
    let impatient = cellwright_api::client::Client::new(impatient).expect("a client");
    let unsure = [Code::NoQuorum, Code::NoLeader, Code::TimedOut];
    let rejection = write(&impatient, 0, 2).await.expect_err("nobody to write to");
    assert!(rejection.code().is_some_and(|code| unsure.contains(&code)), "{rejection}");
    let rejection = read(&impatient, 0).await.expect_err("nobody is sure");
    assert!(rejection.code().is_some_and(|code| unsure.contains(&code)), "{rejection}");
    let stale = impatient.bytes_at(&master(leader), "/v1/users/writer-0", TIMEOUT).await;
    assert!(stale.is_ok(), "a stale read needs nobody: {stale:?}");
    cell.start(others[0]);
    // The same write once more, under the same key: the first one may have counted or not.
    let client = cell.client();
    timeout(TIMEOUT, write(&client, 0, 2)).await.expect("in time").expect("a quorum again");
    assert_eq!(read(&client, 0).await.expect("a read").value, 2);
}

/// A byte in the middle of the oldest segment of a replica's log, turned over.
fn damage_log(cell: &Replicas, host: Host) {
    let folder = cell.data_dir(host).join("log");
    let entries = std::fs::read_dir(&folder).expect("a log");
    let mut segments: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    segments.sort();
    let mut bytes = std::fs::read(&segments[0]).expect("a segment");
    // Behind the header, before the end: what is torn off the end is cut, and that is no damage.
    bytes[300] ^= 0x10;
    std::fs::write(&segments[0], bytes).expect("written");
}

/// Leaves a repaired replica as a repair does that ends before the new configuration is in place.
fn cut_short(cell: &Replicas, host: Host) {
    let data = cell.data_dir(host);
    let entries = std::fs::read_dir(&data).expect("its data");
    let mut names = entries.map(|entry| entry.expect("an entry").file_name());
    let aside = names.find(|name| name.to_string_lossy().starts_with("damaged-"));
    let aside = data.join(aside.expect("what was there"));
    assert!(aside.join("log").exists() && !data.join("log").exists(), "the log is set aside");
    std::fs::remove_file(data.join("masters-to-join")).expect("it was to join");
    std::fs::write(cell.config(host).with_extension("toml.new"), "half").expect("written");
}

#[tokio::test]
async fn a_replica_with_a_damaged_log_is_rebuilt_from_its_peers() {
    let Some(mut cell) = Replicas::launch(3).await else { return };
    let client = cell.client();
    add_register(&client, 0).await.expect("a user is added");
    let before = write(&client, 0, 1).await.expect("a cell of three takes a change");
    cell.wait_until_healed(before).await;
    let config = cell.config(3).display().to_string();
    let rejection = cell.cell(&["master", "repair", "--config", &config]);
    assert!(rejection.is_err_and(|why| why.contains("stop the replica")), "it runs");
    cell.kill(3);
    let whole = cell.cell(&["master", "repair", "--config", &config]).expect("it looks");
    assert!(whole.contains("nothing is to be repaired"), "{whole}");
    damage_log(&cell, 3);
    let repaired = cell.cell(&["master", "repair", "--config", &config]).expect("repaired");
    assert!(repaired.contains("is damaged at byte"), "{repaired}");
    // Sentences are folded where they reach the edge of a terminal.
    let unfolded = |said: String| said.split_whitespace().collect::<Vec<_>>().join(" ");
    let ready = cell.cell(&["master", "repair", "--config", &config]).expect("it looks again");
    let ready = unfolded(ready);
    assert!(ready.contains("is ready to join, nothing is to be repaired"), "{ready}");
    cut_short(&cell, 3);
    let again = cell.cell(&["master", "repair", "--config", &config]).expect("repaired again");
    let again = unfolded(again);
    assert!(again.contains("that was cut short"), "{again}");
    cell.start(3);
    let after = write(&client, 0, 2).await.expect("a change");
    cell.wait_until_healed(after).await;
    let status = cell.cell(&["master", "status"]).expect("a status");
    assert!(status.contains("m3") && !status.contains("no  "), "{status}");
}
