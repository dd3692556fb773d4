//! Paths in the agent's state directory, and in the folder of each attempt:
//!
//! | path | what |
//! |---|---|
//! | `life`, `orders` | the machine's incarnation; the newest orders |
//! | `tasks/TASK-ATTEMPT` | one attempt, until the masters know its exit, or longer if ordered |
//! | `tasks/TASK-ATTEMPT-RUN` | one run of the log saver for the disk that the attempt left |
//! | … `order`, `launch` | the order; what the shim launches |
//! | … `begun`, `exit`, `shim.sock`, `shim.log` | the shim's; it holds its log locked |
//! | … `logs` | the program's output |
//! | … `work` | the program's own folder; an alloc's is shared by the tasks inside |
//! | … `ports`, `packages`, `secrets` | what a task is given beside its folder |
//! | `containers`, `packages` | containers' bundles; the cache of packages |
//! | `ended/TASK-ATTEMPT` | order, exit and logs of ended attempts, for a while |
//! | `resource_pressure` | what the machine is short of, for the next agent |
//! | `usage` | what tasks used and no master has confirmed |
//! | `trash` | what is being removed |
//!
//! No other account can list the folders of attempts. Those of a root agent can be passed through,
//! for its tasks have accounts of their own; those of any other agent are for its account alone. A
//! program's own folder belongs to the program's account, and output to the agent.

#![expect(clippy::disallowed_types, reason = "files carry the time of day")]

use crate::output::AttemptOutput;
use crate::record::{self, Durability, RecordError};
use crate::shim::protocol::{BEGUN, EXIT, LAUNCH, LOGS};
use crate::trash::{Trash, is_taken};
use cellwright_cell::desired::{Action, DesiredTask};
use cellwright_cell::id::Attempt;
use cellwright_cell::id::TaskId;
use cellwright_identity::private_files::ensure_private_dir;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const ORDER_FILE: &str = "order";
const WORK_DIR: &str = "work";
/// Ended attempts of which anything is retained: a lookup of one reads all of them.
const MAX_ENDED: usize = 10_000;

#[derive(Clone, Debug)]
pub struct Folders {
    root: PathBuf,
    trash: Trash,
}

/// What is on disk of an attempt's order.
#[derive(Debug, PartialEq, Eq)]
pub enum StoredOrder {
    Known(Box<DesiredTask>),
    /// Nothing of it ever ran.
    NeverRan,
    /// Something may run, but what cannot be determined.
    Unreadable(String),
}

/// How much of ended attempts is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub time: Duration,
    pub bytes: u64,
}

/// How long a clock must run without being set before it is trusted: machines boot with any time,
/// and get the right one within minutes.
const CLOCK_STEADY_AFTER: Duration = Duration::from_secs(3600);
/// A clock that is further than this from its expected time was set. Corrections are slower than
/// that.
const CLOCK_JUMP: Duration = Duration::from_secs(30);

/// The time of day for retention by age. A clock makes nothing old before it has kept pace with the
/// boot clock for an hour; while a trusted clock is set ahead, time passes here only as fast as on
/// the boot clock.
#[derive(Clone, Copy, Debug)]
pub struct SteadyTime {
    last: ClockReading,
    /// Since when the clock was not set, on the boot clock.
    since: u64,
    /// The last reading that was trusted.
    believed: Option<ClockReading>,
}

/// A reading of both clocks at once.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    wall: SystemTime,
    booted: u64,
}

impl ClockReading {
    /// The expected wall time at a later moment of the boot clock.
    fn wall_at(self, booted: u64) -> SystemTime {
        let passed = Duration::from_millis(booted.saturating_sub(self.booted));
        self.wall.checked_add(passed).unwrap_or(self.wall)
    }
}

impl SteadyTime {
    /// Starts now; `booted` is on the boot clock.
    #[must_use]
    pub fn begin(wall: SystemTime, booted: u64) -> SteadyTime {
        SteadyTime { last: ClockReading { wall, booted }, since: booted, believed: None }
    }

