//! What every task of a job runs and asks for.

use super::review::field_error;
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
use crate::resource::MAX_QUANTITY;
use crate::spec::{LogLimits, MAX_LIST, PackageRef, TaskSpec};
use std::collections::{BTreeMap, BTreeSet};

/// What is counted of a program: see [`command_and_env`].
pub(super) const COMMAND_AND_ENV_BYTES: &str = "bytes of command and env";

pub(super) fn task(task: &TaskSpec, review: &mut Review) {
    review.resources_within(&"task.limits".into(), task.limits, MAX_QUANTITY);
    static_ports(&task.static_ports, review);
    review.named_amounts("task.named", &task.named, false);
    if review.has_allowed_length("task.devices", task.devices.len(), MAX_LIST) {
        task.devices.iter().enumerate().for_each(|(at, one)| device(at, one, review));
    }
    packages(&task.packages, review);
    command(&"task.command".into(), &task.command, review);
    environment(&"task.env".into(), &task.env, review);
    command_and_env(&"task".into(), &task.command, &task.env, review);
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
        let bad = |allowed: &str| {
            field_error(FieldPath::from(field).index(position), port, allowed).with_name(field)
        };
        review.ensure(*port > 0, || bad("1 to 65535"));
        review.ensure(seen.insert(port), || bad("each port once"));
    }
}

fn device(position: usize, request: &DeviceRequest, review: &mut Review) {
    let bad = |field: &str, value: String, allowed: String| {
        let path = FieldPath::from("task.devices").index(position).field(field);
        field_error(path, value, allowed).with_name(format!("task.devices.{field}"))
    };
    let (count, milli, models) = (request.count, request.milli, &request.models);
    review.ensure(models.len() <= MAX_LIST, || {
        bad("models", format!("{} entries", models.len()), format!("at most {MAX_LIST}"))
    });
    let distinct: BTreeSet<_> = models.iter().collect();
    review.ensure(distinct.len() == models.len(), || {
        bad("models", format!("{models:?}"), "each model once".into())
    });
    review.ensure((1..=MAX_DEVICES).contains(&usize::from(count)), || {
        bad("count", count.to_string(), format!("1 to {MAX_DEVICES}"))
    });
    review.ensure((1..=WHOLE_DEVICE).contains(&milli), || {
        bad("milli", milli.to_string(), format!("1 to {WHOLE_DEVICE}"))
    });
    review.ensure(count <= 1 || milli == WHOLE_DEVICE, || {
        let allowed = format!("{WHOLE_DEVICE} when more than one device is asked for");
        bad("milli", milli.to_string(), allowed)
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
            field_error(path.field("name"), name, "each package once")
                .with_name("task.packages.name")
        });
        review.ensure(*bytes <= MAX_QUANTITY, || {
            field_error(path.field("bytes"), bytes, format!("at most {MAX_QUANTITY}"))
                .with_name(format!("task.packages.{name}.bytes"))
        });
    }
}

pub(super) fn command(path: &FieldPath, words: &[String], review: &mut Review) {
    if !review.has_allowed_length(path.clone(), words.len(), MAX_COMMAND_WORDS) {
        return;
    }
    for (position, word) in words.iter().enumerate().filter(|(_, word)| word.contains('\0')) {
        let rejection = field_error(path.index(position), format!("{word:?}"), "no zero bytes");
        review.reject(rejection.with_name(path.dotted()));
    }
}

pub(super) fn environment(path: &FieldPath, env: &BTreeMap<String, String>, review: &mut Review) {
    if !review.has_allowed_length(path.clone(), env.len(), MAX_COMMAND_WORDS) {
        return;
    }
    for (key, value) in env {
        review.ensure(!key.is_empty() && !key.contains(['=', '\0']), || {
            let allowed = "not empty, without = and zero bytes";
            field_error(path.field(key), format!("{key:?}"), allowed)
                .with_name(format!("{} (name)", path.dotted()))
        });
        review.ensure(!value.contains('\0'), || {
            field_error(path.field(key), format!("{value:?}"), "no zero bytes")
        });
    }
}

/// All that is handed to a program, of a task or of the override at `path`.
pub(super) fn command_and_env(
    path: &FieldPath,
    command: &[String],
    env: &BTreeMap<String, String>,
    review: &mut Review,
) {
    let bytes = text_bytes(command, env);
    review.ensure(bytes <= MAX_TASK_TEXT, || {
        field_error(path.field("command"), bytes, format!("at most {MAX_TASK_TEXT}"))
            .with_name(format!("{} ({COMMAND_AND_ENV_BYTES})", path.dotted()))
    });
}

/// Relative, without a way out of the task's folder.
fn files(files: &BTreeMap<String, String>, review: &mut Review) {
    if !review.has_allowed_length("task.files", files.len(), MAX_LIST) {
        return;
    }
    let bytes = files.iter().map(|(path, text)| path.len() + text.len()).sum();
    review.bytes_at_most(|| "task.files".into(), "bytes", bytes, MAX_TASK_TEXT);
    for path in files.keys() {
        let part = |part: &str| !part.is_empty() && part != "." && part != "..";
        review.ensure(path.split('/').all(part) && !path.contains('\0'), || {
            let at = FieldPath::from("task.files").field(path);
            field_error(at, format!("{path:?}"), "relative, as conf/app.toml, without ..")
                .with_name("task.files (path)")
        });
    }
}

