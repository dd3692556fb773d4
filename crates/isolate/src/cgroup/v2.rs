//! Files of the unified hierarchy. Each function is given the directory of the cgroup.

use super::CpuList;
use super::limits::{BlockDevice, cfs_period_and_quota, checked_weight};
use super::{Controller, GroupUsage, OomCounts};
use crate::Error;
use crate::kernel_file::{keyed, number, parse, read, read_if_there, write};
use std::path::Path;
use std::time::Duration;

/// Makes controllers usable by the children of `group`: those that it has itself and does not yet
/// delegate.
pub fn delegate_controllers(group: &Path, controllers: &[Controller]) -> Result<(), Error> {
    let available = read(&group.join("cgroup.controllers"))?;
    let target = group.join("cgroup.subtree_control");
    let delegated = read(&target)?;
    let listed = |text: &str, c: Controller| text.split_whitespace().any(|w| w == c.as_str());
    for controller in controllers {
        if listed(&available, *controller) && !listed(&delegated, *controller) {
            write(&target, &format!("+{controller}"))?;
        }
    }
    Ok(())
}

pub fn set_cpu_weight(group: &Path, weight: u64) -> Result<(), Error> {
    write(&group.join("cpu.weight"), &checked_weight(weight)?.to_string())
}

pub fn set_cpu_cap(group: &Path, milli_cores: Option<u64>) -> Result<(), Error> {
    let value = match milli_cores {
        None => "max 100000".to_owned(),
        Some(milli_cores) => {
            let (period_us, quota_us) = cfs_period_and_quota(milli_cores)?;
            format!("{quota_us} {period_us}")
        }
    };
    write(&group.join("cpu.max"), &value)
}

pub fn set_memory_limit(group: &Path, bytes: Option<u64>) -> Result<(), Error> {
    // A task that hits its limit is killed as a whole: half a task is worse than none.
    let together = group.join("memory.oom.group");
    if together.exists() {
        write(&together, "1")?;
    }
    let swap = group.join("memory.swap.max");
    if swap.exists() {
        write(&swap, "0")?;
    }
    write(&group.join("memory.max"), &or_max(bytes))
}

/// The kernel takes any limit, reclaims what it can, and kills where that does not suffice: so what
/// it could not reclaim is looked at first.
pub fn lower_memory_limit(group: &Path, bytes: u64) -> Result<bool, Error> {
    let path = group.join("memory.current");
    let current = number(&path, &read(&path)?)?;
    let path = group.join("memory.stat");
    let text = read(&path)?;
    let part = |key| keyed(&path, &text, key).map(|found| found.unwrap_or(0));
    // Files of memory alone count as files, and cannot be reclaimed without swap.
    let files = part("file")?.saturating_sub(part("shmem")?);
    if current.saturating_sub(files) >= bytes {
        return Ok(false);
    }
    set_memory_limit(group, Some(bytes)).map(|()| true)
}

pub fn set_memory_protection(group: &Path, bytes: u64) -> Result<(), Error> {
    write(&group.join("memory.low"), &bytes.to_string())
}

pub fn set_memory_throttle(group: &Path, bytes: Option<u64>) -> Result<(), Error> {
    write(&group.join("memory.high"), &or_max(bytes))
}

pub fn set_cpus(group: &Path, cpus: &CpuList) -> Result<(), Error> {
    write(&group.join("cpuset.cpus"), &cpus.to_string())
}

/// `None` lifts it.
pub fn set_io_cap(group: &Path, disk: BlockDevice, rate: Option<u64>) -> Result<(), Error> {
    let rate = or_max(rate);
    write(&group.join("io.max"), &format!("{disk} rbps={rate} wbps={rate}"))
}

fn or_max(value: Option<u64>) -> String {
    value.map_or("max".to_owned(), |value| value.to_string())
}

pub fn read_cpu(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    let path = group.join("cpu.stat");
    let text = read(&path)?;
    let micros = |key| {
        let found = keyed(&path, &text, key)?;
        Ok::<Duration, Error>(Duration::from_micros(found.unwrap_or(0)))
    };
    usage.cpu = micros("usage_usec")?;
    usage.cpu_throttled = micros("throttled_usec")?;
    Ok(())
}

/// CPU time alone, which is there without a controller.
pub fn read_cpu_account(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    let path = group.join("cpu.stat");
    let found = keyed(&path, &read(&path)?, "usage_usec")?;
    usage.cpu = Duration::from_micros(found.unwrap_or(0));
    Ok(())
}

/// Works in a hybrid layout too: pressure is counted without a controller.
pub fn read_pressure(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    let path = group.join("cpu.pressure");
    if let Some(text) = read_if_there(&path)? {
        usage.cpu_stalled = Some(stalled(&path, &text)?);
    }
    Ok(())
}

/// From `some avg10=0.00 avg60=0.00 avg300=0.00 total=8470`.
fn stalled(path: &Path, text: &str) -> Result<Duration, Error> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|line| line.split(' ').find_map(|word| word.strip_prefix("total=")));
    Ok(Duration::from_micros(parse(path, "total", total.unwrap_or("none"))?))
}

