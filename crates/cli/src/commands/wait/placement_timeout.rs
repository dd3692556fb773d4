//! How long a command waits for a job's first placement: as long as the user specified, or a short
//! grace period if only permanent obstacles are in its way.

use super::{NOT_PLACED_EXIT_CODE, Outcome, WaitResult, fetch_tasks};
use crate::commands::target::Target;
use crate::commands::{pagination, parse, status_text};
use crate::connection::Cell;
use crate::failure::Failure;
use cellwright_api::types::{ExplanationView, MachineView, ReasonView, TaskView};
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::resource::Resources;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Span;
use clap::Args;
use std::time::Duration;

/// How long a job may wait for its first machine.
#[derive(Clone, Copy, Debug, Args)]
pub struct PlacementTimeout {
    /// Give up with exit code 3 when for so long nothing of it has ever run and no machine takes
    /// it; 0s: never [default: 10s if no scheduler plans it, or if no machine would take it even
    /// when empty and none that is large enough drains or is down; otherwise never]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    place_timeout: Option<Span>,
}

/// Long enough for a machine that is just joining.
const DEFAULT_GRACE: Span = Span::seconds(10);
/// The interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl PlacementTimeout {
    /// Waits for the end of the job, or gives up if it is not placed. The job stays in the queue;
    /// only the command ends.
    pub async fn wait_or_give_up(
        self,
        cell: &Cell,
        target: &Target,
        finished: impl Future<Output = Result<WaitResult, Failure>>,
    ) -> Result<WaitResult, Failure> {
        self.unless_unplaceable(cell, target, finished).await.unwrap_or_else(|why| {
            Ok(WaitResult {
                job: target.job.to_string(),
                outcome: Outcome::NotPlaced,
                task: Some(why.task),
                exit: NOT_PLACED_EXIT_CODE,
                text: why.text,
                never_started: false,
            })
        })
    }

    /// The same for any other wait: fails with the explanation of a task that has no place.
    pub async fn unless_unplaceable<T>(
        self,
        cell: &Cell,
        target: &Target,
        finished: impl Future<Output = T>,
    ) -> Result<T, Box<ExplanationView>> {
        tokio::select! {
            ended = finished => Ok(ended),
            why = self.until_unplaceable(cell, target) => Err(Box::new(why)),
        }
    }

    async fn until_unplaceable(self, cell: &Cell, target: &Target) -> ExplanationView {
        let limit = self.place_timeout;
        if limit == Some(Span::ZERO) {
            return std::future::pending().await;
        }
        let span = Duration::from_millis(limit.unwrap_or(DEFAULT_GRACE).0);
        let mut timer = FutilityTimer::new(span);
        loop {
            // A failed request says nothing about machines.
            let why = match unplaced_task(cell, target).await {
                Ok(Some((task, why))) if limit.is_some() => Some((task, why)),
                Ok(Some((task, why))) => match is_permanent(cell, &task, &why).await {
                    Ok(true) => Some((task, why)),
                    _ => None,
                },
                _ => None,
            };
            let has_expired = timer.observe(why.is_some());
            if let Some((_, why)) = why.filter(|_| has_expired) {
                return why;
            }
            tokio::time::sleep(timer.poll_interval).await;
        }
    }
}

/// Tracks whether every check of a whole period found the wait futile. A single check would be
/// misled by a machine that is just being restarted, or a scheduler that is just being replaced.
#[derive(Debug)]
struct FutilityTimer {
    span: Duration,
    poll_interval: Duration,
    /// Since the first of the uninterrupted checks that found it futile.
    futile_for: Option<Duration>,
}

impl FutilityTimer {
    fn new(span: Duration) -> FutilityTimer {
        FutilityTimer { span, poll_interval: span.min(POLL_INTERVAL), futile_for: None }
    }

    fn observe(&mut self, is_futile: bool) -> bool {
        let longer = self.futile_for.map_or(Duration::ZERO, |lasted| lasted + self.poll_interval);
        self.futile_for = is_futile.then_some(longer);
        self.futile_for.is_some_and(|lasted| lasted >= self.span)
    }
}

/// Whether none of the obstacles goes away by itself.
async fn is_permanent(
    cell: &Cell,
    task: &TaskView,
    why: &ExplanationView,
) -> Result<bool, Failure> {
    if !why.obstacles.is_empty() {
        return Ok(true);
    }
    let has_machines = |code: &str| why.reasons.iter().any(|r| r.code == code && r.machines > 0);
    // The only obstacle there is lack of free capacity, which is temporary.
    if has_machines("resource-pressure") {
        return Ok(false);
    }
    let is_away = |reason: &ReasonView| {
        reason.machines > 0 && matches!(reason.code.as_str(), "machine-down" | "machine-draining")
    };
    if why.when_empty > 0 || !why.reasons.iter().any(is_away) {
        return Ok(why.when_empty == 0);
    }
    let machines = pagination::machines(cell).await?;
    Ok(!machines.iter().any(|machine| could_come_back(machine, task.limits)))
}

/// Whether the machine may become usable: a drain ends and a machine comes back, so neither is a
/// reason to give up.
fn could_come_back(machine: &MachineView, limits: Resources) -> bool {
    let is_away = machine.draining || machine.status == MachineStatus::Down;
    is_away && limits.within(machine.spec.capacity)
}

/// The first task and its pending reason, if no task has run and no machine would take it now.
async fn unplaced_task(
    cell: &Cell,
    target: &Target,
) -> Result<Option<(TaskView, ExplanationView)>, Failure> {
    let (tasks, now) = (fetch_tasks(cell, target).await?, crate::clock::now());
    let is_waiting = |task: &&TaskView| {
        task.state == TaskState::Pending && !status_text::is_failing(task) && task.not_before <= now
    };
    let Some(task) = tasks.iter().find(is_waiting) else { return Ok(None) };
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
        let mut timer = FutilityTimer::new(Duration::from_secs(3));
        assert_eq!(timer.poll_interval, Duration::from_secs(1));
        let observations = [true, true, true, false, true, true, true, true];
        let expirations: Vec<bool> =
            observations.iter().map(|observation| timer.observe(*observation)).collect();
        assert_eq!(expirations, [false, false, false, false, false, false, false, true]);
        let mut short = FutilityTimer::new(Duration::from_millis(50));
        assert_eq!([short.observe(true), short.observe(true)], [false, true]);
    }
}
