//! Nothing that a process needs dies silently: panics are planted in real processes, one part at a
//! time, and each ends its process with one line and a code of its own, or is counted and hurts
//! nobody. And whenever a process that starts is asked to end, it ends in order.

use cellwright_tests::binary::{cell as binary, command_output};
use cellwright_tests::dns::{self, RecordType};
use cellwright_tests::folder::Folder;
use cellwright_tests::load::add_register;
use cellwright_tests::local_cell::start_secure_master;
use cellwright_tests::machines::is_alive;
use cellwright_tests::process::Process;
use cellwright_tests::replicas::Replicas;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How a process ends whose essential task ended.
const PANIC_EXIT_CODE: i32 = 70;

/// A cell in one folder, with panics to be planted in its processes.
struct Cell {
    folder: Folder,
    starts: usize,
    /// Where its agent listens.
    listen: String,
}

impl Cell {
    fn new() -> Cell {
        let folder = Folder::new();
        fs::create_dir_all(folder.path("plant")).expect("a folder");
        Cell { folder, starts: 0, listen: free_port() }
    }

    fn plant(&self, point: &str) {
        fs::write(self.planted(point), "").expect("a file");
    }

    fn planted(&self, point: &str) -> PathBuf {
        self.folder.path("plant").join(point)
    }

    /// Starts `cell` with a log of its own.
    fn start(&mut self, arguments: &[&str]) -> Process {
        self.start_with_plant(arguments, "plant")
    }

    /// The same with panics of its own.
    fn start_with_plant(&mut self, arguments: &[&str], plant: &str) -> Process {
        self.starts += 1;
        let mut command = Command::new(binary());
        command.args(arguments).current_dir(&self.folder.0);
        command.env("CELL_PLANT_PANIC", self.folder.path(plant));
        command.env_remove("RUST_BACKTRACE");
        Process::start(command, &self.folder.path(&format!("log-{}", self.starts)))
    }

    /// An open cell, and where it listens.
    async fn dev(&mut self, options: &[&str]) -> (Process, String) {
        let words = ["dev", "--listen", "127.0.0.1:0", "--data-dir", "data"];
        let process = self.start(&[&words[..], options].concat());
        let rest = wait_for_output(&process, "serves http://").await;
        let address = rest.split_whitespace().next().unwrap_or_default().to_owned();
        (process, address)
    }

    /// The agent of a machine of the open cell at `master`.
    fn begin_agent(&mut self, master: &str) -> Process {
        let data = self.folder.path("agent");
        let config = format!(
            "name = \"a1\"\ndriver = \"process\"\ndata_dir = {data:?}\nlisten = {:?}\n",
            self.listen
        );
        fs::write(self.folder.path("agent.toml"), config).expect("a file");
        self.start(&["--master", master, "agent", "start", "--config", "agent.toml"])
    }

    async fn agent(&mut self, master: &str) -> Process {
        let agent = self.begin_agent(master);
        wait_for_output(&agent, "polls").await;
        agent
    }

    /// Has a job of one task run that says its pid and goes on saying something.
    fn run(&self, master: &str, job: &str) {
        self.run_with(master, job, None);
    }

    /// The same, asked for its health.
    fn run_with(&self, master: &str, job: &str, health: Option<serde_json::Value>) {
        let here = self.folder.0.display();
        let script = format!(
            "echo $$ > {here}/.$$; mv {here}/.$$ {here}/pid-$CELL_JOB-$CELL_ATTEMPT; n=0; \
             while :; do n=$((n+1)); echo line $n; sleep 0.2; done"
        );
        let mut spec = serde_json::json!({
            "name": job,
            "count": 1,
            "priority": 100,
            "restart": { "backoff": 1, "backoff_max": 1 },
            "task": {
                "limits": { "cpu": "100m", "ram": 8 << 20, "disk": 1 << 20 },
                "command": ["sh", "-c", script],
            },
        });
        if let Some(health) = health {
            spec["task"]["health"] = health;
        }
        let path = self.folder.path(&format!("{job}.json"));
        fs::write(&path, spec.to_string()).expect("a file");
        let mut run = Command::new(binary());
        command_output(run.args(["--master", master, "run"]).arg(path)).expect("a job is taken");
    }

