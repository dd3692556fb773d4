//! Cells with identities and machines that masters dial: task output through a master, readable
//! only with permission.

use super::agent::{dev, first_line, is_running_attempt, kill, make_fifo, submit, wait};
use crate::support::{
    Folder, Running, TIMEOUT, cell, free_address, json, poll_until, stdout_of, text,
};
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::client::{ApiClientConfig, ChangeOptions, Client, ClientError, JobFilter};
use cellwright_api::error::Code;
use cellwright_api::output::{AGENT_ADDRESS_ATTRIBUTE, OUTPUT_PATH, OutputPiece};
use cellwright_cell::name::Name;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Time;
use cellwright_identity::authority::Authority;
use cellwright_identity::contexts::Contexts;
use cellwright_identity::enroll::CERTIFICATE_LIFETIME;
use cellwright_identity::files::IdentityFiles;
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::CertificateResolver;
use cellwright_master::clock::{Clock, SystemClock};
use hyper::Method;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tokio::time::timeout;

/// A cell with identities: a master, users ann and bob, and the agent of n1.
pub struct SecureCell {
    /// Before the folder, so that the processes end first.
    agent: Option<Running>,
    master: Option<Running>,
    pub folder: Folder,
    address: String,
}

impl SecureCell {
    pub fn new() -> SecureCell {
        SecureCell::with(&[])
    }

    /// Creates the cell with lines of the master's configuration replaced.
    pub fn with(changes: &[(&str, &str)]) -> SecureCell {
        let folder = Folder::new();
        let address = free_address();
        let mut walled = SecureCell { folder, address, master: None, agent: None };
        let (config, data) = (walled.folder.path("m1.toml"), walled.folder.path("m1"));
        let at = walled.address.clone();
        let init = ["master", "init", "--cell", "aa", "--name", "m1", "--advertise", &at];
        let more = ["--listen", &at, "--config", &config, "--data-dir", &data];
        stdout_of(&[&walled.args("admin")[..], &init, &more].concat());
        let mut text = fs::read_to_string(&config).unwrap();
        for (original, replacement) in changes {
            assert!(text.contains(original), "{original}");
            text = text.replace(original, replacement);
        }
        fs::write(&config, text).unwrap();
        let master = Running::spawn_args(&["master", "start", "--config", &config]);
        master.address();
        walled.master = Some(master);
        for user in ["ann", "bob"] {
            walled.add(user);
        }
        walled.agent = Some(walled.join("n1"));
        walled
    }

    /// The connection arguments of `user`.
    pub fn args(&self, user: &str) -> [&'static str; 2] {
        let path = self.folder.path(&format!("{user}-contexts.toml"));
        // Tests are short, so the leak is small.
        ["--contexts", Box::leak(path.into_boxed_str())]
    }

    pub fn as_admin(&self, words: &[&str]) -> String {
        stdout_of(&[&self.args("admin")[..], words].concat())
    }

    fn add(&self, user: &str) {
        let context = self.as_admin(&["user", "add", user]);
        let file = self.folder.path(&format!("{user}.toml"));
        fs::write(&file, context).unwrap();
        crate::make_private(&file);
        stdout_of(&[&self.args(user)[..], &["context", "add", &file]].concat());
        self.as_admin(&["quota", "set", user, "batch", "--cpu", "1", "--ram", "1GiB"]);
    }

    pub fn join(&self, machine: &str) -> Running {
        let token = self.folder.path(&format!("{machine}.token"));
        self.as_admin(&["token", "create", "--agent", machine, "--token-file", &token]);
        let file = self.folder.path(&format!("{machine}.toml"));
        let join = ["agent", "join", "--token-file", &token, "--master", &self.address];
        stdout_of(&[&join[..], &["--config", &file]].concat());
        let data = self.folder.path(machine);
        let more = format!("data_dir = {data:?}\nlisten = \"127.0.0.1:0\"\ndriver = \"process\"\n");
        let config = fs::read_to_string(&file).unwrap() + &more;
        fs::write(&file, config).unwrap();
        self.start(machine)
    }

    fn start(&self, machine: &str) -> Running {
        let file = self.folder.path(&format!("{machine}.toml"));
        let agent = Running::spawn_args(&["agent", "start", "--config", &file]);
        agent.wait_for_line("cell agent of");
        agent
    }

    /// Kills the agent of n1 and starts it again.
    pub fn restart_agent(&mut self) {
        self.agent.take().unwrap().kill();
        self.agent = Some(self.start("n1"));
    }

    pub fn client(&self, user: &str) -> Client {
        let contexts = Contexts::load(self.args(user)[1].as_ref()).unwrap();
        let (name, context) = contexts.pick(None).unwrap();
        let mut settings = ApiClientConfig::new(context.masters.clone());
        settings.tls = context.tls(name).unwrap().map(std::sync::Arc::new);
        settings.token.clone_from(&context.token);
        Client::new(settings).unwrap()
    }

