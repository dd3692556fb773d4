//! What a job or machine must look like to be let in (B2-B10): every field has a range, and what
//! lies outside is refused with the field, the value and the range. Nothing is clamped.
//!
//! These rules need the spec alone, so a client can check before it sends, and the loader can
//! check what it reads. Whether the cell has the owner, the quota or the alloc set is decided by
//! `apply`. The ranges also carry the arithmetic: below them no sum the cell keeps can overflow.

mod digests;
mod program;
mod volumes;

pub use digests::digests_are_whole;
pub use program::runs_a_program;
pub use volumes::volumes_can_be_seen;

use crate::constraint::{AttributeValue, Constraint, MAX_PATTERN, Operator};
use crate::device::{DeviceRequest, GONE, MAX_DEVICES, WHOLE};
use crate::disruption::{DisruptionLimit, MAX_DISRUPTIONS};
use crate::health::{HealthCheck, Probe};
use crate::isolation::{HIDDEN, Network, Secret};
use crate::label::Labels;
use crate::machine::MachineSpec;
use crate::name::Token;
use crate::named::{NamedAmount, UNBOUNDED};
use crate::priority::MAX_PRIORITY;
use crate::reason::Refusal;
use crate::resource::{Dimension, MAX_QUANTITY, Resources};
use crate::retry::Retries;
use crate::spec::{JobKind, JobSpec, LogLimits, MAX_LIST, MAX_TASKS, PackageRef, TaskSpec};
use crate::time::Span;
use std::collections::{BTreeMap, BTreeSet};

/// Most that all tasks of a job may ask for together, and that one quota may grant, in one
/// dimension. Sixteen of these still add up without overflow, as do the sums of a user's jobs,
/// which admission holds below the quota.
pub const MAX_TOTAL: u64 = 1 << 60;
/// Bytes of command and environment of one task.
pub const MAX_TASK_TEXT: usize = 1 << 16;
/// Bytes of command and environment of a whole spec, overrides included.
pub const MAX_SPEC_TEXT: usize = 1 << 23;
/// Words of a command, variables of an environment.
pub const MAX_WORDS: usize = 1024;
/// A task is asked no more often: whoever asks uses the machine's time, not the task's.
pub const MIN_PROBE_INTERVAL: u64 = 100;
/// Bytes that one log file has at least.
pub const MIN_LOG_FILE: u64 = 4096;
/// Log files of one stream.
pub const MAX_LOG_FILES: u32 = 100;
/// Processes and threads of one task: what a kernel has numbers for.
pub const MAX_PROCESSES: u32 = 1 << 22;
/// Attributes of one machine.
pub const MAX_ATTRIBUTES: usize = 512;
/// Bytes of one label's value.
pub const MAX_LABEL: usize = 256;
/// Longest notice, back-off, lease or retention.
pub const MAX_SPAN: Span = Span::seconds(366 * 24 * 3600);

/// Bytes of memory below which what is to become the program does not live to become it.
pub const LEAST_RAM: u64 = 2 << 20;
/// The same in a container, where the runtime has to fit in while it makes it.
pub const LEAST_RAM_CONTAINED: u64 = 16 << 20;

type Checked = Result<(), Refusal>;

fn bad(field: impl Into<String>, value: impl ToString, allowed: impl Into<String>) -> Refusal {
    // A value can be as long as a request; an error is read by a person.
    let value = value.to_string().chars().take(200).collect();
    Refusal::BadField { field: field.into(), value, allowed: allowed.into() }
}

fn ensure(holds: bool, refusal: impl FnOnce() -> Refusal) -> Checked {
    if holds { Ok(()) } else { Err(refusal()) }
}

fn at_most(field: &str, value: u64, most: u64) -> Checked {
    ensure(value <= most, || bad(field, value, format!("at most {most}")))
}

fn list_length(field: &str, length: usize, most: usize) -> Checked {
    ensure(length <= most, || bad(field, format!("{length} entries"), format!("at most {most}")))
}

/// # Errors
/// [`Refusal::BadField`] for the first field that is out of range.
pub fn check_job(spec: &JobSpec) -> Checked {
    let priority = spec.priority.0;
    ensure((1..=MAX_TASKS).contains(&spec.count), || {
        bad("count", spec.count, format!("1 to {MAX_TASKS}"))
    })?;
    at_most("priority", u64::from(priority), u64::from(MAX_PRIORITY))?;
    labels("labels", &spec.labels)?;
    task(&spec.task)?;
    overrides(spec)?;
    constraints(&spec.constraints)?;
    spread(spec)?;
    restart(spec)?;
    retained(spec)?;
    after(spec)?;
    if let Some(lease) = spec.at_most_one {
        ensure(lease.0 > 0, || bad("at_most_one", 0, "1 ms or more"))?;
        span("at_most_one", lease)?;
    }
    if let Some(most) = spec.preemption_notice_max {
        span("preemption_notice_max", most)?;
    }
    spec.disruptions.map_or(Ok(()), disruptions)?;
    match spec.kind {
        JobKind::AllocSet => alloc_set(spec)?,
        JobKind::Tasks if spec.alloc_set.is_some() => inside_alloc_set(spec)?,
        JobKind::Tasks => {}
    }
    total(spec)
}

/// A rule for what is asked anew, apart from [`check_job`]: jobs from before it stay what they
/// are, and their bound counts for nothing.
///
/// # Errors
/// [`Refusal::BadField`] for a job that may not shorten the notice of others.
pub fn may_bound_notice(spec: &JobSpec) -> Checked {
    match spec.preemption_notice_max.filter(|_| !spec.priority.is_prod()) {
        None => Ok(()),
        Some(most) => {
            let allowed = "none below the production band (priority 200 or more)";
            Err(bad("preemption_notice_max", most.0, allowed))
        }
    }
}

