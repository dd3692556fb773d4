//! The cost of an experiment: wall clock, processor time and peak memory of this process.
//!
//! Processor time is the kernel's own clock of it, exact to the nanosecond and over all threads,
//! ended ones too. Rejected: `/proc/self/stat`, which counts in ticks of 10 ms, and the per-thread
//! statistics, which lag by a tick: a pass over a small cell takes one millisecond. Peak memory is
//! absent, never zero, on systems without `/proc`.

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::time::{Duration, Instant};

/// Runs `work` and returns how many seconds it took.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

/// Processor time of all threads of this process since it started.
#[must_use]
pub fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // The kernel never returns negative parts.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The most memory this process has had resident at once.
#[must_use]
pub fn peak_rss_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(first_number(line)? * 1024)
}

fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_up_in_the_processor_time() {
        let before = process_cpu();
        let mut mixed = 1_u64;
        while process_cpu() == before {
            mixed = mixed.rotate_left(7) ^ 0x9e37;
        }
        assert!(mixed != 0 && process_cpu() > before);
    }

    #[test]
    fn peak_memory_is_known_where_the_kernel_tells() {
        if fs::exists("/proc/self/status").unwrap_or(false) {
            assert!(peak_rss_bytes().is_some_and(|bytes| bytes > 1 << 16));
        }
    }
}
