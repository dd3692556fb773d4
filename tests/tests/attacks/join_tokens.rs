//! What a thief gets with a join token: out of command lines nothing, since none stands there; and
//! with a replica's token, however it was stolen, neither a certificate nor the authority's key.

use crate::secure_master::SecureMaster;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_api::error::Code;
use cellwright_identity::enroll::{
    AUTHORITY_PATH, AuthorityAnswer, AuthorityRequest, JOIN_PATH, JoinReply, JoinRequest, JoinToken,
};
use cellwright_identity::tls::{self, Trust};
use cellwright_tests::POLL_INTERVAL;
use cellwright_tests::binary::{cell, join_and_confirm, text};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Reads the command line of every process, over and over, for what is a secret.
struct CommandLineWatcher {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

#[expect(clippy::disallowed_methods, reason = "there is no event when a process starts")]
impl CommandLineWatcher {
    fn begin() -> CommandLineWatcher {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stop_flag, count) = (stop.clone(), rounds.clone());
        let thread = std::thread::spawn(move || {
            let mut found = Vec::new();
            while !stop_flag.load(Ordering::Relaxed) {
                let begun = Instant::now();
                for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
                    let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                    let line = String::from_utf8_lossy(&line).replace('\0', " ");
                    // Other tests may have tokens of their own.
                    if line.contains("CELL-JOIN.") && !found.contains(&line) {
                        found.push(line);
                    }
                }
                count.fetch_add(1, Ordering::Relaxed);
                // Half of the time is for those who are spied on, lest a small machine does nothing
                // but this; a program that starts and joins a cell takes many rounds.
                std::thread::sleep(begun.elapsed());
            }
            found
        });
        CommandLineWatcher { stop, rounds, thread }
    }

    /// Until every process that runs now was looked at.
    fn round(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        while self.rounds.load(Ordering::Relaxed) < before + 2 {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the spy ends")
    }
}

#[tokio::test]
async fn no_command_line_shows_a_token_while_parts_join() {
    let master = SecureMaster::start().await;
    let spy = CommandLineWatcher::begin();
    // What the spy is to find, so that finding nothing else means something.
    let mut control = Command::new("sh");
    control.args(["-c", "read line", "CELL-JOIN.of-the-test"]).stdin(Stdio::piped());
    let mut control = control.spawn().expect("a shell");
    spy.round();
    drop(control.stdin.take());
    control.wait().expect("it ends");

    master.join("n1");
    let file = master.token("--replica", "m2");
    let mut join = Command::new(cell());
    join.args(["master", "join", "--token-file"]).arg(&file);
    join.args(["--master", &master.address, "--advertise", "127.0.0.1:1"]);
    join.arg("--data-dir").arg(master.folder.path("m2"));
    join.arg("--config").arg(master.folder.path("m2.toml"));
    let confirmed =
        join_and_confirm(&mut join, |print| master.cell(&["master", "confirm", "m2", print]));
    confirmed.expect("a replica joins");
    assert!(master.folder.path("m2/identity/authority.key").exists());

    // By standard input, into a process that goes on.
    let token = std::fs::read(master.token("--scheduler", "s1")).expect("a token");
    let mut scheduler = Command::new(cell());
    scheduler.args(["scheduler", "--join", "--token-file", "-", "--master", &master.address]);
    scheduler.arg("--identity").arg(master.folder.path("s1.toml"));
    let mut scheduler = scheduler.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it");
    let mut stdin = scheduler.stdin.take().expect("its input");
    stdin.write_all(&token).expect("it reads");
    master.until("s1 has joined", || master.folder.path("s1.toml").exists()).await;
    spy.round();
    scheduler.kill().expect("it runs");
    scheduler.wait().expect("it ends");

    let found = spy.end();
    assert!(found.iter().any(|line| line.contains("of-the-test")), "the spy sees what there is");
    for name in ["n1", "m2", "s1"] {
        let file = master.folder.path(&format!("{name}.token"));
        let token = JoinToken::parse(&std::fs::read_to_string(file).expect("a token"));
        let token = token.expect("a token");
        let seen = found.iter().find(|line| line.contains(token.secret.expose()));
        assert!(seen.is_none(), "the token of {name} was read: {seen:?}");
    }
}

/// A client that knows the cell by the token alone.
fn stranger(master: &SecureMaster, token: &JoinToken) -> Client {
    let trust = Trust::Fingerprint(token.fingerprint.clone());
    let tls = Some(Arc::new(tls::client_config(&trust, None).expect("a client")));
    Client::new(ApiClientConfig { tls, ..ApiClientConfig::new(vec![master.address.clone()]) })
        .expect("a client")
}

