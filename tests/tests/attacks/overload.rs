//! One user asks for more than its share, in each way there is, and another goes on as if nothing
//! was. Outcomes and counts are looked at and no times.

use cellwright_agent::open_files;
use cellwright_api::client::{ApiClientConfig, ChangeOptions, Client, ClientError};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{
    Changed, CheckpointView, NodeSpec, One, ResourceView, SetResource, SqlAnswer, SqlQuery,
    SubmitJob,
};
use cellwright_cell::ephemeral::CapacityChange;
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Span;
use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::{start_open_cell, start_secure_master_with};
use cellwright_tests::process::Process;
use cellwright_tests::replicas::settings;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use hyper::Method;
use serde_json::json;
use std::net::TcpStream as Plain;
use std::process::Command;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

struct Master {
    process: Process,
    address: String,
    folder: Folder,
}

impl Master {
    async fn start() -> Master {
        Master::start_with(&[]).await
    }

    /// With settings other than the usual ones.
    async fn start_with(changes: &[(&str, &str)]) -> Master {
        let folder = Folder::new();
        let (process, address) = start_secure_master_with(&folder, changes).await;
        let master = Master { process, address, folder };
        let ready = master.client("contexts.toml").text("/readyz").await;
        assert!(ready.is_ok(), "{ready:?}\n{}", master.process.output());
        master
    }

    /// Whoever the contexts file speaks of, on connections of its own.
    fn client(&self, contexts: &str) -> Client {
        let settings = settings(&self.folder.path(contexts));
        let settings = ApiClientConfig { attempt_timeout: TIMEOUT, deadline: TIMEOUT, ..settings };
        Client::new(settings).expect("a client")
    }

    fn user(&self, user: &str) -> Client {
        let mut command = Command::new(cell());
        command.arg("--contexts").arg(self.folder.path("contexts.toml"));
        let context = command_output(command.args(["user", "add", user])).expect("a user is added");
        let file = self.folder.path(user);
        cellwright_identity::private_files::write_private(&file, context.as_bytes())
            .expect("a file");
        self.client(user)
    }

    /// The same master again, without anything it had in memory.
    async fn restart(self) -> Master {
        let Master { process, address, folder } = self;
        process.kill();
        let mut start = Command::new(cell());
        start.args(["master", "start", "--config"]).arg(folder.path("master.toml"));
        let mut process = Process::start(start, &folder.path("master.log"));
        let begin = Instant::now();
        while Plain::connect(&address).is_err() {
            assert!(process.is_alive() && begin.elapsed() < TIMEOUT, "{}", process.output());
            sleep(POLL_INTERVAL).await;
        }
        Master { process, address, folder }
    }
}

fn spec(name: &str, count: u32) -> JobSpec {
    let spec = json!({
        "name": name, "priority": 0, "count": count,
        "task": { "limits": { "cpu": 0, "ram": 0 }, "command": ["true"] },
    });
    serde_json::from_value(spec).expect("a spec")
}

async fn submit(client: &Client, spec: &JobSpec, key: Option<&str>) -> Result<(), ClientError> {
    let change = ChangeOptions { key: key.map(str::to_owned), ..ChangeOptions::default() };
    let body = SubmitJob { owner: None, spec: spec.clone() };
    let done = client.change::<_, Changed>(Method::POST, "/v1/jobs", Some(&body), &change).await;
    done.map(drop)
}

/// The refusal itself, without what the client says around it.
fn rejection(error: &ClientError) -> &ApiError {
    error.api().unwrap_or_else(|| panic!("a refusal, not {error}"))
}

