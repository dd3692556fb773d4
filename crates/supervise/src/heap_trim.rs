//! Returns freed heap memory to the system.
//!
//! The C library keeps what threads freed in arenas of their own, for later allocations. After a
//! thousand watches a master held 55 MB for good, of which 14 were in use
//! (`docs/decisions/0016-freed-memory-goes-back.md`). So every process that serves calls
//! `malloc_trim` now and then.
//!
//! This is the only module here that calls C: the function takes a number and has nothing that a
//! caller could get wrong, so it is declared `safe`.

use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Time between two trims: short enough that other processes do not wait long for freed memory, and
/// long enough that memory which is free only for a moment is not fetched anew all the time.
const TRIM_INTERVAL: Duration = Duration::from_secs(20);

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the library is C; its one function here is safe to call")]
mod libc_heap {
    unsafe extern "C" {
        /// Returns free pages of all arenas, and keeps `pad` bytes at the top of the first.
        pub safe fn malloc_trim(pad: usize) -> i32;
    }
}

/// Returns memory that is free now; reports whether there was any. C libraries other than GNU's do
/// not need the call.
pub fn trim_heap() -> bool {
    #[cfg(target_env = "gnu")]
    return libc_heap::malloc_trim(0) != 0;
    #[cfg(not(target_env = "gnu"))]
    return false;
}

/// Trims the heap now and then, for as long as the process lives.
pub async fn trim_heap_periodically() {
    let mut ticks = interval(TRIM_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        trim_heap();
    }
}

#[cfg(test)]
#[cfg(all(target_env = "gnu", target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;

    /// Resident pages of this process that are not backed by a file.
    fn anonymous_rss() -> usize {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
        kilobytes << 10
    }

    #[test]
    fn what_a_thread_freed_between_what_it_keeps_goes_back() {
        const BLOCKS: usize = 4096;
        const BLOCK_BYTES: usize = 16 << 10;
        let work = || -> Vec<Vec<u8>> {
            let mut blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| vec![7; BLOCK_BYTES]).collect();
            // The block that stays at the end keeps the library from returning the rest by itself.
            blocks.drain(..BLOCKS - 1);
            blocks
        };
        let kept = std::thread::spawn(work).join().unwrap();
        let before = anonymous_rss();
        assert!(trim_heap());
        let after = anonymous_rss();
        let freed = before.saturating_sub(after);
        assert!(freed > BLOCKS * BLOCK_BYTES / 2, "{freed} bytes of {before} went back");
        assert_eq!(kept.len(), 1);
    }
}
