//! Admission checks of jobs and machines (B2-B10): every field has a range, and a value outside it
//! is rejected with the field, the value and the range. Nothing is clamped.
//!
//! A rule takes the spec and a [`Review`], which collects all errors in one pass for the authors of
//! specs; `apply` needs only the first.
//!
//! These rules need the spec alone, so a client can check before it sends, and the loader can check
//! what it reads. Whether the cell has the owner, the quota or the alloc set is decided by `apply`.
//! The ranges also keep the arithmetic exact: within them no sum the cell keeps can overflow.

mod machine;
mod package_digests;
mod program;
pub(crate) mod review;
mod scale;
mod task;
mod volumes;

pub use crate::components::cron::admit::{check_cron, review_cron};
pub use machine::check_machine;
pub use package_digests::package_digests_are_valid;
pub use program::has_command;
pub use review::{FieldError, Review};

use crate::alloc_pairing::AllocPairing;
use crate::constraint::{AttributeValue, Constraint, MAX_PATTERN, Operator};
use crate::device::REMOVED_DEVICE;
use crate::disruption::MAX_DISRUPTIONS;
use crate::field::{FieldPath, FieldSet};
use crate::label::Labels;
use crate::named::{NamedAmount, UNBOUNDED};
use crate::priority::{AppClass, MAX_PRIORITY};
use crate::reason::{Allowed, Given, Listed, Quality, Rejection};
use crate::resource::{Dimension, MAX_QUANTITY, Resources};
use crate::retry::Retries;
use crate::spec::{JobKind, JobSpec, MAX_LIST, MAX_TASKS, TaskOverride};
use crate::time::Span;
use crate::update_policy::{MAX_ROLLBACK_FAILURES, UpdatePolicy};
use review::{bad, wrong};
use std::collections::{BTreeMap, BTreeSet};

/// Most that all tasks of a job may ask for together, and that one quota may grant, in one
/// dimension. Sixteen of these still add up without overflow, as do the sums of a user's jobs,
/// which admission holds below the quota.
pub const MAX_TOTAL: u64 = 1 << 60;
/// Bytes of command and environment of one task.
pub const MAX_TASK_TEXT: usize = 1 << 16;
/// Bytes of command and environment of a whole spec, overrides included.
pub const MAX_SPEC_TEXT: usize = 1 << 23;
/// Words of a command, or variables of an environment.
pub const MAX_COMMAND_WORDS: usize = 1024;
/// A task is probed no more often: probes use the machine's time, not the task's.
pub const MIN_PROBE_INTERVAL: u64 = 100;
/// Smallest size of one log file, in bytes.
pub const MIN_LOG_FILE: u64 = 4096;
/// Log files of one stream.
pub const MAX_LOG_FILES: u32 = 100;
/// Processes and threads of one task: what a kernel has numbers for.
pub const MAX_PROCESSES: u32 = 1 << 22;
/// Attributes of one machine.
pub const MAX_ATTRIBUTES: usize = 512;
/// Bytes of one label's value.
pub const MAX_LABEL_VALUE: usize = 256;
/// Longest notice, back-off, lease or retention.
pub const MAX_SPAN: Span = Span::seconds(366 * 24 * 3600);

/// Bytes of memory below which a process is killed before it becomes the program.
pub const MIN_RAM: u64 = 2 << 20;
/// The same in a container, where the runtime needs memory too while it creates the container.
pub const MIN_CONTAINER_RAM: u64 = 16 << 20;

pub(crate) type AdmissionResult = Result<(), Rejection>;

/// A rule for job specs; it adds its errors to the review.
pub type Rule = fn(&JobSpec, &mut Review);

/// Every rule for a new job, as the API applies them. Authors of jobs are also told about
/// [`has_memory_to_start`].
pub const RULES: [Rule; 3] = [well_formed, package_digests_are_valid, has_command];

/// All errors that the rules find, in the order of the rules. Fields in `unknown`, and values
/// computed from them, cause no errors.
#[must_use]
pub fn review_job(spec: &JobSpec, rules: &[Rule], unknown: FieldSet) -> Vec<FieldError> {
    let mut review = Review::new(unknown);
    rules.iter().for_each(|rule| rule(spec, &mut review));
    review.into_errors()
}

/// # Errors
/// [`Rejection::BadField`] for the first field that the rule rejects.
pub fn check(spec: &JobSpec, rule: Rule) -> AdmissionResult {
    Review::first_error(|review| rule(spec, review))
}

/// # Errors
/// [`Rejection::BadField`] for the first field that is out of range.
pub fn check_job(spec: &JobSpec) -> AdmissionResult {
    check(spec, well_formed)
}

/// # Errors
/// [`Rejection::BadField`] for the first dimension beyond [`MAX_QUANTITY`].
pub fn check_quantities(field: &str, amount: Resources) -> AdmissionResult {
    check_bounded(field, amount, MAX_QUANTITY)
}

/// # Errors
/// [`Rejection::BadField`] for the first dimension beyond `most`.
pub fn check_bounded(field: &str, amount: Resources, most: u64) -> AdmissionResult {
    Review::first_error(|review| review.resources_within(field, amount, most))
}

