//! `cell run`: make the cell have what a file says. What is not there is submitted, what is there
//! and differs is updated, task by task, and what is there just like this is left alone. Which of
//! these it takes for a job the cell decides, in one step; here it is told.

use super::wait::{AttendArgs, Ended, is_over_within};
use super::{Success, closing, file, package, pages, parse, planned};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, aside, print, print_named, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::client::{Change, ClientError};
use cellwright_api::types::{Changed, JobPlan, PlanJobs, PlanToken, PlanView, SubmitJob, TaskView};
use cellwright_cell::command::Became;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::{Fate, StopCause, TaskState};
use cellwright_lang::{CronDocument, Document, JobDocument};
use clap::Args;
use serde::Serialize;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  cell run examples/hello.json
  cell run examples/service.jsonnet
  cell run examples/batch.jsonnet --wait
  cell run jobs.yaml --owner ads

A job that is over, or was stopped, is started anew; one that is still stopping
is waited for first. An update that is complete is closed by the next one.

Files are Jsonnet, JSON or YAML: see the guide on the job language, or start
with `cell init`.";

/// A job that is stopping is waited for so long before it is started anew: a minute, for notices
/// are seconds, and whoever types this waits at a terminal.
const STOPPING: Duration = Duration::from_secs(60);

/// Run what a file says: submit what is not there, update what differs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Jobs in Jsonnet, JSON or YAML; - for standard input
    #[arg(value_name = "FILE|-", required_unless_present = "named")]
    file: Option<String>,

    /// The same, for those who are used to it
    #[arg(short = 'f', long = "file", value_name = "FILE|-", num_args = 0..=1,
          default_missing_value = "")]
    named: Option<String>,

    /// Whose jobs they are that name no owner [default: yours; on an open master dev's]
    #[arg(long, value_name = "USER", value_parser = parse::name)]
    owner: Option<Name>,

    /// Do just what `cell plan` showed, or nothing if a job or the file has changed since
    #[arg(long, value_name = "TOKEN")]
    plan: Option<PlanToken>,

    #[command(flatten)]
    attend: AttendArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// One job or periodic job of the file, as the cell has it now.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    /// `job` or `cron`.
    pub kind: &'static str,
    pub owner: Name,
    pub name: Name,
    pub became: Became,
    pub tasks: u32,
    /// The log index at which it is durable.
    pub index: u64,
    pub version: Option<u32>,
    /// How it ended, for whoever waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

impl RunArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        self.attend.check(self.output.output)?;
        let file = self.file()?;
        let cell = reach.cell()?;
        let owner = cell.owner(self.owner.clone());
        let documents = file::loaded(file, owner.as_ref())?.documents;
        let plan = ask(self.held(&cell, owner.as_ref(), &documents, file))?;
        // Advice only: a cell that cannot list its packages now may well take the jobs.
        for warning in ask(package::warnings(&cell, &documents)).unwrap_or_default() {
            aside(&warning);
        }
        let table = self.output.output == Output::Table;
        let mut done = Vec::new();
        for (position, document) in documents.iter().enumerate() {
            match ask(run_document(&cell, owner.as_ref(), document, plan.as_ref())) {
                Ok(ran) => {
                    if table {
                        say(&ran.shown())?;
                    }
                    done.push(ran);
                }
                Err(failure) => {
                    if !table {
                        print_named(&done, &names_of(&done))?;
                    }
                    return Err(match documents.len() {
                        1 => failure,
                        _ => failure.about(&told(&done, &documents[position..], owner.as_ref())),
                    });
                }
            }
        }
        if table {
            print(&next(&done))?;
        }
        let mut seen = Vec::new();
        let ended = match self.attend.is_asked() {
            true => self.attend.attend(&cell, &jobs_of(&done), self.output.output, &mut seen),
            false => Ok(Success::Done),
        };
        if !table {
            for ran in done.iter_mut().filter(|ran| ran.kind == "job") {
                let name = ran.key().to_string();
                ran.ended = seen.iter().find(|ended| ended.job == name).cloned();
            }
            print_named(&done, &names_of(&done))?;
        }
        ended
    }

    /// The one file, wherever it stands. Elsewhere `-f` is either the file or to follow, so that
    /// here it is never taken for what was not meant.
    fn file(&self) -> Result<&str, Failure> {
        let usage =
            |message: &str, next: String| Err(Failure::Usage { message: message.to_owned(), next });
        match (self.file.as_deref(), self.named.as_deref()) {
            (file, Some("")) => usage(
                "-f names the file; to show what the tasks write: --follow",
                format!("cell run {} --follow", file.unwrap_or("FILE")),
            ),
            (Some(one), Some(other)) => usage(
                &format!("two files: {one} and {other}; allowed: one"),
                format!("one after the other: cell run {one}"),
            ),
            (one, other) => Ok(one.or(other).unwrap_or_default()),
        }
    }

    /// The plan that the token stands for, if one was given and still holds.
    async fn held(
        &self,
        cell: &Cell,
        owner: Option<&Name>,
        documents: &[Document],
        file: &str,
    ) -> Result<Option<PlanView>, Failure> {
        let Some(token) = self.plan else { return Ok(None) };
        let jobs = PlanJobs { jobs: planned::jobs(documents, owner) };
        planned::hold(cell, &jobs, token, file).await.map(Some)
    }
}

