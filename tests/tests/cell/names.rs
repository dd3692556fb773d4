//! Errors for incomplete names, for names of another object or none, and for unknown commands; an
//! incomplete name never removes anything.

use crate::support::{Folder, cell, json, stdout_of, text};
use crate::{dev, wait_for};
use cellwright_cell::task::TaskState;

/// A cell with dev/hello, which runs, and dev/tick, a cron that never fires.
struct NamedCell {
    folder: Folder,
    address: String,
    running: crate::Running,
}

impl NamedCell {
    fn new() -> NamedCell {
        let folder = Folder::new();
        let (running, address) = dev(&folder, "1");
        crate::wait_machines(&address, 1);
        let named = NamedCell { folder, address, running };
        stdout_of(&named.args(&["run", "-f", "examples/hello.json"]));
        let tick = serde_json::json!({
            "name": "tick", "schedule": "0 0 1 1 *",
            "job": {
                "name": "tick", "priority": "batch", "cpu": "10m", "ram": "32MiB",
                "command": ["sim", "run"],
            },
        });
        named.run("tick", &tick);
        let all_run = |tasks: &[cellwright_api::types::TaskView]| {
            tasks.iter().all(|task| task.state == TaskState::Running)
        };
        wait_for(&named.address, "hello", all_run);
        named
    }

    fn args<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [&["--master", &self.address], words].concat()
    }

    fn run(&self, name: &str, spec: &serde_json::Value) {
        let file = self.folder.path(&format!("{name}.json"));
        std::fs::write(&file, spec.to_string()).unwrap();
        stdout_of(&self.args(&["run", &file]));
    }

    /// The command is rejected with this exit code, and the error contains all of these texts.
    fn check_rejected(&self, words: &[&str], code: i32, expected: &[&str]) {
        let output = cell(&self.args(words));
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {printed}");
        for want in expected {
            assert!(printed.contains(want), "{words:?}: {want:?} is not in {printed}");
        }
    }
}

#[test]
fn half_a_name_takes_nothing_away_and_is_told_with_the_whole_one() {
    let named = NamedCell::new();
    let again = |words: &str| format!("\nnext: cell --master {} {words}\n", named.address);
    named.check_rejected(&["stop", "hel"], 2, &["dev/hello begins so", &again("stop dev/hello")]);
    named.check_rejected(&["stop", "hel/2"], 2, &[&again("stop dev/hello/2")]);
    // The targets before it are not stopped either.
    named.check_rejected(&["stop", "hello/2", "hel"], 2, &[&again("stop hello/2 dev/hello")]);
    named.check_rejected(&["cron", "rm", "ti"], 2, &[&again("cron rm dev/tick")]);
    let hello = json(&named.args(&["status", "hello", "-o", "json"]));
    assert_eq!(hello["job"]["tasks"]["running"], 3, "{hello}");
    assert!(stdout_of(&named.args(&["cron", "ls"])).contains("dev/tick"));
    // Read-only commands take a prefix, and a full name needs no owner.
    assert!(stdout_of(&named.args(&["job", "status", "hel"])).starts_with("dev/hello: active"));
    assert!(stdout_of(&named.args(&["cron", "rm", "tick"])).contains("is gone"));
    assert!(stdout_of(&named.args(&["stop", "hello"])).contains("is told to stop"));
    named.running.stop();
}

#[test]
fn a_name_of_a_periodic_job_or_of_nothing_is_told_with_what_to_type() {
    let named = NamedCell::new();
    let is_cron = "dev/tick is a periodic job, which has not run yet";
    for verb in [&["logs"][..], &["wait"], &["explain"], &["job", "status"], &["events"]] {
        let command = |name| [verb, &[name]].concat();
        named.check_rejected(
            &command("tick"),
            1,
            &[is_cron, "\nnext: when it runs: cell status dev/tick"],
        );
        named.check_rejected(&command("nope"), 1, &["\nnext: list the jobs: cell job status\n"]);
    }
    named.check_rejected(&["stop", "tick"], 1, &[is_cron, "no more runs: cell cron rm dev/tick"]);
    named.check_rejected(&["logs", "dev/tick"], 1, &[is_cron]);
    named.check_rejected(&["stop", "dev/tick"], 1, &[is_cron]);
    // An immediate run is a job of its own, with the cron's task.
    let ran = stdout_of(&named.args(&["cron", "run", "tick"]));
    let run = ran.lines().next().and_then(|line| line.rsplit(' ').next()).unwrap();
    assert!(run.starts_with("dev/tick-20"), "{ran}");
    assert!(stdout_of(&named.args(&["status", run])).starts_with(&format!("{run}: active")));
    let events = stdout_of(&named.args(&["events", "hello"]));
    assert!(events.contains("dev/hello submitted") && !events.contains("tick"), "{events}");
    named.running.stop();
}

#[test]
fn output_that_there_is_not_yet_or_never_is_told_with_the_reason() {
    let named = NamedCell::new();
    let huge = serde_json::json!({
        "name": "huge", "priority": "best_effort", "cpu": "50", "ram": "32MiB",
        "command": ["sim", "run"],
    });
    named.run("huge", &huge);
    let expected_note = "dev/huge/0 waits for a place and has written nothing yet";
    named.check_rejected(
        &["logs", "huge"],
        1,
        &[expected_note, "see why it waits: cell explain dev/huge/0"],
    );
    let newest = "what the newest wrote: cell logs dev/hello/0 --attempt 1";
    named.check_rejected(
        &["logs", "hello/0", "--attempt", "9"],
        1,
        &["placed once, and 9 is", newest],
    );
    named.running.stop();
}

#[test]
fn words_of_other_systems_and_help_about_help_are_answered() {
    let output = cell(&["apply", "-f", "web.yaml"]);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    let want = "error: there is no command `apply`; what you mean is `cell run FILE`\n\
                next: cell run --help\n";
    assert_eq!(printed, want);
    let slip = text(&cell(&["stauts", "hello"]).stderr);
    assert!(slip.ends_with("\nnext: cell status hello\n"), "{slip}");
    let help = stdout_of(&["help", "--help"]);
    assert!(help.contains("Usage: cell"), "{help}");
}
