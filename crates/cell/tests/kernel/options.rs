//! Options of transcript lines: `cpu=2 ram=4g max-down=1`. An unknown word is an error.
//!
//! `cpu` counts cores (`500m` is half of one); `ram` and `disk` take `m` and `g`; times take `s`.

use crate::build;
use cellwright_cell::alloc_pairing::AllocPairing;
use cellwright_cell::constraint::{Constraint, Operator, Strength};
use cellwright_cell::disruption::DisruptionLimit;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::named::NamedAmount;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::retry::Retries;
use cellwright_cell::scale::ScalePolicy;
use cellwright_cell::spec::{
    Domain, JobDependency, JobKind, JobSpec, PackageRef, RetainDisk, SpreadLimit, TaskOverride,
};
use cellwright_cell::time::Span;
use cellwright_cell::update_policy::RollbackLimit;

pub struct Options<'a>(Vec<(&'a str, &'a str)>);

/// `30s`.
pub fn seconds(text: &str) -> Result<Span, String> {
    let number = text.strip_suffix('s').and_then(|n| n.parse().ok());
    number.map(Span::seconds).ok_or_else(|| format!("a time like 30s, not {text:?}"))
}

/// `2/600s`.
fn rate(text: &str) -> Result<DisruptionLimit, String> {
    let parts = text.split_once('/').and_then(|(most, within)| Some((most.parse().ok()?, within)));
    let (most, within) = parts.ok_or_else(|| format!("a rate like 2/600s, not {text:?}"))?;
    Ok(DisruptionLimit { most, within: seconds(within)? })
}

fn quantity(text: &str, milli: bool) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| format!("an amount, not {text:?}"))?;
    match (unit, milli) {
        ("m", true) => Ok(number),
        ("", true) => Ok(number * 1000),
        ("m", false) => Ok(number << 20),
        ("g", false) => Ok(number << 30),
        ("", false) => Ok(number),
        _ => Err(format!("an amount, not {text:?}")),
    }
}

pub fn package(name: &str) -> PackageRef {
    PackageRef { name: build::token(name), digest: build::token("d1"), bytes: 1 << 20 }
}

fn amount(text: &str, count: &str) -> Result<NamedAmount, String> {
    let count = count.parse().map_err(|_| format!("a number, not {count:?}"))?;
    Ok(match text.split_once('/') {
        Some((namespace, name)) => build::amount(Some(namespace), name, count),
        None => build::amount(None, text, count),
    })
}

impl<'a> Options<'a> {
    pub fn new(words: &[&'a str]) -> Result<Options<'a>, String> {
        Ok(Options(words.iter().map(|word| word.split_once('=').unwrap_or((word, ""))).collect()))
    }

    pub fn all_used(self) -> Result<(), String> {
        match self.0.first() {
            Some((key, value)) => Err(format!("the option {key}={value} means nothing here")),
            None => Ok(()),
        }
    }

    pub fn text(&mut self, key: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(k, _)| *k == key)?;
        Some(self.0.remove(at).1)
    }

    /// Options of the form `prefix:rest=value`.
    fn with_prefix(&mut self, prefix: &str) -> Vec<(&'a str, &'a str)> {
        let mut found = Vec::new();
        self.0.retain(|(key, value)| match key.strip_prefix(prefix) {
            Some(rest) => {
                found.push((rest, *value));
                false
            }
            None => true,
        });
        found
    }

    pub fn number(&mut self, key: &str) -> Result<Option<u64>, String> {
        let text = self.text(key);
        text.map(|t| t.parse().map_err(|_| format!("{key}: a number, not {t:?}"))).transpose()
    }

    pub fn span(&mut self, key: &str) -> Result<Option<Span>, String> {
        self.text(key).map(seconds).transpose()
    }

    /// `none` switches an optional number off.
    fn bound(&mut self, key: &str, old: Option<u32>) -> Result<Option<u32>, String> {
        match self.text(key) {
            None => Ok(old),
            Some("none") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| format!("{key}: {text:?}")),
        }
    }

    pub fn resources(&mut self, old: Resources) -> Result<Resources, String> {
        let mut all = old.to_array();
        for (at, key) in ["cpu", "ram", "disk", "rate"].into_iter().enumerate() {
            if let Some(text) = self.text(key) {
                all[at] = quantity(text, at == 0)?;
            }
        }
        Ok(Resources::from_array(all))
    }

    pub fn machine(mut self, mut spec: MachineSpec) -> Result<MachineSpec, String> {
        spec.capacity = self.resources(spec.capacity)?;
        spec.rack = self.text("rack").map(build::token).or(spec.rack);
        spec.power = self.text("power").map(build::token).or(spec.power);
        if let Some(count) = self.number("gpus")? {
            spec.devices = build::gpus(count as usize);
        }
        for (key, value) in self.with_prefix("attribute:") {
            spec.attributes.insert(build::token(key), build::text(value));
        }
        for (name, count) in self.with_prefix("has:") {
            spec.named.push(amount(name, count)?);
        }
        self.all_used()?;
        Ok(spec)
    }

    pub fn job(mut self, mut spec: JobSpec) -> Result<JobSpec, String> {
        spec.task.limits = self.resources(spec.task.limits)?;
        if let Some(count) = self.number("count")? {
            spec.count = count as u32;
        }
        if let Some(priority) = self.number("priority")? {
            spec.priority = Priority(priority as u16);
        }
        self.placement(&mut spec)?;
        self.policies(&mut spec)?;
        self.all_used()?;
        Ok(spec)
    }

