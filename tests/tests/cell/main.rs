//! End-to-end tests of the real binary: a one-process cell for trials, and masters with identities.

mod agent;
mod archive;
mod autoscaling;
mod company;
mod containers;
mod daemons;
mod devices;
mod files_and_ports;
mod guests;
mod language;
mod names;
mod one_off;
mod output_forms;
mod package;
mod placement;
mod plan;
mod public_traces;
mod registry;
mod rerun_and_labels;
mod resize;
mod restart_and_start;
mod rollouts;
mod secure_cell;
mod session;
mod simulation;
mod simulation_json;
mod support;
mod task_isolation;
mod terminal_output;
mod updates;
mod usage;
mod verbs;
mod virtual_machines;
mod volumes;
mod who_gives_way;

use cellwright_api::client::{ApiClientConfig, Client, JobFilter, PageRequest};
use cellwright_api::types::{JobView, TaskView};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::task::TaskState;
use std::path::Path;
use std::time::Duration;
use support::{Folder, Running, TIMEOUT, cell, free_address, json, stdout_of, text};
use tokio::time::timeout;

/// Waits until all tasks of the job run, each placed at least this often: after a restart of the
/// whole cell, a task may be placed on a machine that has not reported its reboot yet, and then
/// once more.
fn wait_running(address: &str, job: &JobKey, attempt: u32) -> JobView {
    let runs = |task: &TaskView| task.state == TaskState::Running && task.attempt >= attempt;
    wait_job(address, job, |view, tasks| {
        tasks.len() == view.spec.count as usize && tasks.iter().all(runs)
    })
}

/// Waits until the tasks of a job of user dev satisfy `is_reached`.
fn wait_for(address: &str, job: &str, is_reached: impl Fn(&[TaskView]) -> bool) {
    let (user, job) = (Name::new("dev").unwrap(), Name::new(job).unwrap());
    wait_job(address, &JobKey { user, job }, |_, tasks| is_reached(tasks));
}

fn wait_job(
    address: &str,
    job: &JobKey,
    is_reached: impl Fn(&JobView, &[TaskView]) -> bool,
) -> JobView {
    wait_job_within(TIMEOUT, address, job, is_reached)
}

fn wait_job_within(
    limit: Duration,
    address: &str,
    job: &JobKey,
    is_reached: impl Fn(&JobView, &[TaskView]) -> bool,
) -> JobView {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(ApiClientConfig::new(vec![address.to_owned()])).unwrap();
        let mut watch = client.watch_jobs(&JobFilter::default(), None);
        let reached = async {
            loop {
                let event = watch.next().await.unwrap();
                let Some(view) = event.data.filter(|view| view.name == job.job) else { continue };
                let tasks = client.tasks(job, &PageRequest::default()).await.unwrap().value.items;
                if is_reached(&view, &tasks) {
                    return view;
                }
            }
        };
        timeout(limit, reached).await.unwrap_or_else(|_| panic!("{job} never was as wanted"))
    })
}

/// Waits until so many machines are up, as seen in the events of their joining.
fn wait_machines(address: &str, number: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(ApiClientConfig::new(vec![address.to_owned()])).unwrap();
        let mut watch = client.watch_events(Some("0".into()));
        let reached = async {
            loop {
                let up = client.cluster_status().await.unwrap().value.machines_up as usize;
                if up == number {
                    return;
                }
                watch.next().await.unwrap();
            }
        };
        timeout(TIMEOUT, reached).await.unwrap_or_else(|_| panic!("never {number} machines"))
    })
}

fn dev(folder: &Folder, machines: &str) -> (Running, String) {
    let data = folder.path("data");
    let listen = "127.0.0.1:0";
    let args = ["dev", "--data-dir", &data, "--listen", listen, "--machines", machines];
    let running = Running::spawn_args(&args);
    let address = running.address();
    (running, address)
}

