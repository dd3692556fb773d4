//! Machines that are dialled: output through a master, by those who may read it and by nobody else.

use super::agent::{dev, first_line, kill, make_fifo, runs, submit, wait};
use crate::support::{Folder, PATIENCE, Running, cell, free_address, json, said, text, until};
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::client::{Change, Client, ClientError, JobFilter, Settings};
use cellwright_api::context::Contexts;
use cellwright_api::error::Code;
use cellwright_api::output::{ADDRESS_ATTRIBUTE, OUTPUT_PATH, OutputPiece};
use cellwright_cell::name::Name;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Time;
use cellwright_identity::authority::Authority;
use cellwright_identity::enroll::CERTIFICATE_LIFE;
use cellwright_identity::files::IdentityFiles;
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::Shown;
use cellwright_master::clock::{Clock, SystemClock};
use hyper::Method;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tokio::time::timeout;

/// A cell with identities: a master, users ann and bob, and the agent of n1.
pub struct Walled {
    /// Before the folder, so that they end first.
    agent: Option<Running>,
    master: Option<Running>,
    pub folder: Folder,
    address: String,
}

impl Walled {
    pub fn new() -> Walled {
        Walled::with(&[])
    }

    /// With lines of the master's configuration replaced by others.
    pub fn with(changes: &[(&str, &str)]) -> Walled {
        let folder = Folder::new();
        let address = free_address();
        let mut walled = Walled { folder, address, master: None, agent: None };
        let (config, data) = (walled.folder.path("m1.toml"), walled.folder.path("m1"));
        let at = walled.address.clone();
        let init = ["master", "init", "--cell", "aa", "--name", "m1", "--advertise", &at];
        let more = ["--listen", &at, "--config", &config, "--data-dir", &data];
        said(&[&walled.args("admin")[..], &init, &more].concat());
        let mut text = fs::read_to_string(&config).unwrap();
        for (usual, wanted) in changes {
            assert!(text.contains(usual), "{usual}");
            text = text.replace(usual, wanted);
        }
        fs::write(&config, text).unwrap();
        let master = Running::start(&["master", "start", "--config", &config]);
        master.address();
        walled.master = Some(master);
        for user in ["ann", "bob"] {
            walled.add(user);
        }
        walled.agent = Some(walled.join("n1"));
        walled
    }

    /// How `who` reaches the cell.
    pub fn args(&self, who: &str) -> [&'static str; 2] {
        let path = self.folder.path(&format!("{who}-contexts.toml"));
        // Tests are short, and so is what they leave.
        ["--contexts", Box::leak(path.into_boxed_str())]
    }

    pub fn as_admin(&self, words: &[&str]) -> String {
        said(&[&self.args("admin")[..], words].concat())
    }

    fn add(&self, user: &str) {
        let context = self.as_admin(&["user", "add", user]);
        let file = self.folder.path(&format!("{user}.toml"));
        fs::write(&file, context).unwrap();
        crate::private(&file);
        said(&[&self.args(user)[..], &["context", "add", &file]].concat());
        self.as_admin(&["quota", "set", user, "batch", "--cpu", "1", "--ram", "1GiB"]);
    }

    pub fn join(&self, machine: &str) -> Running {
        let token = self.folder.path(&format!("{machine}.token"));
        self.as_admin(&["token", "create", "--agent", machine, "--token-file", &token]);
        let file = self.folder.path(&format!("{machine}.toml"));
        let join = ["agent", "join", "--token-file", &token, "--master", &self.address];
        said(&[&join[..], &["--config", &file]].concat());
        let data = self.folder.path(machine);
        let more = format!("data_dir = {data:?}\nlisten = \"127.0.0.1:0\"\ndriver = \"process\"\n");
        let config = fs::read_to_string(&file).unwrap() + &more;
        fs::write(&file, config).unwrap();
        self.start(machine)
    }

