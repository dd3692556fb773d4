//! Masters that are gone for good. Everybody here was told of the first master alone: the machines,
//! the scheduler, the person at the command line and the masters that joined. By the commands of
//! the guide, on loopback.

use cellwright_api::client::Client;
use cellwright_api::error::Code;
use cellwright_api::level;
use cellwright_api::types::{MachineView, Trouble};
use cellwright_api::wire::{NEWEST, REHEARSAL, WireRange, WireVersion};
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::state::LEVEL;
use cellwright_cell::time::Time;
use cellwright_tests::binary::{cell, command_output, join_and_confirm};
use cellwright_tests::folder::Folder;
use cellwright_tests::process::Process;
use cellwright_tests::replicas::settings;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use tokio::time::{Instant, sleep};

pub(super) const MACHINES: [&str; 2] = ["n1", "n2"];
/// Patient with each other, for they share a computer; and quick to miss a machine.
const CHANGES: [(&str, &str); 3] = [
    ("heartbeat = \"75ms\"", "heartbeat = \"500ms\""),
    ("poll_interval = \"5s\"", "poll_interval = \"1s\""),
    ("supervise_scheduler = true", "supervise_scheduler = false"),
];

pub(super) struct Cell {
    /// By name. Before the folder, so that they end first.
    processes: BTreeMap<String, Process>,
    addresses: BTreeMap<String, String>,
    /// Wire versions to come that processes rehearse, by name.
    rehearsed: BTreeMap<String, WireVersion>,
    folder: Folder,
}

impl Cell {
    fn empty() -> Cell {
        let (processes, addresses, rehearsed) = Default::default();
        Cell { processes, addresses, rehearsed, folder: Folder::new() }
    }

    /// What a process speaks from its next start on.
    pub(super) fn rehearse(&mut self, name: &str, version: WireVersion) {
        self.rehearsed.insert(name.to_owned(), version);
    }

