//! `cell wait`: until a job or a task is over, with the task's own exit code, so that scripts can
//! go on from it.

mod patience;

use super::Success;
use super::logs::Wanted;
use super::select::{self, Meant};
use super::status::words_of_starts;
use super::target::{Target, Typed, typed};
use super::tell;
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::output::{Output, print_json, say};
use crate::progress::Standing;
use crate::reach::{Cell, Reach};
use crate::server::{ask, unless_interrupted};
use crate::table::{rewrapped, wrapped};
use cellwright_api::client::{ClientError, JobFilter, Watch};
use cellwright_api::error::Code;
use cellwright_api::types::{JobView, TaskView};
use cellwright_cell::job::JobState;
use cellwright_cell::name::JobKey;
use cellwright_cell::task::{ExitClass, Fate, TaskState};
use cellwright_cell::time::Span;
use clap::{ArgGroup, Args};
use patience::Patience;
use serde::Serialize;
use std::cell::RefCell;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

const AFTER_HELP: &str = "\
Examples:
  cell wait dev/sums
  cell wait dev/sums/3 --timeout 10m
  cell wait last
  cell wait -l run=42

Exit code: that of the first task that did not finish, 128 and the signal's
number where a signal ended it, 1 for any other end; 0 when all finished; 3 when
no machine takes it, which stays in the queue all the same. A task may end with
3 as well: `outcome` of -o json is then `failed` and not `not_placed`.

A service never ends by itself: wait for one only to see it stopped.";

/// Wait until a job or one task is over; ends with the task's own exit code
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
#[command(group = ArgGroup::new("which").required(true).args(["target", "selector"]))]
pub struct WaitArgs {
    /// A job, one of its tasks, or a range of them
    #[arg(value_name = "JOB|TASK", value_parser = typed)]
    target: Option<Typed>,

    /// Every job whose labels match, those that are over as well: a=b, a!=b, a, !a, separated by
    /// commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Give up after so long, with exit code 1
    #[arg(long, value_name = "TIME", value_parser = super::parse::span)]
    timeout: Option<Span>,

    #[command(flatten)]
    patience: Patience,

    #[command(flatten)]
    output: OutputArgs,
}

impl WaitArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        ask(async {
            let targets = self.targets(&cell).await?;
            let left = RefCell::new(targets.iter().map(|target| target.job.clone()).collect());
            let over = async {
                let mut seen = Vec::new();
                let success = self.over(&cell, &targets, &left, &mut seen).await?;
                match (self.output.output, &seen[..]) {
                    (Output::Table, _) => {}
                    (Output::Json, [one]) if self.selector.is_none() => print_json(one)?,
                    (Output::Json, all) => print_json(&all)?,
                }
                Ok(success)
            };
            let told = async || left_running(&not_over(&cell, left.take()).await);
            unless_interrupted(told, over).await
        })
    }

    async fn targets(&self, cell: &Cell) -> Result<Vec<Target>, Failure> {
        if let Some(typed) = &self.target {
            return Ok(vec![typed.resolve(cell).await?]);
        }
        let Some(selector) = &self.selector else { return Ok(Vec::new()) };
        let jobs = select::jobs(cell, selector, Meant::All).await?;
        Ok(jobs.iter().map(|job| Target { job: select::key(job), tasks: None }).collect())
    }

    async fn over(
        &self,
        cell: &Cell,
        targets: &[Target],
        left: &RefCell<Vec<JobKey>>,
        seen: &mut Vec<Ended>,
    ) -> Result<Success, Failure> {
        let watch =
            Vigil { cell, patience: self.patience, follow: false, output: self.output.output };
        let mut over = pin!(watch.keep(targets, left, seen));
        let Some(limit) = self.timeout else { return over.await };
        if let Ok(over) = timeout(Duration::from_millis(limit.0), &mut over).await {
            return over;
        }
        let known = left.borrow().clone();
        match &not_over(cell, known).await[..] {
            // Only how they ended is left to be told.
            [] => over.await,
            late => Err(too_long(late, limit)),
        }
    }
}

fn too_long(left: &[JobKey], limit: Span) -> Failure {
    let span = match limit {
        Span(short @ 1..1000) => format!("{short} ms"),
        long => crate::format::span(long),
    };
    match left {
        [one] => Failure::Work {
            message: format!("{one} is not over after {span}"),
            next: format!("cell status {one}, or wait on: cell wait {one}"),
        },
        many => Failure::Work {
            message: format!("{} jobs are not over after {span}: {}", many.len(), some_of(many)),
            next: "see how they stand: cell status; or wait on: the same command".into(),
        },
    }
}

