//! What submitting or updating jobs would do: rehearsed on a copy of the live state by the state
//! machine and the scheduler themselves, and told field by field, task by task.

use super::access::Viewer;
use super::call::Call;
use super::explain::shown;
use super::limits::FieldErrors;
use super::missing::Missing;
use super::{Answered, Api, reply, user_of};
use cellwright_api::error::ApiError;
use cellwright_api::types::{
    FieldDiff, JobPlan, MAX_PLANNED, PlanAction, PlanJobs, PlanToken, PlanView, PlannedDisruption,
    PlannedPlace, PlannedTasks, PlannedVictim, QuotaChange, SubmitJob, owner_or,
};
use cellwright_cell::change;
use cellwright_cell::command::{Became, Command, Done};
use cellwright_cell::isolation::Secret;
use cellwright_cell::job::ChangeClass;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::render;
use cellwright_cell::spec::{JobSpec, MAX_TASKS};
use cellwright_cell::state::State;
use cellwright_sched::executor::Sequential;
use cellwright_sched::rehearse::{Fate, Rehearsal, Rehearsed};
use cellwright_sched::whatif::Evicted;
use cellwright_sched::{Options, SEED};
use serde_json::Value;

/// Machines listed of a job, and indices of tasks named on each.
const PLACES: usize = 50;
const NAMED: usize = 20;
/// Victims listed of a job.
const VICTIMS: usize = 1000;
/// Stands for the secret that somebody else than the owner writes; the second where that is what
/// there was.
const OTHER: &str = "-";
const STILL_OTHER: &str = "--";

impl Api {
    pub(super) async fn plan_jobs(&self, mut call: Call) -> Answered {
        let PlanJobs { jobs } = call.json(self).await?;
        if !(1..=MAX_PLANNED).contains(&jobs.len()) {
            let allowed = format!("1 to {MAX_PLANNED} jobs");
            return Err(ApiError::field("jobs", &jobs.len().to_string(), &allowed));
        }
        let tasks = jobs.iter().fold(0u32, |sum, job| sum.saturating_add(job.spec.count));
        if tasks > MAX_TASKS {
            let allowed = format!("at most {MAX_TASKS} tasks in all jobs of one plan");
            return Err(ApiError::field("jobs", &format!("{tasks} tasks"), &allowed));
        }
        let caller = call.caller()?.clone();
        let mut asked: Vec<(Name, JobSpec)> = Vec::new();
        for SubmitJob { owner, spec } in jobs {
            let owner = owner_or(owner, user_of(&caller))?;
            let (whose, expect) = (owner.clone(), None);
            self.within_limits(&Command::ApplyJob { owner: whose, spec: spec.clone(), expect })?;
            // Before anything of the job is looked at: a difference tells what is there.
            let job = JobKey { user: owner.clone(), job: spec.name.clone() };
            self.may_change(&caller, &job).inspect_err(|error| {
                self.take_down(&call, "plan", &job.to_string(), error.code.as_str());
            })?;
            asked.push((owner, spec));
        }
        // The barrier: what was acknowledged before is in the mirror too.
        let (_, consistent) = call.view(self).await?;
        let mut lanes = Vec::new();
        for (_, spec) in &asked {
            lanes.push(self.unserved_lane(spec).await);
        }
        let (viewer, by) = (Viewer::of(&caller), caller);
        let (index, plan) = self
            .ask_mirror(call.who(), move |_, view, board| {
                let missing = Missing::of(&view.state, asked.iter().map(|(_, spec)| spec));
                let (state, board) = (view.state.clone(), board.clone());
                let options = Options::default();
                let mut stage = Rehearsal::new(state, board, options, SEED, &Sequential);
                let mut plans = Vec::new();
                for ((owner, spec), lane) in asked.iter().zip(lanes) {
                    let spec = &without_comparing(stage.state(), &viewer, owner, spec);
                    let told = stage.job(&by, owner, spec);
                    let mut plan = shown_plan(stage.state(), told, spec);
                    if plan.tasks != PlannedTasks::default() {
                        plan.obstacles.extend(lane.into_iter().chain(missing.obstacles(spec)));
                    }
                    plans.push(plan);
                }
                let bases = plans.iter().map(JobPlan::base);
                let specs = asked.into_iter().map(|(_, spec)| spec);
                let based: Vec<_> = bases.zip(specs).collect();
                let token = PlanToken::new(view.index, &based).to_string();
                Ok((view.index, PlanView { jobs: plans, token }))
            })
            .await?;
        reply::one(&call, index, consistent, plan)
    }
}

/// For everybody but the owner a secret that is written again counts as changed, whatever it was:
/// whoever administrates jobs must not find out a value by asking whether it is this one.
pub(super) fn without_comparing(
    state: &State,
    viewer: &Viewer,
    owner: &Name,
    spec: &JobSpec,
) -> JobSpec {
    let mut spec = spec.clone();
    if viewer.is(owner) || *viewer == Viewer::Trusted {
        return spec;
    }
    let key = JobKey { user: owner.clone(), job: spec.name.clone() };
    let old = state.job_named(&key).and_then(|id| state.jobs().get(id));
    for (name, value) in &mut spec.task.secrets {
        if let Some(before) = old.and_then(|job| job.spec().task.secrets.get(name)) {
            // One that is admitted, or every plan would be refused for it.
            let other = if before.0 == OTHER { STILL_OTHER } else { OTHER };
            *value = Secret(other.to_owned());
        }
    }
    spec
}

