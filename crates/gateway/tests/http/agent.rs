//! A stub agent, and the master's behaviour when an agent answers, does not answer, or is not
//! there.

use crate::support::{Cell, job, machine, user, within};
use axum::extract::{Query, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use cellwright_api::client::internal_calls::MACHINE_PACKAGES_PATH;
use cellwright_api::error::Code;
use cellwright_api::exec::{COPY_PATH, EXEC_PATH, EXEC_PROTOCOL, FORWARD_PATH};
use cellwright_api::output::{AGENT_ADDRESS_ATTRIBUTE, OUTPUT_PATH, OutputPiece, OutputQuery};
use cellwright_api::types::MachinePackages;
use cellwright_cell::command::{Command, Observed, TaskReport};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_cell::spec::PackageRef;
use cellwright_master::handle::Caller;
use cellwright_messages::HoldersRequest;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TASK: &str = "{user}/{job}/{index}";

/// Reports that the task wrote a line, and accepts every session; returns its address.
pub async fn stub_agent() -> String {
    let router = Router::new()
        .route(&format!("{OUTPUT_PATH}/{TASK}"), get(output))
        .route(&format!("{EXEC_PATH}/{TASK}"), post(exec))
        .route(&format!("{COPY_PATH}/{TASK}"), post(exec))
        .route(&format!("{FORWARD_PATH}/{TASK}"), post(exec))
        .route(MACHINE_PACKAGES_PATH, get(holdings));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn holdings() -> Json<MachinePackages> {
    Json(MachinePackages { to_machines: 7, ..MachinePackages::default() })
}

async fn output(Query(query): Query<OutputQuery>) -> Json<OutputPiece> {
    if query.wait > 0 && query.from.is_some() {
        // A query that waits for more output has already received all.
        std::future::pending::<()>().await;
    }
    let text = format!("line of attempt {}\n", query.attempt.unwrap());
    let parts = Vec::new();
    Json(OutputPiece { attempt: 1, text, parts, next: "1-18".into(), ended: false })
}

async fn exec(mut request: Request) -> Response {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move { drop(upgraded.await) });
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL));
    response
}

pub async fn submit(cell: &Cell, command: Command) {
    let command_text = format!("{command:?}");
    let by = Caller::default_sender(&command, &cell.handle().read().state);
    let done = cell.handle().submit(&by, None, command).await.unwrap();
    assert!(done.verdict.is_ok(), "{command_text} {:?}", done.verdict);
}

/// Has the first machine run the first task.
pub async fn run_first_task(cell: &Cell) {
    let (machine, task) = (MachineId(0), TaskId(0));
    submit(cell, Command::MachineUp { machine, incarnation: 1 }).await;
    let (ports, devices) = (vec![], vec![]);
    let assignment = Assignment { task, attempt: 0, machine, alloc: None, ports, devices };
    let group = Group { victims: vec![], assignments: vec![assignment] };
    submit(cell, Command::CommitPlan(Plan { made_at: 0, groups: vec![group] })).await;
    let reports = vec![TaskReport { task, attempt: 1, what: Observed::Started }];
    submit(cell, Command::TaskReports { machine, incarnation: 1, reports }).await;
}

/// A user, a machine with this agent address, and a job whose task runs on it.
async fn running(address: Option<&str>) -> Cell {
    let cell = Cell::start().await;
    cell.must("POST /v1/users", json!({ "name": "ubar" })).await;
    let quota = json!({ "amount": { "cpu": 1000, "ram": 1000 } });
    cell.must("PUT /v1/users/ubar/quota/batch", quota).await;
    let mut spec = machine("m1");
    if let Some(address) = address {
        spec["attributes"] = json!({ AGENT_ADDRESS_ATTRIBUTE: { "text": address } });
    }
    cell.must("POST /v1/machines", spec).await;
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": job("jfoo", 1) })).await;
    cell
}

