//! A disk that behaves as badly as real ones may: what was not synced is lost at a power cut, or
//! half of it stays, a file whose folder was not synced vanishes, operations take time, space runs
//! out. A job that is under way when its process ends is done in part or not at all: it may have
//! written, and it has flushed nothing. Everything is drawn from the run's seed.

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
    /// How many of `bytes` survive a power cut for sure.
    synced: usize,
    /// Whether the folder knows the file for sure.
    linked: bool,
}

struct Platters {
    files: BTreeMap<String, File>,
    /// Handles of an earlier life find the disk gone.
    life: u64,
    rng: ChaCha8Rng,
    /// Milliseconds one blocking operation takes at most.
    slowness: u64,
    full: bool,
    /// What it says is free while it is not full.
    free: u64,
    bugs: DiskBugs,
    syncs: u64,
    /// Files that tell what was applied may be wrong.
    is_damaged: bool,
    /// Jobs of this life that are under way.
    jobs: Vec<Arc<Job>>,
    /// The process is ending: what is under way may write and flushes nothing.
    is_ending: bool,
}

/// Work that the disk was given; taken by whoever carries it out.
type Job = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// Known bugs that a test plants to see them caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskBugs {
    /// Says it synced and did not.
    pub skips_sync: bool,
    /// Flips a bit of what is read back after a power cut.
    pub flips_bits: bool,
    /// Loses whole records from the end of the log at a power cut, though they were synced.
    pub cuts_log: bool,
}

/// Applied entries that a log that was cut short misses at least: some of them had events, which
/// are on record beside the log.
const MISSED: u64 = 20;

/// Free on a disk that nobody fills.
pub const PLENTY: u64 = 1 << 40;

/// The disk itself; survives the replica that uses it.
#[derive(Clone)]
pub struct VirtualDisk(Arc<Mutex<Platters>>);

/// A replica's hold on the disk, for one life.
pub struct DiskHold {
    disk: VirtualDisk,
    life: u64,
}

impl VirtualDisk {
    #[must_use]
    pub fn new(seed: u64, bugs: DiskBugs) -> VirtualDisk {
        VirtualDisk(Arc::new(Mutex::new(Platters {
            files: BTreeMap::new(),
            life: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            slowness: 1,
            full: false,
            free: PLENTY,
            bugs,
            syncs: 0,
            is_damaged: false,
            jobs: Vec::new(),
            is_ending: false,
        })))
    }

    /// For the next life of the replica.
    #[must_use]
    pub fn hold(&self) -> DiskHold {
        DiskHold { disk: self.clone(), life: self.lock().life }
    }

    /// The process is killed: what the system has taken stays, the hold is over.
    pub fn kill(&self) {
        self.end_jobs();
        self.lock().life += 1;
    }

    /// Carries some of the jobs that are under way out as far as their first flush; the others are
    /// never heard of again.
    fn end_jobs(&self) {
        let (jobs, half_done) = {
            let mut platters = self.lock();
            platters.is_ending = true;
            let jobs = std::mem::take(&mut platters.jobs);
            let half_done: Vec<bool> = jobs.iter().map(|_| platters.rng.random_bool(0.5)).collect();
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

    /// The power fails: only what was synced is sure to stay.
    pub fn cut_power(&self) {
        self.end_jobs();
        let mut platters = self.lock();
        let Platters { files, life, rng, bugs, .. } = &mut *platters;
        *life += 1;
        files.retain(|_, file| file.linked || rng.random_bool(0.5));
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
            file.linked = true;
        }
        let newest = files.iter_mut().rfind(|(path, _)| path.starts_with("log/0"));
        if let Some((_, file)) = newest.filter(|_| bugs.cuts_log) {
            let ends = ends_of_records(&file.bytes);
            file.bytes.truncate(ends[rng.random_range(0..ends.len())]);
            file.synced = file.bytes.len();
        }
    }

    /// The disk forgets: a bit of a file of the event or audit log is another one, or the file ends
    /// early. Which file that was; nothing if there is none.
    pub fn damage_records(&self, rng: &mut ChaCha8Rng) -> Option<String> {
        let mut platters = self.lock();
        platters.is_damaged = true;
        let is_record = |path: &String| path.starts_with("events/") || path.starts_with("audit/");
        let mut files: Vec<(&String, &mut File)> =
            platters.files.iter_mut().filter(|(path, _)| is_record(path)).collect();
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

    /// The log loses whole records from its end, [`MISSED`] of those that were applied at least.
    /// Whether it did: a disk whose other files are damaged has nothing to tell it by.
    pub fn cut_log(&self, applied: u64, rng: &mut ChaCha8Rng) -> bool {
        let mut platters = self.lock();
        let mut places = Vec::new();
        let mut last = 0;
        let segments = platters.files.iter().filter(|(path, _)| path.starts_with("log/0"));
        for (path, file) in segments {
            let ends = ends_of_records(&file.bytes);
            for (from, to) in ends.iter().zip(&ends[1..]) {
                last = last_index(&file.bytes[*from..*to]).unwrap_or(last);
                if (1..=applied.saturating_sub(MISSED)).contains(&last) {
                    places.push((path.clone(), *to));
                }
            }
        }
        let Some((path, end)) = places.choose(rng).filter(|_| !platters.is_damaged) else {
            return false;
        };
        platters.files.retain(|other, _| !other.starts_with("log/0") || other <= path);
        if let Some(file) = platters.files.get_mut(path) {
            file.bytes.truncate(*end);
            file.synced = *end;
        }
        true
    }

    pub fn set_slowness(&self, millis: u64) {
        self.lock().slowness = millis;
    }

    pub fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// Something else has taken all but this much.
    pub fn set_free(&self, free: u64) {
        self.lock().free = free;
    }

    /// As good as new: nothing slow, nothing full.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let platters = self.lock();
        platters.slowness == 1 && !platters.full
    }

    /// Syncs so far.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    fn lock(&self) -> MutexGuard<'_, Platters> {
        lock(&self.0)
    }
}

