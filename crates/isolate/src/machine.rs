//! Facts about this machine: its capacity in the units of the cell, its attributes, and its boot
//! ID.
//!
//! The capacity that is offered is what the machine has, limited by the cgroups around the agent
//! (an agent in a container must not promise the whole host), less a reserve for the system.

use crate::Error;
use crate::cgroup::{Controller, ControllerMount, CpuList, Layout, parse_cpus};
use crate::kernel_file::{keyed, number_or_max, parse, read, read_if_there};
use cellwright_agent_core::resource_control::AvailableResources;
use cellwright_cell::constraint::{AttributeValue, Attributes};
use cellwright_cell::name::Token;
use cellwright_cell::resource::Resources;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Changes with every boot: processes of another boot are dead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(String);

impl BootId {
    /// # Errors
    /// When the kernel does not report it.
    pub fn current() -> Result<BootId, Error> {
        let path = Path::new("/proc/sys/kernel/random/boot_id");
        Ok(BootId(read(path)?.trim().to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFacts {
    pub hostname: String,
    pub boot: BootId,
    /// Everything, the reserve included. Disk rate is not measured, so it is 0 unless an operator
    /// configures it.
    pub capacity: Resources,
    /// `arch`, `cgroup`, `cores`, `cpus`, `cpu-model`, `kernel`, `numa-nodes`, `os`, `os-version`,
    /// as far as they can be determined.
    pub attributes: Attributes,
    /// Physical cores with the CPUs of each, ascending.
    pub cores: Vec<CpuList>,
}

/// Reads the facts; disk space is that of the file system of `data`.
///
/// # Errors
/// When the kernel does not report something that is required.
pub fn discover(data: &Path) -> Result<MachineFacts, Error> {
    let layout = Layout::detect().ok();
    let enclosing = layout.as_ref().map(enclosing_limits).transpose()?.unwrap_or_default();
    let cores = cores(Path::new("/sys/devices/system/cpu"))?;
    let cpus = cores.iter().map(CpuList::len).sum::<usize>() as u64;
    let meminfo = Path::new("/proc/meminfo");
    let ram = memory_total(meminfo, &read(meminfo)?)?;
    let space = rustix::fs::statvfs(data).map_err(|e| Error::file("look at", data)(e.into()))?;
    let capacity = Resources {
        cpu: enclosing.cpu.map_or(cpus * 1000, |most| most.min(cpus * 1000)),
        ram: enclosing.ram.map_or(ram, |most| most.min(ram)),
        disk: space.f_blocks.saturating_mul(space.f_frsize),
        disk_rate: 0,
    };
    let system = rustix::system::uname();
    let text = |field: &std::ffi::CStr| field.to_string_lossy().into_owned();
    let mut attributes = Attributes::new();
    let mut add = |name: &str, value: AttributeValue| {
        if let Ok(name) = Token::new(name) {
            attributes.insert(name, value);
        }
    };
    let integer = |n: usize| AttributeValue::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    add("arch", AttributeValue::Text(text(system.machine())));
    add("kernel", AttributeValue::Text(text(system.release())));
    add("cpus", integer(cores.iter().map(CpuList::len).sum()));
    add("cores", integer(cores.len()));
    if let Some(layout) = &layout {
        add("cgroup", AttributeValue::Text(layout.kind().as_str().to_owned()));
    }
    if let Some(nodes) = numa_nodes() {
        add("numa-nodes", integer(nodes));
    }
    if let Some(model) = cpu_model_name() {
        add("cpu-model", AttributeValue::Text(model));
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    for (name, key) in [("os", "ID"), ("os-version", "VERSION_ID")] {
        if let Some(value) = os_release(&release, key) {
            add(name, AttributeValue::Text(value));
        }
    }
    let hostname = text(system.nodename());
    Ok(MachineFacts { hostname, boot: BootId::current()?, capacity, attributes, cores })
}

/// What the system keeps for itself: the kernel, the agent, logins, and a tenth of the disk so that
/// it never runs full.
#[must_use]
pub fn default_reserve(capacity: Resources) -> Resources {
    const MIB: u64 = 1 << 20;
    Resources {
        cpu: 100 + capacity.cpu / 100,
        ram: (256 * MIB).max(capacity.ram / 20).min(capacity.ram / 2),
        disk: capacity.disk / 10,
        disk_rate: 0,
    }
}

/// What a cell may use.
///
/// # Errors
/// When the reserve leaves no CPU or no memory.
pub fn offered_capacity(capacity: Resources, reserve: Resources) -> Result<Resources, Error> {
    for (field, kept, has) in [
        ("reserve of CPU", reserve.cpu, capacity.cpu),
        ("reserve of memory", reserve.ram, capacity.ram),
    ] {
        if kept >= has {
            return Err(Error::invalid(field, kept, "less than the machine has"));
        }
    }
    Ok(capacity.minus(reserve))
}

/// Online CPUs by physical core.
fn cores(directory: &Path) -> Result<Vec<CpuList>, Error> {
    let path = directory.join("online");
    let online = parse_cpus(&path, &read(&path)?)?;
    let mut cores = Vec::new();
    for cpu in online.as_slice() {
        let topology = directory.join(format!("cpu{cpu}/topology"));
        // The second is the older name of the first; a kernel with neither has one thread a core.
        let names = ["core_cpus_list", "thread_siblings_list"];
        let mut siblings = CpuList::new(vec![*cpu]);
        for path in names.map(|name| topology.join(name)) {
            if let Some(text) = read_if_there(&path)? {
                siblings = parse_cpus(&path, &text)?;
                break;
            }
        }
        cores.push(CpuList::new(
            siblings.as_slice().iter().copied().filter(|cpu| online.contains(*cpu)).collect(),
        ));
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

fn memory_total(path: &Path, text: &str) -> Result<u64, Error> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).unwrap_or("none");
    Ok(parse(path, "MemTotal", kib)?.saturating_mul(1024))
}

/// The model of the CPUs, where the kernel names it.
#[must_use]
pub fn cpu_model_name() -> Option<String> {
    cpu_model(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn cpu_model(info: &str) -> Option<String> {
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn os_release(text: &str, key: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
    let value = value.trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

fn numa_nodes() -> Option<usize> {
    let path = Path::new("/sys/devices/system/node/online");
    parse_cpus(path, &read_if_there(path).ok()??).ok().map(|nodes| nodes.len())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EnclosingLimits {
    cpu: Option<u64>,
    ram: Option<u64>,
}

/// The tightest limits of the cgroups that this process is in.
fn enclosing_limits(layout: &Layout) -> Result<EnclosingLimits, Error> {
    let own = read(Path::new("/proc/self/cgroup"))?;
    let mut enclosing = EnclosingLimits::default();
    for directory in ancestors(layout, Controller::Memory, &own) {
        let found = memory_limit(&directory)?;
        enclosing.ram = enclosing.ram.into_iter().chain(found).min();
    }
    for directory in ancestors(layout, Controller::Cpu, &own) {
        let found = cpu_limit(&directory)?;
        enclosing.cpu = enclosing.cpu.into_iter().chain(found).min();
    }
    Ok(enclosing)
}

/// Directories of this process's cgroup and of those around it, as far as they can be seen from
/// here.
fn ancestors(layout: &Layout, controller: Controller, own: &str) -> Vec<PathBuf> {
    let (mount, hierarchy) = match layout.controller_mount(controller) {
        Some(ControllerMount::V1(mount)) => (mount, controller.as_str()),
        Some(ControllerMount::V2(mount)) => (mount, ""),
        None => return Vec::new(),
    };
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        controllers.split(',').any(|name| name == hierarchy).then_some(path)
    });
    let Some(path) = path else { return Vec::new() };
    let full = mount.join(path.trim_start_matches('/'));
    full.ancestors().take_while(|at| *at != mount).map(Path::to_owned).collect()
}

fn memory_limit(group: &Path) -> Result<Option<u64>, Error> {
    for name in ["memory.max", "memory.limit_in_bytes"] {
        let path = group.join(name);
        if let Some(text) = read_if_there(&path)? {
            return number_or_max(&path, &text);
        }
    }
    Ok(None)
}

/// In milli-cores.
fn cpu_limit(group: &Path) -> Result<Option<u64>, Error> {
    let path = group.join("cpu.max");
    if let Some(text) = read_if_there(&path)? {
        let (quota, period) = text.trim().split_once(' ').unwrap_or((text.trim(), "100000"));
        let period = parse(&path, "period", period)?;
        return Ok(number_or_max(&path, quota)?.map(|quota| milli_cores(quota, period)));
    }
    let path = group.join("cpu.cfs_quota_us");
    match read_if_there(&path)? {
        Some(text) if text.trim() != "-1" => {
            let period = group.join("cpu.cfs_period_us");
            let micros = parse(&period, "period", read(&period)?.trim())?;
            Ok(Some(milli_cores(parse(&path, "quota", text.trim())?, micros)))
        }
        _ => Ok(None),
    }
}

fn milli_cores(quota: u64, period: u64) -> u64 {
    quota.saturating_mul(1000) / period.max(1)
}

/// CPU time of all processors since the machine was started, in ticks of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    idle: u64,
    all: u64,
}

impl CpuTime {
    /// Thousandths that were idle since; nothing where no time has passed, or the counters of the
    /// kernel went backwards, as those for waiting for disks may.
    #[must_use]
    pub fn idle_permille_since(self, before: CpuTime) -> Option<u64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        let idle = self.idle.checked_sub(before.idle)?;
        Some(idle.saturating_mul(1000) / all)
    }
}

/// CPU time of all processors up to now.
///
/// # Errors
/// When the kernel does not report it.
pub fn cpu_time() -> Result<CpuTime, Error> {
    let path = Path::new("/proc/stat");
    read_cpu_time(path, &read(path)?)
}

fn read_cpu_time(path: &Path, text: &str) -> Result<CpuTime, Error> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
    let counters = line.map(|line| line.split_whitespace().map(str::parse::<u64>));
    let counters: Option<Vec<u64>> = counters.and_then(|all| all.collect::<Result<_, _>>().ok());
    // user, nice, system, idle, iowait, irq, softirq, steal; then guest and guest_nice, which are
    // in the first two already.
    match counters.as_deref() {
        Some([user, nice, system, idle, waiting, rest @ ..]) => {
            let idle = idle.saturating_add(*waiting);
            let busy = [*user, *nice, *system].into_iter().chain(rest.iter().take(3).copied());
            Ok(CpuTime { idle, all: busy.fold(idle, u64::saturating_add) })
        }
        _ => Err(Error::Unreadable {
            path: path.to_owned(),
            field: "cpu",
            value: line.unwrap_or("nothing").to_owned(),
            expected: "at least five numbers of ticks",
        }),
    }
}

/// The resources that are available on the machine now, with the disk of `data`.
///
/// # Errors
/// When the kernel does not report them.
pub fn available_resources(data: &Path) -> Result<AvailableResources, Error> {
    let path = Path::new("/proc/meminfo");
    let text = read(path)?.replace(':', "").replace(" kB", "");
    let squeezed: String = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n")
        .collect();
    let kib = keyed(path, &squeezed, "MemAvailable")?.ok_or_else(|| Error::Unreadable {
        path: path.to_owned(),
        field: "MemAvailable",
        value: "nothing".to_owned(),
        expected: "a number of kB",
    })?;
    let space = rustix::fs::statvfs(data).map_err(|e| Error::file("look at", data)(e.into()))?;
    let disk_free = space.f_bavail.saturating_mul(space.f_frsize);
    let files_free = if space.f_files == 0 { u64::MAX } else { space.f_favail };
    Ok(AvailableResources { ram_available: kib.saturating_mul(1024), disk_free, files_free })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_told_of_what_passed_between_two_looks() {
        let path = Path::new("stat");
        let text = |idle: u64| format!("cpu  100 50 30 {idle} 20 5 5 10 7 7\ncpu0 1 2 3 4\n");
        let at = |idle| read_cpu_time(path, &text(idle)).unwrap();
        assert_eq!(at(80), CpuTime { idle: 100, all: 300 });
        assert_eq!(at(180).idle_permille_since(at(80)), Some(1000));
        assert_eq!(at(80).idle_permille_since(at(80)), None);
        assert_eq!(at(80).idle_permille_since(at(180)), None);
        let busier = read_cpu_time(path, "cpu 400 50 30 180 20\n").unwrap();
        assert_eq!(busier.idle_permille_since(at(80)), Some(263));
        for wrong in ["", "cpu0 1 2 3 4 5", "cpu 1 2 3 4", "cpu a b c d e"] {
            assert!(read_cpu_time(path, wrong).is_err(), "{wrong:?}");
        }
        cpu_time().unwrap();
    }

    fn scratch(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let base = std::env::temp_dir().join(format!("cellwright-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        base
    }

    #[test]
    fn this_machine_is_found_out() {
        let facts = discover(Path::new("/")).unwrap();
        let Resources { cpu, ram, disk, disk_rate } = facts.capacity;
        assert!(cpu >= 10 && ram > 1 << 20 && disk > 0 && disk_rate == 0, "{facts:?}");
        let cpus: usize = facts.cores.iter().map(CpuList::len).sum();
        assert!(cpu <= cpus as u64 * 1000);
        assert_eq!(facts.boot, BootId::current().unwrap());
        assert_eq!(facts.boot.as_str().len(), 36);
        for name in ["arch", "kernel", "cpus", "cores"] {
            assert!(facts.attributes.contains_key(&Token::new(name).unwrap()), "{name}");
        }
        let available = available_resources(Path::new("/")).unwrap();
        assert!(available.ram_available > 0 && available.disk_free <= disk, "{available:?}");
    }

    #[test]
    fn hyperthreads_are_one_core_and_offline_cpus_none() {
        let base = scratch(
            "cores",
            &[
                ("online", "0-2\n"),
                ("cpu0/topology/core_cpus_list", "0,2\n"),
                ("cpu1/topology/thread_siblings_list", "1,3\n"),
                ("cpu2/topology/core_cpus_list", "0,2\n"),
            ],
        );
        let found = cores(&base).unwrap();
        assert_eq!(found, [CpuList::new(vec![0, 2]), CpuList::new(vec![1])]);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn limits_of_groups_are_read_in_both_versions() {
        let v2 = scratch("v2-limits", &[("cpu.max", "150000 100000\n"), ("memory.max", "max\n")]);
        assert_eq!(cpu_limit(&v2).unwrap(), Some(1500));
        assert_eq!(memory_limit(&v2).unwrap(), None);
        let v1 = scratch(
            "v1-limits",
            &[
                ("cpu.cfs_quota_us", "-1\n"),
                ("cpu.cfs_period_us", "100000\n"),
                ("memory.limit_in_bytes", "4096\n"),
            ],
        );
        assert_eq!(cpu_limit(&v1).unwrap(), None);
        fs::write(v1.join("cpu.cfs_quota_us"), "50000\n").unwrap();
        assert_eq!(cpu_limit(&v1).unwrap(), Some(500));
        assert_eq!(memory_limit(&v1).unwrap(), Some(4096));
        fs::remove_dir_all(v1).unwrap();
        fs::remove_dir_all(v2).unwrap();
    }

    #[test]
    fn a_reserve_is_kept_and_may_not_be_everything() {
        let capacity = Resources::new(2000, 8 << 30, 100 << 30, 0);
        let offer = offered_capacity(capacity, default_reserve(capacity)).unwrap();
        assert_eq!((offer.cpu, offer.disk), (1880, 90 << 30));
        assert!(offer.ram < capacity.ram && offer.ram > capacity.ram / 2);
        let wrong = offered_capacity(capacity, capacity).unwrap_err().to_string();
        assert_eq!(wrong, "reserve of CPU is `2000`, allowed: less than the machine has");
    }

    #[test]
    fn texts_of_the_system_read() {
        let path = Path::new("meminfo");
        assert_eq!(
            memory_total(path, "MemTotal:       1024 kB\nMemFree: 1 kB\n").unwrap(),
            1 << 20
        );
        assert!(memory_total(path, "").is_err());
        assert_eq!(cpu_model("x : 1\nmodel name\t: Some CPU\n").as_deref(), Some("Some CPU"));
        let release = "PRETTY_NAME=\"X\"\nID=debian\nVERSION_ID=\"12\"\n";
        assert_eq!(os_release(release, "ID").as_deref(), Some("debian"));
        assert_eq!(os_release(release, "VERSION_ID").as_deref(), Some("12"));
    }
}
