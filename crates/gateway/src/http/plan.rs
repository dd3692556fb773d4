//! Plans: what submitting or updating jobs would do, by a dry run on a copy of the live state with
//! the state machine and the scheduler themselves; reported field by field, task by task.

use super::access::Viewer;
use super::admission_limits::FieldErrors;
use super::call::Call;
use super::explain::explanation_view;
use super::missing_packages::MissingPackages;
use super::{Api, ApiResult, reply, user_of, view};
use cellwright_api::error::ApiError;
use cellwright_api::types::{
    FieldDiff, JobPlan, MAX_PLANNED_JOBS, PlanAction, PlanJobs, PlanToken, PlanView, PlannedChange,
    PlannedDisruption, PlannedEffect, PlannedPlace, PlannedTasks, PlannedVictim, QuotaChange,
    SubmitJob, owner_or,
};
use cellwright_cell::command::{ApplyOutcome, Command, Done};
use cellwright_cell::isolation::Secret;
use cellwright_cell::job::{ChangeClass, Job};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::{JobSpec, MAX_TASKS};
use cellwright_cell::spec_change::{self, Effect, FieldChange};
use cellwright_cell::state::State;
use cellwright_cell::words;
use cellwright_sched::dry_run::{DryRun, DryRunResult, TaskEffect, TaskEffects};
use cellwright_sched::executor::Sequential;
use cellwright_sched::whatif::Evicted;
use cellwright_sched::{DEFAULT_SEED, Options};
use serde_json::Value;

/// Limits of the machines listed for a job, and of the task indices listed for each.
const MAX_PLACES: usize = 50;
const MAX_NAMED_TASKS: usize = 20;
/// Limit of the victims listed for a job.
const MAX_VICTIMS: usize = 1000;
/// Replaces a secret written by somebody other than the owner; the second one if the old value is
/// equal to the first.
const CHANGED_SECRET: &str = "-";
const CHANGED_SECRET_ALTERNATIVE: &str = "--";

impl Api {
    pub(super) async fn plan_jobs(&self, mut call: Call) -> ApiResult {
        let PlanJobs { jobs } = call.json(self).await?;
        if !(1..=MAX_PLANNED_JOBS).contains(&jobs.len()) {
            let allowed = format!("1 to {MAX_PLANNED_JOBS} jobs");
            return Err(ApiError::field("jobs", &jobs.len().to_string(), &allowed));
        }
        let tasks = jobs.iter().fold(0u32, |sum, job| sum.saturating_add(job.spec.count));
        if tasks > MAX_TASKS {
            let allowed = format!("at most {MAX_TASKS} tasks in all jobs of one plan");
            return Err(ApiError::field("jobs", &format!("{tasks} tasks"), &allowed));
        }
        let caller = call.caller()?.clone();
        let mut requested: Vec<(Name, JobSpec)> = Vec::new();
        for SubmitJob { owner, spec } in jobs {
            let owner = owner_or(owner, user_of(&caller))?;
            let (owner_name, spec_checked) = (owner.clone(), spec.clone());
            self.check_limits(&Command::ApplyJob {
                owner: owner_name,
                spec: Box::new(spec_checked),
                expect: None,
                again: false,
            })?;
            // Before anything of the job is looked at: a diff reveals the present spec.
            let job = JobKey { user: owner.clone(), job: spec.name.clone() };
            self.check_may_change(&caller, &job).inspect_err(|error| {
                self.write_audit(&call, "plan", &job.to_string(), error.code.as_str());
            })?;
            requested.push((owner, spec));
        }
        // The barrier: what was acknowledged before is in the snapshot too.
        let (_, consistent) = call.view(self).await?;
        let mut shard_obstacles = Vec::new();
        for (_, spec) in &requested {
            shard_obstacles.push(self.unserved_shard(spec).await);
        }
        let (viewer, by) = (Viewer::of(&caller), caller);
        let (index, plan) = self
            .query_snapshot(call.actor_text(), move |_, view, snapshot| {
                let missing =
                    MissingPackages::of(&view.state, requested.iter().map(|(_, spec)| spec));
                let (state, snapshot) = (view.state.clone(), snapshot.clone());
                let options = Options::default();
                let mut dry_run = DryRun::new(state, snapshot, options, DEFAULT_SEED, &Sequential);
                let mut plans = Vec::new();
                for ((owner, spec), shard_obstacle) in requested.iter().zip(shard_obstacles) {
                    let spec = &mask_secrets(dry_run.state(), &viewer, owner, spec);
                    let result = dry_run.apply_job(&by, owner, spec);
                    let mut plan = job_plan_view(dry_run.state(), result, spec);
                    if plan.tasks != PlannedTasks::default() {
                        plan.obstacles
                            .extend(shard_obstacle.into_iter().chain(missing.obstacles(spec)));
                    }
                    plans.push(plan);
                }
                let bases = plans.iter().map(JobPlan::base);
                let specs = requested.into_iter().map(|(_, spec)| spec);
                let based: Vec<_> = bases.zip(specs).collect();
                let token = PlanToken::new(view.index, &based).to_string();
                Ok((view.index, PlanView { jobs: plans, token }))
            })
            .await?;
        reply::one(&call, index, consistent, plan)
    }
}