    async fn pid(&self, job: &str, attempt: u32) -> u32 {
        let path = self.folder.path(&format!("pid-{job}-{attempt}"));
        until(&format!("{job} runs attempt {attempt}"), || {
            fs::read_to_string(&path).ok()?.trim().parse().ok()
        })
        .await
    }
}

fn free_port() -> String {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    taken.local_addr().expect("it has an address").to_string()
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < TIMEOUT, "never came: {what}");
        sleep(POLL_INTERVAL).await;
    }
}

/// What it said after these words.
async fn wait_for_output(process: &Process, words: &str) -> String {
    let what = format!("{words:?} in what {} says", process.id());
    let after = |output: String| output.split_once(words).map(|(_, rest)| rest.to_owned());
    until(&what, || after(process.output())).await
}

/// Status and body of an answer.
fn ask(address: &str, method: &str, path: &str) -> Option<(u16, String)> {
    // An open master is for the account that started it: whoever asks shows its token.
    let token = cellwright_identity::dev_token::token_for(&[address.to_owned()]);
    let bearer = token
        .map_or(String::new(), |token| format!("authorization: Bearer {}\r\n", token.expose()));
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{bearer}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
}

/// What became of a stream.
#[derive(Debug, PartialEq, Eq)]
enum Followed {
    Ended,
    GoesOn,
}

/// Reads a stream for so long, or until its end.
fn follow(address: &str, path: &str, most: Duration) -> Followed {
    let token =
        cellwright_identity::dev_token::token_for(&[address.to_owned()]).expect("an open cell");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nauthorization: Bearer {}\r\n\r\n",
        token.expose()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let (begun, mut piece, mut received) = (Instant::now(), [0; 4096], Vec::new());
    while begun.elapsed() < most {
        stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a time to wait");
        match stream.read(&mut piece) {
            Ok(0) => return Followed::Ended,
            Ok(read) => received.extend_from_slice(&piece[..read]),
            Err(_) => {}
        }
        // The last chunk of a body that has no more.
        if received.ends_with(b"0\r\n\r\n") {
            return Followed::Ended;
        }
    }
    Followed::GoesOn
}

