//! Whoever may not read what somebody's job runs asks questions whose answers would tell: what a
//! change would do, whether this is what is there already, and every route that reads.

use crate::guarded::Guarded;
use cellwright_api::client::{Change, Client, ClientError};
use cellwright_api::error::Code;
use cellwright_api::types::{PlanJobs, SqlQuery, SubmitJob};
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use serde_json::{Value, json};

/// Stands in every field that says what the job runs, and nowhere else.
const INSIDE: &str = "xyzzy";
/// What a thief tries; the right one is among them.
const GUESSES: [&str; 5] = ["hunter2", "swordfish", INSIDE, "letmein", "(hidden) "];

fn spec(secret: &str) -> JobSpec {
    let value = json!({ "name": "vault", "priority": 0, "count": 1, "task": {
        "limits": { "cpu": 10, "ram": 32 << 20 },
        "command": ["/bin/serve", INSIDE],
        "env": { "KEY": INSIDE },
        "files": { "conf": INSIDE },
        "secrets": { "password": secret },
    }});
    serde_json::from_value(value).expect("a job")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// A cell with ann's job, and others who have nothing to do with it.
async fn furnished() -> Guarded {
    let master = Guarded::start().await;
    for (user, capabilities) in
        [("ann", &[][..]), ("eve", &[]), ("ops", &["--capability", "administrate_jobs"])]
    {
        let words = [&["user", "add", user][..], capabilities].concat();
        let context = master.cell(&words).expect("a user is added");
        let file = master.folder.path(user);
        cellwright_api::context::write_private(&file, context.as_bytes()).expect("a file");
    }
    let own = master.client_as("ann");
    own.submit_job(None, &spec(INSIDE)).await.expect("ann submits it");
    master
}

/// What is answered, as far as somebody can tell answers apart.
fn told<T>(
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
    told(answer, |reply| serde_json::to_value(&reply.value.item.jobs).expect("JSON"))
}

async fn submit(client: &Client, secret: &str) -> (Option<Code>, String) {
    let answer = client.submit_job(Some(&name("ann")), &spec(secret)).await;
    told(answer, |_| json!("taken"))
}

/// On a condition that never holds, so that nothing is changed.
async fn update(client: &Client, secret: &str) -> (Option<Code>, String) {
    let change = Change { expect: Some(999), ..Change::default() };
    let answer = client.update_job(&name("ann"), &spec(secret), &change).await;
    told(answer, |_| json!("taken"))
}

#[tokio::test]
async fn no_question_tells_a_right_guess_from_a_wrong_one() {
    let master = furnished().await;
    for who in ["eve", "ops"] {
        let client = master.client_as(who);
        let mut answers: Vec<[(Option<Code>, String); 3]> = Vec::new();
        for guess in GUESSES {
            let plan = plan(&client, guess).await;
            answers.push([plan, submit(&client, guess).await, update(&client, guess).await]);
        }
        for answer in &answers {
            assert_eq!(*answer, answers[0], "{who} can tell");
        }
        if who == "ops" {
            let plan = &answers[0][0].1;
            assert!(plan.contains(r#""action":"update""#), "who may change it is told: {plan}");
        }
        if who == "eve" {
            let refused = answers[0].iter().all(|(code, _)| *code == Some(Code::NotOwner));
            assert!(refused, "{answers:?}");
        }
    }
    // The owner is told, so there is something that the others could have been told.
    let own = master.client_as("ann");
    assert_ne!(plan(&own, INSIDE).await, plan(&own, GUESSES[0]).await);
    assert_eq!(submit(&own, INSIDE).await.0, None);
}

/// Every path of the API that is read with GET, with ann's job in it.
async fn paths(client: &Client) -> Vec<String> {
    let api: Value = client.get("/v1/openapi.json").await.expect("the document").value;
    let all = api["paths"].as_object().expect("paths");
    let read = all.iter().filter(|(_, methods)| methods.get("get").is_some());
    let fill = |path: &str| {
        let filled = path.replace("{user}", "ann").replace("{job}", "vault");
        filled.replace("{index}", "0").replace("{cron}", "nightly").replace("{machine}", "m1")
    };
    read.map(|(path, _)| fill(path)).filter(|path| !path.starts_with("/v1/watch/")).collect()
}

#[tokio::test]
async fn nothing_that_can_be_read_says_what_a_job_of_somebody_else_runs() {
    let master = furnished().await;
    let (own, other) = (master.client_as("ann"), master.client_as("eve"));
    let read = |client: &Client, path: &str| {
        let (client, path) = (client.clone(), path.to_owned());
        async move { client.text(&path).await.unwrap_or_default() }
    };
    let paths = paths(&other).await;
    assert!(paths.iter().any(|path| path == "/v1/jobs/ann/vault"), "{paths:?}");
    for path in &paths {
        let said = read(&other, path).await;
        assert!(!said.contains(INSIDE), "{path}: {said}");
    }
    assert!(read(&own, "/v1/jobs/ann/vault").await.contains(INSIDE), "the owner reads it");
    for table in ["events", "job_events", "task_events", "other_events"] {
        let query = format!("select * from {table}");
        let query = SqlQuery { query, args: Vec::new(), limit: None };
        let answer = other.sql(&query).await.expect("rows").value;
        let rows = serde_json::to_string(&answer.rows).expect("JSON");
        assert!(!rows.contains(INSIDE), "{table}: {rows}");
    }
}
