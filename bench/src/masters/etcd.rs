//! Debian's etcd as a peer: three members on the same disk and cores, with its usual settings.
//!
//! It is measured twice. Through its HTTP gateway with the very clients the master is measured
//! with, which compares like with like but makes etcd translate JSON to its own protocol; and by
//! its own tool (`etcdctl check perf`) in its own protocol, which is the best it does.

use super::cell::{Folder, free_addresses, until};
use super::load::{Connection, Request, get, post};
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

pub struct Etcd {
    processes: Vec<Child>,
    clients: Vec<String>,
    folder: Folder,
}

/// What it is called and how old it is; absent when it is not installed.
pub fn version() -> Option<String> {
    let out = Command::new("etcd").arg("--version").output().ok()?;
    String::from_utf8_lossy(&out.stdout).lines().next().map(str::to_owned)
}

impl Etcd {
    pub async fn start() -> io::Result<Etcd> {
        let folder = Folder::new("etcd")?;
        let (clients, peers) = (free_addresses(3)?, free_addresses(3)?);
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(at, peer)| format!("m{at}=http://{peer}")).collect();
        let mut etcd = Etcd { processes: Vec::new(), clients, folder };
        for (at, peer) in peers.iter().enumerate() {
            let (client, peer) = (format!("http://{}", etcd.clients[at]), format!("http://{peer}"));
            let name = format!("m{at}");
            let process = Command::new("etcd")
                .args(["--name", &name, "--initial-cluster-state", "new"])
                .arg("--data-dir")
                .arg(etcd.folder.path().join(&name))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &cluster.join(",")])
                .args(["--logger", "zap", "--log-level", "error"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            etcd.processes.push(process);
        }
        etcd.ready().await?;
        Ok(etcd)
    }

    async fn ready(&self) -> io::Result<()> {
        let mut question = Vec::new();
        get(&mut question, "/health");
        for address in &self.clients {
            until(&format!("etcd at {address} healthy"), async || {
                let mut connection = Connection::open(address).await.ok()?;
                let answer = connection.exchange(&question).await.ok()?;
                (answer.status == 200).then_some(())
            })
            .await?;
        }
        Ok(())
    }

    /// Address of the member that leads: a request to it takes no detour.
    pub fn leader(&self) -> io::Result<String> {
        for address in &self.clients {
            let out = self.ctl(address, &["endpoint", "status", "--write-out", "json"]).output()?;
            let response: serde_json::Value =
                serde_json::from_slice(&out.stdout).map_err(io::Error::other)?;
            let status = &response[0]["Status"];
            if status["leader"].is_u64() && status["leader"] == status["header"]["member_id"] {
                return Ok(address.clone());
            }
        }
        Err(io::Error::other("etcd has no leader"))
    }

    fn ctl(&self, address: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", address]).args(arguments);
        command
    }

    /// Puts a second by etcd's own tool: 1,000 clients for a minute, at most 15,000 a second.
    pub fn check_perf(&self) -> io::Result<f64> {
        let mut command = self.ctl(&self.leader()?, &["check", "perf", "--load", "xl"]);
        let out = command.output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let rate = text.split(" writes/s").next().and_then(|before| {
            before.rsplit([' ', ':']).next().and_then(|number| number.trim().parse().ok())
        });
        let last = || text.rsplit(['\r', '\n']).find(|line| !line.is_empty()).unwrap_or_default();
        let errors = || String::from_utf8_lossy(&out.stderr).trim().to_owned();
        rate.ok_or_else(|| {
            io::Error::other(format!("etcdctl said no rate: {} {}", last(), errors()))
        })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may be gone already, which is all that is wanted.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// One put of a new key, its value as long as a job's request.
pub fn put(value: &str) -> Request {
    let value = base64(value.as_bytes());
    Arc::new(move |_, round, out| {
        let key = base64(format!("bench/job-{round}").as_bytes());
        post(out, "/v3/kv/put", "", &format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}"));
    })
}

/// As the gateway wants bytes.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let all = three.iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
        let all = all << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = DIGITS[(all >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_everybody_writes_it() {
        let known =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (plain, coded) in known {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