    /// Three masters, two machines and a scheduler, all by way of `m1`.
    pub(super) async fn lay() -> Cell {
        let mut cell = Cell::empty();
        cell.install("m1", &["init", "--cell", "aa", "--name", "m1"]).expect("a cell is made");
        cell.start_master("m1");
        for name in ["m2", "m3"] {
            cell.add_master(name, "m1").await;
        }
        for machine in MACHINES {
            cell.join_machine(machine);
            cell.start_machine(machine);
        }
        let token = cell.token("--scheduler", "s1");
        let mut scheduler = cell.plain();
        let join = ["scheduler", "--join", "--token-file", &token];
        scheduler.args(join).args(["--master", &cell.addresses["m1"]]);
        scheduler.arg("--identity").arg(cell.path("s1.toml"));
        cell.start("s1", scheduler);
        let quota = ["--cpu", "2", "--ram", "2GiB", "--disk", "1GiB"];
        cell.says(&[&["quota", "set", "admin", "batch"][..], &quota].concat());
        cell.machines_are_up().await;
        cell
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// A client that knows of this master alone.
    pub(super) fn client_of(&self, master: &str) -> Client {
        let mut settings = settings(&self.path("contexts.toml"));
        settings.masters = vec![self.addresses[master].clone()];
        settings.deadline = TIMEOUT;
        Client::new(settings).expect("a client")
    }

    pub(super) fn plain(&self) -> Command {
        let mut command = Command::new(cell());
        command.arg("--contexts").arg(self.path("contexts.toml"));
        command
    }

    /// `cell` with the administrator's context, which names the first master alone.
    pub(super) fn says(&self, arguments: &[&str]) -> String {
        command_output(self.plain().args(arguments))
            .unwrap_or_else(|why| panic!("{why}\n{}", self.output()))
    }

    /// A file with a new token.
    fn token(&self, kind: &str, name: &str) -> String {
        let file = self.path(&format!("{name}.token"));
        // Left by a try that was cut short, or by an earlier replica of the name.
        let _ = std::fs::remove_file(&file);
        let file = file.to_str().expect("a path in UTF-8").to_owned();
        self.says(&["token", "create", kind, name, "--token-file", &file]);
        file
    }

    fn start(&mut self, name: &str, mut command: Command) {
        if let Some(version) = self.rehearsed.get(name) {
            command.env(REHEARSAL, version.to_string());
            // The next release also knows the next level, and the format that begins with it.
            if *version > NEWEST {
                command.env(level::REHEARSAL, (LEVEL + 1).to_string());
            }
        }
        let log = self.path(&format!("{name}.log"));
        self.processes.insert(name.to_owned(), Process::start(command, &log));
    }

    /// `cell master init` or `cell master join`.
    fn install(&mut self, name: &str, words: &[&str]) -> Result<(), String> {
        let address = free_address();
        let (config, data) = (self.path(&format!("{name}.toml")), self.path(name));
        let mut command = self.plain();
        command.arg("master").args(words).args(["--advertise", &address, "--listen", &address]);
        command.arg("--data-dir").arg(data).arg("--config").arg(&config);
        if words.contains(&"join") {
            let confirm = |fingerprint: &str| {
                command_output(self.plain().args(["master", "confirm", name, fingerprint]))
            };
            join_and_confirm(&mut command, confirm)?;
        } else {
            command_output(&mut command)?;
        }
        let mut text = std::fs::read_to_string(&config).expect("a configuration");
        for (default, wanted) in CHANGES {
            assert!(text.contains(default), "the configuration has changed:\n{text}");
            text = text.replace(default, wanted);
        }
        std::fs::write(&config, text).expect("it is written");
        self.addresses.insert(name.to_owned(), address);
        Ok(())
    }

    pub(super) fn start_master(&mut self, name: &str) {
        let mut command = self.plain();
        command.args(["master", "start", "--config"]).arg(self.path(&format!("{name}.toml")));
        self.start(name, command);
    }

    /// One more replica, by way of another. Tried again while the cell elects, as a person would.
    async fn add_master(&mut self, name: &str, through: &str) {
        let through = self.addresses[through].clone();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let token = self.token("--replica", name);
            match self.install(name, &["join", "--token-file", &token, "--master", &through]) {
                Ok(()) => break,
                Err(why) => assert!(Instant::now() < deadline, "{why}\n{}", self.output()),
            }
            sleep(POLL_INTERVAL).await;
        }
        self.start_master(name);
        self.until(&format!("{name} votes"), |cell| cell.votes(name).then_some(())).await;
    }

    /// Whether a replica is a voter and has caught up, as `cell master status` says.
    pub(super) fn votes(&self, name: &str) -> bool {
        let text = command_output(self.plain().args(["master", "status", "-o", "json"]))
            .unwrap_or_default();
        let status: Value = serde_json::from_str(&text).unwrap_or_default();
        let found = status["members"].as_array().into_iter().flatten().find(|m| m["name"] == name);
        found.is_some_and(|member| member["voter"] == true && member["lag"] == 0)
    }

    fn join_machine(&self, machine: &str) {
        let token = self.token("--agent", machine);
        let config = self.path(&format!("{machine}.toml"));
        let mut join = self.plain();
        join.args(["agent", "join", "--token-file", &token]);
        join.args(["--master", &self.addresses["m1"], "--config"]);
        command_output(join.arg(&config)).expect("a machine joins");
        let mut text = std::fs::read_to_string(&config).expect("a configuration");
        text.push_str(&format!(
            "driver = \"process\"\ndata_dir = {:?}\nlisten = \"{}\"\n\
             capacity = {{ cpu = 1000, ram = 1073741824, disk = 1073741824, disk_rate = 0 }}\n",
            self.path(machine),
            free_address(),
        ));
        std::fs::write(&config, text).expect("it is changed");
    }

    pub(super) fn start_machine(&mut self, machine: &str) {
        let mut command = self.plain();
        command.args(["agent", "start", "--config"]).arg(self.path(&format!("{machine}.toml")));
        self.start(machine, command);
    }

    pub(super) fn start_scheduler(&mut self) {
        let mut scheduler = self.plain();
        scheduler.args(["scheduler", "--identity"]).arg(self.path("s1.toml"));
        self.start("s1", scheduler);
    }

