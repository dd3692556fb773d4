//! How long a job may wait for its first machine before whoever waits for it goes: as long as they
//! said, or a little while where nothing that passes by itself stands in its way.

use super::{Ended, NOT_PLACED, Outcome, tasks_of};
use crate::commands::target::Target;
use crate::commands::{pages, parse, tell};
use crate::failure::Failure;
use crate::reach::Cell;
use cellwright_api::types::{ExplanationView, MachineView, ReasonView, TaskView};
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::resource::Resources;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Span;
use clap::Args;
use std::time::Duration;

/// How long a job may wait for its first machine.
#[derive(Clone, Copy, Debug, Args)]
pub struct Patience {
    /// Give up with exit code 3 when for so long nothing of it has ever run and no machine takes
    /// it; 0s: never [default: 10s if no scheduler plans it, or if no machine would take it even
    /// when empty and none that is large enough drains or is down; otherwise never]
    #[arg(long, value_name = "TIME", value_parser = parse::span)]
    place_timeout: Option<Span>,
}

/// A machine may just be joining.
const GRACE: Span = Span::seconds(10);
/// Looks are this far apart.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Patience {
    /// The end of it, or that it does not begin. It is left in the queue: only who asked goes.
    pub async fn over(
        self,
        cell: &Cell,
        target: &Target,
        over: impl Future<Output = Result<Ended, Failure>>,
    ) -> Result<Ended, Failure> {
        tokio::select! {
            ended = over => ended,
            why = self.not_placed(cell, target) => Ok(Ended {
                job: target.job.to_string(),
                outcome: Outcome::NotPlaced,
                task: Some(why.task),
                exit: NOT_PLACED,
                text: why.text,
                never_started: false,
            }),
        }
    }

    async fn not_placed(self, cell: &Cell, target: &Target) -> ExplanationView {
        let asked = self.place_timeout;
        if asked == Some(Span::ZERO) {
            return std::future::pending().await;
        }
        let span = Duration::from_millis(asked.unwrap_or(GRACE).0);
        let mut vain = Vain::new(span);
        loop {
            // What cannot be asked now says nothing about machines.
            let why = match unplaced(cell, target).await {
                Ok(Some((task, why))) if asked.is_some() => Some((task, why)),
                Ok(Some((task, why))) => match lasts(cell, &task, &why).await {
                    Ok(true) => Some((task, why)),
                    _ => None,
                },
                _ => None,
            };
            let is_vain = vain.look(why.is_some());
            if let Some((_, why)) = why.filter(|_| is_vain) {
                return why;
            }
            tokio::time::sleep(vain.between).await;
        }
    }
}

/// Whether each look of a whole span said that waiting is in vain. One look would take a machine
/// that is just being restarted, or a scheduler that is just being replaced, for the whole story.
#[derive(Debug)]
struct Vain {
    span: Duration,
    between: Duration,
    /// Since the first look of those that said so without a break.
    lasted: Option<Duration>,
}

impl Vain {
    fn new(span: Duration) -> Vain {
        Vain { span, between: span.min(LOOK_EVERY), lasted: None }
    }

    fn look(&mut self, in_vain: bool) -> bool {
        let longer = self.lasted.map_or(Duration::ZERO, |lasted| lasted + self.between);
        self.lasted = in_vain.then_some(longer);
        self.lasted.is_some_and(|lasted| lasted >= self.span)
    }
}

/// Whether what stands in its way is nothing that passes by itself.
async fn lasts(cell: &Cell, task: &TaskView, why: &ExplanationView) -> Result<bool, Failure> {
    if !why.obstacles.is_empty() {
        return Ok(true);
    }
    let waits = |code: &str| why.reasons.iter().any(|r| r.code == code && r.machines > 0);
    // Nothing else stands in its way there, and that passes.
    if waits("machine-short") {
        return Ok(false);
    }
    let away = |reason: &ReasonView| {
        reason.machines > 0 && matches!(reason.code.as_str(), "machine-down" | "machine-draining")
    };
    if why.when_empty > 0 || !why.reasons.iter().any(away) {
        return Ok(why.when_empty == 0);
    }
    let machines = pages::machines(cell).await?;
    Ok(!machines.iter().any(|machine| could_come_back(machine, task.limits)))
}

/// A drain ends and a machine comes back: neither is a reason to go.
fn could_come_back(machine: &MachineView, limits: Resources) -> bool {
    let away = machine.draining || machine.status == MachineStatus::Down;
    away && limits.within(machine.spec.capacity)
}

/// Its first task and why that waits, when nothing of it has run and no machine would take it now.
async fn unplaced(
    cell: &Cell,
    target: &Target,
) -> Result<Option<(TaskView, ExplanationView)>, Failure> {
    let (tasks, now) = (tasks_of(cell, target).await?, crate::clock::now());
    let waits = |task: &&TaskView| {
        task.state == TaskState::Pending && !tell::is_failing(task) && task.not_before <= now
    };
    let Some(task) = tasks.iter().find(waits) else { return Ok(None) };
    if tasks.iter().any(|task| task.attempt > 0) {
        return Ok(None);
    }
    let why = cell.client.explain(&target.job, task.index).await?.value.item;
    let fits = why.reasons.iter().any(|reason| reason.code == "fits" && reason.machines > 0);
    Ok((!fits || !why.obstacles.is_empty()).then_some((task.clone(), why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reason_that_lasted_the_whole_span_ends_the_wait() {
        let mut vain = Vain::new(Duration::from_secs(3));
        assert_eq!(vain.between, Duration::from_secs(1));
        let looks = [true, true, true, false, true, true, true, true];
        let said: Vec<bool> = looks.iter().map(|look| vain.look(*look)).collect();
        assert_eq!(said, [false, false, false, false, false, false, false, true]);
        let mut short = Vain::new(Duration::from_millis(50));
        assert_eq!([short.look(true), short.look(true)], [false, true]);
    }
}
