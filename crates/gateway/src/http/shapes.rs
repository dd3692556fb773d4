//! Task shapes that can be placed now (B17): counted by the scheduler's own feasibility checks on
//! the snapshot that explanations are made from.

use super::call::Call;
use super::jobs::find_job;
use super::pagination::parse_selector;
use super::{Api, ApiResult, reply};
use cellwright_api::error::ApiError;
use cellwright_api::types::{LargestView, LikeView, ShapeSet, ShapeView, ShapesQuery, ShapesView};
use cellwright_cell::constraint::Constraint;
use cellwright_cell::id::{JobId, MachineId};
use cellwright_cell::isolation::{HostVolume, Volume};
use cellwright_cell::label::{LabelTerm, selects};
use cellwright_cell::priority::{MAX_PRIORITY, Priority};
use cellwright_cell::resource::{Dimension, MAX_QUANTITY};
use cellwright_cell::spec::{JobKind, MAX_LIST};
use cellwright_cell::state::State;
use cellwright_cell::words::{self, quantity::Natural};
use cellwright_master::replicated_state::View;
use cellwright_sched::available_shapes::{
    AvailableShapes, EASY_PERCENT, ShapeQuery, TaskShape, available_shapes,
};
use cellwright_sched::executor::Sequential;
use cellwright_sched::whatif::{self, WhatifJob, WhatifOptions};
use cellwright_sched::{ClusterSnapshot, DEFAULT_SEED};

/// Used when no priority is given: one is placed by reservations, one by limits.
const DEFAULT_PRIORITIES: [Priority; 2] = [Priority(100), Priority(200)];
/// Limit of counted tasks like those of a job: each is placed by a real pass.
const MAX_LIKE: u32 = 10_000;

impl Api {
    pub(super) async fn shapes(&self, mut call: Call) -> ApiResult {
        let query: ShapesQuery = call.json(self).await?;
        check_query(&query)?;
        let terms = query.selector.as_deref().map_or(Ok(Vec::new()), parse_selector)?;
        let (view, consistent) = call.view(self).await?;
        let like = query.like.as_ref().map(|key| find_job(&view.state, key)).transpose()?;
        let (index, answer) = self
            .query_snapshot(call.actor_text(), move |_, view, snapshot| {
                Ok((view.index, shapes_view(view, snapshot, &query, like, &terms)?))
            })
            .await?;
        reply::one(&call, index, consistent, answer)
    }
}

fn check_query(query: &ShapesQuery) -> Result<(), ApiError> {
    if let Some(Priority(priority)) = query.priority.filter(|p| p.0 > MAX_PRIORITY) {
        let allowed = format!("0 to {MAX_PRIORITY}");
        return Err(ApiError::field("priority", &priority.to_string(), &allowed));
    }
    if let Some(percent) = query.easy_percent.filter(|p| !(1..=100).contains(p)) {
        return Err(ApiError::field("easy_percent", &percent.to_string(), "1 to 100"));
    }
    if query.constraints.len() > MAX_LIST {
        let allowed = format!("at most {MAX_LIST}");
        return Err(ApiError::field("constraints", &query.constraints.len().to_string(), &allowed));
    }
    for (position, constraint) in query.constraints.iter().enumerate() {
        if let Err(flaw) = constraint.check() {
            let field = format!("constraints[{position}]");
            return Err(ApiError::field(&field, &constraint.to_string(), &flaw.to_string()));
        }
    }
    let exclusive = [
        ("limits", query.limits.is_some()),
        ("priority", query.priority.is_some()),
        ("constraints", !query.constraints.is_empty()),
        ("selector", query.selector.is_some()),
    ];
    let second = exclusive.iter().find(|(_, given)| query.like.is_some() && *given);
    if let Some((field, _)) = second {
        return Err(ApiError::field(field, "given", "not together with `like`, which has its own"));
    }
    let Some(limits) = query.limits else { return Ok(()) };
    for dimension in Dimension::ALL {
        let amount = limits.get(dimension);
        if amount > MAX_QUANTITY {
            let field = format!("limits.{dimension}");
            let allowed = format!("at most {MAX_QUANTITY}");
            return Err(ApiError::field(&field, &amount.to_string(), &allowed));
        }
    }
    if limits.is_zero() {
        return Err(ApiError::field("limits", "nothing", "more than nothing of something"));
    }
    Ok(())
}

