//! Whoever may not read what somebody's job runs asks questions whose answers would tell: what a
//! change would do, whether this is what is there already, and every route that reads.

use crate::secure_master::SecureMaster;
use cellwright_api::client::{ApiClientConfig, ChangeOptions, Client, ClientError};
use cellwright_api::error::Code;
use cellwright_api::types::{Changed, PlanJobs, SqlQuery, SubmitJob};
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use cellwright_tests::TIMEOUT;
use cellwright_tests::replicas::settings;
use hyper::Method;
use serde_json::{Value, json};
use std::time::Instant;

/// Stands in every field that says what the job runs, and nowhere else.
const SECRET: &str = "xyzzy";
/// What a thief tries; the right one is among them.
const GUESSES: [&str; 5] = ["hunter2", "swordfish", SECRET, "letmein", "(hidden) "];

fn spec(secret: &str) -> JobSpec {
    let value = json!({ "name": "vault", "priority": 0, "count": 1, "task": {
        "limits": { "cpu": 10, "ram": 32 << 20 },
        "command": ["/bin/serve", SECRET],
        "env": { "KEY": SECRET },
        "files": { "conf": SECRET },
        "secrets": { "password": secret },
    }});
    serde_json::from_value(value).expect("a job")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// A cell with ann's job, and others who have nothing to do with it.
async fn start_with_jobs() -> SecureMaster {
    let master = SecureMaster::start().await;
    for (user, capabilities) in
        [("ann", &[][..]), ("eve", &[]), ("ops", &["--capability", "administrate_jobs"])]
    {
        let words = [&["user", "add", user][..], capabilities].concat();
        let context = master.cell(&words).expect("a user is added");
        let file = master.folder.path(user);
        cellwright_identity::private_files::write_private(&file, context.as_bytes())
            .expect("a file");
    }
    let own = master.client_as("ann");
    own.submit_job(None, &spec(SECRET)).await.expect("ann submits it");
    master
}

/// What is answered, as far as somebody can tell answers apart.
fn comparable_answer<T>(
    answer: Result<T, ClientError>,
    plain: impl FnOnce(T) -> Value,
) -> (Option<Code>, String) {
    match answer {
        Ok(value) => (None, plain(value).to_string()),
        Err(error) => (error.code(), error.to_string()),
    }
}

async fn plan(client: &Client, secret: &str) -> (Option<Code>, String) {
    let jobs = vec![SubmitJob { owner: Some(name("ann")), spec: spec(secret) }];
    let answer = client.plan(&PlanJobs { jobs }).await;
    comparable_answer(answer, |reply| serde_json::to_value(&reply.value.item.jobs).expect("JSON"))
}

async fn submit(client: &Client, secret: &str) -> (Option<Code>, String) {
    let answer = client.submit_job(Some(&name("ann")), &spec(secret)).await;
    comparable_answer(answer, |_| json!("taken"))
}

/// On a condition that never holds, so that nothing is changed.
async fn update(client: &Client, secret: &str) -> (Option<Code>, String) {
    let change = ChangeOptions { expect: Some(999), ..ChangeOptions::default() };
    let answer = client.update_job(&name("ann"), &spec(secret), &change).await;
    comparable_answer(answer, |_| json!("taken"))
}

#[tokio::test]
async fn no_question_tells_a_right_guess_from_a_wrong_one() {
    let master = start_with_jobs().await;
    for account in ["eve", "ops"] {
        let client = master.client_as(account);
        let mut answers: Vec<[(Option<Code>, String); 3]> = Vec::new();
        for guess in GUESSES {
            let plan = plan(&client, guess).await;
            answers.push([plan, submit(&client, guess).await, update(&client, guess).await]);
        }
        for answer in &answers {
            assert_eq!(*answer, answers[0], "{account} can tell");
        }
        if account == "ops" {
            let plan = &answers[0][0].1;
            assert!(plan.contains(r#""action":"update""#), "who may change it is told: {plan}");
        }
        if account == "eve" {
            let is_rejected = answers[0].iter().all(|(code, _)| *code == Some(Code::NotOwner));
            assert!(is_rejected, "{answers:?}");
        }
    }
    // The owner is told, so there is something that the others could have been told.
    let own = master.client_as("ann");
    assert_ne!(plan(&own, SECRET).await, plan(&own, GUESSES[0]).await);
    assert_eq!(submit(&own, SECRET).await.0, None);
}

/// What is put for the names in paths. All of it is there, but for the package: its digest is one
/// that nobody has.
const NAMES: [(&str, &str); 8] = [
    ("{user}", "ann"),
    ("{job}", "vault"),
    ("{index}", "0"),
    ("{cron}", "nightly"),
    ("{machine}", "m1"),
    ("{namespace}", "app"),
    ("{name}", "slot"),
    ("{digest}", "0000000000000000000000000000000000000000000000000000000000000000"),
];
/// What a stream says once it has told all there is.
const STILL_HERE: &str = ": still here";

/// Whoever asks with the time that a machine under load takes.
fn patient_client(master: &SecureMaster, account: &str) -> Client {
    let settings = settings(&master.folder.path(account));
    let settings = ApiClientConfig { attempt_timeout: TIMEOUT, deadline: TIMEOUT, ..settings };
    Client::new(settings).expect("a client")
}

/// Adds a machine, ann's resource on it and a cron of hers, which [`NAMES`] names.
async fn add_names(master: &SecureMaster) {
    let (admin, own) = (patient_client(master, "contexts.toml"), patient_client(master, "ann"));
    let machine = json!({ "name": "m1", "capacity": { "cpu": 1000, "ram": 1 << 30 } });
    let slots = json!({ "capacity": { "add": 3 }, "nodes": { "node": "m1" } });
    let mut job = serde_json::to_value(spec(SECRET)).expect("JSON");
    job["name"] = "nightly".into();
    let nightly = json!({ "name": "nightly", "schedule": "0 3 * * *", "job": job });
    for (client, method, path, body) in [
        (&admin, Method::POST, "/v1/machines", machine),
        (&own, Method::PUT, "/v1/resources/app/slot", slots),
        (&own, Method::PUT, "/v1/crons/ann/nightly", nightly),
    ] {
        let any = ChangeOptions::default();
        let added = client.change::<_, Changed>(method, path, Some(&body), &any).await;
        added.unwrap_or_else(|why| panic!("{path}: {why}"));
    }
}

/// Every path of the API that is read with GET, with ann's job in it; those of streams apart.
async fn paths(client: &Client) -> (Vec<String>, Vec<String>) {
    let api: Value = client.get("/v1/openapi.json").await.expect("the document").value;
    let all = api["paths"].as_object().expect("paths");
    let read = all.iter().filter(|(_, methods)| methods.get("get").is_some());
    let fill = |path: &String| {
        let filled = NAMES.iter().fold(path.clone(), |path, (name, word)| path.replace(name, word));
        assert!(!filled.contains('{'), "{filled}: a name that the test does not know");
        filled
    };
    read.map(|(path, _)| fill(path)).partition(|path| !path.starts_with("/v1/watch/"))
}

/// A refusal because of who asks or how: what is asked for is there, and nothing is broken.
fn is_refused(path: &str, error: &ClientError) -> bool {
    let Some(code) = error.code() else { return false };
    let is_absent = code.status() == 404 && !path.starts_with("/v1/blobs/");
    code.status() < 500 && !is_absent
}

/// What a path says; a refusal says nothing of what is inside.
async fn read(client: &Client, path: &str) -> String {
    let error = match client.text(path).await {
        Ok(body) => return body,
        Err(error) => error,
    };
    assert!(is_refused(path, &error), "{path}: {error}");
    error.to_string()
}

/// What a stream says from its beginning until it has nothing more to tell.
async fn read_stream(client: &Client, address: &str, path: &str) -> String {
    let mut stream = match client.download_at(address, path, TIMEOUT).await {
        Ok(stream) => stream,
        Err(error) => {
            assert!(is_refused(path, &error), "{path}: {error}");
            return error.to_string();
        }
    };
    let (begun, mut body) = (Instant::now(), String::new());
    while !body.contains(STILL_HERE) {
        assert!(begun.elapsed() < TIMEOUT, "{path} goes on and on: {body}");
        let piece = stream.next().await.unwrap_or_else(|why| panic!("{path}: {why}"));
        let piece = piece.unwrap_or_else(|| panic!("{path} ended: {body}"));
        body.push_str(&String::from_utf8_lossy(&piece));
    }
    body
}

/// What all of them say: at once, since each waits until nothing has happened for a while. Those
/// that tell of changes do so from now on, and once more from the first change.
async fn read_all_streams(
    client: &Client,
    address: &str,
    paths: &[String],
) -> Vec<(String, String)> {
    let from_start = ["/v1/watch/jobs", "/v1/watch/job_rows", "/v1/watch/events"];
    assert!(from_start.iter().all(|path| paths.iter().any(|known| known == path)), "{paths:?}");
    let again = from_start.map(|path| format!("{path}?after=0"));
    let each = paths.iter().cloned().chain(again).map(|path| async move {
        let body = read_stream(client, address, &path).await;
        (path, body)
    });
    futures::future::join_all(each).await
}

#[tokio::test]
async fn nothing_that_can_be_read_says_what_a_job_of_somebody_else_runs() {
    let master = start_with_jobs().await;
    add_names(&master).await;
    let (own, other) = (patient_client(&master, "ann"), patient_client(&master, "eve"));
    let (paths, streams) = paths(&other).await;
    assert!(paths.iter().any(|path| path == "/v1/jobs/ann/vault"), "{paths:?}");
    for path in &paths {
        let body = read(&other, path).await;
        assert!(!body.contains(SECRET), "{path}: {body}");
    }
    for path in ["/v1/jobs/ann/vault", "/v1/crons/ann/nightly"] {
        assert!(read(&own, path).await.contains(SECRET), "{path}: the owner reads it");
    }
    let streams_read = read_all_streams(&other, &master.address, &streams).await;
    for (path, body) in &streams_read {
        assert!(!body.contains(SECRET), "{path}: {body}");
    }
    // The job is told of, so there is something that could have been told with it.
    for path in ["/v1/watch/jobs", "/v1/watch/job_rows", "/v1/watch/events?after=0"] {
        let body = streams_read.iter().find(|(watched, _)| watched == path).map(|(_, said)| said);
        assert!(body.is_some_and(|said| said.contains("vault")), "{path}: {body:?}");
    }
    for table in ["events", "job_events", "task_events", "other_events"] {
        let query = format!("select * from {table}");
        let query = SqlQuery { query, args: Vec::new(), limit: None };
        let answer = other.sql(&query).await.expect("rows").value;
        let rows = serde_json::to_string(&answer.rows).expect("JSON");
        assert!(!rows.contains(SECRET), "{table}: {rows}");
    }
}
