//! Checks what the cell decides about the sizes of scaled jobs, on the decisions in the log and
//! without the rules that made them.
//!
//! | rule | what is seen when it is broken |
//! |---|---|
//! | a size stays within its owner's bounds | more than the most tasks, or fewer than the fewest |
//! | the quota has room for every size | `apply` refuses one for want of quota |
//! | what is not known is not nothing | a job shrinks below what its unmeasured tasks may need |
//! | limits by peaks do not fall while the number of tasks changes | a decision for both |

use super::ledger::CheckFailure;
use cellwright_cell::command::{Actor, Command, ControllerName, Entry, Verdict};
use cellwright_cell::id::JobId;
use cellwright_cell::reason::Rejection;
use cellwright_cell::scale::{Decision, ScalePolicy, ScaleRule};
use cellwright_cell::state::State;
use cellwright_cell::time::Span;
use cellwright_cell::{components, scaling};
use cellwright_scale::MINUTE;
use cellwright_scale::ladder::Ladder;

/// What was measured so long ago says nothing of the present.
const STALE: Span = Span(3 * MINUTE);

/// # Errors
/// The first decision that breaks a rule.
pub fn check_decisions(
    before: &State,
    entry: &Entry,
    verdicts: &[Verdict],
) -> Result<(), CheckFailure> {
    for (request, verdict) in entry.requests.iter().zip(verdicts) {
        let (
            Actor::Controller(ControllerName::Scaling),
            Command::Component(components::Command::Scaling(scaling::Command::Decide {
                job,
                decision,
            })),
        ) = (&request.by, &request.command)
        else {
            continue;
        };
        check_decision(before, *job, decision, verdict).map_err(|why| {
            let key = before.job_key(*job).map_or_else(String::new, |key| key.to_string());
            CheckFailure(format!("scaled job {key}: {why}: {decision:?}"))
        })?;
    }
    Ok(())
}

fn check_decision(
    before: &State,
    id: JobId,
    decision: &Decision,
    verdict: &Verdict,
) -> Result<(), String> {
    let Decision { from, to, .. } = decision;
    if matches!(verdict, Err(Rejection::QuotaExceeded { .. })) {
        return Err("the cell asks for more than the quota has room for".into());
    }
    let job = before.jobs().get(id);
    let Some((job, policy)) = job.and_then(|job| Some((job, job.spec().scale.as_ref()?))) else {
        return Ok(());
    };
    // It may be another job than the one that was decided about.
    if cellwright_cell::scale::ScaleSize::of(job.spec()) != *from || !decision.changes_size() {
        return Ok(());
    }
    if to.count > policy.max.max(from.count) || to.count < policy.min.min(from.count) {
        let (min, max) = (policy.min, policy.max);
        return Err(format!("{} tasks, and {min} to {max} are allowed", to.count));
    }
    check_limits(policy, decision)?;
    let by_load = !matches!(decision.rule, ScaleRule::Bounds | ScaleRule::Schedule);
    if to.count < from.count && by_load {
        check_shrink(before, id, policy, decision)
    } else {
        Ok(())
    }
}

/// A limit that no measure is held to does not fall while the number of tasks changes.
fn check_limits(policy: &ScalePolicy, decision: &Decision) -> Result<(), String> {
    let Decision { from, to, .. } = decision;
    let cpu = policy.target.cpu.is_none() && to.cpu < from.cpu;
    let ram = policy.target.ram.is_none() && to.ram < from.ram;
    if to.count != from.count && (cpu || ram) {
        return Err("limits fall while the number of tasks changes".into());
    }
    Ok(())
}

/// A job shrinks by what was measured just now, and keeps what tasks may need that were not.
fn check_shrink(
    before: &State,
    id: JobId,
    policy: &ScalePolicy,
    decision: &Decision,
) -> Result<(), String> {
    let Some((_, row)) = before.scaling_of(id) else { return Ok(()) };
    if row.memory.most_within(decision.at, STALE).is_none() {
        return Err("it shrinks, and nothing was measured".into());
    }
    // What was measured since is no part of the decision.
    let measured = row.measured.as_ref().filter(|measured| measured.at <= decision.at);
    let Some(measured) = measured else { return Ok(()) };
    if row.untold.is_some() {
        return Err("it shrinks, and not all of its tasks told their number".into());
    }
    let need = u64::from(measured.need) + u64::from(measured.missing) * 1000;
    let capacity = Ladder::of(policy, decision.from).capacity(decision.to);
    if capacity < need {
        let missing = measured.missing;
        return Err(format!("it shrinks below what {missing} unmeasured tasks may need"));
    }
    Ok(())
}
