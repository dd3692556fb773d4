//! What a machine is worth: a task gets, of a machine whose cores count double, half of what it
//! asks for, and is charged and reported in cores of the cell. And a task that says nothing of disk
//! has the cell's default as its limit.

use crate::reclaim::{cap, group};
use cellwright_agent::cgroups::base_name;
use cellwright_isolate::cgroup::{GroupPath, Layout, Tree};
use cellwright_tests::machines::{Machines, MachinesPlan, SLEEP_FOREVER, USER, on};
use serde_json::{Value, json};

const DEFAULT_DISK: &[(&str, &str)] = &[
    ("default_disk = \"0B\"", "default_disk = \"32MiB\""),
    ("poll_interval = \"5s\"", "poll_interval = \"200ms\""),
    ("missed_polls = 3", "missed_polls = 100"),
];

fn parsed(cell: &Machines, arguments: &[&str]) -> Value {
    let text = cell.masters.cell(arguments).expect("an answer");
    serde_json::from_str(&text).expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cores_count_what_the_machine_is_worth_and_disk_is_the_default_where_nothing_is_said() {
    let plan =
        MachinesPlan { agents: "cpu_factor = 2.0", changes: DEFAULT_DISK, ..Default::default() };
    let Some(cell) = Machines::launch_with(&plan).await else { return };
    let attributes = cell.machine(1).await.expect("a machine").spec.attributes;
    let factor = attributes.iter().find(|(name, _)| name.as_str() == "cpu-factor");
    assert!(factor.is_some_and(|(_, value)| value.to_string().contains("2.000")), "{factor:?}");
    let mut busy = cell.job("busy", 1, "while :; do :; done");
    busy["constraints"] = on(1);
    busy["task"]["limits"] = json!({ "cpu": 400, "ram": 8 << 20 });
    busy["task"]["isolation"] = json!({ "slack_cpu": false });
    busy["task"]["notice"] = json!(0);
    cell.submit(&busy).await;
    let tasks = cell.wait_until_running("busy").await;
    assert_eq!((tasks[0].limits.cpu, tasks[0].limits.disk), (400, 32 << 20));
    let reserved = cell.machine(1).await.expect("a machine").reserved;
    assert_eq!((reserved.cpu, reserved.disk), (400, 32 << 20));
    let base = GroupPath::new(&base_name(&cell.data(1))).expect("a path of groups");
    let tree = Tree::new(Layout::detect().expect("control groups"), base);
    // Of a tenth of a second: two hundred thousandths of this machine's CPUs.
    assert_eq!(cap(&tree, &group(&tree, 0)), Some(20_000));
    let key = format!("{USER}/busy");
    cell.until("usage in cores of the cell", async |cell| {
        let status = parsed(cell, &["job", "status", &key, "-o", "json"]);
        status["tasks"][0]["used"]["cpu"].as_u64().filter(|used| *used > 250)
    })
    .await;
    // One that says how much disk it wants keeps that.
    cell.submit(&cell.job("said", 1, SLEEP_FOREVER)).await;
    let said = cell.wait_until_running("said").await;
    assert_eq!(said[0].limits.disk, 1 << 20);
}
