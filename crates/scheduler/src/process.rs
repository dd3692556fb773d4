//! The running scheduler: calls the master for the log, for the lease and for verdicts, all at
//! once, and does what [`crate::pass_planner`] decides in between.
//!
//! A standby does everything but passes, so that taking over costs no more than the lease. Dropping
//! the future at any point loses nothing: proposals are decided by the log, and tasks not yet
//! proposed are still pending there.
//!
//! Heavy work (a pass, a snapshot) is done in place; on a runtime with several threads the others
//! take over this one's tasks meanwhile. Rejected: a thread of its own for the cell copy. It brings
//! hand-over and a second clock, and the simulator could not run it.

use crate::cell_copy::CellCopy;
use crate::config::{InvalidConfig, SchedulerConfig};
use crate::master_link::{LinkError, MasterLink};
use crate::pass::{self, PassPlan, PassRunner};
use crate::pass_planner::{Backoff, LogClock, NextAction, PassPlanner};
use crate::plan_result::{PlanResult, RejectedByReason};
use cellwright_cell::plan::Plan;
use cellwright_cell::time::Span;
use cellwright_messages::{
    LeaseAnswer, LeaseRequest, LogAnswer, LogRecord, PassStatistics, ProposalAnswer,
};
use cellwright_sched::Solver;
use cellwright_supervise::failpoint;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// Records larger than this together are applied as heavy work.
const HEAVY_BYTES: usize = 64 << 10;

/// Whether this scheduler is the active one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SchedulerRole {
    Active,
    /// Another scheduler is active; empty: none is known.
    Standby {
        holder: String,
    },
    #[default]
    Unknown,
}

/// The status of a scheduler, for metrics and for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStatus {
    pub role: SchedulerRole,
    /// The index of the copy.
    pub index: u64,
    /// Since the start.
    pub passes: PassStatistics,
    /// Groups rejected since the start, by reason.
    pub rejected: RejectedByReason,
    /// How often the copy had to start again.
    pub resyncs: u64,
}

type PendingCall<T> = Option<Pin<Box<dyn Future<Output = Result<T, LinkError>> + Send>>>;

pub struct Scheduler<L> {
    link: Arc<L>,
    settings: SchedulerConfig,
    pass_runner: PassRunner,
    copy: CellCopy,
    planner: PassPlanner,
    log_clock: LogClock,
    started: Instant,
    /// Split plans still to be proposed, and the one in flight.
    remaining_plans: VecDeque<Plan>,
    in_flight_plan: Plan,
    /// The index of the copy when it was sent.
    proposed_at: u64,
    log_call: PendingCall<LogAnswer>,
    log_backoff: Backoff,
    proposal_call: PendingCall<ProposalAnswer>,
    lease_call: PendingCall<LeaseAnswer>,
    lease_requested_at: u64,
    /// When to request the lease next.
    next_lease_request: u64,
    lease_backoff: Backoff,
    /// Passes not yet reported to the master, and those being reported to it.
    unreported_passes: PassStatistics,
    passes_being_reported: PassStatistics,
    status: SchedulerStatus,
    status_sender: watch::Sender<SchedulerStatus>,
}

enum Event {
    Lease(Result<LeaseAnswer, LinkError>),
    Verdicts(Result<ProposalAnswer, LinkError>),
    Log(Result<LogAnswer, LinkError>),
    Time,
}

