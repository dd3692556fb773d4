//! The keeper of history: a thread of its own that folds this replica's event feed, and what the
//! agents it polls say of usage, into tables (B19).
//!
//! Nothing waits for it. The feed is on the disk already, so the keeper may be behind, and says by
//! how much on the metrics page; a query waits a moment for it to come to where the log was when
//! the query came. A database that cannot be written is told about and tried again, and the master
//! goes on without it.
//!
//! Usage is no part of the log: a replica has that of the agents it polls, and of the others what
//! they tell it (`share`). Rejected: putting it into the log, where half a thousand rows a second
//! would travel to every replica's disk twice.

mod share;

use crate::events::EventLog;
use crate::flow::{Bound, Turns};
use crate::handle::Parts;
use crate::links::Tenure;
use crate::replicated::Replicated;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::internal::TaskUsage;
use cellwright_cell::id::MachineId;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_history::{
    Answer, Bounds, Fact, History, HistoryError, Mark, Measured, QueryError, Reader, Settings,
    Stretch, UsageRow, Value, WINDOW, Whose, Windows, set_aside_in,
};
use cellwright_store::NodeId;
use cellwright_supervise::{Supervisor, caught, note_handler_panic, note_restart, plant};
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
const TURN: usize = 8192;
/// Old days are looked for this often.
const TIDY_EVERY: Span = Span::seconds(600);
/// A database that refused is tried again after this, or when something happens.
const AGAIN: Duration = Duration::from_secs(5);
/// A query waits this long for the keeper to catch up, and is then answered from what there is.
const CATCH_UP: Duration = Duration::from_secs(2);
/// An agent that found its replica dead is back within so many polls: a few masters that it waits
/// at, and as many attempts in vain. One that comes later was with its own.
const TURNS: u64 = 10;
/// How far the writer stands back, of 19.
const NICE: i32 = 10;
/// After a turn the writer rests so many times as long as it worked, unless somebody waits: three
/// replicas that fold in what two processors can hardly do would take half of both.
const RESTS: u32 = 4;
/// At least this long, so that small changes are written together ...
const GATHER: Duration = Duration::from_millis(200);
/// ... and at most this long.
const LONGEST_REST: Duration = Duration::from_secs(2);
/// How long history waits for another replica to tell what is missing in the feed.
const GAP_PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of one answer.
const MOST_BYTES: usize = 32 << 20;

/// Where a master keeps its history.
#[must_use]
pub fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join(DIR)
}

/// How queries share this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuerySettings {
    /// At once; each may keep a processor busy.
    pub places: usize,
    /// Of one caller.
    pub per_user: usize,
    /// That one caller may have in line.
    pub waiting_per_user: usize,
    /// What one query may take.
    pub longest: Duration,
}

impl Default for QuerySettings {
    fn default() -> QuerySettings {
        let longest = Duration::from_secs(30);
        QuerySettings { places: 4, per_user: 1, waiting_per_user: 16, longest }
    }
}

impl QuerySettings {
    fn turns(&self) -> Turns {
        let waiting = Bound {
            what: "queries waiting",
            of_caller: ("sql_waiting_per_user", self.waiting_per_user),
            // Each is a query and its answer: what waits in all follows from the callers.
            of_all: ("sql_waiting_per_user", self.waiting_per_user.saturating_mul(64)),
        };
        Turns::new(self.places, self.per_user, waiting)
    }
}

/// What the keeper and its readers share.
#[derive(Clone)]
pub struct HistoryDesk(Arc<Desk>);

