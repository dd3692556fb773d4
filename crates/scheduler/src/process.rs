//! The running scheduler: asks the master for the log, for the lease and for verdicts, all at once,
//! and does what [`crate::duty`] says in between.
//!
//! A standby does everything but passes, so that taking over costs no more than the lease. Dropping
//! the future at any point loses nothing: what was proposed is decided by the log, what was not
//! still waits there.
//!
//! Heavy work (a pass, a snapshot) is done in place; on a runtime with several threads the others
//! take over this one's tasks meanwhile. Rejected: a thread of its own for the board. It brings
//! hand-over and a second clock, and the simulator could not run it.

use crate::copy::CellCopy;
use crate::duty::{Backoff, Duty, LogClock, Next};
use crate::link::{LinkError, MasterLink};
use crate::pass::{self, Passer, Planned};
use crate::settings::{BadSetting, Settings};
use crate::tally::{Refused, Tally};
use cellwright_api::internal::{
    LeaseAnswer, LeaseRequest, LogAnswer, LogRecord, PassStatistics, ProposalAnswer,
};
use cellwright_cell::plan::Plan;
use cellwright_cell::time::Span;
use cellwright_sched::Solver;
use cellwright_supervise::plant;
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

/// Whether this scheduler schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    Active,
    /// Somebody else does; empty: nobody known.
    Standby {
        holder: String,
    },
    #[default]
    Unknown,
}

/// How it stands, for metrics and for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub standing: Standing,
    /// How far the copy has come.
    pub index: u64,
    /// Since the start.
    pub passes: PassStatistics,
    /// Groups refused since the start, by reason.
    pub refused: Refused,
    /// How often the copy had to start again.
    pub resyncs: u64,
}

type Asked<T> = Option<Pin<Box<dyn Future<Output = Result<T, LinkError>> + Send>>>;

pub struct Scheduler<L> {
    link: Arc<L>,
    settings: Settings,
    passer: Passer,
    copy: CellCopy,
    duty: Duty,
    clock: LogClock,
    started: Instant,
    /// Cut plans still to be proposed, and the one on its way.
    rest: VecDeque<Plan>,
    under_way: Plan,
    /// Where the copy stood when it was sent.
    proposed_at: u64,
    log: Asked<LogAnswer>,
    log_pause: Backoff,
    proposal: Asked<ProposalAnswer>,
    lease: Asked<LeaseAnswer>,
    lease_asked: u64,
    /// When to ask for the lease next.
    lease_at: u64,
    lease_pause: Backoff,
    /// Passes the master has not heard of, and those it is just being told of.
    untold: PassStatistics,
    telling: PassStatistics,
    status: Status,
    shown: watch::Sender<Status>,
}

enum Heard {
    Lease(Result<LeaseAnswer, LinkError>),
    Verdicts(Result<ProposalAnswer, LinkError>),
    Log(Result<LogAnswer, LinkError>),
    Time,
}

