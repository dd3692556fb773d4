//! Who may come in and what they may see, with the real binary and real certificates: a join token
//! is good once, in time and for its name; an agent sees its own machine's work and nobody else's;
//! what a user may not do is refused and taken down.

use cellwright_agent::identity::Identity;
use cellwright_api::client::{ApiClientConfig, Client, ClientError};
use cellwright_api::error::Code;
use cellwright_api::types::{AddUser, AuditView, Changed, JobView, NewToken, Page};
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_identity::enroll::JoinToken;
use cellwright_messages::{AgentOrders, AgentReport, Epoch};
use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_secure_master;
use cellwright_tests::process::Process;
use cellwright_tests::replicas::settings;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use hyper::Method;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tokio::time::sleep;

/// One master with identities, on loopback.
struct Master {
    process: Process,
    address: String,
    folder: Folder,
}

impl Master {
    async fn start() -> Master {
        let folder = Folder::new();
        let (process, address) = start_secure_master(&folder).await;
        let master = Master { process, address, folder };
        let ready = master.client("contexts.toml").text("/readyz").await;
        assert!(ready.is_ok(), "{ready:?}\n{}", master.process.output());
        master
    }

    /// Whoever the contexts file speaks of.
    fn client(&self, contexts: &str) -> Client {
        let settings = settings(&self.folder.path(contexts));
        let settings = ApiClientConfig { attempt_timeout: TIMEOUT, deadline: TIMEOUT, ..settings };
        Client::new(settings).expect("a client")
    }

    fn cell(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(cell());
        command.arg("--contexts").arg(self.folder.path("contexts.toml"));
        command_output(command.args(arguments))
    }

    fn token(&self, machine: &str, more: &[&str]) -> NewToken {
        let words = ["token", "create", "--agent", machine, "-o", "json"];
        let made = self.cell(&[&words[..], more].concat()).expect("a token is made");
        serde_json::from_str(&made).expect("a token in JSON")
    }

    /// `cell agent join`; the file it writes is named after the machine.
    fn join(&self, token: &str, machine: &str) -> Result<PathBuf, String> {
        let config = self.folder.path(&format!("{machine}.toml"));
        let file = config.with_extension("token");
        // Of an earlier try.
        let _ = std::fs::remove_file(&file);
        cellwright_identity::private_files::write_private(&file, token.as_bytes()).expect("a file");
        let mut command = Command::new(cell());
        command.args(["agent", "join", "--master", &self.address, "--config"]).arg(&config);
        command_output(command.arg("--token-file").arg(&file))?;
        Ok(config)
    }

    /// A user without capabilities, and a client that speaks for them.
    fn plain_user(&self, user: &str) -> Client {
        let context = self.cell(&["user", "add", user]).expect("a user is added");
        let file = self.folder.path(user);
        cellwright_identity::private_files::write_private(&file, context.as_bytes())
            .expect("a file");
        self.client(user)
    }
}

#[tokio::test]
async fn a_join_token_is_good_once_in_time_and_for_its_name() {
    let master = Master::start().await;
    let token = master.token("machine-1", &[]).token;

    let mut stolen = JoinToken::parse(&token).expect("a token");
    stolen.name = Name::new("machine-2").expect("a name");
    let rejection = master.join(stolen.text().expose(), "machine-2").expect_err("another's token");
    assert!(rejection.contains("machine-2"), "{rejection}");

    let mut guessed = JoinToken::parse(&token).expect("a token");
    guessed.secret = cellwright_identity::secret::Secret::new("0".repeat(64));
    let rejection =
        master.join(guessed.text().expose(), "machine-1").expect_err("a guessed secret");
    assert!(rejection.contains("token"), "{rejection}");

    master.join(&token, "machine-1").expect("the token's own machine joins, once");
    std::fs::remove_file(master.folder.path("machine-1.toml")).expect("it was written");
    let rejection = master.join(&token, "machine-1").expect_err("a used token");
    assert!(rejection.contains("used"), "{rejection}");

    let short = master.token("machine-3", &["--valid-for", "2s"]);
    // Its whole life, and a little.
    sleep(Duration::from_secs(2) + POLL_INTERVAL).await;
    let rejection = master.join(&short.token, "machine-3").expect_err("a token out of time");
    assert!(rejection.contains("expired"), "{rejection}");
    assert!(!master.folder.path("machine-3.toml").exists());
}

async fn poll(agent: &Client, address: &str, machine: &str) -> Result<AgentOrders, ClientError> {
    let report = AgentReport {
        number: 1,
        machine: Name::new(machine).expect("a name"),
        incarnation: 1,
        taken: Epoch::default(),
        hang: false,
        orders_digest: 0,
        spec: None,
        tasks: Vec::new(),
        packages: None,
        usage: Vec::new(),
        resource_pressure: Vec::new(),
        wall: cellwright_identity::clock::wall(),
        book: Default::default(),
        numbers: Vec::new(),
    };
    agent.poll(address, &report, Span(1000)).await
}

#[tokio::test]
async fn an_agent_gets_the_work_of_its_own_machine_and_no_other() {
    let master = Master::start().await;
    for machine in ["machine-1", "machine-2"] {
        master.join(&master.token(machine, &[]).token, machine).expect("it joins");
    }
    let agent = master.client("machine-1.identity");
    poll(&agent, &master.address, "machine-1").await.expect("its own work");
    let rejection = poll(&agent, &master.address, "machine-2").await.expect_err("another's work");
    assert_eq!(rejection.code(), Some(Code::NotAllowed), "{rejection}");

    for path in ["/v1/jobs", "/v1/machines/machine-2", "/v1/events", "/v1/watch/jobs"] {
        let rejection = agent.bytes(path).await.expect_err(path);
        assert_eq!(rejection.code(), Some(Code::NotAllowed), "{path}: {rejection}");
    }
    let name = Name::new("eve").expect("a name");
    let made = agent.create::<_, Changed>(Method::POST, "/v1/users", Some(&AddUser { name })).await;
    let rejection = made.expect_err("an agent adds no users");
    assert_eq!(rejection.code(), Some(Code::NotAllowed), "{rejection}");
}

