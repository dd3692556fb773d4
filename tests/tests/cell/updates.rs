//! Successive updates, and tasks that do not exist in a job, by commands on a real cell.

use crate::support::{Folder, cell, stdout_of, text};
use crate::{dev, wait_for, wait_job};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::task::TaskState;

/// Writes `web`, whose tasks run for ever on virtual machines and end at once when they are
/// stopped.
fn file(folder: &Folder, mode: &str) -> String {
    let path = folder.path("web.json");
    let spec = format!(
        r#"{{"name": "web", "priority": 100, "count": 2, "notice": 0, "task":
            {{"limits": {{"cpu": "100m", "ram": 33554432}}, "command": ["sim", "run"],
              "env": {{"MODE": "{mode}"}}}}}}"#
    );
    std::fs::write(&path, spec).unwrap();
    path
}

#[test]
fn an_update_that_is_complete_is_closed_by_the_next() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let run = |words: &[&str]| {
        let output = cell(&[&["--master", &address], words].concat());
        let output_text = text(&output.stdout) + &text(&output.stderr);
        (output.status.success(), output_text)
    };
    let key = JobKey { user: Name::new("dev").unwrap(), job: Name::new("web").unwrap() };
    let complete = || wait_job(&address, &key, |job, _| job.update_complete);
    let runs = |tasks: &[cellwright_api::types::TaskView]| {
        tasks.iter().all(|task| task.state == TaskState::Running)
    };
    run(&["run", &file(&folder, "one")]);
    wait_for(&address, "web", runs);
    run(&["run", &file(&folder, "two")]);
    complete();
    let (_, printed) = run(&["status", "web"]);
    assert!(printed.starts_with("dev/web: updated, "), "{printed}");
    assert!(printed.contains("update from version 1 to 2: complete, not closed yet"), "{printed}");
    let (_, printed) = run(&["plan", &file(&folder, "three")]);
    assert!(printed.contains("the update to version 2, which is complete"), "{printed}");
    let (went_well, printed) = run(&["run", &file(&folder, "three")]);
    assert!(went_well, "{printed}");
    let closed = "the update of dev/web to version 2 was complete: it is closed";
    assert!(
        printed.contains(closed) && printed.contains("being updated to version 3"),
        "{printed}"
    );
    complete();
    // A change that the cell would reject anyway closes no update.
    let refused = std::fs::read_to_string(file(&folder, "four")).unwrap();
    std::fs::write(folder.path("gang.json"), refused.replacen('{', r#"{"gang": true, "#, 1))
        .unwrap();
    let (went_well, printed) = run(&["run", &folder.path("gang.json")]);
    assert!(!went_well && printed.contains("field gang"), "{printed}");
    assert!(run(&["update", "web"]).1.contains("update from version 2 to 3 complete, "));
    let (went_well, printed) = run(&["resize", "web", "--tasks", "3"]);
    assert!(went_well && printed.contains("to version 3 was complete: it is closed"), "{printed}");
    let (went_well, printed) = run(&["update", "undo", "web"]);
    assert!(
        !went_well && printed.contains("next: see what it runs: cell status dev/web"),
        "{printed}"
    );
    running.stop();
}

#[test]
fn a_task_that_a_job_has_not_is_told_alike_by_every_command() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    stdout_of(&["--master", &address, "run", &file(&folder, "one")]);
    let commands = ["status web/9", "describe web/9", "stop web/9", "explain web/9", "logs web/9"];
    for words in commands.into_iter().chain(["status dev/web/9", "status web/[9-10]"]) {
        let words: Vec<&str> = words.split(' ').collect();
        let output_text = text(&cell(&[&["--master", &address], &words[..]].concat()).stderr);
        let want = "error: there is no task dev/web/9; it has 2 (no-such-task)";
        assert!(output_text.contains(want), "{words:?}: {output_text}");
    }
    running.stop();
}
