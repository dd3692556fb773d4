//! Admission checks of a job's task spec: what every task runs and asks for.

use super::review::{bad, wrong};
use super::{
    MAX_COMMAND_WORDS, MAX_LOG_FILES, MAX_PROCESSES, MAX_TASK_TEXT, MIN_LOG_FILE,
    MIN_PROBE_INTERVAL, Review, text_bytes, volumes,
};
use crate::constraint::MAX_PATTERN;
use crate::device::{DeviceRequest, MAX_DEVICES, WHOLE_DEVICE};
use crate::field::FieldPath;
use crate::health::{HealthCheck, Probe};
use crate::isolation::{Network, REDACTED, Secret};
use crate::name::Token;
use crate::reason::{Allowed, Given, Listed, Quality};
use crate::resource::MAX_QUANTITY;
use crate::spec::{LogLimits, MAX_LIST, PackageRef, TaskSpec};
use crate::time::Span;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn task(task: &TaskSpec, review: &mut Review) {
    review.resources_within("task.limits", task.limits, MAX_QUANTITY);
    static_ports(&task.static_ports, review);
    review.named_amounts("task.named", &task.named, false);
    if review.has_allowed_length("task.devices", task.devices.len(), MAX_LIST) {
        task.devices.iter().enumerate().for_each(|(at, one)| device(at, one, review));
    }
    packages(&task.packages, review);
    command("task.command", &task.command, review);
    environment("task.env", &task.env, review);
    command_and_env("task", &task.command, &task.env, review);
    files(&task.files, review);
    isolation(task, review);
    secrets(&task.secrets, review);
    review.allowed_span("task.notice", task.notice);
    review.positive_span("task.max_run", task.max_run);
    if let Some(limits) = &task.logs {
        logs(limits, review);
    }
    if let Some(check) = &task.health {
        health(check, task, review);
    }
}

fn static_ports(list: &[u16], review: &mut Review) {
    let field = "task.static_ports";
    if !review.has_allowed_length(field, list.len(), MAX_LIST) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (position, port) in list.iter().enumerate() {
        let bad = |allowed: Allowed| bad(FieldPath::from(field).index(position), port, allowed);
        review.ensure(*port > 0, || bad(Allowed::range(1u64, u16::MAX)));
        review.ensure(seen.insert(port), || bad(Allowed::EachOnce(Listed::Port)));
    }
}

fn device(position: usize, request: &DeviceRequest, review: &mut Review) {
    let bad = |field: &str, value: Given, allowed: Allowed| {
        let path = FieldPath::from("task.devices").index(position).field(field);
        wrong(path, value, allowed)
    };
    let (count, milli, models) = (request.count, request.milli, &request.models);
    review.ensure(models.len() <= MAX_LIST, || {
        bad("models", Given::entries(models.len()), Allowed::AtMost(MAX_LIST as u64))
    });
    let distinct: BTreeSet<_> = models.iter().collect();
    review.ensure(distinct.len() == models.len(), || {
        bad("models", Given::Text(format!("{models:?}")), Allowed::EachOnce(Listed::Model))
    });
    review.ensure((1..=MAX_DEVICES).contains(&usize::from(count)), || {
        bad("count", Given::text(count), Allowed::range(1u64, MAX_DEVICES as u64))
    });
    review.ensure((1..=WHOLE_DEVICE).contains(&milli), || {
        bad("milli", Given::text(milli), Allowed::range(1u64, WHOLE_DEVICE))
    });
    review.ensure(count <= 1 || milli == WHOLE_DEVICE, || {
        bad("milli", Given::text(milli), Allowed::WholeDevices)
    });
}

fn packages(packages: &[PackageRef], review: &mut Review) {
    if !review.has_allowed_length("task.packages", packages.len(), MAX_LIST) {
        return;
    }
    let mut names = BTreeSet::new();
    for (position, package) in packages.iter().enumerate() {
        let path = FieldPath::from("task.packages").index(position);
        let PackageRef { name, bytes, .. } = package;
        review.ensure(names.insert(name), || {
            bad(path.field("name"), name, Allowed::EachOnce(Listed::Package))
        });
        review.ensure(*bytes <= MAX_QUANTITY, || {
            bad(path.field("bytes"), bytes, Allowed::AtMost(MAX_QUANTITY))
        });
    }
}

