//! The limits of a cgroup, in units that both versions understand: weights of v2, milli-cores,
//! bytes.

use crate::Error;
use crate::kernel_file;
use cellwright_agent_core::cpus::CpuList;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Largest CPU weight; 100 is the default of a cgroup.
pub const MAX_WEIGHT: u64 = 10_000;

/// The limits that a cgroup gets when it is created. `None` leaves the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Share of the CPU under contention, 1 to [`MAX_WEIGHT`]; see [`cpu_weight`].
    pub cpu_weight: Option<u64>,
    /// Runs only on CPU time that no other cgroup wants, and yields at once.
    pub cpu_idle: bool,
    /// Most CPU, in milli-cores, however idle the machine is.
    pub cpu_cap: Option<u64>,
    /// Bytes beyond which the kernel kills. Swap is not used to get around it.
    pub memory_limit: Option<u64>,
    pub pids_max: Option<u64>,
    pub cpus: Option<CpuList>,
}

/// The weight of a task of so many milli-cores: proportional, from one milli-core per
/// hundred-thousandth of the range, so that 40 cores still fit in it.
///
/// Small tasks share the smallest weight, and beyond 40 cores the largest: a weight sets
/// precedence, the guarantee of a task is in its limit.
#[must_use]
pub fn cpu_weight(milli_cores: u64) -> u64 {
    (milli_cores / 4).clamp(1, MAX_WEIGHT)
}

/// Parses CPUs as the kernel writes them, `0-3,8`.
pub(crate) fn parse_cpus(path: &Path, text: &str) -> Result<CpuList, Error> {
    let wrong = || Error::Unreadable {
        path: path.to_owned(),
        field: "CPUs",
        value: text.trim().chars().take(80).collect(),
        expected: "ranges such as 0-3,8",
    };
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().map_err(|_| wrong())?;
        let last: u32 = last.parse().map_err(|_| wrong())?;
        if first > last || last > 65_535 {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    Ok(CpuList::new(cpus))
}

/// A whole disk, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockDevice {
    pub major: u32,
    pub minor: u32,
}

impl BlockDevice {
    /// The disk of `path`; `None` when no single disk is behind it (an overlay, a network file
    /// system). Rates are set on disks, so a partition is replaced by its disk.
    ///
    /// # Errors
    /// When `path` cannot be read.
    pub fn of(path: &Path) -> Result<Option<BlockDevice>, Error> {
        let device = fs::metadata(path).map_err(Error::file("look at", path))?.dev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let Ok(entry) = fs::canonicalize(Path::new("/sys/dev/block").join(number)) else {
            return Ok(None);
        };
        let disk = if entry.join("partition").exists() { entry.parent() } else { Some(&*entry) };
        let Some(file) = disk.map(|disk| disk.join("dev")) else { return Ok(None) };
        let text = kernel_file::read(&file)?;
        let wrong = || Error::Unreadable {
            path: file.clone(),
            field: "device",
            value: text.trim().to_owned(),
            expected: "MAJOR:MINOR",
        };
        let (major, minor) = text.trim().split_once(':').ok_or_else(wrong)?;
        let read = |part: &str| part.parse().map_err(|_| wrong());
        Ok(Some(BlockDevice { major: read(major)?, minor: read(minor)? }))
    }
}

impl fmt::Display for BlockDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Length of the window in which a CPU cap is enforced, and the time allowed in it, in
/// microseconds.
///
/// # Errors
/// When `milli_cores` is 0: a task that may not run at all should not be started.
pub(super) fn cfs_period_and_quota(milli_cores: u64) -> Result<(u64, u64), Error> {
    // The kernel takes no quota below a millisecond, so the smallest caps get a longer window.
    match milli_cores {
        0 => Err(Error::invalid("CPU cap", 0, "1 milli-core or more, or none")),
        1..=9 => Ok((1_000_000, milli_cores * 1000)),
        _ => Ok((100_000, milli_cores.saturating_mul(100))),
    }
}

/// # Errors
/// When it is outside the range that both versions understand.
pub(super) fn checked_weight(weight: u64) -> Result<u64, Error> {
    if (1..=MAX_WEIGHT).contains(&weight) {
        return Ok(weight);
    }
    Err(Error::invalid("CPU weight", weight, "1 to 10000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_read_and_print() {
        let read = |text| parse_cpus(Path::new("cpuset.cpus"), text);
        let list = read("8,0-2\n").unwrap();
        assert_eq!((list.as_slice(), list.to_string().as_str()), (&[0, 1, 2, 8][..], "0,1,2,8"));
        assert_eq!(list.without(&CpuList::new(vec![1, 8, 9])).as_slice(), [0, 2]);
        assert!(read("\n").unwrap().is_empty());
        for bad in ["x", "3-1", "0-99999999", "1-"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn caps_keep_above_the_kernels_smallest_allowance() {
        for milli in [1, 9, 10, 250, 1000, 64_000] {
            let (period, quota) = cfs_period_and_quota(milli).unwrap();
            assert_eq!(quota * 1000, period * milli, "{milli}");
            assert!(quota >= 1000 && period <= 1_000_000, "{milli}");
        }
        assert!(cfs_period_and_quota(0).unwrap_err().to_string().contains("CPU cap is `0`"));
    }

    #[test]
    fn weights_are_proportional_inside_the_range() {
        assert_eq!([1, 1000, 2000, 40_000, 80_000].map(cpu_weight), [1, 250, 500, 10_000, 10_000]);
        assert!(checked_weight(0).is_err() && checked_weight(10_001).is_err());
    }

    #[test]
    fn the_disk_under_a_path_is_a_whole_one() {
        if let Some(disk) = BlockDevice::of(Path::new("/")).unwrap() {
            let entry = format!("/sys/dev/block/{disk}");
            assert!(!Path::new(&entry).join("partition").exists(), "{entry}");
        }
        assert_eq!(BlockDevice::of(Path::new("/proc")).unwrap(), None);
    }
}
