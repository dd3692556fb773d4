//! Which shapes of task find a place as the cell is now (B17): counted by the scheduler's own
//! feasibility on the mirror that explanations are made from.

use super::call::Call;
use super::jobs::find;
use super::list::parse_selector;
use super::{Answered, Api, reply};
use cellwright_api::error::ApiError;
use cellwright_api::types::{LargestView, LikeView, ShapeSet, ShapeView, ShapesQuery, ShapesView};
use cellwright_cell::constraint::Constraint;
use cellwright_cell::id::{JobId, MachineId};
use cellwright_cell::isolation::{Loan, Volume};
use cellwright_cell::label::{LabelTerm, selects};
use cellwright_cell::priority::{MAX_PRIORITY, Priority};
use cellwright_cell::resource::{Dimension, MAX_QUANTITY};
use cellwright_cell::spec::{JobKind, MAX_LIST};
use cellwright_cell::state::State;
use cellwright_master::replicated::View;
use cellwright_sched::executor::Sequential;
use cellwright_sched::explain::text;
use cellwright_sched::explain::units::Natural;
use cellwright_sched::shapes::{EASY_PERCENT, Question, Shape, Shapes, shapes};
use cellwright_sched::whatif::{self, WhatifOptions, Whose};
use cellwright_sched::{Board, SEED};

/// Answered for when no priority is given: one that is placed by reservations, one by limits.
const BOTH: [Priority; 2] = [Priority(100), Priority(200)];
/// Most tasks like those of a job that are counted: each is placed by a real pass.
const MOST_LIKE: u32 = 10_000;

impl Api {
    pub(super) async fn shapes(&self, mut call: Call) -> Answered {
        let query: ShapesQuery = call.json(self).await?;
        check(&query)?;
        let terms = query.selector.as_deref().map_or(Ok(Vec::new()), parse_selector)?;
        let (view, consistent) = call.view(self).await?;
        let like = query.like.as_ref().map(|key| find(&view.state, key)).transpose()?;
        let (index, answer) = self
            .ask_mirror(call.who(), move |_, view, board| {
                Ok((view.index, answer(view, board, &query, like, &terms)?))
            })
            .await?;
        reply::one(&call, index, consistent, answer)
    }
}

fn check(query: &ShapesQuery) -> Result<(), ApiError> {
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
        if let Err(allowed) = constraint.check() {
            let field = format!("constraints[{position}]");
            return Err(ApiError::field(&field, &constraint.to_string(), &allowed));
        }
    }
    let beside = [
        ("limits", query.limits.is_some()),
        ("priority", query.priority.is_some()),
        ("constraints", !query.constraints.is_empty()),
        ("selector", query.selector.is_some()),
    ];
    let second = beside.iter().find(|(_, given)| query.like.is_some() && *given);
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

fn answer(
    view: &View,
    board: &Board,
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
    let mut loans: Vec<Loan> = Vec::new();
    let (mut priorities, mut limits) = (BOTH.to_vec(), query.limits);
    if let Some(job) = like.and_then(|id| state.jobs().get(id)) {
        constraints.clone_from(&job.spec().constraints);
        loans = job.spec().task.isolation.volumes.iter().map(Volume::loan).collect();
        loans.sort();
        loans.dedup();
        // Inside an alloc set the room of machines says nothing.
        limits = job.spec().alloc_set.is_none().then_some(job.spec().task.limits);
        priorities = vec![job.spec().priority];
    }
    priorities = query.priority.map_or(priorities, |priority| vec![priority]);
    let mut sets = Vec::new();
    for priority in priorities {
        let question = Question {
            priority,
            constraints: &constraints,
            loans: &loans,
            among: &among,
            easy_percent,
            limits: limits.filter(|limits| !limits.is_zero()),
        };
        let mut set = shown(priority, shapes(board, state, &question));
        set.like = like.map(|id| more(state, board, id)).transpose()?;
        sets.push(set);
    }
    let machines_total = u32::try_from(state.machines().len()).unwrap_or(u32::MAX);
    Ok(ShapesView { machines_total, easy_percent, sets })
}

/// How many more tasks of a job a real pass would place.
fn more(state: &State, board: &Board, id: JobId) -> Result<LikeView, ApiError> {
    let key = state.job_key(id).map(|key| key.to_string()).unwrap_or_default();
    let row = state.jobs().get(id).filter(|row| !row.is_dead());
    let Some(row) = row else {
        return Err(ApiError::field("like", &key, "a job that has not ended"));
    };
    if row.spec().kind == JobKind::AllocSet {
        return Err(ApiError::field("like", &key, "a job of tasks, not an alloc set"));
    }
    let options = WhatifOptions { seed: SEED, max: MOST_LIKE, ..WhatifOptions::default() };
    let fits = whatif::fits(board, Whose::More(id), state, &Sequential, &options)
        .map_err(|refusal| ApiError::from(&refusal))?;
    Ok(LikeView {
        job: key,
        tasks: fits.count,
        or_more: fits.reached_max,
        machines: fits.machines,
        stopped_by: fits.stopped_by.map(|why| text::render(&why, &Natural)),
    })
}

fn shown(priority: Priority, found: Shapes) -> ShapeSet {
    let Shapes { machines, easy_from, largest, ladder, asked } = found;
    let largest = largest
        .into_iter()
        .map(|largest| LargestView { limits: largest.limits, machine: largest.machine.name });
    ShapeSet {
        priority,
        band: priority.band(),
        machines,
        easy_from,
        largest: largest.collect(),
        ladder: ladder.iter().map(shape).collect(),
        asked: asked.as_ref().map(shape),
        like: None,
    }
}

fn shape(shape: &Shape) -> ShapeView {
    let Shape { limits, tasks, machines, easy } = *shape;
    ShapeView { limits, tasks, machines, easy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn refused(query: Value, field: &str) {
        let query: ShapesQuery = serde_json::from_value(query).unwrap();
        let error = check(&query).unwrap_err();
        assert!(error.message.starts_with(&format!("field {field}:")), "{}", error.message);
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_its_field() {
        let ok = json!({ "limits": { "cpu": 1, "ram": 0 }, "easy_percent": 100, "priority": 399 });
        assert!(check(&serde_json::from_value(ok).unwrap()).is_ok());
        refused(json!({ "priority": 400 }), "priority");
        refused(json!({ "easy_percent": 0 }), "easy_percent");
        refused(json!({ "limits": { "cpu": 0, "ram": 0 } }), "limits");
        refused(json!({ "limits": { "cpu": 1u64 << 51, "ram": 0 } }), "limits.cpu");
        let like = json!({ "user": "ada", "job": "web" });
        refused(json!({ "like": like.clone(), "limits": { "cpu": 1, "ram": 1 } }), "limits");
        refused(json!({ "like": like.clone(), "priority": 100 }), "priority");
        refused(json!({ "like": like, "selector": "zone=a" }), "selector");
        let pattern = json!({ "attribute": "os", "operator": { "matches": "(" } });
        refused(json!({ "constraints": [pattern] }), "constraints[0]");
    }
}