/// For everybody but the owner a secret that is written again counts as changed, whatever it was:
/// users with `administrate_jobs` must not find out a value by trying it.
pub(super) fn mask_secrets(
    state: &State,
    viewer: &Viewer,
    owner: &Name,
    spec: &JobSpec,
) -> JobSpec {
    let mut spec = spec.clone();
    if viewer.is_user(owner) || *viewer == Viewer::Trusted {
        return spec;
    }
    let key = JobKey { user: owner.clone(), job: spec.name.clone() };
    let old = state.job_named(&key).and_then(|id| state.jobs().get(id));
    hide_secrets(old.map(|job| &**job.spec()), &mut spec);
    spec
}

/// Makes every secret differ from the one of its name in `old`.
pub(super) fn hide_secrets(old: Option<&JobSpec>, spec: &mut JobSpec) {
    for (name, value) in &mut spec.task.secrets {
        if let Some(before) = old.and_then(|old| old.task.secrets.get(name)) {
            // A value that is admitted, or every plan would be rejected for it.
            let changed = if before.0 == CHANGED_SECRET {
                CHANGED_SECRET_ALTERNATIVE
            } else {
                CHANGED_SECRET
            };
            *value = Secret(changed.to_owned());
        }
    }
}

fn job_plan_view(state: &State, result: DryRunResult, spec: &JobSpec) -> JobPlan {
    let old = result.current.as_ref().map(|before| before.spec.clone());
    let fates = &result.effects;
    let by_machine = result.by_machine();
    let rejected = result.verdict.as_ref().err().map(|rejection| {
        let mut error = FieldErrors::of_job(spec).attach_to(ApiError::from(rejection));
        error.message = words::rejection(state, rejection);
        error
    });
    let action = match &result.verdict {
        Err(_) => PlanAction::Rejected,
        Ok(Done::Job { became: ApplyOutcome::Created, .. }) => PlanAction::Create,
        Ok(Done::Job { became: ApplyOutcome::Updated, .. }) => PlanAction::Update,
        Ok(_) => PlanAction::Nothing,
    };
    let named = state.job_named(&result.job_key);
    let outdated = named.and_then(|id| Some(view::outdated(state, id, state.jobs().get(id)?)));
    let outdated = outdated.unwrap_or(0);
    let wanted = named.and_then(|id| state.jobs().get(id)).map_or(spec.count, Job::wanted);
    let first = result.pending.first().map(|index| format!("{}/{index}", result.job_key));
    JobPlan {
        user: result.job_key.user.clone(),
        name: result.job_key.job.clone(),
        action,
        version: result.current.as_ref().map(|before| before.version),
        submitted_at: result.current.as_ref().map(|before| before.submitted_at),
        closes_update: result.closes_update_to,
        rejected,
        changes: old.as_ref().map(|old| field_diffs(old, spec)).unwrap_or_default(),
        class: old
            .as_ref()
            .filter(|old| ***old != *spec)
            .map(|old| spec_change::classify(old, spec)),
        tasks: PlannedTasks {
            added: fates.count(TaskEffect::Added),
            removed: fates.count(TaskEffect::Removed),
            in_place: fates.count(TaskEffect::InPlace),
            resized: fates.count(TaskEffect::Resized),
            restarted: fates.count(TaskEffect::Restarted),
            moved: fates.count(TaskEffect::Moved),
            skipped: fates.count(TaskEffect::Skipped),
            deferred: result.deferred,
            estimated: fates.extrapolated,
        },
        effects: old.as_ref().map(|old| planned_effects(fates, old, spec)).unwrap_or_default(),
        placed: result.placed.len() as u32,
        pending: result.pending.len() as u32,
        machines: by_machine.len() as u32,
        places: planned_places(&result),
        victims: planned_victims(&result.victims),
        evicted_in_turn: planned_victims(&result.evicted_in_turn),
        disruption: PlannedDisruption {
            tasks: fates.disruptions,
            at_once: spec.max_down,
            most: spec.max_update_disruptions,
        },
        outdated: if action == PlanAction::Nothing { outdated } else { 0 },
        canaries: if fates.disruptions > 0 { spec.update.canaries.min(wanted) } else { 0 },
        quota: result.quota.iter().map(quota_change_view).collect(),
        why_pending: result
            .explanation
            .as_ref()
            .zip(first)
            .map(|(why, name)| explanation_view::hypothetical_view(name, why)),
        obstacles: Vec::new(),
    }
}