/// A rule for what is asked anew, apart from [`check_job`]: a kind is any token to logs and rows
/// from before it.
///
/// # Errors
/// [`Refusal::BadField`] for a job that asks for the gaps that devices left.
pub fn asks_for_no_gaps(spec: &JobSpec) -> Checked {
    ensure(!spec.task.devices.iter().any(|request| request.kind.as_str() == GONE), || {
        let allowed = "any other kind; this one is of devices that are not there any more";
        bad("task.devices.kind", GONE, allowed)
    })
}

/// None at all is what `max_down` of 0 says, and has no next time to wait for.
fn disruptions(limit: DisruptionLimit) -> Checked {
    ensure((1..=MAX_DISRUPTIONS).contains(&limit.most), || {
        bad("disruptions.most", limit.most, format!("1 to {MAX_DISRUPTIONS}"))
    })?;
    ensure(limit.within.0 > 0, || bad("disruptions.within", 0, "1 ms or more"))?;
    span("disruptions.within", limit.within)
}

/// A rule for those who write jobs, not for the log: the cell itself takes what no machine can
/// start, as it takes a program that does not exist.
///
/// # Errors
/// [`Refusal::BadField`] for a task that cannot even begin with the memory it asks for.
pub fn can_begin(spec: &JobSpec) -> Checked {
    // An alloc starts nothing, and a task that may use more than it asks for begins with that.
    if spec.kind == JobKind::AllocSet || spec.task.isolation.slack_ram {
        return Ok(());
    }
    let enough = |field: String, ram: u64| {
        ensure(ram >= LEAST_RAM, || {
            let least = |bytes: u64| format!("{bytes} ({} MiB) or more", bytes >> 20);
            let (plain, contained) = (least(LEAST_RAM), least(LEAST_RAM_CONTAINED));
            bad(field, ram, format!("{plain}, and in a container {contained}"))
        })
    };
    enough("task.limits.ram".to_owned(), spec.task.limits.ram)?;
    let mut own = spec.overrides.iter().filter_map(|(index, own)| Some((index, own.limits?)));
    own.try_for_each(|(index, own)| enough(format!("overrides.{index}.limits.ram"), own.ram))
}

fn after(spec: &JobSpec) -> Checked {
    list_length("after", spec.after.len(), MAX_LIST)?;
    let mut seen = BTreeSet::new();
    match spec.after.iter().find(|after| !seen.insert(&after.job)) {
        Some(twice) => Err(bad("after.job", &twice.job, "each job once")),
        None => Ok(()),
    }
}

/// # Errors
/// [`Refusal::BadField`] for the first field that is out of range.
pub fn check_machine(spec: &MachineSpec) -> Checked {
    quantities("capacity", spec.capacity)?;
    list_length("attributes", spec.attributes.len(), MAX_ATTRIBUTES)?;
    for (name, value) in &spec.attributes {
        if let AttributeValue::Text(text) = value {
            at_most(&format!("attributes.{name} (bytes)"), text.len() as u64, MAX_PATTERN as u64)?;
        }
    }
    labels("labels", &spec.labels)?;
    list_length("devices", spec.devices.len(), MAX_DEVICES)?;
    named("named", &spec.named, true)?;
    if let Some(amount) = spec.named.iter().find(|amount| amount.name.namespace.is_some()) {
        let allowed = "names without a namespace; those with one are ephemeral";
        return Err(bad("named.name", &amount.name, allowed));
    }
    if let Some(address) = spec.address.filter(|a| a.is_unspecified() || a.is_multicast()) {
        return Err(bad("address", address, "an address of one machine"));
    }
    let (first, last) = (spec.ports.first, spec.ports.last);
    ensure(first > 0 && first <= last, || {
        bad("ports", format!("{first}-{last}"), "1 to 65535, the first not above the last")
    })
}

/// # Errors
/// [`Refusal::BadField`] for the first dimension beyond [`MAX_QUANTITY`].
pub fn quantities(field: &str, amount: Resources) -> Checked {
    bounded(field, amount, MAX_QUANTITY)
}

/// # Errors
/// [`Refusal::BadField`] for the first dimension beyond `most`.
pub fn bounded(field: &str, amount: Resources, most: u64) -> Checked {
    Dimension::ALL.into_iter().try_for_each(|dimension| {
        at_most(&format!("{field}.{dimension}"), amount.get(dimension), most)
    })
}

fn span(field: &str, value: Span) -> Checked {
    ensure(value <= MAX_SPAN, || {
        bad(field, format!("{} ms", value.0), format!("at most {} ms", MAX_SPAN.0))
    })
}

fn labels(field: &str, labels: &Labels) -> Checked {
    list_length(field, labels.len(), MAX_LIST)?;
    labels.iter().try_for_each(|(key, value)| {
        at_most(&format!("{field}.{key} (bytes)"), value.len() as u64, MAX_LABEL as u64)
    })
}

fn task(task: &TaskSpec) -> Checked {
    quantities("task.limits", task.limits)?;
    list_length("task.static_ports", task.static_ports.len(), MAX_LIST)?;
    let mut ports = BTreeSet::new();
    for port in &task.static_ports {
        ensure(*port > 0, || bad("task.static_ports", port, "1 to 65535"))?;
        ensure(ports.insert(port), || bad("task.static_ports", port, "each port once"))?;
    }
    named("task.named", &task.named, false)?;
    list_length("task.devices", task.devices.len(), MAX_LIST)?;
    task.devices.iter().try_for_each(device)?;
    packages(&task.packages)?;
    command("task.command", &task.command)?;
    environment("task.env", &task.env)?;
    task_text("task", &task.command, &task.env)?;
    files(&task.files)?;
    isolation(task)?;
    secrets(&task.secrets)?;
    span("task.notice", task.notice)?;
    if let Some(length) = task.max_run {
        ensure(length.0 > 0, || bad("task.max_run", 0, "1 ms or more"))?;
        span("task.max_run", length)?;
    }
    if let Some(limits) = &task.logs {
        logs(limits)?;
    }
    task.health.as_ref().map_or(Ok(()), |check| health(check, task))
}