    /// Submits a job of one shell script and waits until it runs.
    pub fn run(&self, user: &str, job: &str, script: &str) {
        let spec = serde_json::json!({ "name": job, "priority": 100, "task": {
            "limits": { "cpu": "10m", "ram": 64 << 20 }, "command": ["sh", "-c", script],
            "env": { "SHARED": self.folder.path("") },
        }});
        let file = self.folder.path(&format!("{job}.json"));
        fs::write(&file, spec.to_string()).unwrap();
        stdout_of(&[&self.args(user)[..], &["run", &file]].concat());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = self.client(user);
        let runs = async {
            let mut watch = client.watch_jobs(&JobFilter::default(), None);
            loop {
                let event = watch.next().await.unwrap();
                let Some(view) = event.data.filter(|view| view.name.as_str() == job) else {
                    continue;
                };
                let key = cellwright_cell::name::JobKey { user: view.user, job: view.name };
                let task = client.task(&key, 0).await.unwrap().value.item;
                if task.state == TaskState::Running {
                    return;
                }
            }
        };
        runtime.block_on(async { timeout(TIMEOUT, runs).await }).expect("it runs");
    }

    /// The token in a user's context.
    pub fn token_of(&self, user: &str) -> String {
        let contexts = Contexts::load(self.args(user)[1].as_ref()).unwrap();
        let token = contexts.pick(None).unwrap().1.token.clone().unwrap();
        token.expose().split_once('.').unwrap().0.to_owned()
    }

    pub fn authority(&self) -> Authority {
        IdentityFiles::in_data_dir(self.folder.0.join("m1").as_ref()).load_authority().unwrap()
    }

    /// The address at which the agent accepts connections.
    fn agent_address(&self) -> String {
        let machines = json(&[&self.args("admin")[..], &["machine", "ls", "-o", "json"]].concat());
        machines[0]["spec"]["attributes"][AGENT_ADDRESS_ATTRIBUTE]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// The lines of the audit log, each as one text.
    pub fn audit(&self) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let page = runtime.block_on(self.client("admin").text("/v1/audit?limit=1000")).unwrap();
        let page: serde_json::Value = serde_json::from_str(&page).unwrap();
        let line = |line: &serde_json::Value| {
            let part = |name: &str| line[name].as_str().unwrap().to_owned();
            [part("caller"), part("command"), part("object"), part("verdict")].join(" | ")
        };
        page["items"].as_array().unwrap().iter().map(line).collect()
    }

    /// Makes a change as an administrator.
    pub fn change(&self, method: Method, path: &str, body: &serde_json::Value) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = self.client("admin");
        let body = Some(body).filter(|body| !body.is_null());
        let change = ChangeOptions::default();
        let done = client.change::<_, serde_json::Value>(method, path, body, &change);
        runtime.block_on(done).unwrap();
    }

    pub fn stop(mut self) {
        self.agent.take().unwrap().stop();
        self.master.take().unwrap().stop();
    }
}

#[test]
fn owners_and_holders_of_the_capability_read_output_and_others_do_not() {
    let walled = SecureCell::new();
    walled.run("ann", "web", "echo secret; exec sleep 1000");
    let logs = |user: &str| cell(&[&walled.args(user)[..], &["logs", "ann/web"]].concat());
    // A task counts as running before its program has printed anything.
    let output_of_ann = || Some(text(&logs("ann").stdout)).filter(|output| !output.is_empty());
    assert_eq!(poll_until("ann reads nothing", output_of_ann), "secret\n");
    assert_eq!(text(&logs("admin").stdout), "secret\n");
    let rejected = logs("bob");
    let error = text(&rejected.stderr);
    assert!(error.contains("not-allowed") && !rejected.status.success(), "{error}");
    assert!(rejected.stdout.is_empty());
    let follow = cell(&[&walled.args("bob")[..], &["logs", "ann/web/0", "-f"]].concat());
    assert!(text(&follow.stderr).contains("not-allowed"), "{follow:?}");
    let audit = walled.audit();
    let line = "user:bob | GET | /v1/jobs/ann/web/tasks/0/output | not-allowed";
    assert!(audit.iter().any(|found| found == line), "{audit:#?}");
    let granted = serde_json::json!({ "capabilities": ["read_output"] });
    walled.change(Method::PUT, "/v1/users/bob/capabilities", &granted);
    assert_eq!(text(&logs("bob").stdout), "secret\n");
    walled.stop();
}

