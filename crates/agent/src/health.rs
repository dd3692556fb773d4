//! Asks tasks whether they are well (B15). What counts is decided by [`Checker`], which is pure;
//! the probes around it ask over loopback or run a program, each within its time.
//!
//! The agent never restarts a task that is ill: it reports it, and the masters order the stop, so
//! that health and every other reason to move obey one set of rules.

use crate::core::Health;
use cellwright_cell::health::{HealthCheck, Probe};
use cellwright_isolate::container::{ContainerId, Exec, Runc, Runtime};
use rustix::process::{Pid, Signal, kill_process_group};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// While a task starts it is asked at least this often: it is of use as soon as it is well.
const STARTING_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes of an answer that are read: its first line is shorter.
const ANSWER_BYTES: u64 = 256;

/// What answers so far mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checker {
    health: Health,
    failures_in_row: u32,
    /// Failures in a row that count.
    most: u32,
    /// Failures before do not count, unless it was well already.
    counts_from: u64,
}

impl Checker {
    /// Of a task that started then, in milliseconds.
    #[must_use]
    pub fn new(check: &HealthCheck, started: u64) -> Checker {
        Checker {
            health: Health::Starting,
            failures_in_row: 0,
            most: check.failures,
            counts_from: started.saturating_add(check.start_period.0),
        }
    }

    /// Takes one answer.
    pub fn hear(&mut self, well: bool, now: u64) -> Health {
        if well {
            self.failures_in_row = 0;
            self.health = Health::Well;
        } else if self.health != Health::Starting || now >= self.counts_from {
            self.failures_in_row = self.failures_in_row.saturating_add(1);
            if self.failures_in_row >= self.most {
                self.health = Health::Ill;
            }
        }
        self.health
    }
}

/// Whom to ask, and how.
#[derive(Clone, Debug)]
pub struct Patient {
    pub check: HealthCheck,
    pub started: u64,
    pub ports: Vec<u16>,
    /// For programs that ask.
    pub env: Vec<(String, String)>,
    pub directory: PathBuf,
    /// User and group of the task: whoever wrote its job must not ask as the agent.
    pub identity: Option<(u32, u32)>,
    /// The container in which programs ask. Nothing: they ask as plain processes.
    pub container: Option<(Runc, ContainerId)>,
}

/// Asks for as long as it is let; `tell` hears every change.
pub async fn watch(patient: Patient, tell: impl Fn(Health)) {
    let mut checker = Checker::new(&patient.check, patient.started);
    let mut last = Health::Starting;
    let interval = Duration::from_millis(patient.check.interval.0);
    loop {
        let limit = Duration::from_millis(patient.check.timeout.0);
        let well = timeout(limit, probe(&patient)).await.is_ok_and(|answer| answer.is_some());
        let health = checker.hear(well, crate::boot::now());
        if health != last {
            last = health;
            tell(health);
        }
        let starting = health == Health::Starting;
        sleep(if starting { interval.min(STARTING_INTERVAL) } else { interval }).await;
    }
}

