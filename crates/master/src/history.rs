//! The history writer: a thread of its own that folds this replica's event feed, and the usage
//! reported by the agents it polls, into tables (B19).
//!
//! Nothing waits for it. The feed is on the disk already, so the writer may be behind, and reports
//! by how much on the metrics page; a query waits a moment for it to reach the log index at which
//! the query arrived. A database that cannot be written is reported and retried, and the master
//! goes on without it.
//!
//! Usage is no part of the log: a replica has that of the agents it polls, and gets that of the
//! others from its peers (`cell_usage`). Rejected: putting it into the log, where half a thousand
//! rows a second would be written to every replica's disk twice.

mod cell_usage;

use crate::events::EventLog;
use crate::flow_control::{CallerLimit, FairQueue};
use crate::handle::MasterParts;
use crate::links::PollOwnership;
use crate::replicated_state::ReplicatedState;
use cellwright_api::error::{ApiError, Code};
use cellwright_cell::id::MachineId;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_history::{
    Answer, FeedEvent, FeedSlice, History, HistoryError, HistoryReader, QueryError, QueryLimits,
    RetentionConfig, UsageCursor, UsageOwner, UsageRow, UsageSample, UsageWindows, Value, WINDOW,
    damaged_file_count,
};
use cellwright_messages::TaskUsage;
use cellwright_store::NodeId;
use cellwright_supervise::{Supervisor, catch_panic, failpoint, note_handler_panic, note_restart};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

const DIR: &str = "history";
/// Events folded in one transaction.
const EVENTS_PER_BATCH: usize = 8192;
/// How often old days are cleaned up.
const CLEANUP_INTERVAL: Span = Span::seconds(600);
/// A database that failed is retried after this time, or when something happens.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// A query waits this long for the writer to catch up, and is then answered from what there is.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// An agent whose replica has died is back within so many polls: a few masters that it waits for,
/// and as many attempts in vain. An agent that comes later was polled by its own replica.
const MAX_POLLS_COVERED: u64 = 10;
/// The nice value of the writer thread, up to 19.
const NICE: i32 = 10;
/// After a batch the writer rests so many times as long as it worked, unless a query waits: three
/// replicas that fold in what two processors can hardly do would take half of both.
const REST_FACTOR: u32 = 4;
/// The rest is at least this long, so that small changes are written together ...
const MIN_REST: Duration = Duration::from_millis(200);
/// ... and at most this long.
const MAX_REST: Duration = Duration::from_secs(2);
/// How long history waits for another replica to fill a gap in the feed.
const GAP_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum bytes of one answer.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// The folder in which a master keeps its history.
#[must_use]
pub fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join(DIR)
}

/// Limits on the SQL queries of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryConfig {
    /// Queries at once; each may keep a processor busy.
    pub concurrency: usize,
    /// Queries of one caller at once.
    pub per_user: usize,
    /// Queries that one caller may have in the queue.
    pub waiting_per_user: usize,
    /// Time limit of one query.
    pub timeout: Duration,
}

impl Default for QueryConfig {
    fn default() -> QueryConfig {
        let longest = Duration::from_secs(30);
        QueryConfig { concurrency: 4, per_user: 1, waiting_per_user: 16, timeout: longest }
    }
}

impl QueryConfig {
    fn new_queue(&self) -> FairQueue {
        let waiting = CallerLimit {
            counted: "queries waiting",
            per_caller_setting: ("sql_waiting_per_user", self.waiting_per_user),
            // Each is a query and its answer; the total follows from the number of callers.
            total_setting: ("sql_waiting_per_user", self.waiting_per_user.saturating_mul(64)),
        };
        FairQueue::new(self.concurrency, self.per_user, waiting)
    }
}

/// What the history writer and its readers share.
#[derive(Clone)]
pub struct HistoryService(Arc<HistoryShared>);

struct HistoryShared {
    reader: HistoryReader,
    replicated: Arc<ReplicatedState>,
    /// Log index up to which everything is in the tables.
    written_index: watch::Sender<u64>,
    /// Why the last attempt to write failed.
    last_error: Mutex<Option<String>>,
    bytes: AtomicU64,
    dir: PathBuf,
    /// What is wrong with archives, as of the last check.
    damage: Mutex<Vec<String>>,
    usage: Mutex<UsageState>,
    queries: FairQueue,
    /// Time limit of one query.
    timeout: Duration,
    /// A query waits for what is not in the tables yet.
    wake_writer: Notify,
    /// The replica, once it exists, through which the others are reached.
    replica: OnceLock<Weak<MasterParts>>,
    /// How far this replica has read the usage tables of the others.
    peer_marks: Mutex<BTreeMap<NodeId, UsageCursor>>,
    /// The last answers of the others for a query. A query that fetches them holds this lock; the
    /// next one uses the answers.
    peer_usage: tokio::sync::Mutex<Option<cell_usage::PeerUsage>>,
}

