//! The access matrix: which identity gets an answer from which route, observed on a running master,
//! route by route, and recorded as the tables of `docs/security.md`. A route of the OpenAPI
//! document without a row fails, and so does one that answers a caller it did not answer when the
//! row was written.
//!
//! What a user needs is observed and not taken from the table of routes: the same requests are made
//! by an owner without any capability, and by an unrelated user with each capability alone.
//!
//! `UPDATE_SECURITY=1` regenerates the tables; read the difference before keeping it.

use crate::every_route::{Step, prepared_cells};
use crate::support::{Cell, user};
use axum::body::Body;
use cellwright_api::client::internal_calls::{
    BLOB_PATH, HOLDERS_PATH, LEASE_PATH, LOG_PATH, MEMBERSHIP_CHECK_PATH, PACKAGE_PATH, POLL_PATH,
    PROPOSE_PATH,
};
use cellwright_api::routes::{Operation, Route, RouteKind};
use cellwright_cell::name::Name;
use cellwright_cell::quota::Capability;
use cellwright_gateway::http_peers::PEER_PATH;
use cellwright_gateway::membership::MEMBER_PATH;
use cellwright_master::handle::Caller;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

const HEAD: &str =
    "| route | nobody | user | agent | scheduler | replica |\n|---|---|---|---|---|---|\n";

fn no_user() -> [Option<Caller>; 4] {
    let agent = Caller::Agent(Name::new("m9").unwrap());
    let (scheduler, replica) =
        (Caller::Scheduler(Name::new("s9").unwrap()), Caller::Replica(Name::new("9").unwrap()));
    [None, Some(agent), Some(scheduler), Some(replica)]
}

fn name_of(route: &Route) -> String {
    format!("{} {}", route.method.as_str(), route.path)
}

/// Whether the caller was admitted, whatever the outcome of the request.
async fn is_admitted(cell: &Cell, caller: Option<&Caller>, step: &Step) -> (bool, u16) {
    let got = cell.open(caller, &step.target, &[], step.content()).await;
    let status = got.status().as_u16();
    (!matches!(status, 401 | 403), status)
}

/// Performs the step that later steps build on.
async fn perform_step(cell: &Cell, caller: &Caller, step: &Step) {
    let (_, status) = is_admitted(cell, Some(caller), step).await;
    let changes = matches!(step.route().kind, RouteKind::Change | RouteKind::Create);
    assert!(!changes || status < 300, "{}: {status}", step.target);
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    nobody: bool,
    agent: bool,
    scheduler: bool,
    replica: bool,
    /// A user who is unrelated to it and holds no capability.
    any_user: bool,
    /// What admits a user who would be rejected otherwise.
    admitted_by: Vec<String>,
}

impl Row {
    fn columns(&self) -> String {
        let word = |is: bool| if is { "yes" } else { "no" };
        let user = match (self.any_user, self.admitted_by.is_empty()) {
            (true, _) => "yes".to_owned(),
            (false, true) => "no".to_owned(),
            (false, false) => self.admitted_by.join(", "),
        };
        let [nobody, agent] = [word(self.nobody), word(self.agent)];
        let [scheduler, replica] = [word(self.scheduler), word(self.replica)];
        format!("{nobody} | {user} | {agent} | {scheduler} | {replica}")
    }
}

/// The observations, a row for each route.
#[derive(Default)]
struct AccessMatrix(BTreeMap<String, Row>);

impl AccessMatrix {
    /// All callers other than the owner that hold no capability.
    async fn record_unprivileged(&mut self) {
        let (cell, _second, steps) = prepared_cells().await;
        let root = user("root");
        for step in &steps {
            // Content belongs to its first uploader, which must not be one of those.
            let brings = step.route().operation == Operation::PutBlob;
            if brings {
                perform_step(&cell, &root, step).await;
            }
            let mut in_turn = Vec::new();
            for caller in &no_user() {
                in_turn.push(is_admitted(&cell, caller.as_ref(), step).await.0);
            }
            let [nobody, agent, scheduler, replica] = in_turn[..] else { unreachable!() };
            let (any_user, _) = is_admitted(&cell, Some(&user("weak")), step).await;
            let row = Row { nobody, agent, scheduler, replica, any_user, admitted_by: Vec::new() };
            let name = name_of(step.route());
            let before = self.0.insert(name.clone(), row.clone());
            assert!(before.is_none_or(|before| before == row), "{name} is answered now so, now so");
            if !brings {
                perform_step(&cell, &root, step).await;
            }
        }
    }

    /// One user, who alone may be admitted where others are not.
    async fn record_user(&mut self, cell: &Cell, steps: &[Step], who: &Caller, by: &str) {
        for step in steps {
            let name = name_of(step.route());
            let row = self.0.get_mut(&name).expect("the unprivileged callers were recorded first");
            let mut is_done = false;
            if !row.any_user {
                let (is_in, status) = is_admitted(cell, Some(who), step).await;
                is_done = status < 300;
                if is_in && !row.admitted_by.iter().any(|known| known == by) {
                    row.admitted_by.push(by.to_owned());
                }
            }
            if !is_done {
                // In the owner's name where the step creates something owned, else as the cell
                // itself.
                let brings = step.route().operation == Operation::PutBlob;
                let root = if brings { user("root") } else { Caller::Operator };
                perform_step(cell, &root, step).await;
            }
        }
    }

