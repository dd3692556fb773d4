//! The effect of a change of spec on a running task (B7), field by field.
//!
//! The class is reported to the owner before the change; the effect is what has to be done. They
//! differ where a change might need a move and mostly does not: a task under a new constraint that
//! holds where it runs is not disturbed at all.
//!
//! Rejected: restarting everything for every change. Keeping a task running is worth a short list
//! of rules.

use crate::alloc_pairing::AllocPairing;
use crate::constraint::Constraint;
use crate::isolation::Volume;
use crate::job::{ChangeClass, Job};
use crate::named::NamedAmount;
use crate::resource::Resources;
use crate::spec::JobSpec;
use crate::task::Task;
use std::collections::BTreeSet;

/// What has to be done to a task that is on a machine, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Nothing, if the new spec still fits.
    InPlace,
    /// Stop and start, on the same machine if it still fits.
    Restart,
    /// Back to pending: only placement assigns ports and devices.
    Replace,
}

/// One field that differs, and the class of that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldChange {
    pub field: &'static str,
    pub class: ChangeClass,
    pub effect: Effect,
}

/// Every field in which the specs differ, in the order of the spec.
#[must_use]
pub fn spec_changes(old: &JobSpec, new: &JobSpec) -> Vec<FieldChange> {
    let mut list = shared_fields(old, new);
    list.extend(limits(old.task.limits, new.task.limits));
    list.extend(program("task.command", old.task.command != new.task.command));
    list.extend(program("task.env", old.task.env != new.task.env));
    if old.overrides != new.overrides {
        let indices: BTreeSet<u32> =
            old.overrides.keys().chain(new.overrides.keys()).copied().collect();
        let own = indices.into_iter().flat_map(|index| task_fields(old, new, index));
        let none = (ChangeClass::NoRestart, Effect::InPlace);
        let (class, effect) = own.fold(none, strongest);
        list.push(FieldChange { field: "overrides", class, effect });
    }
    list
}

/// The strongest class of any change to any task.
#[must_use]
pub fn classify(old: &JobSpec, new: &JobSpec) -> ChangeClass {
    let classes = spec_changes(old, new).into_iter().map(|change| change.class);
    classes.max().unwrap_or(ChangeClass::NoRestart)
}

/// What the change means for the task at `index` alone.
#[must_use]
pub fn task_change(old: &JobSpec, new: &JobSpec, index: u32) -> (ChangeClass, Effect) {
    let own = task_fields(old, new, index);
    let all = shared_fields(old, new).into_iter().chain(own);
    all.fold((ChangeClass::NoRestart, Effect::InPlace), strongest)
}

/// Whether `task` is to run another program or ask for another place than the one it failed in, so
/// that its failures so far say little about the next attempt.
pub(crate) fn becomes_new_program(job: &Job, task: &Task) -> bool {
    let other = task.version != job.version;
    other
        && task_change(job.spec_of(task.version), job.spec(), task.index).0 >= ChangeClass::Restart
}

/// Name of the first field that no update can change. Such a change needs a new job.
#[must_use]
pub fn immutable_field(old: &JobSpec, new: &JobSpec) -> Option<&'static str> {
    let fixed = [
        ("name", old.name != new.name),
        ("kind", old.kind != new.kind),
        ("alloc_set", old.alloc_set != new.alloc_set),
        ("after", old.after != new.after),
        ("gang", old.gang != new.gang),
    ];
    fixed.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
}

fn strongest(so_far: (ChangeClass, Effect), change: FieldChange) -> (ChangeClass, Effect) {
    (so_far.0.max(change.class), so_far.1.max(change.effect))
}