#[tokio::test]
async fn watches_of_one_user_are_bounded_and_others_go_on() {
    const REQUESTED: usize = 160;
    const ALLOWED: usize = 64;
    let master = Master::start().await;
    let (ann, ben) = (master.user("ann"), master.user("ben"));
    let mut held = Vec::new();
    let mut rejected = Vec::new();
    for number in 0..REQUESTED {
        // On a few connections at a time, as a page or a program has them.
        let client = if number % 8 == 0 { &master.client("ann") } else { &ann };
        let path = ["/v1/watch/jobs", "/v1/watch/overview", "/v1/watch/events"][number % 3];
        match client.download_at(&master.address, path, TIMEOUT).await {
            Ok(stream) => held.push(stream),
            Err(error) => rejected.push(error),
        }
    }
    assert_eq!((held.len(), rejected.len()), (ALLOWED, REQUESTED - ALLOWED));
    for error in &rejected {
        let rejection = rejection(error);
        assert_eq!(rejection.code, Code::Overloaded, "{rejection}");
        assert_eq!(rejection.details["limit"], json!(ALLOWED), "{rejection}");
        assert_eq!(rejection.details["setting"], json!("streams_per_user"));
        assert!(rejection.retry_after().is_some());
    }
    submit(&ben, &spec("web", 1), None).await.expect("another's write");
    let watch = ben.download_at(&master.address, "/v1/watch/jobs", TIMEOUT).await;
    drop(watch.expect("another's stream"));
    // What is going on comes through those that were let in.
    let first = held[0].next().await.expect("a stream that goes on");
    assert!(first.is_some());
    drop(held);
    let begin = Instant::now();
    while let Err(error) = ann.download_at(&master.address, "/v1/watch/jobs", TIMEOUT).await {
        assert!(begin.elapsed() < TIMEOUT, "places are given back: {error}");
        sleep(POLL_INTERVAL).await;
    }
}

/// Bytes of memory of its own that the process has.
fn memory(process: &Process) -> u64 {
    let path = format!("/proc/{}/status", process.id());
    let status = std::fs::read_to_string(path).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kilobytes << 10
}

#[tokio::test]
async fn memory_of_a_thousand_watches_is_returned() {
    const WATCHES: usize = 1000;
    let wide = [
        ("streams_per_user = 64", "streams_per_user = 1000"),
        ("connections_per_identity = 256", "connections_per_identity = 2000"),
    ];
    let master = Master::start_with(&wide).await;
    // After the master has begun: it sees to its own limit.
    open_files::raise();
    let (ann, ben) = (master.user("ann"), master.user("ben"));
    for number in 0..50 {
        let mut spec = spec(&format!("job-{number}"), 1);
        spec.task.env.insert("TEXT".into(), "x".repeat(4000));
        submit(&ben, &spec, None).await.expect("a job to be told of");
    }
    let before = memory(&master.process);
    let mut held = Vec::new();
    for _ in 0..WATCHES {
        // Each on a connection of its own: buffers of connections are what takes most.
        let client = master.client("ann");
        let mut stream = client.download_at(&master.address, "/v1/watch/jobs", TIMEOUT).await;
        let first = stream.as_mut().expect("a watch").next().await;
        assert!(first.expect("it goes on").is_some());
        held.push(stream);
    }
    submit(&ben, &spec("meanwhile", 1), None).await.expect("another's write");
    let grown = memory(&master.process).saturating_sub(before);
    assert!(grown > 16 << 20, "{grown} bytes are too few to tell anything from");
    drop((held, ann));
    let begin = Instant::now();
    while memory(&master.process) > before + grown / 2 {
        let now = memory(&master.process);
        assert!(begin.elapsed() < TIMEOUT, "{before} before, {grown} more in it, {now} now");
        sleep(POLL_INTERVAL).await;
    }
}

/// Soft and hard limit of files that a process may have open.
fn open_files_limit(process: u32) -> [String; 2] {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let mut words = line.split_whitespace().skip(3).map(str::to_owned);
    std::array::from_fn(|_| words.next().expect("a number"))
}