async fn add_machine(admin: &Client, name: &str) {
    let spec = serde_json::json!({
        "name": name,
        "capacity": { "cpu": 1000, "ram": 1 << 30, "disk": 1 << 30, "disk_rate": 0 },
        "rack": null,
        "power": null,
    });
    let spec = serde_json::from_value(spec).expect("a machine");
    admin.add_machine(&spec).await.expect("the machine is known");
}

#[tokio::test]
async fn a_removed_machine_hears_of_it_and_comes_back_with_the_configuration_it_had() {
    let master = Master::start().await;
    let joined = |machine: &str| master.join(&master.token(machine, &[]).token, machine);
    let config = joined("machine-1").expect("it joins");
    let settled = std::fs::read_to_string(&config).expect("a configuration") + "# by hand\n";
    std::fs::write(&config, &settled).expect("it is changed");
    add_machine(&master.client("contexts.toml"), "machine-1").await;
    let ask = async || {
        let agent = master.client("machine-1.identity");
        poll(&agent, &master.address, "machine-1").await.expect("an answer")
    };
    assert!(!ask().await.is_revoked);
    master.cell(&["machine", "rm", "machine-1"]).expect("it is removed");
    assert!(ask().await.is_revoked);

    joined("machine-1").expect("a new token is all it takes");
    assert_eq!(std::fs::read_to_string(&config).expect("a configuration"), settled);
    add_machine(&master.client("contexts.toml"), "machine-1").await;
    assert!(!ask().await.is_revoked);

    std::fs::rename(&config, master.folder.path("machine-2.toml")).expect("it is moved");
    let rejection = joined("machine-2").expect_err("another machine's configuration");
    assert!(rejection.contains("is for machine-1, not machine-2"), "{rejection}");
}

#[tokio::test]
async fn an_agent_runs_under_its_certificate_and_gets_the_next_one() {
    let master = Master::start().await;
    let config = master.join(&master.token("machine-1", &[]).token, "machine-1").expect("joins");
    let file = master.folder.path("machine-1.identity");
    let before = std::fs::read_to_string(&file).expect("an identity");
    let mut identity = Identity::load(&file).expect("it is whole");
    let client = identity.client().expect("a client");
    let admin = master.client("contexts.toml");
    let rejection = identity.renew(&client).await.expect_err("a machine nobody has heard of");
    assert!(rejection.to_string().contains("not part of the cell"), "{rejection}");
    add_machine(&admin, "machine-1").await;
    identity.renew(&client).await.expect("the next certificate");
    assert_ne!(std::fs::read_to_string(&file).expect("an identity"), before);
    poll(&client, &master.address, "machine-1").await.expect("the next one is as good");
    let other = Name::new("machine-2").expect("a name");
    let rejection = identity.check_name(&other).expect_err("another's name").to_string();
    assert!(rejection.contains("machine-1") && rejection.contains("machine-2"), "{rejection}");

    let data = master.folder.path("agent");
    std::fs::create_dir(&data).expect("a folder");
    let mut text = std::fs::read_to_string(&config).expect("a configuration");
    text.push_str(&format!("data_dir = {data:?}\n"));
    std::fs::write(&config, text).expect("it is changed");
    let mut start = Command::new(cell());
    start.args(["agent", "start", "--config"]).arg(&config);
    let agent = Process::start(start, &master.folder.path("agent.log"));
    let name = Name::new("machine-1").expect("a name");
    let up = async {
        loop {
            let machine = admin.machine(&name).await;
            if machine.is_ok_and(|machine| machine.value.item.status == MachineStatus::Up) {
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let answered = tokio::time::timeout(TIMEOUT, up).await;
    assert!(answered.is_ok(), "never up:\n{}", agent.output());
}

#[tokio::test]
async fn what_a_user_may_not_do_is_refused_and_taken_down() {
    let master = Master::start().await;
    let bob = master.plain_user("bob");
    let seen = bob.get::<Page<JobView>>("/v1/jobs").await.expect("everybody sees jobs");
    assert_eq!(seen.value.items, []);
    let body = AddUser { name: Name::new("eve").expect("a name") };
    let made = bob.create::<_, Changed>(Method::POST, "/v1/users", Some(&body)).await;
    let rejection = made.expect_err("bob manages no users");
    assert_eq!(rejection.code(), Some(Code::NotAllowed), "{rejection}");
    let rejection = bob.bytes("/v1/audit").await.expect_err("nor reads the audit log");
    assert_eq!(rejection.code(), Some(Code::NotAllowed), "{rejection}");

    let audit = master.client("contexts.toml").get::<Page<AuditView>>("/v1/audit").await;
    let audit = audit.expect("the administrator reads it").value.items;
    let line = audit.iter().find(|line| line.caller == "user:bob" && line.object.contains("eve"));
    let line = line.unwrap_or_else(|| panic!("no line for bob: {audit:#?}"));
    assert_eq!(line.verdict, Code::NotAllowed.as_str(), "{line:?}");
    let users = master.cell(&["user", "ls"]).expect("users");
    assert!(!users.contains("eve"), "{users}");
}