    fn start(&self, machine: &str) -> Running {
        let file = self.folder.path(&format!("{machine}.toml"));
        let agent = Running::start(&["agent", "start", "--config", &file]);
        agent.hear("cell agent of");
        agent
    }

    /// Kills the agent of n1 and starts it again.
    pub fn restart_agent(&mut self) {
        self.agent.take().unwrap().kill();
        self.agent = Some(self.start("n1"));
    }

    pub fn client(&self, who: &str) -> Client {
        let contexts = Contexts::load(self.args(who)[1].as_ref()).unwrap();
        let (name, context) = contexts.pick(None).unwrap();
        let mut settings = Settings::new(context.masters.clone());
        settings.tls = context.tls(name).unwrap().map(std::sync::Arc::new);
        settings.token.clone_from(&context.token);
        Client::new(settings).unwrap()
    }

    /// Submits a job of one shell script and waits until it runs.
    pub fn run(&self, who: &str, job: &str, script: &str) {
        let spec = serde_json::json!({ "name": job, "priority": 100, "task": {
            "limits": { "cpu": 10, "ram": 64 << 20 }, "command": ["sh", "-c", script],
            "env": { "SHARED": self.folder.path("") },
        }});
        let file = self.folder.path(&format!("{job}.json"));
        fs::write(&file, spec.to_string()).unwrap();
        said(&[&self.args(who)[..], &["run", &file]].concat());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = self.client(who);
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
        runtime.block_on(async { timeout(PATIENCE, runs).await }).expect("it runs");
    }

    /// The token in a user's context.
    pub fn token_of(&self, who: &str) -> String {
        let contexts = Contexts::load(self.args(who)[1].as_ref()).unwrap();
        let token = contexts.pick(None).unwrap().1.token.clone().unwrap();
        token.expose().split_once('.').unwrap().0.to_owned()
    }

    pub fn authority(&self) -> Authority {
        IdentityFiles::in_data(self.folder.0.join("m1").as_ref()).authority().unwrap()
    }

    /// Where the agent says it is dialled.
    fn agent_address(&self) -> String {
        let machines = json(&[&self.args("admin")[..], &["machine", "ls", "-o", "json"]].concat());
        machines[0]["spec"]["attributes"][ADDRESS_ATTRIBUTE]["text"].as_str().unwrap().to_owned()
    }