struct Desk {
    reader: Reader,
    replicated: Arc<Replicated>,
    /// Log index up to which everything is in the tables.
    written: watch::Sender<u64>,
    /// Why the last attempt to write failed.
    trouble: Mutex<Option<String>>,
    bytes: AtomicU64,
    dir: PathBuf,
    /// What is wrong with archives, as of the last look at them.
    damage: Mutex<Vec<String>>,
    usage: Mutex<Usage>,
    queries: Turns,
    /// What one query may take.
    longest: Duration,
    /// Somebody waits for what is not in the tables yet.
    hurry: Notify,
    /// The replica, once there is one to ask for the others.
    cell: OnceLock<Weak<Parts>>,
    /// How far this replica has come in the books of the others.
    heard: Mutex<BTreeMap<NodeId, Mark>>,
    /// What the others last said to a query. Whoever asks them holds this: the next one uses it.
    said: tokio::sync::Mutex<Option<share::Said>>,
}

#[derive(Default)]
struct Usage {
    windows: Windows,
    told: Told,
}

/// When each machine last told here what its tasks use, and in which tenure.
#[derive(Default)]
struct Told(BTreeMap<MachineId, (Tenure, Time)>);

impl Told {
    /// The time that a word covers: since the one before, unless another replica may have been told
    /// meanwhile. Rather a few seconds in nobody's books than in those of two.
    ///
    /// Whoever was sent to a replica that does not answer tries all masters in turn, for as long as
    /// that one is down. Each of them counts the time that the agent waited for its answer: were
    /// it the time until it came back, those of the others would be in it.
    fn covers(&mut self, machine: MachineId, tenure: Tenure, at: Time) -> Span {
        let before = self.0.insert(machine, (tenure, at));
        let before = before.filter(|(before, _)| before.number == tenure.number);
        let Some((before, since)) = before else { return Span::ZERO };
        let span = at.since(since);
        if !before.ends {
            return span;
        }
        let is_back = span.0 <= before.holds.0.saturating_mul(TURNS);
        if is_back { span.min(before.holds) } else { Span::ZERO }
    }
}

/// Lets everything else of the machine go first: events wait on disk until they are folded in, and
/// a change that somebody waits for does not. Not the last of all, since whoever asks for the past
/// waits too.
fn step_back() {
    // Of this thread alone, as Linux has it.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "history is written at full priority");
    }
}

/// Whether there may be more to fold in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    Left,
    Done,
}

/// The running keeper.
pub struct Keeper {
    thread: thread::JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl Keeper {
    /// Ends the thread; usage that is still gathered is written first.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        // That the thread panicked was reported by it.
        drop(tokio::task::spawn_blocking(move || self.thread.join()).await);
    }
}

impl HistoryDesk {
    #[must_use]
    pub fn new(
        data_dir: &Path,
        replicated: Arc<Replicated>,
        queries: QuerySettings,
    ) -> HistoryDesk {
        HistoryDesk(Arc::new(Desk {
            reader: Reader::new(&folder(data_dir)),
            replicated,
            written: watch::Sender::new(0),
            trouble: Mutex::default(),
            bytes: AtomicU64::new(0),
            dir: folder(data_dir),
            damage: Mutex::default(),
            usage: Mutex::default(),
            queries: queries.turns(),
            longest: queries.longest,
            hurry: Notify::new(),
            cell: OnceLock::new(),
            heard: Mutex::default(),
            said: tokio::sync::Mutex::default(),
        }))
    }