/// A figure of the metrics page.
fn metric(address: &str, name: &str) -> Option<u64> {
    let (_, page) = ask(address, "GET", "/metrics")?;
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// It ended with one line that says what was planted where, and with the code for it.
async fn assert_panicked(process: &mut Process, point: &str) {
    let status = process.ended().await;
    let output = process.output();
    assert_eq!(status.code(), Some(PANIC_EXIT_CODE), "{point}: {status}\n{output}");
    let about = |line: &&str| line.contains("planted") || line.contains("panicked");
    let lines: Vec<&str> = output.lines().filter(about).collect();
    let [line] = lines[..] else { panic!("{point}: not one line: {lines:#?}\n{output}") };
    let words = ["cell: cannot go on: ", "panicked at crates/", &format!("planted at {point}")];
    assert!(words.iter().all(|word| line.contains(word)), "{point}: {line}");
}

#[tokio::test]
async fn a_master_ends_with_each_of_its_essential_tasks() {
    let mut cell = Cell::new();
    let points = ["core", "role", "links", "status", "listener", "raft", "writer", "apply"];
    for point in points.into_iter().chain(["proposal"]) {
        let (mut master, address) = cell.dev(&["--machines", "0"]).await;
        cell.plant(point);
        // Something happens, so that everybody has something to do.
        let mut user = Command::new(binary());
        user.args(["--master", &address, "user", "add", &format!("for-{point}")]);
        let _asked = Process::start(user, &cell.folder.path("asked.log"));
        assert_panicked(&mut master, point).await;
    }
    // Those that may have nothing to do for long, by their names, when they begin.
    let others = ["the mending of records", "the scrubbing of records", "fresh reads"];
    let others = others.into_iter().chain(["the steward of room", "the campaign for votes"]);
    for task in others.chain(["the agent"]) {
        cell.plant(task);
        let words = ["dev", "--listen", "127.0.0.1:0", "--data-dir", "data"];
        let mut master = cell.start(&[&words[..], &["--driver", "process"]].concat());
        assert_panicked(&mut master, task).await;
    }
    // What was written before is there.
    let (_master, address) = cell.dev(&["--machines", "0"]).await;
    let (status, users) = ask(&address, "GET", "/v1/users").expect("an answer");
    assert!(status == 200 && users.contains("\"dev\""), "{users}");
}

#[tokio::test]
async fn when_the_core_or_consensus_of_the_leader_panics_another_leads() {
    let Some(mut cell) = Replicas::launch(3).await else { return };
    for (round, point) in ["core", "raft"].into_iter().enumerate() {
        let before = cell.leader().await;
        let planted = cell.failpoint_dir(before.host);
        fs::create_dir_all(&planted).expect("a folder");
        fs::write(planted.join(point), "").expect("a file");
        // Written to until it ends.
        let client = cell.client();
        let mut key = 1000 * round;
        while cell.process(before.host).is_alive() {
            key += 1;
            // That it was not taken is what this is about.
            let _ = add_register(&client, key).await;
        }
        assert_panicked(cell.process(before.host), point).await;
        cell.kill(before.host);
        let after = cell.leader().await;
        assert!(after.host != before.host && after.term > before.term, "{after:?}");
        add_register(&client, 1000 * round + 999).await.expect("the next leader takes it");
        cell.start(before.host);
    }
    cell.leader().await;
}

#[tokio::test]
async fn what_a_master_can_do_without_is_started_again_and_counted() {
    let mut cell = Cell::new();
    cell.plant("checkpoints");
    let named = [
        "raising the level",
        "keeping packages",
        "announcing leaders",
        "settling refusals",
        "saying the limits",
        "memory",
    ];
    named.iter().for_each(|task| cell.plant(task));
    let (mut master, address) = cell.dev(&["--machines", "0"]).await;
    cell.plant("history");
    for task in named.into_iter().chain(["history", "saving checkpoints"]) {
        let name = format!("cell_task_restarts_total{{task=\"{task}\"}}");
        let count = until(&name, || metric(&address, &name)).await;
        assert_eq!(count, 1, "{task}");
    }
    assert_eq!(ask(&address, "GET", "/healthz").expect("an answer").1, "ok\n");
    // History is written again: a question of the past is answered.
    let mut sql = Command::new(binary());
    command_output(sql.args(["--master", &address, "sql", "select count(*) from machine_events"]))
        .expect("history answers");
    assert!(master.is_alive());
}

#[tokio::test]
async fn a_handler_that_panics_answers_500_and_hurts_nobody() {
    let mut cell = Cell::new();
    let dns = free_port();
    let (mut master, address) = cell.dev(&["--machines", "0", "--dns", &dns]).await;
    cell.plant("handler-listJobs");
    let (status, body) = ask(&address, "GET", "/v1/jobs").expect("an answer");
    assert_eq!(status, 500, "{body}");
    let error: serde_json::Value = serde_json::from_str(&body).expect("an error in JSON");
    assert_eq!(error["code"], "internal", "{body}");
    assert!(!body.contains("panicked"), "insides are for the log: {body}");
    assert_eq!(metric(&address, "cell_handler_panics_total"), Some(1));
    assert_eq!(ask(&address, "GET", "/v1/jobs").expect("an answer").0, 200);
    // What is sent apart from the answer: the stream ends, and the next one goes on.
    cell.plant("a stream");
    let stream = |most: Duration| follow(&address, "/v1/watch/overview", most);
    assert_eq!(stream(TIMEOUT), Followed::Ended);
    // It is counted before what was left of it, and with that the stream, is dropped.
    assert_eq!(metric(&address, "cell_handler_panics_total"), Some(2));
    assert_eq!(stream(Duration::from_secs(2)), Followed::GoesOn);
    // The same for whoever asks over DNS.
    cell.plant("dns");
    let ask_dns = || dns::ask(&dns, "dev.cell.internal", RecordType::A);
    ask_dns().expect("whoever asked is answered");
    assert!(!cell.planted("dns").exists());
    assert_eq!(metric(&address, "cell_handler_panics_total"), Some(3));
    ask_dns().expect("the next one too");
    assert!(master.is_alive());
    let output = master.output();
    let lines = output.lines().filter(|line| line.contains("planted")).count();
    assert_eq!(lines, 3, "{output}");
}

#[tokio::test]
async fn an_agent_ends_with_each_of_its_essential_tasks_and_its_tasks_go_on() {
    let mut cell = Cell::new();
    let (_master, address) = cell.dev(&["--machines", "0"]).await;
    let mut agent = cell.agent(&address).await;
    cell.run(&address, "web");
    let pid = cell.pid("web", 1).await;
    for point in ["link", "agent", "watch", "count", "agent-listener", "follow"] {
        cell.plant(point);
        match point {
            // It looks again when somebody dials.
            "agent-listener" => drop(TcpStream::connect(&cell.listen).expect("it listens")),
            // Of a task that an earlier agent left.
            "follow" => {
                agent.kill();
                agent = cell.begin_agent(&address);
            }
            _ => {}
        }
        assert_panicked(&mut agent, point).await;
        assert!(is_alive(pid), "{point}: the task went with its agent");
        agent = cell.agent(&address).await;
    }
    // The last one has taken it up again: what is asked of it reaches the task.
    let mut stop = Command::new(binary());
    command_output(stop.args(["--master", &address, "stop", "dev/web", "--yes"]))
        .expect("it is stopped");
    until("the task is gone", || (!is_alive(pid)).then_some(())).await;
    assert!(!cell.folder.path("pid-web-2").exists());
}

#[tokio::test]
async fn a_fault_around_one_task_is_that_tasks_alone() {
    let mut cell = Cell::new();
    let (_master, address) = cell.dev(&["--machines", "0"]).await;
    // What tasks left is removed by a thread that goes on.
    cell.plant("trash");
    let mut agent = cell.agent(&address).await;
    wait_for_output(&agent, "planted at trash; it is started again (restart 1)").await;
    cell.run(&address, "other");
    let other = cell.pid("other", 1).await;
    // A log that fails: what the task says after it is kept, and the task goes on.
    let logged = || {
        let mut logs = Command::new(binary());
        command_output(logs.args(["--master", &address, "logs", "dev/other/0"])).unwrap_or_default()
    };
    cell.plant("pump");
    until("the log failed", || (!cell.planted("pump").exists()).then_some(())).await;
    let before = logged().lines().count();
    until("more of what it says", || (logged().lines().count() > before).then_some(())).await;
    assert!(is_alive(other));
    // The line of an agent to a shim: it dials again, and hears of the task as before.
    cell.plant("the line to an agent");
    agent.kill();
    agent = cell.agent(&address).await;
    let is_gone = || (!cell.planted("the line to an agent").exists()).then_some(());
    until("the line failed", is_gone).await;
    assert!(is_alive(other) && agent.is_alive());
    // What makes a task ready: that attempt fails, and the next one runs.
    cell.plant("ready");
    cell.run(&address, "web");
    let web = cell.pid("web", 2).await;
    assert!(is_alive(web) && is_alive(other) && !cell.folder.path("pid-web-1").exists());
    // A shim: what it left behind is ended, and its task starts again.
    cell.plant("shim");
    // It looks again when an agent dials.
    agent.kill();
    agent = cell.agent(&address).await;
    until("a task starts again", || {
        let again = [("other", 2, other), ("web", 3, web)].into_iter();
        let path = |job: &str, next: u32| cell.folder.path(&format!("pid-{job}-{next}"));
        let mut ended = again.filter(|(job, next, _)| path(job, *next).exists());
        ended.next().filter(|(_, _, pid)| !is_alive(*pid)).map(drop)
    })
    .await;
    assert!(agent.is_alive());
    // It said so, once, where its agent keeps what shims say.
    // A folder that is moved while all are walked through may be missed once.
    let last_words = until("the shim's last words", || {
        let mut lines = lines_of(&cell.folder.path("agent"), "shim.log");
        lines.retain(|line| line.contains("cannot go on"));
        Some(lines).filter(|lines| !lines.is_empty())
    })
    .await;
    assert!(last_words.len() == 1 && last_words[0].ends_with("planted at shim"), "{last_words:?}");
}

/// The lines of all files of this name below a folder.
fn lines_of(folder: &Path, name: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            lines.extend(lines_of(&entry.path(), name));
        } else if entry.file_name() == name {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            lines.extend(text.lines().map(str::to_owned));
        }
    }
    lines
}