/// Relative, without a way out of the task's folder.
fn files(files: &BTreeMap<String, String>) -> Checked {
    list_length("task.files", files.len(), MAX_LIST)?;
    let bytes: usize = files.iter().map(|(path, text)| path.len() + text.len()).sum();
    at_most("task.files (bytes)", bytes as u64, MAX_TASK_TEXT as u64)?;
    files.keys().try_for_each(|path| {
        let part = |part: &str| !part.is_empty() && part != "." && part != "..";
        ensure(path.split('/').all(part) && !path.contains('\0'), || {
            bad("task.files (path)", format!("{path:?}"), "relative, as conf/app.toml, without ..")
        })
    })
}

fn isolation(task: &TaskSpec) -> Checked {
    let asked = &task.isolation;
    if let Some(root) = &asked.root {
        let names = || task.packages.iter().map(|package| package.name.as_str());
        ensure(names().any(|name| name == root.as_str()), || {
            let list: Vec<&str> = names().collect();
            bad("task.isolation.root", root, format!("one of task.packages: {}", list.join(", ")))
        })?;
    }
    ensure((1..=MAX_PROCESSES).contains(&asked.processes), || {
        bad("task.isolation.processes", asked.processes, format!("1 to {MAX_PROCESSES}"))
    })?;
    let cores = u64::from(asked.whole_cores);
    ensure(cores * 1000 <= task.limits.cpu, || {
        bad("task.isolation.whole_cores", cores, "no more than task.limits.cpu has")
    })?;
    let ports = task.static_ports.len() + usize::from(task.ports);
    ensure(asked.network == Network::Host || ports == 0, || {
        bad("task.isolation.network", "own", "host for a task that asks for ports")
    })?;
    list_length("task.isolation.volumes", asked.volumes.len(), MAX_LIST)?;
    asked.volumes.iter().enumerate().try_for_each(|(position, one)| volumes::volume(position, one))
}

/// Names are those of files. The message never has a value in it.
fn secrets(secrets: &BTreeMap<Token, Secret>) -> Checked {
    list_length("task.secrets", secrets.len(), MAX_LIST)?;
    let bytes: usize = secrets.values().map(|value| value.0.len()).sum();
    at_most("task.secrets (bytes)", bytes as u64, MAX_TASK_TEXT as u64)?;
    secrets.iter().try_for_each(|(name, value)| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = name.as_str().bytes().all(plain) && !name.as_str().starts_with('.');
        ensure(fits, || {
            bad("task.secrets (name)", name, "letters, digits, `-`, `_` and `.`, no dot first")
        })?;
        ensure(value.0 != HIDDEN, || {
            bad(format!("task.secrets.{name}"), HIDDEN, "the value itself, which is never shown")
        })
    })
}

fn logs(limits: &LogLimits) -> Checked {
    let LogLimits { file_bytes, files, rate } = *limits;
    ensure((MIN_LOG_FILE..=MAX_QUANTITY).contains(&file_bytes), || {
        bad("task.logs.file_bytes", file_bytes, format!("{MIN_LOG_FILE} to {MAX_QUANTITY}"))
    })?;
    ensure((1..=MAX_LOG_FILES).contains(&files), || {
        bad("task.logs.files", files, format!("1 to {MAX_LOG_FILES}"))
    })?;
    ensure((1..=MAX_QUANTITY).contains(&rate), || {
        bad("task.logs.rate", rate, format!("1 to {MAX_QUANTITY}"))
    })
}

fn health(check: &HealthCheck, task: &TaskSpec) -> Checked {
    let shortest =
        [("interval", check.interval, MIN_PROBE_INTERVAL), ("timeout", check.timeout, 1)];
    for (field, value, least) in shortest {
        let field = format!("task.health.{field}");
        ensure(value.0 >= least, || bad(&field, value.0, format!("{least} ms or more")))?;
        span(&field, value)?;
    }
    span("task.health.start_period", check.start_period)?;
    ensure(check.failures > 0, || bad("task.health.failures", 0, "1 or more"))?;
    let given = task.static_ports.len() + usize::from(task.ports);
    match &check.probe {
        Probe::Command(words) => {
            ensure(!words.is_empty(), || bad("task.health.probe.command", "[]", "a program"))?;
            command("task.health.probe.command", words)?;
            task_text("task.health.probe", words, &BTreeMap::new())
        }
        Probe::Http { port, path } => {
            let clean = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
            ensure(clean && path.len() <= MAX_PATTERN, || {
                let allowed = format!("a path from / on, ASCII, at most {MAX_PATTERN} bytes");
                bad("task.health.probe.http.path", format!("{path:?}"), allowed)
            })?;
            probed_port("task.health.probe.http.port", *port, given)
        }
        Probe::Tcp { port } => probed_port("task.health.probe.tcp.port", *port, given),
    }
}

fn probed_port(field: &str, port: u8, given: usize) -> Checked {
    ensure(usize::from(port) < given, || {
        let allowed = match given {
            0 => "none: the task asks for no port".to_owned(),
            _ => format!("0 to {}, counted among the task's ports", given - 1),
        };
        bad(field, port, allowed)
    })
}

