//! A job in a few words, for queries: `cpu=500m,ram=1GiB,priority=200,count=10`, or the same keys
//! as a JSON object. Unknown keys are rejected: a misspelt request would give a wrong answer.

use super::load::Units;
use crate::convert::{constraint, plain_job};
use crate::trace::decimal::{Rounding, parse_scaled};
use crate::trace::example::{
    ALLOWED_CONSTRAINTS, parse_bytes_down, parse_bytes_per_second, parse_constraint, parse_milli,
};
use cellwright_cell::constraint::Constraint;
use cellwright_cell::device::{DeviceRequest, WHOLE_DEVICE};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::priority::{MAX_PRIORITY, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, JobSpec, MAX_TASKS, SpreadLimit};
use std::collections::BTreeMap;

/// Why a text is not a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobTextError {
    #[error("job field {field}: value \"{value}\" is not valid; allowed: {allowed}")]
    Value { field: String, value: String, allowed: String },
    #[error("job field {field} is unknown; allowed: {KEYS}")]
    UnknownField { field: String },
    #[error("job field {field} stands there twice; allowed: once")]
    Duplicate { field: String },
    #[error(
        "job \"{text}\" is not valid; allowed: KEY=VALUE with commas between, or a JSON object"
    )]
    Malformed { text: String },
    #[error("the job asks for nothing; allowed: at least one of {DEMANDS}")]
    NoDemand,
}

const KEYS: &str = "name, count, priority, cpu, ram, disk, disk_rate, ports, static_ports, gpus, \
                    gpu_share, gpu_model, constraints, max_per_machine, gang";
const DEMANDS: &str = "cpu, ram, disk, disk_rate, ports, static_ports, gpus";

/// The defaults of a job: a production priority, one task.
pub const DEFAULT_PRIORITY: u32 = 200;
pub const DEFAULT_COUNT: u32 = 1;

const BYTES: &str = "a number and B, KiB, MiB, GiB or TiB, such as 4GiB (not 4G or 4Gi)";
const CORES: &str = "cores such as 2 or 0.5, or milli-cores such as 500m";
const SHARE: &str = "a share of the largest machine up to 1000 with at most 6 decimals";
const PORTS: &str = "different ports from 1 to 65535 with ; between them";

/// Reads `key=value,…` or, when it starts with a brace, a JSON object of the same keys.
///
/// # Errors
/// With the field, the value and what is allowed.
pub fn parse_job(text: &str, units: Units) -> Result<JobSpec, JobTextError> {
    let fields =
        if text.trim_start().starts_with('{') { json_fields(text)? } else { listed_fields(text)? };
    job_spec(&Fields { fields, units })
}

fn listed_fields(text: &str) -> Result<BTreeMap<String, String>, JobTextError> {
    let mut fields = BTreeMap::new();
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            return Err(JobTextError::Malformed { text: preview(text) });
        };
        let key = key.trim().to_owned();
        if fields.insert(key.clone(), value.trim().to_owned()).is_some() {
            return Err(JobTextError::Duplicate { field: preview(&key) });
        }
    }
    Ok(fields)
}

fn json_fields(text: &str) -> Result<BTreeMap<String, String>, JobTextError> {
    let object: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|_| JobTextError::Malformed { text: preview(text) })?;
    let field = |(key, value): (String, serde_json::Value)| match value {
        serde_json::Value::Array(list) => {
            (key, list.iter().map(value_text).collect::<Vec<_>>().join(";"))
        }
        value => (key, value_text(&value)),
    };
    Ok(object.into_iter().map(field).collect())
}