    async fn record_owner(&mut self) {
        let (cell, _second, steps) = prepared_cells().await;
        let none = json!({ "capabilities": [] });
        cell.must("PUT /v1/users/root/capabilities", none).await;
        self.record_user(&cell, &steps, &user("root"), "own").await;
    }

    async fn record_capability_holder(&mut self, capability: Capability) {
        let (cell, _second, steps) = prepared_cells().await;
        cell.must("POST /v1/users", json!({ "name": "holder" })).await;
        let one = json!({ "capabilities": [capability] });
        cell.must("PUT /v1/users/holder/capabilities", one).await;
        self.record_user(&cell, &steps, &user("holder"), &format!("`{capability}`")).await;
    }

    fn table(&self) -> String {
        let line = |(name, row): (&String, &Row)| format!("| `{name}` | {} |\n", row.columns());
        self.0.iter().map(line).collect()
    }
}

/// Routes of an OpenAPI document that have no row.
fn missing_rows(document: &Value, matrix: &AccessMatrix) -> Vec<String> {
    let paths = document["paths"].as_object().expect("the document has paths");
    let routes = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("a path has methods");
        methods.keys().map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    routes.filter(|route| !matrix.0.contains_key(route)).collect()
}

/// Compares the observations with the table between the marks of that name.
fn check_documented(mark: &str, rows: &str) {
    /// Two tests write the same page.
    static WRITING: Mutex<()> = Mutex::new(());
    let _alone = WRITING.lock().unwrap();
    let begin = format!("<!-- {mark}: recorded by crates/gateway/tests/http/matrix.rs -->\n");
    let end = format!("<!-- end of {mark} -->");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(&begin).expect("the mark before the table");
    let (table, tail) = rest.split_once(&end).expect("the mark behind the table");
    let expected = format!("{HEAD}{rows}");
    if std::env::var_os("UPDATE_SECURITY").is_some() {
        std::fs::write(&path, format!("{head}{begin}{expected}{end}{tail}")).unwrap();
        return;
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&expected), lines(table), "docs/security.md says otherwise");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_of_the_document_answers_whom_the_page_says() {
    let mut matrix = AccessMatrix::default();
    matrix.record_unprivileged().await;
    matrix.record_owner().await;
    for capability in Capability::ALL {
        matrix.record_capability_holder(capability).await;
    }
    let cell = Cell::start().await;
    let mut document = cell.must("GET /v1/openapi.json", Value::Null).await.body;
    assert_eq!(missing_rows(&document, &matrix), Vec::<String>::new());
    document["paths"]["/v1/jobs"]["patch"] = json!({});
    document["paths"]["/v1/planted"] = json!({ "get": {} });
    assert_eq!(missing_rows(&document, &matrix), ["PATCH /v1/jobs", "GET /v1/planted"]);
    check_documented("routes", &matrix.table());
}

/// Internal routes are in no document; `cargo xtask tidy` checks that each has a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_of_the_cells_own_parts_answer_whom_the_page_says() {
    let (cell, _second, _) = prepared_cells().await;
    let digest = "0".repeat(64);
    let posts = [
        POLL_PATH,
        LOG_PATH,
        PROPOSE_PATH,
        LEASE_PATH,
        HOLDERS_PATH,
        MEMBERSHIP_CHECK_PATH,
        PEER_PATH,
        MEMBER_PATH,
    ];
    let mut routes: Vec<(&str, String)> = posts.map(|path| ("POST", path.to_owned())).to_vec();
    routes.extend([
        ("PUT", format!("{BLOB_PATH}/{{digest}}")),
        ("GET", format!("{BLOB_PATH}/{{digest}}")),
        ("GET", format!("{PACKAGE_PATH}/{{digest}}")),
    ]);
    routes.sort();
    let mut rows = String::new();
    for (method, path) in routes {
        let target = format!("{method} {}", path.replace("{digest}", &digest));
        let response = async |caller: Option<&Caller>| {
            // An invalid message: an admitted caller gets that error, and others that they may not
            // call.
            let answer = cell.open(caller, &target, &[], Body::from("?")).await;
            !matches!(answer.status().as_u16(), 401 | 403)
        };
        let [nobody, agent, scheduler, replica] = no_user();
        let row = Row {
            nobody: response(nobody.as_ref()).await,
            agent: response(agent.as_ref()).await,
            scheduler: response(scheduler.as_ref()).await,
            replica: response(replica.as_ref()).await,
            // With every capability.
            any_user: response(Some(&user("root"))).await,
            admitted_by: Vec::new(),
        };
        rows.push_str(&format!("| `{method} {path}` | {} |\n", row.columns()));
    }
    check_documented("parts", &rows);
}