    /// Starts the thread that writes.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn keep(
        &self,
        data_dir: &Path,
        settings: Settings,
        supervisor: &Supervisor,
    ) -> std::io::Result<Keeper> {
        let (stop, stopped) = watch::channel(false);
        let mut work = Work {
            desk: self.0.clone(),
            dir: folder(data_dir),
            settings,
            events: self.0.replicated.records.events.clone(),
            tidied: None,
            fetched: None,
            behind: BTreeSet::new(),
            gap_since: None,
        };
        let runtime = tokio::runtime::Handle::current();
        let thread = supervisor.thread("history", move || {
            step_back();
            // The master goes on without it; a panic is a failure to write like any other.
            while let Err(panicked) = caught(|| runtime.block_on(work.run(stopped.clone()))) {
                note_restart("history", &panicked);
                *lock(&work.desk.trouble) = Some(panicked.to_string());
                if runtime.block_on(work.rest(stopped.clone())) {
                    return;
                }
            }
        })?;
        Ok(Keeper { thread, stop })
    }

    /// What an agent measured, on its way to history.
    pub fn measured(
        &self,
        state: &State,
        machine: MachineId,
        usage: &[TaskUsage],
        tenure: Tenure,
        at: Time,
    ) {
        if usage.is_empty() {
            return;
        }
        let mut gathered = lock(&self.0.usage);
        let covers = gathered.told.covers(machine, tenure, at);
        for usage in usage {
            let Some(row) = state.tasks().get(usage.task) else { continue };
            let Some(spec) = state.spec_of(row).filter(|_| row.machine() == Some(machine)) else {
                continue;
            };
            let whose = || {
                let key = state.job_key(row.job)?;
                Some(Whose {
                    user: key.user.to_string(),
                    job: key.job.to_string(),
                    task_index: row.index,
                    machine: state.machines().get(machine)?.spec.name.to_string(),
                    band: spec.priority.band().to_string(),
                })
            };
            let measured = Measured {
                task: usage.task,
                attempt: usage.attempt,
                at,
                covers,
                used: usage.used,
                reserved: row.reservation,
                limit: spec.limits_of(row.index),
            };
            gathered.windows.add(measured, whose);
        }
    }

    /// One query of `who`. Everything that this replica had applied when it came is in the answer,
    /// unless the keeper is far behind.
    ///
    /// # Errors
    /// What is wrong with the query, or with history.
    pub async fn query(
        &self,
        who: &str,
        sql: String,
        args: Vec<Value>,
        rows: usize,
    ) -> Result<(Answer, u64), ApiError> {
        let turn = self.0.queries.take(who).await?;
        let applied = self.0.replicated.with(|view| view.index);
        let mut written = self.0.written.subscribe();
        if *written.borrow() < applied {
            self.0.hurry.notify_one();
        }
        // Whoever asks a replica that is behind is told by the index of the answer.
        drop(tokio::time::timeout(CATCH_UP, written.wait_for(|at| *at >= applied)).await);
        let index = *written.borrow();
        if index == 0
            && let Some(why) = lock(&self.0.trouble).clone()
        {
            return Err(ApiError::new(Code::NotReady, format!("history is not kept here: {why}")));
        }
        let gone = Gone::default();
        let reader = self.0.reader.until(gone.0.clone());
        let bounds = Bounds { time: self.0.longest, rows, bytes: MOST_BYTES };
        let present = if share::names_usage(&sql) { self.present().await } else { Vec::new() };
        let query = move || {
            // Until the work is over, whether or not somebody still waits for it.
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
        let answer = done.map_err(lost).and_then(|answer| answer).map_err(refused)?;
        Ok((answer, index))
    }

    /// What was damaged, until somebody has taken it away.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        let files = set_aside_in(&self.0.dir);
        let aside = (files > 0).then(|| {
            format!(
                "{files} damaged files of history were set aside in {DIR}/damaged, and history \
                 reaches back as far as it says; remove the folder when you have seen it"
            )
        });
        lock(&self.0.damage).iter().cloned().chain(aside).collect()
    }

    /// How history stands, in Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        let applied = self.0.replicated.with(|view| view.index);
        let written = *self.0.written.borrow();
        let troubled = u64::from(lock(&self.0.trouble).is_some());
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

