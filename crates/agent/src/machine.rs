//! The description of this machine for the masters: the capacity that the kernel reports, less a
//! reserve for the system, plus what only its operator can know.

use crate::calibration::{Calibration, CpuFactor};
use crate::config::{Config, ConfigError, HostVolume};
use crate::devices::{self, HostDevice};
use cellwright_cell::admit::check_machine;
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::isolation::{
    HOST_VOLUME_READ_ONLY, HOST_VOLUME_WRITABLE, host_volume_attribute,
};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_isolate::cgroup::CpuList;
use cellwright_isolate::machine::{MachineFacts, default_reserve};
use std::fs;

/// Bytes a second that a disk is assumed to do that could not be measured: any disk in use today
/// does more.
const DISK_RATE: u64 = 100 << 20;
/// The attribute with the driver that runs tasks.
pub const DRIVER: &str = "driver";
/// The attribute with the reason why tasks are not run in containers.
pub const CONTAINERS_OFF: &str = "containers-off";
/// The attribute with the container runtime, and the known vulnerabilities of its version.
pub const RUNTIME: &str = "runtime";
/// The attribute with the tasks that listen on ports that were not assigned to them.
pub const UNASSIGNED_PORTS: &str = "ungiven-ports";
/// The attribute with the cores of the cell that one CPU of the machine is worth, unless it is 1.
pub const CPU_FACTOR: &str = "cpu-factor";
/// The attribute with the writes of 4 KiB that its disk does in a second, as they were measured.
pub const DISK_OPERATIONS: &str = "disk-operations";
/// Most bytes of an attribute that are reported.
const MAX_ATTRIBUTE_BYTES: usize = 200;

/// A machine as its masters see it, and what only its agent needs.
pub struct MachineDescription {
    pub spec: MachineSpec,
    /// Physical cores with the CPUs of each.
    pub cores: Vec<CpuList>,
    /// What tasks may use in all, in its own CPUs; a disk rate of 0 if its operator gave none.
    pub usable: Resources,
    /// Its devices, in the order in which the masters know them.
    pub devices: Vec<HostDevice>,
    /// Between the cores of the cell, in which its capacity is, and its own CPUs.
    pub cpu_factor: CpuFactor,
}

/// The machine's description.
///
/// # Errors
/// When the kernel does not report the capacity, or the configuration asks for what cannot be.
pub fn describe(
    config: &Config,
    calibration: Calibration,
) -> Result<MachineDescription, ConfigError> {
    let facts = cellwright_isolate::machine::discover(&config.data_dir)
        .map_err(|error| ConfigError::Machine(error.to_string()))?;
    let found = config.capacity.unwrap_or_else(|| offered_capacity(&facts, calibration));
    let reserve = config.reserve.unwrap_or_else(|| match config.capacity {
        // An operator who configures the capacity has accounted for the reserve.
        Some(_) => Resources::default(),
        None => default_reserve(found),
    });
    for dimension in Dimension::ALL {
        if reserve.get(dimension) > found.get(dimension) {
            return Err(ConfigError::Field {
                field: format!("reserve.{dimension}"),
                value: reserve.get(dimension).to_string(),
                allowed: format!("at most what there is, {}", found.get(dimension)),
            });
        }
    }
    let mut attributes = config.attributes.clone();
    for (name, value) in facts.attributes {
        attributes.entry(name).or_insert(value);
    }
    for (name, value) in calibration_attributes(calibration) {
        attributes.entry(name).or_insert(value);
    }
    let devices = devices::discover(config)?;
    let mut spec = MachineSpec {
        name: machine_name(config)?,
        capacity: found.minus(reserve),
        attributes,
        labels: config.labels.clone(),
        rack: config.rack.clone(),
        power: config.power.clone(),
        devices: devices.iter().map(|found| found.device.clone()).collect(),
        named: config.named.clone(),
        ports: config.ports.unwrap_or_default(),
        address: config.address,
    };
    spec.set_cores(facts.cores.len());
    check_machine(&spec).map_err(|rejection| ConfigError::Machine(rejection.to_string()))?;
    let known_rate = config.capacity.map_or(0, |_| spec.capacity.disk_rate);
    let cpu_factor = calibration.cpu;
    let usable = Resources { disk_rate: known_rate, ..cpu_factor.on_machine(spec.capacity) };
    Ok(MachineDescription { spec, cores: facts.cores, usable, devices, cpu_factor })
}

