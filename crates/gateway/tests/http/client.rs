//! The client against a served router, and against a server that misbehaves on purpose.

use crate::support::{Cell, job, within};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use cellwright_api::client::{
    ApiClientConfig, ChangeOptions, Client, ClientError, JobFilter, PageRequest,
};
use cellwright_api::error::{ApiError, Code, REMOVED};
use cellwright_api::types::{BatchItem, SqlQuery};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Span;
use cellwright_gateway::http::error_response;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Ends with the test.
pub struct Server(JoinHandle<()>, pub String);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub async fn serve(router: Router) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    Server(task, address)
}

fn spec(name: &str) -> JobSpec {
    serde_json::from_value(job(name, 1)).unwrap()
}

fn key(job: &str) -> JobKey {
    JobKey { user: Name::new("ubar").unwrap(), job: Name::new(job).unwrap() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_by_name_reach_the_cell() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let client = cell.client(None);
    let ubar = Name::new("ubar").unwrap();
    let done = client.submit_job(Some(&ubar), &spec("jnew")).await.unwrap();
    assert!(done.value.changed);
    assert_eq!(done.index, Some(done.value.index));
    let got = client.job(&key("jnew")).await.unwrap();
    assert!(!got.consistent, "a plain read is stale and says so");
    let page = PageRequest { consistent: true, limit: Some(1), after: None };
    let listed = client.jobs(&JobFilter::default(), &page).await.unwrap();
    assert!(listed.consistent && listed.value.next.is_some());
    let change = ChangeOptions { expect: Some(99), key: None };
    let error = client.stop_job(&key("jnew"), &change).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::StaleVersion));
    client.stop_job(&key("jnew"), &ChangeOptions::default()).await.unwrap();
    let items = vec![BatchItem::StopJob { job: key("jfoo"), expect: None }];
    assert_eq!(client.batch(items).await.unwrap().value.verdicts.len(), 1);
    assert_eq!(client.cluster_status().await.unwrap().value.machines, 1);
    assert!(client.text("/metrics").await.unwrap().contains("cell_machines 1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_at_once_keep_their_keys_apart() {
    let cell = Cell::start().await;
    let client = cell.client(None);
    let add = |n: u32| {
        let client = client.clone();
        async move {
            let name = Name::new(&format!("u{n}")).unwrap();
            let body = cellwright_api::types::AddUser { name };
            let method = hyper::Method::POST;
            client
                .change::<_, cellwright_api::types::Changed>(
                    method,
                    "/v1/users",
                    Some(&body),
                    &ChangeOptions::default(),
                )
                .await
        }
    };
    let answers = within(futures::future::join_all((0..600).map(add))).await;
    for answer in answers {
        assert!(answer.unwrap().value.changed);
    }
    assert_eq!(cell.handle().read().state.users().len(), 600);
}

/// A server whose first connections are handled by `bad`.
async fn failing_server(
    failures: u32,
    bad: impl Fn(u32) -> Option<ApiError> + Clone + Send + Sync + 'static,
) -> (Server, Arc<AtomicU32>) {
    let request_count = Arc::new(AtomicU32::new(0));
    let counter = request_count.clone();
    let answer = move |request: Request<Body>| {
        let (counter, bad) = (counter.clone(), bad.clone());
        async move {
            let n = counter.fetch_add(1, Ordering::SeqCst);
            match bad(n).filter(|_| n < failures) {
                Some(error) => error_response(&error),
                None => {
                    let key = request.headers().get("idempotency-key");
                    let key = key.map(|v| v.to_str().unwrap().to_owned());
                    Response::new(Body::from(serde_json::to_string(&key).unwrap()))
                }
            }
        }
    };
    (serve(Router::new().fallback(answer)).await, request_count)
}

fn quick_client(masters: Vec<String>) -> Client {
    let settings = ApiClientConfig {
        backoff: Duration::from_millis(1),
        deadline: Duration::from_secs(20),
        client_id: Some(1),
        ..ApiClientConfig::new(masters)
    };
    Client::new(settings).unwrap()
}

async fn change(client: &Client) -> Result<String, ClientError> {
    let method = hyper::Method::POST;
    Ok(client.change::<(), String>(method, "/x", None, &ChangeOptions::default()).await?.value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_be_repeated_is_and_under_the_same_key() {
    let busy = |_| Some(ApiError::new(Code::Overloaded, "busy").with_retry_after(Span(1)));
    let (server, request_count) = failing_server(3, busy).await;
    let client = quick_client(vec![server.1.clone()]);
    let key = within(change(&client)).await.unwrap();
    assert!(key.ends_with("-0"), "{key}");
    assert_eq!(request_count.load(Ordering::SeqCst), 4);
    let no = |_| Some(ApiError::new(Code::NoQuorum, "unsure"));
    let (server, request_count) = failing_server(1, no).await;
    let client = quick_client(vec![server.1.clone()]);
    let made = client.create::<(), String>(hyper::Method::POST, "/x", None).await;
    assert_eq!(made.unwrap_err().code(), Some(Code::NoQuorum), "not ours to repeat");
    assert_eq!(request_count.load(Ordering::SeqCst), 1);
}

/// The leader had it in its log, lost its majority, and is no longer a replica of the cell, which
/// ends a call by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_may_yet_take_effect_says_so_whatever_the_masters_say_last() {
    let lost = |n: u32| {
        Some(match n {
            0 | 2 => ApiError::new(Code::TimedOut, "perhaps"),
            _ => ApiError::new(Code::NotReady, "removed from the cell").with(REMOVED, true),
        })
    };
    let (server, request_count) = failing_server(u32::MAX, lost).await;
    let client = quick_client(vec![server.1.clone()]);
    let error = within(change(&client)).await.unwrap_err();
    assert_eq!(request_count.load(Ordering::SeqCst), 2, "{error}");
    assert_eq!(error.code(), Some(Code::NotReady), "the last word is shown");
    assert!(error.is_in_doubt() && error.to_string().contains("may have taken effect"), "{error}");
    // A read, or a change that was never accepted, is not in doubt.
    let read = within(client.get::<String>("/x")).await.unwrap_err();
    assert_eq!(
        (read.code(), request_count.load(Ordering::SeqCst)),
        (Some(Code::NotReady), 4),
        "{read}"
    );
    assert!(!read.is_in_doubt(), "{read}");
    let rejected = within(change(&client)).await.unwrap_err();
    assert!(!rejected.is_in_doubt(), "{rejected}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_found_and_remembered() {
    let (leader, served) = failing_server(0, |_| None).await;
    let address = leader.1.clone();
    let send =
        move |_| Some(ApiError::new(Code::NotLeader, "elsewhere").with("leader", address.clone()));
    let (follower, request_count) = failing_server(u32::MAX, send).await;
    let client = quick_client(vec![follower.1.clone()]);
    for _ in 0..3 {
        within(change(&client)).await.unwrap();
    }
    assert_eq!(request_count.load(Ordering::SeqCst), 1, "asked once, then remembered");
    assert_eq!(served.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_of_history_changes_nothing_and_is_asked_again() {
    let late = |_| Some(ApiError::new(Code::TimedOut, "perhaps"));
    let (server, request_count) = failing_server(1, late).await;
    let client = quick_client(vec![server.1.clone()]);
    let query = SqlQuery { query: "select 1".into(), args: Vec::new(), limit: None };
    let answer = within(client.sql(&query)).await;
    // This server has no rows to return; the point is that it was called twice.
    assert!(matches!(answer, Err(ClientError::BadReply(_))), "{answer:?}");
    assert_eq!(request_count.load(Ordering::SeqCst), 2);
}

/// Accepts connections and requests, and never answers.
async fn hanging_server() -> (Server, Arc<AtomicU32>) {
    let request_count = Arc::new(AtomicU32::new(0));
    let counter = request_count.clone();
    let answer = move || {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Response<Body>>()
    };
    (serve(Router::new().fallback(answer)).await, request_count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_is_not_the_first_to_be_asked_again() {
    let (stuck, request_count) = hanging_server().await;
    let (good, served) = failing_server(0, |_| None).await;
    let settings = ApiClientConfig {
        attempt_timeout: Duration::from_secs(2),
        ..ApiClientConfig::new(vec![stuck.1.clone(), good.1.clone()])
    };
    let client = Client::new(settings).unwrap();
    let make = || client.create::<(), Option<String>>(hyper::Method::POST, "/x", None);
    let error = within(make()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unknown(_)), "not ours to repeat: {error:?}");
    assert_eq!(client.preferred(), good.1);
    for _ in 0..2 {
        assert_eq!(within(make()).await.unwrap().value, None);
    }
    assert_eq!(request_count.load(Ordering::SeqCst), 1, "asked once and then left alone");
    assert_eq!(served.load(Ordering::SeqCst), 2);
}

/// The old leader and a follower of it, cut off from three others, one of which leads now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_that_were_cut_off_together_do_not_keep_a_client() {
    let unsure = |_| Some(ApiError::new(Code::NoQuorum, "unsure"));
    let (old, _) = failing_server(u32::MAX, unsure).await;
    let address = old.1.clone();
    let names =
        move |_| Some(ApiError::new(Code::NotLeader, "elsewhere").with("leader", address.clone()));
    let (follower, _) = failing_server(u32::MAX, names).await;
    let (new, _) = failing_server(0, |_| None).await;
    let masters = vec![old.1.clone(), follower.1.clone(), new.1.clone()];
    let client = quick_client(masters.clone());
    within(change(&client)).await.expect("the new leader is found");
    assert_eq!(client.preferred(), new.1);
    // A call that may not be retried fails, and the next one goes to another master.
    let client = quick_client(masters);
    let mut tries = 0;
    while client.create::<(), Option<String>>(hyper::Method::POST, "/x", None).await.is_err() {
        tries += 1;
        assert!(tries < 4, "stays with those that were cut off");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_every_master_refuses_that_is_told_at_once_unless_one_was_ever_there() {
    let bind = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
    let gone = async || bind().await.local_addr().unwrap().to_string();
    let client = |masters, deadline| {
        let (backoff, refused_timeout) = (Duration::from_millis(1), Duration::ZERO);
        Client::new(ApiClientConfig {
            backoff,
            refused_timeout,
            deadline,
            ..ApiClientConfig::new(masters)
        })
        .unwrap()
    };
    let long = Duration::from_secs(3600);
    let nobody = client(vec![gone().await, gone().await], long);
    let error = within(change(&nobody)).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { tried: 2, .. }), "{error:?}");
    let mut watch = nobody.watch::<String>("/v1/watch/overview", None);
    let error = within(watch.next()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { tried: 2, .. }), "{error:?}");
    // A server that accepts one connection, and is gone before the next.
    let listener = bind().await;
    let address = listener.local_addr().unwrap().to_string();
    let once = tokio::spawn(async move { drop(listener.accept().await) });
    let left = client(vec![address], long);
    let mut asking = tokio::spawn(async move { change(&left).await });
    within(once).await.unwrap();
    // The first refusal would end it; this holds however busy the machine is.
    let ended = tokio::time::timeout(Duration::from_millis(300), &mut asking).await;
    assert!(ended.is_err(), "goes on asking: {ended:?}");
    asking.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_is_passed_over() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let (server, _asked) = failing_server(0, |_| None).await;
    let client = quick_client(vec![gone.clone(), server.1.clone()]);
    within(change(&client)).await.unwrap();
    assert_eq!(client.preferred(), server.1);
    let settings = ApiClientConfig {
        deadline: Duration::from_millis(200),
        ..ApiClientConfig::new(vec![gone])
    };
    let error = within(change(&Client::new(settings).unwrap())).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { tried: 2.., .. }), "{error:?}");
    let plain = Client::new(ApiClientConfig::new(vec!["10.0.0.1:7".into()]));
    assert!(matches!(plain, Err(ClientError::InvalidConfig(_))), "no plain text beyond loopback");
}
