//! Ranges of user and group IDs for tasks: each task has a range that no other task or account of
//! the machine has, so that no task can kill another, read its files, listen on its port beside it,
//! or use up what the kernel allows a user. Tasks of one alloc, and the log saver of an attempt,
//! share theirs.
//!
//! The range of an attempt is stored in its folder, so an agent that restarts knows it. It is free
//! again when the folder is archived: then no process is left, and only root can reach the files.
//! The range that has been free the longest is allocated next.
//!
//! Several agents on one machine claim their ranges in a shared folder that a reboot empties, just
//! as it ends all tasks.

use crate::config::IdRangeConfig;
use crate::record::{self, Durability, RecordError};
use crate::state_dir::Folders;
use cellwright_cell::id::Attempt;
use cellwright_isolate::container::IdRange;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Numbers in a range: what a package can name.
pub const IDS_PER_RANGE: u32 = 65_536;
/// In an attempt's folder: the first number of its range.
const IDS_FILE: &str = "ids";
/// The folder in which agents of one machine claim ranges.
const CLAIMS_DIR: &str = "/run/cellwright-ids";
const LOCK_FILE: &str = "lock";

#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("{}: {why}", path.display())]
    Io { path: PathBuf, why: io::Error },
    #[error(
        "this machine has no user numbers left: all {0} ranges are in use; its operator can give \
         more (`id_ranges`)"
    )]
    Exhausted(u32),
    #[error("{} is somebody else's", .0.display())]
    ForeignClaimsDir(PathBuf),
}

/// The allocator of one agent.
#[derive(Debug)]
pub struct IdRangeAllocator {
    config: IdRangeConfig,
    folders: Folders,
    claims: PathBuf,
    /// Locked for one attempt at a time.
    state: Mutex<AllocationState>,
}

/// Cached so that it is not read again for each attempt: with a thousand of them that would be a
/// million files.
#[derive(Debug, Default)]
struct AllocationState {
    /// Ranges of this agent's attempts. Some may be free again; they are read anew when none is
    /// left.
    held: BTreeSet<u32>,
    /// The range that was allocated last.
    last: u32,
}

impl IdRangeAllocator {
    /// Nothing for an agent that is not root: its tasks have its own account.
    #[must_use]
    pub fn open(config: IdRangeConfig, folders: &Folders) -> Option<IdRangeAllocator> {
        let is_root = rustix::process::geteuid().is_root();
        is_root.then(|| IdRangeAllocator::with(config, folders, Path::new(CLAIMS_DIR)))
    }

    fn with(config: IdRangeConfig, folders: &Folders, claims: &Path) -> IdRangeAllocator {
        let (folders, claims) = (folders.clone(), claims.to_owned());
        let mut ranges = IdRangeAllocator { config, folders, claims, state: Mutex::default() };
        let all = ranges.ranges_in_use();
        let held = all.iter().map(|(_, first)| *first).collect();
        // Where it cannot be read it starts over; the ranges in use are known all the same.
        let last =
            record::read::<u32>(&ranges.last_range_file()).ok().flatten().unwrap_or_default();
        ranges.state = Mutex::new(AllocationState { held, last });
        // After a reboot the ranges in use here have to be claimed again.
        let claimed = ranges.lock_claims().and_then(|_lock| {
            all.into_iter().try_for_each(|(path, first)| ranges.claim(first, &path))
        });
        if let Err(error) = claimed {
            tracing::error!(%error, "other agents of this machine do not hear of user numbers");
        }
        ranges
    }

