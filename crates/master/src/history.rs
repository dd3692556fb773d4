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
mod present_tables;
mod usage_inbox;

use crate::events::EventLog;
use crate::flow_control::{CallerLimit, FairQueue};
use crate::handle::MasterParts;
use crate::replicated_state::ReplicatedState;
use cellwright_api::error::{ApiError, Code};
use cellwright_cell::id::MachineId;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_history::tables::USAGE;
use cellwright_history::{
    Answer, FeedEvent, FeedSlice, History, HistoryError, HistoryReader, Present, QueryError,
    QueryLimits, RestoredPart, RetentionConfig, Submission, UsageCursor, Value, damaged_file_count,
    mentions_table,
};
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
pub use usage_inbox::{UsageDelivery, UsageInbox};

const DIR: &str = "history";
/// Events folded in one transaction.
const EVENTS_PER_BATCH: usize = 8192;
/// How often old days are cleaned up.
const CLEANUP_INTERVAL: Span = Span::seconds(600);
/// A database that failed is retried after this time, or when something happens.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// A query waits this long for the writer to catch up, and is then answered from what there is.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);
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
    usage: Mutex<UsageInbox>,
    /// There is usage to be written.
    usage_arrived: Notify,
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
    /// Where there is an archive: how much longer days wait for it, and which files it has.
    archived: Mutex<Option<(Span, BTreeSet<RestoredPart>)>>,
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
            usage_arrived: Notify::new(),
            queries: queries.new_queue(),
            timeout: queries.timeout,
            wake_writer: Notify::new(),
            replica: OnceLock::new(),
            peer_marks: Mutex::default(),
            peer_usage: tokio::sync::Mutex::default(),
            archived: Mutex::default(),
        }))
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.0.dir.clone()
    }

    /// Says which files of history an archive has; days of others wait for it that much longer
    /// before they are forgotten.
    pub fn set_archived(&self, wait: Span, files: BTreeSet<RestoredPart>) {
        *lock(&self.0.archived) = Some((wait, files));
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
        let present = present_tables::named_in(&sql);
        let (applied, state) = self.0.replicated.with(|view| {
            let state = (!present.is_empty()).then(|| view.state.clone());
            (view.index, state)
        });
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
        let usage = if mentions_table(&sql, USAGE.name) {
            self.unwritten_usage().await
        } else {
            Vec::new()
        };
        let tables = match state {
            Some(state) => present_tables::tables(&present, state, applied),
            None => Vec::new(),
        };
        let present = Present { usage, tables };
        let query = move || {
            // Held until the work is over, whether or not the caller still waits for it.
            let _turn = turn;
            reader.query_with(present, &sql, &args, bounds)
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
            let wait = if failed { RETRY_AFTER } else { cell_usage::FETCH_EVERY };
            tokio::select! {
                biased;
                stop_signal = stopped.changed() => {
                    if stop_signal.is_err() {
                        break;
                    }
                }
                () = tokio::time::sleep(wait) => {}
                () = self.shared.wake_writer.notified() => {}
                () = self.shared.usage_arrived.notified(), if !failed => {}
                changed = applied.changed(), if !failed => {
                    if changed.is_err() {
                        break;
                    }
                }
            }
        }
        // What is not written is with its agents, who repeat it.
        if let Some(Err(error)) = open.as_mut().map(|history| self.write_usage(history)) {
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
            // Events can wait in the feed, and usage with its agents.
            let why =
                std::io::Error::new(std::io::ErrorKind::StorageFull, "the disk is nearly full");
            return Err(HistoryError::File { path: self.dir.clone(), why });
        }
        history.enter_log(self.shared.replicated.with(|view| view.log_epoch))?;
        // Events of an entry are recorded before its index is announced.
        let upto = *applied.borrow_and_update();
        let more = self.fold(history)?;
        let now = self.shared.replicated.log_time();
        self.write_usage(history)?;
        lock(&self.shared.usage).drop_silent(now);
        if self.cleaned_up_at.is_none_or(|tidied| now.since(tidied) >= CLEANUP_INTERVAL) {
            if let Some((wait, archived)) = lock(&self.shared.archived).clone() {
                history.hold_unarchived(wait, archived);
            }
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

    /// Writes what agents told, and has it confirmed to them.
    fn write_usage(&self, history: &mut History) -> Result<(), HistoryError> {
        let delivery = lock(&self.shared.usage).delivery();
        history.ingest_usage(&delivery.rows)?;
        lock(&self.shared.usage).confirm(&delivery);
        Ok(())
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
            submission: item.submission.map(|submission| Submission {
                version: submission.version,
                spec: submission.spec,
            }),
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
}
