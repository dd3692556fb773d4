//! What a follower does for whoever addresses it, as every command and page does after a failover:
//! sessions in tasks and their output.

use super::masters::Cell;
use cellwright_api::client::{Client, SessionStream};
use cellwright_api::exec::Frame;
use cellwright_api::output::OutputQuery;
use cellwright_api::types::MasterStatus;
use cellwright_cell::name::{JobKey, Name};
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

const MASTERS: [&str; 3] = ["m1", "m2", "m3"];

fn key(job: &str) -> JobKey {
    let name = |text: &str| Name::new(text).expect("a name");
    JobKey { user: name("admin"), job: name(job) }
}

/// The master that leads, as it says itself.
async fn leader(cell: &Cell, masters: &[&'static str]) -> &'static str {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        for master in masters {
            let status = cell.client_of(master).masters_status().await;
            if status.is_some_and(|status| status.role == "leader") {
                return master;
            }
        }
        assert!(Instant::now() < deadline, "nobody leads");
        sleep(POLL_INTERVAL).await;
    }
}

trait Status {
    async fn masters_status(&self) -> Option<MasterStatus>;
}

impl Status for Client {
    async fn masters_status(&self) -> Option<MasterStatus> {
        let address = self.preferred();
        let bytes = self.bytes_at(&address, "/v1/masters", TIMEOUT).await.ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

async fn enter(client: &Client, job: &str, command: &[&str]) -> SessionStream {
    let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    let session = timeout(TIMEOUT, client.exec(&key(job), 0, &words, None)).await;
    session.expect("an answer in time").expect("a session")
}

/// The next output of the session.
async fn next_text(session: &mut SessionStream) -> String {
    loop {
        let frame = timeout(TIMEOUT, Frame::read(session)).await.expect("a frame in time");
        match frame.expect("a whole frame") {
            Some(Frame::Data(bytes)) if bytes.is_empty() => {}
            Some(Frame::Data(bytes)) => return String::from_utf8_lossy(&bytes).into_owned(),
            other => panic!("{other:?} instead of output"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_serve_sessions_and_output_and_go_on_when_the_leader_dies() {
    let mut cell = Cell::lay().await;
    let file = cell.path("wait.json");
    let task = json!({
        "limits": { "cpu": "100m", "ram": 64 << 20, "disk": 1 << 20 },
        "command": ["sh", "-c", "echo written; exec sleep 1000"],
    });
    let spec = json!({ "name": "wait", "count": 1, "priority": 100, "task": task });
    std::fs::write(&file, spec.to_string()).expect("a job is written");
    cell.says(&["run", file.to_str().expect("a path in UTF-8")]);
    cell.until("it runs", |cell| {
        cell.says(&["status", "admin/wait"]).contains("1 running").then_some(())
    })
    .await;

    let first = leader(&cell, &MASTERS).await;
    let followers: Vec<&'static str> = MASTERS.into_iter().filter(|one| *one != first).collect();
    let mut open = Vec::new();
    for follower in &followers {
        let client = cell.client_of(follower);
        let mut session = enter(&client, "wait", &["cat"]).await;
        Frame::Data("before".into()).write(&mut session).await.expect("it takes input");
        assert_eq!(next_text(&mut session).await, "before");
        let output = client.output(&key("wait"), 0, &OutputQuery::default()).await;
        assert_eq!(output.expect("its output").value.text, "written\n");
        let audit = client.bytes_at(&client.preferred(), "/v1/audit?limit=1000", TIMEOUT).await;
        let audit = String::from_utf8(audit.expect("its audit log").into()).expect("UTF-8");
        assert!(audit.contains("exec [\\\"cat\\\"]"), "not audited by {follower}: {audit}");
        open.push(session);
    }

    cell.kill(first);
    // Those that are open do not notice.
    for session in &mut open {
        Frame::Data("after".into()).write(session).await.expect("it takes input");
        assert_eq!(next_text(session).await, "after");
    }
    // New ones wait for the election, whichever master is addressed.
    for follower in &followers {
        let mut session = enter(&cell.client_of(follower), "wait", &["echo", "again"]).await;
        assert_eq!(next_text(&mut session).await, "again\n");
    }
    let said = cell.says(&["exec", "admin/wait/0", "--", "echo", "from the command line"]);
    assert!(said.contains("from the command line"), "{said}");
    let logs = cell.says(&["logs", "admin/wait/0"]);
    assert!(logs.contains("written"), "{logs}");
}