/// Fields that are the same for all tasks of the job.
fn shared_fields(old: &JobSpec, new: &JobSpec) -> Vec<FieldChange> {
    let (a, b) = (&old.task, &new.task);
    let free = [
        ("count", old.count != new.count),
        ("priority", old.priority != new.priority),
        ("appclass", old.appclass != new.appclass),
        ("labels", old.labels != new.labels),
        ("task.notice", a.notice != b.notice),
        ("task.health", a.health != b.health),
        ("task.archive_logs", a.archive_logs != b.archive_logs),
        ("repair", old.repair != new.repair),
        ("max_down", old.max_down != new.max_down),
        ("max_update_disruptions", old.max_update_disruptions != new.max_update_disruptions),
        ("preemption_notice_max", old.preemption_notice_max != new.preemption_notice_max),
        ("restart", old.restart != new.restart),
        ("reclaimable", old.reclaimable != new.reclaimable),
        ("at_most_one", old.at_most_one != new.at_most_one),
        ("retain_disk", old.retain_disk != new.retain_disk),
        ("disruptions", old.disruptions != new.disruptions),
        ("update", old.update != new.update),
        ("scale", old.scale != new.scale),
    ];
    let differing = free.into_iter().filter(|(_, differs)| *differs);
    let mut list: Vec<FieldChange> = differing
        .map(|(field, _)| change(field, ChangeClass::NoRestart, Effect::InPlace))
        .collect();
    let placed = [
        ("task.ports", a.ports != b.ports),
        ("task.static_ports", a.static_ports != b.static_ports),
        ("task.devices", a.devices != b.devices),
    ];
    let differing = placed.into_iter().filter(|(_, differs)| *differs);
    list.extend(differing.map(|(field, _)| change(field, ChangeClass::MayMove, Effect::Replace)));
    let programs = [
        ("task.packages", a.packages != b.packages),
        ("task.max_run", a.max_run != b.max_run),
        ("task.files", a.files != b.files),
        ("task.user", a.user != b.user),
        ("task.logs", a.logs != b.logs),
        ("task.secrets", a.secrets != b.secrets),
    ];
    list.extend(programs.into_iter().filter_map(|(field, differs)| program(field, differs)));
    if a.isolation != b.isolation {
        let more = needs_more_host_volumes(&a.isolation.volumes, &b.isolation.volumes)
            || b.isolation.whole_cores > a.isolation.whole_cores;
        let class = if more { ChangeClass::MayMove } else { ChangeClass::Restart };
        list.push(change("task.isolation", class, Effect::Restart));
    }
    if a.named != b.named {
        list.push(in_place("task.named", requests_more(&a.named, &b.named)));
    }
    if old.constraints != new.constraints {
        list.push(in_place("constraints", constrains_more(&old.constraints, &new.constraints)));
    }
    if old.alloc_pairing != new.alloc_pairing {
        list.push(in_place("alloc_pairing", new.alloc_pairing == AllocPairing::Index));
    }
    if old.spread != new.spread {
        list.push(in_place("spread", !new.spread.is_empty()));
    }
    list
}

fn task_fields(old: &JobSpec, new: &JobSpec, index: u32) -> impl Iterator<Item = FieldChange> {
    limits(old.limits_of(index), new.limits_of(index))
        .into_iter()
        .chain(program("task.command", old.command_of(index) != new.command_of(index)))
        .chain(program("task.env", old.env_of(index) != new.env_of(index)))
}

fn change(field: &'static str, class: ChangeClass, effect: Effect) -> FieldChange {
    FieldChange { field, class, effect }
}

fn in_place(field: &'static str, may_move: bool) -> FieldChange {
    let class = if may_move { ChangeClass::MayMove } else { ChangeClass::NoRestart };
    change(field, class, Effect::InPlace)
}

fn program(field: &'static str, differs: bool) -> Option<FieldChange> {
    differs.then_some(change(field, ChangeClass::Restart, Effect::Restart))
}

/// Limits are changed around what runs: only what no longer fits where it is has to move.
fn limits(old: Resources, new: Resources) -> Option<FieldChange> {
    (old != new).then(|| in_place("task.limits", !new.within(old)))
}

fn requests_more(old: &[NamedAmount], new: &[NamedAmount]) -> bool {
    new.iter().any(|wanted| {
        let before = old.iter().find(|had| had.name == wanted.name);
        before.is_none_or(|had| wanted.amount > had.amount)
    })
}

/// The target path of a volume has nothing to do with which machines lend the folder.
fn needs_more_host_volumes(old: &[Volume], new: &[Volume]) -> bool {
    new.iter().any(|volume| !old.iter().any(|had| had.host_volume() == volume.host_volume()))
}