/// Checks of ranges that many fields share. Paths are built only for an error.
impl Review {
    fn at_most(&mut self, path: impl Into<FieldPath>, value: u64, most: u64) {
        self.ensure(value <= most, || bad(path, value, Allowed::AtMost(most)));
    }

    /// Checks a length in bytes; the error names the quality.
    fn bytes_at_most(
        &mut self,
        path: impl FnOnce() -> FieldPath,
        quality: Quality,
        bytes: usize,
        most: usize,
    ) {
        self.ensure(bytes <= most, || {
            bad(path(), bytes, Allowed::AtMost(most as u64)).with_quality(quality)
        });
    }

    /// Whether the list is short enough for its items to be checked.
    fn has_allowed_length(
        &mut self,
        path: impl Into<FieldPath>,
        length: usize,
        most: usize,
    ) -> bool {
        self.ensure(length <= most, || {
            wrong(path, Given::entries(length), Allowed::AtMost(most as u64))
        });
        length <= most
    }

    fn allowed_span(&mut self, path: impl Into<FieldPath>, value: Span) {
        self.ensure(value <= MAX_SPAN, || {
            wrong(path, Given::Length(value), Allowed::LengthAtMost(MAX_SPAN))
        });
    }

    /// A time that is given and is not zero.
    fn positive_span(&mut self, path: &str, value: Option<Span>) {
        if let Some(value) = value {
            self.ensure(value.0 > 0, || bad(path, 0, Allowed::LengthAtLeast(Span(1))));
            self.allowed_span(path, value);
        }
    }

    fn resources_within(
        &mut self,
        path: impl Into<FieldPath> + Clone,
        amount: Resources,
        most: u64,
    ) {
        for dimension in Dimension::ALL {
            let requested = amount.get(dimension);
            self.ensure(requested <= most, || {
                let path: FieldPath = path.clone().into();
                bad(path.field(field_of(dimension)), requested, Allowed::AtMost(most))
            });
        }
    }

    fn labels(&mut self, labels: &Labels) {
        if self.has_allowed_length("labels", labels.len(), MAX_LIST) {
            for (key, value) in labels {
                let path = || FieldPath::from("labels").field(key.as_str());
                self.bytes_at_most(path, Quality::Bytes, value.len(), MAX_LABEL_VALUE);
            }
        }
    }

    /// Sorted by name, each name once; unbounded amounts are for capacities.
    fn named_amounts(&mut self, path: &str, list: &[NamedAmount], capacity: bool) {
        if !self.has_allowed_length(path, list.len(), MAX_LIST) {
            return;
        }
        let at = |position| FieldPath::from(path).index(position);
        let pair = list.windows(2).position(|pair| pair[0].name >= pair[1].name);
        if let Some(first) = pair {
            let name = &list[first + 1].name;
            self.reject(bad(at(first + 1), name, Allowed::NamesInOrder));
        }
        for (position, amount) in list.iter().enumerate() {
            let fits = capacity && amount.amount == UNBOUNDED || amount.amount <= MAX_QUANTITY;
            self.ensure(fits, || {
                bad(at(position).field("amount"), amount.amount, Allowed::AtMost(MAX_QUANTITY))
            });
        }
    }
}

/// The name of the dimension's field in [`Resources`].
fn field_of(dimension: Dimension) -> &'static str {
    match dimension {
        Dimension::Cpu => "cpu",
        Dimension::Ram => "ram",
        Dimension::Disk => "disk",
        Dimension::DiskRate => "disk_rate",
    }
}

/// Every field is within its range, and fields that depend on each other agree. These bounds apply
/// to all jobs there are: logs and rows are checked by this rule too.
pub fn well_formed(spec: &JobSpec, review: &mut Review) {
    review.ensure((1..=MAX_TASKS).contains(&spec.count), || {
        bad("count", spec.count, Allowed::range(1u64, MAX_TASKS))
    });
    review.at_most("priority", u64::from(spec.priority.0), u64::from(MAX_PRIORITY));
    review.labels(&spec.labels);
    task::task(&spec.task, review);
    overrides(spec, review);
    constraints(&spec.constraints, review);
    spread(spec, review);
    restart(spec, review);
    retained(spec, review);
    dependencies(spec, review);
    review.positive_span("at_most_one", spec.at_most_one);
    review.positive_span("repair", spec.repair);
    if let Some(repair) = spec.repair.filter(|_| !spec.gang) {
        review.reject(bad("repair", repair.0, Allowed::NoneWithoutGang));
    }
    if let Some(most) = spec.preemption_notice_max {
        review.allowed_span("preemption_notice_max", most);
    }
    may_limit_notice(spec, review);
    whole_cores(spec, review);
    requests_no_removed_devices(spec, review);
    volumes::targets(spec, review);
    // A limit of 0 is expressed by `max_down` of 0, and has no next time to wait for.
    if let Some(limit) = spec.disruptions {
        review.ensure((1..=MAX_DISRUPTIONS).contains(&limit.most), || {
            bad("disruptions.most", limit.most, Allowed::range(1u64, MAX_DISRUPTIONS))
        });
        review.positive_span("disruptions.within", Some(limit.within));
    }
    update_policy(&spec.update, review);
    if let Some(policy) = &spec.scale {
        scale::policy(spec, policy, review);
    }
    match spec.kind {
        _ if !review.are_known(["kind", "alloc_set"]) => {}
        JobKind::AllocSet => alloc_set(spec, review),
        JobKind::Tasks if spec.alloc_set.is_some() => inside_alloc_set(spec, review),
        JobKind::Tasks => {}
        JobKind::Daemon => daemon(spec, review),
    }
    total_limits(spec, review);
}