/// Sorted by name, each name once; unbounded amounts are for capacities.
fn named(field: &str, list: &[NamedAmount], capacity: bool) -> Checked {
    list_length(field, list.len(), MAX_LIST)?;
    if let Some(pair) = list.windows(2).find(|pair| pair[0].name >= pair[1].name) {
        return Err(bad(field, &pair[1].name, "names in order, each once"));
    }
    list.iter().try_for_each(|amount| {
        let field = format!("{field}.{}", amount.name);
        match capacity && amount.amount == UNBOUNDED {
            true => Ok(()),
            false => at_most(&field, amount.amount, MAX_QUANTITY),
        }
    })
}

fn device(request: &DeviceRequest) -> Checked {
    let (count, milli) = (request.count, request.milli);
    list_length("task.devices.models", request.models.len(), MAX_LIST)?;
    let distinct: BTreeSet<_> = request.models.iter().collect();
    ensure(distinct.len() == request.models.len(), || {
        bad("task.devices.models", format!("{:?}", request.models), "each model once")
    })?;
    ensure((1..=MAX_DEVICES).contains(&usize::from(count)), || {
        bad("task.devices.count", count, format!("1 to {MAX_DEVICES}"))
    })?;
    ensure((1..=WHOLE).contains(&milli), || {
        bad("task.devices.milli", milli, format!("1 to {WHOLE}"))
    })?;
    ensure(count == 1 || milli == WHOLE, || {
        bad("task.devices.milli", milli, format!("{WHOLE} when more than one device is asked for"))
    })
}

fn packages(packages: &[PackageRef]) -> Checked {
    list_length("task.packages", packages.len(), MAX_LIST)?;
    let mut names = BTreeSet::new();
    packages.iter().try_for_each(|package| {
        ensure(names.insert(&package.name), || {
            bad("task.packages.name", &package.name, "each package once")
        })?;
        at_most(&format!("task.packages.{}.bytes", package.name), package.bytes, MAX_QUANTITY)
    })
}

fn command(field: &str, words: &[String]) -> Checked {
    list_length(field, words.len(), MAX_WORDS)?;
    let broken = words.iter().find(|word| word.contains('\0'));
    broken.map_or(Ok(()), |word| Err(bad(field, format!("{word:?}"), "no zero bytes")))
}

fn environment(field: &str, env: &BTreeMap<String, String>) -> Checked {
    list_length(field, env.len(), MAX_WORDS)?;
    env.iter().try_for_each(|(key, value)| {
        ensure(!key.is_empty() && !key.contains(['=', '\0']), || {
            bad(
                format!("{field} (name)"),
                format!("{key:?}"),
                "not empty, without = and zero bytes",
            )
        })?;
        ensure(!value.contains('\0'), || {
            bad(format!("{field}.{key}"), format!("{value:?}"), "no zero bytes")
        })
    })
}

fn text_bytes(command: &[String], env: &BTreeMap<String, String>) -> usize {
    let words: usize = command.iter().map(String::len).sum();
    words + env.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
}

fn task_text(field: &str, command: &[String], env: &BTreeMap<String, String>) -> Checked {
    let bytes = text_bytes(command, env);
    at_most(&format!("{field} (bytes of command and env)"), bytes as u64, MAX_TASK_TEXT as u64)
}

fn overrides(spec: &JobSpec) -> Checked {
    let mut text = text_bytes(&spec.task.command, &spec.task.env);
    for (index, change) in &spec.overrides {
        let field = format!("overrides.{index}");
        ensure(*index < spec.count, || {
            bad("overrides (task index)", index, format!("0 to {}", spec.count - 1))
        })?;
        quantities(&format!("{field}.limits"), change.limits.unwrap_or_default())?;
        let words = change.command.as_deref().unwrap_or_default();
        command(&format!("{field}.command"), words)?;
        let none = BTreeMap::new();
        let env = change.env.as_ref().unwrap_or(&none);
        environment(&format!("{field}.env"), env)?;
        task_text(&field, words, env)?;
        text += text_bytes(words, env);
    }
    at_most("overrides (bytes of command and env)", text as u64, MAX_SPEC_TEXT as u64)
}

fn constraints(list: &[Constraint]) -> Checked {
    list_length("constraints", list.len(), MAX_LIST)?;
    list.iter().enumerate().try_for_each(|(position, constraint)| {
        let field = format!("constraints.{position}");
        match &constraint.operator {
            Operator::In(values) | Operator::NotIn(values) => {
                list_length(&field, values.len(), MAX_LIST)?;
                values.iter().try_for_each(|value| operand(&field, value))?;
            }
            Operator::Equal(value) | Operator::NotEqual(value) => operand(&field, value)?,
            Operator::VersionAtLeast(version) | Operator::VersionBelow(version) => {
                at_most(&format!("{field} (bytes)"), version.len() as u64, MAX_PATTERN as u64)?;
            }
            _ => {}
        }
        constraint.check().map_err(|why| bad(field, constraint, why))
    })
}

fn operand(field: &str, value: &AttributeValue) -> Checked {
    match value {
        AttributeValue::Text(text) => {
            at_most(&format!("{field} (bytes)"), text.len() as u64, MAX_PATTERN as u64)
        }
        AttributeValue::Integer(_) => Ok(()),
    }
}

fn spread(spec: &JobSpec) -> Checked {
    let mut domains = BTreeSet::new();
    spec.spread.iter().try_for_each(|spread| {
        ensure(domains.insert(spread.domain), || {
            bad("spread.domain", format!("{:?}", spread.domain), "each domain once")
        })?;
        ensure(spread.limit > 0, || bad("spread.limit", spread.limit, "1 or more"))
    })
}