const OUTPUT: &str = "GET /v1/jobs/ubar/jfoo/tasks/0/output";
const EXEC: &str = "POST /v1/jobs/ubar/jfoo/tasks/0/exec?command=%5B%22true%22%5D";
const PAGE: &str = "GET /v1/jobs/ubar/jfoo/tasks/0/exec?command=%5B%22true%22%5D";
const HANDED_OVER: [(&str, &str); 2] = [("connection", "upgrade"), ("upgrade", EXEC_PROTOCOL)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_of_the_past_are_asked_of_the_machine_they_were_on() {
    let cell = running(Some(&stub_agent().await)).await;
    let ubar = user("ubar");
    let ask = async |target: &str| cell.ask_as(&ubar, target, &[], json!(null)).await;
    assert_eq!(ask(OUTPUT).await.code(), "wrong-state", "it was never placed");
    run_first_task(&cell).await;
    assert_eq!(ask(OUTPUT).await.body["text"], "line of attempt 1\n");
    // Ended, so that the state does not say where it ran.
    let (machine, task) = (MachineId(0), TaskId(0));
    let class = cellwright_cell::task::ExitClass::Code(1);
    let reports = vec![TaskReport { task, attempt: 1, what: Observed::Failed(class) }];
    submit(&cell, Command::TaskReports { machine, incarnation: 1, reports }).await;
    let state = cell.handle().read().state;
    assert_eq!(state.tasks().get(task).unwrap().machine(), None);
    assert_eq!(ask(OUTPUT).await.body["text"], "line of attempt 1\n");
    assert_eq!(ask(&format!("{OUTPUT}?attempt=2")).await.code(), "wrong-state");
    let exec = within(cell.ask_as(&ubar, EXEC, &HANDED_OVER, json!(null))).await;
    assert_eq!(exec.code(), "wrong-state", "{}", exec.text);
    cell.must("DELETE /v1/machines/m1", json!(null)).await;
    let got = ask(OUTPUT).await;
    assert_eq!((got.status, got.code()), (404, "no-such-machine"), "{}", got.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_began_where_the_one_before_ended_are_found_after_the_end() {
    let cell = running(Some(&stub_agent().await)).await;
    run_first_task(&cell).await;
    let (machine, task) = (MachineId(0), TaskId(0));
    let seen = async |attempt: u32, what: Observed| {
        let reports = vec![TaskReport { task, attempt, what }];
        submit(&cell, Command::TaskReports { machine, incarnation: 1, reports }).await;
    };
    for attempt in 1..3 {
        seen(attempt, Observed::Unhealthy).await;
        seen(attempt, Observed::Stopped).await;
        seen(attempt + 1, Observed::Started).await;
    }
    cell.must("DELETE /v1/jobs/ubar/jfoo", json!(null)).await;
    seen(3, Observed::Stopped).await;
    let ubar = user("ubar");
    for attempt in 1..=3 {
        let target = format!("{OUTPUT}?attempt={attempt}");
        let found = cell.ask_as(&ubar, &target, &[], json!(null)).await;
        assert_eq!(found.body["text"], format!("line of attempt {attempt}\n"), "{}", found.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_cannot_be_dialled_is_said_to_be_so() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    // An address that is closed again; one in plain text away from this machine; and none.
    let silent = (502, "agent-silent");
    let cases = [
        (Some(nobody.as_str()), silent),
        (Some("10.0.0.1:7071"), silent),
        (None, (409, "wrong-state")),
    ];
    for (address, expected) in cases {
        let cell = running(address).await;
        run_first_task(&cell).await;
        let ubar = user("ubar");
        let got = cell.ask_as(&ubar, OUTPUT, &[], json!(null)).await;
        assert_eq!((got.status, got.code()), expected, "{}", got.text);
        let got = cell.ask_as(&ubar, EXEC, &HANDED_OVER, json!(null)).await;
        assert_eq!((got.status, got.code()), expected, "{}", got.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_takes_a_command_and_a_connection() {
    let cell = running(Some(&stub_agent().await)).await;
    run_first_task(&cell).await;
    let ubar = user("ubar");
    let ask = async |target: &str, headers: &[(&str, &str)]| {
        cell.ask_as(&ubar, target, headers, json!(null)).await
    };
    assert_eq!(ask(EXEC, &HANDED_OVER).await.status, 101);
    let plain = ask(EXEC, &[]).await;
    assert_eq!((plain.status, plain.code()), (426, "upgrade-required"), "{}", plain.text);
    let socket = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(ask(EXEC, &socket).await.status, 426);
    let path = EXEC.split('?').next().unwrap();
    for (query, parameter) in [
        ("", "command"),
        ("?command=true", "command"),
        ("?command=%5B%5D", "command"),
        ("?command=%5B%22true%22%5D&terminal=wide", "terminal"),
    ] {
        let got = ask(&format!("{path}{query}"), &HANDED_OVER).await;
        assert_eq!(got.code(), "bad-parameter", "{query}: {}", got.text);
        assert_eq!(got.body["details"]["parameter"], parameter, "{}", got.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_and_connections_to_ports_are_sessions_with_parameters_of_their_own() {
    let cell = running(Some(&stub_agent().await)).await;
    run_first_task(&cell).await;
    let ubar = user("ubar");
    let ask = async |target: &str| cell.ask_as(&ubar, target, &HANDED_OVER, json!(null)).await;
    let path = "POST /v1/jobs/ubar/jfoo/tasks/0";
    for good in ["copy?direction=out_of&path=%2Fetc", "forward?port=80"] {
        assert_eq!(ask(&format!("{path}/{good}")).await.status, 101, "{good}");
        let target = format!("{path}/{good}");
        let plain = cell.ask_as(&ubar, &target, &[], json!(null)).await;
        assert_eq!(plain.code(), "upgrade-required", "{good}");
        let other = cell.ask_as(&user("other"), &target, &HANDED_OVER, json!(null)).await;
        assert!(other.status >= 400, "{good}: {}", other.text);
    }
    for (bad, parameter) in [
        ("copy?path=x", "direction"),
        ("copy?direction=into", "path"),
        ("copy?direction=sideways&path=x", "direction"),
        ("copy?direction=into&path=a%00b", "path"),
        ("forward", "port"),
        ("forward?port=0", "port"),
        ("forward?port=65536", "port"),
    ] {
        let got = ask(&format!("{path}/{bad}")).await;
        assert_eq!(got.code(), "bad-parameter", "{bad}: {}", got.text);
        assert_eq!(got.body["details"]["parameter"], parameter, "{}", got.text);
    }
    let audit = cell.must("GET /v1/audit?limit=1000", json!(null)).await.text;
    for line in ["copy out_of \\\"/etc\\\"", "forward 80"] {
        assert!(audit.contains(line), "{line} is not in {audit}");
    }
}

/// The headers that a browser sends for a page of that origin.
pub fn websocket_headers(origin: &str) -> [(&str, &str); 6] {
    [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "cell-exec"),
        ("origin", origin),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_the_master_itself_have_sessions_and_no_others() {
    let cell = running(Some(&stub_agent().await)).await;
    let origin = format!("http://{}", cell.address);
    let own = websocket_headers(&origin);
    let ubar = user("ubar");
    let ask = async |who: &Caller, headers: &[(&str, &str)]| {
        within(cell.ask_as(who, PAGE, headers, json!(null))).await
    };
    run_first_task(&cell).await;
    let got = ask(&ubar, &own).await;
    assert_eq!(got.status, 101, "{}", got.text);
    assert_eq!(got.header("sec-websocket-accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(got.header("sec-websocket-protocol"), "cell-exec");
    for foreign in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let got = ask(&ubar, &websocket_headers(foreign)).await;
        assert_eq!((got.status, got.code()), (403, "not-allowed"), "{foreign}: {}", got.text);
    }
    let got = ask(&ubar, &own[..5]).await;
    assert_eq!((got.status, got.code()), (403, "not-allowed"), "no origin: {}", got.text);
    for missing in 1..5 {
        let mut headers = own.to_vec();
        headers.remove(missing);
        let got = ask(&ubar, &headers).await;
        assert_eq!((got.status, got.code()), (426, "upgrade-required"), "{missing}: {}", got.text);
    }
    cell.must("POST /v1/users", json!({ "name": "other" })).await;
    let got = ask(&user("other"), &own).await;
    assert_eq!((got.status, got.code()), (403, "not-allowed"), "{}", got.text);
    let lines = cell.must("GET /v1/audit?limit=1000", json!(null)).await.body;
    let taken: Vec<&str> = lines["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["caller"] == "user:ubar" && line["object"] == "ubar/jfoo/0")
        .filter_map(|line| line["verdict"].as_str())
        .collect();
    assert_eq!(taken, ["requested", "done"], "{lines:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_told_in_its_session_why_there_is_none() {
    let cell = running(Some(&stub_agent().await)).await;
    let origin = format!("http://{}", cell.address);
    let mut stream = TcpStream::connect(&cell.address).await.unwrap();
    let target = PAGE.strip_prefix("GET ").unwrap();
    let mut head = format!("GET {target} HTTP/1.1\r\nhost: {}\r\n", cell.address);
    for (name, value) in websocket_headers(&origin) {
        // The token is sent as browsers let pages send it.
        let more = if name == "sec-websocket-protocol" { ", cell-token.user:ubar" } else { "" };
        head.push_str(&format!("{name}: {value}{more}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    within(stream.read_to_end(&mut heard)).await.unwrap();
    let text = String::from_utf8_lossy(&heard);
    assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
    assert!(text.contains("ubar/jfoo/0 does not run; wait until it runs"), "{text}");
    assert_eq!(heard[heard.len() - 4..], [0x88, 2, 3, 232], "closed, as agreed");
    let lines = cell.must("GET /v1/audit?limit=1000", json!(null)).await.body.to_string();
    assert!(lines.contains("user:ubar") && lines.contains("wrong-state"), "{lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_told_who_else_has_a_package_and_who_is_about_to() {
    let address = stub_agent().await;
    let cell = running(Some(&address)).await;
    run_first_task(&cell).await;
    let digest = Token::new(&"ab".repeat(32)).unwrap();
    let ask = async |machine: &str, task: Option<TaskId>| {
        let machine = Name::new(machine).unwrap();
        let client = cell.client(Some(&Caller::Agent(machine.clone())));
        let request = HoldersRequest { machine, digest: digest.clone(), task };
        let holders = within(client.holders(&request)).await.unwrap();
        let holder_lines =
            holders.iter().map(|holder| format!("{} {}", holder.machine, holder.address));
        holder_lines.collect::<Vec<String>>()
    };
    let nobody: Vec<String> = Vec::new();
    let first = vec![format!("m1 {address}")];
    assert_eq!(ask("m2", None).await, nobody);
    assert_eq!(ask("m2", Some(TaskId(0))).await, first, "a task of the same job is there");
    assert_eq!(ask("m1", Some(TaskId(0))).await, nobody, "nobody fetches from itself");
    let bytes = 7;
    let name = Token::new("server").unwrap();
    let packages = [PackageRef { name, digest: digest.clone(), bytes }].into();
    submit(&cell, Command::SetMachinePackages { machine: MachineId(0), packages }).await;
    assert_eq!(ask("m2", None).await, first);
    submit(&cell, Command::MachineDown { machine: MachineId(0) }).await;
    assert_eq!(ask("m2", None).await, nobody, "it does not answer");
    let client = cell.client(Some(&Caller::Agent(Name::new("m3").unwrap())));
    let machine = Name::new("m2").unwrap();
    let request = HoldersRequest { machine, digest, task: None };
    let error = within(client.holders(&request)).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NotAllowed), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_up_with_tasks_on_it_is_removed_only_by_force() {
    let cell = running(None).await;
    run_first_task(&cell).await;
    let got = cell.ask("DELETE /v1/machines/m1", json!(null)).await;
    assert_eq!((got.status, got.code()), (409, "wrong-state"), "{}", got.text);
    for part in ["m1 is up with 1 task on it", "cell drain m1 --wait", "cell machine rm m1 --force"]
    {
        assert!(got.text.contains(part), "{}", got.text);
    }
    let remove = |force: bool| {
        let item = json!({ "name": "m1", "expect": null, "force": force });
        json!({ "items": [{ "remove_machine": item }] })
    };
    let rejected = cell.must("POST /v1/batch", remove(false)).await;
    assert!(rejected.text.contains("m1 is up with 1 task on it"), "{}", rejected.text);
    // A drain that is not complete yet.
    cell.must("POST /v1/machines/m1/drain", json!(null)).await;
    assert_eq!(cell.ask("DELETE /v1/machines/m1", json!(null)).await.code(), "wrong-state");
    assert!(cell.handle().read().state.machine_named(&Name::new("m1").unwrap()).is_some());
    let forced = cell.must("POST /v1/batch", remove(true)).await;
    assert!(forced.text.contains("done"), "{}", forced.text);
    assert!(cell.handle().read().state.machine_named(&Name::new("m1").unwrap()).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_down_or_empty_is_removed_without_force() {
    for is_down in [true, false] {
        let cell = running(None).await;
        run_first_task(&cell).await;
        let (machine, task) = (MachineId(0), TaskId(0));
        let end = if is_down {
            Command::MachineDown { machine }
        } else {
            let reports = vec![TaskReport { task, attempt: 1, what: Observed::Finished }];
            Command::TaskReports { machine, incarnation: 1, reports }
        };
        submit(&cell, end).await;
        cell.must("DELETE /v1/machines/m1", json!(null)).await;
    }
    let cell = running(None).await;
    run_first_task(&cell).await;
    cell.must("DELETE /v1/machines/m1?force=true", json!(null)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_packages_of_a_machine_are_asked_of_its_agent() {
    const PACKAGES: &str = "GET /v1/machines/m1/packages";
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let ubar = user("ubar");
    let ask = async |cell: &Cell, target: &str| cell.ask_as(&ubar, target, &[], json!(null)).await;
    let grant = async |cell: &Cell| {
        let rights = json!({ "capabilities": ["manage_machines"] });
        cell.must("PUT /v1/users/ubar/capabilities", rights).await;
    };
    let cell = running(Some(&stub_agent().await)).await;
    let got = ask(&cell, PACKAGES).await;
    assert_eq!((got.status, got.code()), (403, "not-allowed"), "{}", got.text);
    grant(&cell).await;
    let got = ask(&cell, PACKAGES).await;
    assert_eq!((got.status, &got.body["to_machines"]), (200, &json!(7)), "{}", got.text);
    let absent = ask(&cell, "GET /v1/machines/m9/packages").await;
    assert_eq!((absent.status, absent.code()), (404, "no-such-machine"), "{}", absent.text);
    let other = running(Some(&nobody)).await;
    grant(&other).await;
    let silent = within(ask(&other, PACKAGES)).await;
    assert_eq!((silent.status, silent.code()), (502, "agent-silent"), "{}", silent.text);
}
