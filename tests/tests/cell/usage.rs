//! The usage of a real task: from its processes through the agent and the master to an SQL query.

use super::agent::{dev, is_running_attempt, submit, wait};
use crate::support::{Folder, TIMEOUT, stdout_of};
use std::time::Instant;

/// The maximum millicores, and the number of measurements, of each job.
fn query_usage(address: &str) -> Vec<(String, u64, u64)> {
    let query = "select job, max(cpu_max), sum(samples) from usage group by job order by job";
    let csv = stdout_of(&["--master", address, "sql", query, "-o", "csv"]);
    let number = |text: Option<&str>| text.unwrap_or_default().trim().parse::<u64>().unwrap();
    let row = |line: &str| {
        let mut cells = line.split(',');
        let job = cells.next().unwrap_or_default().to_owned();
        (job, number(cells.next()), number(cells.next()))
    };
    csv.lines().skip(1).map(row).collect()
}

#[test]
fn a_task_that_spins_is_seen_to_in_sql_and_one_that_sleeps_is_not() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    for (job, script) in [("sleeps", "sleep 1000"), ("spins", "while :; do :; done")] {
        let task = serde_json::json!({ "task": {
            "limits": { "cpu": "300m", "ram": 64 << 20 }, "command": ["sh", "-c", script],
        }});
        submit(&folder, &address, job, 1, "", &task.to_string());
        wait(&address, job, is_running_attempt(1));
    }
    let begin = Instant::now();
    loop {
        let found = query_usage(&address);
        if let [(first, calm, _), (second, busy, samples)] = &found[..]
            && *samples > 1
            && *busy >= 100
        {
            assert_eq!((first.as_str(), second.as_str()), ("sleeps", "spins"));
            assert!(calm < busy, "{found:?}");
            break;
        }
        assert!(begin.elapsed() < TIMEOUT, "never seen: {found:?}");
    }
    running.stop();
}
