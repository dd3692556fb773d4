//! A virtual disk that behaves as badly as real ones may: what was not synced is lost at a power
//! cut, or half of it stays; a file whose folder was not synced vanishes; operations take time;
//! space runs out. A job that is under way when its process ends is done in part or not at all: it
//! may have written, and it has flushed nothing. Everything is drawn from the run's seed.

use cellwright_store::{Disk, DiskFuture};
use cellwright_supervise::lock;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    /// How many of `bytes` certainly survive a power cut.
    synced: usize,
    /// Whether the file's directory entry certainly survives.
    is_linked: bool,
}

struct DiskState {
    files: BTreeMap<String, File>,
    /// Counts mounts; handles of an earlier mount find the disk gone.
    incarnation: u64,
    rng: ChaCha8Rng,
    /// Milliseconds one blocking operation takes at most.
    max_delay_millis: u64,
    is_full: bool,
    /// The free space that it reports while it is not full.
    reported_free: u64,
    bugs: DiskBugs,
    syncs: u64,
    /// Files that record what was applied may be wrong.
    is_damaged: bool,
    /// Jobs of this mount that are under way.
    jobs: Vec<Arc<PendingJob>>,
    /// The process is ending: what is under way may write and flushes nothing.
    is_ending: bool,
}

/// Work that the disk was given; taken out when it is carried out.
type PendingJob = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// Known bugs that a test injects to check that they are caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskBugs {
    /// Reports a sync that it did not do.
    pub skips_sync: bool,
    /// Flips a bit of what is read after a power cut.
    pub flips_bits: bool,
    /// Loses whole records from the end of the log at a power cut, though they were synced.
    pub cuts_log: bool,
}

/// How many applied entries a truncated log has lost at least: some of them had events, which are
/// recorded beside the log.
const MIN_LOST_ENTRIES: u64 = 20;

/// Free space of a disk that is not filled up.
pub const UNLIMITED_FREE: u64 = 1 << 40;

/// The disk itself; survives the replica that uses it.
#[derive(Clone)]
pub struct VirtualDisk(Arc<Mutex<DiskState>>);

/// A replica's handle to the disk, for one incarnation of the process.
pub struct DiskMount {
    disk: VirtualDisk,
    incarnation: u64,
}

impl VirtualDisk {
    #[must_use]
    pub fn new(seed: u64, bugs: DiskBugs) -> VirtualDisk {
        VirtualDisk(Arc::new(Mutex::new(DiskState {
            files: BTreeMap::new(),
            incarnation: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            max_delay_millis: 1,
            is_full: false,
            reported_free: UNLIMITED_FREE,
            bugs,
            syncs: 0,
            is_damaged: false,
            jobs: Vec::new(),
            is_ending: false,
        })))
    }

    /// Mounts the disk for the next incarnation of the replica.
    #[must_use]
    pub fn mount(&self) -> DiskMount {
        DiskMount { disk: self.clone(), incarnation: self.lock().incarnation }
    }

    /// The process is killed: what the operating system has accepted stays, the mount is over.
    pub fn kill(&self) {
        self.finish_jobs();
        self.lock().incarnation += 1;
    }

    /// Carries out some of the jobs that are under way up to their first flush; the others never
    /// finish.
    fn finish_jobs(&self) {
        let (jobs, half_done) = {
            let mut state = self.lock();
            state.is_ending = true;
            let jobs = std::mem::take(&mut state.jobs);
            let half_done: Vec<bool> = jobs.iter().map(|_| state.rng.random_bool(0.5)).collect();
            (jobs, half_done)
        };
        for (job, is_half_done) in jobs.into_iter().zip(half_done) {
            let work = lock(&job).take();
            if let Some(work) = work.filter(|_| is_half_done) {
                work();
            }
        }
        self.lock().is_ending = false;
    }

