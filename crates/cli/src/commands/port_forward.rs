//! `cell port-forward`: ports of a task on this machine's loopback. Every connection is a session
//! of its own in the task, authorised and audited like a command; the agent connects from where the
//! task is, so that a port needs to be open to nobody else.

use super::Success;
use super::exec::explain_not_running;
use super::target::{TargetArg, parse_target};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::print;
use crate::runtime::block_on;
use bytes::Bytes;
use cellwright_api::client::{Client, ClientError, SessionStream};
use cellwright_api::error::Code;
use cellwright_api::exec::Frame;
use cellwright_api::types::TaskView;
use cellwright_cell::name::JobKey;
use cellwright_cell::task::TaskState;
use clap::Args;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

const EXAMPLES: &str = "\
Examples:
  cell port-forward dev/web/0
  cell port-forward dev/web/0 8080:20003
  cell port-forward web/0 0:20003

Without a port, all ports that the task was given, under the same numbers here
where they are free. LOCAL 0 is any that is free. It listens on 127.0.0.1 and ends with the attempt,
with the right to enter the task, and with ctrl-c. Where tasks share the network
of their machine, only the task's own ports are reached.";

/// Connections at a time; a task has no more sessions.
const MAX_CONNECTIONS: usize = 32;
/// Interval at which the attempt is looked after.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 16 << 10;

/// Reach a task's ports on this machine
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PortForwardArgs {
    /// The task; the job alone where it has one task
    #[arg(value_name = "TASK", value_parser = parse_target)]
    task: TargetArg,

    /// Ports of the task, each with another number here where that is wanted
    #[arg(value_name = "[LOCAL:]PORT", value_parser = parse_ports)]
    ports: Vec<PortPair>,
}

/// A port here, and the one of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PortPair {
    local: u16,
    remote: u16,
    /// Any other will do where the one here is taken, as it is beside the task itself.
    or_any: bool,
}

fn parse_ports(text: &str) -> Result<PortPair, String> {
    let allowed = || "allowed: PORT or LOCAL:PORT, as 8080:20003; 1 to 65535".to_owned();
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u16>().map_err(|_| allowed());
    match (number(local)?, number(remote)?) {
        (_, 0) => Err(allowed()),
        (local, remote) => Ok(PortPair { local, remote, or_any: false }),
    }
}

impl PortForwardArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(self.forward(&cell))?;
        Ok(Success::Done)
    }

    async fn forward(&self, cell: &Cell) -> Result<(), Failure> {
        let again = |task: &str| format!("cell port-forward {task}");
        let (job, index) = self.task.resolve_one_task(cell, again).await?;
        let task = cell.client.task(&job, index).await?.value.item;
        if !is_running(&task) {
            let text = format!("{} does not run", task.name);
            let error = cellwright_api::error::ApiError::new(Code::WrongState, text);
            return Err(explain_not_running(cell, &job, index, ClientError::Api(error)).await);
        }
        let ports = self.ports(&task)?;
        let mut forwarding = Forwarding {
            task: TaskName { client: cell.client.clone(), job, index },
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            listeners: JoinSet::new(),
        };
        let (ended, mut end) = mpsc::channel(1);
        for pair in ports {
            forwarding.listen(pair, &ended).await?;
        }
        tokio::select! {
            Some(failure) = end.recv() => Err(failure),
            failure = forwarding.task.until_over(task.attempt) => Err(failure),
            // Without signals it is ended by the system.
            Ok(()) = tokio::signal::ctrl_c() => Ok(()),
        }
    }

    fn ports(&self, task: &TaskView) -> Result<Vec<PortPair>, Failure> {
        if !self.ports.is_empty() {
            return Ok(self.ports.clone());
        }
        if task.ports.is_empty() {
            return Err(Failure::Usage {
                message: format!("{} was given no ports", task.name),
                next: format!("name the port it listens on: cell port-forward {} PORT", task.name),
            });
        }
        Ok(task
            .ports
            .iter()
            .map(|port| PortPair { local: *port, remote: *port, or_any: true })
            .collect())
    }
}

fn is_running(task: &TaskView) -> bool {
    matches!(task.state, TaskState::Running | TaskState::Assigned)
}

#[derive(Clone)]
struct TaskName {
    client: Client,
    job: JobKey,
    index: u32,
}

impl TaskName {
    fn text(&self) -> String {
        format!("{}/{}", self.job, self.index)
    }

