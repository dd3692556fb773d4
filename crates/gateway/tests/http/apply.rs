//! Applying jobs over HTTP: the answer for each outcome, the version check, the dry run, and
//! concurrent callers. And alarms, as a list and as metrics.

use crate::plan::{report, running_cell, submit_as_system};
use crate::support::{Cell, CellOptions, TestResponse, job, machine, user, within};
use cellwright_cell::bounds::Bounds;
use cellwright_cell::command::{Command, Observed};
use cellwright_cell::id::MachineId;
use cellwright_cell::notice::LongestNotice;
use cellwright_cell::time::Span;
use cellwright_master::config::MasterConfig;
use serde_json::{Value, json};

const APPLY: &str = "POST /v1/apply";

fn owned_by_ubar(spec: Value) -> Value {
    json!({ "owner": "ubar", "spec": spec })
}

/// `jfoo` of two tasks as in the cell of [`running_cell`], with another label.
fn labelled(team: &str) -> Value {
    let mut spec = job("jfoo", 2);
    spec["labels"]["team"] = json!(team);
    spec
}

async fn apply(cell: &Cell, spec: Value) -> Value {
    cell.must(APPLY, owned_by_ubar(spec)).await.body
}

fn outcome(body: &Value) -> (&str, u64, Option<u64>, bool) {
    let (became, version) = (body["became"].as_str().unwrap(), body["version"].as_u64().unwrap());
    (became, version, body["closed_update"].as_u64(), body["dry_run"].as_bool().unwrap())
}