impl Ran {
    fn key(&self) -> JobKey {
        JobKey { user: self.owner.clone(), job: self.name.clone() }
    }

    fn shown(&self) -> String {
        let what = match (self.became, self.version) {
            (Became::Created, _) => "created".to_owned(),
            (Became::Updated, Some(version)) => format!("being updated to version {version}"),
            (Became::Updated, None) => "being updated".to_owned(),
            (Became::Unchanged, _) => "unchanged".to_owned(),
        };
        let tasks = format::counted(u64::from(self.tasks), "task");
        let word = if self.kind == "cron" { "periodic job" } else { "job" };
        format!("{word} {} of {tasks}: {what}\n", self.key())
    }
}

fn names_of(done: &[Ran]) -> Vec<String> {
    done.iter().map(|ran| ran.key().to_string()).collect()
}

fn jobs_of(done: &[Ran]) -> Vec<JobKey> {
    done.iter().filter(|ran| ran.kind == "job").map(Ran::key).collect()
}

/// What to type next, about what was run.
fn next(done: &[Ran]) -> String {
    match (&jobs_of(done)[..], done) {
        ([one], _) => format!("next: cell status {one}\n"),
        ([], [cron]) => format!("next: cell status {}\n", cron.key()),
        _ => "next: cell status\n".to_owned(),
    }
}

/// Has the cell have `document`; `owner` owns what names no owner, the caller if absent.
pub async fn run_document(
    cell: &Cell,
    owner: Option<&Name>,
    document: &Document,
    plan: Option<&PlanView>,
) -> Result<Ran, Failure> {
    let owner = document.owner().or(owner);
    match (document, owner) {
        (Document::Job(job), owner) => run_job(cell, owner, job, plan).await,
        (Document::Cron(cron), Some(owner)) => run_cron(cell, owner.clone(), cron).await,
        (Document::Cron(cron), None) => {
            let owner = caller(cell, document.job()).await?;
            run_cron(cell, owner, cron).await
        }
    }
}

/// Who the cell takes the caller for: whose a job would be that names no owner.
async fn caller(cell: &Cell, spec: &JobSpec) -> Result<Name, Failure> {
    let jobs = PlanJobs { jobs: vec![SubmitJob { owner: None, spec: spec.clone() }] };
    let plan = cell.client.plan(&jobs).await?.value.item;
    plan.jobs.into_iter().next().map(|job| job.user).ok_or_else(|| Failure::Work {
        message: "the cell does not say whose the job would be".into(),
        next: "the same command with --owner USER".into(),
    })
}

