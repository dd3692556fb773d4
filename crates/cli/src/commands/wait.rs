//! `cell wait`: until a job or a task is over, with the task's own exit code, so that scripts can
//! go on from it.

use super::Success;
use super::logs::Wanted;
use super::target::{Target, Typed, typed};
use super::tell;
use crate::failure::Failure;
use crate::output::print;
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::table::rewrapped;
use cellwright_api::client::{JobFilter, Watch};
use cellwright_api::types::{ExplanationView, JobView, TaskView};
use cellwright_cell::name::JobKey;
use cellwright_cell::task::{ExitClass, Fate, TaskState};
use cellwright_cell::time::Span;
use clap::Args;
use std::time::Duration;
use tokio::time::timeout;

const AFTER_HELP: &str = "\
Exit code: that of the first task that did not finish, 128 and the signal's number where a signal
ended it, 1 for any other end; 0 when all finished; 3 when no machine takes it, which stays in the
queue all the same.

A service never ends by itself: wait for one only to see it stopped.";

/// Wait until a job or one task is over; ends with the task's own exit code
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct WaitArgs {
    /// A job, or one of its tasks
    #[arg(value_name = "JOB|TASK", value_parser = typed)]
    target: Typed,

    /// Give up after so long, with exit code 1
    #[arg(long, value_name = "TIME", value_parser = super::parse::span)]
    timeout: Option<Span>,

    #[command(flatten)]
    patience: Patience,
}

impl WaitArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        ask(async {
            let target = self.target.resolve(&cell).await?;
            let over = self.patience.over(&cell, &target, until_over(&cell, &target));
            let Some(limit) = self.timeout else { return over.await };
            timeout(Duration::from_millis(limit.0), over).await.unwrap_or_else(|_| {
                Err(Failure::Work {
                    message: format!(
                        "{} is not over after {}",
                        target.job,
                        crate::format::span(limit)
                    ),
                    next: format!("cell status {0}, or wait on: cell wait {0}", target.job),
                })
            })
        })
    }
}

/// How long whoever submitted jobs stays with them.
#[derive(Clone, Copy, Debug, Args)]
pub struct AttendArgs {
    /// Stay until all of it is over, and end with the code of the first task that did not finish
    #[arg(long)]
    wait: bool,

    /// Tell how placement goes, then show what the tasks write, until all of it is over
    #[arg(short, long)]
    follow: bool,

    #[command(flatten)]
    patience: Patience,
}

impl AttendArgs {
    pub fn is_asked(self) -> bool {
        self.wait || self.follow
    }

    /// Stays with what was submitted. Ctrl-C leaves it running.
    pub fn attend(self, cell: &Cell, jobs: &[JobKey]) -> Result<Success, Failure> {
        let named: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        ask(async {
            let over = async {
                let mut worst = Success::Done;
                for job in jobs {
                    let target = Target { job: job.clone(), tasks: None };
                    let over = async {
                        match self.follow {
                            true => followed(cell, &target).await,
                            false => until_over(cell, &target).await,
                        }
                    };
                    let ended = self.patience.over(cell, &target, over).await?;
                    if worst == Success::Done {
                        worst = ended;
                    }
                }
                Ok(worst)
            };
            tokio::select! {
                ended = over => ended,
                _ = tokio::signal::ctrl_c() => {
                    let first = named.first().map_or("JOB", String::as_str);
                    eprintln!("\n{} goes on without you", named.join(", "));
                    eprintln!("next: cell logs -f {first}, cell wait or cell stop {first}");
                    Ok(Success::Ended(INTERRUPTED))
                }
            }
        })
    }
}

/// As shells count an end by ctrl-c.
const INTERRUPTED: u8 = 130;

/// Placement, then output, then the end.
async fn followed(cell: &Cell, target: &Target) -> Result<Success, Failure> {
    placed(cell, &target.job).await?;
    let wanted = Wanted::following();
    let (shown, ended) = tokio::join!(wanted.show(cell, target), until_over(cell, target));
    // Output that cannot be read does not change how it ended.
    if let Err(failure) = shown {
        eprintln!("output: {failure}");
    }
    ended
}

/// Tells how tasks find their places, until each had one.
async fn placed(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    let filter = JobFilter { user: Some(key.user.clone()), ..JobFilter::default() };
    let mut watch = cell.client.watch_jobs(&filter, None);
    let mut said = String::new();
    while let Some(job) = next_of(&mut watch, key).await? {
        let now = tell::counts(&job.tasks);
        if now != said {
            eprintln!("{key}: {now}");
            said = now;
        }
        let waits = job.tasks.pending + job.tasks.deferred + job.tasks.assigned > 0;
        let target = Target { job: key.clone(), tasks: None };
        if !waits || tasks_of(cell, &target).await?.iter().all(|task| task.attempt > 0) {
            return Ok(());
        }
    }
    Ok(())
}

/// The end of a job, or of some of its tasks, as an exit code.
pub async fn until_over(cell: &Cell, target: &Target) -> Result<Success, Failure> {
    let key = &target.job;
    // Asked first: a job nobody knows is an error at once.
    cell.client.job(key).await?;
    let filter = JobFilter { user: Some(key.user.clone()), ..JobFilter::default() };
    let mut watch = cell.client.watch_jobs(&filter, None);
    loop {
        let Some(job) = next_of(&mut watch, key).await? else {
            return Err(Failure::Work {
                message: format!("job {key} is forgotten: nothing tells how it ended"),
                next: "look among the events: cell events".into(),
            });
        };
        let over = match &target.tasks {
            None => matches!(job.state, cellwright_cell::job::JobState::Dead(_)),
            Some(_) => true,
        };
        if !over {
            continue;
        }
        let tasks = tasks_of(cell, target).await?;
        if tasks.iter().all(|task| task.state.is_dead()) {
            return told(&tasks);
        }
    }
}