/// A machine that was off for longer than its certificate is valid is rejected in the handshake,
/// and its status says so.
#[test]
fn a_machine_whose_certificate_has_expired_is_said_to_be_refused() {
    let quick = [("poll_interval = \"5s\"", "poll_interval = \"1s\"")];
    let mut walled = SecureCell::with(&quick);
    let show_machine = |walled: &SecureCell| {
        text(&cell(&[&walled.args("admin")[..], &["machine", "show", "n1"]].concat()).stdout)
    };
    poll_until("the cell knows it", || Some(()).filter(|()| !show_machine(&walled).is_empty()));
    walled.agent.take().unwrap().kill();
    let file = walled.folder.path("n1.identity");
    let mut identity = Contexts::load(file.as_ref()).unwrap();
    let context = identity.contexts.values_mut().next().unwrap();
    let long_ago = Time(SystemClock.wall_time().0 - 2 * CERTIFICATE_LIFETIME.0);
    let part = Part::Agent(Name::new("n1").unwrap());
    let old =
        walled.authority().issue_credentials(&part, &[], long_ago, CERTIFICATE_LIFETIME).unwrap();
    (context.certificate, context.key) = (Some(old.certificate), Some(old.key));
    identity.save(file.as_ref()).unwrap();
    walled.agent = Some(walled.start("n1"));
    let machine_text = poll_until("it is refused", || {
        Some(show_machine(&walled)).filter(|text| text.contains("refused"))
    });
    let unfolded = machine_text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["the certificate of its agent has expired", "cell agent join --token-file"] {
        assert!(unfolded.contains(words), "{machine_text}");
    }
    walled.stop();
}

/// Dials an agent as `part`, expecting the agent of `machine`, and reads the output of a
/// task.
async fn dial_agent(
    walled: &SecureCell,
    authority: &Authority,
    part: Part,
    machine: &str,
    now: Time,
) -> Result<OutputPiece, ClientError> {
    let credentials = authority.issue_credentials(&part, &[], now, CERTIFICATE_LIFETIME).unwrap();
    let resolver = CertificateResolver::new(&credentials.certificate, &credentials.key).unwrap();
    let cell = authority.cell().clone();
    let dialler =
        AgentDialler::with_certificate(cell, walled.authority().certificate_pem().into(), resolver);
    let mut line = dialler.dial(&Name::new(machine).unwrap(), &walled.agent_address()).await?;
    line.get(&format!("{OUTPUT_PATH}/ann/web/0"), Duration::from_secs(30)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_answers_masters_of_its_cell_and_is_known_by_its_machine() {
    let walled = tokio::task::spawn_blocking(|| {
        let walled = SecureCell::new();
        walled.run("ann", "web", "echo secret; exec sleep 1000");
        walled
    });
    let walled = walled.await.unwrap();
    let name = |text: &str| Name::new(text).unwrap();
    let (authority, now) = (walled.authority(), SystemClock.wall_time());
    let dial_as =
        |part: Part, machine: &'static str| dial_agent(&walled, &authority, part, machine, now);
    // Retried, because a task counts as running before its program has printed anything.
    let spoken = async {
        loop {
            let piece = dial_as(Part::Master(name("m1")), "n1").await.unwrap();
            if !piece.text.is_empty() {
                return piece.text;
            }
        }
    };
    assert_eq!(timeout(TIMEOUT, spoken).await.expect("it says nothing"), "secret\n");
    // It is not the agent of another machine.
    let error = dial_as(Part::Master(name("m1")), "n2").await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    // Other agents get packages and nothing else.
    let error = dial_as(Part::Agent(name("n2")), "n1").await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NotAllowed), "{error}");
    for stranger in [Part::User(name("ann")), Part::Scheduler(name("s1"))] {
        let error = dial_as(stranger, "n1").await.unwrap_err();
        assert_eq!(error.code(), None, "{error}");
    }
    let other = Authority::create(&name("aa"), now).unwrap();
    let forged = dial_agent(&walled, &other, Part::Master(name("m1")), "n1", now).await;
    assert_eq!(forged.unwrap_err().code(), None);
    let mut plain = TcpStream::connect(walled.agent_address()).unwrap();
    plain.write_all(b"GET /v1/output/ann/web/0 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut received = Vec::new();
    // Reset or closed, without an answer.
    let _ = plain.read_to_end(&mut received);
    assert!(
        !text(&received).contains("secret") && !text(&received).contains("HTTP"),
        "{received:?}"
    );
    tokio::task::spawn_blocking(|| walled.stop()).await.unwrap();
}

#[test]
fn output_is_followed_from_one_attempt_to_the_next_to_the_end() {
    let folder = Folder::new();
    make_fifo(&folder.path("never"));
    let (running, address) = dev(&folder);
    let at = ["--master", &address];
    let script = r#"echo $$ >> "$SHARED/pid$CELL_INDEX"; echo "task $CELL_INDEX:$CELL_ATTEMPT"
        read word < "$SHARED/never""#;
    let forever = r#"{ "restart": { "backoff": 1, "backoff_max": 1 } }"#;
    submit(&folder, &address, "web", 2, script, forever);
    wait(&address, "web", is_running_attempt(1));
    let both = Running::spawn_args(&[&at[..], &["logs", "dev/web", "-f"]].concat());
    let one = Running::spawn_args(&[&at[..], &["logs", "dev/web/0", "--follow"]].concat());
    one.wait_for_line("task 0:1");
    for index in ["pid0", "pid1"] {
        kill("-KILL", first_line(&folder, index));
    }
    wait(&address, "web", is_running_attempt(2));
    assert_eq!(one.wait_for_line("task"), "task 0:2");
    // Two lines of each, and where the second attempt of each begins.
    let mut received: Vec<String> = (0..6).map(|_| both.wait_for_line("dev/web/")).collect();
    received.retain(|line| !line.starts_with("--"));
    received.sort();
    let want = ["0 task 0:1", "0 task 0:2", "1 task 1:1", "1 task 1:2"];
    assert_eq!(received, want.map(|rest| format!("dev/web/{rest}")));
    let previous = stdout_of(&[&at[..], &["logs", "dev/web/1", "--previous"]].concat());
    assert_eq!(previous, "task 1:1\n");
    stdout_of(&[&at[..], &["job", "stop", "dev/web"]].concat());
    one.wait_success();
    both.wait_success();
    // The output of a dead task is still available.
    let after = stdout_of(&[&at[..], &["logs", "dev/web", "--tail", "1"]].concat());
    // In order of time, and either may have been first.
    let mut last_lines: Vec<&str> = after.lines().collect();
    last_lines.sort_unstable();
    assert_eq!(last_lines, ["dev/web/0 task 0:2", "dev/web/1 task 1:2"]);
    running.stop();
}

#[test]
fn output_stays_readable_after_a_restart_in_place_and_the_end() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    let at = ["--master", &address];
    submit(&folder, &address, "web", 1, "echo one; exec sleep 1000", "{}");
    wait(&address, "web", is_running_attempt(1));
    let logs = || stdout_of(&[&at[..], &["logs", "dev/web"]].concat());
    let until_said = |word: &str| poll_until(word, || logs().contains(word).then_some(()));
    until_said("one");
    // A replaced command restarts the task in place.
    let file = folder.path("web.json");
    let changed = fs::read_to_string(&file).unwrap().replace("echo one", "echo two");
    fs::write(&file, changed).unwrap();
    stdout_of(&[&at[..], &["run", &file]].concat());
    wait(&address, "web", is_running_attempt(2));
    until_said("two");
    stdout_of(&[&at[..], &["job", "stop", "dev/web"]].concat());
    wait(&address, "web", |task| task.state.is_dead());
    assert_eq!(logs(), "two\n");
    assert_eq!(stdout_of(&[&at[..], &["logs", "dev/web", "--previous"]].concat()), "one\n");
    running.stop();
}