fn isolation(task: &TaskSpec, review: &mut Review) {
    let requested = &task.isolation;
    if let Some(root) = requested.root.as_ref().filter(|_| review.are_known(["task.packages"])) {
        let names = || task.packages.iter().map(|package| package.name.as_str());
        review.ensure(names().any(|name| name == root.as_str()), || {
            let list: Vec<&str> = names().collect();
            field_error(
                "task.isolation.root",
                root,
                format!("one of task.packages: {}", list.join(", ")),
            )
        });
    }
    review.ensure((1..=MAX_PROCESSES).contains(&requested.processes), || {
        field_error(
            "task.isolation.processes",
            requested.processes,
            format!("1 to {MAX_PROCESSES}"),
        )
    });
    let cores = u64::from(requested.whole_cores);
    review
        .ensure(cores * 1000 <= task.limits.cpu || !review.are_known(["task.limits.cpu"]), || {
            field_error("task.isolation.whole_cores", cores, "no more than task.limits.cpu has")
        });
    let port_on_own_network =
        requested.network == Network::Own && ports(task, review).is_some_and(|given| given > 0);
    review.ensure(!port_on_own_network, || {
        field_error("task.isolation.network", "own", "host for a task that asks for ports")
    });
    if review.has_allowed_length("task.isolation.volumes", requested.volumes.len(), MAX_LIST) {
        let all = requested.volumes.iter().enumerate();
        all.for_each(|(position, one)| volumes::volume(position, one, review));
    }
}

/// How many ports a task gets, if that is known.
fn ports(task: &TaskSpec, review: &Review) -> Option<usize> {
    let known = review.are_known(["task.ports", "task.static_ports"]);
    known.then(|| task.static_ports.len() + usize::from(task.ports))
}

/// Names are those of files. The message never has a value in it.
fn secrets(secrets: &BTreeMap<Token, Secret>, review: &mut Review) {
    if !review.has_allowed_length("task.secrets", secrets.len(), MAX_LIST) {
        return;
    }
    let bytes = secrets.values().map(|value| value.0.len()).sum();
    review.bytes_at_most(|| "task.secrets".into(), "bytes", bytes, MAX_TASK_TEXT);
    for (name, value) in secrets {
        let path = FieldPath::from("task.secrets").field(name.as_str());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = name.as_str().bytes().all(plain) && !name.as_str().starts_with('.');
        review.ensure(fits, || {
            field_error(path.clone(), name, "letters, digits, `-`, `_` and `.`, no dot first")
                .with_name("task.secrets (name)")
        });
        review.ensure(value.0 != REDACTED, || {
            field_error(path.clone(), REDACTED, "the value itself, which is never shown")
        });
    }
}

fn logs(limits: &LogLimits, review: &mut Review) {
    let LogLimits { file_bytes, files, rate } = *limits;
    review.ensure((MIN_LOG_FILE..=MAX_QUANTITY).contains(&file_bytes), || {
        field_error("task.logs.file_bytes", file_bytes, format!("{MIN_LOG_FILE} to {MAX_QUANTITY}"))
    });
    review.ensure((1..=MAX_LOG_FILES).contains(&files), || {
        field_error("task.logs.files", files, format!("1 to {MAX_LOG_FILES}"))
    });
    review.ensure((1..=MAX_QUANTITY).contains(&rate), || {
        field_error("task.logs.rate", rate, format!("1 to {MAX_QUANTITY}"))
    });
}

fn health(check: &HealthCheck, task: &TaskSpec, review: &mut Review) {
    let shortest = [
        ("task.health.interval", check.interval, MIN_PROBE_INTERVAL),
        ("task.health.timeout", check.timeout, 1),
    ];
    for (field, value, least) in shortest {
        review.ensure(value.0 >= least, || {
            field_error(field, value.0, format!("{least} ms or more"))
        });
        review.allowed_span(field, value);
    }
    review.allowed_span("task.health.start_period", check.start_period);
    review.ensure(check.failures > 0, || field_error("task.health.failures", 0, "1 or more"));
    match &check.probe {
        Probe::Command(words) => {
            let path = FieldPath::from("task.health.probe.command");
            review.ensure(!words.is_empty(), || field_error(path.clone(), "[]", "a program"));
            command(&path, words, review);
            command_and_env(&"task.health.probe".into(), words, &BTreeMap::new(), review);
        }
        Probe::Http { port, path } => {
            let clean = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
            review.ensure(clean && path.len() <= MAX_PATTERN, || {
                let allowed = format!("a path from / on, ASCII, at most {MAX_PATTERN} bytes");
                field_error("task.health.probe.http.path", format!("{path:?}"), allowed)
            });
            probe_port("task.health.probe.http.port", *port, task, review);
        }
        Probe::Tcp { port } => probe_port("task.health.probe.tcp.port", *port, task, review),
    }
}

fn probe_port(field: &str, port: u8, task: &TaskSpec, review: &mut Review) {
    let Some(given) = ports(task, review) else { return };
    review.ensure(usize::from(port) < given, || {
        let allowed = match given.checked_sub(1) {
            None => "none: the task asks for no port".to_owned(),
            Some(last) => format!("0 to {last}, counted among the task's ports"),
        };
        field_error(field, port, allowed)
    });
}