fn shown_plan(state: &State, told: Rehearsed, spec: &JobSpec) -> JobPlan {
    let old = told.before.as_ref().map(|before| before.spec.clone());
    let fates = &told.fates;
    let by_machine = told.by_machine();
    let refused = told.verdict.as_ref().err().map(|refusal| {
        let mut error = FieldErrors::of_job(spec).beside(ApiError::from(refusal));
        error.message = render::refusal(state, refusal);
        error
    });
    let action = match &told.verdict {
        Err(_) => PlanAction::Refused,
        Ok(Done::Job { became: Became::Created, .. }) => PlanAction::Create,
        Ok(Done::Job { became: Became::Updated, .. }) => PlanAction::Update,
        Ok(_) => PlanAction::Nothing,
    };
    let first = told.pending.first().map(|index| format!("{}/{index}", told.job));
    JobPlan {
        user: told.job.user.clone(),
        name: told.job.job.clone(),
        action,
        version: told.before.as_ref().map(|before| before.version),
        submitted_at: told.before.as_ref().map(|before| before.submitted_at),
        closes_update: told.closes,
        refused,
        changes: old.as_ref().map(|old| differences(old, spec)).unwrap_or_default(),
        class: old.filter(|old| **old != *spec).map(|old| change::classify(&old, spec)),
        tasks: PlannedTasks {
            added: fates.count(Fate::Added),
            removed: fates.count(Fate::Removed),
            in_place: fates.count(Fate::InPlace),
            restarted: fates.count(Fate::Restarted),
            moved: fates.count(Fate::Moved),
            skipped: fates.count(Fate::Skipped),
            deferred: told.deferred,
            estimated: fates.taken_from_class,
        },
        placed: told.placed.len() as u32,
        pending: told.pending.len() as u32,
        machines: by_machine.len() as u32,
        places: places(&told),
        victims: victims(&told.victims),
        evicted_in_turn: victims(&told.evicted_in_turn),
        disruption: PlannedDisruption {
            tasks: fates.disruptions,
            at_once: spec.max_down,
            most: spec.max_update_disruptions,
        },
        quota: told.quota.iter().map(quota).collect(),
        why_pending: told
            .explanation
            .as_ref()
            .zip(first)
            .map(|(why, name)| shown::imagined(name, why)),
        obstacles: Vec::new(),
    }
}

fn quota(shift: &cellwright_sched::rehearse::QuotaShift) -> QuotaChange {
    let cellwright_sched::rehearse::QuotaShift { band, before, after, granted } = *shift;
    QuotaChange { band, before, after, granted }
}

fn places(told: &Rehearsed) -> Vec<PlannedPlace> {
    let on = |name: &str| {
        let here = told.placed.iter().filter(|placed| placed.machine.name == name);
        here.map(|placed| placed.index).take(NAMED).collect()
    };
    let most = told.by_machine().into_iter().take(PLACES);
    most.map(|(machine, count)| PlannedPlace {
        tasks: on(&machine.name),
        machine: machine.name,
        count,
    })
    .collect()
}

fn victims(evicted: &[Evicted]) -> Vec<PlannedVictim> {
    let victim = |victim: &Evicted| PlannedVictim {
        task: victim.task.name.clone(),
        priority: victim.priority,
        machine: victim.machine.name.clone(),
        lands_on: victim.lands_on.as_ref().map(|machine| machine.name.clone()),
    };
    evicted.iter().take(VICTIMS).map(victim).collect()
}

/// Every leaf in which the specs differ, with the class the kernel gives the field it belongs to.
pub(super) fn differences(old: &JobSpec, new: &JobSpec) -> Vec<FieldDiff> {
    let classes = change::changes(old, new);
    let class_of = |path: &str| {
        let of = |field: &str| {
            path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let found = classes.iter().filter(|change| of(change.field)).map(|change| change.class);
        found.max().unwrap_or(ChangeClass::MayMove)
    };
    let mut found = Vec::new();
    let shown = |spec: &JobSpec| serde_json::to_value(spec.shown()).unwrap_or_default();
    walk("", Some(&shown(old)), Some(&shown(new)), &mut found);
    for name in new.task.secrets.keys() {
        let both = (old.task.secrets.get(name), new.task.secrets.get(name));
        if let (Some(a), Some(b)) = both
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
    // A field that says nothing is one that is not there.
    let (old, new) = (old.filter(|v| !v.is_null()), new.filter(|v| !v.is_null()));
    if old == new {
        return;
    }
    let nothing = serde_json::Map::new();
    let (a, b) = match (old, new) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => (a, b),
        // A list of named things that was empty, or is now.
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
        let found = differences(&parsed(spec()), &parsed(new));
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
            &[("task.limits.ram", json!(4096), json!(1024), Restart)],
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
        let found = differences(&parsed(old), &parsed(spec()));
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