/// What became of a job that somebody waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ended {
    pub job: String,
    pub outcome: Outcome,
    /// The first of its tasks that did not finish.
    pub task: Option<String>,
    /// What the command ends with because of it.
    pub exit: u8,
    /// For people.
    pub text: String,
    /// Whether it could not even start: what it wrote does not say why.
    #[serde(skip)]
    pub never_started: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Finished,
    Failed,
    Stopped,
    NeverRan,
    /// It waits still, and was not waited for any longer.
    NotPlaced,
}

impl Ended {
    /// Says so to a person; `named`: several are waited for, and each end says whose it is.
    fn show(&self, named: bool) -> Result<(), Failure> {
        let text = &self.text;
        match (self.outcome, &self.task) {
            (Outcome::NotPlaced, _) => {
                crate::output::note!("{}", left_waiting(&self.job, text));
                Ok(())
            }
            (Outcome::Finished, _) if named => say(&format!("{}: {text}\n", self.job)),
            (_, Some(task)) if self.never_started => {
                say(&format!("{task} {text}\nnext: cell explain {task}\n"))
            }
            (_, Some(task)) => say(&format!("{task} {text}\n")),
            _ => say(&format!("{text}\n")),
        }
    }

    fn success(&self) -> Success {
        match self.outcome {
            Outcome::Finished => Success::Done,
            Outcome::NotPlaced => Success::DoesNotFit,
            _ => Success::Ended(self.exit),
        }
    }
}

/// How long whoever submitted jobs stays with them.
#[derive(Clone, Copy, Debug, Args)]
pub struct AttendArgs {
    /// Stay until all of it is over, and end with the code of the first task that did not finish
    #[arg(long)]
    wait: bool,

    /// Tell how placement goes, then show what the tasks write, until all of it is over
    #[arg(long)]
    follow: bool,

    #[command(flatten)]
    patience: Patience,
}

impl AttendArgs {
    pub fn is_asked(self) -> bool {
        self.wait || self.follow
    }