    /// The range of this attempt: the one it has, or a free one.
    ///
    /// # Errors
    /// When all are in use, or the disk refuses.
    pub fn allocate(&self, attempt: Attempt) -> Result<IdRange, IdsError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.folders.attempt_dir(attempt).join(IDS_FILE);
        if let Some(first) = record::read::<u32>(&path)? {
            return Ok(IdRange { first, count: IDS_PER_RANGE });
        }
        let _lock = self.lock_claims()?;
        let found = match self.next_free(&state) {
            None => {
                state.held = self.ranges_in_use().into_iter().map(|(_, first)| first).collect();
                self.next_free(&state)
            }
            found => found,
        };
        let first = found.ok_or(IdsError::Exhausted(self.config.count))?;
        self.claim(first, &path)?;
        record::write(&path, &first, Durability::Process)?;
        state.held.insert(first);
        state.last = first;
        record::write(&self.last_range_file(), &first, Durability::Process)?;
        Ok(IdRange { first, count: IDS_PER_RANGE })
    }

    /// The next free range after the last one.
    fn next_free(&self, state: &AllocationState) -> Option<u32> {
        let IdRangeConfig { first, count } = self.config;
        let firsts = || (0..count).map(|number| first + number * IDS_PER_RANGE);
        let after = firsts().filter(|first| *first > state.last);
        let before = firsts().filter(|first| *first <= state.last);
        let is_free = |first: &u32| !state.held.contains(first) && !self.is_claimed(*first);
        after.chain(before).find(is_free)
    }

    /// The file with the range that was allocated last.
    fn last_range_file(&self) -> PathBuf {
        self.folders.root().join(IDS_FILE)
    }

    /// The ranges of this agent's attempts, and the files that record them.
    fn ranges_in_use(&self) -> Vec<(PathBuf, u32)> {
        let entries = fs::read_dir(self.folders.tasks_dir()).into_iter().flatten().flatten();
        let held = entries.filter_map(|entry| {
            let path = entry.path().join(IDS_FILE);
            let first = record::read::<u32>(&path).ok().flatten()?;
            Some((path, first))
        });
        held.collect()
    }

    fn lock_claims(&self) -> Result<File, IdsError> {
        let io = |why| IdsError::Io { path: self.claims.clone(), why };
        match DirBuilder::new().mode(0o700).create(&self.claims) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(io)?,
        }
        let about = fs::symlink_metadata(&self.claims).map_err(io)?;
        let own = rustix::process::geteuid().as_raw();
        if !about.is_dir() || about.uid() != own || about.mode() & 0o022 != 0 {
            return Err(IdsError::ForeignClaimsDir(self.claims.clone()));
        }
        let lock = File::create(self.claims.join(LOCK_FILE)).map_err(io)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|why| io(why.into()))?;
        Ok(lock)
    }

    /// Whether an attempt of any agent has it: a claim for an attempt that is gone does not count.
    fn is_claimed(&self, first: u32) -> bool {
        let claimed = fs::read_to_string(self.claims.join(first.to_string()));
        let by = claimed.map(PathBuf::from);
        by.is_ok_and(
            |path| !matches!(record::read::<u32>(&path), Ok(found) if found != Some(first)),
        )
    }

    fn claim(&self, first: u32, path: &Path) -> Result<(), IdsError> {
        let claim = self.claims.join(first.to_string());
        let written = fs::write(&claim, path.to_string_lossy().as_bytes());
        written.map_err(|why| IdsError::Io { path: claim, why })
    }
}

/// An account, a group, or an entry of subordinate IDs that has one of these numbers already: the
/// file and the line.
#[must_use]
pub fn conflicting_account(config: IdRangeConfig) -> Option<String> {
    // Which field is the first number, and which is the count.
    let lists = [
        ("/etc/passwd", 2, None),
        ("/etc/group", 2, None),
        ("/etc/subuid", 1, Some(2)),
        ("/etc/subgid", 1, Some(2)),
    ];
    lists.into_iter().find_map(|(path, first, count)| {
        let text = fs::read_to_string(path).ok()?;
        let line = conflicting_line(&text, first, count, config)?;
        Some(format!("{path}, line {line}"))
    })
}

