//! Files of v1 controllers. Each function is given the directory of the cgroup in the hierarchy of
//! the controller it is about.

use super::CpuList;
use super::limits::{BlockDevice, cfs_period_and_quota, checked_weight};
use super::{GroupUsage, OomCounts};
use crate::Error;
use crate::kernel_file::{keyed, number, parse, read, read_if_there, write};
use rustix::io::Errno;
use std::path::Path;
use std::time::Duration;

/// v1 has shares, with a default of 1024 where v2 has a weight of 100.
pub fn set_cpu_weight(group: &Path, weight: u64) -> Result<(), Error> {
    let shares = checked_weight(weight)? * 1024 / 100;
    write(&group.join("cpu.shares"), &shares.to_string())
}

pub fn set_cpu_cap(group: &Path, milli_cores: Option<u64>) -> Result<(), Error> {
    let quota = group.join("cpu.cfs_quota_us");
    let Some(milli_cores) = milli_cores else { return write(&quota, "-1") };
    let (period_us, quota_us) = cfs_period_and_quota(milli_cores)?;
    // Off first: between the two writes the old quota in the new window could exceed what the
    // parent has, and be refused.
    write(&quota, "-1")?;
    write(&group.join("cpu.cfs_period_us"), &period_us.to_string())?;
    write(&quota, &quota_us.to_string())
}

/// The limit of memory with swap is never below that of memory, so the order depends on the
/// direction.
pub fn set_memory_limit(group: &Path, bytes: Option<u64>) -> Result<(), Error> {
    let value = bytes.map_or("-1".to_owned(), |bytes| bytes.to_string());
    let (plain, swap) = (
        group.join("memory.limit_in_bytes"),
        Some(group.join("memory.memsw.limit_in_bytes")).filter(|path| path.exists()),
    );
    let now = number(&plain, &read(&plain)?)?;
    let raising = bytes.is_none_or(|bytes| bytes > now);
    if let (true, Some(swap)) = (raising, &swap) {
        write(swap, &value)?;
    }
    write(&plain, &value)?;
    if let (false, Some(swap)) = (raising, &swap) {
        write(swap, &value)?;
    }
    Ok(())
}

/// The kernel reclaims what it can, and refuses a limit that does not suffice.
pub fn lower_memory_limit(group: &Path, bytes: u64) -> Result<bool, Error> {
    match set_memory_limit(group, Some(bytes)) {
        Err(Error::Write { source, .. })
            if source.raw_os_error() == Some(Errno::BUSY.raw_os_error()) =>
        {
            Ok(false)
        }
        other => other.map(|()| true),
    }
}

/// v1 has one soft limit: under pressure a cgroup above it is shrunk before those below theirs. It
/// stands for both the protection and the throttle of v2.
pub fn set_memory_soft(group: &Path, bytes: Option<u64>) -> Result<(), Error> {
    let value = bytes.map_or("-1".to_owned(), |bytes| bytes.to_string());
    write(&group.join("memory.soft_limit_in_bytes"), &value)
}

/// Makes the limit cover the cgroups inside as well, as v2 always does and v1 from kernel 5.11 on.
pub fn use_hierarchy(group: &Path) -> Result<(), Error> {
    let path = group.join("memory.use_hierarchy");
    if read_if_there(&path)?.is_some_and(|text| text.trim() == "0") {
        // Refused while there are others inside: then another program created it, and it stays as
        // it is.
        let _ = write(&path, "1");
    }
    Ok(())
}

/// A v1 cpuset starts with nothing and refuses members; it gets what its parent has.
pub fn inherit_cpuset(group: &Path) -> Result<(), Error> {
    let Some(parent) = group.parent() else { return Ok(()) };
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let own = group.join(name);
        if read(&own)?.trim().is_empty() {
            let parent_file = parent.join(name);
            // One that a crash left half created. The machine's root cpuset has all there are.
            if read(&parent_file)?.trim().is_empty() {
                inherit_cpuset(parent)?;
            }
            write(&own, read(&parent_file)?.trim())?;
        }
    }
    Ok(())
}

pub fn set_cpus(group: &Path, cpus: &CpuList) -> Result<(), Error> {
    write(&group.join("cpuset.cpus"), &cpus.to_string())
}

/// `None` lifts it.
pub fn set_io_cap(group: &Path, disk: BlockDevice, rate: Option<u64>) -> Result<(), Error> {
    let line = format!("{disk} {}", rate.unwrap_or(0));
    write(&group.join("blkio.throttle.read_bps_device"), &line)?;
    write(&group.join("blkio.throttle.write_bps_device"), &line)
}

pub fn read_cpu(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    let path = group.join("cpu.stat");
    let throttled = keyed(&path, &read(&path)?, "throttled_time")?;
    usage.cpu_throttled = Duration::from_nanos(throttled.unwrap_or(0));
    Ok(())
}