#[tokio::test]
async fn a_health_check_that_panics_is_started_again_and_decides_as_before() {
    let mut cell = Cell::new();
    let (_master, address) = cell.dev(&["--machines", "0"]).await;
    let agent = cell.agent(&address).await;
    cell.plant("health");
    let well = format!("test -e {}", cell.folder.path("well").display());
    let health = serde_json::json!({
        "probe": { "command": ["sh", "-c", well] },
        "interval": 100, "start_period": 600_000, "failures": 2,
    });
    cell.run_with(&address, "web", Some(health));
    wait_for_output(&agent, "planted at health; it is started again (restart 1)").await;
    let pid = cell.pid("web", 1).await;
    fs::write(cell.folder.path("well"), "").expect("a file");
    let runs = || {
        let (_, tasks) = ask(&address, "GET", "/v1/jobs/dev/web/tasks")?;
        tasks.contains("\"running\"").then_some(())
    };
    until("the task counts as running", runs).await;
    assert!(is_alive(pid));
}

#[tokio::test]
async fn parts_with_certificates_end_with_what_renews_them() {
    let mut cell = Cell::new();
    let (master, address) = start_secure_master(&cell.folder).await;
    let contexts = cell.folder.path("contexts.toml");
    let run_with_contexts = |words: &[&str]| {
        let mut command = Command::new(binary());
        command_output(command.arg("--contexts").arg(&contexts).args(words)).expect("an answer")
    };
    let write = |name: &str, token: String| {
        let file = cell.folder.path(name);
        cellwright_identity::private_files::write_private(&file, token.as_bytes()).expect("a file");
    };
    write("a1.token", run_with_contexts(&["token", "create", "--agent", "a1"]));
    write("s2.token", run_with_contexts(&["token", "create", "--scheduler", "s2"]));
    let mut join = Command::new(binary());
    join.args(["agent", "join", "--master", &address, "--token-file", "a1.token"]);
    join.args(["--config", "a1.toml"]).current_dir(&cell.folder.0);
    command_output(&mut join).expect("the machine joins");
    let config = fs::read_to_string(cell.folder.path("a1.toml")).expect("it was written");
    let data = format!("data_dir = {:?}\ndriver = \"process\"\n", cell.folder.path("a1"));
    let is_own = |line: &&str| !line.starts_with("data_dir") && !line.starts_with("driver");
    let kept: Vec<&str> = config.lines().filter(is_own).collect();
    fs::write(cell.folder.path("a1.toml"), format!("{data}{}\n", kept.join("\n"))).expect("a file");
    let renewal = "the renewal of the certificate";
    cell.plant(renewal);
    let mut agent = cell.start(&["agent", "start", "--config", "a1.toml"]);
    assert_panicked(&mut agent, renewal).await;
    let scheduler =
        ["scheduler", "--join", "--token-file", "s2.token", "--identity", "s2.toml", "--master"];
    let mut scheduler = cell.start(&[&scheduler[..], &[&address]].concat());
    wait_for_output(&scheduler, "works for").await;
    cell.plant("scheduler");
    assert_panicked(&mut scheduler, "scheduler").await;
    master.kill();
    for task in [renewal, "the keeper of the scheduler"] {
        cell.plant(task);
        let mut master = cell.start(&["master", "start", "--config", "master.toml"]);
        assert_panicked(&mut master, task).await;
    }
}

