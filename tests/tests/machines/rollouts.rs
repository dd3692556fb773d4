//! Updates and those who wait for them go on when the leading master is lost: what a version is,
//! who made it and how its canaries are is in the log.

use cellwright_tests::binary::cell as binary;
use cellwright_tests::machines::{Machines, MachinesPlan, SLEEP_FOREVER, key};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_canaries_try_outlives_the_leader_and_so_does_who_waits_for_it() {
    let plan = MachinesPlan { masters: 3, ..MachinesPlan::default() };
    let Some(mut cell) = Machines::launch_with(&plan).await else { return };
    let mut web = cell.job("web", 3, SLEEP_FOREVER);
    web["update"] = json!({ "canaries": 1 });
    web["task"]["env"]["VERSION"] = json!("one");
    cell.submit(&web).await;
    cell.wait_until_running("web").await;
    web["task"]["env"]["VERSION"] = json!("two");
    cell.update(&web).await;
    let well = async |cell: &Machines| cell.job_view("web").await.canaries_well_since;
    let since = cell.until("the canary is well", well).await;
    let versions = cell.client().versions(&key("web")).await.expect("versions").value.item;

    let mut wait = Command::new(binary());
    wait.arg("--contexts").arg(cell.masters.folder.path("contexts.toml"));
    wait.args(["wait", "web", "--for", "updated", "--timeout", "5m", "-o", "json"]);
    let wait = wait.stdout(Stdio::piped()).spawn().expect("it is started");
    let leader = cell.masters.leader().await.host;
    cell.masters.kill(leader);
    let promote = async |cell: &Machines| {
        cell.client().promote_update(&key("web"), &Default::default()).await.ok()
    };
    cell.until("another master leads", promote).await;
    let waited = tokio::task::spawn_blocking(move || wait.wait_with_output());
    let waited = waited.await.expect("it is waited for").expect("it ends");
    let result: Value = serde_json::from_slice(&waited.stdout).expect("a document");
    assert!(waited.status.success(), "{result}");
    assert_eq!((&result["updated"], &result["running"]), (&json!(true), &json!(3)), "{result}");

    let after = cell.client().versions(&key("web")).await.expect("versions").value.item;
    let facts = |of: &cellwright_api::types::JobVersions| -> Vec<_> {
        of.versions.iter().map(|row| (row.version, row.at, row.by.clone())).collect()
    };
    assert_eq!(facts(&versions), facts(&after));
    assert!(after.versions[1].at < since && after.versions[1].tasks == 3, "{after:?}");
}