/// Building and running.
impl<L: MasterLink> Scheduler<L> {
    /// # Errors
    /// The first setting that cannot be.
    pub fn new(link: Arc<L>, settings: Settings) -> Result<Scheduler<L>, BadSetting> {
        settings.check()?;
        let pause = Backoff::new(settings.retry, settings.retry_max);
        let passer = Passer {
            solver: Solver::new(settings.options),
            lane: settings.lane.clone(),
            seed: settings.seed,
            chunk: settings.chunk,
        };
        Ok(Scheduler {
            link,
            passer,
            settings,
            copy: CellCopy::default(),
            duty: Duty::new(pause),
            clock: LogClock::default(),
            started: Instant::now(),
            rest: VecDeque::new(),
            under_way: Plan::default(),
            proposed_at: 0,
            log: None,
            log_pause: pause,
            proposal: None,
            lease: None,
            lease_asked: 0,
            lease_at: 0,
            lease_pause: pause,
            untold: PassStatistics::default(),
            telling: PassStatistics::default(),
            status: Status::default(),
            shown: watch::Sender::default(),
        })
    }

    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shown.subscribe()
    }

    /// Schedules until dropped.
    pub async fn run(mut self) {
        loop {
            plant("scheduler");
            let wake = self.act();
            let heard = self.hear(wake).await;
            let at = self.at();
            match heard {
                Heard::Lease(answer) => self.on_lease(answer, at),
                Heard::Verdicts(answer) => self.on_verdicts(answer, at),
                Heard::Log(answer) => self.on_log(answer, at),
                Heard::Time => {}
            }
        }
    }

    async fn hear(&mut self, wake: Option<u64>) -> Heard {
        let at = wake.map(|at| self.started + Duration::from_millis(at));
        let woken = async {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // In a fixed order, so that a simulated run repeats; none is ready for ever.
        tokio::select! {
            biased;
            answer = answer(&mut self.lease) => Heard::Lease(answer),
            answer = answer(&mut self.proposal) => Heard::Verdicts(answer),
            answer = answer(&mut self.log) => Heard::Log(answer),
            () = woken => Heard::Time,
        }
    }

    /// Milliseconds on the steady clock.
    fn at(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Doing what is to be done now.
impl<L: MasterLink> Scheduler<L> {
    /// Asks what is to be asked, makes a pass if it is time; says when to wake up.
    fn act(&mut self) -> Option<u64> {
        let at = self.at();
        if self.lease.is_none() && self.lease_at <= at {
            self.ask_lease(at);
        }
        if self.log.is_none() && self.log_pause.pausing(at).is_none() {
            self.ask_log();
        }
        let wake = self.work(at);
        self.show(at);
        let lease_at = self.lease.is_none().then_some(self.lease_at);
        let log_at = self.log.is_none().then(|| self.log_pause.pausing(at)).flatten();
        [wake, lease_at, log_at].into_iter().flatten().min()
    }

    fn work(&mut self, at: u64) -> Option<u64> {
        if self.duty.settled(self.copy.index()) && self.copy.take_news() {
            self.duty.news();
        }
        loop {
            match self.duty.next(self.copy.index(), &self.clock, self.copy.now(), at) {
                Next::Wait(until) => return until,
                Next::Stamp => self.propose(Plan::default()),
                Next::Pass => self.pass(at),
            }
        }
    }

    fn pass(&mut self, at: u64) {
        let now = self.clock.now(at);
        let begun = Instant::now();
        let (passer, copy) = (&self.passer, &mut self.copy);
        if !passer.has_work(copy) {
            return self.duty.passed(pass::Due::default());
        }
        let (planned, due) = heavy(|| {
            let planned = passer.pass(copy, now);
            (planned, passer.due(copy, now))
        });
        self.duty.passed(due);
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let Planned { chunks, pending, not_yet, stats } = planned;
        self.count(PassStatistics {
            passes: 1,
            pending: (pending + not_yet) as u64,
            micros,
            longest_micros: micros,
            evaluations: stats.evaluations,
            ..PassStatistics::default()
        });
        self.rest = chunks;
        if let Some(plan) = self.rest.pop_front() {
            self.propose(plan);
        }
    }

    fn propose(&mut self, plan: Plan) {
        self.duty.proposing();
        self.under_way = plan.clone();
        self.proposed_at = self.copy.index();
        let (link, patience) = (Arc::clone(&self.link), self.settings.patience);
        let proposal = pass::proposal(&self.settings.name, plan);
        self.proposal =
            Some(Box::pin(async move { within(patience, link.propose(proposal)).await }));
    }

    fn ask_log(&mut self) {
        let (link, index) = (Arc::clone(&self.link), self.copy.index());
        let Settings { poll, patience, .. } = self.settings;
        let longest = Span(poll.0.saturating_add(patience.0));
        self.log =
            Some(Box::pin(async move { within(longest, link.log_after(index, poll)).await }));
    }

    fn ask_lease(&mut self, at: u64) {
        self.lease_asked = at;
        self.telling = std::mem::take(&mut self.untold);
        self.untold.pending = self.telling.pending;
        let request = LeaseRequest {
            scheduler: self.settings.name.to_string(),
            lane: self.settings.lane.name().to_owned(),
            passes: self.telling,
            wall: cellwright_cell::time::Time::ZERO,
        };
        let (link, patience) = (Arc::clone(&self.link), self.settings.patience);
        self.lease = Some(Box::pin(async move { within(patience, link.lease(request)).await }));
    }

    fn count(&mut self, more: PassStatistics) {
        self.untold.add(&more);
        self.status.passes.add(&more);
    }

    fn show(&mut self, at: u64) {
        self.status.index = self.copy.index();
        if self.status.standing == Standing::Active && !self.duty.active(at) {
            self.status.standing = Standing::Unknown;
        }
        let status = &self.status;
        self.shown.send_if_modified(|shown| {
            let changed = *shown != *status;
            if changed {
                shown.clone_from(status);
            }
            changed
        });
    }
}

/// Taking in answers.
impl<L: MasterLink> Scheduler<L> {
    fn on_lease(&mut self, answer: Result<LeaseAnswer, LinkError>, at: u64) {
        match answer {
            Ok(LeaseAnswer { granted, holder, length }) => {
                self.lease_pause.worked();
                // A third, so that two questions may go wrong before the lease is over.
                let third = Span(length.0 / 3).max(self.settings.retry);
                self.lease_at = at.max(self.lease_asked.saturating_add(third.0));
                if granted {
                    self.duty.granted(self.lease_asked, length, at);
                    self.status.standing = Standing::Active;
                } else {
                    self.duty.denied();
                    self.status.standing = Standing::Standby { holder };
                }
            }
            Err(error) => {
                tracing::warn!(%error, "lease not renewed");
                let later = std::mem::replace(&mut self.untold, self.telling);
                self.untold.add(&later);
                self.lease_pause.failed(at);
                self.lease_at = self.lease_pause.pausing(at).unwrap_or(at);
            }
        }
        self.telling = PassStatistics::default();
    }

    fn on_verdicts(&mut self, answer: Result<ProposalAnswer, LinkError>, at: u64) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // It may or may not be in the log. The copy will see it; what is planned twice is
                // refused by the attempts the plan names.
                tracing::warn!(%error, "proposal unanswered");
                self.rest.clear();
                self.duty.failed(at);
                return self.catch_up();
            }
        };
        let tally = Tally::of(&self.under_way, answer.verdicts.first());
        for (reason, groups) in &tally.by_reason {
            tracing::debug!(reason, groups, "groups refused");
            *self.status.refused.entry(reason).or_default() += groups;
        }
        self.count(PassStatistics {
            placed: tally.placed,
            refused: tally.refused,
            preempted: tally.preempted,
            pending: self.status.passes.pending,
            ..PassStatistics::default()
        });
        self.duty.answered(answer.index);
        if answer.index <= self.proposed_at {
            // A new entry that is older than what we have: the cell was restored from the past.
            tracing::warn!(index = answer.index, "the copy is of another log");
            self.rest.clear();
            self.log = None;
            self.replace(CellCopy::default());
        }
        self.duty.fared(tally.placed, tally.refused, at);
        if !self.duty.active(at) {
            self.rest.clear();
        }
        match self.rest.pop_front() {
            Some(plan) => self.propose(plan),
            None => self.catch_up(),
        }
    }

    fn on_log(&mut self, answer: Result<LogAnswer, LinkError>, at: u64) {
        let followed = match answer {
            Ok(LogAnswer::Records(records)) => self.follow(&records, at),
            Ok(LogAnswer::Snapshot { index, term, state }) => self.load(index, term, &state, at),
            Err(error) => Err(error.to_string()),
        };
        match followed {
            Ok(()) => self.log_pause.worked(),
            Err(why) => {
                tracing::warn!(%why, "the log cannot be followed now");
                self.log_pause.failed(at);
            }
        }
        self.catch_up();
    }

    fn follow(&mut self, records: &[LogRecord], at: u64) -> Result<(), String> {
        let bytes: usize = records.iter().map(|record| record.entry.len()).sum();
        let copy = &mut self.copy;
        let mut all = || records.iter().try_for_each(|record| copy.follow(record));
        let followed = if bytes > HEAVY_BYTES { heavy(all) } else { all() };
        if !records.is_empty() {
            self.clock.heard(self.copy.now(), at);
        }
        followed.map_err(|broken| {
            self.replace(CellCopy::default());
            broken.to_string()
        })
    }

    fn load(&mut self, index: u64, term: u64, state: &[u8], at: u64) -> Result<(), String> {
        let copy = heavy(|| CellCopy::load(index, term, state));
        self.replace(copy.map_err(|why| format!("snapshot {index} cannot be read: {why}"))?);
        self.clock.heard(self.copy.now(), at);
        Ok(())
    }

    fn replace(&mut self, copy: CellCopy) {
        self.status.resyncs += u64::from(self.copy.index() > 0);
        self.copy = copy;
        self.duty.reloaded();
    }

    /// Brings the board up to date, unless it holds the result of a plan still open.
    fn catch_up(&mut self) {
        if self.duty.settled(self.copy.index()) {
            let copy = &mut self.copy;
            heavy(|| copy.sync());
        }
    }
}

async fn answer<T>(asked: &mut Asked<T>) -> Result<T, LinkError> {
    let Some(question) = asked else { return std::future::pending().await };
    let answer = question.await;
    *asked = None;
    answer
}

async fn within<T>(
    patience: Span,
    question: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    let answered = timeout(Duration::from_millis(patience.0), question).await;
    answered.unwrap_or(Err(LinkError::NoAnswer(patience)))
}

fn heavy<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}