/// Set when whoever asked is gone: dropped with the call that waits for the answer.
#[derive(Default)]
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn refused(error: QueryError) -> ApiError {
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

struct Work {
    desk: Arc<Desk>,
    dir: PathBuf,
    settings: Settings,
    events: Arc<EventLog>,
    tidied: Option<Time>,
    /// When others were last asked for what they wrote.
    fetched: Option<Instant>,
    /// Those that had more to tell than fits in one answer.
    behind: BTreeSet<NodeId>,
    /// Since when the feed has a gap where history is to go on.
    gap_since: Option<Instant>,
}

impl Work {
    /// Waits before the next try; whether it is to end instead.
    async fn rest(&self, mut stopped: watch::Receiver<bool>) -> bool {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => true,
            () = tokio::time::sleep(AGAIN) => false,
        }
    }

    async fn run(&mut self, mut stopped: watch::Receiver<bool>) {
        let mut applied = self.desk.replicated.applied();
        let mut open = None;
        loop {
            plant("history");
            let began = Instant::now();
            let mut turn = self.turn(&mut open, &mut applied);
            if let (Ok(folded), Some(history)) = (&turn, &mut open) {
                let folded = *folded;
                turn = self.fetch(history).await.map(|pages| match pages {
                    true => More::Left,
                    false => folded,
                });
            }
            let (failed, more) = (turn.is_err(), matches!(turn, Ok(More::Left)));
            if matches!(turn, Err(HistoryError::Damaged { .. })) {
                // The next turn opens it again, and that sets aside what is damaged.
                open = None;
            }
            *lock(&self.desk.trouble) = turn.err().map(|error| {
                tracing::error!(%error, "history could not be written");
                error.to_string()
            });
            if *stopped.borrow() {
                break;
            }
            // Others go first, and what happens meanwhile is folded in together.
            let asked = more && self.desk.queries.is_busy();
            let rest = match asked {
                true => Duration::ZERO,
                false => (began.elapsed() * RESTS).clamp(GATHER, LONGEST_REST),
            };
            tokio::select! {
                biased;
                told = stopped.changed() => match told {
                    Ok(()) => continue,
                    Err(_) => break,
                },
                () = self.desk.hurry.notified() => continue,
                () = tokio::time::sleep(rest) => {}
            }
            if more {
                continue;
            }
            let wait = if failed { AGAIN } else { self.until_window().min(share::FETCH_EVERY) };
            tokio::select! {
                biased;
                told = stopped.changed() => {
                    if told.is_err() {
                        break;
                    }
                }
                () = tokio::time::sleep(wait) => {}
                () = self.desk.hurry.notified() => {}
                changed = applied.changed(), if !failed => {
                    if changed.is_err() {
                        break;
                    }
                }
            }
        }
        let rows = lock(&self.desk.usage).windows.take_all();
        let written = open.as_mut().map(|history: &mut History| history.take_usage(&rows));
        if let Some(Err(error)) = written {
            tracing::error!(%error, "the last usage was not written");
        }
    }

    /// Brings the tables closer to where the log is.
    fn turn(
        &mut self,
        open: &mut Option<History>,
        applied: &mut watch::Receiver<u64>,
    ) -> Result<More, HistoryError> {
        let history = match open {
            Some(history) => history,
            None => {
                let mut history = History::open(&self.dir, self.settings)?;
                if let Some(what) = history.repaired() {
                    tracing::error!(what, "history is damaged; set aside and made again");
                }
                *lock(&self.desk.heard) = history.all_heard()?;
                open.insert(history)
            }
        };
        if self.desk.is_short_of_room() {
            // Events wait in the feed; usage would wait in memory, for nobody knows how long.
            let now = self.desk.replicated.log_time();
            drop(lock(&self.desk.usage).windows.take_done(now));
            let why =
                std::io::Error::new(std::io::ErrorKind::StorageFull, "the disk is nearly full");
            return Err(HistoryError::File { path: self.dir.clone(), why });
        }
        history.enter(self.desk.replicated.with(|view| view.era))?;
        // Events of an entry are taken down before its index is announced.
        let upto = *applied.borrow_and_update();
        let more = self.fold(history)?;
        let now = self.desk.replicated.log_time();
        let rows: Vec<UsageRow> = lock(&self.desk.usage).windows.take_done(now);
        history.take_usage(&rows)?;
        if self.tidied.is_none_or(|tidied| now.since(tidied) >= TIDY_EVERY) {
            history.tidy(now)?;
            let damage = history.scrub()?;
            damage.iter().for_each(|what| tracing::error!(what, "history"));
            *lock(&self.desk.damage) = damage;
            self.tidied = Some(now);
            self.desk.bytes.store(history.bytes()?, Ordering::Relaxed);
        }
        if more == More::Done {
            self.desk.written.send_replace(upto);
        }
        Ok(more)
    }

    /// Folds in one stretch of events.
    fn fold(&mut self, history: &mut History) -> Result<More, HistoryError> {
        let place = history.place();
        let read = self.events.read_after(place.index, place.position, TURN);
        let feed = read.map_err(|why| HistoryError::File { path: "events".into(), why })?;
        if feed.items.is_empty() {
            return Ok(More::Done);
        }
        // What is missing may yet come from another replica, and history is not folded backwards.
        let mends = feed.gap && !self.events.segments.holes().is_empty();
        let since = self.gap_since.get_or_insert_with(Instant::now);
        let has_others = || self.desk.others().is_some_and(|(_, others)| !others.is_empty());
        if mends && since.elapsed() < GAP_PATIENCE && has_others() {
            return Ok(More::Done);
        }
        self.gap_since = None;
        let fact = |item: crate::events::Happened| Fact {
            index: item.index,
            position: item.position,
            object: item.object,
            other: item.other,
            event: item.event,
        };
        let facts: Vec<Fact> = feed.items.into_iter().map(fact).collect();
        let name = |machine: MachineId| {
            let named = |state: &State| Some(state.machines().get(machine)?.spec.name.clone());
            self.desk.replicated.with(|view| named(&view.state)).map(|name| name.to_string())
        };
        history.take(Stretch { facts: &facts, gap: feed.gap }, &name)?;
        // A stretch may be shorter than it could be: what an empty one says is sure.
        Ok(More::Left)
    }

    /// Until the next window of usage is over.
    fn until_window(&self) -> Duration {
        let now = self.desk.replicated.log_time().0;
        Duration::from_millis(WINDOW.0 - now % WINDOW.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_a_machine_spent_with_another_replica_is_not_counted_here() {
        let (mut told, machine) = (Told::default(), MachineId(1));
        let mut covers = |number, ends, seconds: u64| {
            let tenure = Tenure { number, ends, holds: Span::seconds(5) };
            told.covers(machine, tenure, Time(seconds * 1000)).0 / 1000
        };
        assert_eq!(covers(1, false, 100), 0, "nobody knows since when");
        assert_eq!(covers(1, false, 105), 5);
        assert_eq!(covers(1, true, 110), 5, "the last word here");
        assert_eq!(covers(1, false, 170), 0, "it was elsewhere");
        assert_eq!(covers(1, false, 175), 5);
        assert_eq!(covers(2, false, 190), 0, "it may have been elsewhere");
        assert_eq!(covers(2, false, 195), 5);
    }

    /// What replicas count in 200 s of a machine whose own one is dead, when it speaks to them in
    /// turn every `every` ms.
    fn counted(replicas: usize, every: u64) -> u64 {
        let tenure = Tenure { number: 1, ends: true, holds: Span::seconds(5) };
        let mut books: Vec<Told> = (0..replicas).map(|_| Told::default()).collect();
        let words = (0..=200_000 / every).map(|word| Time(word * every));
        let turns = (0..replicas).cycle();
        words.zip(turns).map(|(at, turn)| books[turn].covers(MachineId(1), tenure, at).0).sum()
    }

    #[test]
    fn while_a_replica_is_dead_its_machines_are_counted_once_by_the_others() {
        assert_eq!(counted(1, 5000), 200_000, "all of it");
        // The first word at each replica says nothing of the time before.
        assert_eq!(counted(2, 5000), 195_000, "and by none twice");
        assert_eq!(counted(4, 5000), 185_000);
        assert_eq!(counted(2, 10_000), 95_000, "dialling the dead is in nobody's books");
    }
}