fn update_policy(policy: &UpdatePolicy, review: &mut Review) {
    review.ensure(policy.canaries <= MAX_TASKS, || {
        bad("update.canaries", policy.canaries, Allowed::range(0u64, MAX_TASKS))
    });
    review.positive_span("update.promote_after", policy.promote_after);
    if let Some(limit) = policy.rollback {
        review.ensure((1..=MAX_ROLLBACK_FAILURES).contains(&limit.failures), || {
            let allowed = Allowed::range(1u64, MAX_ROLLBACK_FAILURES);
            bad("update.rollback.failures", limit.failures, allowed)
        });
        review.positive_span("update.rollback.within", Some(limit.within));
    }
}

/// A job below production may not shorten the notice of others: otherwise batch jobs of any user
/// could shorten everybody's.
fn may_limit_notice(spec: &JobSpec, review: &mut Review) {
    let most = spec.preemption_notice_max.filter(|_| !spec.priority.is_prod());
    if let Some(most) = most.filter(|_| review.are_known(["priority"])) {
        review.reject(bad("preemption_notice_max", most.0, Allowed::NoneBelowProduction));
    }
}

/// Whole cores are closed to other latency-sensitive tasks; batch work runs on all of them and
/// could keep nobody off.
fn whole_cores(spec: &JobSpec, review: &mut Review) {
    let cores = spec.task.isolation.whole_cores;
    let is_batch = spec.appclass() == AppClass::Batch && review.are_known(["appclass", "priority"]);
    review.ensure(cores == 0 || !is_batch || spec.kind == JobKind::AllocSet, || {
        bad("task.isolation.whole_cores", cores, Allowed::LatencySensitiveOnly)
    });
}

/// The positions of removed devices cannot be requested.
fn requests_no_removed_devices(spec: &JobSpec, review: &mut Review) {
    for (position, request) in spec.task.devices.iter().enumerate() {
        review.ensure(request.kind.as_str() != REMOVED_DEVICE, || {
            let path = FieldPath::from("task.devices").index(position).field("kind");
            bad(path, REMOVED_DEVICE, Allowed::AnotherDeviceKind)
        });
    }
}

/// A rule for authors of jobs, not for the log: the cell itself accepts a job that no machine can
/// start, as it accepts a program that does not exist. A task needs this memory to start.
pub fn has_memory_to_start(spec: &JobSpec, review: &mut Review) {
    // An alloc starts nothing, and a task that may exceed its memory limit starts with that.
    let needs_no_minimum = spec.kind == JobKind::AllocSet || spec.task.isolation.slack_ram;
    if needs_no_minimum || !review.are_known(["kind", "task.isolation.slack_ram"]) {
        return;
    }
    let mut enough = |path: &dyn Fn() -> FieldPath, ram: u64| {
        review.ensure(ram >= MIN_RAM, || bad(path(), ram, Allowed::RamToBegin));
    };
    enough(&|| "task.limits.ram".into(), spec.task.limits.ram);
    for (index, own) in &spec.overrides {
        if let Some(ram) = own.limits.and_then(|limits| limits.ram) {
            enough(&|| override_path(*index).field("limits").field("ram"), ram);
        }
    }
}

fn override_path(index: u32) -> FieldPath {
    FieldPath::from("overrides").field(&index.to_string())
}

fn dependencies(spec: &JobSpec, review: &mut Review) {
    if !review.has_allowed_length("after", spec.after.len(), MAX_LIST) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (position, after) in spec.after.iter().enumerate() {
        review.ensure(seen.insert(&after.job), || {
            let path = FieldPath::from("after").index(position).field("job");
            bad(path, &after.job, Allowed::EachOnce(Listed::Job))
        });
    }
}

fn text_bytes(command: &[String], env: &BTreeMap<String, String>) -> usize {
    let words: usize = command.iter().map(String::len).sum();
    words + env.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
}

