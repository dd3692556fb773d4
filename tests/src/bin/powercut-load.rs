//! Load and check for cuts of power under one master; see scripts/powercut.sh.
//!
//!   powercut-load write   starts a master on $DATA, writes 1, 2, 3 … and notes each in $ACK when
//!                         it is acknowledged; others write beside it, so that entries carry
//!                         several
//!   powercut-load check   starts a master on $DATA and prints the number it has
//!
//! Only for a trial disk: the master is an open one on loopback.

use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_tests::TIMEOUT;
use cellwright_tests::binary::cell;
use cellwright_tests::load::{add_register, read, write};
use cellwright_tests::process::Process;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tokio::task::JoinSet;

/// The register whose value counts.
const WITNESS_KEY: usize = 0;
/// Clients that write beside it.
const BACKGROUND_CLIENTS: usize = 7;

#[tokio::main]
async fn main() -> ExitCode {
    let verb = std::env::args().nth(1).unwrap_or_default();
    let Some(data) = std::env::var_os("DATA").map(PathBuf::from) else {
        eprintln!("powercut-load: DATA names the folder on the trial disk");
        return ExitCode::from(2);
    };
    let done = match (verb.as_str(), std::env::var_os("ACK").map(PathBuf::from)) {
        ("write", Some(ack)) => write_until_cut(&data, &ack).await,
        ("check", _) => check(&data).await,
        _ => Err("usage: powercut-load write|check, with DATA and for write ACK set".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("powercut-load: {why}");
            ExitCode::FAILURE
        }
    }
}

/// An open master on the data, and a client of it once it is ready. What the master says goes where
/// the data is not: the trial disk is to carry the log alone.
async fn master(data: &Path) -> Result<(Process, Client), String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr());
    let address = free.map_err(|why| format!("no free port: {why}"))?.to_string();
    let mut command = Command::new(cell());
    command.args(["master", "start", "--dev", "--listen", &address, "--data-dir"]);
    command.arg(data.join("master"));
    let log = std::env::temp_dir().join(format!("powercut-{}.log", std::process::id()));
    let process = Process::start(command, &log);
    let settings = ApiClientConfig { deadline: TIMEOUT, ..ApiClientConfig::new(vec![address]) };
    let client = Client::new(settings).map_err(|why| why.to_string())?;
    let ready = client.text("/readyz").await;
    let output = process.output();
    // Open, it is of no more use by its name.
    let _ = std::fs::remove_file(&log);
    ready.map_err(|why| format!("{why}\n{output}"))?;
    Ok((process, client))
}

async fn write_until_cut(data: &Path, ack: &Path) -> Result<(), String> {
    let (_process, client) = master(data).await?;
    for key in 0..=BACKGROUND_CLIENTS {
        add_register(&client, key).await.map_err(|why| why.to_string())?;
    }
    let mut writers = JoinSet::new();
    for key in 0..=BACKGROUND_CLIENTS {
        let (client, ack) = (client.clone(), ack.to_owned());
        writers.spawn(async move {
            for value in 1.. {
                write(&client, key, value).await.map_err(|why| why.to_string())?;
                if key == WITNESS_KEY {
                    note(&ack, value)?;
                }
            }
            Ok(())
        });
    }
    // Writers go on until the power is cut for good; the first to end has failed.
    match writers.join_next().await {
        Some(Ok(done)) => done,
        other => Err(format!("a writer ended: {other:?}")),
    }
}

/// In one step, so that whoever looks finds a whole number.
fn note(ack: &Path, value: u64) -> Result<(), String> {
    let fresh = ack.with_extension("new");
    let noted = std::fs::write(&fresh, value.to_string());
    noted.and_then(|()| std::fs::rename(&fresh, ack)).map_err(|why| format!("ACK: {why}"))
}

async fn check(data: &Path) -> Result<(), String> {
    let (_process, client) = master(data).await?;
    let found = read(&client, WITNESS_KEY).await.map_err(|why| why.to_string())?;
    println!("{}", found.value);
    Ok(())
}