/// Which of a file's jobs it is about, which were run before it and stay, and which were not
/// reached.
fn told(done: &[Ran], left: &[Document], owner: Option<&Name>) -> String {
    let name = |document: &Document| match document.owner().or(owner) {
        Some(owner) => format!("{owner}/{}", document.name()),
        None => document.name().to_string(),
    };
    let names: Vec<String> = left.iter().map(name).collect();
    let Some((refused, rest)) = names.split_first() else { return String::new() };
    let part = |names: &[String], what: &str| match names {
        [] => None,
        some => Some(format!("{what}: {}", some.join(", "))),
    };
    let parts = [part(&names_of(done), "done before and staying"), part(rest, "not reached")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{refused} ({})", parts.join("; "))
}

async fn run_job(
    cell: &Cell,
    owner: Option<&Name>,
    job: &JobDocument,
    plan: Option<&PlanView>,
) -> Result<Ran, Failure> {
    let spec = &job.spec;
    let named = owner.map_or(spec.name.to_string(), |owner| format!("{owner}/{}", spec.name));
    let planned = plan.and_then(|plan| {
        let same = |job: &&JobPlan| job.name == spec.name && owner.is_none_or(|o| *o == job.user);
        plan.jobs.iter().find(same)
    });
    // Whoever ran a plan changes what the plan saw, or nothing.
    let expect = planned.map(|job| job.version.unwrap_or(0));
    let change = Change { expect, ..Change::default() };
    let mut answer = cell.client.apply_job(owner, spec, &change).await;
    if let Some(stopping) = stopping(&answer).filter(|_| plan.is_none()) {
        until_over(cell, &stopping).await?;
        answer = cell.client.apply_job(owner, spec, &change).await;
    }
    let in_doubt = |error| Failure::of_change(error, &format!("cell status {named}"));
    let applied = answer.map_err(in_doubt)?.value;
    let key = JobKey { user: applied.user, job: applied.name };
    if let Some(version) = applied.closed_update {
        aside(&closing::closed(&key, version));
    }
    if applied.became == Became::Unchanged {
        tell_stopped(cell, &key).await?;
    }
    Ok(Ran {
        kind: "job",
        owner: key.user,
        name: key.job,
        became: applied.became,
        tasks: spec.count,
        index: applied.index,
        version: Some(applied.version),
        ended: None,
    })
}

/// The job that has to be over first, if the cell says so.
fn stopping<T>(answer: &Result<T, ClientError>) -> Option<JobKey> {
    match answer {
        Err(ClientError::Api(error)) => error.stopping_job(),
        _ => None,
    }
}

/// Waits for a job that is stopping, for a while.
async fn until_over(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    aside(&format!("job {key} is stopping; it is started anew as soon as it is over"));
    match is_over_within(cell, key, STOPPING).await? {
        true => Ok(()),
        false => Err(Failure::Work {
            message: format!("job {key} is still stopping after {} s", STOPPING.as_secs()),
            next: format!("wait until it is over, then do it again: cell wait {key}"),
        }),
    }
}

/// By somebody, and for good.
fn is_stopped(task: &TaskView) -> bool {
    matches!(task.state, TaskState::Stopping(StopCause::Killed) | TaskState::Dead(Fate::Killed))
}

/// That a job is as the file says does not mean that all of it runs.
async fn tell_stopped(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    let job = cell.client.job(key).await?.value.item;
    if job.tasks.killed == 0 && job.tasks.stopping == 0 {
        return Ok(());
    }
    let tasks = pages::tasks(cell, key).await?;
    let wanted = tasks.iter().filter(|task| task.index < job.spec.count);
    let stopped: Vec<&str> =
        wanted.filter(|task| is_stopped(task)).map(|task| task.name.as_str()).collect();
    if let Some(text) = stays_stopped(key, &stopped) {
        aside(&text);
    }
    Ok(())
}

fn stays_stopped(job: &JobKey, stopped: &[&str]) -> Option<String> {
    let what = match stopped {
        [] => return None,
        [one] => format!("task {one} was stopped alone and stays stopped"),
        [first, rest @ ..] => {
            format!("{} tasks were stopped alone and stay stopped, as {first}", rest.len() + 1)
        }
    };
    Some(format!("{what}; to have all run again: cell stop {job}, then the same command"))
}

/// A periodic job is set whole, whatever was there; its first version is a new one.
async fn run_cron(cell: &Cell, owner: Name, cron: &CronDocument) -> Result<Ran, Failure> {
    let path = format!("/v1/crons/{owner}/{}", cron.spec.name);
    let (method, change) = (hyper::Method::PUT, Change::default());
    let changed: Changed =
        cell.client.change(method, &path, Some(&cron.spec), &change).await?.value;
    let became = match (changed.changed, changed.version) {
        (false, _) => Became::Unchanged,
        (true, Some(1)) => Became::Created,
        (true, _) => Became::Updated,
    };
    Ok(Ran {
        kind: "cron",
        owner,
        name: cron.spec.name.clone(),
        became,
        tasks: cron.spec.job.count,
        index: changed.index,
        version: changed.version,
        ended: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_stay_stopped_are_told_with_what_to_type() {
        let name = |text: &str| Name::new(text).unwrap();
        let key = JobKey { user: name("dev"), job: name("web") };
        assert_eq!(stays_stopped(&key, &[]), None);
        let one = stays_stopped(&key, &["dev/web/2"]).unwrap();
        assert!(one.starts_with("task dev/web/2 was stopped alone and stays stopped; "), "{one}");
        assert!(one.ends_with("cell stop dev/web, then the same command"), "{one}");
        let two = stays_stopped(&key, &["dev/web/1", "dev/web/2"]).unwrap();
        let want = "2 tasks were stopped alone and stay stopped, as dev/web/1; ";
        assert!(two.starts_with(want), "{two}");
    }

    #[test]
    fn a_short_f_is_the_file_and_never_something_else() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: RunArgs,
        }
        let read = |words: &[&str]| {
            let line: Line = clap::Parser::try_parse_from([&["run"], words].concat()).unwrap();
            (line.args.file().map(str::to_owned), line.args.attend.is_asked())
        };
        for words in [&["a.yaml"][..], &["-f", "a.yaml"], &["--file", "a.yaml"]] {
            let (file, stays) = read(words);
            assert_eq!((file.unwrap().as_str(), stays), ("a.yaml", false), "{words:?}");
        }
        let refused = |words: &[&str]| match read(words).0 {
            Err(Failure::Usage { message, next }) => (message, next),
            other => panic!("{other:?}"),
        };
        let (message, next) = refused(&["a.yaml", "-f"]);
        assert_eq!(message, "-f names the file; to show what the tasks write: --follow");
        assert_eq!(next, "cell run a.yaml --follow");
        assert!(refused(&["a.yaml", "-f", "b.yaml"]).0.starts_with("two files: "));
    }

    #[test]
    fn what_was_run_is_named_with_its_owner() {
        let name = |text: &str| Name::new(text).unwrap();
        let ran = Ran {
            kind: "job",
            owner: name("dev"),
            name: name("web"),
            became: Became::Created,
            tasks: 1,
            index: 7,
            version: Some(1),
            ended: None,
        };
        assert_eq!(names_of(&[ran]), ["dev/web"]);
    }
}