impl DiskHold {
    fn with<T>(&self, work: impl FnOnce(&mut Platters) -> io::Result<T>) -> io::Result<T> {
        let mut platters = self.disk.lock();
        if platters.life != self.life {
            return Err(io::Error::other("the power is off"));
        }
        work(&mut platters)
    }

    /// The same for what is durable when it returns.
    fn with_sync<T>(&self, work: impl FnOnce(&mut Platters) -> io::Result<T>) -> io::Result<T> {
        self.with(|platters| match platters.is_ending {
            true => Err(io::Error::other("the process has ended")),
            false => work(platters),
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

impl Disk for DiskHold {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{dir}/");
        self.with(|platters| {
            let names = platters.files.keys().filter_map(|path| path.strip_prefix(&prefix));
            Ok(names.map(str::to_owned).collect())
        })
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.with(|platters| {
            platters.files.get(path).map(|file| file.bytes.clone()).ok_or_else(|| missing(path))
        })
    }

    fn read_at(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.with(|platters| {
            let file = platters.files.get(path).ok_or_else(|| missing(path))?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let part = file.bytes.get(from..from.saturating_add(len));
            part.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        })
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        self.with(|platters| {
            let file = platters.files.get(path).ok_or_else(|| missing(path))?;
            Ok(file.bytes.len() as u64)
        })
    }

    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.with(|platters| {
            if platters.full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            platters.files.entry(path.to_owned()).or_default().bytes.extend_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        self.with_sync(|platters| {
            platters.syncs += 1;
            let lies = platters.bugs.skips_sync;
            let file = platters.files.get_mut(path).ok_or_else(|| missing(path))?;
            if !lies {
                file.synced = file.bytes.len();
            }
            Ok(())
        })
    }

    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        self.with(|platters| {
            let file = platters.files.get_mut(path).ok_or_else(|| missing(path))?;
            file.bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
            file.synced = file.synced.min(file.bytes.len());
            Ok(())
        })
    }

    fn write_new(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.with_sync(|platters| {
            if platters.full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let file = File { bytes: bytes.to_vec(), synced: bytes.len(), linked: true };
            platters.files.insert(path.to_owned(), file);
            Ok(())
        })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.with_sync(|platters| {
            platters.files.remove(path).map(|_| ()).ok_or_else(|| missing(path))
        })
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let prefix = format!("{dir}/");
        self.with_sync(|platters| {
            let inside = platters.files.iter_mut().filter(|(path, _)| path.starts_with(&prefix));
            inside.for_each(|(_, file)| file.linked = true);
            Ok(())
        })
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.with(|platters| Ok(if platters.full { 0 } else { platters.free }))
    }

    fn run(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture {
        let mut platters = self.disk.lock();
        let most = platters.slowness * 1000;
        let micros = platters.rng.random_range(most / 10..=most);
        let job: Arc<Job> = Arc::new(Mutex::new(Some(work)));
        if platters.life == self.life {
            platters.jobs.retain(|job| lock(job).is_some());
            platters.jobs.push(job.clone());
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