fn value_text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn preview(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

struct Fields {
    fields: BTreeMap<String, String>,
    units: Units,
}

impl Fields {
    fn get<T>(
        &self,
        field: &str,
        default: T,
        allowed: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, JobTextError> {
        let Some(value) = self.fields.get(field) else { return Ok(default) };
        parse(value).ok_or_else(|| JobTextError::Value {
            field: field.to_owned(),
            value: preview(value),
            allowed: allowed.to_owned(),
        })
    }

    fn number(&self, field: &str, default: u32, low: u32, high: u32) -> Result<u32, JobTextError> {
        let allowed = format!("a whole number from {low} to {high}");
        let parse = |text: &str| text.parse().ok().filter(|n| (low..=high).contains(n));
        self.get(field, default, &allowed, parse)
    }

    fn amount(
        &self,
        field: &str,
        allowed: &str,
        parse: fn(&str) -> Option<u64>,
    ) -> Result<u64, JobTextError> {
        // No task needs no resources, and such a task would count as fitting without end.
        let zero = |n: &u64| *n == 0 && matches!(field, "cpu" | "ram");
        let allowed = match self.units {
            Units::CoresAndBytes => allowed,
            Units::LargestMachine => SHARE,
        };
        let allowed = match field {
            "cpu" | "ram" => format!("more than 0: {allowed}"),
            _ => allowed.to_owned(),
        };
        match self.units {
            Units::CoresAndBytes => {
                self.get(field, 0, &allowed, |text| parse(text).filter(|n| !zero(n)))
            }
            Units::LargestMachine => self.get(field, 0, &allowed, |text| {
                let share = parse_scaled(text, 6, Rounding::Exact).ok();
                share.filter(|n| *n <= 1_000_000_000 && !zero(n))
            }),
        }
    }

    /// The parts of a field, separated by `;`; none when the field is missing.
    fn list<T>(
        &self,
        field: &str,
        allowed: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, JobTextError> {
        self.get(field, Vec::new(), allowed, |text| {
            text.split(';').map(|part| parse(part.trim())).collect()
        })
    }
}

fn job_spec(fields: &Fields) -> Result<JobSpec, JobTextError> {
    let known: Vec<&str> = KEYS.split(", ").map(str::trim).collect();
    if let Some(field) = fields.fields.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(JobTextError::UnknownField { field: preview(field) });
    }
    let name_rule = "1 to 63 characters a-z, 0-9 and -, not starting or ending with -";
    let name = fields.get("name", None, name_rule, |text| Name::new(text).ok().map(Some))?;
    let name = match name {
        Some(name) => name,
        None => {
            Name::new("what-if").map_err(|_| JobTextError::Malformed { text: "what-if".into() })?
        }
    };
    let limits = Resources::new(
        fields.amount("cpu", CORES, parse_milli)?,
        fields.amount("ram", BYTES, parse_bytes_down)?,
        fields.amount("disk", BYTES, parse_bytes_down)?,
        fields.amount("disk_rate", "such as 20MiB/s", parse_bytes_per_second)?,
    );
    let priority = fields.number("priority", DEFAULT_PRIORITY, 0, u32::from(MAX_PRIORITY))?;
    let count = fields.number("count", DEFAULT_COUNT, 1, MAX_TASKS)?;
    let mut spec = plain_job(name, count, Priority(priority as u16), limits);
    spec.task.ports = fields.number("ports", 0, 0, 64)? as u8;
    spec.task.static_ports = static_ports(fields)?;
    spec.constraints = constraints(fields)?;
    spec.gang = fields.get("gang", false, "yes or no", |text| match text {
        "yes" | "true" => Some(true),
        "no" | "false" => Some(false),
        _ => None,
    })?;
    let limit = fields.number("max_per_machine", 0, 1, MAX_TASKS)?;
    if limit > 0 {
        spec.spread.push(SpreadLimit { domain: Domain::Machine, limit });
    }
    spec.task.devices = devices(fields)?;
    let task = &spec.task;
    let asks_for_ports = task.ports > 0 || !task.static_ports.is_empty();
    if task.limits == Resources::ZERO && !asks_for_ports && task.devices.is_empty() {
        Err(JobTextError::NoDemand)
    } else {
        Ok(spec)
    }
}

fn static_ports(fields: &Fields) -> Result<Vec<u16>, JobTextError> {
    let port = |text: &str| text.parse().ok().filter(|port| *port != 0);
    let ports: Vec<u16> = fields.list("static_ports", PORTS, port)?;
    match (1..ports.len()).find(|at| ports[..*at].contains(&ports[*at])) {
        None => Ok(ports),
        Some(at) => Err(JobTextError::Value {
            field: "static_ports".into(),
            value: ports[at].to_string(),
            allowed: PORTS.into(),
        }),
    }
}

fn constraints(fields: &Fields) -> Result<Vec<Constraint>, JobTextError> {
    fields
        .list("constraints", ALLOWED_CONSTRAINTS, |text| constraint(&parse_constraint(text)?).ok())
}

fn devices(fields: &Fields) -> Result<Vec<DeviceRequest>, JobTextError> {
    let count = fields.number("gpus", 0, 1, 64)?;
    let token = |text: &str| Token::new(text).ok();
    let rule = "a share of one GPU from 0.001 to 1, less than 1 only of one GPU";
    let milli = fields.get("gpu_share", u64::from(WHOLE_DEVICE), rule, |text| {
        let share = parse_milli(text).filter(|m| (1..=u64::from(WHOLE_DEVICE)).contains(m));
        share.filter(|m| count == 1 || (count > 1 && *m == u64::from(WHOLE_DEVICE)))
    })?;
    let rule = "a GPU model, together with gpus";
    let model = fields.get("gpu_model", None, rule, |text| {
        if count == 0 { None } else { token(text).map(Some) }
    })?;
    let Some(kind) = token("gpu").filter(|_| count > 0) else { return Ok(Vec::new()) };
    let models = model.into_iter().collect();
    Ok(vec![DeviceRequest { kind, models, count: count as u8, milli: milli as u16 }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_give_the_same_job() {
        let text = "cpu=500m,ram=1GiB,priority=120,count=7,gpus=1,gpu_share=0.5,gang=yes";
        let json = r#"{"cpu": "500m", "ram": "1GiB", "priority": 120, "count": 7,
                       "gpus": 1, "gpu_share": 0.5, "gang": true}"#;
        let listed = parse_job(text, Units::CoresAndBytes).expect("a job");
        assert_eq!(listed, parse_job(json, Units::CoresAndBytes).expect("a job"));
        assert_eq!(listed.task.limits, Resources::new(500, 1 << 30, 0, 0));
        assert_eq!((listed.count, listed.priority, listed.gang), (7, Priority(120), true));
        assert_eq!(listed.task.devices[0].milli, 500);
    }

    #[test]
    fn constraints_and_ports_are_lists_in_both_spellings() {
        let text = "cpu=1,static_ports=80;443,constraints=arch = arm64; prefer:20 flash exists";
        let json = r#"{"cpu": 1, "static_ports": [80, 443],
                       "constraints": ["arch = arm64", "prefer:20 flash exists"]}"#;
        let listed = parse_job(text, Units::CoresAndBytes).expect("a job");
        assert_eq!(listed, parse_job(json, Units::CoresAndBytes).expect("a job"));
        assert_eq!(listed.task.static_ports, [80, 443]);
        let preview: Vec<String> = listed.constraints.iter().map(ToString::to_string).collect();
        assert_eq!(preview[0], "arch = arm64");
        assert!(listed.constraints[0].is_hard() && !listed.constraints[1].is_hard());
        let usual = parse_job("cpu=1", Units::CoresAndBytes).expect("a job");
        assert_eq!((usual.priority, usual.count), (Priority(200), 1));
    }

    #[test]
    fn amounts_of_the_2011_trace_are_shares_of_its_largest_machine() {
        assert!(parse_job("cpu=0.0", Units::LargestMachine).is_err());
        let spec = parse_job("cpu=0.25,ram=0.5", Units::LargestMachine).expect("a job");
        assert_eq!(spec.task.limits, Resources::new(250_000, 500_000, 0, 0));
    }

    #[test]
    fn mistakes_name_field_value_and_what_is_allowed() {
        let check = |text: &str, expected: &str| {
            let error = parse_job(text, Units::CoresAndBytes).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(error.contains("allowed: "), "{error}");
        };
        check("cpu=500x", "job field cpu: value \"500x\" is not valid");
        check("ram=4GB", "job field ram: value \"4GB\" is not valid");
        check("mem=4GiB", "job field mem is unknown");
        check("cpu=1,cpu=2", "job field cpu stands there twice");
        check("count=0", "job field count: value \"0\" is not valid");
        check("priority=400", "job field priority: value \"400\" is not valid");
        check("gpus=2,gpu_share=0.5", "job field gpu_share: value \"0.5\" is not valid");
        check("cpu=0", "job field cpu: value \"0\" is not valid; allowed: more than 0");
        check("cpu=1,ram=0GiB", "job field ram: value \"0GiB\" is not valid");
        check("count=3", "the job asks for nothing");
        check("cpu=1,static_ports=80;80", "job field static_ports: value \"80\" is not valid");
        check("cpu=1,static_ports=0", "job field static_ports: value \"0\" is not valid");
        check("cpu=1,constraints=arch ~ x", "job field constraints: value \"arch ~ x\"");
        check("gpu_model=a100", "job field gpu_model: value \"a100\" is not valid");
        check("500m", "job \"500m\" is not valid");
        check("{", "job \"{\" is not valid");
    }
}