    fn placement(&mut self, spec: &mut JobSpec) -> Result<(), String> {
        if let Some(ports) = self.number("ports")? {
            spec.task.ports = ports as u8;
        }
        if let Some(port) = self.number("port")? {
            spec.task.static_ports = vec![port as u16];
        }
        if let Some(milli) = self.number("gpu-milli")? {
            spec.task.devices = vec![build::gpu_request(1, milli as u16)];
        }
        if let Some(command) = self.text("command") {
            spec.task.command = vec![command.to_owned()];
        }
        for (attribute, value) in self.with_prefix("only:") {
            spec.constraints.push(Constraint {
                attribute: build::token(attribute),
                operator: Operator::Equal(build::text(value)),
                strength: Strength::Hard,
            });
        }
        for (name, count) in self.with_prefix("needs:") {
            spec.task.named.push(amount(name, count)?);
        }
        for (index, cpu) in self.with_prefix("cpu-of:") {
            let index = index.parse().map_err(|_| format!("a task index, not {index:?}"))?;
            let limits = Resources { cpu: quantity(cpu, true)?, ..spec.task.limits };
            let change = TaskOverride { limits: Some(limits.into()), ..TaskOverride::default() };
            spec.overrides.insert(index, change);
        }
        if let Some(limit) = self.number("per-machine")? {
            spec.spread = vec![SpreadLimit { domain: Domain::Machine, limit: limit as u32 }];
        }
        if let Some((min, max)) = self.text("scale").and_then(|text| text.split_once('-')) {
            let bound = |text: &str| text.parse().map_err(|_| format!("scale: {text:?}"));
            let mut policy = ScalePolicy::between(bound(min)?, bound(max)?);
            policy.target.cpu = Some(60);
            spec.scale = Some(policy);
        }
        spec.gang |= self.text("gang").is_some();
        if let Some(repair) = self.span("repair")? {
            spec.repair = Some(repair);
        }
        if self.text("daemon").is_some() {
            spec.kind = JobKind::Daemon;
        }
        if let Some((user, set)) = self.text("in").and_then(|text| text.split_once('/')) {
            spec.alloc_set = Some(build::job_key(user, set));
            let paired = self.text("paired").is_some();
            spec.alloc_pairing = if paired { AllocPairing::Index } else { AllocPairing::Any };
        }
        Ok(())
    }

    /// `retry:oom=1`, `retry:42=0`: kinds by their short names, or an exit code.
    fn retries(&mut self, retry: &mut Retries) -> Result<(), String> {
        for (kind, times) in self.with_prefix("retry:") {
            let times = times.parse().map_err(|_| format!("retry:{kind}: {times:?}"))?;
            let field = match kind {
                "failed" => &mut retry.failed,
                "oom" => &mut retry.out_of_memory,
                "timeout" => &mut retry.timed_out,
                "unhealthy" => &mut retry.unhealthy,
                "lost" => &mut retry.lost,
                "evicted" => &mut retry.evicted,
                code => {
                    let code = code.parse().map_err(|_| format!("retry:{code}"))?;
                    retry.exit.insert(code, times);
                    continue;
                }
            };
            *field = Some(times);
        }
        Ok(())
    }

    fn policies(&mut self, spec: &mut JobSpec) -> Result<(), String> {
        spec.max_down = self.bound("max-down", spec.max_down)?;
        spec.max_update_disruptions = self.bound("max-disruptions", spec.max_update_disruptions)?;
        if let Some(text) = self.text("disruptions") {
            spec.disruptions = Some(rate(text)?);
        }
        if let Some(text) = self.text("rollback") {
            let DisruptionLimit { most: failures, within } = rate(text)?;
            spec.update.rollback = Some(RollbackLimit { failures, within });
        }
        if let Some(count) = self.number("canaries")? {
            spec.update.canaries = count as u32;
        }
        spec.update.promote_after = self.span("promote-after")?.or(spec.update.promote_after);
        spec.restart.max_failures = self.bound("max-failures", spec.restart.max_failures)?;
        self.retries(&mut spec.restart.retry)?;
        spec.restart.restart_on_success |= self.text("service").is_some();
        spec.restart.backoff = self.span("backoff")?.unwrap_or(spec.restart.backoff);
        spec.task.notice = self.span("notice")?.unwrap_or(spec.task.notice);
        spec.at_most_one = self.span("at-most-one")?.or(spec.at_most_one);
        spec.reclaimable &= self.text("not-reclaimable").is_none();
        if let Some(bytes) = self.text("retain") {
            let keep = self.span("keep")?.unwrap_or(Span::seconds(3600));
            let saver = self.text("saver").map(build::name);
            spec.retain_disk =
                Some(RetainDisk { bytes: quantity(bytes, false)?, keep, log_saver: saver });
        }
        let strict = self.text("on-success").is_some();
        let others = self.text("after").unwrap_or_default().split(',');
        spec.after.extend(others.filter_map(|text| text.split_once('/')).map(|(user, job)| {
            JobDependency { job: build::job_key(user, job), require_success: strict }
        }));
        Ok(())
    }
}