    /// What tasks write would stand in the middle of a document.
    pub fn check(self, output: Output) -> Result<(), Failure> {
        match (self.follow, output) {
            (true, Output::Json) => Err(Failure::Usage {
                message: "--follow shows what tasks write, which is no part of a document; \
                          allowed: -o table"
                    .into(),
                next: "the same command with --wait instead of --follow".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Stays with what was submitted, and says how each ended as soon as it has, or leaves that to
    /// whoever prints a document of it. Ctrl-C leaves all of it running.
    pub fn attend(
        self,
        cell: &Cell,
        jobs: &[JobKey],
        output: Output,
        seen: &mut Vec<Ended>,
    ) -> Result<Success, Failure> {
        let left = RefCell::new(jobs.to_vec());
        let whole = |job: &JobKey| Target { job: job.clone(), tasks: None };
        let targets: Vec<Target> = jobs.iter().map(whole).collect();
        ask(async {
            let watch = Vigil { cell, patience: self.patience, follow: self.follow, output };
            let over = watch.keep(&targets, &left, seen);
            let told = async || left_running(&not_over(cell, left.take()).await);
            unless_interrupted(told, over).await
        })
    }
}

/// Staying with what is waited for.
struct Vigil<'a> {
    cell: &'a Cell,
    patience: Patience,
    /// Shows what is written meanwhile.
    follow: bool,
    output: Output,
}

impl Vigil<'_> {
    /// Until each is over; the answer is that of the first that did not finish. Those that are over
    /// go from `left` to `seen`.
    async fn keep(
        &self,
        targets: &[Target],
        left: &RefCell<Vec<JobKey>>,
        seen: &mut Vec<Ended>,
    ) -> Result<Success, Failure> {
        let (mut worst, several) = (Success::Done, targets.len() > 1);
        for target in targets {
            let over = async {
                match self.follow {
                    true => followed(self.cell, target).await,
                    false => until_over(self.cell, target, Standing::if_seen()).await,
                }
            };
            let ended = self.patience.over(self.cell, target, over).await?;
            if self.output == Output::Table {
                ended.show(several)?;
            }
            if worst == Success::Done {
                worst = ended.success();
            }
            // One that has no place waits on.
            if ended.outcome != Outcome::NotPlaced {
                left.borrow_mut().retain(|other| *other != target.job);
            }
            seen.push(ended);
        }
        Ok(worst)
    }
}

/// Until a job that is stopping is over, if that is soon enough.
pub async fn is_over_within(cell: &Cell, job: &JobKey, limit: Duration) -> Result<bool, Failure> {
    let target = Target { job: job.clone(), tasks: None };
    let over = until_over(cell, &target, Standing::if_seen());
    match timeout(limit, over).await {
        Ok(ended) => ended.map(|_| true),
        Err(_) => Ok(false),
    }
}

/// Whoever leaves does not wait longer than this to hear what goes on.
const LEAVING: Duration = Duration::from_secs(1);
/// So many jobs that go on are named.
const NAMED: usize = 5;

/// Those that are not over. They are waited for one after the other, so one that had no turn yet
/// may have ended long ago; one that the cell says nothing of in time goes on for all we know.
async fn not_over(cell: &Cell, jobs: Vec<JobKey>) -> Vec<JobKey> {
    let (latest, mut left) = (Instant::now() + LEAVING, Vec::new());
    for job in jobs {
        let is_over = match timeout_at(latest, cell.client.job(&job)).await {
            Ok(Ok(found)) => matches!(found.value.item.state, JobState::Dead(_)),
            Ok(Err(ClientError::Api(error))) => error.code == Code::NoSuchJob,
            Ok(Err(_)) | Err(_) => false,
        };
        if !is_over {
            left.push(job);
        }
    }
    left
}

fn left_running(jobs: &[JobKey]) -> String {
    match jobs {
        [] => "all of it is over\nnext: cell status".to_owned(),
        [one] => format!(
            "{one} goes on without you\n\
             next: cell logs -f {one}\n\
             or wait on: cell wait {one}, or end it: cell stop {one}"
        ),
        [first, ..] => {
            let number = crate::format::counted(jobs.len() as u64, "job");
            let text = format!("{number} go on without you: {}", some_of(jobs));
            format!("{}next: cell status, or cell logs -f {first}", wrapped("", "  ", &text))
        }
    }
}

/// The first few by name, and how many more.
fn some_of(jobs: &[JobKey]) -> String {
    let named: Vec<String> = jobs.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match jobs.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

/// No machine takes it. A task may end with this as well: what was said tells them apart.
const NOT_PLACED: u8 = 3;

/// Placement, then output, then the end.
async fn followed(cell: &Cell, target: &Target) -> Result<Ended, Failure> {
    placed(cell, &target.job).await?;
    let wanted = Wanted::following();
    let (shown, ended) = tokio::join!(wanted.show(cell, target), until_over(cell, target, None));
    // Output that cannot be read does not change how it ended.
    if let Err(failure) = shown {
        crate::output::note!("output: {failure}");
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
            crate::output::note!("{key}: {now}");
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

/// The end of a job, or of some of its tasks; `standing` says meanwhile how the job is.
async fn until_over(
    cell: &Cell,
    target: &Target,
    mut standing: Option<Standing>,
) -> Result<Ended, Failure> {
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
            None => matches!(job.state, JobState::Dead(_)),
            Some(_) => true,
        };
        if !over {
            if let Some(standing) = &mut standing {
                standing.tell(vec![format!("{key}: {}", tell::counts(&job.tasks))]);
            }
            continue;
        }
        let tasks = tasks_of(cell, target).await?;
        if tasks.iter().all(|task| task.state.is_dead()) {
            return Ok(with_cause(cell, key, &tasks, told(&tasks, key)).await);
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

fn left_waiting(job: &str, why: &str) -> String {
    let text = rewrapped("  ", "    ", why);
    format!(
        "{job} is not placed and stays in the queue\n{}\n\
         next: cell explain {job}, or take it back: cell stop {job}",
        text.trim_end()
    )
}

fn told(tasks: &[TaskView], job: &JobKey) -> Ended {
    let (job, ended) = (job.to_string(), |task: &&TaskView| outcome(task.state).is_some());
    let Some(task) = tasks.iter().find(ended) else {
        let text = format!("{} finished", crate::format::counted(tasks.len() as u64, "task"));
        let (outcome, never_started) = (Outcome::Finished, false);
        return Ended { job, outcome, task: None, exit: 0, text, never_started };
    };
    let note = tell::note(task, crate::clock::now());
    let note = if note.is_empty() { String::new() } else { format!(": {note}") };
    Ended {
        job,
        outcome: outcome(task.state).unwrap_or(Outcome::Failed),
        task: Some(task.name.clone()),
        exit: code(task.state),
        text: format!("{}{note}", tell::state(task)),
        never_started: task.state == TaskState::Dead(Fate::Failed(ExitClass::CouldNotStart)),
    }
}

/// With the words of the machine where the task could not start, if they can be had.
async fn with_cause(cell: &Cell, key: &JobKey, tasks: &[TaskView], mut ended: Ended) -> Ended {
    let is_it = |task: &&TaskView| ended.task.as_ref() == Some(&task.name);
    let Some(task) = tasks.iter().find(is_it).filter(|_| ended.never_started) else {
        return ended;
    };
    for words in words_of_starts(cell, key, std::slice::from_ref(task)).await {
        ended.text = format!("{}: {}", ended.text, words.said);
    }
    ended
}

/// Of one that did not finish.
fn outcome(state: TaskState) -> Option<Outcome> {
    match state {
        TaskState::Dead(Fate::Finished) => None,
        TaskState::Dead(Fate::Killed) => Some(Outcome::Stopped),
        TaskState::Dead(Fate::DependencyFailed) => Some(Outcome::NeverRan),
        _ => Some(Outcome::Failed),
    }
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
    fn a_task_that_ends_with_three_is_told_from_one_that_has_no_place() {
        let task: TaskView = serde_json::from_value(serde_json::json!({
            "name": "dev/sums/0", "index": 0, "state": {"dead": {"failed": {"code": 3}}},
            "healthy": true, "attempt": 1, "version": 1, "machine": null, "alloc": null,
            "limits": {"cpu": 1, "ram": 1}, "reservation": {"cpu": 1, "ram": 1},
            "ports": [], "devices": [], "waits_for": [], "failures_in_row": 1,
            "not_before": 0, "changed_at": 0, "crashed_on": [],
        }))
        .unwrap();
        let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
        let key = JobKey { user: name("dev"), job: name("sums") };
        let state = TaskState::Dead(Fate::Failed(ExitClass::CouldNotStart));
        let unable = told(&[TaskView { state, ..task.clone() }], &key);
        assert_eq!((unable.never_started, unable.exit), (true, 1));
        assert_eq!(unable.text, "failed: could not start");
        let failed = told(&[task], &key);
        assert_eq!((failed.outcome, failed.exit), (Outcome::Failed, 3));
        assert_eq!(failed.text, "failed: exit code 3");
        let waits = Ended { outcome: Outcome::NotPlaced, ..failed.clone() };
        let json = |ended: &Ended| serde_json::to_value(ended).unwrap()["outcome"].clone();
        assert_eq!([json(&failed), json(&waits)], ["failed", "not_placed"]);
        assert_eq!(waits.success(), Success::DoesNotFit);
        assert_eq!(failed.success(), Success::Ended(3));
        assert!(!failed.never_started);
    }

    #[test]
    fn whoever_leaves_is_told_what_goes_on_and_how_to_follow_it() {
        let key = |job: &str| {
            let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
            JobKey { user: name("dev"), job: name(job) }
        };
        let one = left_running(&[key("web")]);
        assert!(one.starts_with("dev/web goes on without you\nnext: cell logs -f dev/web\n"));
        assert!(one.contains("cell wait dev/web") && one.contains("cell stop dev/web"), "{one}");
        let two = left_running(&[key("web"), key("db")]);
        let told = "2 jobs go on without you: dev/web, dev/db\nnext: cell status, or cell logs -f ";
        assert!(two.starts_with(told), "{two}");
        let many: Vec<JobKey> = (0..7).map(|n| key(&format!("a-rather-long-name-{n}"))).collect();
        let many = left_running(&many);
        assert!(many.lines().all(|line| line.len() <= crate::table::WIDTH), "{many}");
        let flat = many.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("name-3, dev/a-rather-long-name-4 and 2 more next: "), "{many}");
        assert!(left_running(&[]).starts_with("all of it is over"));
    }

    #[test]
    fn whoever_gives_up_is_told_after_how_long() {
        let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
        let web = JobKey { user: name("dev"), job: name("web") };
        let told = |left: &[JobKey], ms: u64| too_long(left, Span(ms)).to_string();
        for (ms, span) in [(0, "0 s"), (10, "10 ms"), (999, "999 ms"), (1000, "1 s")] {
            let told = told(std::slice::from_ref(&web), ms);
            assert!(told.contains(&format!("dev/web is not over after {span}")), "{told}");
        }
        let two = told(&[web.clone(), JobKey { job: name("db"), ..web.clone() }], 250);
        assert!(two.contains("2 jobs are not over after 250 ms: dev/web, dev/db"), "{two}");
    }

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