#[derive(Default)]
struct UsageState {
    windows: UsageWindows,
    last_reports: LastReports,
}

/// When each machine last reported the usage of its tasks here, and during which poll ownership.
#[derive(Default)]
struct LastReports(BTreeMap<MachineId, (PollOwnership, Time)>);

impl LastReports {
    /// The time that a report covers: since the one before, unless another replica may have
    /// received a report in between. A few seconds in no replica's tables are better than seconds
    /// in two.
    ///
    /// An agent that was redirected to a replica that does not answer tries all masters in turn,
    /// for as long as that replica is down. Each of them counts the time that the agent waited for
    /// its answer. If it counted the time until the agent came back, the time at the other masters
    /// would be included.
    fn covered_span(&mut self, machine: MachineId, ownership: PollOwnership, at: Time) -> Span {
        let before = self.0.insert(machine, (ownership, at));
        let before = before.filter(|(before, _)| before.generation == ownership.generation);
        let Some((before, since)) = before else { return Span::ZERO };
        let span = at.since(since);
        if !before.is_handing_over {
            return span;
        }
        let is_back = span.0 <= before.exclusive_for.0.saturating_mul(MAX_POLLS_COVERED);
        if is_back { span.min(before.exclusive_for) } else { Span::ZERO }
    }
}

/// Lowers this thread's priority below everything else of the machine: events wait on disk until
/// they are folded in, and a change that a caller waits for does not. Not to the lowest, because
/// callers of history queries wait too.
fn lower_priority() {
    // This affects only this thread, as Linux has it.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "history is written at full priority");
    }
}

/// Whether there may be more to fold in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FoldProgress {
    Remaining,
    Done,
}

/// The running history writer.
pub struct HistoryWriter {
    thread: thread::JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl HistoryWriter {
    /// Ends the thread; usage that is still buffered is written first.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        // A panic of the thread was already reported by it.
        drop(tokio::task::spawn_blocking(move || self.thread.join()).await);
    }
}

impl HistoryService {
    #[must_use]
    pub fn new(
        data_dir: &Path,
        replicated: Arc<ReplicatedState>,
        queries: QueryConfig,
    ) -> HistoryService {
        HistoryService(Arc::new(HistoryShared {
            reader: HistoryReader::new(&folder(data_dir)),
            replicated,
            written_index: watch::Sender::new(0),
            last_error: Mutex::default(),
            bytes: AtomicU64::new(0),
            dir: folder(data_dir),
            damage: Mutex::default(),
            usage: Mutex::default(),
            queries: queries.new_queue(),
            timeout: queries.timeout,
            wake_writer: Notify::new(),
            replica: OnceLock::new(),
            peer_marks: Mutex::default(),
            peer_usage: tokio::sync::Mutex::default(),
        }))
    }

    /// Starts the thread that writes.
    ///
    /// # Errors
    /// When the thread cannot be created.
    pub fn start_writer(
        &self,
        data_dir: &Path,
        settings: RetentionConfig,
        supervisor: &Supervisor,
    ) -> std::io::Result<HistoryWriter> {
        let (stop, stopped) = watch::channel(false);
        let mut work = WriterTask {
            shared: self.0.clone(),
            dir: folder(data_dir),
            settings,
            events: self.0.replicated.records.events.clone(),
            cleaned_up_at: None,
            fetched_at: None,
            peers_with_more: BTreeSet::new(),
            gap_since: None,
        };
        let runtime = tokio::runtime::Handle::current();
        let thread = supervisor.spawn_thread("history", move || {
            lower_priority();
            // The master goes on without it; a panic is a failure to write like any other.
            while let Err(panicked) = catch_panic(|| runtime.block_on(work.run(stopped.clone()))) {
                note_restart("history", &panicked);
                *lock(&work.shared.last_error) = Some(panicked.to_string());
                if runtime.block_on(work.rest(stopped.clone())) {
                    return;
                }
            }
        })?;
        Ok(HistoryWriter { thread, stop })
    }

