//! A cell of several masters, installed and started as an operator would: `cell master init` on the
//! first host, then a token, `cell master join` and `cell master start` on every other one.

use crate::binary::{cell, command_output, join_and_confirm};
use crate::folder::Folder;
use crate::hosts::{Host, Hosts, address};
use crate::process::Process;
use crate::{POLL_INTERVAL, TIMEOUT};
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_api::types::MasterStatus;
use cellwright_identity::contexts::Contexts;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const PORT: u16 = 7070;

pub struct Replicas {
    /// By host; absent while it is dead. Before the hosts, so that they end first.
    processes: Vec<Option<Process>>,
    pub hosts: Hosts,
    pub folder: Folder,
    /// Lines of every master's configuration, as they come and as they are wanted.
    changes: Vec<(String, String)>,
}

/// What is laid out. Masters are on the first hosts.
pub struct ReplicasPlan<'a> {
    pub masters: usize,
    /// Hosts with nothing on them yet, after those of the masters.
    pub spare: usize,
    /// Lines of every master's configuration, as they come and as they are wanted.
    pub changes: &'a [(&'a str, &'a str)],
}

/// Tests of the masters alone: a scheduler beside each would only take time from them.
pub const NO_SCHEDULER: (&str, &str) =
    ("supervise_scheduler = true", "supervise_scheduler = false");

/// Which file says by how much a process's clock is ahead; read by debug builds.
pub const CLOCK: &str = "CELL_CLOCK_OFFSET_FILE";

/// Who leads, as the leader itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    pub host: Host,
    pub term: u64,
}

/// `host:port` of the master on a host.
#[must_use]
pub fn master(host: Host) -> String {
    format!("{}:{PORT}", address(host))
}

impl Replicas {
    /// A cell of `count` voting masters; nothing where there can be no hosts, which is printed.
    pub async fn launch(count: usize) -> Option<Replicas> {
        Replicas::launch_with(&ReplicasPlan { masters: count, spare: 0, changes: &[NO_SCHEDULER] })
            .await
    }

    /// The same with room for more than masters.
    pub async fn launch_with(plan: &ReplicasPlan<'_>) -> Option<Replicas> {
        let hosts = match Hosts::set_up(plan.masters + plan.spare) {
            Ok(hosts) => hosts,
            Err(why) => {
                crate::skip(&why);
                return None;
            }
        };
        let processes = (0..plan.masters).map(|_| None).collect();
        let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
        let changes = plan.changes.iter().map(owned).collect();
        let mut replicas = Replicas { processes, hosts, folder: Folder::new(), changes };
        replicas.init();
        for host in replicas.masters() {
            if host > 1 {
                replicas.join(host, 1).await;
            }
            replicas.start(host);
            replicas.wait_for_voters(host).await;
        }
        Some(replicas)
    }

    /// The hosts that have a master.
    pub fn masters(&self) -> impl Iterator<Item = Host> + use<> {
        1..=self.processes.len()
    }

    /// `cell` with the administrator's contexts, run to its end.
    ///
    /// # Errors
    /// What it said when it did not end well.
    pub fn cell(&self, arguments: &[&str]) -> Result<String, String> {
        command_output(self.plain().args(arguments))
    }

    fn plain(&self) -> Command {
        let mut command = Command::new(cell());
        command.arg("--contexts").arg(self.folder.path("contexts.toml"));
        command
    }

    /// # Errors
    /// What the command said when the replica was not installed.
    fn run_on_host(
        &self,
        command: &mut Command,
        host: Host,
        run: impl FnOnce(&mut Command) -> Result<(), String>,
    ) -> Result<(), String> {
        let config = self.config(host);
        command.args(["--advertise", &master(host), "--listen", &format!("0.0.0.0:{PORT}")]);
        command.arg("--data-dir").arg(self.data_dir(host));
        command.arg("--config").arg(&config);
        run(command)?;
        for (default, value) in &self.changes {
            set(&config, default, value);
        }
        Ok(())
    }

    /// Where a replica keeps its log.
    #[must_use]
    pub fn data_dir(&self, host: Host) -> PathBuf {
        self.folder.path(&format!("m{host}"))
    }

