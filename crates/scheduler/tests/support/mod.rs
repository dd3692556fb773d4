//! A master in one process: one state, its log, leases by name; and specs to fill it with. Links to
//! it can be cut, made to lose answers, or made to grant every lease.
#![allow(dead_code)] // Every test file uses its own part.

pub mod random_cell;

use cellwright_cell::command::{Command, Entry, Observed, Request, TaskReport, Verdict};
use cellwright_cell::constraint::Attributes;
use cellwright_cell::encode;
use cellwright_cell::event::{Event, EventKind, TaskChange};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::invariant;
use cellwright_cell::label::Labels;
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::{JobKey, Name, Token};
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::task::{ExitClass, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_messages::{
    LeaseAnswer, LeaseRequest, LogAnswer, LogRecord, PassStatistics, Proposal, ProposalAnswer,
};
pub use cellwright_scheduler::SchedulerShard;
use cellwright_scheduler::{LinkError, MasterLink, SchedulerConfig};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// How long a granted lease lasts.
pub const LEASE: Span = Span::seconds(9);

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

pub fn key(job: &str) -> JobKey {
    JobKey { user: name("ada"), job: name(job) }
}

pub fn all(amount: u64) -> Resources {
    Resources::new(amount, amount, amount, amount)
}

pub fn machine(text: &str, capacity: u64) -> MachineSpec {
    MachineSpec {
        name: name(text),
        capacity: all(capacity),
        attributes: Attributes::new(),
        labels: Labels::new(),
        rack: None,
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: PortRange::default(),
        address: None,
    }
}

pub fn job(text: &str, count: u32, size: u64) -> JobSpec {
    let mut spec = JobSpec::new(name(text), count, Priority(150), all(size));
    spec.task.command = vec!["work".into()];
    spec
}

/// A job for the scheduler of a shard.
pub fn job_in_shard(text: &str, count: u32, shard: &str) -> JobSpec {
    let mut spec = job(text, count, 1);
    spec.labels.insert(token("scheduler"), shard.into());
    spec
}

pub fn settings(scheduler: &str, shard: &str) -> SchedulerConfig {
    let seed = scheduler.bytes().fold(7, |sum, b| sum * 31 + u64::from(b));
    SchedulerConfig::new(name(scheduler), SchedulerShard::new(shard).unwrap(), seed)
}

/// The state of the master.
pub struct MasterState {
    pub state: State,
    pub events: Vec<Event>,
    log: Vec<LogRecord>,
    /// Hash of the state after each record.
    pub hashes: Vec<u64>,
    term: u64,
    origin: Instant,
    /// Milliseconds added by hand, on top of the paused clock of a runtime, if there is one.
    pub ticks: u64,
    leases: BTreeMap<String, (String, Instant)>,
    pub reported_passes: PassStatistics,
    pub proposals: u64,
}

impl MasterState {
    pub fn last(&self) -> u64 {
        self.log.last().map_or(0, |record| record.index)
    }

    /// Raft's own entries take indices too.
    fn next_index(&self) -> u64 {
        self.last() + 1 + (self.last() % 5) / 4
    }

    pub fn records(&self) -> &[LogRecord] {
        &self.log
    }

    pub fn apply(&mut self, requests: Vec<Request>) -> ProposalAnswer {
        let paused = tokio::runtime::Handle::try_current().is_ok();
        let elapsed = if paused { self.origin.elapsed().as_millis() as u64 } else { 0 };
        let now = Time(self.ticks + elapsed);
        let entry = Entry { now, requests };
        let verdicts = self.state.apply(&entry, &mut self.events);
        invariant::check_state(&self.state).unwrap();
        let (index, previous) = (self.next_index(), self.last());
        let entry = encode::save_entry(&entry);
        self.log.push(LogRecord { index, previous, term: self.term, entry });
        self.hashes.push(self.state.hash());
        ProposalAnswer { index, verdicts }
    }

    pub fn tasks_in(&self, wanted: impl Fn(TaskState) -> bool) -> Vec<TaskId> {
        let rows = self.state.tasks().iter().filter(|(_, task)| wanted(task.state));
        rows.map(|(id, _)| id).collect()
    }

    pub fn waiting(&self) -> usize {
        self.tasks_in(|state| state == TaskState::Pending).len()
    }

    /// Number of tasks placed on machines so far.
    pub fn scheduled(&self) -> usize {
        let scheduled = |event: &&Event| {
            matches!(event.kind, EventKind::Task { change: TaskChange::Scheduled { .. }, .. })
        };
        self.events.iter().filter(scheduled).count()
    }
}

/// The fault of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Nothing gets through.
    Cut,
    /// Proposals arrive and are applied; their answers are lost.
    LostAnswers,
    /// Proposals hang for ever before they arrive.
    Stuck,
    /// The next records are damaged.
    Damaged,
    /// The next record is left out.
    Gap,
}

