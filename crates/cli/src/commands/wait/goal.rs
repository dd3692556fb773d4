//! Waiting until a job is so: placed, running, healthy, updated. Whoever asks is told at once when
//! that will not come: the version was rolled back, the job ended, no machine takes it.
//!
//! What a view of a job means for a goal is a pure function, which is asked at every change that a
//! watch tells of; the watch itself goes on with another master when one is lost.

use super::placement_timeout::PlacementTimeout;
use super::{next_view, status_text};
use crate::commands::Success;
use crate::commands::target::Target;
use crate::connection::Cell;
use crate::failure::Failure;
use crate::output::{print_notice, print_prose};
use crate::progress::StatusLine;
use cellwright_api::client::JobFilter;
use cellwright_api::types::JobView;
use cellwright_cell::job::JobState;
use cellwright_cell::name::JobKey;
use cellwright_cell::time::Span;
use clap::ValueEnum;
use serde::Serialize;
use std::time::Duration;
use tokio::time::Instant;

/// The exit code when a job did not come to be so.
pub const NOT_SO_EXIT_CODE: u8 = 3;

/// How a job is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// Every task has a machine
    Placed,
    /// Every task runs
    Running,
    /// Every task runs and is well, those that an update has yet to reach as well
    Healthy,
    /// Every task runs the job's version and is well
    Updated,
    /// All of it is over; ends with the tasks' own exit code
    Ended,
}

impl Goal {
    pub fn word(self) -> &'static str {
        match self {
            Goal::Placed => "placed",
            Goal::Running => "running",
            Goal::Healthy => "healthy",
            Goal::Updated => "updated",
            Goal::Ended => "over",
        }
    }
}

/// What a view of the job says about the goal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GoalProgress {
    Reached,
    NotYet,
    /// It will not come to be so, for this reason.
    Never(String),
}

/// How a job was found when the wait was over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GoalResult {
    pub job: String,
    /// It is as it was waited for.
    pub reached: bool,
    pub healthy: bool,
    pub updated: bool,
    /// Tasks that the job is to have.
    pub tasks: u32,
    pub running: u32,
    /// The job's version now.
    pub version: u32,
    pub seconds: f64,
    /// Why it is not so.
    pub why: Option<String>,
}

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub struct GoalWait {
    pub goal: Goal,
    /// Only this version counts: another one means that it was undone or replaced.
    pub version: Option<u32>,
    pub placement_timeout: PlacementTimeout,
    pub limit: Option<Span>,
}

impl GoalWait {
    /// Waits until the job is so, will not be so, or the time is over.
    pub async fn wait(self, cell: &Cell, key: &JobKey) -> Result<GoalResult, Failure> {
        let begin = Instant::now();
        // Fetched first, so that an unknown job is an error at once, and from the leader: the watch
        // may begin with an earlier job of this name.
        let mut seen = cell.client.job_now(key).await?.value.item;
        let target = Target { job: key.clone(), tasks: None };
        let watched = self.watch(cell, key, &mut seen);
        let limited = async {
            match self.limit {
                None => watched.await,
                Some(limit) => {
                    let time = tokio::time::timeout(Duration::from_millis(limit.0), watched);
                    time.await.unwrap_or_else(|_| Ok(Some(format!("not {}", self.after(limit)))))
                }
            }
        };
        let why = match self.placement_timeout.unless_unplaceable(cell, &target, limited).await {
            Ok(ended) => ended?,
            Err(why) => Some(format!("not placed: {}", why.text.trim_end())),
        };
        Ok(result(key, &seen, why, begin.elapsed()))
    }

    fn after(self, limit: Span) -> String {
        let span = match limit {
            Span(short @ 1..1000) => format!("{short} ms"),
            long => crate::format::duration(long),
        };
        format!("{} after {span}", self.goal.word())
    }

    /// Nothing once it is so, and otherwise why it will not be; `seen` is the last view.
    async fn watch(
        self,
        cell: &Cell,
        key: &JobKey,
        seen: &mut JobView,
    ) -> Result<Option<String>, Failure> {
        let filter = JobFilter { user: Some(key.user.clone()), ..JobFilter::default() };
        let mut watch = cell.client.watch_jobs(&filter, None);
        let mut status_line = StatusLine::if_terminal();
        let submitted_at = seen.submitted_at;
        loop {
            let Some(job) = next_view(&mut watch, key).await? else {
                return Ok(Some("the job is forgotten".to_owned()));
            };
            if job.submitted_at < submitted_at {
                continue;
            }
            *seen = job;
            match progress_toward(self.goal, self.version, seen) {
                GoalProgress::Reached => return Ok(None),
                GoalProgress::Never(why) => return Ok(Some(why)),
                GoalProgress::NotYet => {}
            }
            if let Some(status_line) = &mut status_line {
                status_line.update(vec![format!("{key}: {}", progress(seen))]);
            }
        }
    }
}

