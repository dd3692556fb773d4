//! What another process uses, as `/proc` says.

use std::io;

/// Ticks a second of the times in `/proc/PID/stat`; fixed on Linux, whatever the kernel's own is.
const TICKS: f64 = 100.0;

#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// User and system time since the start.
    pub cpu_seconds: f64,
    pub rss_bytes: u64,
    /// Most it ever had.
    pub peak_bytes: u64,
}

impl Usage {
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: u32) -> io::Result<Usage> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name is in brackets and may hold anything.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: f64 = fields
            .split_ascii_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|text| text.parse::<f64>().ok())
            .sum();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = |key: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap_or("");
            line.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        Ok(Usage {
            cpu_seconds: ticks / TICKS,
            rss_bytes: kib("VmRSS:") * 1024,
            peak_bytes: kib("VmHWM:") * 1024,
        })
    }
}
