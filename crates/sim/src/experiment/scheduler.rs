//! The scheduler as the experiments use it: a snapshot of a state, one pass, and the plan applied
//! through `apply`, which checks every placement again.

use super::process_metrics::{process_cpu, timed};
use cellwright_cell::command::{Command, Done, Entry, Request};
use cellwright_cell::plan::{Group, Plan};
use cellwright_cell::reason::Rejection;
use cellwright_cell::{Event, State};
use cellwright_sched::executor::Executor;
use cellwright_sched::queue::Queue;
use cellwright_sched::score::packing::PackingModel;
use cellwright_sched::{ClusterSnapshot, Options, PassOutcome, Solver};
use serde::Serialize;

/// Names of the packing models on the command line and in results.
pub const MODELS: [(&str, PackingModel); 3] = [
    ("hybrid", PackingModel::Hybrid),
    ("best-fit", PackingModel::BestFit),
    ("worst-fit", PackingModel::WorstFit),
];

#[must_use]
pub fn model_name(model: PackingModel) -> &'static str {
    MODELS.iter().find(|(_, known)| *known == model).map_or("hybrid", |(name, _)| name)
}

/// The techniques that were switched on, for the record.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Techniques {
    pub score: &'static str,
    pub score_cache: bool,
    pub equivalence_classes: bool,
    /// Feasible machines scored per class; `null` when all of them were.
    pub randomization: Option<u32>,
}

impl Techniques {
    #[must_use]
    pub fn of(options: &Options) -> Techniques {
        Techniques {
            score: model_name(options.model),
            // Scores are cached per class: without classes there is no key for them.
            score_cache: options.score_cache && options.classes,
            equivalence_classes: options.classes,
            randomization: options.randomization,
        }
    }
}

/// One pass over a snapshot.
#[derive(Debug)]
pub struct Solved {
    pub snapshot: ClusterSnapshot,
    pub outcome: PassOutcome,
    /// Time to build the snapshot from the state.
    pub snapshot_seconds: f64,
    pub solve_seconds: f64,
    pub solve_cpu_seconds: f64,
}

/// Builds a snapshot of the state and runs one pass.
#[must_use]
pub fn solve(state: &State, options: Options, seed: u64, executor: &dyn Executor) -> Solved {
    let (mut snapshot, snapshot_seconds) = timed(|| ClusterSnapshot::from_state(state));
    let before = process_cpu();
    let (outcome, solve_seconds) = timed(|| {
        let queue = Queue::new(&snapshot, options.order, state.now(), seed);
        Solver::new(options).pass_with_executor(&mut snapshot, queue, seed, executor)
    });
    let solve_cpu_seconds = (process_cpu() - before).as_secs_f64();
    Solved { snapshot, outcome, snapshot_seconds, solve_seconds, solve_cpu_seconds }
}

/// The state rejected part of a plan. The scheduler and `apply` share one definition of "fits", so
/// this is a bug of the program, and it is reported instead of being counted as pending.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{refused} of {groups} groups of the plan were refused, the first for {first}: {rejection}"
)]
pub struct PlanRejected {
    pub refused: usize,
    pub groups: usize,
    pub first: String,
    pub rejection: Rejection,
}

/// Applies the plan through `apply`.
///
/// # Errors
/// When any of its groups was rejected.
pub fn commit(state: &mut State, plan: Plan) -> Result<Vec<Event>, PlanRejected> {
    let request = Request::from_default_sender(Command::CommitPlan(plan), state);
    let entry = Entry { now: state.now(), requests: vec![request] };
    let mut events = Vec::new();
    let verdict = state.apply(&entry, &mut events).into_iter().next();
    let Command::CommitPlan(plan) = &entry.requests[0].command else { return Ok(events) };
    let refused = match verdict {
        Some(Ok(Done::Partly(refused))) => refused,
        Some(Err(rejection)) => vec![(0, rejection)],
        _ => return Ok(events),
    };
    let Some((position, rejection)) = refused.first().cloned() else { return Ok(events) };
    let first =
        plan.groups.get(position as usize).map_or_else(String::new, |g| group_name(state, g));
    Err(PlanRejected { refused: refused.len(), groups: plan.groups.len(), first, rejection })
}

fn group_name(state: &State, group: &Group) -> String {
    let Some(assignment) = group.assignments.first() else { return "an empty group".into() };
    let machine = state.machines().get(assignment.machine).map(|row| row.spec.name.to_string());
    let machine = machine.unwrap_or_else(|| format!("machine#{}", assignment.machine.0));
    format!("{} on {machine}", state.task_name(assignment.task))
}