pub fn read_memory(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    let path = group.join("memory.current");
    usage.memory = number(&path, &read(&path)?)?;
    let path = group.join("memory.stat");
    let inactive = keyed(&path, &read(&path)?, "inactive_file")?.unwrap_or(0);
    usage.working_set = usage.memory.saturating_sub(inactive);
    let path = group.join("memory.peak");
    let peak = read_if_there(&path)?;
    usage.memory_peak = peak.map(|text| number(&path, &text)).transpose()?;
    usage.oom = oom_counts(group)?;
    Ok(())
}

pub fn oom_counts(group: &Path) -> Result<OomCounts, Error> {
    let path = group.join("memory.events");
    let text = read(&path)?;
    let count = |key| keyed(&path, &text, key).map(|found| found.unwrap_or(0));
    Ok(OomCounts { own_limit: count("oom")?, kills: count("oom_kill")? })
}

pub fn read_io(group: &Path, usage: &mut GroupUsage) -> Result<(), Error> {
    let path = group.join("io.stat");
    (usage.io_read, usage.io_written) = io_bytes(&path, &read(&path)?)?;
    Ok(())
}

/// Sums of `254:0 rbytes=4096 wbytes=8192 rios=1 …` over all disks.
fn io_bytes(path: &Path, text: &str) -> Result<(u64, u64), Error> {
    let (mut bytes_read, mut written) = (0u64, 0u64);
    for word in text.split_whitespace() {
        if let Some(value) = word.strip_prefix("rbytes=") {
            bytes_read += parse(path, "rbytes", value)?;
        } else if let Some(value) = word.strip_prefix("wbytes=") {
            written += parse(path, "wbytes", value)?;
        }
    }
    Ok((bytes_read, written))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lines_of_pressure_and_io_read() {
        let path = Path::new("x");
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=8470\nfull avg10=0.00 total=3\n";
        assert_eq!(stalled(path, text).unwrap(), Duration::from_micros(8470));
        assert!(stalled(path, "").is_err());
        let text = "254:0 rbytes=4096 wbytes=10 rios=1 wios=2\n7:0 rbytes=4 wbytes=5\n8:0 \n";
        assert_eq!(io_bytes(path, text).unwrap(), (4100, 15));
    }

    #[test]
    fn usage_and_settings_files() {
        let group = std::env::temp_dir().join(format!("cellwright-v2-{}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        let file = |name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        file("cpu.stat", "usage_usec 2000\nuser_usec 1\nthrottled_usec 7\n");
        file("memory.current", "900\n");
        file("memory.peak", "1000\n");
        file("memory.stat", "anon 1\ninactive_file 300\n");
        file("memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n");
        let mut usage = GroupUsage::default();
        read_cpu(&group, &mut usage).unwrap();
        read_memory(&group, &mut usage).unwrap();
        assert_eq!(usage.cpu, Duration::from_millis(2));
        assert_eq!((usage.memory, usage.working_set, usage.memory_peak), (900, 600, Some(1000)));
        assert_eq!(usage.oom, OomCounts { own_limit: 3, kills: 2 });
        let settings = ["cpu.max", "cpu.weight", "memory.max", "memory.oom.group", "io.max"];
        settings.iter().for_each(|name| file(name, ""));
        set_cpu_cap(&group, Some(250)).unwrap();
        set_cpu_weight(&group, 40).unwrap();
        set_memory_limit(&group, Some(4096)).unwrap();
        set_io_cap(&group, BlockDevice { major: 8, minor: 0 }, Some(5)).unwrap();
        let written = settings.map(|name| fs::read_to_string(group.join(name)).unwrap());
        assert_eq!(written, ["25000 100000", "40", "4096", "1", "8:0 rbps=5 wbps=5"]);
        fs::remove_dir_all(&group).unwrap();
    }

    #[test]
    fn memory_is_not_limited_below_what_cannot_be_given_back() {
        let group = std::env::temp_dir().join(format!("cellwright-v2-low-{}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        let file = |name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        file("memory.current", "1000\n");
        file("memory.stat", "anon 400\nfile 500\nshmem 100\n");
        file("memory.max", "2000");
        assert!(
            !lower_memory_limit(&group, 600).unwrap(),
            "400, the kernel's 100 and 100 of shmem"
        );
        assert_eq!(fs::read_to_string(group.join("memory.max")).unwrap(), "2000");
        assert!(lower_memory_limit(&group, 601).unwrap());
        assert!(fs::read_to_string(group.join("memory.max")).unwrap().starts_with("601"));
        fs::remove_dir_all(&group).unwrap();
    }

    #[test]
    fn only_what_is_there_and_not_yet_passed_on_is_passed_on() {
        let group = std::env::temp_dir().join(format!("cellwright-v2-on-{}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        let target = group.join("cgroup.subtree_control");
        fs::write(group.join("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(&target, "cpu\n").unwrap();
        delegate_controllers(&group, &[Controller::Cpu, Controller::Memory, Controller::Pids])
            .unwrap();
        assert!(fs::read_to_string(&target).unwrap().starts_with("+mem"));
        fs::remove_dir_all(&group).unwrap();
    }
}