    /// Waits until this attempt runs no more, or nothing is to be known of it.
    async fn until_over(&self, attempt: u32) -> Failure {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.client.task(&self.job, self.index).await {
                Ok(task) if task.value.item.attempt == attempt && is_running(&task.value.item) => {}
                Ok(_) => {
                    let name = self.text();
                    return Failure::Operation {
                        message: format!("attempt {attempt} of {name} has ended"),
                        next: format!("see what became of it: cell status {name}"),
                    };
                }
                // A cell that elects a leader is no reason: connections that are open go on.
                Err(ClientError::Api(error)) if is_final(error.code) => {
                    return ClientError::Api(error).into();
                }
                Err(_) => {}
            }
        }
    }
}

/// Whether no later connection will fare better.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::NotAllowed
            | Code::Unauthenticated
            | Code::NoSuchJob
            | Code::NoSuchTask
            | Code::NoSuchUser
    )
}

struct Forwarding {
    task: TaskName,
    permits: Arc<Semaphore>,
    /// Ended when it is dropped, with their connections.
    listeners: JoinSet<()>,
}

impl Forwarding {
    async fn listen(
        &mut self,
        PortPair { local, remote, or_any }: PortPair,
        ended: &mpsc::Sender<Failure>,
    ) -> Result<(), Failure> {
        let mut bound = TcpListener::bind((Ipv4Addr::LOCALHOST, local)).await;
        if bound.is_err() && or_any {
            bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        }
        let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|error| Failure::Operation {
            message: format!("cannot listen on 127.0.0.1:{local}: {error}"),
            next: format!(
                "take any that is free: cell port-forward {} 0:{remote}",
                self.task.text()
            ),
        })?;
        print(&format!("{address} is port {remote} of {}\n", self.task.text()))?;
        let (task, permits, ended) = (self.task.clone(), self.permits.clone(), ended.clone());
        self.listeners.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
                tokio::select! {
                    accepted = listener.accept() => {
                        // One that is gone before it was taken.
                        let Ok((stream, _)) = accepted else { continue };
                        let (task, ended) = (task.clone(), ended.clone());
                        connections.spawn(async move {
                            task.carry(stream, remote, &ended).await;
                            drop(permit);
                        });
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(())
    }
}

impl TaskName {
    async fn carry(&self, stream: TcpStream, port: u16, ended: &mpsc::Sender<Failure>) {
        // Small messages must not wait for more; a failure only costs time.
        let _ = stream.set_nodelay(true);
        match self.client.forward_port(&self.job, self.index, port).await {
            Ok(session) => {
                if let Err(why) = carry_frames(stream, session).await {
                    crate::output::note!("{}: {why}", self.text());
                }
            }
            Err(ClientError::Api(error)) if is_final(error.code) => {
                // The first is enough.
                drop(ended.try_send(ClientError::Api(error).into()));
            }
            Err(error) => crate::output::note!("{}: {error}", self.text()),
        }
    }
}

/// Carries bytes until one side has closed. What the other side says to its end is the error.
async fn carry_frames(
    stream: impl AsyncRead + AsyncWrite,
    session: SessionStream,
) -> Result<(), String> {
    let (mut from_here, mut to_here) = split(stream);
    let (mut from_task, mut to_task) = split(session);
    let there = async {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = from_here.read(&mut buffer).await {
            let frame = Frame::Data(Bytes::copy_from_slice(&buffer[..count]));
            if frame.write(&mut to_task).await.is_err() {
                break;
            }
        }
        // A session that is gone needs no end; one that is there may still answer.
        drop(Frame::End.write(&mut to_task).await);
        std::future::pending::<()>().await;
    };
    let back = async {
        loop {
            match Frame::read(&mut from_task).await {
                Ok(Some(Frame::Data(bytes))) => {
                    if to_here.write_all(&bytes).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(Some(Frame::Failed(text))) => return Err(text),
                _ => {
                    // Whoever is here may be gone.
                    drop(to_here.shutdown().await);
                    return Ok(());
                }
            }
        }
    };
    tokio::select! {
        () = there => Ok(()),
        ended = back => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_the_same_number_here_unless_another_is_named() {
        let pair = |local, remote| Ok(PortPair { local, remote, or_any: false });
        assert_eq!(parse_ports("8080"), pair(8080, 8080));
        assert_eq!(parse_ports("80:8080"), pair(80, 8080));
        assert_eq!(parse_ports("0:8080"), pair(0, 8080));
        for bad in ["", "0", "80:0", "65536", "a", "80:", ":80", "1:2:3"] {
            assert!(parse_ports(bad).is_err(), "{bad:?}");
        }
    }
}