    /// The time of day when the clock reads `wall`; nothing while that is not certain.
    pub fn at(&mut self, wall: SystemTime, booted: u64) -> Option<SystemTime> {
        let expected = self.last.wall_at(booted);
        let apart = wall.duration_since(expected).or_else(|_| expected.duration_since(wall));
        if apart.is_ok_and(|apart| apart > CLOCK_JUMP) {
            self.since = booted;
        }
        self.last = ClockReading { wall, booted };
        if Duration::from_millis(booted.saturating_sub(self.since)) >= CLOCK_STEADY_AFTER {
            self.believed = Some(self.last);
        }
        self.believed.map(|believed| wall.min(believed.wall_at(booted)))
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The mode of folders through which tasks reach their own.
fn pass_through_mode(is_root: bool) -> u32 {
    if is_root { 0o711 } else { 0o700 }
}

impl Folders {
    /// # Errors
    /// When the folders cannot be created.
    pub fn open(root: &Path) -> io::Result<Folders> {
        for folder in [root.to_owned(), root.join("tasks"), root.join("ended")] {
            ensure_private_dir(&folder, 0o711)?;
        }
        let root = root.canonicalize()?;
        // Also where an agent of another account created it.
        fs::set_permissions(
            root.join("tasks"),
            fs::Permissions::from_mode(pass_through_mode(is_root())),
        )?;
        let trash = Trash::open(root.join("trash"))?;
        fs::set_permissions(root.join("trash"), fs::Permissions::from_mode(0o700))?;
        Ok(Folders { root, trash })
    }

    #[must_use]
    pub fn incarnation_file(&self) -> PathBuf {
        self.root.join("incarnation")
    }

    #[must_use]
    pub fn orders_file(&self) -> PathBuf {
        self.root.join("orders")
    }

    /// The book of what tasks used.
    #[must_use]
    pub fn usage_file(&self) -> PathBuf {
        self.root.join("usage")
    }

    /// Records which device is at which position.
    #[must_use]
    pub fn devices_file(&self) -> PathBuf {
        self.root.join("devices")
    }

    /// Holds the folders of attempts.
    #[must_use]
    pub fn tasks_dir(&self) -> PathBuf {
        self.root.join("tasks")
    }

    /// Holds the containers' bundles.
    #[must_use]
    pub fn containers_dir(&self) -> PathBuf {
        self.root.join("containers")
    }

    /// Holds the machine's cache of packages.
    #[must_use]
    pub fn packages_dir(&self) -> PathBuf {
        self.root.join("packages")
    }

    /// The state directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    #[must_use]
    pub fn attempt_dir(&self, attempt: Attempt) -> PathBuf {
        self.root.join("tasks").join(attempt.to_string())
    }

    /// The folder a program works in.
    #[must_use]
    pub fn work_dir(&self, attempt: Attempt) -> PathBuf {
        self.attempt_dir(attempt).join(WORK_DIR)
    }

    /// Creates the folder of an attempt and writes its order, unless that was done before.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn make(&self, order: &DesiredTask) -> Result<PathBuf, RecordError> {
        let folder = self.attempt_dir(Attempt::of(order));
        let passage = pass_through_mode(is_root());
        let parts =
            [(folder.clone(), passage), (folder.join(WORK_DIR), 0o700), (folder.join(LOGS), 0o700)];
        for (part, mode) in parts {
            let made = fs::DirBuilder::new().recursive(true).mode(mode).create(&part);
            made.map_err(|why| RecordError::Io { path: part, why })?;
        }
        let path = folder.join(ORDER_FILE);
        match record::read::<DesiredTask>(&path) {
            Ok(Some(_)) => {}
            Err(newer @ RecordError::TooNew { .. }) => return Err(newer),
            _ => record::write(&path, order, Durability::Process)?,
        }
        Ok(folder)
    }

    /// Replaces the order of an attempt by what is in force of it now, for the next agent.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn replace_order(&self, order: &DesiredTask) -> Result<(), RecordError> {
        let path = self.attempt_dir(Attempt::of(order)).join(ORDER_FILE);
        record::write(&path, order, Durability::Process)
    }