/// Building and running.
impl<L: MasterLink> Scheduler<L> {
    /// # Errors
    /// The first invalid setting.
    pub fn new(link: Arc<L>, settings: SchedulerConfig) -> Result<Scheduler<L>, InvalidConfig> {
        settings.validate()?;
        let pause = Backoff::new(settings.retry, settings.retry_max);
        let pass_runner = PassRunner {
            solver: Solver::new(settings.options),
            shard: settings.shard.clone(),
            seed: settings.seed,
            chunk_size: settings.chunk_size,
        };
        Ok(Scheduler {
            link,
            pass_runner,
            copy: CellCopy::knowing(settings.known_level),
            settings,
            planner: PassPlanner::new(pause),
            log_clock: LogClock::default(),
            started: Instant::now(),
            remaining_plans: VecDeque::new(),
            in_flight_plan: Plan::default(),
            proposed_at: 0,
            log_call: None,
            log_backoff: pause,
            proposal_call: None,
            lease_call: None,
            lease_requested_at: 0,
            next_lease_request: 0,
            lease_backoff: pause,
            unreported_passes: PassStatistics::default(),
            passes_being_reported: PassStatistics::default(),
            status: SchedulerStatus::default(),
            status_sender: watch::Sender::default(),
        })
    }

    #[must_use]
    pub fn status(&self) -> watch::Receiver<SchedulerStatus> {
        self.status_sender.subscribe()
    }

    /// Schedules until dropped.
    pub async fn run(mut self) {
        loop {
            failpoint("scheduler");
            let wake = self.step();
            let event = self.next_event(wake).await;
            let at = self.elapsed_millis();
            match event {
                Event::Lease(answer) => self.on_lease(answer, at),
                Event::Verdicts(answer) => self.on_verdicts(answer, at),
                Event::Log(answer) => self.on_log(answer, at),
                Event::Time => {}
            }
        }
    }

