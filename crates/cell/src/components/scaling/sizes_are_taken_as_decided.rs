//! A decision that is carried out gives the job the size that it says, within the bounds of its
//! policy as far as it changes it, and never one that is sized by hand or only advised.

use super::{Event, ScalingChange};
use crate::components;
use crate::event::EventKind;
use crate::invariant::{Check, Step, violation};
use crate::scale::ScaleSize;

const NAME: &str = "sizes_are_taken_as_decided";

pub(super) fn check(step: &Step<'_>) -> Check {
    // Of several commands in a step another may have changed the job again.
    if step.entry.requests.len() != 1 {
        return Ok(());
    }
    for event in step.events {
        let EventKind::Component(components::Event::Scaling(event)) = &event.kind else { continue };
        let Event { job, change: ScalingChange::Decided { decision }, .. } = event else {
            continue;
        };
        let row = || format!("job row {}", job.0);
        let size = |state: &crate::State| state.jobs.get(*job).map(|row| ScaleSize::of(row.spec()));
        if size(step.after) != Some(decision.to) || size(step.before) != Some(decision.from) {
            let detail = format!("is {:?} after {decision:?}", size(step.after));
            return Err(violation(NAME, row(), detail));
        }
        let policy = step.before.jobs.get(*job).and_then(|row| row.spec().scale.clone());
        let Some(policy) = policy.filter(|_| decision.changes_size()) else { continue };
        let manual = step.before.scaling_of(*job).is_some_and(|(_, row)| row.manual);
        if manual || policy.advise {
            return Err(violation(NAME, row(), "was changed, and is its owner's to change"));
        }
        let (from, to) = (decision.from.count, decision.to.count);
        if to != from && !(from.min(policy.min)..=from.max(policy.max)).contains(&to) {
            let detail = format!("has {to} tasks; allowed: {} to {}", policy.min, policy.max);
            return Err(violation(NAME, row(), detail));
        }
    }
    Ok(())
}