pub struct InMemoryMaster {
    state: Mutex<MasterState>,
    applied: watch::Sender<u64>,
    /// Every request for the lease is granted: the worst a master could do.
    pub grants_all: bool,
}

impl InMemoryMaster {
    pub fn new() -> Arc<InMemoryMaster> {
        InMemoryMaster::granting(false)
    }

    pub fn granting(grants_all: bool) -> Arc<InMemoryMaster> {
        let master_state = MasterState {
            state: State::default(),
            events: Vec::new(),
            log: Vec::new(),
            hashes: Vec::new(),
            term: 1,
            origin: Instant::now(),
            ticks: 1_000_000,
            leases: BTreeMap::new(),
            reported_passes: PassStatistics::default(),
            proposals: 0,
        };
        let (master_state, applied) = (Mutex::new(master_state), watch::Sender::new(0));
        Arc::new(InMemoryMaster { state: master_state, applied, grants_all })
    }

    /// `machines` of `capacity` each, up, and `ada` with quota for all of them.
    pub fn with_machines(machines: u32, capacity: u64) -> Arc<InMemoryMaster> {
        let master = InMemoryMaster::new();
        master.add_machines(machines, capacity);
        master
    }

    pub fn add_machines(&self, machines: u32, capacity: u64) {
        for number in 0..machines {
            self.apply_ok(Command::AddMachine(machine(&format!("m{number}"), capacity)));
            self.apply_ok(Command::MachineUp { machine: MachineId(number), incarnation: 1 });
        }
        self.apply_ok(Command::AddUser { name: name("ada") });
        for band in [Band::BestEffort, Band::Batch] {
            let quota = Quota { amount: all(1 << 40), from: Time::ZERO, until: Time::NEVER };
            let (user, quota) = (name("ada"), Some(quota));
            self.apply_ok(Command::SetQuota { user, band, quota, expect: None });
        }
    }

    pub fn state(&self) -> MutexGuard<'_, MasterState> {
        self.state.lock().unwrap()
    }

    pub fn apply(&self, requests: Vec<Request>) -> ProposalAnswer {
        let answer = self.state().apply(requests);
        self.applied.send_replace(answer.index);
        answer
    }

    pub fn command(&self, command: Command) -> Verdict {
        let request = Request::from_default_sender(command, &self.state().state);
        self.apply(vec![request]).verdicts.pop().unwrap()
    }

    pub fn apply_ok(&self, command: Command) {
        let description = format!("{command:?}");
        let verdict = self.command(command);
        assert!(verdict.is_ok(), "{verdict:?} to {description}");
    }

    pub fn submit(&self, spec: JobSpec) {
        self.apply_ok(Command::SubmitJob { owner: name("ada"), spec: Box::new(spec) });
    }

    /// Reports an observation of a task, as its machine's agent would.
    pub fn report(&self, task: TaskId, observed: Observed) {
        let row = self.state().state.tasks().get(task).unwrap().clone();
        let reports = vec![TaskReport { task, attempt: row.attempt, what: observed }];
        let machine = row.machine().unwrap();
        self.apply_ok(Command::TaskReports { machine, incarnation: 1, reports });
    }

    /// Lets a placed task start and crash.
    pub fn crash(&self, task: TaskId) {
        self.report(task, Observed::Started);
        self.report(task, Observed::Failed(ExitClass::Code(1)));
    }

    /// Restores the cell to its first twelve entries; from there it takes another course.
    pub fn restore(&self) {
        let mut master_state = self.state();
        let kept = master_state.records()[..12].to_vec();
        master_state.state = State::default();
        master_state.events.clear();
        for record in &kept {
            let entry = encode::load_entry(&record.entry).unwrap();
            let MasterState { state, events, .. } = &mut *master_state;
            state.apply(&entry, events);
        }
        master_state.log = kept;
        let last = master_state.last();
        drop(master_state);
        self.applied.send_replace(last);
    }

    /// Another leader.
    pub fn elect(&self) {
        self.state().term += 1;
    }

    /// Waits until the condition holds; never longer than an hour of the paused clock.
    pub async fn until(&self, condition: &str, holds: impl Fn(&MasterState) -> bool) {
        let mut applied = self.applied.subscribe();
        let reached = async {
            while !holds(&self.state()) {
                applied.changed().await.unwrap();
            }
        };
        let waited = timeout(Duration::from_secs(3600), reached).await;
        assert!(waited.is_ok(), "not within an hour: {condition}");
    }
}