/// A web page, from another origin or under a name that resolves to this address, is rejected.
#[test]
fn no_web_page_drives_an_open_cell() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    submit(&folder, &address, "web", 1, "echo secret; exec sleep 1000", "{}");
    wait(&address, "web", is_running_attempt(1));
    let machines = json(&["--master", &address, "machine", "ls", "-o", "json"]);
    let agent =
        machines[0]["spec"]["attributes"][AGENT_ADDRESS_ATTRIBUTE]["text"].as_str().unwrap();
    let dial_as = |to: &str, line: &str, headers: &str| {
        let mut stream = TcpStream::connect(to).unwrap();
        let head = format!("{line} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        text(&received)
    };
    // Even with the cell's token, which no page has.
    let token = std::fs::read_to_string(folder.path("data/dev-token")).unwrap();
    let bearer = format!("authorization: Bearer {}\r\n", token.trim());
    let host = |to: &str| format!("host: {to}\r\n{bearer}");
    let targets = [
        (agent, "GET /v1/output/dev/web/0", "secret"),
        (&address, "GET /v1/jobs/dev/web/tasks/0/output", "secret"),
    ];
    for (to, line, answer) in targets {
        // A task counts as running before its program has printed anything.
        poll_until(line, || dial_as(to, line, &host(to)).contains(answer).then_some(()));
        for page in [
            format!("{}origin: http://evil.example\r\n", host(to)),
            format!("{}origin: null\r\n", host(to)),
            host("evil.example:80"),
        ] {
            let received = dial_as(to, line, &page);
            assert!(received.starts_with("HTTP/1.1 403"), "{page}: {received}");
        }
    }
    // Pages can open WebSockets; sessions do not use them.
    let line = "POST /v1/jobs/dev/web/tasks/0/exec?command=%5B%22true%22%5D";
    let received = dial_as(&address, line, &format!("{}upgrade: websocket\r\n", host(&address)));
    assert!(received.starts_with("HTTP/1.1 426"), "{received}");
    running.stop();
}