    pub(super) fn kill(&mut self, name: &str) {
        self.processes.remove(name).expect("it runs").kill();
    }

    /// `cell machine show`, as a program reads it.
    fn machine(&self, machine: &str) -> Option<MachineView> {
        let text =
            command_output(self.plain().args(["machine", "show", machine, "-o", "json"])).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(super) async fn machines_are_up(&self) {
        self.until("all machines are up", |cell| {
            let up =
                |machine: &&str| cell.machine(machine)?.status.eq(&MachineStatus::Up).then_some(());
            MACHINES.iter().map(up).collect::<Option<Vec<()>>>().map(drop)
        })
        .await;
    }

    /// A task on each machine, placed and run to its end.
    pub(super) async fn works(&self, job: &str) {
        let file = self.path(&format!("{job}.json"));
        let task = json!({
            "limits": { "cpu": "100m", "ram": 8 << 20, "disk": 1 << 20 }, "command": ["true"],
        });
        let spread = [json!({ "domain": "machine", "limit": 1 })];
        let count = MACHINES.len();
        let spec = json!({
            "name": job, "count": count, "priority": 100, "task": task, "spread": spread,
        });
        std::fs::write(&file, spec.to_string()).expect("a job is written");
        self.says(&["run", file.to_str().expect("a path in UTF-8")]);
        let name = format!("admin/{job}");
        self.until(&format!("{name} has run"), |cell| {
            let output = command_output(cell.plain().args(["status", &name])).ok()?;
            output.contains(&format!("{count} finished")).then_some(())
        })
        .await;
    }

    /// The metrics page of a master; nothing where it does not answer.
    pub(super) async fn metrics(&self, name: &str) -> Option<String> {
        let client = Client::new(settings(&self.path("contexts.toml"))).expect("a client");
        let page = client.bytes_at(&self.addresses[name], "/metrics", TIMEOUT).await.ok()?;
        String::from_utf8(page.into()).ok()
    }

    pub(super) async fn until<T>(&self, what: &str, look: impl Fn(&Cell) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain: {what}\n{}", self.output());
            sleep(POLL_INTERVAL).await;
        }
    }