fn constrains_more(old: &[Constraint], new: &[Constraint]) -> bool {
    new.iter().any(|constraint| constraint.is_hard() && !old.contains(constraint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{all, job, key};
    use crate::constraint::{Operator, Strength};
    use crate::disruption::DisruptionLimit;
    use crate::name::Token;
    use crate::priority::Priority;
    use crate::spec::{JobKind, SpreadLimit, TaskOverride};
    use crate::time::Span;
    use ChangeClass::{MayMove, NoRestart, Restart};
    use std::collections::BTreeMap;

    fn check(change: impl FnOnce(&mut JobSpec), want: &[(&str, ChangeClass, Effect)]) {
        let old = job("jfoo", 3, 200);
        let mut new = old.clone();
        change(&mut new);
        let got: Vec<(&str, ChangeClass, Effect)> =
            spec_changes(&old, &new).into_iter().map(|c| (c.field, c.class, c.effect)).collect();
        assert_eq!(got, want);
        let strongest = want.iter().map(|(_, class, _)| *class).max().unwrap_or(NoRestart);
        assert_eq!(classify(&old, &new), strongest);
    }

    fn on_flash(strength: Strength) -> Vec<Constraint> {
        let attribute = Token::new("flash").unwrap();
        vec![Constraint { attribute, operator: Operator::Exists, strength }]
    }

    #[test]
    fn every_field_has_a_class() {
        check(|_| (), &[]);
        check(|s| s.priority = Priority(100), &[("priority", NoRestart, Effect::InPlace)]);
        check(|s| s.count = 5, &[("count", NoRestart, Effect::InPlace)]);
        check(|s| s.max_down = Some(1), &[("max_down", NoRestart, Effect::InPlace)]);
        let limit = DisruptionLimit { most: 1, within: Span::seconds(60) };
        check(|s| s.disruptions = Some(limit), &[("disruptions", NoRestart, Effect::InPlace)]);
        check(|s| s.update.canaries = 1, &[("update", NoRestart, Effect::InPlace)]);
        check(|s| s.reclaimable = false, &[("reclaimable", NoRestart, Effect::InPlace)]);
        check(
            |s| s.task.command = vec!["new".into()],
            &[("task.command", Restart, Effect::Restart)],
        );
        check(|s| s.task.limits = all(9), &[("task.limits", NoRestart, Effect::InPlace)]);
        check(|s| s.task.limits.ram = 11, &[("task.limits", MayMove, Effect::InPlace)]);
        check(|s| s.task.ports = 1, &[("task.ports", MayMove, Effect::Replace)]);
        check(
            |s| s.constraints = on_flash(Strength::Hard),
            &[("constraints", MayMove, Effect::InPlace)],
        );
        check(
            |s| s.constraints = on_flash(Strength::Soft(5)),
            &[("constraints", NoRestart, Effect::InPlace)],
        );
        check(|s| s.task.isolation.processes = 7, &[("task.isolation", Restart, Effect::Restart)]);
        let source = "/srv/data".to_owned();
        let volume = Volume { source, target: "/data".into(), writable: false };
        check(
            |s| s.task.isolation.volumes = vec![volume],
            &[("task.isolation", MayMove, Effect::Restart)],
        );
        let spread = SpreadLimit { domain: crate::spec::Domain::Machine, limit: 1 };
        check(|s| s.spread = vec![spread], &[("spread", MayMove, Effect::InPlace)]);
        check(
            |s| (s.count, s.task.env) = (9, BTreeMap::from([("A".into(), "b".into())])),
            &[("count", NoRestart, Effect::InPlace), ("task.env", Restart, Effect::Restart)],
        );
    }

    #[test]
    fn an_override_concerns_its_task_alone() {
        let old = job("jfoo", 3, 200);
        let mut new = old.clone();
        let own = TaskOverride { limits: Some(all(20).into()), ..TaskOverride::default() };
        new.overrides.insert(1, own);
        assert_eq!(classify(&old, &new), MayMove);
        assert_eq!(task_change(&old, &new, 0), (NoRestart, Effect::InPlace));
        assert_eq!(task_change(&old, &new, 1), (MayMove, Effect::InPlace));
        // An override that repeats the job's value changes nothing for the task.
        new.overrides.clear();
        new.overrides
            .insert(1, TaskOverride { limits: Some(all(10).into()), ..TaskOverride::default() });
        assert_eq!(task_change(&old, &new, 1), (NoRestart, Effect::InPlace));
    }

    #[test]
    fn limits_change_around_tasks_and_allocs_alike() {
        for kind in [JobKind::Tasks, JobKind::AllocSet] {
            let mut old = job("set", 1, 200);
            old.kind = kind;
            let mut new = old.clone();
            new.task.limits = all(5);
            assert_eq!(task_change(&old, &new, 0), (NoRestart, Effect::InPlace));
            new.task.limits = all(50);
            assert_eq!(task_change(&old, &new, 0), (MayMove, Effect::InPlace));
            new.task.command = vec!["new".into()];
            assert_eq!(task_change(&old, &new, 0), (MayMove, Effect::Restart));
        }
    }

    #[test]
    fn some_fields_make_another_job() {
        let old = job("jfoo", 3, 200);
        let differs = |change: fn(&mut JobSpec)| {
            let mut new = old.clone();
            change(&mut new);
            immutable_field(&old, &new)
        };
        assert_eq!(differs(|s| s.count = 9), None);
        assert_eq!(differs(|s| s.gang = true), Some("gang"));
        assert_eq!(differs(|s| s.kind = JobKind::AllocSet), Some("kind"));
        assert_eq!(differs(|s| s.alloc_set = Some(key("ubar/set"))), Some("alloc_set"));
    }
}