fn restart(spec: &JobSpec) -> Checked {
    let exits = &spec.restart.retry.exit;
    list_length("restart.retry.exit", exits.len(), MAX_LIST)?;
    if let Some(code) = exits.keys().find(|code| !(1..=255).contains(*code)) {
        return Err(bad("restart.retry.exit (code)", code, "1 to 255; 0 is success"));
    }
    let (first, most) = (spec.restart.backoff, spec.restart.backoff_max);
    span("restart.backoff_max", most)?;
    ensure(first <= most, || {
        let allowed = format!("at most backoff_max, {} ms", most.0);
        bad("restart.backoff", format!("{} ms", first.0), allowed)
    })
}

/// What outlives a task must have been its own.
fn retained(spec: &JobSpec) -> Checked {
    let Some(retain) = &spec.retain_disk else { return Ok(()) };
    if let Some(saver) = &retain.saver {
        let field = "retain_disk.saver";
        ensure(spec.kind == JobKind::AllocSet, || {
            bad(field, saver, "none: only what an alloc left has a saver")
        })?;
        ensure(*saver != spec.name, || bad(field, saver, "a job that runs inside this alloc set"))?;
    }
    span("retain_disk.keep", retain.keep)?;
    let own = spec.overrides.keys().map(|index| spec.limits_of(*index).disk);
    let least = own.fold(spec.task.limits.disk, u64::min);
    at_most("retain_disk.bytes", retain.bytes, least)
}

/// An alloc holds resources and runs nothing.
fn alloc_set(spec: &JobSpec) -> Checked {
    let nothing = "none: an alloc runs no program";
    if let Some(outer) = &spec.alloc_set {
        return Err(bad("alloc_set", outer, "none: alloc sets do not nest"));
    }
    ensure(spec.restart.retry == Retries::default(), || bad("restart.retry", "given", nothing))?;
    let ports = spec.task.static_ports.len() + usize::from(spec.task.ports);
    ensure(ports == 0, || {
        bad("task.ports", ports, "none: the tasks inside get ports from the machine")
    })?;
    let program =
        |change: &crate::spec::TaskOverride| change.command.is_some() || change.env.is_some();
    let overridden = spec.overrides.iter().find(|(_, change)| program(change));
    let words = spec.task.command.join(" ");
    ensure(spec.task.health.is_none(), || bad("task.health", "a check", nothing))?;
    ensure(spec.task.files.is_empty(), || bad("task.files", spec.task.files.len(), nothing))?;
    ensure(spec.task.secrets.is_empty(), || bad("task.secrets", spec.task.secrets.len(), nothing))?;
    ensure(spec.task.command.is_empty(), || bad("task.command", words, nothing))?;
    ensure(spec.task.env.is_empty(), || bad("task.env", spec.task.env.len(), nothing))?;
    ensure(spec.task.packages.is_empty(), || {
        bad("task.packages", spec.task.packages.len(), nothing)
    })?;
    overridden.map_or(Ok(()), |(index, _)| {
        Err(bad(format!("overrides.{index}"), "command or env", nothing))
    })
}

/// The alloc has the devices, the licences, the place and the disk; its tasks share them.
fn inside_alloc_set(spec: &JobSpec) -> Checked {
    let owned = "none inside an alloc set: ask for it in the alloc set";
    ensure(spec.task.devices.is_empty(), || bad("task.devices", spec.task.devices.len(), owned))?;
    ensure(spec.task.named.is_empty(), || bad("task.named", spec.task.named.len(), owned))?;
    ensure(spec.spread.is_empty(), || bad("spread", spec.spread.len(), owned))?;
    spec.retain_disk.as_ref().map_or(Ok(()), |retain| Err(bad("retain_disk", retain.bytes, owned)))
}