    /// All attempts that have a folder, with their orders.
    ///
    /// # Errors
    /// When something cannot be read: a folder that is there must not be taken for absent.
    pub fn attempts(&self) -> Result<Vec<(Attempt, StoredOrder)>, RecordError> {
        let tasks = self.root.join("tasks");
        let io = |why| RecordError::Io { path: tasks.clone(), why };
        let mut found = Vec::new();
        for entry in fs::read_dir(&tasks).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            let Some(attempt) = name.to_str().and_then(parse_attempt) else { continue };
            found.push((attempt, self.stored_order(attempt)?));
        }
        found.sort_by_key(|(attempt, _)| *attempt);
        Ok(found)
    }

    fn stored_order(&self, attempt: Attempt) -> Result<StoredOrder, RecordError> {
        let folder = self.attempt_dir(attempt);
        let began = folder.join(BEGUN).exists() || folder.join(EXIT).exists();
        match record::read::<DesiredTask>(&folder.join(ORDER_FILE)) {
            Ok(Some(order)) => {
                // Without a launch no shim can begin; an alloc has neither.
                let is_alloc = matches!(order.action, Action::Hold { .. });
                let ran = is_alloc || began || folder.join(LAUNCH).exists();
                Ok(if ran { StoredOrder::Known(Box::new(order)) } else { StoredOrder::NeverRan })
            }
            Ok(None) if !began => Ok(StoredOrder::NeverRan),
            Ok(None) => Ok(StoredOrder::Unreadable("its order is gone".into())),
            Err(error @ RecordError::Damaged { .. }) => {
                Ok(StoredOrder::Unreadable(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Removes an attempt of which nothing ever ran, as if it had not been there.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn discard(&self, attempt: Attempt) -> io::Result<()> {
        self.trash.discard(&self.attempt_dir(attempt))
    }

    /// Archives an attempt whose exit the masters know: its program's folder is removed, its logs
    /// stay.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn archive(&self, attempt: Attempt) -> io::Result<()> {
        let from = self.attempt_dir(attempt);
        let to = self.root.join("ended").join(attempt.to_string());
        forget_secrets(&from.join(ORDER_FILE));
        // Before the folder moves: an agent that dies in between finds the rest at its old path.
        self.trash.discard(&from.join(WORK_DIR))?;
        match fs::rename(&from, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // One of the same name is there, from before a state directory was restored.
            Err(error) if is_taken(&error) => self.trash.discard(&from),
            Err(error) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Removes ended attempts that are too old or too large together, the oldest first; nothing is
    /// too old while the time is not certain.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn prune(&self, retention: Retention, now: Option<SystemTime>) -> io::Result<()> {
        let mut ended = Vec::new();
        for entry in fs::read_dir(self.root.join("ended"))? {
            let entry = entry?;
            let since = entry.metadata()?.modified()?;
            ended.push((since, entry.path()));
        }
        ended.sort();
        let mut bytes = 0;
        for (kept, (since, path)) in ended.into_iter().rev().enumerate() {
            bytes += size(&path);
            let age = now.and_then(|now| now.duration_since(since).ok());
            let old = age.is_some_and(|age| age > retention.time);
            if old || bytes > retention.bytes || kept >= MAX_ENDED {
                self.trash.discard(&path)?;
            }
        }
        Ok(())
    }

    /// Attempts of the task of this name, the oldest first; ended or not.
    ///
    /// # Errors
    /// When the folders cannot be read.
    pub fn attempts_of_task(&self, name: &str) -> io::Result<Vec<AttemptOutput>> {
        let mut found = Vec::new();
        for part in ["ended", "tasks"] {
            for entry in fs::read_dir(self.root.join(part))? {
                let folder = entry?.path();
                let attempt = folder.file_name().and_then(|n| n.to_str()).and_then(parse_attempt);
                let order = record::read::<DesiredTask>(&folder.join(ORDER_FILE)).ok().flatten();
                if let (Some(attempt), Some(order)) = (attempt, order)
                    && order.name == name
                {
                    found.push(AttemptOutput { attempt, folder });
                }
            }
        }
        // A name can have been another job's before: task numbers grow.
        found.sort_by_key(|found| found.attempt);
        Ok(found)
    }
}

/// Removes the secrets of a task that has ended.
fn forget_secrets(order_file: &Path) {
    let Ok(Some(mut order)) = record::read::<DesiredTask>(order_file) else { return };
    let Action::Run(work) = &mut order.action else { return };
    if work.secrets.is_empty() {
        return;
    }
    work.secrets.clear();
    let forgotten = record::write(order_file, &order, Durability::Process).or_else(|error| {
        tracing::warn!(%error, "an order that is over is removed for its secrets");
        fs::remove_file(order_file)
    });
    if let Err(error) = forgotten {
        tracing::error!(%error, "secrets of a task that is over stay in its order");
    }
}

/// Most files that are measured in a folder: with more, the sum is of these. A task can create
/// files faster than they can be counted.
const MAX_MEASURED_FILES: usize = 20_000;

/// Bytes of the files below `path`. Links are not followed, not even if `path` is one; what cannot
/// be read counts nothing.
#[must_use]
pub fn size(path: &Path) -> u64 {
    let is_folder = path.symlink_metadata().is_ok_and(|about| about.is_dir());
    let mut folders = if is_folder { vec![path.to_owned()] } else { Vec::new() };
    let (mut bytes, mut seen) = (0, 0);
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MAX_MEASURED_FILES {
                return bytes;
            }
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => bytes += found.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

fn parse_attempt(name: &str) -> Option<Attempt> {
    let mut parts = name.split('-').map(str::parse::<u32>);
    let attempt = Attempt::new(TaskId(parts.next()?.ok()?), parts.next()?.ok()?);
    let log_saver_run = parts.next().transpose().ok()?.unwrap_or(0);
    parts.next().is_none().then_some(Attempt { log_saver_run, ..attempt })
}

#[cfg(test)]
pub mod scratch {
    //! A temporary folder for a test, removed with it.

    use std::os::unix::fs::DirBuilderExt;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    pub struct Scratch(PathBuf);

    impl Scratch {
        #[expect(clippy::new_without_default, reason = "each one is a folder of its own")]
        pub fn new() -> Scratch {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("cell-agent-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&path);
            made.expect("a folder can be made");
            Scratch(path)
        }

        pub fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            // Files left behind in the temporary folder do no harm.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::task::StopCause;
    use cellwright_cell::time::Span;

    fn order(task: u32, attempt: u32) -> DesiredTask {
        let action = Action::Stop { notice: Span::ZERO, cause: StopCause::Killed };
        DesiredTask {
            task: TaskId(task),
            attempt,
            log_saver_run: 0,
            name: format!("u/j/{task}"),
            action,
            lease: None,
            resizes: 0,
        }
    }

    #[test]
    fn attempts_are_found_again_and_what_is_over_is_kept_for_a_while() {
        let scratch = scratch::Scratch::new();
        let folders = Folders::open(&scratch.path("agent")).unwrap();
        for (task, attempt) in [(7, 1), (3, 2), (7, 2)] {
            let folder = folders.make(&order(task, attempt)).unwrap();
            fs::write(folder.join(LAUNCH), "").unwrap();
            fs::write(folder.join(LOGS).join("stdout"), [b'x'; 100]).unwrap();
        }
        let found = folders.attempts().unwrap();
        let names: Vec<String> = found.iter().map(|(attempt, _)| attempt.to_string()).collect();
        assert_eq!(names, ["3-2", "7-1", "7-2"]);
        assert_eq!(found[0].1, StoredOrder::Known(Box::new(order(3, 2))));
        let over = Attempt::new(TaskId(7), 1);
        folders.archive(over).unwrap();
        folders.archive(over).unwrap();
        assert_eq!(folders.attempts().unwrap().len(), 2);
        let kept = folders.attempts_of_task("u/j/7").unwrap();
        assert_eq!(kept.iter().map(|found| found.attempt.number).collect::<Vec<_>>(), [1, 2]);
        let [old, new] = [&kept[0].folder, &kept[1].folder];
        assert!(old.join(LOGS).exists() && !old.join(WORK_DIR).exists());
        let day = Duration::from_secs(86_400);
        let now = cellwright_identity::clock::system();
        for now in [Some(now), None] {
            folders.prune(Retention { time: day, bytes: 1 << 20 }, now).unwrap();
            assert!(old.exists());
        }
        folders.prune(Retention { time: day, bytes: 1 << 20 }, Some(now + 2 * day)).unwrap();
        assert!(!old.exists() && new.exists());
    }

    #[test]
    fn where_all_tasks_have_one_account_no_other_passes_through_their_folders() {
        assert_eq!([true, false].map(pass_through_mode), [0o711, 0o700]);
        let scratch = scratch::Scratch::new();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let folders = Folders::open(&scratch.path("agent")).unwrap();
        let attempt = folders.make(&order(1, 1)).unwrap();
        let found =
            [folders.tasks_dir(), attempt.clone(), attempt.join(WORK_DIR)].map(|path| mode(&path));
        assert_eq!(found, [pass_through_mode(is_root()), pass_through_mode(is_root()), 0o700]);
    }

    #[test]
    fn a_clock_that_jumps_makes_nothing_old() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        let start = SystemTime::UNIX_EPOCH + 1000 * hour;
        let mut steady = SteadyTime::begin(start, 0);
        assert_eq!(steady.at(start + minute, 60_000), None, "not sure yet");
        let believed = start + hour;
        assert_eq!(steady.at(believed, 3_600_000), Some(believed));
        let ahead = believed + 5 * hour;
        assert_eq!(steady.at(ahead, 3_660_000), Some(believed + minute), "hours ahead");
        assert_eq!(steady.at(start, 3_720_000), Some(start), "behind");
        let right = believed + 3 * minute;
        assert_eq!(steady.at(right, 3_780_000), Some(right), "right again");
    }

    #[test]
    fn a_clock_that_was_wrong_at_the_start_is_believed_once_it_is_right() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        let right = SystemTime::UNIX_EPOCH + 500_000 * hour;
        for wrong in [SystemTime::UNIX_EPOCH, right + 600_000 * hour] {
            let mut steady = SteadyTime::begin(wrong, 0);
            assert_eq!(steady.at(wrong + minute, 60_000), None);
            // The clock is set, and an hour goes by, read every minute.
            let times: Vec<Option<SystemTime>> =
                (2..=62).map(|at| steady.at(right + at * minute, u64::from(at) * 60_000)).collect();
            assert!(times[..60].iter().all(Option::is_none), "{times:?}");
            assert_eq!(times[60], Some(right + 62 * minute));
        }
    }

    #[test]
    fn only_what_never_ran_is_taken_for_never_ordered() {
        let scratch = scratch::Scratch::new();
        let folders = Folders::open(&scratch.path("agent")).unwrap();
        let made = |task| folders.make(&order(task, 1)).unwrap();
        made(1);
        fs::write(made(2).join(BEGUN), "").unwrap();
        let (lost, other) = (made(3), made(4));
        fs::remove_file(lost.join(ORDER_FILE)).unwrap();
        fs::write(lost.join(BEGUN), "").unwrap();
        fs::remove_file(other.join(ORDER_FILE)).unwrap();
        let other = vec!["not an order".to_owned()];
        record::write(&made(5).join(ORDER_FILE), &other, Durability::Process).unwrap();
        let found = folders.attempts().unwrap();
        let kinds: Vec<&str> = found
            .iter()
            .map(|(_, ordered)| match ordered {
                StoredOrder::Known(_) => "known",
                StoredOrder::NeverRan => "never",
                StoredOrder::Unreadable(_) => "unreadable",
            })
            .collect();
        assert_eq!(kinds, ["never", "known", "unreadable", "never", "unreadable"]);
        // What a newer build wrote is no damage: this one stops, and leaves it as it is.
        let path = made(6).join(ORDER_FILE);
        let newer = fs::read_to_string(&path).unwrap().replacen("record 1", "record 2", 1);
        fs::write(&path, &newer).unwrap();
        assert!(matches!(folders.attempts(), Err(RecordError::TooNew { found: 2, .. })));
        assert!(matches!(folders.make(&order(6, 1)), Err(RecordError::TooNew { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }
}