/// Waits for each of several jobs, one after the other, with one limit for all; a job may have to
/// be at a version.
pub async fn wait_for_all(
    cell: &Cell,
    wait: GoalWait,
    jobs: &[(JobKey, Option<u32>)],
) -> Result<Vec<GoalResult>, Failure> {
    let (begin, mut results) = (Instant::now(), Vec::new());
    for (job, version) in jobs {
        let spent = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let limit = wait.limit.map(|limit| Span(limit.0.saturating_sub(spent)));
        let wait = GoalWait { limit, version: *version, ..wait };
        results.push(wait.wait(cell, job).await?);
    }
    Ok(results)
}

/// Whether all jobs are as they were waited for.
pub fn success(results: &[GoalResult]) -> Success {
    if results.iter().all(|result| result.reached) {
        Success::Done
    } else {
        Success::ExitWith(NOT_SO_EXIT_CODE)
    }
}

/// For people: how it is on standard output, what to look at where it is not so on the other.
pub fn print_results(goal: Goal, results: &[GoalResult]) -> Result<(), Failure> {
    for result in results {
        let GoalResult { job, seconds, running, tasks, version, .. } = result;
        match &result.why {
            None => print_prose(&format!(
                "{job} is {} at version {version}: {running} of {tasks} running, \
                 after {seconds:.1} s\n",
                goal.word()
            ))?,
            Some(why) => print_notice(&format!(
                "{job} is not {}: {why}\nnext: cell status {job}",
                goal.word()
            )),
        }
    }
    Ok(())
}

/// The results as one document: that of a job, or of all jobs together with each of them.
#[derive(Serialize)]
pub struct GoalDocument<'a> {
    healthy: bool,
    updated: bool,
    reached: bool,
    tasks: u32,
    seconds: f64,
    jobs: &'a [GoalResult],
}