    #[must_use]
    pub fn config(&self, host: Host) -> PathBuf {
        self.folder.path(&format!("m{host}.toml"))
    }

    fn init(&self) {
        let mut command = self.plain();
        command.args(["master", "init", "--cell", "aa", "--name", "m1"]);
        let made = self.run_on_host(&mut command, 1, |command| command_output(command).map(drop));
        made.expect("a cell is made");
    }

    /// Takes a dead replica out of the cell for good, and its data and configuration out of the way
    /// of another.
    pub async fn remove(&self, host: Host) {
        let (name, client) = (format!("m{host}"), self.client());
        let deadline = Instant::now() + TIMEOUT;
        // Asked again while the cell elects, as an operator would: it may have been done and not
        // said.
        while let Err(why) = self.cell(&["master", "remove", &name]) {
            let status = client.get::<MasterStatus>("/v1/masters").await;
            let is_out = |status: MasterStatus| status.members.iter().all(|m| m.name != name);
            if status.is_ok_and(|status| is_out(status.value)) {
                break;
            }
            assert!(Instant::now() < deadline, "{name} is not taken out: {why}");
            sleep(POLL_INTERVAL).await;
        }
        std::fs::remove_dir_all(self.data_dir(host)).expect("its data is removed");
        std::fs::remove_file(self.config(host)).expect("its configuration is removed");
    }

    /// By way of the master on another host. Tried again with another token while the cell elects,
    /// as an operator would.
    pub async fn join(&self, host: Host, through: Host) {
        let deadline = Instant::now() + TIMEOUT;
        while let Err(why) = self.try_join(host, through) {
            assert!(Instant::now() < deadline, "host {host} cannot join: {why}");
            sleep(POLL_INTERVAL).await;
        }
    }

    fn try_join(&self, host: Host, through: Host) -> Result<(), String> {
        let name = format!("m{host}");
        let token = self.folder.path(&format!("{name}.token"));
        // Left by a try that was cut short.
        let _ = std::fs::remove_file(&token);
        let file = token.to_str().expect("a path in UTF-8");
        self.cell(&["token", "create", "--replica", &name, "--token-file", file])?;
        let mut command = self.plain();
        command.args(["master", "join", "--token-file", file, "--master", &master(through)]);
        self.run_on_host(&mut command, host, |command| {
            join_and_confirm(command, |fingerprint| {
                self.cell(&["master", "confirm", &name, fingerprint])
            })
        })
    }

    pub fn start(&mut self, host: Host) {
        let binary = cell().to_str().expect("a path in UTF-8");
        let mut command = self.hosts.command(host, binary);
        command.args(["master", "start", "--config"]).arg(self.config(host));
        command.env(CLOCK, self.clock_file(&format!("m{host}")));
        command.env("CELL_PLANT_PANIC", self.failpoint_dir(host));
        let log = self.folder.path(&format!("m{host}.log"));
        self.processes[host - 1] = Some(Process::start(command, &log));
    }

    /// Where a process reads by how many milliseconds its clock is ahead; right if there is none.
    #[must_use]
    pub fn clock_file(&self, process: &str) -> PathBuf {
        self.folder.path(&format!("clock-{process}"))
    }

    /// Sets the clock of a process, while it runs or before.
    pub fn set_clock(&self, process: &str, ahead_ms: i64) {
        // In one step: a reader finds the old or the new.
        let (path, draft) = (self.clock_file(process), self.folder.path("clock-draft"));
        std::fs::write(&draft, ahead_ms.to_string()).expect("written");
        std::fs::rename(draft, path).expect("it gets its name");
    }

    /// Where panics are planted for the master on a host: a file named after a point.
    #[must_use]
    pub fn failpoint_dir(&self, host: Host) -> PathBuf {
        self.folder.path(&format!("plant-m{host}"))
    }

    /// The master on a host, which was started.
    pub fn process(&mut self, host: Host) -> &mut Process {
        self.processes[host - 1].as_mut().expect("it was started")
    }

    /// Ends it without asking.
    pub fn kill(&mut self, host: Host) {
        if let Some(process) = self.processes[host - 1].take() {
            process.kill();
        }
    }