fn check_rejected(got: &TestResponse, status: u16, code: &str) {
    assert_eq!((got.status, got.code()), (status, code), "{}", got.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_creates_updates_closes_and_leaves_alone() {
    let cell = running_cell().await;
    let same = apply(&cell, job("jfoo", 2)).await;
    assert_eq!(outcome(&same), ("unchanged", 1, None, false));
    assert_eq!((&same["user"], &same["name"]), (&json!("ubar"), &json!("jfoo")));
    assert_eq!(outcome(&apply(&cell, labelled("a")).await), ("updated", 2, None, false));
    assert_eq!(outcome(&apply(&cell, labelled("b")).await), ("updated", 3, Some(2), false));
    // A caller that applies its own job need not name the owner.
    let own = json!({ "spec": job("jnew", 1) });
    let made = cell.ask_as(&user("ubar"), APPLY, &[], own).await;
    assert_eq!(outcome(&made.body), ("created", 1, None, false), "{}", made.text);
    assert_eq!(made.body["user"], "ubar");
    // A running update is an obstacle, and the hint names the command to type.
    let mut rolls = labelled("b");
    rolls["task"]["command"] = json!(["/bin/false"]);
    assert_eq!(outcome(&apply(&cell, rolls).await), ("updated", 4, Some(3), false));
    let open = cell.ask(APPLY, owned_by_ubar(labelled("c"))).await;
    check_rejected(&open, 409, "wrong-state");
    assert!(open.text.contains("cell update close ubar/jfoo"), "{}", open.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_guards_it_and_the_present_one_is_answered() {
    let cell = running_cell().await;
    for (target, headers, expected) in [
        ("POST /v1/apply?expect=0", &[][..], 0),
        (APPLY, &[("if-match", "7")][..], 7),
        ("POST /v1/apply?dry_run=true&expect=7", &[][..], 7),
    ] {
        let body = owned_by_ubar(labelled("a"));
        let stale = cell.ask_as(&user("ubar"), target, headers, body).await;
        check_rejected(&stale, 412, "stale-version");
        let details = &stale.body["details"];
        assert_eq!((&details["expected"], &details["found"]), (&json!(expected), &json!(1)));
    }
    let none = cell.ask("POST /v1/apply?expect=3", owned_by_ubar(job("jnew", 1))).await;
    check_rejected(&none, 412, "stale-version");
    assert_eq!(none.body["details"]["found"], 0);
    let right = cell.must("POST /v1/apply?expect=1", owned_by_ubar(labelled("a"))).await.body;
    assert_eq!(outcome(&right), ("updated", 2, None, false));
    let new = cell.must("POST /v1/apply?expect=0", owned_by_ubar(job("jnew", 1))).await.body;
    assert_eq!(outcome(&new), ("created", 1, None, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    let cell = running_cell().await;
    let dry = "POST /v1/apply?dry_run=true";
    let before = cell.handle().read();
    let same = cell.must(dry, owned_by_ubar(job("jfoo", 2))).await.body;
    assert_eq!((outcome(&same), &same["changes"]), (("unchanged", 1, None, true), &json!([])));
    let new = cell.must(dry, owned_by_ubar(job("jnew", 1))).await.body;
    assert_eq!((outcome(&new), &new["changes"]), (("created", 1, None, true), &json!([])));
    assert_eq!((&same["expect"], &new["expect"]), (&json!(1), &json!(0)));
    let mut other = labelled("a");
    other["task"]["command"] = json!(["/bin/false"]);
    let update = cell.must(dry, owned_by_ubar(other)).await.body;
    assert_eq!(outcome(&update), ("updated", 2, None, true));
    assert_eq!(update["class"], "restart");
    let changes = update["changes"].as_array().unwrap();
    let paths: Vec<&str> = changes.iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["labels.team", "task.command"]);
    assert_eq!((&changes[0]["old"], &changes[0]["new"]), (&Value::Null, &json!("a")));
    // What would be rejected is rejected in the dry run, with the same hints.
    let mut greedy = job("jnew", 1);
    greedy["task"]["limits"]["cpu"] = json!(100_000);
    let [real, tried] = [APPLY, dry].map(|target| cell.ask(target, owned_by_ubar(greedy.clone())));
    let (real, tried) = (real.await, tried.await);
    check_rejected(&tried, 409, "quota-exceeded");
    assert!(tried.text.contains("cell quota set ubar batch"), "{}", tried.text);
    assert_eq!((real.code(), &real.body["hint"]), (tried.code(), &tried.body["hint"]));
    // A key is for changes, and a dry run is not one: the change itself can still use it.
    let key = [("idempotency-key", "dry")];
    let ubar = user("ubar");
    cell.ask_as(&ubar, dry, &key, owned_by_ubar(labelled("a"))).await;
    let after = cell.handle().read();
    assert_eq!(after.state.jobs().len(), before.state.jobs().len());
    let done = cell.ask_as(&ubar, APPLY, &key, owned_by_ubar(labelled("b"))).await;
    assert_eq!(outcome(&done.body), ("updated", 2, None, false), "{}", done.text);
    // With a complete update open, the dry run says that it would be closed.
    let closes = cell.must(dry, owned_by_ubar(labelled("c"))).await.body;
    assert_eq!((outcome(&closes), &closes["expect"]), (("updated", 3, Some(2), true), &json!(2)));
    let job = cell.must("GET /v1/jobs/ubar/jfoo", Value::Null).await.body["item"].clone();
    assert_eq!((&job["version"], &job["update_complete"]), (&json!(2), &json!(true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resize_is_one_call_with_a_dry_run_that_closes_what_is_complete() {
    let cell = running_cell().await;
    let resize = "POST /v1/jobs/ubar/jfoo/resize";
    let dry = "POST /v1/jobs/ubar/jfoo/resize?dry_run=true";
    let limits = cell.must("GET /v1/jobs/ubar/jfoo", Value::Null).await.body["item"]["spec"]
        ["task"]["limits"]
        .clone();
    assert_eq!(outcome(&apply(&cell, labelled("a")).await), ("updated", 2, None, false));
    let tried = cell.must(dry, json!({ "count": 3 })).await.body;
    assert_eq!((outcome(&tried), &tried["expect"]), (("resized", 3, Some(2), true), &json!(2)));
    let changes = tried["changes"].as_array().unwrap();
    let paths: Vec<&str> = changes.iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["count"]);
    let stale = cell.ask(&format!("{resize}?expect=1"), json!({ "count": 3 })).await;
    check_rejected(&stale, 412, "stale-version");
    let none = cell.ask(resize, json!({})).await;
    check_rejected(&none, 400, "bad-field");
    let done = cell.must(resize, json!({ "count": 3 })).await.body;
    assert_eq!(outcome(&done), ("resized", 3, Some(2), false));
    // Limits are changed in place, and what is not named stays.
    let cpu = limits["cpu"].as_u64().unwrap() + 1;
    let more = json!({ "cpu": cpu });
    let short = cell.ask(resize, json!({ "cpu": cpu, "ram": 1 })).await;
    check_rejected(&short, 400, "bad-field");
    assert_eq!(short.body["details"]["field"], "task.limits.ram");
    let tried = cell.must(dry, more.clone()).await.body;
    assert_eq!(outcome(&tried), ("resized", 4, None, true));
    assert_eq!(outcome(&cell.must(resize, more.clone()).await.body), ("resized", 4, None, false));
    assert_eq!(outcome(&cell.must(resize, more).await.body), ("unchanged", 4, None, false));
    let spec = cell.must("GET /v1/jobs/ubar/jfoo", Value::Null).await.body["item"]["spec"].clone();
    assert_eq!((&spec["count"], &spec["task"]["limits"]["cpu"]), (&json!(3), &json!(cpu)));
    assert_eq!(spec["task"]["limits"]["ram"], limits["ram"]);
    let view = cell.must("GET /v1/jobs/ubar/jfoo/tasks", Value::Null).await.body["items"].clone();
    let (attempt, before) = (&view[0]["attempt"], &view[0]["limits_in_force"]["cpu"]);
    assert_eq!((attempt, before), (&json!(1), &limits["cpu"]), "no agent has reported it");
    let mut rolls = labelled("b");
    (rolls["count"], rolls["task"]["command"]) = (json!(3), json!(["/bin/false"]));
    rolls["task"]["limits"]["cpu"] = json!(cpu);
    apply(&cell, rolls).await;
    for size in [json!({ "count": 4 }), json!({ "cpu": 1 })] {
        check_rejected(&cell.ask(resize, size).await, 409, "wrong-state");
    }
    cell.must("POST /v1/users", json!({ "name": "other" })).await;
    for target in [resize, dry] {
        let got = cell.ask_as(&user("other"), target, &[], json!({ "count": 1 })).await;
        check_rejected(&got, 403, "not-owner");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_learn_nothing_of_a_job_or_of_its_secrets() {
    let cell = running_cell().await;
    let with = |value: &str| {
        let mut spec = job("jkey", 1);
        spec["task"]["secrets"] = json!({ "key": value });
        owned_by_ubar(spec)
    };
    cell.must(APPLY, with("cmlnaHQ=")).await;
    for name in ["other", "admin"] {
        cell.must("POST /v1/users", json!({ "name": name })).await;
    }
    let may = json!({ "capabilities": ["administrate_jobs"] });
    cell.must("PUT /v1/users/admin/capabilities", may).await;
    let dry = "POST /v1/apply?dry_run=true";
    for target in [APPLY, dry] {
        let got = cell.ask_as(&user("other"), target, &[], with("cmlnaHQ=")).await;
        check_rejected(&got, 403, "not-owner");
    }
    let own = cell.ask_as(&user("ubar"), dry, &[], with("cmlnaHQ=")).await.body;
    assert_eq!(outcome(&own), ("unchanged", 1, None, true));
    let mut outcomes = Vec::new();
    for guess in ["cmlnaHQ=", "d3Jvbmc="] {
        let got = cell.ask_as(&user("admin"), dry, &[], with(guess)).await;
        assert!(!got.text.contains(guess), "{}", got.text);
        outcomes.push(got.body);
    }
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcome(&outcomes[0]), ("updated", 2, None, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_stopping_is_named_and_made_anew_when_it_is_over() {
    let cell = running_cell().await;
    cell.must("DELETE /v1/jobs/ubar/jfoo", Value::Null).await;
    let stopping = cell.ask(APPLY, owned_by_ubar(job("jfoo", 2))).await;
    check_rejected(&stopping, 409, "wrong-state");
    assert_eq!(stopping.body["details"]["stopping_job"], "ubar/jfoo");
    assert!(stopping.text.contains("cell wait ubar/jfoo"), "{}", stopping.text);
    for number in 0..2 {
        report(&cell, number, number, 1, Observed::Stopped).await;
    }
    let anew = apply(&cell, job("jfoo", 2)).await;
    assert_eq!(outcome(&anew), ("created", 1, None, false));
}

/// Concurrent callers send the same job: one creates it, and none is rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_callers_that_race_one_creates_and_the_others_find_it_so() {
    let cell = running_cell().await;
    let ask = || cell.must(APPLY, owned_by_ubar(job("jnew", 1)));
    let answers = futures::future::join_all((0..16).map(|_| ask())).await;
    let became = |word: &str| answers.iter().filter(|got| got.body["became"] == word).count();
    assert_eq!((became("created"), became("unchanged")), (1, 15));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_batch_are_applied_each_with_its_outcome() {
    let cell = running_cell().await;
    let item = |spec: Value| json!({ "apply_job": { "owner": "ubar", "spec": spec } });
    let stale = json!({ "apply_job": { "owner": "ubar", "spec": job("jfoo", 3), "expect": 9 } });
    let items = json!([item(job("jnew", 1)), item(labelled("a")), item(labelled("b")), stale]);
    let answer = cell.must("POST /v1/batch", json!({ "items": items })).await.body;
    let done = |at: usize| {
        let one = &answer["verdicts"][at]["done"];
        (one["became"].clone(), one["version"].clone(), one["closed_update"].clone())
    };
    assert_eq!(done(0), (json!("created"), json!(1), Value::Null));
    assert_eq!(done(1), (json!("updated"), json!(2), Value::Null));
    assert_eq!(done(2), (json!("updated"), json!(3), json!(2)));
    assert_eq!(answer["verdicts"][3]["rejected"]["code"], "stale-version");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_says_of_each_job_what_it_asks_for_and_does_not_get() {
    let cell = running_cell().await;
    let longest_notice = LongestNotice::same(Span::seconds(120));
    let bounds = Bounds { longest_notice, ..Bounds::default() };
    submit_as_system(&cell, Command::SetBounds(bounds)).await;
    let item = |name: &str, notice: u64| {
        let mut spec = job(name, 1);
        spec["task"]["notice"] = json!(notice);
        json!({ "apply_job": { "owner": "ubar", "spec": spec } })
    };
    let items = json!([item("jshort", 1000), item("jlong", 7_200_000)]);
    let answer = cell.must("POST /v1/batch", json!({ "items": items })).await.body;
    let warnings = |at: usize| answer["verdicts"][at]["done"]["warnings"].clone();
    assert_eq!(warnings(0), Value::Null);
    let warned = warnings(1)[0].as_str().unwrap().to_owned();
    assert!(warned.starts_with("task.notice is 2 h, and "), "{warned}");
    assert!(warned.ends_with(" tasks get at most 2 min in this cell"), "{warned}");
}

/// A machine that is up and silent, on a master with the shortest silence limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_are_listed_as_data_and_as_the_figures_of_metrics() {
    let mut settings = MasterConfig::default();
    let liveness = &mut settings.core.liveness;
    (liveness.poll_interval, liveness.missed_polls, liveness.reconnect_grace) =
        (Span(1), 1, Span(1));
    liveness.check_interval = Span(1);
    let cell =
        Cell::start_with_options(CellOptions { master: settings, ..CellOptions::default() }).await;
    let quiet = cell.must("GET /v1/alarms", Value::Null).await.body;
    assert_eq!(quiet["items"], json!([]));
    assert_eq!(quiet["leader"], quiet["replica"]);
    cell.must("POST /v1/machines", machine("m1")).await;
    let up = Command::MachineUp { machine: MachineId(0), incarnation: 1 };
    submit_as_system(&cell, up).await;
    let alarmed = async {
        loop {
            let alarms = cell.must("GET /v1/alarms", Value::Null).await.body;
            if alarms["items"].as_array().unwrap().is_empty() {
                tokio::task::yield_now().await
            } else {
                break alarms;
            }
        }
    };
    let alarms = within(alarmed).await;
    let most = &alarms["items"][0];
    assert_eq!((&most["kind"], &most["silent"]), (&json!("most_machines_silent"), &json!(1)));
    let sentence = "1 machine silent, more than half of the cell";
    assert!(most["message"].as_str().unwrap().starts_with(sentence), "{most}");
    let metrics = cell.must("GET /metrics", Value::Null).await.text;
    assert!(metrics.contains("cell_alarms{alarm=\"most_machines_silent\"} 1\n"), "{metrics}");
}