fn overrides(spec: &JobSpec, review: &mut Review) {
    let mut text = text_bytes(&spec.task.command, &spec.task.env);
    let counted = review.are_known(["count"]);
    for (index, change) in &spec.overrides {
        let path = override_path(*index);
        review.ensure(*index < spec.count || !counted, || {
            bad(path.clone(), index, Allowed::range(0u64, spec.count.saturating_sub(1)))
                .with_quality(Quality::TaskIndex)
        });
        review.resources_within(
            path.field("limits"),
            change.limits.unwrap_or_default().over(Resources::ZERO),
            MAX_QUANTITY,
        );
        let words = change.command.as_deref().unwrap_or_default();
        task::command(path.field("command"), words, review);
        let none = BTreeMap::new();
        let env = change.env.as_ref().unwrap_or(&none);
        task::environment(path.field("env"), env, review);
        if change.command.is_some() || change.env.is_some() {
            let (words, env) = (spec.command_of(*index), spec.env_of(*index));
            task::command_and_env(path, words, &env, review);
        }
        text += text_bytes(words, env);
    }
    review.bytes_at_most(|| "overrides".into(), Quality::ProgramBytes, text, MAX_SPEC_TEXT);
}

fn constraints(list: &[Constraint], review: &mut Review) {
    if !review.has_allowed_length("constraints", list.len(), MAX_LIST) {
        return;
    }
    for (position, constraint) in list.iter().enumerate() {
        let path = FieldPath::from("constraints").index(position);
        let mut bytes = |text: &str| {
            review.bytes_at_most(|| path.clone(), Quality::Bytes, text.len(), MAX_PATTERN);
        };
        let mut operand = |value: &AttributeValue| match value {
            AttributeValue::Text(text) => bytes(text),
            AttributeValue::Integer(_) => {}
        };
        match &constraint.operator {
            Operator::In(values) | Operator::NotIn(values) if values.len() <= MAX_LIST => {
                values.iter().for_each(operand);
            }
            Operator::In(values) | Operator::NotIn(values) => {
                review.has_allowed_length(path.clone(), values.len(), MAX_LIST);
            }
            Operator::Equal(value) | Operator::NotEqual(value) => operand(value),
            Operator::VersionAtLeast(version) | Operator::VersionBelow(version) => bytes(version),
            _ => {}
        }
        if let Err(why) = constraint.check() {
            review.reject(bad(path, constraint, Allowed::Constraint(why)));
        }
    }
}

fn spread(spec: &JobSpec, review: &mut Review) {
    let mut domains = BTreeSet::new();
    for (position, spread) in spec.spread.iter().enumerate() {
        let path = FieldPath::from("spread").index(position);
        review.ensure(domains.insert(spread.domain), || {
            let domain = format!("{:?}", spread.domain);
            bad(path.field("domain"), domain, Allowed::EachOnce(Listed::Domain))
        });
        review.ensure(spread.limit > 0, || {
            bad(path.field("limit"), spread.limit, Allowed::AtLeast(1))
        });
    }
}

fn restart(spec: &JobSpec, review: &mut Review) {
    let exits = &spec.restart.retry.exit;
    if review.has_allowed_length("restart.retry.exit", exits.len(), MAX_LIST) {
        for code in exits.keys().filter(|code| !(1..=255).contains(*code)) {
            let path = FieldPath::from("restart.retry.exit").field(&code.to_string());
            review.reject(bad(path, code, Allowed::FailureCode).with_quality(Quality::Code));
        }
    }
    let (first, most) = (spec.restart.backoff, spec.restart.backoff_max);
    review.allowed_span("restart.backoff_max", most);
    review.ensure(first <= most || !review.are_known(["restart.backoff_max"]), || {
        wrong("restart.backoff", Given::Length(first), Allowed::AtMostBackoffMax(most))
    });
}

/// Disk that outlives a task must be within the task's own.
fn retained(spec: &JobSpec, review: &mut Review) {
    let Some(retain) = &spec.retain_disk else { return };
    if let Some(saver) = retain.log_saver.as_ref().filter(|_| review.are_known(["kind", "name"])) {
        let field = "retain_disk.log_saver";
        review.ensure(spec.kind == JobKind::AllocSet, || bad(field, saver, Allowed::NoSaver));
        review.ensure(*saver != spec.name, || bad(field, saver, Allowed::SaverInsideSet));
    }
    review.allowed_span("retain_disk.keep", retain.keep);
    if review.are_known(["overrides", "task.limits.disk"]) {
        let own = spec.overrides.keys().map(|index| spec.limits_of(*index).disk);
        let least = own.fold(spec.task.limits.disk, u64::min);
        review.at_most("retain_disk.bytes", retain.bytes, least);
    }
}