/// What an operator configures is in cores of the cell already.
fn offered_capacity(facts: &MachineFacts, calibration: Calibration) -> Resources {
    Resources {
        cpu: calibration.cpu.to_cell(facts.capacity.cpu),
        disk_rate: calibration.disk.map_or(DISK_RATE, |disk| disk.bytes_per_second),
        ..facts.capacity
    }
}

/// What was measured, for those who look, and for jobs to ask for.
fn calibration_attributes(calibration: Calibration) -> Vec<(Token, AttributeValue)> {
    let factor = (!calibration.cpu.is_one())
        .then(|| (CPU_FACTOR, AttributeValue::Text(calibration.cpu.to_string())));
    let operations = calibration.disk.map(|disk| {
        let writes = i64::try_from(disk.operations_per_second).unwrap_or(i64::MAX);
        (DISK_OPERATIONS, AttributeValue::Integer(writes))
    });
    let named = |(name, value)| Some((Token::new(name).ok()?, value));
    factor.into_iter().chain(operations).filter_map(named).collect()
}

/// Sets an attribute of the machine, or removes it.
pub fn set_text_attribute(spec: &mut MachineSpec, name: &str, text: Option<&str>) {
    let Ok(name) = Token::new(name) else { return };
    match text {
        Some(text) => {
            let text = text[..text.floor_char_boundary(MAX_ATTRIBUTE_BYTES)].to_owned();
            spec.attributes.insert(name, AttributeValue::Text(text));
        }
        None => drop(spec.attributes.remove(&name)),
    }
}

/// Advertises the host volumes: by the path that the operator wrote, and by its real path, for jobs
/// may name either. A folder that is not there is not advertised, and one with two configured paths
/// that differ is read-only.
pub fn advertise_host_volumes(spec: &mut MachineSpec, volumes: &[HostVolume]) {
    let mut present = Vec::new();
    for volume in volumes {
        match volume.path.canonicalize() {
            Ok(real) => present.push((volume, real)),
            Err(error) => {
                tracing::warn!(path = %volume.path.display(), %error, "a volume is not lent");
            }
        }
    }
    for (volume, real) in &present {
        let writable = present.iter().all(|(other, at)| at != real || other.writable);
        for path in [&volume.path, real] {
            // The operator's path can be advertised; the real path may be too long for a name.
            let name = path.to_str().and_then(|path| host_volume_attribute(path).ok());
            let Some(name) = name else { continue };
            let how = if writable { HOST_VOLUME_WRITABLE } else { HOST_VOLUME_READ_ONLY };
            spec.attributes.insert(name, AttributeValue::Text(how.to_owned()));
        }
    }
}