#[tokio::test]
async fn a_scheduler_that_panics_ends_with_a_line() {
    let mut cell = Cell::new();
    let (mut master, address) = cell.dev(&["--machines", "0"]).await;
    let words = ["--master", &address, "scheduler", "--name", "s2"];
    let mut scheduler = cell.start_with_plant(&words, "plant-s2");
    wait_for_output(&scheduler, "works for").await;
    fs::create_dir_all(cell.folder.path("plant-s2")).expect("a folder");
    fs::write(cell.folder.path("plant-s2").join("scheduler"), "").expect("a file");
    assert_panicked(&mut scheduler, "scheduler").await;
    // The one inside a whole cell takes the cell with it.
    cell.plant("scheduler");
    assert_panicked(&mut master, "scheduler").await;
}

/// Whether it hears that it is to end.
fn listens_for_signals(process: &Process) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught & 1 << (Signal::TERM.as_raw() - 1) != 0
}

/// Starts it time and again, and asks it to end: as soon as it can hear it, and at moments spread
/// over the time that a whole start takes, which is measured.
async fn ends_in_order(cell: &mut Cell, arguments: &[&str], announced: &str) {
    let begun = Instant::now();
    let mut whole = cell.start(arguments);
    wait_for_output(&whole, announced).await;
    let takes = begun.elapsed();
    whole.signal(Signal::TERM);
    assert_eq!(whole.ended().await.code(), Some(0), "{}", whole.output());
    for moment in 0..MOMENTS {
        let begun = Instant::now();
        let mut process = cell.start(arguments);
        let wanted = takes * moment / MOMENTS;
        while !listens_for_signals(&process) || begun.elapsed() < wanted {
            assert!(process.is_alive() && begun.elapsed() < TIMEOUT, "{}", process.output());
            tokio::task::yield_now().await;
        }
        process.signal(Signal::TERM);
        let status = process.ended().await;
        let output = process.output();
        assert_eq!(status.code(), Some(0), "{arguments:?} at {wanted:?}: {status}\n{output}");
        assert!(!output.contains("cannot go on"), "{output}");
    }
    // None of them left anything that keeps the next one from starting.
    let mut again = cell.start(arguments);
    wait_for_output(&again, announced).await;
    again.signal(Signal::TERM);
    assert_eq!(again.ended().await.code(), Some(0), "{}", again.output());
}