/// The link of one scheduler to the master.
pub struct Link {
    pub master: Arc<InMemoryMaster>,
    fault: Mutex<Fault>,
}

impl Link {
    pub fn to(master: &Arc<InMemoryMaster>) -> Arc<Link> {
        Arc::new(Link { master: Arc::clone(master), fault: Mutex::default() })
    }

    pub fn fault(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn is(&self, fault: Fault) -> bool {
        *self.fault.lock().unwrap() == fault
    }

    /// Takes the fault, once.
    fn take(&self, fault: Fault) -> bool {
        let is = self.is(fault);
        if is {
            self.fault(Fault::None);
        }
        is
    }

    fn cut(&self) -> Result<(), LinkError> {
        if self.is(Fault::Cut) { Err(LinkError::Unreachable("cut".into())) } else { Ok(()) }
    }

    /// As in a network: never immediate.
    async fn travel(&self) -> Result<(), LinkError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.cut()
    }
}

impl MasterLink for Link {
    async fn log_after(&self, index: u64, wait: Span) -> Result<LogAnswer, LinkError> {
        self.travel().await?;
        let mut applied = self.master.applied.subscribe();
        let newer = applied.wait_for(|last| *last > index);
        let _ = timeout(Duration::from_millis(wait.0), newer).await;
        self.travel().await?;
        let master_state = self.master.state();
        let new = |record: &&LogRecord| record.index > index;
        // A long log is not kept for schedulers that start afresh.
        if index == 0 && master_state.log.len() > 10 {
            let LogRecord { index, term, .. } = master_state.log[master_state.log.len() - 1];
            let state = encode::save(&master_state.state);
            return Ok(LogAnswer::Snapshot { index, term, state });
        }
        let mut records: Vec<LogRecord> = master_state.log.iter().filter(new).cloned().collect();
        if !records.is_empty() && self.take(Fault::Damaged) {
            records[0].entry.truncate(9);
        }
        if records.len() > 1 && self.take(Fault::Gap) {
            records.remove(0);
        }
        Ok(LogAnswer::Records(records))
    }

    async fn propose(&self, proposal: Proposal) -> Result<ProposalAnswer, LinkError> {
        self.travel().await?;
        if self.is(Fault::Stuck) {
            std::future::pending::<()>().await;
        }
        self.master.state().proposals += 1;
        let answer = self.master.apply(proposal.requests);
        self.travel().await?;
        if self.is(Fault::LostAnswers) {
            Err(LinkError::Unreachable("answer lost".into()))
        } else {
            Ok(answer)
        }
    }

    async fn lease(&self, request: LeaseRequest) -> Result<LeaseAnswer, LinkError> {
        self.travel().await?;
        let mut master_state = self.master.state();
        let now = Instant::now();
        master_state.reported_passes.merge(&request.passes);
        let held =
            master_state.leases.get(&request.scheduler_shard).filter(|(_, until)| *until > now);
        let holder = held.map_or(request.scheduler.clone(), |(holder, _)| holder.clone());
        let granted = holder == request.scheduler || self.master.grants_all;
        if granted {
            let until = now + Duration::from_millis(LEASE.0);
            master_state.leases.insert(request.scheduler_shard, (request.scheduler, until));
        }
        Ok(LeaseAnswer { granted, holder, length: LEASE })
    }
}