    /// Records what an agent measured.
    pub fn record_usage(
        &self,
        state: &State,
        machine: MachineId,
        usage: &[TaskUsage],
        ownership: PollOwnership,
        at: Time,
    ) {
        if usage.is_empty() {
            return;
        }
        let mut usage_state = lock(&self.0.usage);
        let covers = usage_state.last_reports.covered_span(machine, ownership, at);
        for usage in usage {
            let Some(row) = state.tasks().get(usage.task) else { continue };
            let Some(spec) = state.spec_of(row).filter(|_| row.machine() == Some(machine)) else {
                continue;
            };
            let whose = || {
                let key = state.job_key(row.job)?;
                Some(UsageOwner {
                    user: key.user.to_string(),
                    job: key.job.to_string(),
                    task_index: row.index,
                    machine: state.machines().get(machine)?.spec.name.to_string(),
                    band: spec.priority.band().to_string(),
                })
            };
            let measured = UsageSample {
                task: usage.task,
                attempt: usage.attempt,
                at,
                covers,
                used: usage.used,
                reserved: row.reservation,
                limit: spec.limits_of(row.index),
            };
            usage_state.windows.add_sample(measured, whose);
        }
    }

    /// One query of `caller`. The answer contains everything that this replica had applied when the
    /// query came, unless the writer is far behind.
    ///
    /// # Errors
    /// When something is wrong with the query, or with history.
    pub async fn query(
        &self,
        caller: &str,
        sql: String,
        args: Vec<Value>,
        rows: usize,
    ) -> Result<(Answer, u64), ApiError> {
        let turn = self.0.queries.acquire(caller).await?;
        let applied = self.0.replicated.with(|view| view.index);
        let mut written = self.0.written_index.subscribe();
        if *written.borrow() < applied {
            self.0.wake_writer.notify_one();
        }
        // A caller of a replica that is behind sees that in the index of the answer.
        drop(tokio::time::timeout(CATCH_UP_TIMEOUT, written.wait_for(|at| *at >= applied)).await);
        let index = *written.borrow();
        if index == 0
            && let Some(why) = lock(&self.0.last_error).clone()
        {
            return Err(ApiError::new(Code::NotReady, format!("history is not kept here: {why}")));
        }
        let gone = CancelOnDrop::default();
        let reader = self.0.reader.with_stop(gone.0.clone());
        let bounds =
            QueryLimits { max_time: self.0.timeout, max_rows: rows, max_bytes: MAX_ANSWER_BYTES };
        let present = if cell_usage::mentions_usage_table(&sql) {
            self.unwritten_usage().await
        } else {
            Vec::new()
        };
        let query = move || {
            // Held until the work is over, whether or not the caller still waits for it.
            let _turn = turn;
            reader.query_with(&present, &sql, &args, bounds)
        };
        let done = tokio::task::spawn_blocking(query).await;
        let lost = |error: tokio::task::JoinError| {
            if error.is_panic() {
                note_handler_panic();
            }
            QueryError::Broken("the query was not finished".into())
        };
        let answer = done.map_err(lost).and_then(|answer| answer).map_err(query_error)?;
        Ok((answer, index))
    }

    /// What was damaged, until an operator has removed it.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        let files = damaged_file_count(&self.0.dir);
        let aside = (files > 0).then(|| {
            format!(
                "{files} damaged files of history were set aside in {DIR}/damaged, and history \
                 reaches back as far as it says; remove the folder when you have seen it"
            )
        });
        lock(&self.0.damage).iter().cloned().chain(aside).collect()
    }

    /// The state of history as Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        let applied = self.0.replicated.with(|view| view.index);
        let written = *self.0.written_index.borrow();
        let troubled = u64::from(lock(&self.0.last_error).is_some());
        let mut page = String::new();
        for (name, help, value) in [
            (
                "cell_history_lag_entries",
                "Log entries applied whose events are not in history yet.",
                applied.saturating_sub(written),
            ),
            ("cell_history_failing", "1 while history cannot be written.", troubled),
            (
                "cell_history_bytes",
                "Space that history takes.",
                self.0.bytes.load(Ordering::Relaxed),
            ),
        ] {
            // Writing to a string cannot fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        page
    }
}

