//! Real threads for the scheduler's executor, which as a pure library starts none of its own.

use cellwright_sched::executor::{Executor, Sequential};
use rayon::prelude::*;

/// A pool of threads for one experiment.
#[derive(Debug)]
pub struct Threads {
    pool: rayon::ThreadPool,
}

/// Why the pool could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {threads} threads: {source}")]
pub struct ThreadsError {
    threads: usize,
    source: rayon::ThreadPoolBuildError,
}

impl Threads {
    /// # Errors
    /// When the system refuses to start so many threads.
    pub fn new(threads: usize) -> Result<Threads, ThreadsError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.map(|pool| Threads { pool }).map_err(|source| ThreadsError { threads, source })
    }

    /// Calls `work` on every item and keeps the order of the results.
    pub fn map<T: Sync, R: Send>(&self, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
        self.pool.install(|| items.par_iter().map(&work).collect())
    }
}

impl Executor for Threads {
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        self.pool.install(|| (0..parts).into_par_iter().for_each(work));
    }
}

/// The caller's own thread for one thread, a pool for more.
///
/// # Errors
/// When the system refuses to start so many threads.
pub fn executor(threads: usize) -> Result<Box<dyn Executor>, ThreadsError> {
    match threads {
        0 | 1 => Ok(Box::new(Sequential)),
        _ => Ok(Box::new(Threads::new(threads)?)),
    }
}