fn shapes_view(
    view: &View,
    snapshot: &ClusterSnapshot,
    query: &ShapesQuery,
    like: Option<JobId>,
    terms: &[LabelTerm],
) -> Result<ShapesView, ApiError> {
    let state = &view.state;
    let easy_percent = query.easy_percent.unwrap_or(EASY_PERCENT);
    let among = |machine: MachineId| {
        terms.is_empty()
            || state.machines().get(machine).is_some_and(|row| selects(terms, &row.spec.labels))
    };
    let mut constraints: Vec<Constraint> = query.constraints.clone();
    let mut loans: Vec<HostVolume> = Vec::new();
    let (mut priorities, mut limits) = (DEFAULT_PRIORITIES.to_vec(), query.limits);
    if let Some(job) = like.and_then(|id| state.jobs().get(id)) {
        constraints.clone_from(&job.spec().constraints);
        loans = job.spec().task.isolation.volumes.iter().map(Volume::host_volume).collect();
        loans.sort();
        loans.dedup();
        // Inside an alloc set the machines' free resources say nothing.
        limits = job.spec().alloc_set.is_none().then_some(job.spec().task.limits);
        priorities = vec![job.spec().priority];
    }
    priorities = query.priority.map_or(priorities, |priority| vec![priority]);
    let mut sets = Vec::new();
    for priority in priorities {
        let question = ShapeQuery {
            priority,
            constraints: &constraints,
            host_volumes: &loans,
            includes: &among,
            easy_percent,
            limits: limits.filter(|limits| !limits.is_zero()),
        };
        let mut set = shape_set(priority, available_shapes(snapshot, state, &question));
        set.like = like.map(|id| count_more_like(state, snapshot, id)).transpose()?;
        sets.push(set);
    }
    let machines_total = u32::try_from(state.machines().len()).unwrap_or(u32::MAX);
    Ok(ShapesView { machines_total, easy_percent, sets })
}

/// How many more tasks of a job a real pass would place.
fn count_more_like(
    state: &State,
    snapshot: &ClusterSnapshot,
    id: JobId,
) -> Result<LikeView, ApiError> {
    let key = state.job_key(id).map(|key| key.to_string()).unwrap_or_default();
    let row = state.jobs().get(id).filter(|row| !row.is_dead());
    let Some(row) = row else {
        return Err(ApiError::field("like", &key, "a job that has not ended"));
    };
    if row.spec().kind == JobKind::AllocSet {
        return Err(ApiError::field("like", &key, "a job of tasks, not an alloc set"));
    }
    let options =
        WhatifOptions { seed: DEFAULT_SEED, max_tasks: MAX_LIKE, ..WhatifOptions::default() };
    let fits = whatif::count_fits(snapshot, WhatifJob::More(id), state, &Sequential, &options)
        .map_err(|rejection| ApiError::from(&rejection))?;
    Ok(LikeView {
        job: key,
        tasks: fits.count,
        or_more: fits.reached_max,
        machines: fits.machines,
        stopped_by: fits.stopped_by.map(|why| words::explanation::render(&why, &Natural)),
    })
}

fn shape_set(priority: Priority, found: AvailableShapes) -> ShapeSet {
    let AvailableShapes { machines, easy_threshold: easy_from, largest, ladder, requested } = found;
    let largest = largest
        .into_iter()
        .map(|largest| LargestView { limits: largest.limits, machine: largest.machine.name });
    ShapeSet {
        priority,
        band: priority.band(),
        machines,
        easy_from,
        largest: largest.collect(),
        ladder: ladder.iter().map(shape_view).collect(),
        requested: requested.as_ref().map(shape_view),
        like: None,
    }
}

fn shape_view(shape: &TaskShape) -> ShapeView {
    let TaskShape { limits, tasks, machines, easy } = *shape;
    ShapeView { limits, tasks, machines, easy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check_rejected(query: Value, field: &str) {
        let query: ShapesQuery = serde_json::from_value(query).unwrap();
        let error = check_query(&query).unwrap_err();
        assert!(error.message.starts_with(&format!("field {field}:")), "{}", error.message);
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_its_field() {
        let ok = json!({ "limits": { "cpu": 1, "ram": 0 }, "easy_percent": 100, "priority": 399 });
        assert!(check_query(&serde_json::from_value(ok).unwrap()).is_ok());
        check_rejected(json!({ "priority": 400 }), "priority");
        check_rejected(json!({ "easy_percent": 0 }), "easy_percent");
        check_rejected(json!({ "limits": { "cpu": 0, "ram": 0 } }), "limits");
        check_rejected(json!({ "limits": { "cpu": 1u64 << 51, "ram": 0 } }), "limits.cpu");
        let like = json!({ "user": "ada", "job": "web" });
        check_rejected(json!({ "like": like.clone(), "limits": { "cpu": 1, "ram": 1 } }), "limits");
        check_rejected(json!({ "like": like.clone(), "priority": 100 }), "priority");
        check_rejected(json!({ "like": like, "selector": "zone=a" }), "selector");
        let pattern = json!({ "attribute": "os", "operator": { "matches": "(" } });
        check_rejected(json!({ "constraints": [pattern] }), "constraints[0]");
    }
}