    pub fn signal(&self, host: Host, signal: Signal) {
        self.processes[host - 1].as_ref().expect("it runs").signal(signal);
    }

    /// What every master said, for a test that failed.
    #[must_use]
    pub fn output(&self) -> String {
        let processes = self.processes.iter().flatten();
        processes.map(Process::output).collect::<Vec<_>>().join("\n----\n")
    }

    /// How the administrator reaches the masters, the given ones first.
    #[must_use]
    pub fn settings(&self, masters: &[Host]) -> ApiClientConfig {
        let mut settings = settings(&self.folder.path("contexts.toml"));
        settings.masters = masters.iter().copied().map(master).collect();
        settings
    }

    #[must_use]
    pub fn client(&self) -> Client {
        let all: Vec<Host> = self.masters().collect();
        Client::new(self.settings(&all)).expect("a client")
    }

    pub async fn status(&self, client: &Client, host: Host) -> Option<MasterStatus> {
        let limit = Duration::from_secs(2);
        let bytes = client.bytes_at(&master(host), "/v1/masters", limit).await.ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Waits until `wait_for_voters` replicas vote, as all of them see it, and one of them leads.
    pub async fn wait_for_voters(&self, voters: usize) {
        self.wait_for(&format!("{voters} voters"), |all| {
            let votes = |status: &MasterStatus| {
                status.members.iter().filter(|member| member.voter).count() == voters
            };
            all.len() == voters && all.iter().all(|(_, status)| votes(status))
        })
        .await;
    }

    /// Waits until every replica that runs follows the same leader, who is sure of itself.
    pub async fn leader(&self) -> Leader {
        let running = self.processes.iter().flatten().count();
        let all = self.wait_for("one leader", |all| all.len() == running && one_leader(all));
        let all = all.await;
        let (host, status) =
            all.into_iter().find(|(_, status)| status.role == "leader").expect("one leads");
        Leader { host, term: status.term }
    }

    /// Waits until every replica runs, follows one leader, and has applied `index`.
    pub async fn wait_until_healed(&self, index: u64) {
        let whole = |all: &[(Host, MasterStatus)]| {
            let caught_up = all.iter().all(|(_, status)| status.applied >= index);
            all.len() == self.processes.len() && one_leader(all) && caught_up
        };
        self.wait_for("a whole cell", whole).await;
    }

    async fn wait_for(
        &self,
        what: &str,
        reached: impl Fn(&[(Host, MasterStatus)]) -> bool,
    ) -> Vec<(Host, MasterStatus)> {
        let client = self.client();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut all = Vec::new();
            for host in self.masters().filter(|host| self.processes[host - 1].is_some()) {
                all.extend(self.status(&client, host).await.map(|status| (host, status)));
            }
            if reached(&all) {
                return all;
            }
            if Instant::now() >= deadline {
                panic!("waited for {what} in vain; last: {all:#?}\n{}", self.output());
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// All agree on a term and on who leads in it.
fn one_leader(all: &[(Host, MasterStatus)]) -> bool {
    let Some((_, first)) = all.first() else { return false };
    let leads = all.iter().filter(|(_, status)| status.role == "leader").count();
    first.leader.is_some()
        && leads == 1
        && all.iter().all(|(_, status)| (status.term, status.leader) == (first.term, first.leader))
}

fn set(config: &Path, default: &str, value: &str) {
    let text = std::fs::read_to_string(config).expect("a configuration");
    assert!(text.contains(default), "the configuration has changed:\n{text}");
    std::fs::write(config, text.replace(default, value)).expect("written");
}

/// How the current context of a file reaches its cell. Impatient with a single master, so that one
/// that hangs costs a client little.
#[must_use]
pub fn settings(contexts: &Path) -> ApiClientConfig {
    let contexts = Contexts::load(contexts).expect("contexts");
    let (name, context) = contexts.pick(None).expect("a current context");
    ApiClientConfig {
        tls: context.tls(name).expect("credentials").map(Arc::new),
        token: context.token.clone(),
        connect_timeout: Duration::from_millis(500),
        attempt_timeout: Duration::from_millis(500),
        backoff: Duration::from_millis(20),
        backoff_max: Duration::from_millis(200),
        ..ApiClientConfig::new(context.masters.clone())
    }
}