/// Whoever is given few descriptors by a login shell runs out of them with a crowd of callers.
#[tokio::test]
async fn who_serves_may_open_all_it_can_and_its_tasks_what_it_was_given() {
    const INITIAL_LIMIT: &str = "300";
    let folder = Folder::new();
    let mut dev = Command::new("sh");
    dev.args(["-c", r#"ulimit -S -n "$0" && exec "$@""#, INITIAL_LIMIT]).arg(cell());
    dev.args(["dev", "--listen", "127.0.0.1:0", "--driver", "process", "--data-dir"]);
    dev.arg(folder.path("data"));
    let process = Process::start(dev, &folder.path("cell.log"));
    let begin = Instant::now();
    let address = loop {
        let output = process.output();
        if let Some((_, rest)) = output.split_once("serves http://") {
            break rest.split_whitespace().next().unwrap_or_default().to_owned();
        }
        assert!(begin.elapsed() < TIMEOUT, "the cell does not start:\n{output}");
        sleep(POLL_INTERVAL).await;
    };
    let [soft, hard] = open_files_limit(process.id());
    let (soft, hard) = (soft.parse::<u64>().expect("a number"), hard.parse::<u64>());
    assert_eq!(soft, hard.map_or(1 << 20, |hard| hard.min(1 << 20)));
    let report_file = folder.path("told");
    let mut job = spec("counts", 1);
    let script =
        format!("ulimit -S -n > {0}.new; mv {0}.new {0}; sleep 1000", report_file.display());
    job.task.command = ["sh", "-c", &script].map(str::to_owned).to_vec();
    job.task.limits.ram = 64 << 20;
    let client = Client::new(ApiClientConfig::new(vec![address])).expect("a client");
    let body = SubmitJob { owner: Some(Name::new("dev").expect("a name")), spec: job };
    let any = ChangeOptions::default();
    let added = client.change::<_, Changed>(Method::POST, "/v1/jobs", Some(&body), &any).await;
    added.expect("a job");
    let begin = Instant::now();
    while !report_file.exists() {
        assert!(begin.elapsed() < TIMEOUT, "the task does not run:\n{}", process.output());
        sleep(POLL_INTERVAL).await;
    }
    assert_eq!(std::fs::read_to_string(&report_file).expect("a file").trim(), INITIAL_LIMIT);
}

#[tokio::test]
async fn slow_queries_of_one_user_wait_for_each_other_and_for_nobody_else() {
    const SLOW: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                        SELECT max(i) FROM n";
    // However slow the machine is, none of them is ended before the others have had their turn.
    let no_end = format!("sql_time = \"{}s\"", TIMEOUT.as_secs());
    let master = Master::start_with(&[("sql_time = \"30s\"", &no_end)]).await;
    let (ann, ben) = (master.user("ann"), master.user("ben"));
    let query = |text: &str| SqlQuery { query: text.into(), args: vec![], limit: None };
    let slow: Vec<_> = (0..8)
        .map(|_| {
            let (ann, query) = (ann.clone(), query(SLOW));
            tokio::spawn(async move { ann.sql(&query).await.map(drop) })
        })
        .collect();
    // One of them is at work when this one comes, or will be before it is over.
    for _ in 0..3 {
        let answer = ben.sql(&query("SELECT 7")).await.expect("another's query").value;
        let SqlAnswer { rows, .. } = answer;
        assert_eq!(rows.len(), 1);
    }
    assert!(slow.iter().all(|query| !query.is_finished()), "it waited for none of them");
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Sends all but the end of a body of eight mebibytes, and gives back what is answered.
async fn send_unfinished_body(address: String, token: String) -> String {
    let mut stream = TcpStream::connect(&address).await.expect("a connection");
    let length = 8 << 20;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         authorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    let (mut from, mut to) = stream.split();
    let sending = async {
        // Whoever is refused may find the connection closed.
        let _ = to.write_all(&vec![b' '; length - 1]).await;
        std::future::pending::<()>().await;
    };
    let mut answer = vec![0; 12];
    tokio::select! {
        read = timeout(TIMEOUT, from.read_exact(&mut answer)) => {
            read.expect("an answer in time").expect("an answer");
        }
        () = sending => {}
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn bodies_that_never_end_are_cut_and_bounded() {
    let folder = Folder::new();
    let (_process, address) = start_open_cell(&folder, &[]).await;
    let found_token = cellwright_identity::dev_token::token_for(std::slice::from_ref(&address));
    let token = found_token.expect("the cell's own account finds its token").expose().to_owned();
    let bodies =
        (0..12).map(|_| tokio::spawn(send_unfinished_body(address.clone(), token.clone())));
    let mut answers = Vec::new();
    for body in bodies.collect::<Vec<_>>() {
        answers.push(body.await.expect("it ends"));
    }
    let count = |status: &str| answers.iter().filter(|answer| answer.ends_with(status)).count();
    // Eight of them are all that one caller may hold; those wait out their time.
    assert_eq!(count("408") + count("429"), answers.len(), "{answers:?}");
    assert!(count("408") > 0 && count("429") > 0, "{answers:?}");
    let client = Client::new(ApiClientConfig::new(vec![address])).expect("a client");
    let body = json!({ "name": "afterwards" });
    let added = client.create::<_, Changed>(Method::POST, "/v1/users", Some(&body)).await;
    added.expect("what was held is free again");
}

#[tokio::test]
async fn connections_of_one_user_are_bounded_by_its_tokens_too() {
    const ALLOWED: usize = 8;
    let few = ("connections_per_identity = 256", "connections_per_identity = 8");
    let master = Master::start_with(&[few]).await;
    let (ann, ben) = (master.user("ann"), master.user("ben"));
    let watch = "/v1/watch/jobs";
    let mut held = Vec::new();
    for _ in 0..ALLOWED {
        // Each on a connection of its own, which a stream keeps.
        let client = master.client("ann");
        let stream = client.download_at(&master.address, watch, TIMEOUT).await;
        held.push(stream.expect("one of those it may have"));
    }
    let Err(error) = ann.download_at(&master.address, watch, TIMEOUT).await else {
        panic!("one too many");
    };
    let rejection = rejection(&error);
    assert_eq!(rejection.code, Code::Overloaded, "{rejection}");
    assert_eq!(rejection.details["setting"], json!("connections_per_identity"), "{rejection}");
    assert!(held[0].next().await.expect("those it has go on").is_some());
    let other = ben.download_at(&master.address, watch, TIMEOUT).await;
    drop(other.expect("another's"));
    drop(held);
    let begin = Instant::now();
    while let Err(error) = ann.download_at(&master.address, watch, TIMEOUT).await {
        assert!(begin.elapsed() < TIMEOUT, "places are given back: {error}");
        sleep(POLL_INTERVAL).await;
    }
}

/// Of sixty kilobytes each: what the system buffers of an answer is less than all of them.
const JOBS: usize = 300;

/// Asks for all jobs and reads the first line of what is answered, and no more.
async fn read_first_line_only(address: String, token: String) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(&address).await.expect("a connection");
    let head = format!(
        "GET /v1/jobs?limit={JOBS} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    let mut answer = vec![0; 12];
    let read = timeout(TIMEOUT, stream.read_exact(&mut answer)).await;
    read.expect("an answer in time").expect("an answer");
    (String::from_utf8_lossy(&answer).into_owned(), stream)
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded() {
    let folder = Folder::new();
    let (_process, address) = start_open_cell(&folder, &[]).await;
    let client = Client::new(ApiClientConfig::new(vec![address.clone()])).expect("a client");
    for number in 0..JOBS {
        let mut spec = spec(&format!("large-{number}"), 1);
        spec.task.env.insert("TEXT".into(), "x".repeat(60_000));
        // More than there is: it waits.
        spec.task.limits.ram = 1 << 45;
        let body = SubmitJob { owner: Some(Name::new("dev").expect("a name")), spec };
        let any = ChangeOptions::default();
        let added = client.change::<_, Changed>(Method::POST, "/v1/jobs", Some(&body), &any).await;
        added.expect("a large job");
    }
    let found_token = cellwright_identity::dev_token::token_for(std::slice::from_ref(&address));
    let token = found_token.expect("the cell's own account finds its token").expose().to_owned();
    let mut answers = Vec::new();
    for _ in 0..12 {
        answers.push(read_first_line_only(address.clone(), token.clone()).await);
    }
    let count = |status: &str| answers.iter().filter(|(said, _)| said.ends_with(status)).count();
    let (given, rejected) = (count("200"), count("429"));
    // Each has 18 megabytes, and one caller may hold 64 mebibytes.
    assert!(
        (1..=4).contains(&given) && rejected == 12 - given,
        "{given} given, {rejected} refused"
    );
    drop(answers);
    let begin = Instant::now();
    while read_first_line_only(address.clone(), token.clone()).await.0.ends_with("429") {
        assert!(begin.elapsed() < TIMEOUT, "what was held is free again");
        sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test]
async fn what_was_refused_does_not_fill_the_state_and_nothing_is_free_of_charge() {
    let master = Master::start().await;
    let (admin, ann) = (master.client("contexts.toml"), master.user("ann"));
    let saved = async || -> u64 {
        let made = admin.create::<(), One<CheckpointView>>(Method::POST, "/v1/checkpoints", None);
        made.await.expect("a checkpoint").value.item.bytes
    };
    let before = saved().await;
    for number in 0..150 {
        let mut spec = spec("web", 1);
        spec.task.env.insert(format!("{number}{}", "K".repeat(60_000)), "a\0b".into());
        let error = submit(&ann, &spec, Some(&format!("key-{number}"))).await.expect_err("refused");
        let rejection = rejection(&error);
        assert_eq!(rejection.code, Code::BadField);
        assert!(rejection.message.len() < 4_000, "{} bytes", rejection.message.len());
    }
    let grown = saved().await.saturating_sub(before);
    assert!(grown < 1 << 20, "a checkpoint grew by {grown} bytes");
    // Zero limits, above the band that is free: a thousand tasks take ten cores of quota.
    let mut tiny = spec("tiny", 1000);
    tiny.priority.0 = 100;
    let quota = json!({ "amount": { "cpu": 1000, "ram": 1 << 30 } });
    let path = "/v1/users/ann/quota/batch";
    let any = ChangeOptions::default();
    let granted = admin.change::<_, Changed>(Method::PUT, path, Some(&quota), &any).await;
    granted.expect("a quota");
    let error = submit(&ann, &tiny, None).await.expect_err("not for nothing");
    assert_eq!(rejection(&error).code, Code::QuotaExceeded, "{error}");
    tiny.count = 10;
    submit(&ann, &tiny, None).await.expect("what it pays for");
}

#[tokio::test]
async fn a_resource_set_again_under_its_key_is_set_once_whoever_leads() {
    let master = Master::start().await;
    let admin = master.client("contexts.toml");
    let machine = json!({ "name": "m1", "capacity": { "cpu": 1000, "ram": 1 << 30 } });
    let any = ChangeOptions::default();
    let added =
        admin.change::<_, Changed>(Method::POST, "/v1/machines", Some(&machine), &any).await;
    added.expect("a machine");
    let ann = master.user("ann");
    let set = SetResource {
        capacity: CapacityChange::Add(3),
        nodes: NodeSpec::Node(Name::new("m1").expect("a name")),
        lease: Span::seconds(3600),
    };
    let change = ChangeOptions { key: Some("the-same".into()), ..ChangeOptions::default() };
    let path = "/v1/resources/app/slot";
    let first = ann.change::<_, Changed>(Method::PUT, path, Some(&set), &change).await;
    let first = first.expect("it is set").value;
    // A leader of another life: it remembers what the log does and nothing else.
    let master = master.restart().await;
    let ann = master.client("ann");
    let again = ann.change::<_, Changed>(Method::PUT, path, Some(&set), &change).await;
    let again = again.expect("the same request, and no other").value;
    assert_eq!((again.changed, first.changed), (true, true), "the first answer again");
    let resource = ann.get::<One<ResourceView>>(path).await.expect("it is there").value.item;
    let capacity: Vec<_> = resource.machines.iter().map(|here| here.capacity).collect();
    assert_eq!(capacity, [Some(3)], "added once");
    let other = SetResource { capacity: CapacityChange::Add(4), ..set };
    let other = ann.change::<_, Changed>(Method::PUT, path, Some(&other), &change).await;
    assert_eq!(rejection(&other.expect_err("another request")).code, Code::KeyReused);
}