#[test]
fn a_cell_in_one_process_runs_a_job_and_has_it_again_after_kill_9() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "3");
    let at = ["--master", &address];
    let run = [&at[..], &["run", "examples/hello.json"]].concat();
    let next = stdout_of(&run);
    assert!(next.contains("next: cell status dev/hello"), "{next}");
    let (user, job) = (Name::new("dev").unwrap(), Name::new("hello").unwrap());
    let hello = JobKey { user, job };
    let before = wait_running(&address, &hello, 1);
    running.kill();

    let (running, address) = dev(&folder, "3");
    let at = ["--master", &address];
    // The machines ended with the process: their tasks are placed again.
    let after = wait_running(&address, &hello, 2);
    assert_eq!((after.version, after.submitted_at), (before.version, before.submitted_at));
    let displayed = json(&[&at[..], &["job", "status", "dev/hello", "-o", "json"]].concat());
    let machines = displayed["tasks"].as_array().unwrap().iter().map(|task| &task["machine"]);
    assert!(machines.clone().all(|machine| machine.as_str().unwrap().starts_with("dev-")));
    assert_eq!(machines.count(), 3);
    let events = stdout_of(&[&at[..], &["events"]].concat());
    assert!(events.lines().any(|line| line.contains("dev/hello/0")), "{events}");
    stdout_of(&[&at[..], &["job", "stop", "dev/hello"]].concat());
    running.stop();
}

#[test]
fn what_does_not_fit_is_explained_and_what_is_wrong_is_refused_by_name() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    let at = ["--master", &address];
    let huge = folder.path("huge.json");
    let spec = r#"{"name": "huge", "priority": 100, "task":
        {"limits": {"cpu": "900000m", "ram": 33554432}, "command": ["true"]}}"#;
    std::fs::write(&huge, spec).unwrap();
    stdout_of(&[&at[..], &["run", &huge]].concat());
    let again = stdout_of(&[&at[..], &["run", &huge]].concat());
    assert!(again.contains("job dev/huge of 1 task: unchanged"), "{again}");
    let why = stdout_of(&[&at[..], &["explain", "dev/huge/0"]].concat());
    assert!(why.contains("cpu"), "{why}");
    let check = |args: &[&str], code: i32, part: &str| {
        let output = cell(&[&at[..], args].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(part) && error.contains("next: "), "{args:?}: {error}");
    };
    check(&["job", "status", "dev/absent"], 1, "dev/absent");
    // A wait for a job that no machine takes ends with an error, and the job stays in the queue.
    for verb in [&["run", &huge, "--wait"][..], &["wait", "huge"]] {
        let output = cell(&[&at[..], verb, &["--place-timeout", "50ms"]].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{verb:?}: {error}");
        assert!(error.contains("dev/huge is not placed and stays in the queue"), "{error}");
        assert!(error.contains("cpu") && error.contains("next: cell explain dev/huge"), "{error}");
    }
    let there = json(&[&at[..], &["job", "status", "huge", "-o", "json"]].concat());
    assert_eq!(there["job"]["tasks"]["pending"], 1);
    check(&["exec", "huge", "--", "true"], 1, "dev/huge/0 does not run, it is pending");
    check(&["run", "Makefile"], 2, "is not a job");
    check(&["machine", "drain", "absent"], 1, "absent");
    check(&["token", "create", "--agent", "n1"], 1, "--dev");
    let machines = json(&[&at[..], &["machine", "ls", "-o", "json"]].concat());
    assert_eq!(machines.as_array().unwrap().len(), 1);
    check(&["machine", "rm", "absent"], 1, "absent");
    let removed = stdout_of(&[&at[..], &["machine", "rm", "dev-0"]].concat());
    assert!(removed.contains("start `cell dev` again"), "{removed}");
    let revoked = stdout_of(&[&at[..], &["token", "revoke", "--scheduler", "s9"]].concat());
    assert!(revoked.starts_with("scheduler s9 is revoked\n"), "{revoked}");
    let by_address = support::command(&["job", "status", "dev/huge"])
        .env("CELL_ADDR", format!("http://{address}"))
        .output()
        .expect("cell runs");
    assert!(by_address.status.success(), "{}", text(&by_address.stderr));
    assert!(text(&by_address.stdout).contains("dev/huge"));
    let nobody = cell(&[&at[..], &["token", "revoke"]].concat());
    assert_eq!(nobody.status.code(), Some(2));
    assert!(text(&nobody.stderr).contains("--agent"), "{}", text(&nobody.stderr));
    running.stop();
}

