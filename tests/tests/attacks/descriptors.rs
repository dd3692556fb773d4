//! What whoever started the agent had open is no business of tasks.

use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::process::Process;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use serde_json::json;
use std::fs;
use std::process::Command;
use std::time::Instant;
use tokio::time::sleep;

#[tokio::test]
async fn no_descriptor_reaches_a_task_or_a_session() {
    let folder = Folder::new();
    fs::write(folder.path("secret"), "rosebud\n").expect("a file");
    let mut dev = Command::new("sh");
    dev.args(["-c", r#"exec 9< "$1"; shift; exec "$@""#, "sh"]).arg(folder.path("secret"));
    dev.arg(cell()).args(["dev", "--listen", "127.0.0.1:0", "--driver", "process", "--data-dir"]);
    dev.arg(folder.path("data"));
    let process = Process::start(dev, &folder.path("cell.log"));
    let begun = Instant::now();
    let until = async |what: &str, is_so: &dyn Fn() -> Option<String>| loop {
        if let Some(found) = is_so() {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "{what}:\n{}", process.output());
        sleep(POLL_INTERVAL).await;
    };
    let address = until("it serves", &|| {
        let output = process.output();
        let rest = output.split_once("serves http://")?.1;
        rest.split_whitespace().next().map(str::to_owned)
    })
    .await;
    let script = "cat <&9; for n in 3 4 5 6 7 8 9; do test -e /proc/self/fd/$n && echo open; done; \
                  echo over; exec sleep 1000";
    let job = json!({ "name": "reads", "priority": 100, "task": { "notice": 0,
        "limits": { "cpu": "100m", "ram": 64 << 20 }, "command": ["sh", "-c", script] } });
    let file = folder.path("reads.json");
    fs::write(&file, job.to_string()).expect("a file");
    let on = |words: &[&str]| {
        command_output(Command::new(cell()).args(["--master", &address]).args(words))
    };
    on(&["run", file.to_str().expect("text")]).expect("it is taken");
    let output = until("it says all", &|| {
        on(&["logs", "dev/reads/0", "--stdout"]).ok().filter(|text| text.ends_with("over\n"))
    })
    .await;
    assert_eq!(output, "over\n");
    let session = on(&["exec", "dev/reads/0", "--", "sh", "-c", "cat <&9 2>&1; echo over"]);
    assert!(!session.expect("a session").contains("rosebud"));
    process.kill();
}
