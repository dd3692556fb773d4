//! What every task of a job runs and asks for.

use super::review::bad;
use super::{
    MAX_LOG_FILES, MAX_PROCESSES, MAX_TASK_TEXT, MAX_WORDS, MIN_LOG_FILE, MIN_PROBE_INTERVAL,
    Review, text_bytes, volumes,
};
use crate::constraint::MAX_PATTERN;
use crate::device::{DeviceRequest, MAX_DEVICES, WHOLE};
use crate::field::FieldPath;
use crate::health::{HealthCheck, Probe};
use crate::isolation::{HIDDEN, Network, Secret};
use crate::name::Token;
use crate::resource::MAX_QUANTITY;
use crate::spec::{LogLimits, MAX_LIST, PackageRef, TaskSpec};
use std::collections::{BTreeMap, BTreeSet};

/// What is counted of a program: see [`text`].
pub(super) const TEXT: &str = "bytes of command and env";

pub(super) fn task(task: &TaskSpec, review: &mut Review) {
    review.bounded(&"task.limits".into(), task.limits, MAX_QUANTITY);
    static_ports(&task.static_ports, review);
    review.named("task.named", &task.named, false);
    if review.is_short("task.devices", task.devices.len(), MAX_LIST) {
        task.devices.iter().enumerate().for_each(|(at, one)| device(at, one, review));
    }
    packages(&task.packages, review);
    command(&"task.command".into(), &task.command, review);
    environment(&"task.env".into(), &task.env, review);
    text(&"task".into(), &task.command, &task.env, review);
    files(&task.files, review);
    isolation(task, review);
    secrets(&task.secrets, review);
    review.span("task.notice", task.notice);
    review.some_span("task.max_run", task.max_run);
    if let Some(limits) = &task.logs {
        logs(limits, review);
    }
    if let Some(check) = &task.health {
        health(check, task, review);
    }
}

fn static_ports(list: &[u16], review: &mut Review) {
    let field = "task.static_ports";
    if !review.is_short(field, list.len(), MAX_LIST) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (position, port) in list.iter().enumerate() {
        let bad = |allowed: &str| {
            bad(FieldPath::from(field).index(position), port, allowed).called(field)
        };
        review.ensure(*port > 0, || bad("1 to 65535"));
        review.ensure(seen.insert(port), || bad("each port once"));
    }
}