/// Exact sum of what all tasks ask for, refused beyond [`MAX_TOTAL`].
fn total(spec: &JobSpec) -> Checked {
    let own: Vec<u32> =
        spec.overrides.iter().filter(|(_, o)| o.limits.is_some()).map(|(i, _)| *i).collect();
    let plain = u128::from(spec.count) - own.len() as u128;
    Dimension::ALL.into_iter().try_for_each(|dimension| {
        let base = u128::from(spec.task.limits.get(dimension)) * plain;
        let overridden = own.iter().map(|i| u128::from(spec.limits_of(*i).get(dimension)));
        let sum = overridden.fold(base, |sum, part| sum + part);
        ensure(sum <= u128::from(MAX_TOTAL), || {
            bad(
                format!("total of all tasks' limits.{dimension}"),
                sum,
                format!("at most {MAX_TOTAL}"),
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::after::After;
    use crate::apply::fixture::{all, job, key, machine};
    use crate::constraint::Strength;
    use crate::device::Device;
    use crate::isolation::Volume;
    use crate::machine::PortRange;
    use crate::name::Token;
    use crate::named::ResourceName;
    use crate::priority::Priority;
    use crate::spec::{RetainDisk, SpreadLimit, TaskOverride};

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    /// `want`: the field and a part of what is allowed; empty when the spec is fine.
    fn judge(got: Checked, want: (&str, &str)) {
        match got {
            Ok(()) => assert_eq!(want, ("", "")),
            Err(Refusal::BadField { field, allowed, .. }) => {
                assert_eq!(field, want.0);
                assert!(!want.1.is_empty() && allowed.contains(want.1), "{field}: {allowed}");
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn check(change: impl FnOnce(&mut JobSpec), field: &str, allowed: &str) {
        let mut spec = job("jfoo", 3, 200);
        change(&mut spec);
        judge(check_job(&spec), (field, allowed));
    }

    fn check_alloc_set(change: impl FnOnce(&mut JobSpec), field: &str, allowed: &str) {
        check(
            |spec| {
                spec.kind = JobKind::AllocSet;
                change(spec);
            },
            field,
            allowed,
        );
    }

    fn check_inside(change: impl FnOnce(&mut JobSpec), field: &str) {
        let inside = |spec: &mut JobSpec| {
            spec.alloc_set = Some(key("ubar/set"));
            change(spec);
        };
        check(inside, field, if field.is_empty() { "" } else { "none inside an alloc set" });
    }

    fn check_a_machine(change: impl FnOnce(&mut MachineSpec), field: &str, allowed: &str) {
        let mut spec = machine("m1", 100);
        change(&mut spec);
        judge(check_machine(&spec), (field, allowed));
    }

    fn gpu(count: u8, milli: u16) -> DeviceRequest {
        DeviceRequest { kind: token("gpu"), models: Vec::new(), count, milli }
    }

    fn amount(name: &str, amount: u64) -> NamedAmount {
        NamedAmount { name: ResourceName { namespace: None, name: token(name) }, amount }
    }

    fn limits(amount: u64) -> TaskOverride {
        TaskOverride { limits: Some(all(amount)), ..TaskOverride::default() }
    }

    #[test]
    fn counts_priorities_and_quantities() {
        check(|_| (), "", "");
        check(|s| s.count = 0, "count", "1 to 200000");
        check(|s| s.count = MAX_TASKS + 1, "count", "1 to 200000");
        check(|s| s.priority = Priority(400), "priority", "at most 399");
        let long = |s: &mut JobSpec| s.preemption_notice_max = Some(Span(u64::MAX));
        check(long, "preemption_notice_max", "at most");
        check(|s| s.preemption_notice_max = Some(Span::ZERO), "", "");
        let bound = |priority, field, allowed| {
            let mut spec = job("jfoo", 1, priority);
            spec.preemption_notice_max = Some(Span::ZERO);
            judge(may_bound_notice(&spec), (field, allowed));
        };
        bound(199, "preemption_notice_max", "priority 200 or more");
        bound(200, "", "");
        bound(300, "", "");
        check(|s| s.task.limits.ram = MAX_QUANTITY, "", "");
        check(|s| s.task.limits.ram = MAX_QUANTITY + 1, "task.limits.ram", "at most");
        check(
            |s| (s.count, s.task.limits.cpu) = (MAX_TASKS, MAX_QUANTITY),
            "total of all tasks' limits.cpu",
            "at most",
        );
        check(|s| drop(s.overrides.insert(2, limits(5))), "", "");
        check(|s| drop(s.overrides.insert(3, limits(5))), "overrides (task index)", "0 to 2");
        let much = |s: &mut JobSpec| drop(s.overrides.insert(0, limits(MAX_QUANTITY + 1)));
        check(much, "overrides.0.limits.cpu", "at most");
    }

    #[test]
    fn a_task_has_the_memory_to_begin_with() {
        let check = |change: fn(&mut JobSpec), field: &str| {
            let mut spec = job("jfoo", 3, 200);
            spec.task.limits.ram = LEAST_RAM;
            change(&mut spec);
            let allowed = "2097152 (2 MiB) or more, and in a container 16777216 (16 MiB) or more";
            let allowed = if field.is_empty() { "" } else { allowed };
            judge(can_begin(&spec), (field, allowed));
        };
        check(|_| (), "");
        check(|s| s.task.limits.ram = 1024, "task.limits.ram");
        check(|s| drop(s.overrides.insert(1, limits(5))), "overrides.1.limits.ram");
        check(|s| (s.task.limits.ram, s.task.isolation.slack_ram) = (0, true), "");
        check(|s| (s.task.limits.ram, s.kind) = (0, JobKind::AllocSet), "");
    }

    #[test]
    fn jobs_to_wait_for() {
        let on = |job: &str| After { job: key(job), require_success: true };
        let list = |jobs: &[&str]| -> Vec<After> { jobs.iter().map(|job| on(job)).collect() };
        check(|s| s.after = list(&["ubar/a", "ubar/b", "uzed/a"]), "", "");
        check(|s| s.after = list(&["ubar/a", "ubar/b", "ubar/a"]), "after.job", "each job once");
        let many = (0..=MAX_LIST).map(|i| on(&format!("ubar/j{i}"))).collect();
        check(|s| s.after = many, "after", "at most 64");
    }

    #[test]
    fn ports_devices_and_named_resources() {
        check(|s| s.task.static_ports = vec![80, 443], "", "");
        check(|s| s.task.static_ports = vec![0], "task.static_ports", "1 to 65535");
        check(|s| s.task.static_ports = vec![80, 80], "task.static_ports", "each port once");
        let many = |s: &mut JobSpec| s.task.static_ports = (1..=65).collect();
        check(many, "task.static_ports", "at most 64");
        check(|s| s.task.devices = vec![gpu(1, 500), gpu(2, 1000)], "", "");
        check(|s| s.task.devices = vec![gpu(0, 500)], "task.devices.count", "1 to 64");
        check(|s| s.task.devices = vec![gpu(1, 0)], "task.devices.milli", "1 to 1000");
        check(|s| s.task.devices = vec![gpu(1, 1001)], "task.devices.milli", "1 to 1000");
        check(|s| s.task.devices = vec![gpu(2, 500)], "task.devices.milli", "1000 when more");
        let mut spec = job("jfoo", 3, 200);
        spec.task.devices = vec![gpu(1, 500), gpu(1, 500)];
        judge(asks_for_no_gaps(&spec), ("", ""));
        spec.task.devices[1].kind = token(GONE);
        judge(asks_for_no_gaps(&spec), ("task.devices.kind", "any other kind"));
        judge(check_job(&spec), ("", ""));
        check(|s| s.task.named = vec![amount("a", 1), amount("b", 1)], "", "");
        let unsorted = |s: &mut JobSpec| s.task.named = vec![amount("b", 1), amount("a", 1)];
        check(unsorted, "task.named", "names in order");
        check(|s| s.task.named = vec![amount("a", UNBOUNDED)], "task.named.a", "at most");
    }

    #[test]
    fn programs_and_texts() {
        let variable = |name: &str, value: &str| BTreeMap::from([(name.into(), value.into())]);
        check(|s| s.task.env = variable("A", "b=c"), "", "");
        check(|s| s.task.env = variable("A=", "b"), "task.env (name)", "without =");
        check(|s| s.task.env = variable("", "b"), "task.env (name)", "not empty");
        check(|s| s.task.env = variable("A", "\0"), "task.env.A", "no zero bytes");
        check(|s| s.task.command = vec!["a\0".into()], "task.command", "no zero bytes");
        check(
            |s| s.task.command = vec!["x".repeat(MAX_TASK_TEXT + 1)],
            "task (bytes of command and env)",
            "at most 65536",
        );
        let package = |name: &str| PackageRef { name: token(name), digest: token("d"), bytes: 1 };
        check(|s| s.task.packages = vec![package("a"), package("b")], "", "");
        check(
            |s| s.task.packages = vec![package("a"), package("a")],
            "task.packages.name",
            "each package once",
        );
        check(|s| s.task.notice = Span(u64::MAX), "task.notice", "at most");
        check(
            |s| s.labels = BTreeMap::from([(token("a"), "x".repeat(300))]),
            "labels.a (bytes)",
            "at most 256",
        );
    }

    #[test]
    fn health_files_logs_and_lengths() {
        let with = |probe: Probe, ports: u8| {
            move |s: &mut JobSpec| {
                s.task.ports = ports;
                s.task.health = Some(HealthCheck {
                    probe,
                    interval: Span(100),
                    timeout: Span(1),
                    start_period: Span::ZERO,
                    failures: 1,
                });
            }
        };
        let http = |port, path: &str| Probe::Http { port, path: path.into() };
        check(with(http(0, "/ok?deep=1"), 1), "", "");
        check(with(http(0, "ok"), 1), "task.health.probe.http.path", "from / on");
        check(with(http(0, "/a b"), 1), "task.health.probe.http.path", "ASCII");
        check(with(http(1, "/"), 1), "task.health.probe.http.port", "0 to 0");
        check(with(Probe::Tcp { port: 0 }, 0), "task.health.probe.tcp.port", "no port");
        check(with(Probe::Command(vec![]), 0), "task.health.probe.command", "a program");
        check(with(Probe::Command(vec!["true".into()]), 0), "", "");
        let never = |s: &mut JobSpec| {
            with(Probe::Tcp { port: 0 }, 1)(s);
            s.task.health.as_mut().unwrap().interval = Span(99);
        };
        check(never, "task.health.interval", "100 ms or more");
        check(|s| s.task.max_run = Some(Span::ZERO), "task.max_run", "1 ms or more");
        let file = |path: &str| BTreeMap::from([(path.into(), "text".into())]);
        check(|s| s.task.files = file("conf/app.toml"), "", "");
        for path in ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/./b", "a\0"] {
            check(|s| s.task.files = file(path), "task.files (path)", "relative");
        }
        let logs = |file_bytes, files, rate| Some(LogLimits { file_bytes, files, rate });
        check(|s| s.task.logs = logs(4096, 1, 1), "", "");
        check(|s| s.task.logs = logs(1, 1, 1), "task.logs.file_bytes", "4096 to");
        check(|s| s.task.logs = logs(4096, 0, 1), "task.logs.files", "1 to 100");
        check(|s| s.task.logs = logs(4096, 1, 0), "task.logs.rate", "1 to");
    }

    #[test]
    fn isolation_and_secrets() {
        let root = |s: &mut JobSpec| s.task.isolation.root = Some(token("alpine"));
        check(root, "task.isolation.root", "one of task.packages");
        check(|s| s.task.isolation.processes = 0, "task.isolation.processes", "1 to");
        check(|s| s.task.isolation.whole_cores = 9, "task.isolation.whole_cores", "no more");
        let own = |ports| {
            move |s: &mut JobSpec| {
                s.task.isolation.network = Network::Own;
                s.task.ports = ports;
            }
        };
        check(own(0), "", "");
        check(own(1), "task.isolation.network", "host");
        let volume =
            |source: &str| Volume { source: source.into(), target: "/data".into(), writable: true };
        check(|s| s.task.isolation.volumes = vec![volume("/srv/data")], "", "");
        for path in ["srv", "/", "/srv/../etc", "/srv//x"] {
            let field = "task.isolation.volumes.1.source";
            let both = || vec![volume("/srv"), volume(path)];
            check(|s| s.task.isolation.volumes = both(), field, "absolute");
        }
        let mut spec = job("jfoo", 3, 200);
        spec.task.isolation.volumes = vec![volume("/srv"), volume("/opt")];
        let field = "task.isolation.volumes.1.target";
        judge(volumes_can_be_seen(&spec), (field, "each target once"));
        spec.task.isolation.volumes[1].target = "/dev/shm".into();
        judge(volumes_can_be_seen(&spec), (field, "outside /proc, /sys and /dev"));
        spec.task.isolation.volumes[1].target = "/models".into();
        judge(volumes_can_be_seen(&spec), ("", ""));
        let secret =
            |name: &str, value: &str| BTreeMap::from([(token(name), Secret(value.to_owned()))]);
        check(|s| s.task.secrets = secret("key.pem", "x"), "", "");
        check(|s| s.task.secrets = secret("../x", "y"), "task.secrets (name)", "letters");
        check(|s| s.task.secrets = secret("key", HIDDEN), "task.secrets.key", "the value itself");
    }

    #[test]
    fn policies() {
        let matches = |pattern: &str| Constraint {
            attribute: token("os"),
            operator: Operator::Matches(pattern.into()),
            strength: Strength::Hard,
        };
        check(|s| s.constraints = vec![matches("a.*")], "", "");
        check(|s| s.constraints = vec![matches("a"), matches("(")], "constraints.1", "not valid");
        let spread = |limit| SpreadLimit { domain: crate::spec::Domain::Rack, limit };
        check(|s| s.spread = vec![spread(2)], "", "");
        check(|s| s.spread = vec![spread(0)], "spread.limit", "1 or more");
        check(|s| s.spread = vec![spread(1), spread(2)], "spread.domain", "each domain once");
        let rate = |most, within| Some(DisruptionLimit { most, within });
        check(|s| s.disruptions = rate(1, Span(1)), "", "");
        check(|s| s.disruptions = rate(MAX_DISRUPTIONS, MAX_SPAN), "", "");
        check(|s| s.disruptions = rate(0, Span(1)), "disruptions.most", "1 to 1000");
        check(|s| s.disruptions = rate(1001, Span(1)), "disruptions.most", "1 to 1000");
        check(|s| s.disruptions = rate(1, Span::ZERO), "disruptions.within", "1 ms or more");
        check(|s| s.disruptions = rate(1, Span(u64::MAX)), "disruptions.within", "at most");
        check(|s| s.restart.backoff = Span::seconds(61), "restart.backoff", "60000 ms");
        check(|s| s.restart.backoff_max = Span(u64::MAX), "restart.backoff_max", "at most");
        check(|s| s.at_most_one = Some(Span(0)), "at_most_one", "1 ms or more");
        let retain = |bytes| Some(RetainDisk { bytes, keep: Span::seconds(1), saver: None });
        check(|s| s.retain_disk = retain(10), "", "");
        check(|s| s.retain_disk = retain(11), "retain_disk.bytes", "at most 10");
        let saved = |s: &mut JobSpec| {
            let saver = Some(s.name.clone());
            s.retain_disk = retain(10).map(|retain| RetainDisk { saver, ..retain });
        };
        check(saved, "retain_disk.saver", "only what an alloc left has a saver");
        let own = |s: &mut JobSpec| {
            s.kind = JobKind::AllocSet;
            s.task.command = Vec::new();
            saved(s);
        };
        check(own, "retain_disk.saver", "a job that runs inside this alloc set");
        let smaller = |s: &mut JobSpec| {
            s.retain_disk = retain(10);
            s.overrides.insert(0, limits(5));
        };
        check(smaller, "retain_disk.bytes", "at most 5");
    }

    #[test]
    fn alloc_sets_run_nothing_and_what_is_inside_owns_nothing() {
        check_alloc_set(|s| s.task.devices = vec![gpu(1, 1000)], "", "");
        check_alloc_set(|s| s.task.command = vec!["run".into()], "task.command", "no program");
        check_alloc_set(|s| s.task.ports = 1, "task.ports", "from the machine");
        check_alloc_set(|s| s.alloc_set = Some(key("ubar/set")), "alloc_set", "do not nest");
        let own = TaskOverride { command: Some(Vec::new()), ..TaskOverride::default() };
        check_alloc_set(|s| drop(s.overrides.insert(1, own)), "overrides.1", "no program");
        check_inside(|s| s.gang = true, "");
        check_inside(|s| s.task.ports = 2, "");
        check_inside(|s| s.task.devices = vec![gpu(1, 1000)], "task.devices");
        check_inside(|s| s.task.named = vec![amount("a", 1)], "task.named");
        check_inside(
            |s| s.retain_disk = Some(RetainDisk { bytes: 1, keep: Span(1), saver: None }),
            "retain_disk",
        );
    }

    #[test]
    fn machines() {
        check_a_machine(|m| m.named = vec![amount("licence", UNBOUNDED)], "", "");
        check_a_machine(|m| m.capacity.disk = u64::MAX, "capacity.disk", "at most");
        let ports = |first, last| PortRange { first, last };
        check_a_machine(|m| m.ports = ports(0, 5), "ports", "1 to 65535");
        let at = |text: &str| Some(text.parse().unwrap());
        check_a_machine(|m| m.address = at("127.0.0.1"), "", "");
        check_a_machine(|m| m.address = at("0.0.0.0"), "address", "of one machine");
        check_a_machine(|m| m.address = at("ff02::1"), "address", "of one machine");
        check_a_machine(|m| m.ports = ports(6, 5), "ports", "not above the last");
        let gpu = Device { kind: token("gpu"), model: token("a100") };
        check_a_machine(|m| m.devices = vec![gpu; 65], "devices", "at most 64");
        let name = ResourceName { namespace: Some(token("app")), name: token("x") };
        let ephemeral = NamedAmount { name, amount: 1 };
        check_a_machine(|m| m.named = vec![ephemeral], "named.name", "without a namespace");
        let long = AttributeValue::Text("x".repeat(257));
        let attributes = BTreeMap::from([(token("os"), long)]);
        check_a_machine(|m| m.attributes = attributes, "attributes.os (bytes)", "at most 256");
    }
}