    async fn next_event(&mut self, wake: Option<u64>) -> Event {
        let at = wake.map(|at| self.started + Duration::from_millis(at));
        let wake_up = async {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // In a fixed order, so that a simulated run repeats; none is ready for ever.
        tokio::select! {
            biased;
            answer = await_call(&mut self.lease_call) => Event::Lease(answer),
            answer = await_call(&mut self.proposal_call) => Event::Verdicts(answer),
            answer = await_call(&mut self.log_call) => Event::Log(answer),
            () = wake_up => Event::Time,
        }
    }

    /// Milliseconds on the steady clock.
    fn elapsed_millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Performing the next actions.
impl<L: MasterLink> Scheduler<L> {
    /// Makes the calls that are due and a pass if it is time; returns when to wake up.
    fn step(&mut self) -> Option<u64> {
        let at = self.elapsed_millis();
        if self.lease_call.is_none() && self.next_lease_request <= at {
            self.request_lease(at);
        }
        if self.log_call.is_none() && self.log_backoff.paused_until(at).is_none() {
            self.request_log();
        }
        let wake = self.run_next_actions(at);
        self.publish_status(at);
        let lease_at = self.lease_call.is_none().then_some(self.next_lease_request);
        let log_at = self.log_call.is_none().then(|| self.log_backoff.paused_until(at)).flatten();
        [wake, lease_at, log_at].into_iter().flatten().min()
    }

    fn run_next_actions(&mut self, at: u64) -> Option<u64> {
        if self.planner.can_sync(self.copy.index()) && self.copy.take_changes() {
            self.planner.has_changes();
        }
        loop {
            match self.planner.next_action(self.copy.index(), &self.log_clock, self.copy.now(), at)
            {
                NextAction::Wait(until) => return until,
                NextAction::Stamp => self.propose(Plan::default()),
                NextAction::Pass => self.run_pass(at),
            }
        }
    }

    fn run_pass(&mut self, at: u64) {
        let now = self.log_clock.now(at);
        let started_at = Instant::now();
        let (pass_runner, copy) = (&self.pass_runner, &mut self.copy);
        if !pass_runner.has_work(copy) {
            return self.planner.on_pass_done(pass::Wakeups::default());
        }
        let (planned, due) = run_heavy(|| {
            let planned = pass_runner.pass(copy, now);
            (planned, pass_runner.wakeups(copy, now))
        });
        self.planner.on_pass_done(due);
        let micros = u64::try_from(started_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let PassPlan { chunks, pending, not_due: not_yet, stats } = planned;
        self.count_passes(PassStatistics {
            passes: 1,
            pending: (pending + not_yet) as u64,
            micros,
            longest_micros: micros,
            evaluations: stats.evaluations,
            ..PassStatistics::default()
        });
        self.remaining_plans = chunks;
        if let Some(plan) = self.remaining_plans.pop_front() {
            self.propose(plan);
        }
    }

    fn propose(&mut self, plan: Plan) {
        self.planner.is_proposing();
        self.in_flight_plan = plan.clone();
        self.proposed_at = self.copy.index();
        let (link, answer_timeout) = (Arc::clone(&self.link), self.settings.answer_timeout);
        let proposal = pass::proposal(&self.settings.name, plan);
        self.proposal_call =
            Some(Box::pin(
                async move { with_timeout(answer_timeout, link.propose(proposal)).await },
            ));
    }

    fn request_log(&mut self) {
        let (link, index) = (Arc::clone(&self.link), self.copy.index());
        let SchedulerConfig { poll_wait: poll, answer_timeout, .. } = self.settings;
        let longest = Span(poll.0.saturating_add(answer_timeout.0));
        self.log_call =
            Some(Box::pin(async move { with_timeout(longest, link.log_after(index, poll)).await }));
    }

    fn request_lease(&mut self, at: u64) {
        self.lease_requested_at = at;
        self.passes_being_reported = std::mem::take(&mut self.unreported_passes);
        self.unreported_passes.pending = self.passes_being_reported.pending;
        let request = LeaseRequest {
            scheduler: self.settings.name.to_string(),
            scheduler_shard: self.settings.shard.name().to_owned(),
            passes: self.passes_being_reported,
            wall: cellwright_cell::time::Time::ZERO,
            level: self.settings.known_level,
        };
        let (link, answer_timeout) = (Arc::clone(&self.link), self.settings.answer_timeout);
        self.lease_call =
            Some(Box::pin(async move { with_timeout(answer_timeout, link.lease(request)).await }));
    }

    fn count_passes(&mut self, more: PassStatistics) {
        self.unreported_passes.merge(&more);
        self.status.passes.merge(&more);
    }

    fn publish_status(&mut self, at: u64) {
        self.status.index = self.copy.index();
        if self.status.role == SchedulerRole::Active && !self.planner.is_active(at) {
            self.status.role = SchedulerRole::Unknown;
        }
        let status = &self.status;
        self.status_sender.send_if_modified(|published| {
            let changed = *published != *status;
            if changed {
                published.clone_from(status);
            }
            changed
        });
    }
}

/// Handling answers.
impl<L: MasterLink> Scheduler<L> {
    fn on_lease(&mut self, answer: Result<LeaseAnswer, LinkError>, at: u64) {
        match answer {
            Ok(LeaseAnswer { granted, holder, length }) => {
                self.lease_backoff.reset();
                // A third, so that two calls may fail before the lease is over.
                let third = Span(length.0 / 3).max(self.settings.retry);
                self.next_lease_request = at.max(self.lease_requested_at.saturating_add(third.0));
                if granted {
                    self.planner.on_lease_granted(self.lease_requested_at, length, at);
                    self.status.role = SchedulerRole::Active;
                } else {
                    self.planner.on_lease_denied();
                    self.status.role = SchedulerRole::Standby { holder };
                }
            }
            Err(error) => {
                tracing::warn!(%error, "lease not renewed");
                let later =
                    std::mem::replace(&mut self.unreported_passes, self.passes_being_reported);
                self.unreported_passes.merge(&later);
                self.lease_backoff.record_failure(at);
                self.next_lease_request = self.lease_backoff.paused_until(at).unwrap_or(at);
            }
        }
        self.passes_being_reported = PassStatistics::default();
    }

    fn on_verdicts(&mut self, answer: Result<ProposalAnswer, LinkError>, at: u64) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // It may or may not be in the log. The copy will see it; tasks planned twice are
                // rejected by the attempts that the plan names.
                tracing::warn!(%error, "proposal unanswered");
                self.remaining_plans.clear();
                self.planner.on_proposal_failed(at);
                return self.sync_copy();
            }
        };
        let result = PlanResult::of(&self.in_flight_plan, answer.verdicts.first());
        for (reason, groups) in &result.by_reason {
            tracing::debug!(reason, groups, "groups refused");
            *self.status.rejected.entry(reason).or_default() += groups;
        }
        self.count_passes(PassStatistics {
            placed: result.placed,
            rejected: result.rejected,
            preempted: result.preempted,
            pending: self.status.passes.pending,
            ..PassStatistics::default()
        });
        self.planner.on_proposal_decided(answer.index);
        if answer.index <= self.proposed_at {
            // A new entry that is older than the newest one here: the cell was restored from a
            // backup.
            tracing::warn!(index = answer.index, "the copy is of another log");
            self.remaining_plans.clear();
            self.log_call = None;
            self.replace_copy(CellCopy::knowing(self.settings.known_level));
        }
        self.planner.on_plan_result(result.placed, result.rejected, at);
        if !self.planner.is_active(at) {
            self.remaining_plans.clear();
        }
        match self.remaining_plans.pop_front() {
            Some(plan) => self.propose(plan),
            None => self.sync_copy(),
        }
    }