fn quota_change_view(shift: &cellwright_sched::dry_run::QuotaDelta) -> QuotaChange {
    let cellwright_sched::dry_run::QuotaDelta { band, before, after, granted } = *shift;
    QuotaChange { band, before, after, granted }
}

/// Which tasks are resized, restarted, moved or skipped, and the fields that are the reason.
fn planned_effects(effects: &TaskEffects, old: &JobSpec, new: &JobSpec) -> Vec<PlannedEffect> {
    let kinds = [
        (TaskEffect::Resized, PlannedChange::Resized),
        (TaskEffect::Restarted, PlannedChange::Restarted),
        (TaskEffect::Moved, PlannedChange::Moved),
        (TaskEffect::Skipped, PlannedChange::Skipped),
    ];
    let changes = spec_change::spec_changes(old, new);
    let fields = |effect: TaskEffect| {
        let is_reason = |change: &&FieldChange| match effect {
            // Limits that only a task has are among its overrides.
            TaskEffect::Resized => {
                change.field == "task.limits"
                    || (change.field == "overrides" && old.task.limits == new.task.limits)
            }
            TaskEffect::Restarted => change.effect >= Effect::Restart,
            TaskEffect::Moved => change.class == ChangeClass::MayMove,
            _ => change.class > ChangeClass::NoRestart,
        };
        changes.iter().filter(is_reason).map(|change| change.field.to_owned()).collect()
    };
    let named = kinds.into_iter().map(|(effect, change)| PlannedEffect {
        change,
        count: effects.count(effect),
        tasks: effects.with(effect).take(MAX_NAMED_TASKS).collect(),
        fields: fields(effect),
    });
    named.filter(|effect| effect.count > 0).collect()
}

fn planned_places(result: &DryRunResult) -> Vec<PlannedPlace> {
    let on = |name: &str| {
        let placed_there = result.placed.iter().filter(|placed| placed.machine.name == name);
        placed_there.map(|placed| placed.index).take(MAX_NAMED_TASKS).collect()
    };
    let most = result.by_machine().into_iter().take(MAX_PLACES);
    most.map(|(machine, count)| PlannedPlace {
        tasks: on(&machine.name),
        machine: machine.name,
        count,
    })
    .collect()
}

fn planned_victims(evicted: &[Evicted]) -> Vec<PlannedVictim> {
    let victim = |victim: &Evicted| PlannedVictim {
        task: victim.task.name.clone(),
        priority: victim.priority,
        machine: victim.machine.name.clone(),
        moves_to: victim.moves_to.as_ref().map(|machine| machine.name.clone()),
    };
    evicted.iter().take(MAX_VICTIMS).map(victim).collect()
}