pub(super) fn command(path: impl Into<FieldPath> + Clone, words: &[String], review: &mut Review) {
    if !review.has_allowed_length(path.clone(), words.len(), MAX_COMMAND_WORDS) {
        return;
    }
    for (position, word) in words.iter().enumerate().filter(|(_, word)| word.contains('\0')) {
        let path: FieldPath = path.clone().into();
        let rejection = bad(path.index(position), format!("{word:?}"), Allowed::NoZeroBytes);
        review.reject(rejection);
    }
}

pub(super) fn environment(
    path: impl Into<FieldPath> + Clone,
    env: &BTreeMap<String, String>,
    review: &mut Review,
) {
    let to_path = || -> FieldPath { path.clone().into() };
    if !review.has_allowed_length(path.clone(), env.len(), MAX_COMMAND_WORDS) {
        return;
    }
    for (key, value) in env {
        review.ensure(!key.is_empty() && !key.contains(['=', '\0']), || {
            bad(to_path().field(key), format!("{key:?}"), Allowed::VariableName)
                .with_quality(Quality::Name)
        });
        review.ensure(!value.contains('\0'), || {
            bad(to_path().field(key), format!("{value:?}"), Allowed::NoZeroBytes)
        });
    }
}

/// Checks the command and the environment of a task, or of the override at `path`.
pub(super) fn command_and_env(
    path: impl Into<FieldPath>,
    command: &[String],
    env: &BTreeMap<String, String>,
    review: &mut Review,
) {
    let bytes = text_bytes(command, env);
    review.ensure(bytes <= MAX_TASK_TEXT, || {
        let path: FieldPath = path.into();
        bad(path.field("command"), bytes, Allowed::AtMost(MAX_TASK_TEXT as u64))
            .with_quality(Quality::ProgramBytes)
    });
}

/// Paths are relative and stay inside the task's folder.
fn files(files: &BTreeMap<String, String>, review: &mut Review) {
    if !review.has_allowed_length("task.files", files.len(), MAX_LIST) {
        return;
    }
    let bytes = files.iter().map(|(path, text)| path.len() + text.len()).sum();
    review.bytes_at_most(|| "task.files".into(), Quality::Bytes, bytes, MAX_TASK_TEXT);
    for path in files.keys() {
        review.ensure(is_inside(path), || {
            let at = FieldPath::from("task.files").field(path);
            bad(at, format!("{path:?}"), Allowed::RelativePath).with_quality(Quality::Path)
        });
    }
}

fn is_inside(path: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(part) && !path.contains('\0')
}

/// A file of the task's folder.
pub(super) fn files_path(field: &str, path: &str, review: &mut Review) {
    review.ensure(is_inside(path) && path.len() <= MAX_PATTERN, || {
        bad(field, format!("{path:?}"), Allowed::RelativePath)
    });
}

fn isolation(task: &TaskSpec, review: &mut Review) {
    let requested = &task.isolation;
    if let Some(root) = requested.root.as_ref().filter(|_| review.are_known(["task.packages"])) {
        review.ensure(task.packages.iter().any(|package| package.name == *root), || {
            let names = task.packages.iter().map(|package| package.name.clone());
            bad("task.isolation.root", root, Allowed::OneOfPackages(names.collect()))
        });
    }
    review.ensure((1..=MAX_PROCESSES).contains(&requested.processes), || {
        bad("task.isolation.processes", requested.processes, Allowed::range(1u64, MAX_PROCESSES))
    });
    let cores = u64::from(requested.whole_cores);
    review
        .ensure(cores * 1000 <= task.limits.cpu || !review.are_known(["task.limits.cpu"]), || {
            bad("task.isolation.whole_cores", cores, Allowed::CoresOfLimit)
        });
    let port_on_own_network =
        requested.network == Network::Own && ports(task, review).is_some_and(|given| given > 0);
    review.ensure(!port_on_own_network, || {
        bad("task.isolation.network", "own", Allowed::HostNetwork)
    });
    if review.has_allowed_length("task.isolation.volumes", requested.volumes.len(), MAX_LIST) {
        let all = requested.volumes.iter().enumerate();
        all.for_each(|(position, one)| volumes::volume(position, one, review));
    }
}