#[test]
fn where_nobody_listens_is_told_soon_with_what_to_type() {
    let output = cell(&["--master", &free_address(), "status"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("refused") && error.contains("for a cell of your own: cell dev"));
    // With pauses that double, at most this many attempts fit into a second on the fastest machine.
    // A slower one makes fewer, and the first numbers are written as words.
    let (_, tried) = error.split_once("tried ").expect("how often it tried");
    let tried = tried.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(2);
    assert!(tried <= 10, "{error}");
}

/// The files and the address of a replica.
struct ReplicaSite {
    address: String,
    config: String,
    data: String,
}

impl ReplicaSite {
    fn new(folder: &Folder, name: &str) -> ReplicaSite {
        let config = folder.path(&format!("{name}.toml"));
        ReplicaSite { address: free_address(), config, data: folder.path(name) }
    }

    fn args(&self) -> [&str; 8] {
        let ReplicaSite { address, config, data } = self;
        ["--advertise", address, "--listen", address, "--config", config, "--data-dir", data]
    }

    fn start(&self) -> Running {
        let running = Running::spawn_args(&["master", "start", "--config", &self.config]);
        running.address();
        running
    }
}

/// Lets a replica join: an operator reads its fingerprint where it waits, and confirms it.
fn join_replica(mine: &[&str], name: &str, join: &[&str]) {
    let newcomer = Running::spawn_args(join);
    let line = newcomer.wait_for_line("cell master confirm ");
    let fingerprint = line.split_whitespace().last().unwrap().to_owned();
    let listed = stdout_of(&[mine, &["master", "ls"]].concat());
    assert!(listed.contains("waits to be confirmed") && listed.contains(&fingerprint), "{listed}");
    let another =
        fingerprint.replace(&fingerprint[..1], if &fingerprint[..1] == "0" { "1" } else { "0" });
    let output = cell(&[mine, &["master", "confirm", name, &another]].concat());
    let rejected = text(&output.stderr);
    assert!(!output.status.success() && rejected.contains("fingerprint"), "{rejected}");
    stdout_of(&[mine, &["master", "confirm", name, &fingerprint]].concat());
    newcomer.wait_for_line("is installed");
    newcomer.wait_success();
}

/// Creates a join token for a component and returns the path of its file.
fn create_token(folder: &Folder, mine: &[&str], part: &str, name: &str) -> String {
    let file = folder.path(&format!("{name}.token"));
    stdout_of(&[mine, &["token", "create", part, name, "--token-file", &file]].concat());
    file
}

#[test]
fn a_cell_with_identities_takes_in_a_replica_a_user_and_a_machine() {
    let folder = Folder::new();
    let contexts = folder.path("contexts.toml");
    let mine = ["--contexts", &contexts];
    let (first, second) = (ReplicaSite::new(&folder, "m1"), ReplicaSite::new(&folder, "m2"));
    let init = ["master", "init", "--cell", "aa", "--name", "m1"];
    let made = stdout_of(&[&mine[..], &init, &first.args()].concat());
    let next = format!("cell --contexts {contexts} --context aa master status");
    assert!(made.contains(&next), "{made}");
    let first_master = first.start();
    let status = || json(&[&mine[..], &["master", "status", "-o", "json"]].concat());
    assert_eq!(status()["members"].as_array().unwrap().len(), 1);

    let token = create_token(&folder, &mine, "--replica", "m2");
    let join = ["master", "join", "--token-file", &token, "--master", &first.address];
    let conflict = text(&cell(&[&join[..], &first.args()].concat()).stderr);
    assert!(
        conflict.contains("is there already") && conflict.contains("was not tried"),
        "{conflict}"
    );
    join_replica(&mine, "m2", &[&join[..], &second.args()].concat());
    let second_master = second.start();
    second_master.wait_for_line("this replica votes");
    let members = status()["members"].clone();
    let votes = members.as_array().unwrap().iter().filter(|member| member["voter"] == true);
    assert_eq!(votes.count(), 2);

    let known = stdout_of(&[&mine[..], &["context", "refresh"]].concat());
    assert!(known.contains(&first.address) && known.contains(&second.address), "{known}");
    let context = stdout_of(&[&mine[..], &["user", "add", "ann"]].concat());
    let (file, anns) = (folder.path("ann.toml"), folder.path("anns-contexts.toml"));
    std::fs::write(&file, context).unwrap();
    make_private(&file);
    stdout_of(&["--contexts", &anns, "context", "add", &file]);
    // It does not overwrite the administrator's own context.
    let add = [&mine[..], &["context", "add", &file]].concat();
    let rejected = text(&cell(&add).stderr);
    assert!(rejected.contains("a context \"aa\" already, with another token"), "{rejected}");
    stdout_of(&[&add[..], &["--name", "ann"]].concat());
    let users = stdout_of(&["--contexts", &anns, "user", "ls"]);
    assert!(users.contains("ann") && users.contains("admin"), "{users}");
    let rejected = cell(&["--contexts", &anns, "user", "add", "bob"]);
    assert!(text(&rejected.stderr).contains("not-allowed"), "{}", text(&rejected.stderr));

    let token = create_token(&folder, &mine, "--agent", "n1");
    let agent = folder.path("agent.toml");
    let join = ["agent", "join", "--token-file", &token, "--master", &first.address, "--config"];
    let displayed = std::fs::read_to_string(&token).unwrap();
    let output = cell(&["agent", "join", displayed.trim(), "--master", &first.address]);
    let rejected = text(&output.stderr);
    assert!(rejected.contains("stands in the command line"), "{rejected}");
    assert!(!rejected.contains(displayed.trim()), "{rejected}");
    stdout_of(&[&join[..], &[&agent]].concat());
    let again = cell(&[&join[..], &[&folder.path("other.toml")]].concat());
    assert_eq!(again.status.code(), Some(1), "a token is good once");

    let audit = stdout_of(&[&mine[..], &["audit", "--caller", "admin"]].concat());
    assert!(audit.contains("user:admin: add user ann: done"), "{audit}");
    let rejected = cell(&["--contexts", &anns, "audit"]);
    assert!(text(&rejected.stderr).contains("not-allowed"), "{}", text(&rejected.stderr));
    let tokens = stdout_of(&[&mine[..], &["token", "ls", "--user", "ann"]].concat());
    assert!(tokens.contains("user ann") && tokens.contains("for "), "{tokens}");

    stdout_of(&[&mine[..], &["master", "remove", "m2"]].concat());
    assert_eq!(status()["members"].as_array().unwrap().len(), 1);
    second_master.stop();
    first_master.stop();
}

#[test]
fn a_scheduler_apart_joins_with_a_token_and_is_started_again_without() {
    let folder = Folder::new();
    let contexts = folder.path("contexts.toml");
    let mine = ["--contexts", &contexts];
    let site = ReplicaSite::new(&folder, "m1");
    let init = ["master", "init", "--cell", "aa", "--name", "m1"];
    stdout_of(&[&mine[..], &init, &site.args()].concat());
    let config = std::fs::read_to_string(&site.config).unwrap();
    let alone = config.replace("supervise_scheduler = true", "supervise_scheduler = false");
    assert_ne!(alone, config);
    std::fs::write(&site.config, alone).unwrap();
    let master = site.start();
    let token = |kind: &str, name: &str| {
        let file = folder.path(&format!("{name}.token"));
        stdout_of(&[&mine[..], &["token", "create", kind, name, "--token-file", &file]].concat());
        file
    };
    let identity = folder.path("scheduler.toml");
    let join = |token: &str, identity: &str| -> Vec<String> {
        let words = ["scheduler", "--join", "--token-file", token, "--master", &site.address];
        words.iter().copied().chain(["--identity", identity]).map(str::to_owned).collect()
    };
    let rejected = |words: &[String], part: &str| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = cell(&words);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{words:?}: {error}");
    };
    let job = folder.path("waits.json");
    let spec = r#"{"name": "waits", "priority": 0, "task":
        {"limits": {"cpu": "1m", "ram": 33554432}, "command": ["true"]}}"#;
    std::fs::write(&job, spec).unwrap();
    stdout_of(&[&mine[..], &["run", &job]].concat());
    assert_eq!(obstacles(&mine, "admin/waits/0"), ["shard-not-served"]);
    rejected(&join(&token("--agent", "n1"), &identity), "not for a scheduler");
    let good = join(&token("--scheduler", "s1"), &identity);
    let words: Vec<&str> = good.iter().map(String::as_str).collect();
    let first = Running::spawn_args(&words);
    first.wait_for_line("scheduler s1 works for");
    first.kill();
    rejected(&good, "is there already");
    rejected(&join(words[3], &folder.path("other.toml")), "used before");
    let named = ["scheduler", "--identity", &identity, "--name", "s2"];
    rejected(&named.map(str::to_owned), "the certificate is for s1");
    let again = Running::spawn_args(&["scheduler", "--identity", &identity]);
    again.wait_for_line("scheduler s1 works for");
    let begun = std::time::Instant::now();
    while !obstacles(&mine, "admin/waits/0").is_empty() {
        assert!(begun.elapsed() < TIMEOUT, "the leader never hears of s1");
    }
    again.stop();
    master.stop();
}