/// Something when the task is well.
async fn probe(patient: &Patient) -> Option<()> {
    match &patient.check.probe {
        Probe::Tcp { port } => connect(patient, *port).await.map(drop),
        Probe::Http { port, path } => {
            let mut stream = connect(patient, *port).await?;
            let request = format!(
                "GET {path} HTTP/1.0\r\nHost: localhost\r\nUser-Agent: cell\r\n\
                 Connection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            // The first line is enough: what follows may be long, slow or cut off.
            let mut stream = BufReader::new(stream.take(ANSWER_BYTES));
            stream.read_until(b'\n', &mut answer).await.ok()?;
            is_success(&answer).then_some(())
        }
        Probe::Command(words) => {
            let mut child = asks(patient, words)?
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .ok()?;
            let number = child.id().and_then(|id| i32::try_from(id).ok());
            let _group = Group(number.and_then(Pid::from_raw));
            child.wait().await.ok()?.success().then_some(())
        }
    }
}

/// The group of a program that asks: everything it started and left there ends with it, also when
/// nobody waits for it any more. Killed right after the program was reaped, before its number can
/// have gone round to anybody else.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nobody left is what is wanted.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The program that asks, where its task is.
fn asks(patient: &Patient, words: &[String]) -> Option<Command> {
    if let Some((runtime, id)) = &patient.container {
        let (uid, gid) = patient.identity?;
        let exec = Exec {
            command: words.to_vec(),
            env: patient.env.iter().cloned().collect(),
            cwd: patient.directory.clone(),
            uid,
            gid,
            terminal: false,
        };
        return Some(Command::from(runtime.exec(id, &exec)));
    }
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    if let Some((user, group)) = patient.identity {
        command.uid(user).gid(group);
    }
    command
        .args(arguments)
        .env_clear()
        .envs(patient.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&patient.directory);
    Some(command)
}

async fn connect(patient: &Patient, port: u8) -> Option<TcpStream> {
    let port = *patient.ports.get(usize::from(port))?;
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

    #[test]
    fn failures_count_after_the_start_and_in_a_row() {
        use Health::{Ill, Starting, Well};
        let play = |answers: &[(bool, u64)]| {
            let mut checker = Checker::new(&check(Probe::Tcp { port: 0 }), 1000);
            let heard = answers.iter().map(|(well, now)| checker.hear(*well, *now));
            heard.collect::<Vec<Health>>()
        };
        let slow = play(&[(false, 1000), (false, 1050), (false, 1099), (true, 1100)]);
        assert_eq!(slow, [Starting, Starting, Starting, Well]);
        let never = play(&[(false, 1099), (false, 1100), (false, 1101), (false, 1102)]);
        assert_eq!(never, [Starting, Starting, Ill, Ill]);
        // Once it was well the start is over.
        let soon = play(&[(true, 1001), (false, 1002), (true, 1003), (false, 1004), (false, 1005)]);
        assert_eq!(soon, [Well, Well, Well, Well, Ill]);
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
    async fn all_kinds_of_probes_ask() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let patient = |probe: Probe, ports: Vec<u16>| Patient {
            check: check(probe),
            started: 0,
            ports,
            env: vec![("WORD".into(), "right".into())],
            directory: "/".into(),
            identity: None,
            container: None,
        };
        let tcp = Probe::Tcp { port: 0 };
        assert!(probe(&patient(tcp.clone(), vec![port])).await.is_some());
        assert!(probe(&patient(tcp.clone(), vec![])).await.is_none(), "no such port");
        let http = patient(Probe::Http { port: 0, path: "/ok".into() }, vec![port]);
        for (answer, well) in
            [("HTTP/1.0 200 OK\r\n\r\n", true), ("HTTP/1.0 503 No\r\n\r\n", false)]
        {
            let serve = async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let mut stream = BufReader::new(stream);
                    let mut asked = String::new();
                    while !asked.ends_with("\r\n\r\n") {
                        match stream.read_line(&mut asked).await {
                            Ok(1..) => {}
                            _ => break,
                        }
                    }
                    // The connection of the probe before says nothing.
                    if asked.starts_with("GET /ok HTTP/1.0\r\n") {
                        return stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                }
            };
            let (heard, ()) = tokio::join!(probe(&http), serve);
            assert_eq!(heard.is_some(), well);
        }
        drop(listener);
        assert!(probe(&patient(tcp, vec![port])).await.is_none(), "nobody listens");
        let words = |script: &str| Probe::Command(vec!["sh".into(), "-c".into(), script.into()]);
        let right = words("test $WORD = right -a \"$PWD\" = /");
        assert!(probe(&patient(right, vec![])).await.is_some());
        assert!(probe(&patient(words("exit 1"), vec![])).await.is_none());
        // What it leaves behind holds the pipe open for as long as it lives.
        let (heard, held) = std::io::pipe().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&held);
        let path = format!("/proc/{}/fd/{number}", std::process::id());
        let leaves = words(&format!("sleep 1000 > {path} & exit 0"));
        assert!(probe(&patient(leaves, vec![])).await.is_some());
        drop(held);
        let end = tokio::task::spawn_blocking(move || std::io::read_to_string(heard));
        assert_eq!(end.await.unwrap().unwrap(), "", "the sleeper is gone");
        assert!(probe(&patient(Probe::Command(vec!["/absent".into()]), vec![])).await.is_none());
    }
}