/// Number of ports a task gets, if that is known.
fn ports(task: &TaskSpec, review: &Review) -> Option<usize> {
    let known = review.are_known(["task.ports", "task.static_ports"]);
    known.then(|| task.static_ports.len() + usize::from(task.ports))
}

/// Names are file names. The message never contains a value.
fn secrets(secrets: &BTreeMap<Token, Secret>, review: &mut Review) {
    if !review.has_allowed_length("task.secrets", secrets.len(), MAX_LIST) {
        return;
    }
    let bytes = secrets.values().map(|value| value.0.len()).sum();
    review.bytes_at_most(|| "task.secrets".into(), Quality::Bytes, bytes, MAX_TASK_TEXT);
    for (name, value) in secrets {
        let path = FieldPath::from("task.secrets").field(name.as_str());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = name.as_str().bytes().all(plain) && !name.as_str().starts_with('.');
        review.ensure(fits, || {
            bad(path.clone(), name, Allowed::SecretName).with_quality(Quality::Name)
        });
        review.ensure(value.0 != REDACTED, || bad(path.clone(), REDACTED, Allowed::SecretItself));
    }
}

fn logs(limits: &LogLimits, review: &mut Review) {
    let LogLimits { file_bytes, files, rate } = *limits;
    review.ensure((MIN_LOG_FILE..=MAX_QUANTITY).contains(&file_bytes), || {
        bad("task.logs.file_bytes", file_bytes, Allowed::range(MIN_LOG_FILE, MAX_QUANTITY))
    });
    review.ensure((1..=MAX_LOG_FILES).contains(&files), || {
        bad("task.logs.files", files, Allowed::range(1u64, MAX_LOG_FILES))
    });
    review.ensure((1..=MAX_QUANTITY).contains(&rate), || {
        bad("task.logs.rate", rate, Allowed::range(1u64, MAX_QUANTITY))
    });
}

fn health(check: &HealthCheck, task: &TaskSpec, review: &mut Review) {
    let shortest = [
        ("task.health.interval", check.interval, MIN_PROBE_INTERVAL),
        ("task.health.timeout", check.timeout, 1),
    ];
    for (field, value, least) in shortest {
        review
            .ensure(value.0 >= least, || bad(field, value.0, Allowed::LengthAtLeast(Span(least))));
        review.allowed_span(field, value);
    }
    review.allowed_span("task.health.start_period", check.start_period);
    review.ensure(check.failures > 0, || bad("task.health.failures", 0, Allowed::AtLeast(1)));
    match &check.probe {
        Probe::Command(words) => {
            let path = "task.health.probe.command";
            review.ensure(!words.is_empty(), || bad(path, "[]", Allowed::ProbeProgram));
            command(path, words, review);
            command_and_env("task.health.probe", words, &BTreeMap::new(), review);
        }
        Probe::Http { port, path } => {
            probe_path("task.health.probe.http.path", path, review);
            probe_port("task.health.probe.http.port", *port, task, review);
        }
        Probe::Tcp { port } => probe_port("task.health.probe.tcp.port", *port, task, review),
    }
}

/// What is asked for over HTTP.
pub(super) fn probe_path(field: &str, path: &str, review: &mut Review) {
    let clean = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
    review.ensure(clean && path.len() <= MAX_PATTERN, || {
        bad(field, format!("{path:?}"), Allowed::HttpPath)
    });
}

pub(super) fn probe_port(field: &str, port: u8, task: &TaskSpec, review: &mut Review) {
    let Some(given) = ports(task, review) else { return };
    review.ensure(usize::from(port) < given, || {
        let allowed = match given.checked_sub(1) {
            None => Allowed::NoPort,
            Some(last) => Allowed::PortOfTask { last: last as u64 },
        };
        bad(field, port, allowed)
    });
}