/// The codes of the obstacles that keep a task pending, apart from machines.
fn obstacles(mine: &[&str], task: &str) -> Vec<String> {
    let why = json(&[mine, &["explain", task, "-o", "json"]].concat());
    let codes = why["obstacles"].as_array().unwrap().iter();
    codes.map(|obstacle| obstacle["code"].as_str().unwrap().to_owned()).collect()
}

/// Contexts contain tokens: a file that others can read is rejected.
fn make_private(file: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_checkpoint_makes_a_new_cell() {
    let folder = Folder::new();
    let contexts = folder.path("contexts.toml");
    let mine = ["--contexts", &contexts];
    let site = ReplicaSite::new(&folder, "m1");
    let init = ["master", "init", "--cell", "aa", "--name", "m1"];
    stdout_of(&[&mine[..], &init, &site.args()].concat());
    let running = site.start();
    stdout_of(&[&mine[..], &["user", "add", "ann"]].concat());
    let saved = json(&[&mine[..], &["checkpoint", "save", "-o", "json"]].concat());
    let name = saved[0]["name"].as_str().unwrap();
    let printed = stdout_of(&[&mine[..], &["checkpoint", "save"]].concat());
    let folder_of = std::path::Path::new(&site.data).join("checkpoints");
    let whole = folder_of.display().to_string();
    assert!(printed.starts_with("saved on replica m1, ") && printed.contains(&whole), "{printed}");
    let listed = stdout_of(&[&mine[..], &["checkpoint", "ls"]].concat());
    assert!(listed.contains(&format!("on replica m1, in {whole}")), "{listed}");
    running.kill();

    let data = std::path::Path::new(&site.data);
    let file = data.join("checkpoints").join(name).display().to_string();
    let displayed = json(&["checkpoint", "show", &file, "-o", "json"]);
    assert_eq!(displayed["users"], 2);
    let rejected = cell(&["checkpoint", "restore", &file, "--config", &site.config]);
    assert!(text(&rejected.stderr).contains("holds a cell already"));
    let absent = folder.path("absent.ckpt");
    let rejected = cell(&["checkpoint", "restore", &absent, "--config", "/no/such/config"]);
    assert!(text(&rejected.stderr).contains("absent.ckpt: No such file"), "the file comes first");
    restore(&site, &file);
    let running = site.start();
    let users = json(&[&mine[..], &["user", "ls", "-o", "json"]].concat());
    let names: Vec<&str> =
        users.as_array().unwrap().iter().map(|user| user["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["admin", "ann"]);
    running.stop();
}

/// Removes the log and restores the cell from this checkpoint.
fn restore(site: &ReplicaSite, file: &str) {
    for lost in ["log", "snap", "events", "audit"] {
        let lost = std::path::Path::new(&site.data).join(lost);
        if lost.exists() {
            std::fs::remove_dir_all(lost).unwrap();
        }
    }
    stdout_of(&["checkpoint", "restore", file, "--config", &site.config]);
}

#[test]
fn a_checkpoint_is_mended_by_hand() {
    let folder = Folder::new();
    let contexts = folder.path("contexts.toml");
    let mine = ["--contexts", &contexts];
    let site = ReplicaSite::new(&folder, "m1");
    let init = ["master", "init", "--cell", "aa", "--name", "m1"];
    stdout_of(&[&mine[..], &init, &site.args()].concat());
    let running = site.start();
    stdout_of(&[&mine[..], &["user", "add", "ann"]].concat());
    let saved = json(&[&mine[..], &["checkpoint", "save", "-o", "json"]].concat());
    running.kill();
    let file = std::path::Path::new(&site.data).join("checkpoints");
    let file = file.join(saved[0]["name"].as_str().unwrap()).display().to_string();
    let (state, mended) = (folder.path("state.jsonl"), folder.path("mended.ckpt"));
    let printed = stdout_of(&["checkpoint", "export", &file, "--out", &state]);
    assert!(printed.contains(&format!("next: mend it, then: cell checkpoint import {state}")));
    let again = cell(&["checkpoint", "export", &file, "--out", &state]);
    let error = text(&again.stderr);
    assert!(again.status.code() == Some(1) && error.contains(&state), "{error}");
    let users = stdout_of(&["checkpoint", "export", &file, "--table", "users"]);
    assert!(users.lines().nth(1).unwrap().starts_with(r#"{"table":"users","id":0,"#), "{users}");
    let hash = |file: &str| json(&["checkpoint", "show", file, "-o", "json"])["hash"].clone();
    stdout_of(&["checkpoint", "import", &state, "--out", &mended]);
    assert_eq!(hash(&mended), hash(&file), "nothing was touched");
    for file in [&state, &mended] {
        let permissions = std::fs::metadata(file).unwrap().permissions();
        let mode = std::os::unix::fs::PermissionsExt::mode(&permissions) & 0o777;
        assert_eq!(mode, 0o600, "{file} has secrets in it");
    }

    let whole = std::fs::read_to_string(&state).unwrap();
    let without = |parts: &[&str]| {
        let kept_lines = whole.lines().filter(|line| !parts.iter().any(|part| line.contains(part)));
        std::fs::write(&state, kept_lines.map(|line| format!("{line}\n")).collect::<String>())
            .unwrap();
    };
    let row = r#""table":"users","id":1,"name":"ann""#;
    let token = r#"{"user_token":{"user":"ann"}"#;
    let check = |part: &str| {
        let rejected = cell(&["checkpoint", "import", &state, "--check"]);
        let error = text(&rejected.stderr);
        assert!(rejected.status.code() == Some(1) && error.contains(part), "{error}");
        assert!(error.contains(&state) && error.contains("next: correct"), "{error}");
    };
    without(&[row]);
    check("the rows contradict each other: references: token");
    std::fs::write(&state, whole.replacen(r#""level":"#, r#""levels":"#, 1)).unwrap();
    check("line 1: levels: unknown field `levels`, expected one of `checkpoint`");
    std::fs::write(&state, users).unwrap();
    check("line 1: part: is true");
    without(&[r#"{"end":true}"#]);
    let cut = cell(&["checkpoint", "import", &state, "--check"]);
    let error = text(&cut.stderr);
    assert!(cut.status.code() == Some(1) && error.contains("it was cut; allowed:"), "{error}");
    let none = cell(&["checkpoint", "export", &file, "--job", "admin/stcuk"]);
    let error = text(&none.stderr);
    assert!(none.status.code() == Some(1) && error.contains("no job admin/stcuk"), "{error}");
    assert!(none.stdout.is_empty(), "{}", text(&none.stdout));
    without(&[row, token]);
    let printed = stdout_of(&["checkpoint", "import", &state, "--out", &mended]);
    assert!(
        printed.contains("every rule of the cell holds\n2 rows taken out: 1 of users"),
        "{printed}"
    );
    restore(&site, &mended);
    let running = site.start();
    let users = json(&[&mine[..], &["user", "ls", "-o", "json"]].concat());
    assert_eq!((&users[0]["name"], users.as_array().unwrap().len()), (&"admin".into(), 1));
    running.stop();
}

#[test]
fn a_join_whose_answer_was_lost_is_repeated_with_the_same_token() {
    let folder = Folder::new();
    let contexts = folder.path("contexts.toml");
    let mine = ["--contexts", &contexts];
    let site = ReplicaSite::new(&folder, "m1");
    let init = ["master", "init", "--cell", "aa", "--name", "m1"];
    stdout_of(&[&mine[..], &init, &site.args()].concat());
    let token = folder.path("n1.token");
    let running = site.start();
    stdout_of(&[&mine[..], &["token", "create", "--agent", "n1", "--token-file", &token]].concat());
    running.kill();
    let file = |ending: &str| folder.path(&format!("n1.{ending}"));
    let config = file("toml");
    let join = ["agent", "join", "--token-file", &token, "--master", &site.address];
    let join = [&join[..], &["--config", &config]].concat();
    assert_eq!(cell(&join).status.code(), Some(1), "nobody answers");
    let key = std::fs::read(file("joining")).expect("the key waits for its certificate");
    let running = site.start();
    stdout_of(&join);
    let joined = std::fs::read_to_string(file("identity")).unwrap();
    assert!(!std::path::Path::new(&file("joining")).exists());
    // As if this answer had been lost.
    std::fs::remove_file(file("identity")).unwrap();
    std::fs::remove_file(&config).unwrap();
    let another = cell(&join);
    assert!(text(&another.stderr).contains("used before"), "{}", text(&another.stderr));
    std::fs::write(file("joining"), key).unwrap();
    stdout_of(&join);
    let again = std::fs::read_to_string(file("identity")).unwrap();
    let key_of = |text: &str| text.split("PRIVATE KEY").nth(1).map(str::to_owned);
    assert!(key_of(&again).is_some() && key_of(&again) == key_of(&joined));
    running.stop();
}

/// Repeats the status command until it has this exit code and prints this text.
fn wait_for_status(mine: &[&str], code: i32, part: &str) {
    let begun = std::time::Instant::now();
    loop {
        // Only the masters in the context are asked, and not those that were learned meanwhile.
        if let ["--contexts", contexts] = mine {
            drop(std::fs::remove_file(Path::new(contexts).with_extension("masters.toml")));
        }
        let output = cell(&[mine, &["status"]].concat());
        let printed = text(&output.stdout) + &text(&output.stderr);
        // Lines are wrapped at the width of a terminal.
        let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        if output.status.code() == Some(code) && printed.contains(part) {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{part}: {printed}");
    }
}

#[test]
fn a_cell_without_a_majority_says_so_and_so_does_a_replica_that_was_removed() {
    let folder = Folder::new();
    let contexts = folder.path("contexts.toml");
    let mine = ["--contexts", &contexts];
    let (first, second) = (ReplicaSite::new(&folder, "m1"), ReplicaSite::new(&folder, "m2"));
    let init = ["master", "init", "--cell", "aa", "--name", "m1"];
    stdout_of(&[&mine[..], &init, &first.args()].concat());
    let first_master = first.start();
    let token = create_token(&folder, &mine, "--replica", "m2");
    let join = ["master", "join", "--token-file", &token, "--master", &first.address];
    join_replica(&mine, "m2", &[&join[..], &second.args()].concat());
    let second_master = second.start();
    second_master.wait_for_line("this replica votes");
    wait_for_status(&mine, 0, "cell at");
    second_master.kill();
    wait_for_status(&mine, 1, "of 2 replicas answer: m1; next: cell");
    let status = stdout_of(&[&mine[..], &["master", "status"]].concat());
    assert!(status.starts_with("nobody leads, term "), "{status}");
    assert!(status.contains("\nalarm no leader for "), "{status}");
    let printed = json(&[&mine[..], &["master", "status", "-o", "json"]].concat());
    let alarm = &printed["alarms"][0];
    assert_eq!(
        (&alarm["kind"], &printed["leader"]),
        (&"no_leader".into(), &().into()),
        "{printed}"
    );
    assert!(alarm["message"].as_str().unwrap().starts_with("no leader for "), "{printed}");
    let second_master = second.start();
    wait_for_status(&mine, 0, "cell at");

    stdout_of(&[&mine[..], &["master", "remove", "m2"]].concat());
    let left = folder.path("left.toml");
    let text = std::fs::read_to_string(&contexts).unwrap();
    assert!(text.contains(&first.address), "{text}");
    std::fs::write(&left, text.replace(&first.address, &second.address)).unwrap();
    make_private(&left);
    wait_for_status(&["--contexts", &left], 1, "this replica was removed from the cell");
    wait_for_status(&mine, 0, "cell at");
    second_master.stop();
    first_master.stop();
}

#[test]
fn the_past_of_a_running_cell_is_read_replayed_and_packed() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "3");
    let at = ["--master", &address];
    stdout_of(&[&at[..], &["run", "examples/hello.json"]].concat());
    let (user, job) = (Name::new("dev").unwrap(), Name::new("hello").unwrap());
    wait_running(&address, &JobKey { user, job }, 1);
    let data = folder.path("data");
    let here = ["--data-dir", data.as_str()];
    let log = json(&[&["checkpoint", "log", "-o", "json"], &here[..]].concat());
    let entries = log.as_array().unwrap();
    let submitted = entries.iter().find(|entry| entry["commands"]["apply_job"] == 1).unwrap();
    assert_eq!((&submitted["requests"], &submitted["rejected"]), (&1.into(), &0.into()));
    let index = submitted["index"].as_u64().unwrap();

    // Before the job, with the job, and a time after everything.
    let replay = |site: &str| {
        json(&[&["checkpoint", "replay", "-o", "json", "--at", site], &here[..]].concat())
    };
    assert_eq!(replay(&(index - 1).to_string())["jobs"], 0);
    assert_eq!(replay(&index.to_string())["tasks"], 3);
    assert_eq!(replay("2999-01-01T00:00:00Z")["tasks"], 3);
    let beyond = cell(&[&["checkpoint", "replay", "--at", "999999"], &here[..]].concat());
    assert!(text(&beyond.stderr).contains("index 999999 is not there yet: the log ends at"));

    let file = folder.path("past.ckpt");
    stdout_of(&[&["checkpoint", "replay", "--to", &file], &here[..]].concat());
    let displayed = json(&["checkpoint", "show", &file, "-o", "json"]);
    assert_eq!((&displayed["machines"], &displayed["tasks"]), (&3.into(), &3.into()));
    let trace = format!("checkpoint:{file}");
    let packed = json(&["sim", "pack", "--trace", &trace, "-o", "json"]);
    assert_eq!((&packed["placed"], &packed["pending"]), (&3.into(), &0.into()));
    let args = ["sim", "fits", "--trace", &trace, "--job", "cpu=1,ram=1GiB", "-o", "json"];
    // The job uses one and a half of twelve cores, on one machine or on several.
    let more = json(&args)["count"].as_u64().unwrap();
    assert!((9..=10).contains(&more), "{more}");
    running.stop();
}
