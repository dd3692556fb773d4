//! Options for virtual machines and the behaviour of their tasks, for `cell dev --machines` and
//! `cell sim agents`.

use super::parse::{duration, nonzero_size};
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::device::{Device, MAX_DEVICES};
use cellwright_cell::name::Token;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Span;
use cellwright_sim::agent::task_profile::Profile;
use cellwright_sim::agent::{TaskDelays, VirtualAgentConfig};
use cellwright_sim::machine_shapes::MachineShape;
use clap::Args;

/// How long a virtual machine takes to start and to stop a task, in milliseconds.
const PACE: TaskDelays = TaskDelays { start: 100, stop: 50 };

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Virtual machines")]
pub struct VirtualArgs {
    /// Disk of each virtual machine
    #[arg(long, value_name = "SIZE", default_value = "1TiB", value_parser = nonzero_size)]
    disk: u64,

    /// Racks that virtual machines are dealt out to
    #[arg(long, value_name = "N", requires = "machines")]
    racks: Option<u32>,

    /// Power domains that racks of virtual machines are dealt out to
    #[arg(long, value_name = "N", requires = "machines")]
    power_domains: Option<u32>,

    /// An attribute of virtual machines; several values are dealt out in turn; repeat it for more
    #[arg(long, value_name = "NAME=VALUE[,VALUE]", value_parser = parse_attribute,
          requires = "machines")]
    attribute: Vec<Attribute>,

    /// A label of virtual machines; several values are dealt out in turn; repeat it for more
    #[arg(long, value_name = "NAME=VALUE[,VALUE]", value_parser = parse_label,
          requires = "machines")]
    label: Vec<Label>,

    /// Devices of each virtual machine, such as gpu:a100:4; repeat it for more
    #[arg(long, value_name = "KIND:MODEL[:N]", value_parser = parse_devices, requires = "machines")]
    device: Vec<Devices>,

    /// Percent of their limits that tasks of virtual machines use, each at its own level
    #[arg(long, value_name = "FROM-TO", default_value = "20-70", value_parser = parse_percents)]
    usage: Percents,

    /// Mean time after which a task of a virtual machine fails [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "machines")]
    fail_after: Option<Span>,

    /// Percent of attempts with a health check that fall ill on virtual machines
    #[arg(long, value_name = "PERCENT", default_value = "0",
        value_parser = clap::value_parser!(u64).range(0..=100))]
    unhealthy: u64,

    /// What behaviour is drawn from; the same seed gives the same
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Attribute(Token, Vec<AttributeValue>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Label(Token, Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Devices(Vec<Device>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Percents(u64, u64);

impl VirtualArgs {
    /// The values without any options.
    pub fn with_defaults() -> VirtualArgs {
        VirtualArgs {
            disk: 1 << 40,
            racks: None,
            power_domains: None,
            attribute: Vec::new(),
            label: Vec::new(),
            device: Vec::new(),
            usage: Percents(20, 70),
            fail_after: None,
            unhealthy: 0,
            seed: 1,
        }
    }

    pub fn machine_shape(&self, cpu: u64, ram: u64) -> MachineShape {
        let attributes = self.attribute.iter();
        MachineShape {
            capacity: Resources { cpu, ram, disk: self.disk, disk_rate: 1 << 30 },
            racks: self.racks.unwrap_or(0),
            power_domains: self.power_domains.unwrap_or(0),
            attributes: attributes
                .map(|attribute| (attribute.0.clone(), attribute.1.clone()))
                .collect(),
            labels: self.label.iter().map(|label| (label.0.clone(), label.1.clone())).collect(),
            devices: self.device.iter().flat_map(|devices| devices.0.clone()).collect(),
        }
    }

    pub fn settings(&self) -> VirtualAgentConfig {
        let profile = Profile {
            seed: self.seed,
            usage: (self.usage.0, self.usage.1),
            fails_after: self.fail_after.map(|mean| mean.0),
            unhealthy_permille: self.unhealthy * 10,
        };
        VirtualAgentConfig::new(PACE, profile)
    }
}

/// `arch=x86_64,arm64`.
fn parse_attribute(text: &str) -> Result<Attribute, String> {
    let (name, values) = text.split_once('=').ok_or("allowed: NAME=VALUE, such as arch=arm64")?;
    let name = Token::new(name).map_err(|error| error.to_string())?;
    let value = |text: &str| match text.parse() {
        Ok(number) => AttributeValue::Integer(number),
        Err(_) => AttributeValue::Text(text.to_owned()),
    };
    Ok(Attribute(name, values.split(',').map(value).collect()))
}

/// `zone=a,b`.
fn parse_label(text: &str) -> Result<Label, String> {
    let (name, values) = text.split_once('=').ok_or("allowed: NAME=VALUE, such as zone=a")?;
    let name = Token::new(name).map_err(|error| error.to_string())?;
    Ok(Label(name, values.split(',').map(str::to_owned).collect()))
}

/// `gpu:a100:4`.
fn parse_devices(text: &str) -> Result<Devices, String> {
    let error = || format!("allowed: KIND:MODEL or KIND:MODEL:N with N from 1 to {MAX_DEVICES}");
    let mut parts = text.splitn(3, ':');
    let mut token = || -> Result<Token, String> {
        Token::new(parts.next().ok_or_else(error)?).map_err(|error| error.to_string())
    };
    let device = Device { kind: token()?, model: token()? };
    let count = parts.next().map_or(Ok(1), str::parse::<usize>).map_err(|_| error())?;
    if (1..=MAX_DEVICES).contains(&count) { Ok(Devices(vec![device; count])) } else { Err(error()) }
}

/// `20-70`.
fn parse_percents(text: &str) -> Result<Percents, String> {
    let error = || "allowed: two percentages from 0 to 1000, the lower one first, such as 20-70";
    let (from, to) = text.split_once('-').ok_or_else(error)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| error());
    let (from, to) = (number(from)?, number(to)?);
    if from <= to && to <= 1000 { Ok(Percents(from, to)) } else { Err(error().to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_what_is_none_is_refused() {
        let text = |text: &str| AttributeValue::Text(text.into());
        let name = |text: &str| Token::new(text).unwrap();
        let arch = Attribute(name("arch"), vec![text("x86_64"), AttributeValue::Integer(2)]);
        assert_eq!(parse_attribute("arch=x86_64,2"), Ok(arch));
        let zones = Label(name("zone"), vec!["a".to_owned(), "2".to_owned()]);
        assert_eq!(parse_label("zone=a,2"), Ok(zones));
        assert!(parse_label("zone").is_err());
        assert!(parse_attribute("arch").is_err() && parse_attribute("a b=1").is_err());
        let gpu = Device { kind: name("gpu"), model: name("a100") };
        assert_eq!(parse_devices("gpu:a100:2"), Ok(Devices(vec![gpu.clone(); 2])));
        assert_eq!(parse_devices("gpu:a100"), Ok(Devices(vec![gpu])));
        for invalid in ["gpu", "gpu:a100:0", "gpu:a100:x", "gpu:a100:9999"] {
            assert!(parse_devices(invalid).is_err(), "{invalid}");
        }
        assert_eq!(parse_percents("20-70"), Ok(Percents(20, 70)));
        for invalid in ["20", "70-20", "0-1001", "a-b"] {
            assert!(parse_percents(invalid).is_err(), "{invalid}");
        }
    }
}