    /// What everybody said, for a test that failed.
    pub(super) fn output(&self) -> String {
        let one =
            |(name, process): (&String, &Process)| format!("---- {name}\n{}", process.output());
        self.processes.iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

fn free_address() -> String {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    taken.local_addr().expect("it has an address").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_master_is_needed_for_good_not_even_by_those_who_knew_no_other() {
    let mut cell = Cell::lay().await;
    cell.works("first").await;

    // The one that everybody knows is lost, and nobody waits for it to come back.
    cell.kill("m1");
    std::fs::remove_dir_all(cell.path("m1")).expect("its disk is lost");
    cell.machines_are_up().await;
    cell.works("second").await;

    // What was learned outlives whoever learned it.
    for machine in MACHINES {
        cell.kill(machine);
        cell.start_machine(machine);
    }
    cell.kill("s1");
    cell.start_scheduler();
    cell.works("third").await;
    let kept = cell.path("n1.masters.toml");
    let mode = std::fs::metadata(&kept).expect("masters are kept").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // Every original master is replaced, as the guide does it.
    for (old, new, through) in [("m1", "m4", "m2"), ("m2", "m5", "m3"), ("m3", "m6", "m4")] {
        cell.says(&["master", "remove", old]);
        if cell.processes.contains_key(old) {
            cell.kill(old);
        }
        cell.add_master(new, through).await;
    }
    cell.machines_are_up().await;
    cell.works("fourth").await;
    for machine in MACHINES {
        cell.kill(machine);
        // Whoever lost its data has not lost the masters that came after those it was told of.
        std::fs::remove_dir_all(cell.path(machine)).expect("its data is lost");
        cell.start_machine(machine);
    }
    cell.kill("s1");
    cell.start_scheduler();
    cell.works("fifth").await;
    cell.machines_are_up().await;
    is_told_why_it_is_not_heard(&mut cell, "n2").await;
}

/// A machine whose agent is gone, and then one whose agent is two releases ahead.
async fn is_told_why_it_is_not_heard(cell: &mut Cell, machine: &str) {
    cell.kill(machine);
    let trouble = |cell: &Cell, what| {
        let view = cell.machine(machine)?;
        view.trouble.filter(|trouble| trouble.kind == what)
    };
    cell.until("it is down", |cell| {
        (cell.machine(machine)?.status == MachineStatus::Down).then_some(())
    })
    .await;
    let silent = trouble(cell, Trouble::Silent).expect("it is said to be silent");
    assert!(silent.since > Time::ZERO && !silent.next.is_empty(), "{silent:?}");
    let version = WireVersion(NEWEST.0 + 2);
    cell.rehearse(machine, version);
    cell.start_machine(machine);
    let rejection = cell.until("it is refused", |cell| trouble(cell, Trouble::Refused)).await;
    let said = format!("speaks wire {}", WireRange::of_release(version));
    assert!(rejection.reason.contains(&said), "{rejection:?}");
    let output = cell.says(&["machine", "show", machine]);
    assert!(output.contains("refused") && output.contains(&said), "{output}");
    let listed = cell.says(&["machine", "ls"]);
    assert!(listed.contains("down, refused"), "{listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_joins_or_was_removed_is_not_ready_and_refuses_no_token() {
    let mut cell = Cell::empty();
    cell.install("m1", &["init", "--cell", "aa", "--name", "m1"]).expect("a cell is made");
    cell.start_master("m1");
    cell.until("m1 leads", |cell| cell.votes("m1").then_some(())).await;
    let (token, m1) = (cell.token("--replica", "m2"), cell.addresses["m1"].clone());
    let join = ["join", "--token-file", &token, "--master", &m1];
    cell.install("m2", &join).expect("it is installed");
    // Nobody takes it in: whom it asks is not there.
    let asks = cell.path("m2").join("masters-to-join");
    let endpoints = std::fs::read_to_string(&asks).expect("where it asks");
    let elsewhere = endpoints.replace(&m1, &free_address());
    std::fs::write(&asks, elsewhere).expect("it is written");
    cell.start_master("m2");
    let m2 = cell.addresses["m2"].clone();
    let folder = cell.folder.0.clone();
    let code = async |contexts: &str, master: &str| {
        let client = Client::new(settings(&folder.join(contexts))).expect("a client");
        client.bytes_at(master, "/v1/jobs", TIMEOUT).await.map_err(|error| error.code())
    };
    let deadline = Instant::now() + TIMEOUT;
    let answer = loop {
        match code("contexts.toml", &m2).await {
            // It does not listen yet.
            Err(None) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
            answer => break answer.map(drop),
        }
    };
    assert_eq!(answer, Err(Some(Code::NotReady)), "{}", cell.output());

    cell.kill("m2");
    std::fs::write(&asks, endpoints).expect("it is written");
    cell.start_master("m2");
    cell.until("m2 votes", |cell| cell.votes("m2").then_some(())).await;
    cell.says(&["master", "remove", "m2"]);
    let context = cell.says(&["user", "add", "ann"]);
    let ann = cell.path("ann.toml");
    cellwright_identity::private_files::write_private(&ann, context.as_bytes()).expect("a file");
    // Not even before it has noticed that its leader says no more.
    for _ in 0..20 {
        let answer = code("ann.toml", &m2).await.map(drop);
        assert_eq!(answer, Err(Some(Code::NotReady)), "{}", cell.output());
        sleep(POLL_INTERVAL).await;
    }
    assert!(code("ann.toml", &m1).await.is_ok(), "{}", cell.output());
    // Whoever knows refuses a token that is wrong.
    let forged = context.replace("token = \"", "token = \"0");
    let wrong = cell.path("wrong.toml");
    cellwright_identity::private_files::write_private(&wrong, forged.as_bytes()).expect("a file");
    assert_eq!(code("wrong.toml", &m1).await.map(drop), Err(Some(Code::Unauthenticated)));
}