/// An alloc holds resources and runs nothing.
fn alloc_set(spec: &JobSpec, review: &mut Review) {
    let task = &spec.task;
    if let Some(outer) = &spec.alloc_set {
        review.reject(bad("alloc_set", outer, Allowed::NoNesting));
    }
    review.ensure(spec.restart.retry == Retries::default(), || {
        wrong("restart.retry", Given::Something, Allowed::NoProgram)
    });
    let ports = task.static_ports.len() + usize::from(task.ports);
    review.ensure(ports == 0, || bad("task.ports", ports, Allowed::NoPortsOfAlloc));
    review.ensure(task.health.is_none(), || {
        wrong("task.health", Given::Something, Allowed::NoProgram)
    });
    review.ensure(!task.archive_logs, || bad("task.archive_logs", true, Allowed::NoProgram));
    let cores = task.isolation.whole_cores;
    review.ensure(cores == 0, || bad("task.isolation.whole_cores", cores, Allowed::NoProgram));
    let of_programs = [
        ("task.files", task.files.is_empty(), task.files.len().to_string()),
        ("task.secrets", task.secrets.is_empty(), task.secrets.len().to_string()),
        ("task.command", task.command.is_empty(), task.command.join(" ")),
        ("task.env", task.env.is_empty(), task.env.len().to_string()),
        ("task.packages", task.packages.is_empty(), task.packages.len().to_string()),
    ];
    for (field, is_absent, value) in of_programs {
        review.ensure(is_absent, || bad(field, value, Allowed::NoProgram));
    }
    let runs = |change: &TaskOverride| change.command.is_some() || change.env.is_some();
    for (index, _) in spec.overrides.iter().filter(|(_, change)| runs(change)) {
        review.reject(wrong(override_path(*index), Given::Something, Allowed::NoProgram));
    }
}

/// The alloc has the devices, the named resources, the place and the disk; its tasks share them.
fn inside_alloc_set(spec: &JobSpec, review: &mut Review) {
    let cores = spec.task.isolation.whole_cores;
    review.ensure(cores == 0, || {
        bad("task.isolation.whole_cores", cores, Allowed::WholeCoresOutsideSets)
    });
    let mut none = |field: &str, value: u64, is_there: bool| {
        review.ensure(!is_there, || bad(field, value, Allowed::NoneInsideSet));
    };
    let task = &spec.task;
    none("task.devices", task.devices.len() as u64, !task.devices.is_empty());
    none("task.named", task.named.len() as u64, !task.named.is_empty());
    if spec.alloc_pairing == AllocPairing::Index && review.are_known(["alloc_pairing"]) {
        review.ensure(spec.spread.is_empty(), || {
            wrong("spread", Given::entries(spec.spread.len()), Allowed::SpreadOfAllocs)
        });
    }
    let mut none = |field: &str, value: u64, is_there: bool| {
        review.ensure(!is_there, || bad(field, value, Allowed::NoneInsideSet));
    };
    let retained = spec.retain_disk.as_ref();
    none("retain_disk", retained.map_or(0, |retain| retain.bytes), retained.is_some());
}

/// The cell decides how many tasks a daemon has and where: what would say it again, or tell its
/// tasks apart by numbers that nobody chose, is refused. A daemon starts with its machines, so it
/// waits for no job and its tasks for no other.
fn daemon(spec: &JobSpec, review: &mut Review) {
    let set = spec.alloc_set.as_ref().map(ToString::to_string);
    let entries = |count: usize| (count > 0).then(|| count.to_string());
    let fields = [
        ("count", (spec.count != 1).then(|| spec.count.to_string())),
        ("alloc_set", set),
        ("gang", spec.gang.then(|| "true".to_owned())),
        ("overrides", entries(spec.overrides.len())),
        ("spread", entries(spec.spread.len())),
        ("after", entries(spec.after.len())),
    ];
    for (field, value) in fields.into_iter().filter_map(|(field, value)| Some((field, value?))) {
        review.reject(bad(field, value, Allowed::NotOfDaemons));
    }
}