/// At which a start is cut short.
const MOMENTS: u32 = 8;

#[tokio::test]
async fn whenever_it_is_asked_to_end_while_it_starts_a_process_ends_in_order() {
    let mut cell = Cell::new();
    let dev = ["dev", "--listen", "127.0.0.1:0", "--data-dir", "tried", "--driver", "process"];
    ends_in_order(&mut cell, &dev, "stop it with ctrl-c").await;
    let address = free_port();
    let data = cell.folder.path("guarded").display().to_string();
    let mut init = Command::new(binary());
    init.current_dir(&cell.folder.0).args(["--contexts", "contexts.toml", "master", "init"]);
    init.args(["--cell", "aa", "--name", "m1", "--advertise", &address, "--listen", &address]);
    command_output(init.args(["--data-dir", &data, "--config", "master.toml"]))
        .expect("a cell is made");
    let master = ["master", "start", "--config", "master.toml"];
    ends_in_order(&mut cell, &master, "serves https://").await;
    let (_master, address) = cell.dev(&["--machines", "0"]).await;
    drop(cell.agent(&address).await);
    let agent = ["--master", &address, "agent", "start", "--config", "agent.toml"];
    ends_in_order(&mut cell, &agent, "polls").await;
    let scheduler = ["--master", &address, "scheduler"];
    ends_in_order(&mut cell, &scheduler, "works for").await;
}