fn device(position: usize, request: &DeviceRequest, review: &mut Review) {
    let bad = |field: &str, value: String, allowed: String| {
        let path = FieldPath::from("task.devices").index(position).field(field);
        bad(path, value, allowed).called(format!("task.devices.{field}"))
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
    review.ensure((1..=WHOLE).contains(&milli), || {
        bad("milli", milli.to_string(), format!("1 to {WHOLE}"))
    });
    review.ensure(count <= 1 || milli == WHOLE, || {
        let allowed = format!("{WHOLE} when more than one device is asked for");
        bad("milli", milli.to_string(), allowed)
    });
}

fn packages(packages: &[PackageRef], review: &mut Review) {
    if !review.is_short("task.packages", packages.len(), MAX_LIST) {
        return;
    }
    let mut names = BTreeSet::new();
    for (position, package) in packages.iter().enumerate() {
        let path = FieldPath::from("task.packages").index(position);
        let PackageRef { name, bytes, .. } = package;
        review.ensure(names.insert(name), || {
            bad(path.field("name"), name, "each package once").called("task.packages.name")
        });
        review.ensure(*bytes <= MAX_QUANTITY, || {
            bad(path.field("bytes"), bytes, format!("at most {MAX_QUANTITY}"))
                .called(format!("task.packages.{name}.bytes"))
        });
    }
}

pub(super) fn command(path: &FieldPath, words: &[String], review: &mut Review) {
    if !review.is_short(path.clone(), words.len(), MAX_WORDS) {
        return;
    }
    for (position, word) in words.iter().enumerate().filter(|(_, word)| word.contains('\0')) {
        let rejection = bad(path.index(position), format!("{word:?}"), "no zero bytes");
        review.reject(rejection.called(path.dotted()));
    }
}

pub(super) fn environment(path: &FieldPath, env: &BTreeMap<String, String>, review: &mut Review) {
    if !review.is_short(path.clone(), env.len(), MAX_WORDS) {
        return;
    }
    for (key, value) in env {
        review.ensure(!key.is_empty() && !key.contains(['=', '\0']), || {
            let allowed = "not empty, without = and zero bytes";
            bad(path.field(key), format!("{key:?}"), allowed)
                .called(format!("{} (name)", path.dotted()))
        });
        review.ensure(!value.contains('\0'), || {
            bad(path.field(key), format!("{value:?}"), "no zero bytes")
        });
    }
}

/// All that is handed to a program, of a task or of the override at `path`.
pub(super) fn text(
    path: &FieldPath,
    command: &[String],
    env: &BTreeMap<String, String>,
    review: &mut Review,
) {
    let bytes = text_bytes(command, env);
    review.ensure(bytes <= MAX_TASK_TEXT, || {
        bad(path.field("command"), bytes, format!("at most {MAX_TASK_TEXT}"))
            .called(format!("{} ({TEXT})", path.dotted()))
    });
}

/// Relative, without a way out of the task's folder.
fn files(files: &BTreeMap<String, String>, review: &mut Review) {
    if !review.is_short("task.files", files.len(), MAX_LIST) {
        return;
    }
    let bytes = files.iter().map(|(path, text)| path.len() + text.len()).sum();
    review.bytes(|| "task.files".into(), "bytes", bytes, MAX_TASK_TEXT);
    for path in files.keys() {
        let part = |part: &str| !part.is_empty() && part != "." && part != "..";
        review.ensure(path.split('/').all(part) && !path.contains('\0'), || {
            let at = FieldPath::from("task.files").field(path);
            bad(at, format!("{path:?}"), "relative, as conf/app.toml, without ..")
                .called("task.files (path)")
        });
    }
}

fn isolation(task: &TaskSpec, review: &mut Review) {
    let asked = &task.isolation;
    if let Some(root) = asked.root.as_ref().filter(|_| review.knows(["task.packages"])) {
        let names = || task.packages.iter().map(|package| package.name.as_str());
        review.ensure(names().any(|name| name == root.as_str()), || {
            let list: Vec<&str> = names().collect();
            bad("task.isolation.root", root, format!("one of task.packages: {}", list.join(", ")))
        });
    }
    review.ensure((1..=MAX_PROCESSES).contains(&asked.processes), || {
        bad("task.isolation.processes", asked.processes, format!("1 to {MAX_PROCESSES}"))
    });
    let cores = u64::from(asked.whole_cores);
    review.ensure(cores * 1000 <= task.limits.cpu || !review.knows(["task.limits.cpu"]), || {
        bad("task.isolation.whole_cores", cores, "no more than task.limits.cpu has")
    });
    let alone = asked.network == Network::Own && ports(task, review).is_some_and(|given| given > 0);
    review.ensure(!alone, || {
        bad("task.isolation.network", "own", "host for a task that asks for ports")
    });
    if review.is_short("task.isolation.volumes", asked.volumes.len(), MAX_LIST) {
        let all = asked.volumes.iter().enumerate();
        all.for_each(|(position, one)| volumes::volume(position, one, review));
    }
}

/// How many ports a task gets, if that is known.
fn ports(task: &TaskSpec, review: &Review) -> Option<usize> {
    let known = review.knows(["task.ports", "task.static_ports"]);
    known.then(|| task.static_ports.len() + usize::from(task.ports))
}

/// Names are those of files. The message never has a value in it.
fn secrets(secrets: &BTreeMap<Token, Secret>, review: &mut Review) {
    if !review.is_short("task.secrets", secrets.len(), MAX_LIST) {
        return;
    }
    let bytes = secrets.values().map(|value| value.0.len()).sum();
    review.bytes(|| "task.secrets".into(), "bytes", bytes, MAX_TASK_TEXT);
    for (name, value) in secrets {
        let path = FieldPath::from("task.secrets").field(name.as_str());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = name.as_str().bytes().all(plain) && !name.as_str().starts_with('.');
        review.ensure(fits, || {
            bad(path.clone(), name, "letters, digits, `-`, `_` and `.`, no dot first")
                .called("task.secrets (name)")
        });
        review.ensure(value.0 != HIDDEN, || {
            bad(path.clone(), HIDDEN, "the value itself, which is never shown")
        });
    }
}

fn logs(limits: &LogLimits, review: &mut Review) {
    let LogLimits { file_bytes, files, rate } = *limits;
    review.ensure((MIN_LOG_FILE..=MAX_QUANTITY).contains(&file_bytes), || {
        bad("task.logs.file_bytes", file_bytes, format!("{MIN_LOG_FILE} to {MAX_QUANTITY}"))
    });
    review.ensure((1..=MAX_LOG_FILES).contains(&files), || {
        bad("task.logs.files", files, format!("1 to {MAX_LOG_FILES}"))
    });
    review.ensure((1..=MAX_QUANTITY).contains(&rate), || {
        bad("task.logs.rate", rate, format!("1 to {MAX_QUANTITY}"))
    });
}

fn health(check: &HealthCheck, task: &TaskSpec, review: &mut Review) {
    let shortest = [
        ("task.health.interval", check.interval, MIN_PROBE_INTERVAL),
        ("task.health.timeout", check.timeout, 1),
    ];
    for (field, value, least) in shortest {
        review.ensure(value.0 >= least, || bad(field, value.0, format!("{least} ms or more")));
        review.span(field, value);
    }
    review.span("task.health.start_period", check.start_period);
    review.ensure(check.failures > 0, || bad("task.health.failures", 0, "1 or more"));
    match &check.probe {
        Probe::Command(words) => {
            let path = FieldPath::from("task.health.probe.command");
            review.ensure(!words.is_empty(), || bad(path.clone(), "[]", "a program"));
            command(&path, words, review);
            text(&"task.health.probe".into(), words, &BTreeMap::new(), review);
        }
        Probe::Http { port, path } => {
            let clean = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
            review.ensure(clean && path.len() <= MAX_PATTERN, || {
                let allowed = format!("a path from / on, ASCII, at most {MAX_PATTERN} bytes");
                bad("task.health.probe.http.path", format!("{path:?}"), allowed)
            });
            probed_port("task.health.probe.http.port", *port, task, review);
        }
        Probe::Tcp { port } => probed_port("task.health.probe.tcp.port", *port, task, review),
    }
}

fn probed_port(field: &str, port: u8, task: &TaskSpec, review: &mut Review) {
    let Some(given) = ports(task, review) else { return };
    review.ensure(usize::from(port) < given, || {
        let allowed = match given.checked_sub(1) {
            None => "none: the task asks for no port".to_owned(),
            Some(last) => format!("0 to {last}, counted among the task's ports"),
        };
        bad(field, port, allowed)
    });
}