pub fn read_cpu_account(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    let path = group.join("cpuacct.usage");
    usage.cpu = Duration::from_nanos(number(&path, &read(&path)?)?);
    Ok(())
}

pub fn read_memory(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    usage.memory = value(group, "memory.usage_in_bytes")?;
    usage.memory_peak = Some(value(group, "memory.max_usage_in_bytes")?);
    let path = group.join("memory.stat");
    let inactive = keyed(&path, &read(&path)?, "total_inactive_file")?.unwrap_or(0);
    usage.working_set = usage.memory.saturating_sub(inactive);
    usage.oom = oom_counts(group)?;
    Ok(())
}

fn value(group: &Path, name: &str) -> Result<u64, Error> {
    let path = group.join(name);
    number(&path, &read(&path)?)
}

/// v1 does not report whose limit it was, and newer kernels no longer count how often it was hit. A
/// cgroup that stood at its limit is taken to have been killed for it; one whose file cache alone
/// filled it, when the machine ran short, is blamed wrongly.
pub fn oom_counts(group: &Path) -> Result<OomCounts, Error> {
    let path = group.join("memory.oom_control");
    let kills = keyed(&path, &read(&path)?, "oom_kill")?.unwrap_or(0);
    let limit_was_hit = kills > 0
        && value(group, "memory.max_usage_in_bytes")? >= value(group, "memory.limit_in_bytes")?;
    Ok(OomCounts { own_limit: if limit_was_hit { kills } else { 0 }, kills })
}

pub fn read_io(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    for name in ["blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes"] {
        let path = group.join(name);
        if let Some(text) = read_if_there(&path)? {
            (usage.io_read, usage.io_written) = service_bytes(&path, &text)?;
            break;
        }
    }
    Ok(())
}

/// Sums of `8:0 Read 4096` and `8:0 Write 8192` over all disks.
fn service_bytes(path: &Path, text: &str) -> Result<(u64, u64), Error> {
    let (mut bytes_read, mut written) = (0u64, 0u64);
    for line in text.lines() {
        let mut words = line.split(' ');
        let (_, operation, value) = (words.next(), words.next(), words.next());
        match (operation, value) {
            (Some("Read"), Some(value)) => bytes_read += parse(path, "Read", value)?,
            (Some("Write"), Some(value)) => written += parse(path, "Write", value)?,
            _ => {}
        }
    }
    Ok((bytes_read, written))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn bytes_are_summed_over_disks() {
        let text =
            "254:0 Read 4096\n254:0 Write 10\n254:0 Sync 1\n7:0 Read 4\n7:0 Write 5\nTotal 9\n";
        assert_eq!(service_bytes(Path::new("x"), text).unwrap(), (4100, 15));
        assert!(service_bytes(Path::new("x"), "1:2 Read x\n").is_err());
    }

    #[test]
    fn memory_of_groups_inside_is_counted() {
        let group = std::env::temp_dir().join(format!("cellwright-v1-in-{}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        use_hierarchy(&group).unwrap();
        let path = group.join("memory.use_hierarchy");
        assert!(!path.exists(), "a kernel that does not ask is not told");
        fs::write(&path, "0\n").unwrap();
        use_hierarchy(&group).unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with('1'));
        fs::remove_dir_all(&group).unwrap();
    }

    #[test]
    fn usage_files_are_read() {
        let group = std::env::temp_dir().join(format!("cellwright-v1-{}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        let file = |name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        file("cpu.stat", "nr_periods 4\nnr_throttled 2\nthrottled_time 1500\n");
        file("cpuacct.usage", "2000000\n");
        file("memory.usage_in_bytes", "900\n");
        file("memory.max_usage_in_bytes", "1000\n");
        file("memory.limit_in_bytes", "1000\n");
        file("memory.stat", "inactive_file 1\ntotal_inactive_file 300\n");
        file("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        let mut usage = GroupUsage::default();
        read_cpu(&group, &mut usage).unwrap();
        read_cpu_account(&group, &mut usage).unwrap();
        read_memory(&group, &mut usage).unwrap();
        read_io(&group, &mut usage).unwrap();
        assert_eq!(usage.cpu, Duration::from_millis(2));
        assert_eq!(usage.cpu_throttled, Duration::from_nanos(1500));
        assert_eq!((usage.memory, usage.working_set, usage.memory_peak), (900, 600, Some(1000)));
        assert_eq!(usage.oom, OomCounts { own_limit: 2, kills: 2 });
        file("memory.max_usage_in_bytes", "999\n");
        read_memory(&group, &mut usage).unwrap();
        assert_eq!(usage.oom, OomCounts { own_limit: 0, kills: 2 });
        fs::remove_dir_all(&group).unwrap();
    }
}
