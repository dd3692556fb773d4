//! The master's main loop around the core: takes one message at a time, calls the core, carries out
//! its outputs. All waiting happens in separate tasks that report back with messages.

use crate::clock::Clock;
use crate::replicated_state::ReplicatedState;
use cellwright_cell::command::{Entry, Request, Verdict};
use cellwright_cell::encode;
use cellwright_cell::time::{Span, Time};
use cellwright_control::core::Core;
use cellwright_control::input::{
    Alarm, ArchiveProgress, BatchId, Committed, Input, Now, Origin, Output, Role, Ticket,
};
use cellwright_control::lease::SchedulerShardName;
use cellwright_control::log_time::ClockSkews;
use cellwright_messages::{LeaseAnswer, LinkShardReport, PassStatistics, Unavailable};
use cellwright_store::{ProposeError, Purpose, Replica};
use cellwright_supervise::{Supervisor, failpoint};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How often controllers and liveness run.
pub const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// Messages taken before outputs are carried out: requests that arrive together share an entry.
const MAX_MESSAGES_PER_STEP: usize = 4096;

pub type RequestAnswer = Result<Committed, Unavailable>;

/// A message to the loop.
pub enum Message {
    Requests {
        origin: Origin,
        bytes: usize,
        requests: Vec<Request>,
        answer: oneshot::Sender<RequestAnswer>,
    },
    Lease {
        scheduler: String,
        scheduler_shard: SchedulerShardName,
        passes: PassStatistics,
        /// The scheduler's clock.
        wall: Time,
        answer: oneshot::Sender<Result<LeaseAnswer, Unavailable>>,
    },
    /// A query, not an event: answered from the current state.
    SchedulerShardHolder {
        scheduler_shard: SchedulerShardName,
        answer: oneshot::Sender<Result<Option<String>, Unavailable>>,
    },
    Forward(LinkShardReport),
    Archive(ArchiveProgress),
    Role(Role),
    Committed {
        batch: BatchId,
        result: RequestAnswer,
    },
    Stop,
}

pub struct MainLoop {
    pub core: Core,
    pub replica: Arc<Replica>,
    pub replicated: Arc<ReplicatedState>,
    pub clock: Arc<dyn Clock>,
    pub messages: mpsc::UnboundedReceiver<Message>,
    /// Sends to the loop itself, for work that ends later.
    pub sender: mpsc::UnboundedSender<Message>,
    pub alarms: watch::Sender<Vec<Alarm>>,
    pub passes: watch::Sender<BTreeMap<String, PassStatistics>>,
    pub skews: watch::Sender<ClockSkews>,
    pub controllers: watch::Sender<BTreeMap<&'static str, u64>>,
    pub supervisor: Supervisor,
}

#[derive(Default)]
struct PendingReplies {
    next: u64,
    requests: BTreeMap<Ticket, oneshot::Sender<RequestAnswer>>,
    leases: BTreeMap<Ticket, oneshot::Sender<Result<LeaseAnswer, Unavailable>>>,
}

impl PendingReplies {
    fn next_ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }
}

impl MainLoop {
    pub async fn run(mut self) {
        let started = Instant::now();
        let mut tick = tokio::time::interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pending = PendingReplies::default();
        let mut outputs = Vec::new();
        loop {
            let first = tokio::select! {
                biased;
                message = self.messages.recv() => message,
                _ = tick.tick() => {
                    failpoint("core");
                    self.step(Input::Tick, started, &mut outputs);
                    self.act(&mut outputs, &mut pending);
                    continue;
                }
            };
            let mut next = first;
            for _ in 0..MAX_MESSAGES_PER_STEP {
                match next {
                    None | Some(Message::Stop) => return self.stop(pending),
                    Some(Message::SchedulerShardHolder { scheduler_shard, answer }) => {
                        let holder = self
                            .core
                            .scheduler_shard_holder(&scheduler_shard, self.now(started).elapsed);
                        // The caller may have gone away.
                        let _ = answer.send(holder);
                    }
                    Some(message) => {
                        let input = self.input(message, &mut pending);
                        self.step(input, started, &mut outputs);
                    }
                }
                match self.messages.try_recv() {
                    Ok(message) => next = Some(message),
                    Err(_) => break,
                }
            }
            self.core.flush(self.now(started), &mut outputs);
            self.act(&mut outputs, &mut pending);
        }
    }

    fn now(&self, started: Instant) -> Now {
        let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { wall: self.clock.wall_time(), elapsed: Span(elapsed) }
    }

    fn step(&mut self, input: Input, started: Instant, outputs: &mut Vec<Output>) {
        let now = self.now(started);
        self.core.set_disk_full(self.replica.write_rejection().map(unavailable_error));
        let replicated = &self.replicated;
        self.core.step(input, now, &|| replicated.view().state, outputs);
    }

