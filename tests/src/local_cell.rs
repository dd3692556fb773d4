//! Cells of one process on loopback: an open one (`cell dev`), and a master with identities.

use crate::binary::{cell, command_output};
use crate::folder::Folder;
use crate::process::Process;
use crate::{POLL_INTERVAL, TIMEOUT};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;
use tokio::time::sleep;

/// An open cell of this machine, its tasks plain processes; its process and its address.
pub async fn start_open_cell(folder: &Folder, options: &[&str]) -> (Process, String) {
    let mut dev = Command::new(cell());
    dev.args(["dev", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path("data"));
    dev.args(options).current_dir(&folder.0);
    let process = Process::start(dev, &folder.path("cell.log"));
    let begin = Instant::now();
    loop {
        let output = process.output();
        if let Some((_, rest)) = output.split_once("serves http://") {
            let address = rest.split_whitespace().next().unwrap_or_default().to_owned();
            return (process, address);
        }
        assert!(begin.elapsed() < TIMEOUT, "the cell does not start:\n{output}");
        sleep(POLL_INTERVAL).await;
    }
}

/// A master with identities; the context of its first user is in `contexts.toml` of the folder.
pub async fn start_secure_master(folder: &Folder) -> (Process, String) {
    start_secure_master_with(folder, &[]).await
}

/// The same, with lines of its configuration changed: what stands there, and what instead.
pub async fn start_secure_master_with(
    folder: &Folder,
    changes: &[(&str, &str)],
) -> (Process, String) {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let address = taken.local_addr().expect("it has an address").to_string();
    drop(taken);
    let config = folder.path("master.toml");
    let mut init = Command::new(cell());
    init.arg("--contexts").arg(folder.path("contexts.toml"));
    init.args(["master", "init", "--cell", "aa", "--name", "m1", "--advertise", &address]);
    init.args(["--listen", &address, "--data-dir"]).arg(folder.path("guarded"));
    command_output(init.arg("--config").arg(&config)).expect("a cell is made");
    let mut text = std::fs::read_to_string(&config).expect("it was written");
    for (from, to) in changes {
        assert!(text.contains(from), "{from} is in {text}");
        text = text.replace(from, to);
    }
    std::fs::write(&config, text).expect("it is changed");
    let mut start = Command::new(cell());
    start.args(["master", "start", "--config"]).arg(&config);
    let mut master = Process::start(start, &folder.path("master.log"));
    let begin = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(master.is_alive() && begin.elapsed() < TIMEOUT, "{}", master.output());
        sleep(POLL_INTERVAL).await;
    }
    (master, address)
}