    /// The power fails: only what was synced certainly stays.
    pub fn cut_power(&self) {
        self.finish_jobs();
        let mut state = self.lock();
        let DiskState { files, incarnation, rng, bugs, .. } = &mut *state;
        *incarnation += 1;
        files.retain(|_, file| file.is_linked || rng.random_bool(0.5));
        for file in files.values_mut() {
            let unsure = file.bytes.len() - file.synced.min(file.bytes.len());
            let kept = file.synced + rng.random_range(0..=unsure);
            file.bytes.truncate(kept);
            if kept > file.synced && rng.random_bool(0.3) {
                // A torn write: the last sectors hold something else.
                let from = rng.random_range(file.synced..kept);
                file.bytes[from..].fill(0);
            }
            if bugs.flips_bits && file.synced > 64 {
                let at = rng.random_range(32..file.synced);
                file.bytes[at] ^= 1 << rng.random_range(0..8);
            }
            file.synced = file.bytes.len();
            file.is_linked = true;
        }
        let newest = files.iter_mut().rfind(|(path, _)| path.starts_with("log/0"));
        if let Some((_, file)) = newest.filter(|_| bugs.cuts_log) {
            let ends = ends_of_records(&file.bytes);
            file.bytes.truncate(ends[rng.random_range(0..ends.len())]);
            file.synced = file.bytes.len();
        }
    }

    /// Bit rot: flips a bit of a file of the event or audit log, or truncates the file. Returns
    /// which file; nothing if there is none.
    pub fn damage_records(&self, rng: &mut ChaCha8Rng) -> Option<String> {
        let mut state = self.lock();
        state.is_damaged = true;
        let is_record = |path: &String| path.starts_with("events/") || path.starts_with("audit/");
        let mut files: Vec<(&String, &mut File)> =
            state.files.iter_mut().filter(|(path, _)| is_record(path)).collect();
        files.retain(|(_, file)| !file.bytes.is_empty());
        let nth = rng.random_range(0..files.len().max(1));
        let (path, file) = files.get_mut(nth)?;
        let at = rng.random_range(0..file.bytes.len());
        if rng.random_bool(0.5) {
            file.bytes[at] ^= 1 << rng.random_range(0..8);
        } else {
            file.bytes.truncate(at);
            file.synced = file.synced.min(at);
        }
        Some(path.to_string())
    }

    /// Cuts whole records from the end of the log, at least [`MIN_LOST_ENTRIES`] of those that were
    /// applied. Returns whether it did: on a disk whose other files are damaged the loss could not
    /// be noticed.
    pub fn cut_log(&self, applied: u64, rng: &mut ChaCha8Rng) -> bool {
        let mut state = self.lock();
        let mut candidates = Vec::new();
        let mut last = 0;
        let segments = state.files.iter().filter(|(path, _)| path.starts_with("log/0"));
        for (path, file) in segments {
            let ends = ends_of_records(&file.bytes);
            for (from, to) in ends.iter().zip(&ends[1..]) {
                last = last_index(&file.bytes[*from..*to]).unwrap_or(last);
                if (1..=applied.saturating_sub(MIN_LOST_ENTRIES)).contains(&last) {
                    candidates.push((path.clone(), *to));
                }
            }
        }
        let Some((path, end)) = candidates.choose(rng).filter(|_| !state.is_damaged) else {
            return false;
        };
        state.files.retain(|other, _| !other.starts_with("log/0") || other <= path);
        if let Some(file) = state.files.get_mut(path) {
            file.bytes.truncate(*end);
            file.synced = *end;
        }
        true
    }

    pub fn set_slowness(&self, millis: u64) {
        self.lock().max_delay_millis = millis;
    }

    pub fn set_full(&self, full: bool) {
        self.lock().is_full = full;
    }

    /// Other files have taken all space but this much.
    pub fn set_free(&self, free: u64) {
        self.lock().reported_free = free;
    }

    /// Whether it is neither slow nor full.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let state = self.lock();
        state.max_delay_millis == 1 && !state.is_full
    }

    /// Number of syncs so far.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.0)
    }
}