    fn input(&mut self, message: Message, pending: &mut PendingReplies) -> Input {
        match message {
            Message::Requests { origin, bytes, requests, answer } => {
                let ticket = pending.next_ticket();
                pending.requests.insert(ticket, answer);
                Input::Requests { ticket, origin, bytes, requests }
            }
            Message::Lease { scheduler, scheduler_shard, passes, wall, answer } => {
                let ticket = pending.next_ticket();
                pending.leases.insert(ticket, answer);
                self.passes.send_modify(|all| {
                    all.entry(scheduler.clone()).or_default().merge(&passes);
                });
                Input::Lease { ticket, scheduler, scheduler_shard, wall }
            }
            Message::Forward(forward) => Input::Forward(forward),
            Message::Archive(progress) => Input::Archive(progress),
            Message::Role(role) => Input::Role(role),
            Message::Committed { batch, result } => Input::Committed { batch, result },
            // Handled by the caller; a tick is harmless.
            Message::Stop | Message::SchedulerShardHolder { .. } => Input::Tick,
        }
    }

    fn act(&mut self, outputs: &mut Vec<Output>, pending: &mut PendingReplies) {
        for output in outputs.drain(..) {
            match output {
                Output::Propose { batch, now, requests } => self.propose(batch, now, requests),
                Output::Answer { ticket, result } => {
                    if let Some(answer) = pending.requests.remove(&ticket) {
                        // The caller may have gone away; the log has the entry all the same.
                        let _ = answer.send(result);
                    }
                }
                Output::Lease { ticket, answer } => {
                    if let Some(sender) = pending.leases.remove(&ticket) {
                        let _ = sender.send(answer);
                    }
                }
                Output::LogTime(date) => self.replicated.set_log_time(date),
                Output::Skews(skews) => {
                    self.skews.send_replace(skews);
                }
                Output::Controllers(given) => {
                    self.controllers.send_replace(given);
                }
                Output::Alarms(alarms) => {
                    self.alarms.send_if_modified(|old| {
                        let changed = *old != alarms;
                        *old = alarms;
                        changed
                    });
                }
            }
        }
    }

    fn propose(&self, batch: BatchId, now: Time, requests: Vec<Request>) {
        let (replica, replicated) = (self.replica.clone(), self.replicated.clone());
        let sender = self.sender.clone();
        // Its callers would wait for ever, and the entries behind it too.
        self.supervisor.spawn_finite("a proposal", async move {
            failpoint("proposal");
            let removes = requests.iter().all(|request| request.command.frees_space());
            let purpose = if removes { Purpose::Removal } else { Purpose::Write };
            // Levels only rise: at whatever index this stands, every replica knows the format.
            let payload = encode::save_entry_at(&Entry { now, requests }, replicated.level());
            let result = match payload {
                Err(why) => Err(Unavailable::NotYet { why: why.to_string() }),
                Ok(payload) => match replica.propose_for(purpose, payload).await {
                    Ok(done) => decode_verdicts(&done.reply).map(|verdicts| Committed {
                        index: done.index,
                        term: done.term,
                        verdicts,
                    }),
                    Err(error) => Err(unavailable_error(error)),
                },
            };
            // The loop may have ended in the meantime.
            let _ = sender.send(Message::Committed { batch, result });
        });
    }

    /// Every caller gets an answer. Shutdown is only given as the reason where nothing was done:
    /// entries that are on their way through the log may be applied without this replica.
    fn stop(mut self, pending: PendingReplies) {
        let in_flight = self.core.in_flight();
        for (ticket, answer) in pending.requests {
            let _ = answer.send(Err(if in_flight.contains(&ticket) {
                lost_error()
            } else {
                Unavailable::ShuttingDown
            }));
        }
        self.messages.close();
        while let Ok(message) = self.messages.try_recv() {
            if let Message::Requests { answer, .. } = message {
                let _ = answer.send(Err(Unavailable::ShuttingDown));
            }
        }
        for (_, answer) in pending.leases {
            let _ = answer.send(Err(Unavailable::ShuttingDown));
        }
    }
}

/// The error for a request that was handed on and got no answer.
pub(crate) fn lost_error() -> Unavailable {
    Unavailable::Unknown { why: "the master stopped before the log had answered".into() }
}

fn decode_verdicts(reply: &[u8]) -> Result<Vec<Verdict>, Unavailable> {
    postcard::from_bytes(reply).map_err(|error| Unavailable::Unknown { why: error.to_string() })
}

pub(crate) fn unavailable_error(error: ProposeError) -> Unavailable {
    match error {
        ProposeError::NotLeader { leader } => {
            Unavailable::NotLeader { leader: leader.map(|(_, peer)| peer.address) }
        }
        ProposeError::Fenced { .. } => Unavailable::NoQuorum,
        ProposeError::OutcomeUnknown { .. } | ProposeError::Deposed { .. } => {
            Unavailable::Unknown { why: error.to_string() }
        }
        ProposeError::DiskFull { free, needed } => Unavailable::DiskFull { free, reserve: needed },
        ProposeError::TooLarge { bytes, allowed } => {
            Unavailable::TooLarge { bytes, limit: allowed }
        }
        // It may have reached other replicas before this one failed.
        ProposeError::Fatal { .. } => Unavailable::Unknown { why: error.to_string() },
    }
}