/// The next picture of the job; nothing once it is gone.
async fn next_of(watch: &mut Watch<JobView>, key: &JobKey) -> Result<Option<JobView>, Failure> {
    loop {
        let event = watch.next().await?;
        match (event.kind.as_str(), event.data) {
            ("job", Some(job)) if job.user == key.user && job.name == key.job => {
                return Ok(Some(job));
            }
            ("gone", _) if is_of(&event.text, key) => return Ok(None),
            _ => {}
        }
    }
}

fn is_of(gone: &str, key: &JobKey) -> bool {
    let gone: serde_json::Value = serde_json::from_str(gone).unwrap_or_default();
    gone["user"] == key.user.as_str() && gone["job"] == key.job.as_str()
}

async fn tasks_of(cell: &Cell, target: &Target) -> Result<Vec<TaskView>, Failure> {
    let mut tasks = super::pages::tasks(cell, &target.job).await?;
    if let Some(some) = &target.tasks {
        tasks.retain(|task| some.contains(&task.index));
        if tasks.len() != some.len() {
            return Err(Failure::Work {
                message: format!("{} has no such task", target.job),
                next: format!("cell status {}", target.job),
            });
        }
    }
    Ok(tasks)
}

/// How long a job may wait for its first machine.
#[derive(Clone, Copy, Debug, Args)]
pub struct Patience {
    /// Give up with exit code 3 when nothing of it runs and no machine takes it for so long; 0s:
    /// never [default: 10s if no machine would take it even when empty, otherwise never]
    #[arg(long, value_name = "TIME", value_parser = super::parse::span)]
    place_timeout: Option<Span>,
}

/// A machine may just be joining.
const GRACE: Span = Span::seconds(10);

impl Patience {
    /// The end of it, or that it does not begin. It is left in the queue: only who asked goes.
    async fn over(
        self,
        cell: &Cell,
        target: &Target,
        over: impl Future<Output = Result<Success, Failure>>,
    ) -> Result<Success, Failure> {
        tokio::select! {
            ended = over => ended,
            why = self.not_placed(cell, target) => {
                eprintln!("{}", left_waiting(&target.job, &why));
                Ok(Success::DoesNotFit)
            }
        }
    }

    async fn not_placed(self, cell: &Cell, target: &Target) -> ExplanationView {
        let asked = self.place_timeout;
        if asked == Some(Span::ZERO) {
            return std::future::pending().await;
        }
        let between = Duration::from_millis(asked.unwrap_or(GRACE).0);
        loop {
            tokio::time::sleep(between).await;
            // What cannot be asked now says nothing about machines.
            let Ok(Some(why)) = unplaced(cell, target).await else { continue };
            if asked.is_some() || why.when_empty == 0 || !why.obstacles.is_empty() {
                return why;
            }
        }
    }
}

/// Why its first task waits, when nothing of it runs and no machine would take it now.
async fn unplaced(cell: &Cell, target: &Target) -> Result<Option<ExplanationView>, Failure> {
    let (tasks, now) = (tasks_of(cell, target).await?, crate::clock::now());
    let waits = |task: &&TaskView| {
        task.state == TaskState::Pending && !tell::is_failing(task) && task.not_before <= now
    };
    let Some(task) = tasks.iter().find(waits) else { return Ok(None) };
    if tasks.iter().any(|task| task.state.on_machine()) {
        return Ok(None);
    }
    let why = cell.client.explain(&target.job, task.index).await?.value.item;
    let fits = why.reasons.iter().any(|reason| reason.code == "fits" && reason.machines > 0);
    Ok((!fits || !why.obstacles.is_empty()).then_some(why))
}

fn left_waiting(job: &JobKey, why: &ExplanationView) -> String {
    let text = rewrapped("  ", "    ", &why.text);
    format!(
        "{job} is not placed and stays in the queue\n{}\n\
         next: cell explain {job}, or take it back: cell stop {job}",
        text.trim_end()
    )
}

fn told(tasks: &[TaskView]) -> Result<Success, Failure> {
    let ended = |task: &&TaskView| task.state != TaskState::Dead(Fate::Finished);
    let Some(task) = tasks.iter().find(ended) else {
        print(&format!("{} finished\n", crate::format::counted(tasks.len() as u64, "task")))?;
        return Ok(Success::Done);
    };
    let note = tell::note(task, crate::clock::now());
    let note = if note.is_empty() { String::new() } else { format!(": {note}") };
    print(&format!("{} {}{note}\n", task.name, tell::state(task)))?;
    Ok(Success::Ended(code(task.state)))
}

/// As shells count.
fn code(state: TaskState) -> u8 {
    match state {
        TaskState::Dead(Fate::Finished) => 0,
        TaskState::Dead(Fate::Failed(ExitClass::Code(code))) => {
            u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(1)
        }
        TaskState::Dead(Fate::Failed(ExitClass::Signal(signal))) => {
            u8::try_from(signal).ok().and_then(|signal| signal.checked_add(128)).unwrap_or(1)
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_the_tasks_own() {
        let failed = |class| code(TaskState::Dead(Fate::Failed(class)));
        assert_eq!(code(TaskState::Dead(Fate::Finished)), 0);
        assert_eq!(failed(ExitClass::Code(7)), 7);
        assert_eq!(failed(ExitClass::Code(70_000)), 1);
        assert_eq!(failed(ExitClass::Signal(9)), 137);
        assert_eq!(failed(ExitClass::OutOfMemory), 1);
        assert_eq!(code(TaskState::Dead(Fate::Killed)), 1);
    }
}