fn conflicting_line(
    text: &str,
    first: usize,
    count: Option<usize>,
    config: IdRangeConfig,
) -> Option<usize> {
    let begin = u64::from(config.first);
    let end = begin + u64::from(config.count) * u64::from(IDS_PER_RANGE);
    let overlaps = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.trim().parse::<u64>().ok());
        let Some(first) = number(first) else { return false };
        let held = count.map_or(Some(1), number).unwrap_or(0);
        first < end && first.saturating_add(held) > begin
    };
    text.lines().position(overlaps).map(|line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use cellwright_cell::id::TaskId;

    const FEW: IdRangeConfig = IdRangeConfig { first: 1 << 30, count: 3 };

    fn attempt(task: u32) -> Attempt {
        Attempt::new(TaskId(task), 1)
    }

    fn agent(scratch: &Scratch, name: &str, tasks: &[u32]) -> Folders {
        let folders = Folders::open(&scratch.path(name)).unwrap();
        tasks.iter().for_each(|task| fs::create_dir(folders.attempt_dir(attempt(*task))).unwrap());
        folders
    }

    #[test]
    fn no_two_attempts_of_a_machine_have_the_same_numbers_and_each_keeps_its_own() {
        let scratch = Scratch::new();
        let (one, two) = (agent(&scratch, "one", &[1, 2, 3]), agent(&scratch, "two", &[1, 2]));
        let claims = scratch.path("claims");
        let open = |folders: &Folders| IdRangeAllocator::with(FEW, folders, &claims);
        let (first, second) = (open(&one), open(&two));
        let allocate_first =
            |ranges: &IdRangeAllocator, task| ranges.allocate(attempt(task)).unwrap().first;
        let a = allocate_first(&first, 1);
        let b = allocate_first(&second, 1);
        let c = allocate_first(&first, 2);
        assert_eq!(BTreeSet::from([a, b, c]).len(), 3);
        assert_eq!(allocate_first(&first, 1), a);
        let error = first.allocate(attempt(3)).unwrap_err().to_string();
        assert!(error.contains("all 3 ranges are in use"), "{error}");
        // Another agent on the same folder, after a reboot.
        fs::remove_dir_all(&claims).unwrap();
        let (first, second) = (open(&one), open(&two));
        assert_eq!(
            (allocate_first(&first, 1), allocate_first(&second, 1), allocate_first(&first, 2)),
            (a, b, c)
        );
        assert!(second.allocate(attempt(2)).is_err());
        // Archived: free again for any attempt.
        fs::rename(one.attempt_dir(attempt(1)), scratch.path("ended")).unwrap();
        assert_eq!(allocate_first(&second, 2), a);
    }

    #[test]
    fn numbers_that_were_free_longest_are_given_next() {
        let scratch = Scratch::new();
        let folders = agent(&scratch, "one", &[1, 2, 3, 4]);
        let claims = scratch.path("claims");
        let mut seen = Vec::new();
        for task in 1..=4 {
            seen.push(
                IdRangeAllocator::with(FEW, &folders, &claims)
                    .allocate(attempt(task))
                    .unwrap()
                    .first,
            );
            fs::remove_dir_all(folders.attempt_dir(attempt(task))).unwrap();
        }
        let turns = [1 << 30, (1 << 30) + IDS_PER_RANGE, (1 << 30) + 2 * IDS_PER_RANGE, 1 << 30];
        assert_eq!(seen, turns);
        // A running agent finds ranges that became free, and allocates none twice.
        let folders = agent(&scratch, "two", &[5, 6, 7, 8, 9]);
        let ranges = IdRangeAllocator::with(FEW, &folders, &claims);
        let allocate_first = |task| ranges.allocate(attempt(task)).map(|range| range.first).ok();
        assert_eq!(
            [allocate_first(5), allocate_first(6), allocate_first(7), allocate_first(8)],
            [Some(turns[0]), Some(turns[1]), Some(turns[2]), None]
        );
        fs::remove_dir_all(folders.attempt_dir(attempt(6))).unwrap();
        assert_eq!([allocate_first(8), allocate_first(9)], [Some(turns[1]), None]);
    }

    #[test]
    fn numbers_of_accounts_and_of_others_containers_are_seen() {
        let given = IdRangeConfig { first: 1_000_000, count: 2 };
        let passwd = "root:x:0:0::/:\nbig:x:1131071:5::/:\n";
        assert_eq!(conflicting_line(passwd, 2, None, given), Some(2));
        assert_eq!(conflicting_line("big:x:1131072:5::/:\n", 2, None, given), None);
        assert_eq!(conflicting_line("odd:x\n\na:b:c\n", 2, None, given), None);
        assert_eq!(conflicting_line("a:100000:65536\nb:999999:2\n", 1, Some(2), given), Some(2));
        assert_eq!(conflicting_line("a:100000:900000\n", 1, Some(2), given), None);
    }
}
