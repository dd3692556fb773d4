//! The bundled example cell: every feature of a cell, on a few dozen machines.

use super::{ConvertError, UsageModel, plain_job, plain_machine, usage_note};
use crate::trace::example::{
    ExampleAppClass, ExampleConstraint, ExampleJob, ExampleMachine, ExampleOperator, read_cell,
};
use crate::workload::{ReservedShare, Workload, WorkloadJob, WorkloadMachine};
use cellwright_cell::constraint::{AttributeValue, Constraint, Operator, Strength};
use cellwright_cell::device::{Device, DeviceRequest};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, JobSpec, PackageRef, SpreadLimit};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the folder and converts it to a workload. `usage` is used where a job does not state its
/// own; `None` keeps all reservations at limits.
///
/// # Errors
/// When a file cannot be read at all; unusable rows are counted in the reports.
pub fn example(folder: &Path, usage: Option<UsageModel>) -> Result<Workload, ConvertError> {
    let cell = read_cell(folder)?;
    let mut out = Workload { reports: cell.reports, ..Workload::default() };
    out.notes.push(match usage {
        None => usage_note(None),
        Some(_) => "reservations are what each job says it uses plus the estimator's margin".into(),
    });
    let sizes = package_sizes(&cell.jobs);
    for row in &cell.machines {
        out.machines.push(machine(row, &sizes)?);
    }
    for row in &cell.jobs {
        let reserved = usage.map_or(ReservedShare::ALL, |model| reserved_share(row, model));
        out.jobs.push(WorkloadJob { owner: Name::new(&row.user)?, spec: job(row)?, reserved });
    }
    Ok(out)
}

fn reserved_share(row: &ExampleJob, model: UsageModel) -> ReservedShare {
    let own = |percent: Option<u8>| percent.map(|p| u32::from(p) * 10);
    UsageModel {
        cpu_permille: own(row.cpu_used_percent).unwrap_or(model.cpu_permille),
        ram_permille: own(row.ram_used_percent).unwrap_or(model.ram_permille),
        ..model
    }
    .reserved()
}

/// Machines only name packages; their sizes are in the jobs.
fn package_sizes(jobs: &[ExampleJob]) -> BTreeMap<&str, u64> {
    let packages = jobs.iter().flat_map(|job| &job.packages);
    packages.map(|package| (package.name.as_str(), package.bytes)).collect()
}

/// The example has names only, so the name is the content address.
fn package(name: &str, bytes: u64) -> Result<PackageRef, ConvertError> {
    Ok(PackageRef { name: Token::new(name)?, digest: Token::new(name)?, bytes })
}

fn machine(
    row: &ExampleMachine,
    sizes: &BTreeMap<&str, u64>,
) -> Result<WorkloadMachine, ConvertError> {
    let capacity = Resources::new(row.cpu_milli, row.ram_bytes, row.disk_bytes, row.disk_rate);
    let mut machine = plain_machine(Name::new(&row.name)?, capacity);
    for (name, text) in row.all_attributes() {
        machine.spec.attributes.insert(Token::new(name)?, attribute_value(text));
    }
    machine.spec.rack = Some(Token::new(&row.rack)?);
    machine.spec.power = Some(Token::new(&row.power)?);
    if let Some(model) = &row.gpu_model {
        let device = Device { kind: Token::new("gpu")?, model: Token::new(model)? };
        machine.spec.devices = vec![device; usize::from(row.gpus)];
    }
    for name in &row.packages {
        let bytes = sizes.get(name.as_str()).copied().unwrap_or(0);
        machine.packages.insert(package(name, bytes)?);
    }
    Ok(machine)
}

/// Numbers compare as numbers.
fn attribute_value(text: &str) -> AttributeValue {
    match text.parse() {
        Ok(integer) => AttributeValue::Integer(integer),
        Err(_) => AttributeValue::Text(text.to_owned()),
    }
}

fn job(row: &ExampleJob) -> Result<JobSpec, ConvertError> {
    let limits = Resources::new(row.cpu_milli, row.ram_bytes, row.disk_bytes, row.disk_rate);
    let mut spec = plain_job(Name::new(&row.name)?, row.tasks, Priority(row.priority), limits);
    spec.appclass = Some(match row.appclass {
        ExampleAppClass::LatencySensitive => AppClass::LatencySensitive,
        ExampleAppClass::Batch => AppClass::Batch,
    });
    spec.gang = row.is_gang;
    spec.task.ports = row.ports;
    spec.task.static_ports = row.static_ports.clone();
    if let Some(gpus) = &row.gpus {
        let models = gpus.models.iter().map(|m| Token::new(m)).collect::<Result<_, _>>()?;
        let (count, milli) = (gpus.count, gpus.share_milli);
        spec.task.devices = vec![DeviceRequest { kind: Token::new("gpu")?, models, count, milli }];
    }
    for each in &row.packages {
        spec.task.packages.push(package(&each.name, each.bytes)?);
    }
    spec.constraints = row.constraints.iter().map(constraint).collect::<Result<_, _>>()?;
    let limits = [
        (Domain::Machine, row.max_per_machine),
        (Domain::Rack, row.max_per_rack),
        (Domain::Power, row.max_per_power),
    ];
    let spread =
        |(domain, limit): (Domain, Option<u32>)| Some(SpreadLimit { domain, limit: limit? });
    spec.spread = limits.into_iter().filter_map(spread).collect();
    Ok(spec)
}

/// # Errors
/// When the attribute is not a name.
pub(crate) fn constraint(row: &ExampleConstraint) -> Result<Constraint, ConvertError> {
    use ExampleOperator as From;
    use Operator as To;
    let values = |list: &[String]| list.iter().map(|v| attribute_value(v)).collect();
    let operator = match &row.operator {
        From::Equal(v) => To::Equal(attribute_value(v)),
        From::NotEqual(v) => To::NotEqual(attribute_value(v)),
        From::Less(n) => To::Less(*n),
        From::LessOrEqual(n) => To::LessOrEqual(*n),
        From::Greater(n) => To::Greater(*n),
        From::GreaterOrEqual(n) => To::GreaterOrEqual(*n),
        From::In(list) => To::In(values(list)),
        From::NotIn(list) => To::NotIn(values(list)),
        From::Exists => To::Exists,
        From::Absent => To::Absent,
        From::Matches(pattern) => To::Matches(pattern.clone()),
        From::VersionAtLeast(v) => To::VersionAtLeast(v.clone()),
        From::VersionBelow(v) => To::VersionBelow(v.clone()),
    };
    let strength = row.weight.map_or(Strength::Hard, Strength::Soft);
    Ok(Constraint { attribute: Token::new(&row.attribute)?, operator, strength })
}
