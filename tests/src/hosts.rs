//! Hosts on one machine: each is a network namespace with an address of its own on a common bridge,
//! which the test itself is on as well.
//!
//! Packets are dropped where they arrive. A rule on the sender's side would show as an error of its
//! system call, which no network gives. Addresses are from the range kept for tests of networks
//! (198.18.0.0/15), so nothing on a real network is meant by them.
//!
//! One set of hosts exists at a time: names are fixed, so that what a killed test left behind is
//! found and cleared by the next one.

use crate::binary::{command_output, text};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs::File;
use std::process::Command;

/// Locked by whoever has the hosts. `scripts/leftovers.sh` takes it as well, so it is the same for
/// all, whatever their `TMPDIR`.
const LOCK: &str = "/run/cellwright-hosts.lock";
const BRIDGE: &str = "cellwright0";
/// The most hosts a test may ask for.
pub const MAX_HOSTS: usize = 6;
/// How often the processes of a host are looked for and killed, until none is left.
const MAX_KILL_ROUNDS: usize = 100;

pub struct Hosts {
    pub count: usize,
    /// Locked while the hosts exist.
    _lock: File,
}

/// Number of a host, from 1.
pub type Host = usize;

fn namespace(host: Host) -> String {
    format!("cellwright-{host}")
}

/// Its address.
#[must_use]
pub fn address(host: Host) -> String {
    format!("198.18.77.{host}")
}

fn ip(arguments: &str) -> Result<String, String> {
    command_output(Command::new("ip").args(arguments.split(' ')))
}

impl Hosts {
    /// # Errors
    /// Why there can be no hosts on this machine.
    pub fn set_up(count: usize) -> Result<Hosts, String> {
        assert!((1..=MAX_HOSTS).contains(&count), "{count} hosts; allowed: 1 to {MAX_HOSTS}");
        if !geteuid().is_root() {
            return Err("network namespaces need root".into());
        }
        for tool in ["ip", "iptables"] {
            Command::new(tool).arg("-V").output().map_err(|why| format!("{tool}: {why}"))?;
        }
        let lock = File::create(LOCK).map_err(|why| format!("{LOCK}: {why}"))?;
        lock.lock().map_err(|why| format!("{LOCK}: {why}"))?;
        clear();
        let hosts = Hosts { count, _lock: lock };
        ip(&format!("link add {BRIDGE} type bridge"))?;
        ip(&format!("address add {}/24 dev {BRIDGE}", address(254)))?;
        ip(&format!("link set {BRIDGE} up"))?;
        hosts.all().try_for_each(plug_in)?;
        Ok(hosts)
    }

    pub fn all(&self) -> impl Iterator<Item = Host> + use<> {
        1..=self.count
    }

    /// `program` on a host.
    #[must_use]
    pub fn command(&self, host: Host, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace(host), program]);
        command
    }

    /// The same in nothing but the host's network: unlike [`Self::command`], it sees the machine's
    /// own file systems of the kernel, where control groups are.
    #[must_use]
    pub fn enter(&self, host: Host, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/var/run/netns/{}", namespace(host))).arg(program);
        command
    }

    /// From now on nobody hears `host`, and it hears nobody.
    pub fn cut(&self, host: Host) {
        for other in self.all().filter(|other| *other != host) {
            self.deafen(host, other);
            self.deafen(other, host);
        }
    }

    /// From now on `receiver` gets nothing that `sender` sends.
    pub fn deafen(&self, receiver: Host, sender: Host) {
        let mut command = self.command(receiver, "iptables");
        command.args(["-w", "-A", "INPUT", "-s", &address(sender), "-j", "DROP"]);
        command_output(&mut command).expect("a rule can be added");
    }

    /// Everybody hears everybody.
    pub fn heal(&self) {
        for host in self.all() {
            let mut command = self.command(host, "iptables");
            command_output(command.args(["-w", "-F", "INPUT"])).expect("rules can be removed");
        }
    }
}

fn plug_in(host: Host) -> Result<(), String> {
    let name = namespace(host);
    ip(&format!("netns add {name}"))?;
    ip(&format!("link add {name} type veth peer name eth0 netns {name}"))?;
    ip(&format!("link set {name} master {BRIDGE} up"))?;
    ip(&format!("-n {name} address add {}/24 dev eth0", address(host)))?;
    ip(&format!("-n {name} link set eth0 up"))?;
    ip(&format!("-n {name} link set lo up")).map(drop)
}

/// Removes what may be there, with the processes inside: nobody else's are in these namespaces.
fn clear() {
    for host in 1..=MAX_HOSTS {
        let name = namespace(host);
        // Who dies last may have started another meanwhile.
        for _ in 0..MAX_KILL_ROUNDS {
            let inside = pids_in(&name);
            if inside.is_empty() {
                break;
            }
            for pid in inside {
                // It may be gone by now.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        // Neither is there, as a rule.
        let _ = ip(&format!("netns delete {name}"));
        let _ = ip(&format!("link delete {name}"));
    }
    let _ = ip(&format!("link delete {BRIDGE}"));
}

fn pids_in(namespace: &str) -> Vec<Pid> {
    let inside = Command::new("ip").args(["netns", "pids", namespace]).output();
    let inside = inside.map(|output| text(&output.stdout)).unwrap_or_default();
    inside.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

impl Drop for Hosts {
    fn drop(&mut self) {
        clear();
    }
}
