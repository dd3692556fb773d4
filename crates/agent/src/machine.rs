//! What this machine is, as the masters are told: what the kernel says it has, less what is kept
//! for the system, plus what only its operator can know.

use crate::config::{Config, ConfigError};
use cellwright_cell::admit::check_machine;
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::resource::{Dimension, Resources};
use std::fs;

/// Bytes a second that a disk is taken to do when the operator does not say: any that is in use
/// today does more.
const DISK_RATE: u64 = 100 << 20;

/// The machine's description.
///
/// # Errors
/// When the kernel does not say what there is, or the configuration asks for what cannot be.
pub fn describe(config: &Config) -> Result<MachineSpec, ConfigError> {
    let found = discover(config)?;
    let reserve = config.reserve.unwrap_or_default();
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
    for (name, value) in facts() {
        attributes.entry(name).or_insert(value);
    }
    let spec = MachineSpec {
        name: name(config)?,
        capacity: found.minus(reserve),
        attributes,
        labels: config.labels.clone(),
        rack: config.rack.clone(),
        power: config.power.clone(),
        devices: Vec::new(),
        named: config.named.clone(),
        ports: config.ports.unwrap_or_default(),
        address: config.address,
    };
    check_machine(&spec).map_err(|refusal| ConfigError::Machine(refusal.to_string()))?;
    Ok(spec)
}

fn name(config: &Config) -> Result<Name, ConfigError> {
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

fn discover(config: &Config) -> Result<Resources, ConfigError> {
    if let Some(capacity) = config.capacity {
        return Ok(capacity);
    }
    let silent = |what: &'static str| move |why: std::io::Error| ConfigError::Discover(what, why);
    let cores = std::thread::available_parallelism().map_err(silent("cores"))?;
    let memory = fs::read_to_string("/proc/meminfo").map_err(silent("memory"))?;
    let disk = rustix::fs::statvfs(&config.data_dir)
        .map_err(|why| ConfigError::Discover("disk", why.into()))?;
    Ok(Resources {
        cpu: cores.get() as u64 * 1000,
        ram: total_memory(&memory)
            .ok_or_else(|| ConfigError::Discover("memory", std::io::Error::other("no MemTotal")))?,
        disk: disk.f_blocks.saturating_mul(disk.f_frsize),
        disk_rate: DISK_RATE,
    })
}

fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn facts() -> Vec<(Token, AttributeValue)> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let known =
        [("os", std::env::consts::OS), ("arch", std::env::consts::ARCH), ("kernel", kernel.trim())];
    let fact = |(name, value): (&str, &str)| {
        Some((Token::new(name).ok()?, AttributeValue::Text(value.to_owned())))
    };
    known.into_iter().filter_map(fact).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_what_there_is_less_what_is_kept() {
        assert_eq!(total_memory("MemFree: 3 kB\nMemTotal:  7 kB\n"), Some(7 << 10));
        let config = Config::parse("name = \"m7\"\ndata_dir = \"/\"").unwrap();
        let whole = describe(&config).unwrap();
        assert_eq!(whole.name.as_str(), "m7");
        assert!(whole.capacity.cpu >= 1000 && whole.capacity.ram > 0 && whole.capacity.disk > 0);
        let text = "name = \"m7\"\ndata_dir = \"/\"\n[reserve]\ncpu = 100\nram = 4096";
        let part = describe(&Config::parse(text).unwrap()).unwrap();
        assert_eq!(part.capacity.cpu + 100, whole.capacity.cpu);
        assert_eq!(part.capacity.ram + 4096, whole.capacity.ram);
        let text = "name = \"m7\"\ndata_dir = \"/\"\n[reserve]\ncpu = 9000000\nram = 0";
        let error = describe(&Config::parse(text).unwrap()).unwrap_err().to_string();
        let text = "name = \"m7\"\ndata_dir = \"/\"\naddress = \"10.0.0.7\"";
        let reached = describe(&Config::parse(text).unwrap()).unwrap();
        assert_eq!(reached.address, Some([10, 0, 0, 7].into()));
        assert!(error.contains("reserve.cpu") && error.contains("9000000"), "{error}");
    }
}
