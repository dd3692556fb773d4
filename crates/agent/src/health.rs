//! Health probes of tasks (B15). [`HealthTracker`], which is pure, decides what a result means; the
//! probes here connect over loopback or run a command, each within its timeout.
//!
//! The agent never restarts an unhealthy task: it reports it, and the masters order the stop, so
//! that health and every other reason to move a task obey one set of rules.

use crate::driver::exec_spec::{ExecRequest, exec_spec};
use crate::session::{self, HelperRequest, SessionRequest};
use crate::shim::protocol::Launch;
use crate::shim_program::ShimProgram;
use cellwright_agent_core::health::HealthTracker;
use cellwright_agent_core::reconcile::Health;
use cellwright_api::exec::Frame;
use cellwright_cell::health::{HealthCheck, Probe};
use cellwright_supervise::failpoint;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Bytes of an answer that are read: its first line is shorter.
const ANSWER_BYTES: u64 = 256;

/// What to probe, and how.
#[derive(Clone, Debug)]
pub struct ProbeTarget {
    pub check: HealthCheck,
    pub started: u64,
    pub ports: Vec<u16>,
    /// The task: check commands run where it runs, as its user, and within its limits.
    pub launch: Launch,
    /// The executable that starts them.
    pub program: ShimProgram,
    /// Taken while a check command runs: its resources are charged to the task, but starting it is
    /// not.
    pub permits: Arc<Semaphore>,
}

/// Probes until it is dropped; calls `on_change` with every change.
pub async fn run_probes(target: ProbeTarget, on_change: impl Fn(Health)) {
    let mut checker = HealthTracker::new(&target.check, target.started);
    let mut last = Health::Starting;
    loop {
        failpoint("health");
        let limit = Duration::from_millis(target.check.timeout.0);
        let is_command = matches!(target.check.probe, Probe::Command(_));
        // The semaphore is never closed, so a permit is always obtained in the end. Waiting for it
        // is not the task's fault.
        let permit = if is_command { target.permits.acquire().await.ok() } else { None };
        let well = timeout(limit, probe(&target)).await.is_ok_and(|answer| answer.is_some());
        let health = checker.record_result(well, crate::boot::now());
        if health != last {
            last = health;
            on_change(health);
        }
        drop(permit);
        let interval = checker.interval(&target.check);
        sleep(Duration::from_millis(interval.0)).await;
    }
}

/// Something when the task is healthy.
async fn probe(target: &ProbeTarget) -> Option<()> {
    match &target.check.probe {
        Probe::Tcp { port } => connect(&target.ports, *port).await.map(drop),
        Probe::Http { port, path } => {
            let mut stream = connect(&target.ports, *port).await?;
            stream.write_all(get_request(path).as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            // The first line is enough: the rest may be long, slow or cut off.
            let mut stream = BufReader::new(stream.take(ANSWER_BYTES));
            stream.read_until(b'\n', &mut answer).await.ok()?;
            is_success(&answer).then_some(())
        }
        Probe::Command(exit_message) => command_succeeds(target, exit_message).await,
    }
}

/// Has the command run by a helper, as sessions are: whatever it starts ends with it, and all of it
/// ends when the result is no longer awaited, for that closes the helper's connection.
async fn command_succeeds(target: &ProbeTarget, words: &[String]) -> Option<()> {
    let (launch, command) = (&target.launch, words.to_vec());
    let entry = exec_spec(&ExecRequest { launch, command, terminal: false, term: None }).ok()?;
    let request =
        HelperRequest::Command(Box::new(SessionRequest { entry, terminal: None, quiet: true }));
    // Dropped, it is still reaped.
    let (connection, _helper) = session::start(&target.program, &request).await.ok()?;
    let mut connection = BufReader::new(connection);
    loop {
        match Frame::read(&mut connection).await {
            // A keep-alive.
            Ok(Some(Frame::Data(_) | Frame::Stderr(_))) => {}
            Ok(Some(Frame::Exit(0))) => return Some(()),
            _ => return None,
        }
    }
}

/// Of the version in which an answer comes in one piece, and the connection ends with it.
pub(crate) fn get_request(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.0\r\nHost: localhost\r\nUser-Agent: cell\r\n\
         Connection: close\r\n\r\n"
    )
}

/// A connection to the task, by the number of its port among those it was given.
pub(crate) async fn connect(ports: &[u16], port: u8) -> Option<TcpStream> {
    let port = *ports.get(usize::from(port))?;
    TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await.ok()
}

/// `HTTP/1.1 204 …` with a status of 200 to 399.
fn is_success(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let mut words = text.split_ascii_whitespace();
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/"));
    let status = words.next().and_then(|word| word.parse::<u16>().ok());
    is_http && status.is_some_and(|status| (200..400).contains(&status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::time::Span;

    fn check(probe: Probe) -> HealthCheck {
        HealthCheck {
            probe,
            interval: Span(1),
            timeout: Span(60_000),
            start_period: Span(100),
            failures: 2,
        }
    }

    fn launch() -> Launch {
        let text = r#"{"name": "u/j/0", "command": ["true"], "env": [], "directory": "/",
            "logs": {"file_bytes": 1, "files": 1, "rate": 1}}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn answers_are_judged_by_their_status() {
        for (answer, well) in [
            ("HTTP/1.1 200 OK\r\n", true),
            ("HTTP/1.0 302 Found\r\n", true),
            ("HTTP/1.1 500 Oh no\r\n", false),
            ("HTTP/1.1", false),
            ("SSH-2.0 200", false),
            ("", false),
        ] {
            assert_eq!(is_success(answer.as_bytes()), well, "{answer}");
        }
    }

    #[tokio::test]
    async fn probes_ask_over_loopback() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = |probe: Probe, ports: Vec<u16>| ProbeTarget {
            check: check(probe),
            started: 0,
            ports,
            launch: launch(),
            program: ShimProgram::installed(),
            permits: Arc::new(Semaphore::new(1)),
        };
        let tcp = Probe::Tcp { port: 0 };
        assert!(probe(&target(tcp.clone(), vec![port])).await.is_some());
        assert!(probe(&target(tcp.clone(), vec![])).await.is_none(), "no such port");
        let http = target(Probe::Http { port: 0, path: "/ok".into() }, vec![port]);
        for (answer, well) in
            [("HTTP/1.0 200 OK\r\n\r\n", true), ("HTTP/1.0 503 No\r\n\r\n", false)]
        {
            let serve = async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let mut stream = BufReader::new(stream);
                    let mut request = String::new();
                    while !request.ends_with("\r\n\r\n") {
                        match stream.read_line(&mut request).await {
                            Ok(1..) => {}
                            _ => break,
                        }
                    }
                    // The connection of the previous probe sends nothing.
                    if request.starts_with("GET /ok HTTP/1.0\r\n") {
                        return stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                }
            };
            let (result, ()) = tokio::join!(probe(&http), serve);
            assert_eq!(result.is_some(), well);
        }
        drop(listener);
        assert!(probe(&target(tcp, vec![port])).await.is_none(), "nobody listens");
    }
}
