//! Members come and go while replicas are killed: nothing acknowledged is lost, and no linearizable
//! read is stale.

use cellwright_tests::hosts::Host;
use cellwright_tests::load::Load;
use cellwright_tests::replicas::Replicas;

/// A dead replica each time, of whom there is nothing left.
const ROUNDS: usize = 3;

/// Ends the leader without asking and starts it again, in whatever the others are.
async fn kill_the_leader(cell: &mut Replicas) {
    let leader = cell.leader().await.host;
    cell.kill(leader);
    cell.start(leader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_replaced_while_leaders_are_killed_and_every_promise_holds() {
    let Some(mut cell) = Replicas::launch(3).await else { return };
    let load = Load::start(&cell, 4).await;
    load.wait_for_writes(&cell, 50).await;
    let before = cell.leader().await;
    for round in 0..ROUNDS {
        let leader = cell.leader().await.host;
        let out: Host = (leader + round % 2) % 3 + 1;
        let through = cell.masters().find(|host| *host != out).expect("there are three");
        cell.kill(out);
        cell.remove(out).await;
        // Two vote now, and both are needed; one of them falls while the newcomer asks to join.
        kill_the_leader(&mut cell).await;
        cell.join(out, through).await;
        // And again while the newcomer is taken in and follows the log.
        cell.start(out);
        kill_the_leader(&mut cell).await;
        cell.wait_for_voters(3).await;
        load.wait_for_writes(&cell, 50).await;
    }
    let ledger = load.stop_and_check(&cell).await;
    let after = cell.leader().await;
    println!(
        "{ROUNDS} members replaced: {} writes, {} reads; term {} to {}",
        *ledger.acknowledged().borrow(),
        ledger.reads(),
        before.term,
        after.term
    );
}