#[tokio::test]
async fn a_stolen_token_of_a_replica_gets_no_key() {
    let master = SecureMaster::start().await;
    let file = master.token("--replica", "m2");
    let written = std::fs::read_to_string(&file).expect("a token");
    let token = JoinToken::parse(&written).expect("a token");
    let thief = stranger(&master, &token);
    let signing_request = token.generate_key(&[]).expect("a key").signing_request;
    let request = JoinRequest { token: token.text(), signing_request };
    // The thief is first, and asks on and on.
    for _ in 0..3 {
        let reply: JoinReply = thief.call_internal(JOIN_PATH, &request).await.expect("an answer");
        assert!(matches!(reply, JoinReply::Waiting(_)), "nothing is given");
    }
    let requested = AuthorityRequest;
    let key = thief.call_internal::<_, AuthorityAnswer>(AUTHORITY_PATH, &requested).await;
    assert_eq!(key.err().and_then(|error| error.code()), Some(Code::Unauthenticated));
    // Nor does a part of the cell get it with its own certificate.
    let agent = master.join("n1");
    let key = agent.call_internal::<_, AuthorityAnswer>(AUTHORITY_PATH, &requested).await;
    assert_eq!(key.err().and_then(|error| error.code()), Some(Code::NotAllowed));

    // The honest newcomer hears of it, and what it shows is not what waits.
    let mut join = Command::new(cell());
    join.args(["master", "join", "--token-file"]).arg(&file);
    join.args(["--master", &master.address, "--advertise", "127.0.0.1:1"]);
    join.arg("--data-dir").arg(master.folder.path("m2"));
    join.arg("--config").arg(master.folder.path("m2.toml"));
    let rejection =
        join_and_confirm(&mut join, |_| Ok(String::new())).expect_err("somebody was quicker");
    assert!(rejection.contains("used before"), "{rejection}");
    let listed = master.cell(&["master", "ls"]).expect("who waits");
    assert!(listed.contains("waits to be confirmed") && listed.contains("127.0.0.1"), "{listed}");
    let other = "0000-0000-0000-0000-0000-0000-0000-0000";
    let wrong = master.cell(&["master", "confirm", "m2", other]).expect_err("another key");
    assert!(wrong.contains("fingerprint"), "{wrong}");
    master.cell(&["token", "revoke", &token.id]).expect("the thief is sent away");
    let gone = thief.call_internal::<_, JoinReply>(JOIN_PATH, &request).await;
    assert_eq!(gone.err().and_then(|error| error.code()), Some(Code::NotAllowed));
    let audit = master.cell(&["audit"]).expect("the audit log");
    assert!(audit.contains("use join token") && !audit.contains("take authority key"), "{audit}");
}

/// At a terminal over whose shoulder somebody looks.
#[tokio::test]
async fn a_token_that_is_typed_is_not_seen() {
    let master = SecureMaster::start().await;
    let token = std::fs::read_to_string(master.token("--agent", "n1")).expect("a token");
    let config = master.folder.path("n1.toml");
    let join = format!("{} agent join --master {}", cell().display(), master.address);
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &format!("{join} --config {}", config.display()), "/dev/null"]);
    let mut terminal =
        terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a terminal");
    let mut screen = terminal.stdout.take().expect("what it shows");
    let mut keys = terminal.stdin.take().expect("its keys");
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(b"not shown): ") {
        screen.read_exact(&mut byte).expect("it asks");
        seen.push(byte[0]);
    }
    keys.write_all(token.trim().as_bytes()).and_then(|()| keys.write_all(b"\n")).expect("typed");
    screen.read_to_end(&mut seen).expect("it ends");
    assert!(terminal.wait().expect("it ends").success() && config.exists(), "{:?}", text(&seen));
    let token = JoinToken::parse(&token).expect("a token");
    let seen = text(&seen);
    assert!(!seen.contains(token.secret.expose()), "{seen}");
}

#[tokio::test]
async fn join_tokens_live_for_a_quarter_of_an_hour_at_most() {
    let master = SecureMaster::start().await;
    let long = ["token", "create", "--agent", "n1", "--valid-for", "16m"];
    let rejection = master.cell(&long).expect_err("too long");
    assert!(rejection.contains("valid_for") && rejection.contains("15 min"), "{rejection}");
}