    /// Lines of the audit log, each as one text.
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
        let change = Change::default();
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
    let walled = Walled::new();
    walled.run("ann", "web", "echo secret; exec sleep 1000");
    let logs = |who: &str| cell(&[&walled.args(who)[..], &["logs", "ann/web"]].concat());
    // A task runs before its program has said anything.
    let said = || Some(text(&logs("ann").stdout)).filter(|said| !said.is_empty());
    assert_eq!(until("ann reads nothing", said), "secret\n");
    assert_eq!(text(&logs("admin").stdout), "secret\n");
    let refused = logs("bob");
    let error = text(&refused.stderr);
    assert!(error.contains("not-allowed") && !refused.status.success(), "{error}");
    assert!(refused.stdout.is_empty());
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

/// A machine that was off for longer than its certificate lasts is turned away before it can say a
/// word, and whoever asks for it is told.
#[test]
fn a_machine_whose_certificate_has_expired_is_said_to_be_refused() {
    let quick = [("poll_interval = \"5s\"", "poll_interval = \"1s\"")];
    let mut walled = Walled::with(&quick);
    let shown = |walled: &Walled| {
        text(&cell(&[&walled.args("admin")[..], &["machine", "show", "n1"]].concat()).stdout)
    };
    until("the cell knows it", || Some(()).filter(|()| !shown(&walled).is_empty()));
    walled.agent.take().unwrap().kill();
    let file = walled.folder.path("n1.identity");
    let mut identity = Contexts::load(file.as_ref()).unwrap();
    let context = identity.contexts.values_mut().next().unwrap();
    let long_ago = Time(SystemClock.wall().0 - 2 * CERTIFICATE_LIFE.0);
    let part = Part::Agent(Name::new("n1").unwrap());
    let old = walled.authority().equip(&part, &[], long_ago, CERTIFICATE_LIFE).unwrap();
    (context.certificate, context.key) = (Some(old.certificate), Some(old.key));
    identity.save(file.as_ref()).unwrap();
    walled.agent = Some(walled.start("n1"));
    let shown =
        until("it is refused", || Some(shown(&walled)).filter(|shown| shown.contains("refused")));
    let unfolded = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["the certificate of its agent has expired", "cell agent join --token-file"] {
        assert!(unfolded.contains(words), "{shown}");
    }
    walled.stop();
}

/// What an agent says to whoever dials it as `part`, and wants it to be the agent of `machine`.
async fn dialled(
    walled: &Walled,
    authority: &Authority,
    part: Part,
    machine: &str,
    now: Time,
) -> Result<OutputPiece, ClientError> {
    let papers = authority.equip(&part, &[], now, CERTIFICATE_LIFE).unwrap();
    let shown = Shown::new(&papers.certificate, &papers.key).unwrap();
    let cell = authority.cell().clone();
    let dialler =
        AgentDialler::identified(cell, walled.authority().certificate_pem().into(), shown);
    let mut line = dialler.dial(&Name::new(machine).unwrap(), &walled.agent_address()).await?;
    line.get(&format!("{OUTPUT_PATH}/ann/web/0"), Duration::from_secs(30)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_answers_masters_of_its_cell_and_is_known_by_its_machine() {
    let walled = tokio::task::spawn_blocking(|| {
        let walled = Walled::new();
        walled.run("ann", "web", "echo secret; exec sleep 1000");
        walled
    });
    let walled = walled.await.unwrap();
    let name = |text: &str| Name::new(text).unwrap();
    let (authority, now) = (walled.authority(), SystemClock.wall());
    let ask = |part: Part, machine: &'static str| dialled(&walled, &authority, part, machine, now);
    // Asked until there is something: a task runs before its program has said anything.
    let spoken = async {
        loop {
            let piece = ask(Part::Master(name("m1")), "n1").await.unwrap();
            if !piece.text.is_empty() {
                return piece.text;
            }
        }
    };
    assert_eq!(timeout(PATIENCE, spoken).await.expect("it says nothing"), "secret\n");
    // It is nobody else's agent.
    let error = ask(Part::Master(name("m1")), "n2").await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    // Other agents get packages and nothing else.
    let error = ask(Part::Agent(name("n2")), "n1").await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NotAllowed), "{error}");
    for stranger in [Part::User(name("ann")), Part::Scheduler(name("s1"))] {
        let error = ask(stranger, "n1").await.unwrap_err();
        assert_eq!(error.code(), None, "{error}");
    }
    let other = Authority::create(&name("aa"), now).unwrap();
    let forged = dialled(&walled, &other, Part::Master(name("m1")), "n1", now).await;
    assert_eq!(forged.unwrap_err().code(), None);
    let mut plain = TcpStream::connect(walled.agent_address()).unwrap();
    plain.write_all(b"GET /v1/output/ann/web/0 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut heard = Vec::new();
    // Reset or closed, without an answer.
    let _ = plain.read_to_end(&mut heard);
    assert!(!text(&heard).contains("secret") && !text(&heard).contains("HTTP"), "{heard:?}");
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
    wait(&address, "web", runs(1));
    let both = Running::start(&[&at[..], &["logs", "dev/web", "-f"]].concat());
    let one = Running::start(&[&at[..], &["logs", "dev/web/0", "--follow"]].concat());
    one.hear("task 0:1");
    for index in ["pid0", "pid1"] {
        kill("-KILL", first_line(&folder, index));
    }
    wait(&address, "web", runs(2));
    assert_eq!(one.hear("task"), "task 0:2");
    // Two lines of each, and where the second attempt of each begins.
    let mut heard: Vec<String> = (0..6).map(|_| both.hear("dev/web/")).collect();
    heard.retain(|line| !line.starts_with("--"));
    heard.sort();
    let want = ["0 task 0:1", "0 task 0:2", "1 task 1:1", "1 task 1:2"];
    assert_eq!(heard, want.map(|rest| format!("dev/web/{rest}")));
    let previous = said(&[&at[..], &["logs", "dev/web/1", "--previous"]].concat());
    assert_eq!(previous, "task 1:1\n");
    said(&[&at[..], &["job", "stop", "dev/web"]].concat());
    one.ended();
    both.ended();
    // What a dead task wrote is still there.
    let after = said(&[&at[..], &["logs", "dev/web", "--tail", "1"]].concat());
    assert_eq!(after, "dev/web/0 task 0:2\ndev/web/1 task 1:2\n");
    running.stop();
}

#[test]
fn output_stays_readable_after_a_restart_in_place_and_the_end() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    let at = ["--master", &address];
    submit(&folder, &address, "web", 1, "echo one; exec sleep 1000", "{}");
    wait(&address, "web", runs(1));
    let logs = || said(&[&at[..], &["logs", "dev/web"]].concat());
    let until_said = |word: &str| until(word, || logs().contains(word).then_some(()));
    until_said("one");
    // Another command starts again where it is.
    let file = folder.path("web.json");
    let changed = fs::read_to_string(&file).unwrap().replace("echo one", "echo two");
    fs::write(&file, changed).unwrap();
    said(&[&at[..], &["run", &file]].concat());
    wait(&address, "web", runs(2));
    until_said("two");
    said(&[&at[..], &["job", "stop", "dev/web"]].concat());
    wait(&address, "web", |task| task.state.is_dead());
    assert_eq!(logs(), "two\n");
    assert_eq!(said(&[&at[..], &["logs", "dev/web", "--previous"]].concat()), "one\n");
    running.stop();
}

/// A page that somebody looks at, from elsewhere or under a name that leads here, gets nothing.
#[test]
fn no_web_page_drives_an_open_cell() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    submit(&folder, &address, "web", 1, "echo secret; exec sleep 1000", "{}");
    wait(&address, "web", runs(1));
    let machines = json(&["--master", &address, "machine", "ls", "-o", "json"]);
    let agent = machines[0]["spec"]["attributes"][ADDRESS_ATTRIBUTE]["text"].as_str().unwrap();
    let ask = |to: &str, line: &str, headers: &str| {
        let mut stream = TcpStream::connect(to).unwrap();
        let head = format!("{line} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        text(&heard)
    };
    // Even with the token of the cell, which no page has.
    let token = std::fs::read_to_string(folder.path("data/dev-token")).unwrap();
    let bearer = format!("authorization: Bearer {}\r\n", token.trim());
    let host = |to: &str| format!("host: {to}\r\n{bearer}");
    let targets = [
        (agent, "GET /v1/output/dev/web/0", "secret"),
        (&address, "GET /v1/jobs/dev/web/tasks/0/output", "secret"),
    ];
    for (to, line, answer) in targets {
        // A task runs before its program has said anything.
        until(line, || ask(to, line, &host(to)).contains(answer).then_some(()));
        for page in [
            format!("{}origin: http://evil.example\r\n", host(to)),
            format!("{}origin: null\r\n", host(to)),
            host("evil.example:80"),
        ] {
            let heard = ask(to, line, &page);
            assert!(heard.starts_with("HTTP/1.1 403"), "{page}: {heard}");
        }
    }
    // Pages can open WebSockets; sessions are none.
    let line = "POST /v1/jobs/dev/web/tasks/0/exec?command=%5B%22true%22%5D";
    let heard = ask(&address, line, &format!("{}upgrade: websocket\r\n", host(&address)));
    assert!(heard.starts_with("HTTP/1.1 426"), "{heard}");
    running.stop();
}