/// Exact sum of the limits of all tasks, rejected beyond [`MAX_TOTAL`].
fn total_limits(spec: &JobSpec, review: &mut Review) {
    if !review.are_known(["count", "overrides"]) {
        return;
    }
    let own: Vec<u32> =
        spec.overrides.iter().filter(|(_, o)| o.limits.is_some()).map(|(i, _)| *i).collect();
    let plain = u128::from(spec.count).saturating_sub(own.len() as u128);
    for dimension in Dimension::ALL {
        let base = u128::from(spec.task.limits.get(dimension)) * plain;
        let overridden = own.iter().map(|i| u128::from(spec.limits_of(*i).get(dimension)));
        let sum = overridden.fold(base, |sum, part| sum + part);
        review.ensure(sum <= u128::from(MAX_TOTAL), || {
            let path = FieldPath::from("task.limits").field(field_of(dimension));
            bad(path, sum, Allowed::AtMost(MAX_TOTAL)).with_quality(Quality::Total)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{all, job, key, machine};
    use crate::constraint::Strength;
    use crate::dependency::JobDependency;
    use crate::device::{Device, DeviceRequest};
    use crate::disruption::DisruptionLimit;
    use crate::health::{HealthCheck, Probe};
    use crate::isolation::{Network, REDACTED, Secret, Volume};
    use crate::machine::{MachineSpec, PortRange};
    use crate::name::Token;
    use crate::named::ResourceName;
    use crate::priority::Priority;
    use crate::spec::{LogLimits, PackageRef, RetainDisk, SpreadLimit};
    use crate::update_policy::RollbackLimit;

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    /// `want`: the field and a part of what is allowed; empty when the spec is fine.
    fn assert_result(got: AdmissionResult, want: (&str, &str)) {
        match got {
            Ok(()) => assert_eq!(want, ("", "")),
            Err(Rejection::BadField { field, allowed, .. }) => {
                assert_eq!(field.to_string(), want.0);
                let allowed = allowed.to_string();
                assert!(!want.1.is_empty() && allowed.contains(want.1), "{field}: {allowed}");
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn check(change: impl FnOnce(&mut JobSpec), field: &str, allowed: &str) {
        let mut spec = job("jfoo", 3, 200);
        change(&mut spec);
        assert_result(check_job(&spec), (field, allowed));
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
        assert_result(check_machine(&spec), (field, allowed));
    }

    fn gpu(count: u8, milli: u16) -> DeviceRequest {
        DeviceRequest { kind: token("gpu"), models: Vec::new(), count, milli }
    }

    fn amount(name: &str, amount: u64) -> NamedAmount {
        NamedAmount { name: ResourceName { namespace: None, name: token(name) }, amount }
    }

    fn limits(amount: u64) -> TaskOverride {
        TaskOverride { limits: Some(all(amount).into()), ..TaskOverride::default() }
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
        check(|s| s.repair = Some(Span(1)), "repair", "none without gang");
        check(|s| (s.gang, s.repair) = (true, Some(Span::ZERO)), "repair", "1 ms or more");
        check(|s| (s.gang, s.repair) = (true, Some(Span(1))), "", "");
        let bound = |priority, field, allowed| {
            let mut spec = job("jfoo", 1, priority);
            spec.preemption_notice_max = Some(Span::ZERO);
            assert_result(check_job(&spec), (field, allowed));
        };
        bound(199, "preemption_notice_max", "priority 200 or more");
        bound(200, "", "");
        bound(300, "", "");
        check(|s| s.task.limits.ram = MAX_QUANTITY, "", "");
        check(|s| s.task.limits.ram = MAX_QUANTITY + 1, "task.limits.ram", "at most");
        check(
            |s| (s.count, s.task.limits.cpu) = (MAX_TASKS, MAX_QUANTITY),
            "total of all tasks' task.limits.cpu",
            "at most",
        );
        check(|s| drop(s.overrides.insert(2, limits(5))), "", "");
        check(|s| drop(s.overrides.insert(3, limits(5))), "overrides.3 (task index)", "0 to 2");
        let much = |s: &mut JobSpec| drop(s.overrides.insert(0, limits(MAX_QUANTITY + 1)));
        check(much, "overrides.0.limits.cpu", "at most");
    }

    #[test]
    fn a_task_has_the_memory_to_begin_with() {
        let check = |change: fn(&mut JobSpec), field: &str| {
            let mut spec = job("jfoo", 3, 200);
            spec.task.limits.ram = MIN_RAM;
            change(&mut spec);
            let allowed = "2097152 (2 MiB) or more, and in a container 16777216 (16 MiB) or more";
            let allowed = if field.is_empty() { "" } else { allowed };
            assert_result(super::check(&spec, has_memory_to_start), (field, allowed));
        };
        check(|_| (), "");
        check(|s| s.task.limits.ram = 1024, "task.limits.ram");
        check(|s| drop(s.overrides.insert(1, limits(5))), "overrides.1.limits.ram");
        check(|s| (s.task.limits.ram, s.task.isolation.slack_ram) = (0, true), "");
        check(|s| (s.task.limits.ram, s.kind) = (0, JobKind::AllocSet), "");
    }

    #[test]
    fn jobs_to_wait_for() {
        let on = |job: &str| JobDependency { job: key(job), require_success: true };
        let list =
            |jobs: &[&str]| -> Vec<JobDependency> { jobs.iter().map(|job| on(job)).collect() };
        check(|s| s.after = list(&["ubar/a", "ubar/b", "uzed/a"]), "", "");
        check(|s| s.after = list(&["ubar/a", "ubar/b", "ubar/a"]), "after[2].job", "each job once");
        let many = (0..=MAX_LIST).map(|i| on(&format!("ubar/j{i}"))).collect();
        check(|s| s.after = many, "after", "at most 64");
    }

    #[test]
    fn ports_devices_and_named_resources() {
        check(|s| s.task.static_ports = vec![80, 443], "", "");
        check(|s| s.task.static_ports = vec![0], "task.static_ports[0]", "1 to 65535");
        check(|s| s.task.static_ports = vec![80, 80], "task.static_ports[1]", "each port once");
        let many = |s: &mut JobSpec| s.task.static_ports = (1..=65).collect();
        check(many, "task.static_ports", "at most 64");
        check(|s| s.task.devices = vec![gpu(1, 500), gpu(2, 1000)], "", "");
        check(|s| s.task.devices = vec![gpu(0, 500)], "task.devices[0].count", "1 to 64");
        check(|s| s.task.devices = vec![gpu(1, 0)], "task.devices[0].milli", "1 to 1000");
        check(|s| s.task.devices = vec![gpu(1, 1001)], "task.devices[0].milli", "1 to 1000");
        check(|s| s.task.devices = vec![gpu(2, 500)], "task.devices[0].milli", "1000 when more");
        let mut spec = job("jfoo", 3, 200);
        spec.task.devices = vec![gpu(1, 500), gpu(1, 500)];
        assert_result(check_job(&spec), ("", ""));
        spec.task.devices[1].kind = token(REMOVED_DEVICE);
        assert_result(check_job(&spec), ("task.devices[1].kind", "any other kind"));
        check(|s| s.task.named = vec![amount("a", 1), amount("b", 1)], "", "");
        let unsorted = |s: &mut JobSpec| s.task.named = vec![amount("b", 1), amount("a", 1)];
        check(unsorted, "task.named[1]", "names in order");
        check(|s| s.task.named = vec![amount("a", UNBOUNDED)], "task.named[0].amount", "at most");
    }

    #[test]
    fn programs_and_texts() {
        let variable = |name: &str, value: &str| BTreeMap::from([(name.into(), value.into())]);
        check(|s| s.task.env = variable("A", "b=c"), "", "");
        check(|s| s.task.env = variable("A=", "b"), "task.env.A= (name)", "without =");
        check(|s| s.task.env = variable("", "b"), "task.env. (name)", "not empty");
        check(|s| s.task.env = variable("A", "\0"), "task.env.A", "no zero bytes");
        check(|s| s.task.command = vec!["a\0".into()], "task.command[0]", "no zero bytes");
        check(
            |s| s.task.command = vec!["x".repeat(MAX_TASK_TEXT + 1)],
            "task.command (bytes of command and env)",
            "at most 65536",
        );
        let package = |name: &str| PackageRef { name: token(name), digest: token("d"), bytes: 1 };
        check(|s| s.task.packages = vec![package("a"), package("b")], "", "");
        check(
            |s| s.task.packages = vec![package("a"), package("a")],
            "task.packages[1].name",
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
            let field = format!("task.files.{path} (path)");
            check(|s| s.task.files = file(path), &field, "relative");
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
        let whole = |appclass| {
            move |s: &mut JobSpec| {
                (s.task.limits.cpu, s.task.isolation.whole_cores) = (1000, 1);
                s.appclass = Some(appclass);
            }
        };
        check(whole(AppClass::LatencySensitive), "", "");
        check(whole(AppClass::Batch), "task.isolation.whole_cores", "latency_sensitive");
        let inside = |s: &mut JobSpec| {
            whole(AppClass::LatencySensitive)(s);
            s.alloc_set = Some(key("ubar/set"));
        };
        check(inside, "task.isolation.whole_cores", "outside alloc sets");
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
            let field = "task.isolation.volumes[1].source";
            let both = || vec![volume("/srv"), volume(path)];
            check(|s| s.task.isolation.volumes = both(), field, "absolute");
        }
        let mut spec = job("jfoo", 3, 200);
        spec.task.isolation.volumes = vec![volume("/srv"), volume("/opt")];
        let field = "task.isolation.volumes[1].target";
        assert_result(check_job(&spec), (field, "each target once"));
        spec.task.isolation.volumes[1].target = "/dev/shm".into();
        assert_result(check_job(&spec), (field, "outside /proc, /sys and /dev"));
        spec.task.isolation.volumes[1].target = "/models".into();
        assert_result(check_job(&spec), ("", ""));
        let secret =
            |name: &str, value: &str| BTreeMap::from([(token(name), Secret(value.to_owned()))]);
        check(|s| s.task.secrets = secret("key.pem", "x"), "", "");
        check(|s| s.task.secrets = secret("../x", "y"), "task.secrets.../x (name)", "letters");
        check(|s| s.task.secrets = secret("key", REDACTED), "task.secrets.key", "the value itself");
    }

    #[test]
    fn policies() {
        let matches = |pattern: &str| Constraint {
            attribute: token("os"),
            operator: Operator::Matches(pattern.into()),
            strength: Strength::Hard,
        };
        check(|s| s.constraints = vec![matches("a.*")], "", "");
        check(|s| s.constraints = vec![matches("a"), matches("(")], "constraints[1]", "not valid");
        let spread = |limit| SpreadLimit { domain: crate::spec::Domain::Rack, limit };
        check(|s| s.spread = vec![spread(2)], "", "");
        check(|s| s.spread = vec![spread(0)], "spread[0].limit", "1 or more");
        check(|s| s.spread = vec![spread(1), spread(2)], "spread[1].domain", "each domain once");
        let rate = |most, within| Some(DisruptionLimit { most, within });
        check(|s| s.disruptions = rate(1, Span(1)), "", "");
        check(|s| s.disruptions = rate(MAX_DISRUPTIONS, MAX_SPAN), "", "");
        check(|s| s.disruptions = rate(0, Span(1)), "disruptions.most", "1 to 1000");
        check(|s| s.disruptions = rate(1001, Span(1)), "disruptions.most", "1 to 1000");
        check(|s| s.disruptions = rate(1, Span::ZERO), "disruptions.within", "1 ms or more");
        check(|s| s.disruptions = rate(1, Span(u64::MAX)), "disruptions.within", "at most");
        let back = |failures, within| Some(RollbackLimit { failures, within });
        check(|s| s.update.rollback = back(MAX_ROLLBACK_FAILURES, MAX_SPAN), "", "");
        check(|s| s.update.rollback = back(0, Span(1)), "update.rollback.failures", "1 to 1000");
        check(
            |s| s.update.rollback = back(1, Span::ZERO),
            "update.rollback.within",
            "1 ms or more",
        );
        check(|s| s.update.canaries = MAX_TASKS, "", "");
        check(|s| s.update.canaries = MAX_TASKS + 1, "update.canaries", "0 to 200000");
        check(
            |s| s.update.promote_after = Some(Span::ZERO),
            "update.promote_after",
            "1 ms or more",
        );
        check(|s| s.restart.backoff = Span::seconds(61), "restart.backoff", "60000 ms");
        check(|s| s.restart.backoff_max = Span(u64::MAX), "restart.backoff_max", "at most");
        check(|s| s.at_most_one = Some(Span(0)), "at_most_one", "1 ms or more");
        let retain = |bytes| Some(RetainDisk { bytes, keep: Span::seconds(1), log_saver: None });
        check(|s| s.retain_disk = retain(10), "", "");
        check(|s| s.retain_disk = retain(11), "retain_disk.bytes", "at most 10");
        let saved = |s: &mut JobSpec| {
            let saver = Some(s.name.clone());
            s.retain_disk = retain(10).map(|retain| RetainDisk { log_saver: saver, ..retain });
        };
        check(saved, "retain_disk.log_saver", "only what an alloc left has a saver");
        let own = |s: &mut JobSpec| {
            s.kind = JobKind::AllocSet;
            s.task.command = Vec::new();
            saved(s);
        };
        check(own, "retain_disk.log_saver", "a job that runs inside this alloc set");
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
        check_alloc_set(|s| s.task.archive_logs = true, "task.archive_logs", "no program");
        check_alloc_set(|s| s.alloc_set = Some(key("ubar/set")), "alloc_set", "do not nest");
        let own = TaskOverride { command: Some(Vec::new()), ..TaskOverride::default() };
        check_alloc_set(|s| drop(s.overrides.insert(1, own)), "overrides.1", "no program");
        check_inside(|s| s.gang = true, "");
        check_inside(|s| s.task.ports = 2, "");
        check_inside(|s| s.task.devices = vec![gpu(1, 1000)], "task.devices");
        check_inside(|s| s.task.named = vec![amount("a", 1)], "task.named");
        let apart = || vec![SpreadLimit { domain: crate::spec::Domain::Machine, limit: 1 }];
        let inside = |s: &mut JobSpec| (s.alloc_set, s.spread) = (Some(key("ubar/set")), apart());
        check(inside, "spread", "spread the alloc set");
        let any = |s: &mut JobSpec| {
            inside(s);
            s.alloc_pairing = AllocPairing::Any;
        };
        check(any, "", "");
        check_inside(
            |s| s.retain_disk = Some(RetainDisk { bytes: 1, keep: Span(1), log_saver: None }),
            "retain_disk",
        );
    }

    fn rejected_paths(spec: &JobSpec, unknown: &[&str]) -> Vec<String> {
        let mut fields = FieldSet::default();
        unknown.iter().for_each(|path| fields.insert(FieldPath::from(*path)));
        let found = review_job(spec, &RULES, fields);
        found.into_iter().map(|rejection| rejection.path.to_string()).collect()
    }

    #[test]
    fn everything_is_rejected_in_one_pass_and_nothing_that_follows() {
        let mut spec = job("jfoo", 0, 400);
        spec.task.command = vec!["true".to_owned()];
        spec.overrides.insert(7, limits(5));
        spec.task.static_ports = vec![0, 80, 80];
        spec.task.isolation.network = Network::Own;
        spec.task.packages = ["a", "a"]
            .map(|name| PackageRef { name: token(name), digest: token("d"), bytes: 1 })
            .to_vec();
        spec.restart.backoff = Span(u64::MAX);
        let want = [
            "count",
            "priority",
            "task.static_ports[0]",
            "task.static_ports[2]",
            "task.packages[1].name",
            "restart.backoff",
            "task.packages[0].digest",
            "task.packages[1].digest",
        ];
        assert_eq!(rejected_paths(&spec, &[]), want);
        // The first error is the cell's verdict.
        assert_result(check_job(&spec), ("count", "1 to 200000"));
        // There are no errors about unknown fields, or about values computed from them.
        let unknown = ["count", "priority", "task.static_ports", "task.packages", "restart"];
        assert_eq!(rejected_paths(&spec, &unknown), Vec::<String>::new());
    }

    #[test]
    fn a_thousand_rejections_are_enough() {
        let mut spec = job("jfoo", 1, 200);
        spec.overrides = (1..3000).map(|index| (index, limits(MAX_QUANTITY + 1))).collect();
        assert_eq!(rejected_paths(&spec, &[]).len(), 1000);
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