/// Set when the caller is gone: dropped with the call that waits for the answer.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn query_error(error: QueryError) -> ApiError {
    let message = error.to_string();
    match error {
        QueryError::Sql(_) | QueryError::NotAllowed(_) => ApiError::new(Code::BadSql, message),
        QueryError::TooSlow(_) => ApiError::new(Code::SlowSql, message),
        QueryError::Broken(_) | QueryError::Stopped => ApiError::new(Code::Internal, message),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct WriterTask {
    shared: Arc<HistoryShared>,
    dir: PathBuf,
    settings: RetentionConfig,
    events: Arc<EventLog>,
    cleaned_up_at: Option<Time>,
    /// When the others were last asked for what they wrote.
    fetched_at: Option<Instant>,
    /// The replicas that had more rows than fit in one answer.
    peers_with_more: BTreeSet<NodeId>,
    /// Since when the feed has a gap at the place where history continues.
    gap_since: Option<Instant>,
}

impl WriterTask {
    /// Waits before the next attempt; returns whether it should stop instead.
    async fn rest(&self, mut stopped: watch::Receiver<bool>) -> bool {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => true,
            () = tokio::time::sleep(RETRY_AFTER) => false,
        }
    }

    async fn run(&mut self, mut stopped: watch::Receiver<bool>) {
        let mut applied = self.shared.replicated.applied();
        let mut open = None;
        loop {
            failpoint("history");
            let began = Instant::now();
            let mut turn = self.write_batch(&mut open, &mut applied);
            if let (Ok(folded), Some(history)) = (&turn, &mut open) {
                let folded = *folded;
                turn = self
                    .fetch(history)
                    .await
                    .map(|pages| if pages { FoldProgress::Remaining } else { folded });
            }
            let (failed, more) = (turn.is_err(), matches!(turn, Ok(FoldProgress::Remaining)));
            if matches!(turn, Err(HistoryError::Damaged { .. })) {
                // The next round opens it again, and that moves damaged files aside.
                open = None;
            }
            *lock(&self.shared.last_error) = turn.err().map(|error| {
                tracing::error!(%error, "history could not be written");
                error.to_string()
            });
            if *stopped.borrow() {
                break;
            }
            // Other work goes first, and what happens in the meantime is folded in together.
            let has_waiting_queries = more && self.shared.queries.is_busy();
            let rest = if has_waiting_queries {
                Duration::ZERO
            } else {
                (began.elapsed() * REST_FACTOR).clamp(MIN_REST, MAX_REST)
            };
            tokio::select! {
                biased;
                stop_signal = stopped.changed() => match stop_signal {
                    Ok(()) => continue,
                    Err(_) => break,
                },
                () = self.shared.wake_writer.notified() => continue,
                () = tokio::time::sleep(rest) => {}
            }
            if more {
                continue;
            }
            let wait =
                if failed { RETRY_AFTER } else { self.until_window().min(cell_usage::FETCH_EVERY) };
            tokio::select! {
                biased;
                stop_signal = stopped.changed() => {
                    if stop_signal.is_err() {
                        break;
                    }
                }
                () = tokio::time::sleep(wait) => {}
                () = self.shared.wake_writer.notified() => {}
                changed = applied.changed(), if !failed => {
                    if changed.is_err() {
                        break;
                    }
                }
            }
        }
        let rows = lock(&self.shared.usage).windows.take_all();
        let written = open.as_mut().map(|history: &mut History| history.ingest_usage(&rows));
        if let Some(Err(error)) = written {
            tracing::error!(%error, "the last usage was not written");
        }
    }

    /// Brings the tables closer to where the log is.
    fn write_batch(
        &mut self,
        open: &mut Option<History>,
        applied: &mut watch::Receiver<u64>,
    ) -> Result<FoldProgress, HistoryError> {
        let history = match open {
            Some(history) => history,
            None => {
                let mut history = History::open(&self.dir, self.settings)?;
                if let Some(what) = history.take_repair_note() {
                    tracing::error!(what, "history is damaged; set aside and made again");
                }
                *lock(&self.shared.peer_marks) = history.cursors()?;
                open.insert(history)
            }
        };
        if self.shared.is_disk_low() {
            // Events can wait in the feed; usage would wait in memory, for an unknown time.
            let now = self.shared.replicated.log_time();
            drop(lock(&self.shared.usage).windows.take_finished(now));
            let why =
                std::io::Error::new(std::io::ErrorKind::StorageFull, "the disk is nearly full");
            return Err(HistoryError::File { path: self.dir.clone(), why });
        }
        history.enter_log(self.shared.replicated.with(|view| view.log_epoch))?;
        // Events of an entry are recorded before its index is announced.
        let upto = *applied.borrow_and_update();
        let more = self.fold(history)?;
        let now = self.shared.replicated.log_time();
        let rows: Vec<UsageRow> = lock(&self.shared.usage).windows.take_finished(now);
        history.ingest_usage(&rows)?;
        if self.cleaned_up_at.is_none_or(|tidied| now.since(tidied) >= CLEANUP_INTERVAL) {
            history.enforce_retention(now)?;
            let damage = history.scrub()?;
            damage.iter().for_each(|what| tracing::error!(what, "history"));
            *lock(&self.shared.damage) = damage;
            self.cleaned_up_at = Some(now);
            self.shared.bytes.store(history.disk_bytes()?, Ordering::Relaxed);
        }
        if more == FoldProgress::Done {
            self.shared.written_index.send_replace(upto);
        }
        Ok(more)
    }

    /// Folds in one page of events.
    fn fold(&mut self, history: &mut History) -> Result<FoldProgress, HistoryError> {
        let position = history.position();
        let read = self.events.read_after(position.index, position.position, EVENTS_PER_BATCH);
        let feed = read.map_err(|why| HistoryError::File { path: "events".into(), why })?;
        if feed.items.is_empty() {
            return Ok(FoldProgress::Done);
        }
        // What is missing may still come from another replica, and history is not folded backwards.
        let may_be_repaired = feed.gap && !self.events.segments.holes().is_empty();
        let since = self.gap_since.get_or_insert_with(Instant::now);
        let has_others = || self.shared.peers().is_some_and(|(_, others)| !others.is_empty());
        if may_be_repaired && since.elapsed() < GAP_TIMEOUT && has_others() {
            return Ok(FoldProgress::Done);
        }
        self.gap_since = None;
        let fact = |item: crate::events::RecordedEvent| FeedEvent {
            index: item.index,
            position: item.position,
            object: item.object,
            related_object: item.reason_object,
            event: item.event,
        };
        let facts: Vec<FeedEvent> = feed.items.into_iter().map(fact).collect();
        let name = |machine: MachineId| {
            let named = |state: &State| Some(state.machines().get(machine)?.spec.name.clone());
            self.shared.replicated.with(|view| named(&view.state)).map(|name| name.to_string())
        };
        history.ingest(FeedSlice { events: &facts, gap: feed.gap }, &name)?;
        // A page may be shorter than it could be; only an empty one is conclusive.
        Ok(FoldProgress::Remaining)
    }

    /// Until the next window of usage is over.
    fn until_window(&self) -> Duration {
        let now = self.shared.replicated.log_time().0;
        Duration::from_millis(WINDOW.0 - now % WINDOW.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_a_machine_spent_with_another_replica_is_not_counted_here() {
        let (mut last_reports, machine) = (LastReports::default(), MachineId(1));
        let mut covers = |number, ends, seconds: u64| {
            let ownership = PollOwnership {
                generation: number,
                is_handing_over: ends,
                exclusive_for: Span::seconds(5),
            };
            last_reports.covered_span(machine, ownership, Time(seconds * 1000)).0 / 1000
        };
        assert_eq!(covers(1, false, 100), 0, "nobody knows since when");
        assert_eq!(covers(1, false, 105), 5);
        assert_eq!(covers(1, true, 110), 5, "the last word here");
        assert_eq!(covers(1, false, 170), 0, "it was elsewhere");
        assert_eq!(covers(1, false, 175), 5);
        assert_eq!(covers(2, false, 190), 0, "it may have been elsewhere");
        assert_eq!(covers(2, false, 195), 5);
    }

    /// What replicas count in 200 s of a machine whose own replica is dead, when it reports to them
    /// in turn every `every` ms.
    fn counted_seconds(replicas: usize, every: u64) -> u64 {
        let ownership =
            PollOwnership { generation: 1, is_handing_over: true, exclusive_for: Span::seconds(5) };
        let mut books: Vec<LastReports> = (0..replicas).map(|_| LastReports::default()).collect();
        let words = (0..=200_000 / every).map(|word| Time(word * every));
        let turns = (0..replicas).cycle();
        words
            .zip(turns)
            .map(|(at, turn)| books[turn].covered_span(MachineId(1), ownership, at).0)
            .sum()
    }

    #[test]
    fn while_a_replica_is_dead_its_machines_are_counted_once_by_the_others() {
        assert_eq!(counted_seconds(1, 5000), 200_000, "all of it");
        // The first report at each replica covers none of the time before.
        assert_eq!(counted_seconds(2, 5000), 195_000, "and by none twice");
        assert_eq!(counted_seconds(4, 5000), 185_000);
        assert_eq!(counted_seconds(2, 10_000), 95_000, "dialling the dead is in nobody's books");
    }
}