    fn on_log(&mut self, answer: Result<LogAnswer, LinkError>, at: u64) {
        let applied = match answer {
            Ok(LogAnswer::Records(records)) => self.apply_records(&records, at),
            Ok(LogAnswer::Snapshot { index, term, state }) => {
                self.load_snapshot(index, term, &state, at)
            }
            Err(error) => Err(error.to_string()),
        };
        match applied {
            Ok(()) => self.log_backoff.reset(),
            Err(why) => {
                tracing::warn!(%why, "the log cannot be followed now");
                self.log_backoff.record_failure(at);
            }
        }
        self.sync_copy();
    }

    fn apply_records(&mut self, records: &[LogRecord], at: u64) -> Result<(), String> {
        let bytes: usize = records.iter().map(|record| record.entry.len()).sum();
        let copy = &mut self.copy;
        let mut all = || records.iter().try_for_each(|record| copy.apply_record(record));
        let applied = if bytes > HEAVY_BYTES { run_heavy(all) } else { all() };
        if !records.is_empty() {
            self.log_clock.observe(self.copy.now(), at);
        }
        applied.map_err(|error| {
            self.replace_copy(CellCopy::knowing(self.settings.known_level));
            error.to_string()
        })
    }

    fn load_snapshot(
        &mut self,
        index: u64,
        term: u64,
        state: &[u8],
        at: u64,
    ) -> Result<(), String> {
        let copy = run_heavy(|| self.copy.reloaded(index, term, state));
        self.replace_copy(copy.map_err(|why| format!("snapshot {index} cannot be read: {why}"))?);
        self.log_clock.observe(self.copy.now(), at);
        Ok(())
    }

    fn replace_copy(&mut self, copy: CellCopy) {
        self.status.resyncs += u64::from(self.copy.index() > 0);
        self.copy = copy;
        self.planner.on_copy_replaced();
    }

    /// Brings the cluster snapshot up to date, unless it holds the result of a plan still open.
    fn sync_copy(&mut self) {
        if self.planner.can_sync(self.copy.index()) {
            let copy = &mut self.copy;
            run_heavy(|| copy.sync());
        }
    }
}

async fn await_call<T>(call: &mut PendingCall<T>) -> Result<T, LinkError> {
    let Some(in_flight) = call else { return std::future::pending().await };
    let answer = in_flight.await;
    *call = None;
    answer
}

async fn with_timeout<T>(
    answer_timeout: Span,
    in_flight: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    let answer = timeout(Duration::from_millis(answer_timeout.0), in_flight).await;
    answer.unwrap_or(Err(LinkError::NoAnswer(answer_timeout)))
}

fn run_heavy<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}