impl<'a> GoalDocument<'a> {
    pub fn of(jobs: &'a [GoalResult]) -> GoalDocument<'a> {
        GoalDocument {
            healthy: jobs.iter().all(|job| job.healthy),
            updated: jobs.iter().all(|job| job.updated),
            reached: jobs.iter().all(|job| job.reached),
            tasks: jobs.iter().map(|job| job.tasks).sum(),
            seconds: jobs.iter().map(|job| job.seconds).sum(),
            jobs,
        }
    }
}

fn result(key: &JobKey, job: &JobView, why: Option<String>, lasted: Duration) -> GoalResult {
    GoalResult {
        job: key.to_string(),
        reached: why.is_none(),
        healthy: is_healthy(job),
        updated: is_updated(job),
        tasks: job.wanted(),
        running: job.tasks.running,
        version: job.version,
        seconds: lasted.as_millis() as f64 / 1000.0,
        why,
    }
}

/// `3 running, 1 starting; 2 of 4 tasks at version 2`.
fn progress(job: &JobView) -> String {
    let counts = status_text::task_counts(&job.tasks);
    if job.outdated == 0 {
        return counts;
    }
    let at = job.wanted().saturating_sub(job.outdated);
    format!("{counts}; {at} of {} at version {}", job.wanted(), job.version)
}

fn progress_toward(goal: Goal, version: Option<u32>, job: &JobView) -> GoalProgress {
    if let Some(version) = version.filter(|version| *version != job.version) {
        let undone = job.update.as_ref().filter(|update| update.undoing);
        let back = undone.is_some_and(|update| update.rolled_back)
            || job.rolled_back.is_some_and(|back| back.version == version);
        return if back {
            let text = format!("version {version} failed and was rolled back to {}", job.version);
            GoalProgress::Never(text)
        } else if undone.is_none() && job.version < version {
            // A replica that has not heard of it yet.
            GoalProgress::NotYet
        } else {
            GoalProgress::Never(format!("the job is at version {} now, not {version}", job.version))
        };
    }
    let tasks = &job.tasks;
    let is_so = match goal {
        Goal::Placed => tasks.pending + tasks.deferred == 0,
        Goal::Running => all_run(job),
        Goal::Healthy => is_healthy(job),
        Goal::Updated => is_updated(job),
        Goal::Ended => matches!(job.state, JobState::Dead(_)),
    };
    let is_over = matches!(job.state, JobState::Dead(_));
    let skipped = skipped(job);
    if goal == Goal::Updated && skipped > 0 && !is_over {
        let skipped = crate::format::pluralize(u64::from(skipped), "task");
        let finish = format!("cell update finish {}/{}", job.user, job.name);
        return GoalProgress::Never(format!(
            "{skipped} skipped (max_update_disruptions): {finish}"
        ));
    }
    match (is_so, is_over) {
        (true, _) if !is_over || tasks.failed + tasks.killed == 0 => GoalProgress::Reached,
        (_, true) => GoalProgress::Never(format!("it is over: {}", status_text::job_state(job))),
        _ if tasks.failed > 0 => {
            let failed = crate::format::pluralize(u64::from(tasks.failed), "task");
            GoalProgress::Never(format!("{failed} failed for good"))
        }
        _ => GoalProgress::NotYet,
    }
}

/// Tasks that no update under way will reach.
pub fn skipped(job: &JobView) -> u32 {
    match &job.update {
        Some(update) => update.skipped.len() as u32,
        None => job.outdated,
    }
}

/// Every task runs, or has done its work. A running task with a health check has passed it.
fn all_run(job: &JobView) -> bool {
    let tasks = &job.tasks;
    let down = tasks.deferred + tasks.pending + tasks.assigned + tasks.stopping;
    down == 0 && tasks.running + tasks.finished >= job.wanted()
}

/// Every task is well, and nothing of an update is under way: it has reached the tasks that it does
/// not skip, or its canaries.
fn is_healthy(job: &JobView) -> bool {
    let at_rest = match &job.update {
        Some(update) if update.canaries > 0 => job.canaries_well_since.is_some(),
        Some(update) => job.outdated as usize <= update.skipped.len(),
        None => true,
    };
    all_run(job) && at_rest
}

fn is_updated(job: &JobView) -> bool {
    let open = job.update.as_ref();
    let at_rest = open.is_none_or(|update| !update.undoing && update.canaries == 0);
    all_run(job) && job.outdated == 0 && at_rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn view(change: impl FnOnce(&mut Value)) -> JobView {
        let mut job = json!({
            "user": "dev", "name": "web", "state": "active", "version": 2, "redacted": false,
            "update": null, "update_complete": false, "outdated": 0,
            "spec": { "name": "web", "priority": 100, "count": 3, "task": {
                "limits": { "cpu": 100, "ram": 33554432 }, "command": ["sleep"] } },
            "tasks": { "deferred": 0, "pending": 0, "assigned": 0, "running": 3, "stopping": 0,
                       "finished": 0, "failed": 0, "killed": 0 },
            "waits_for": [], "submitted_at": 0, "ended_at": null,
        });
        change(&mut job);
        serde_json::from_value(job).unwrap()
    }

    fn update(from: u32, to: u32) -> Value {
        json!({ "from": from, "to": to, "opened_at": 0, "disruptions": 0, "skipped": [],
                "undoing": false })
    }

    fn reached(job: &JobView) -> Vec<Goal> {
        let is = |goal: &Goal| progress_toward(*goal, None, job) == GoalProgress::Reached;
        Goal::value_variants().iter().copied().filter(is).collect()
    }

    #[test]
    fn each_goal_is_reached_by_what_it_says() {
        use Goal::{Ended, Healthy, Placed, Running, Updated};
        assert_eq!(reached(&view(|_| ())), [Placed, Running, Healthy, Updated]);
        let counts = |running: u32, assigned: u32, pending: u32| {
            view(|job| {
                job["tasks"]["running"] = json!(running);
                job["tasks"]["assigned"] = json!(assigned);
                job["tasks"]["pending"] = json!(pending);
            })
        };
        assert_eq!(reached(&counts(2, 0, 1)), []);
        assert_eq!(reached(&counts(2, 1, 0)), [Placed]);
        let rolling = view(|job| (job["update"], job["outdated"]) = (update(1, 2), json!(1)));
        assert_eq!(reached(&rolling), [Placed, Running]);
        let skipped = view(|job| {
            (job["update"], job["outdated"]) = (update(1, 2), json!(1));
            job["update"]["skipped"] = json!([2]);
        });
        assert_eq!(reached(&skipped), [Placed, Running, Healthy]);
        let tried = |well: Value| {
            view(|job| {
                (job["update"], job["outdated"]) = (update(1, 2), json!(2));
                job["update"]["canaries"] = json!(1);
                job["canaries_well_since"] = well;
            })
        };
        assert_eq!(reached(&tried(Value::Null)), [Placed, Running]);
        assert_eq!(reached(&tried(json!(7))), [Placed, Running, Healthy]);
        let over = view(|job| {
            job["state"] = json!({ "dead": "succeeded" });
            (job["tasks"]["running"], job["tasks"]["finished"]) = (json!(0), json!(3));
        });
        assert_eq!(reached(&over), [Placed, Running, Healthy, Updated, Ended]);
    }

    #[test]
    fn what_will_not_come_is_said_at_once() {
        let why = |goal, version, job: &JobView| match progress_toward(goal, version, job) {
            GoalProgress::Never(why) => why,
            other => panic!("{other:?}"),
        };
        let back = view(|job| {
            (job["version"], job["update"]) = (json!(1), update(2, 1));
            (job["update"]["undoing"], job["update"]["rolled_back"]) = (json!(true), json!(true));
        });
        let text = why(Goal::Healthy, Some(2), &back);
        assert_eq!(text, "version 2 failed and was rolled back to 1");
        let newer = view(|job| job["version"] = json!(3));
        assert_eq!(why(Goal::Healthy, Some(2), &newer), "the job is at version 3 now, not 2");
        let failed = view(|job| {
            (job["tasks"]["running"], job["tasks"]["failed"]) = (json!(2), json!(1));
        });
        assert_eq!(why(Goal::Running, None, &failed), "1 task failed for good");
        let over = view(|job| {
            job["state"] = json!({ "dead": "killed" });
            (job["tasks"]["running"], job["tasks"]["killed"]) = (json!(0), json!(3));
        });
        assert_eq!(why(Goal::Placed, None, &over), "it is over: stopped");
    }
}
