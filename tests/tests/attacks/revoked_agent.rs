//! The certificate of a machine that was removed is good for the rest of its day. Whoever has it
//! dials the agents that are left.

use crate::secure_master::SecureMaster;
use cellwright_api::client::ClientError;
use cellwright_api::client::internal_calls::PACKAGE_PATH;
use cellwright_api::error::Code;
use cellwright_cell::name::Name;
use cellwright_tests::binary::cell;
use cellwright_tests::process::Process;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

/// Starts the agent of a machine that joined, with an address of its own.
fn start(master: &SecureMaster, machine: &str) -> (Process, String) {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let address = taken.local_addr().expect("an address").to_string();
    drop(taken);
    let config = master.folder.path(&format!("{machine}.toml"));
    let mut text = std::fs::read_to_string(&config).expect("a configuration");
    let data = master.folder.path(machine);
    text.push_str(&format!("data_dir = {data:?}\nlisten = \"{address}\"\ndriver = \"process\"\n"));
    std::fs::write(&config, text).expect("it is changed");
    let mut agent = Command::new(cell());
    agent.args(["agent", "start", "--config"]).arg(&config);
    (Process::start(agent, &master.folder.path(&format!("{machine}.log"))), address)
}

/// Asks the agent of n1 for a package that nobody has, with the certificate of n2.
async fn fetch(master: &SecureMaster, address: &str) -> ClientError {
    let client = master.client_of("n2");
    let dialler = master.identity("n2").access(&client).expect("credentials").dialler();
    let n1 = Name::new("n1").expect("a name");
    let path = format!("{PACKAGE_PATH}/{}", "ab".repeat(32));
    match dialler.dial(&n1, address).await {
        Err(error) => error,
        Ok(mut line) => {
            let got = line.get_bytes(&path, Duration::from_secs(30), 1 << 20).await;
            got.expect_err("nobody has it")
        }
    }
}

async fn until(master: &SecureMaster, address: &str, wanted: impl Fn(&ClientError) -> bool) {
    let begun = Instant::now();
    loop {
        let error = fetch(master, address).await;
        if wanted(&error) {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "still: {error}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test]
async fn a_machine_that_was_removed_gets_nothing_from_the_others() {
    let master = SecureMaster::start().await;
    master.join("n1");
    master.join("n2");
    let (_one, address) = start(&master, "n1");
    let (two, _) = start(&master, "n2");
    let up = || {
        let listed = master.cell(&["machine", "ls", "-o", "json"]).unwrap_or_default();
        listed.contains("\"n1\"") && listed.contains("\"n2\"")
    };
    master.until("both machines are known", up).await;
    let is_refused = |error: &ClientError| error.code() == Some(Code::NotAllowed);
    until(&master, &address, |error| error.api().is_some() && !is_refused(error)).await;
    two.kill();
    master.cell(&["machine", "rm", "n2", "--force"]).expect("n2 is removed");
    until(&master, &address, is_refused).await;
    let again = fetch(&master, &address).await;
    assert!(is_refused(&again), "and it stays so: {again}");
}