impl DiskMount {
    fn with_state<T>(&self, work: impl FnOnce(&mut DiskState) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.lock();
        if state.incarnation != self.incarnation {
            return Err(io::Error::other("the power is off"));
        }
        work(&mut state)
    }

    /// The same for operations that are durable when they return.
    fn with_state_synced<T>(
        &self,
        work: impl FnOnce(&mut DiskState) -> io::Result<T>,
    ) -> io::Result<T> {
        self.with_state(|state| {
            if state.is_ending {
                Err(io::Error::other("the process has ended"))
            } else {
                work(state)
            }
        })
    }
}

/// Where the records of a segment of the log end, its header among them.
fn ends_of_records(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![64.min(bytes.len())];
    while let Some(head) = bytes.get(ends[ends.len() - 1]..).and_then(|rest| rest.get(..48)) {
        let body = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        ends.push((ends[ends.len() - 1] + 48 + body + 8).min(bytes.len()));
    }
    ends
}

/// The last entry of the log after this record, if that changes it.
fn last_index(record: &[u8]) -> Option<u64> {
    let kind = *record.get(4)?;
    let index = u64::from_le_bytes(record.get(20..28)?.try_into().ok()?);
    match kind {
        1..=3 => Some(index),
        // Entries from there on are void.
        4 => Some(index.saturating_sub(1)),
        _ => None,
    }
}

fn missing(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path}: no such file"))
}

impl Disk for DiskMount {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{dir}/");
        self.with_state(|state| {
            let names = state.files.keys().filter_map(|path| path.strip_prefix(&prefix));
            Ok(names.map(str::to_owned).collect())
        })
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.with_state(|state| {
            state.files.get(path).map(|file| file.bytes.clone()).ok_or_else(|| missing(path))
        })
    }

    fn read_at(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.with_state(|state| {
            let file = state.files.get(path).ok_or_else(|| missing(path))?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let part = file.bytes.get(from..from.saturating_add(len));
            part.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        })
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        self.with_state(|state| {
            let file = state.files.get(path).ok_or_else(|| missing(path))?;
            Ok(file.bytes.len() as u64)
        })
    }

    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.with_state(|state| {
            if state.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.files.entry(path.to_owned()).or_default().bytes.extend_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        self.with_state_synced(|state| {
            state.syncs += 1;
            let lies = state.bugs.skips_sync;
            let file = state.files.get_mut(path).ok_or_else(|| missing(path))?;
            if !lies {
                file.synced = file.bytes.len();
            }
            Ok(())
        })
    }

    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        self.with_state(|state| {
            let file = state.files.get_mut(path).ok_or_else(|| missing(path))?;
            file.bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
            file.synced = file.synced.min(file.bytes.len());
            Ok(())
        })
    }

    fn write_atomic(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.with_state_synced(|state| {
            if state.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let file = File { bytes: bytes.to_vec(), synced: bytes.len(), is_linked: true };
            state.files.insert(path.to_owned(), file);
            Ok(())
        })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.with_state_synced(|state| {
            state.files.remove(path).map(|_| ()).ok_or_else(|| missing(path))
        })
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let prefix = format!("{dir}/");
        self.with_state_synced(|state| {
            let inside = state.files.iter_mut().filter(|(path, _)| path.starts_with(&prefix));
            inside.for_each(|(_, file)| file.is_linked = true);
            Ok(())
        })
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.with_state(|state| Ok(if state.is_full { 0 } else { state.reported_free }))
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture {
        let mut state = self.disk.lock();
        let most = state.max_delay_millis * 1000;
        let micros = state.rng.random_range(most / 10..=most);
        let job: Arc<PendingJob> = Arc::new(Mutex::new(Some(work)));
        if state.incarnation == self.incarnation {
            state.jobs.retain(|job| lock(job).is_some());
            state.jobs.push(job.clone());
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_micros(micros)).await;
            let work = lock(&job).take();
            if let Some(work) = work {
                work();
            }
        })
    }
}