fn machine_name(config: &Config) -> Result<Name, ConfigError> {
    if let Some(name) = &config.name {
        return Ok(name.clone());
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().to_ascii_lowercase();
    let short = host.split('.').next().unwrap_or_default();
    Name::new(short).map_err(|bad| ConfigError::Field {
        field: "name".into(),
        value: format!("{short:?} (the name of this host)"),
        allowed: bad.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::DiskSpeed;
    use crate::state_dir::scratch::Scratch;
    use cellwright_cell::isolation::HostVolume as MountedVolume;

    #[test]
    fn what_is_lent_is_said_by_both_of_its_paths_if_it_is_there() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("real")).unwrap();
        let (real, link) = (scratch.path("real").canonicalize().unwrap(), scratch.path("link"));
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let config = Config::parse("name = \"m7\"\ndata_dir = \"/\"").unwrap();
        let mut spec = describe(&config, Calibration::default()).unwrap().spec;
        let volume = |path: &std::path::Path, writable| HostVolume { path: path.into(), writable };
        advertise_host_volumes(
            &mut spec,
            &[volume(&link, false), volume(&scratch.path("gone"), true)],
        );
        let lends = |path: &std::path::Path, writable| {
            let source = path.join("inner").to_str().unwrap().to_owned();
            MountedVolume { source, writable }.is_granted(&spec.attributes)
        };
        assert!(lends(&real, false) && lends(&link, false) && !lends(&real, true));
        assert!(!lends(&scratch.path("gone"), false));
        for volumes in [[(&link, false), (&real, true)], [(&real, false), (&link, true)]] {
            let mut spec = describe(&config, Calibration::default()).unwrap().spec;
            advertise_host_volumes(
                &mut spec,
                &volumes.map(|(path, writable)| volume(path, writable)),
            );
            for path in [&real, &link] {
                let source = path.to_str().unwrap().to_owned();
                assert!(!MountedVolume { source, writable: true }.is_granted(&spec.attributes));
            }
        }
        assert!(check_machine(&spec).is_ok());
    }

    #[test]
    fn what_is_said_of_a_machine_is_short_in_every_script() {
        let config = Config::parse("name = \"m7\"\ndata_dir = \"/\"").unwrap();
        let mut spec = describe(&config, Calibration::default()).unwrap().spec;
        set_text_attribute(&mut spec, CONTAINERS_OFF, Some(&"\u{e4}\u{20ac}".repeat(200)));
        assert!(check_machine(&spec).is_ok());
        let attribute = &spec.attributes[&Token::new(CONTAINERS_OFF).unwrap()];
        assert!(
            matches!(attribute, AttributeValue::Text(text) if text.len() == 200),
            "{attribute:?}"
        );
    }

    #[test]
    fn cores_of_the_cell_are_what_is_offered_and_cpus_what_is_used() {
        let config = |more: &str| {
            Config::parse(&format!("name = \"m7\"\ndata_dir = \"/\"\n{more}")).unwrap()
        };
        let none = "[reserve]\ncpu = 0\nram = 0";
        let plain = describe(&config(none), Calibration::default()).unwrap();
        let disk = DiskSpeed { bytes_per_second: 7 << 20, operations_per_second: 55 };
        let cpu = CpuFactor::of_thousandths(1500).unwrap();
        let calibration = Calibration { cpu, disk: Some(disk) };
        let fast = describe(&config(none), calibration).unwrap();
        assert_eq!(fast.spec.capacity.cpu, plain.spec.capacity.cpu * 3 / 2);
        assert_eq!(fast.usable.cpu, plain.usable.cpu);
        assert_eq!((fast.spec.capacity.disk_rate, fast.usable.disk_rate), (7 << 20, 0));
        assert_eq!(fast.spec.named, plain.spec.named, "whole cores are its own");
        let attribute = |name: &str| fast.spec.attributes.get(&Token::new(name).unwrap()).cloned();
        assert_eq!(attribute(CPU_FACTOR), Some(AttributeValue::Text("1.500".into())));
        assert_eq!(attribute(DISK_OPERATIONS), Some(AttributeValue::Integer(55)));
        // A capacity that an operator gives is in cores of the cell.
        let given = "[capacity]\ncpu = 3000\nram = 1000000000\ndisk = 1\ndisk_rate = 9";
        let given = describe(&config(given), Calibration { cpu, disk: None }).unwrap();
        assert_eq!((given.spec.capacity.cpu, given.usable.cpu), (3000, 2000));
        assert_eq!(given.usable.disk_rate, 9);
    }

    #[test]
    fn a_machine_is_what_there_is_less_what_is_kept() {
        let none = "name = \"m7\"\ndata_dir = \"/\"\n[reserve]\ncpu = 0\nram = 0";
        let whole = describe(&Config::parse(none).unwrap(), Calibration::default()).unwrap().spec;
        let config = Config::parse("name = \"m7\"\ndata_dir = \"/\"").unwrap();
        let usual = describe(&config, Calibration::default()).unwrap();
        assert_eq!(usual.spec.capacity, whole.capacity.minus(default_reserve(whole.capacity)));
        assert!(!usual.cores.is_empty() && usual.usable.disk_rate == 0);
        assert_eq!(whole.name.as_str(), "m7");
        assert!(whole.capacity.cpu >= 1000 && whole.capacity.ram > 0 && whole.capacity.disk > 0);
        let text = "name = \"m7\"\ndata_dir = \"/\"\n[reserve]\ncpu = 100\nram = 4096";
        let part = describe(&Config::parse(text).unwrap(), Calibration::default()).unwrap().spec;
        assert_eq!(part.capacity.cpu + 100, whole.capacity.cpu);
        assert_eq!(part.capacity.ram + 4096, whole.capacity.ram);
        let text = "name = \"m7\"\ndata_dir = \"/\"\n[reserve]\ncpu = 9000000\nram = 0";
        let error = describe(&Config::parse(text).unwrap(), Calibration::default())
            .err()
            .unwrap()
            .to_string();
        let text = "name = \"m7\"\ndata_dir = \"/\"\naddress = \"10.0.0.7\"";
        let reached = describe(&Config::parse(text).unwrap(), Calibration::default()).unwrap().spec;
        assert_eq!(reached.address, Some([10, 0, 0, 7].into()));
        assert!(error.contains("reserve.cpu") && error.contains("9000000"), "{error}");
    }
}
