//! What tasks say they did, in one file that all of them append to. One line is one write, so lines
//! of different tasks do not mix, and stand in the order in which things happened, whatever the
//! masters believe.

use cellwright_tests::machines::Machines;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A task that takes down when it begins and when it is told to end.
pub const LEDGER_SCRIPT: &str = r#"
    trap 'echo "stop $CELL_JOB/$CELL_INDEX $VERSION" >> "$SHARED/ledger"; exit 0' TERM
    echo "start $CELL_JOB/$CELL_INDEX $VERSION" >> "$SHARED/ledger""#;

/// The lines about a job, as words: what, task, and what more it said.
pub fn lines(cell: &Machines, job: &str) -> Vec<[String; 3]> {
    let ledger = cell.read("ledger");
    let all = ledger.lines().map(|line| {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let [action, task, more] = words[..] else { panic!("{line:?} in the ledger") };
        [action, task, more].map(str::to_owned)
    });
    all.filter(|[_, task, _]| task.split('/').next() == Some(job)).collect()
}

/// A check by which a task of [`LEDGER_SCRIPT`] is up when it has written so: without one it is up
/// when its process is there, and a shell that has not come to its first line would count as down
/// here.
pub fn has_started() -> Value {
    let test = r#"test -e "$SHARED/pid-$CELL_JOB-$CELL_INDEX-$CELL_ATTEMPT""#;
    json!({
        "probe": { "command": ["sh", "-c", test] },
        "interval": 200,
        "timeout": 20_000,
        "start_period": 120_000,
    })
}

/// The most tasks of a job that were down at once after all had been up. No task of it was ever up
/// twice at once.
pub fn most_down(lines: &[[String; 3]], tasks: usize) -> usize {
    let mut up = BTreeSet::new();
    let (mut complete, mut most) = (false, 0);
    for line in lines {
        let [action, task, _] = line;
        let changed = match action.as_str() {
            "start" => up.insert(task),
            "stop" => up.remove(task),
            _ => continue,
        };
        assert!(changed, "{line:?} when up are {up:?}: {lines:#?}");
        complete |= up.len() == tasks;
        if complete {
            most = most.max(tasks - up.len());
        }
    }
    assert!(complete, "never all up: {lines:#?}");
    most
}