/// Every leaf in which the specs differ, with the change class of its field.
pub(super) fn field_diffs(old: &JobSpec, new: &JobSpec) -> Vec<FieldDiff> {
    let classes = spec_change::spec_changes(old, new);
    let class_of = |path: &str| {
        let of = |field: &str| {
            path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let found = classes.iter().filter(|change| of(change.field)).map(|change| change.class);
        found.max().unwrap_or(ChangeClass::MayMove)
    };
    let mut found = Vec::new();
    let public_spec = |spec: &JobSpec| serde_json::to_value(spec.redacted()).unwrap_or_default();
    walk("", Some(&public_spec(old)), Some(&public_spec(new)), &mut found);
    for name in new.task.secrets.keys() {
        let values = (old.task.secrets.get(name), new.task.secrets.get(name));
        if let (Some(a), Some(b)) = values
            && a != b
        {
            let hidden = || Some(Value::String("(hidden)".to_owned()));
            found.push((format!("task.secrets.{name}"), hidden(), hidden()));
        }
    }
    found
        .into_iter()
        .map(|(path, old, new)| FieldDiff { class: class_of(&path), path, old, new })
        .collect()
}

type Leaf = (String, Option<Value>, Option<Value>);

/// Objects are compared key by key; everything else, lists included, as a whole.
fn walk(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Leaf>) {
    // A null field counts as absent.
    let (old, new) = (old.filter(|v| !v.is_null()), new.filter(|v| !v.is_null()));
    if old == new {
        return;
    }
    let nothing = serde_json::Map::new();
    let (a, b) = match (old, new) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => (a, b),
        // A list of named items that was empty, or is now.
        (Some(Value::Object(a)), None) if !path.is_empty() => (a, &nothing),
        (None, Some(Value::Object(b))) if !path.is_empty() => (&nothing, b),
        _ => {
            found.push((path.to_owned(), old.cloned(), new.cloned()));
            return;
        }
    };
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        walk(&inner, a.get(key), b.get(key), found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChangeClass::{MayMove, NoRestart, Restart};
    use serde_json::json;

    fn spec() -> Value {
        json!({"name": "web", "priority": 100, "count": 2, "labels": {"tier": "front"},
            "task": {"limits": {"cpu": 500, "ram": 4096}, "command": ["serve"],
                "env": {"PORT": "80"}, "secrets": {"key": "aGVsbG8="}}})
    }

    fn parsed(value: Value) -> JobSpec {
        serde_json::from_value(value).unwrap()
    }

    /// Path, old, new and class of every difference after `edit`.
    fn check(edit: fn(&mut Value), want: &[(&str, Value, Value, ChangeClass)]) {
        let mut new = spec();
        edit(&mut new);
        let found = field_diffs(&parsed(spec()), &parsed(new));
        let value = |value: Option<Value>| value.unwrap_or(Value::Null);
        let found: Vec<_> =
            found.into_iter().map(|d| (d.path, value(d.old), value(d.new), d.class)).collect();
        let want: Vec<_> =
            want.iter().map(|(p, a, b, c)| ((*p).to_owned(), a.clone(), b.clone(), *c)).collect();
        assert_eq!(found, want);
    }

    #[test]
    fn differences_are_leaves_with_the_class_of_their_field() {
        check(|_| {}, &[]);
        check(|s| s["count"] = json!(3), &[("count", json!(2), json!(3), NoRestart)]);
        check(
            |s| s["task"]["limits"]["ram"] = json!(8192),
            &[("task.limits.ram", json!(4096), json!(8192), MayMove)],
        );
        check(
            |s| s["task"]["limits"]["ram"] = json!(1024),
            &[("task.limits.ram", json!(4096), json!(1024), NoRestart)],
        );
        check(
            |s| s["task"]["env"] = json!({"PORT": "81", "NEW": "x"}),
            &[
                ("task.env.NEW", Value::Null, json!("x"), Restart),
                ("task.env.PORT", json!("80"), json!("81"), Restart),
            ],
        );
        check(
            |s| s["labels"] = json!({}),
            &[("labels.tier", json!("front"), Value::Null, NoRestart)],
        );
        check(
            |s| s["task"]["static_ports"] = json!([8080]),
            &[("task.static_ports", json!([]), json!([8080]), MayMove)],
        );
        check(|s| s["max_down"] = json!(1), &[("max_down", Value::Null, json!(1), NoRestart)]);
        check(
            |s| s["disruptions"] = json!({"most": 1, "within": 60_000}),
            &[
                ("disruptions.most", Value::Null, json!(1), NoRestart),
                ("disruptions.within", Value::Null, json!(60_000), NoRestart),
            ],
        );
    }

    #[test]
    fn what_an_override_never_said_is_no_difference_when_it_goes() {
        let mut old = spec();
        old["overrides"] = json!({"0": {"env": {"PART": "0"}}});
        let found = field_diffs(&parsed(old), &parsed(spec()));
        let paths: Vec<&str> = found.iter().map(|found| found.path.as_str()).collect();
        assert_eq!(paths, ["overrides.0.env.PART"], "{found:#?}");
    }

    #[test]
    fn a_secret_that_changed_is_told_without_its_value() {
        let hidden = json!("(hidden)");
        check(
            |s| s["task"]["secrets"]["key"] = json!("d29ybGQ="),
            &[("task.secrets.key", hidden.clone(), hidden, Restart)],
        );
    }
}
