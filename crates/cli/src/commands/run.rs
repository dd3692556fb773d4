//! `cell run`: makes the cell match a job file. A job that does not exist is submitted, one that
//! differs is updated by a rolling update, and one that is equal is left alone. The cell decides in
//! one step which of these applies, and reports it here.

mod notices;

use self::notices::{ended_text, warn_stopped_tasks};
use super::file::JobFile;
use super::file_inputs::InputArgs;
use super::one_off::{self, OneOffArgs, Program};
use super::target::{TargetArg, parse_target};
use super::update::closed_message;
use super::wait::goal::{self, GoalDocument, GoalResult};
use super::wait::{WaitOptions, WaitResult, is_over_within};
use super::{Success, file, package, parse, plan_request, start};
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_named, print_notice, print_prose};
use crate::runtime::block_on;
use cellwright_api::client::{ChangeOptions, ClientError};
use cellwright_api::types::{Changed, JobPlan, PlanJobs, PlanToken, PlanView, SubmitJob};
use cellwright_cell::command::ApplyOutcome;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::{JobKind, JobSpec};
use cellwright_lang::{CronDocument, Document, Format, JobDocument};
use clap::Args;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  cell run examples/hello.json
  cell run examples/service.jsonnet
  cell run examples/batch.jsonnet --wait
  cell run examples/service.jsonnet --wait=healthy --timeout 5m
  cell run jobs.yaml --owner ads
  cell run -- sort -u words.txt
  cell run --cpu 4 --array 1-100%8 train.sh
  cell run web.jsonnet -J ../lib --set replicas=3
  cell run sums.jsonnet --again
  cell run --failed dev/sums --wait
  cell --context staging --context production run web.jsonnet --wait

A service that is over, and a job that was stopped, is started anew; one that is
still stopping is waited for first. A batch job that has ended with this very
spec stays ended, unless --again is given. An update that is complete is closed
by the next one.

Files are Jsonnet, JSON or YAML: see the guide on the job language, or start
with `cell init`. A command behind -- and a script become a batch job that is
run once; the script has options in lines that begin with #CELL. What it writes
is shown, and its exit code is that of `cell run`, unless --detach is given.";

/// How long a job that is stopping is waited for before it is submitted anew: a minute, because
/// notices take seconds, and a user waits at a terminal.
const STOPPING_TIMEOUT: Duration = Duration::from_secs(60);

/// Run what a file says: submit what is not there, update what differs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Jobs in Jsonnet, JSON or YAML, or - for standard input; or a script, which begins with #!
    #[arg(value_name = "FILE|-", required_unless_present_any = ["named", "command", "failed"])]
    file: Option<String>,

    /// A command to run as a job of its own; behind a script, what it is called with
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,

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

    /// Run batch jobs of the file again that have ended with this very spec
    #[arg(long)]
    again: bool,

    /// Run what failed for good of this job again, and nothing else of it
    #[arg(long, value_name = "JOB", value_parser = parse_target,
          conflicts_with_all = ["file", "command", "named", "plan", "again"])]
    failed: Option<TargetArg>,

    #[command(flatten)]
    one_off: OneOffArgs,

    #[command(flatten)]
    inputs: InputArgs,

    #[command(flatten)]
    wait_options: WaitOptions,

    #[command(flatten)]
    output: OutputArgs,
}

/// A cell with what is to run there.
struct Target {
    /// Its name, where there are several.
    context: Option<String>,
    wait_options: WaitOptions,
    /// Whether what is run is shown as if it ran here.
    is_attached: bool,
    /// Whether a batch job that has ended with the same spec runs again.
    again: bool,
    cell: Cell,
    file: JobFile,
    owner: Option<Name>,
    documents: Vec<Document>,
}

/// The result for one job or periodic job of the file.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// In which cell, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// `job` or `cron`.
    pub kind: &'static str,
    pub owner: Name,
    pub name: Name,
    pub became: ApplyOutcome,
    pub tasks: u32,
    /// The log index at which the change is durable.
    pub index: u64,
    pub version: Option<u32>,
    /// How the job ended, with `--wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<WaitResult>,
}

impl RunArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        self.wait_options.check(self.output.output)?;
        if let Some(job) = &self.failed {
            return start::run_failed(connection, job, self.wait_options, self.output.output);
        }
        let targets = match self.program()? {
            Some(program) => vec![self.one_off_target(connection, &program)?],
            None => self.targets(connection)?,
        };
        let (mut all, mut waited_for) = (Vec::new(), Vec::new());
        let mut ended = Ok(Success::Done);
        for (position, target) in targets.iter().enumerate() {
            let mut done = Vec::new();
            ended = self.run_in(target, &mut done, &mut waited_for);
            all.append(&mut done);
            if !matches!(ended, Ok(Success::Done)) {
                // A cell that is named later is meant to get what went well before.
                let rest = targets[position + 1..].iter().filter_map(|rest| rest.context.clone());
                let rest: Vec<String> = rest.collect();
                if !rest.is_empty() {
                    print_notice(&format!("not reached: {}", rest.join(", ")));
                }
                ended = ended.map_err(|failure| match &target.context {
                    Some(context) => failure.with_context(context),
                    None => failure,
                });
                break;
            }
        }
        match self.output.output {
            Output::Table => {}
            _ if !waited_for.is_empty() => {
                print_named(&GoalDocument::of(&waited_for), &job_names(&all))?;
            }
            _ => print_named(&all, &job_names(&all))?,
        }
        ended
    }

    /// The cells, each with the file evaluated for it: a file that is wrong for one of them is run
    /// in none.
    fn targets(&self, connection: &ConnectionArgs) -> Result<Vec<Target>, Failure> {
        let name = self.file()?;
        let connections = connection.each_context()?;
        let several = connections.len() > 1;
        if several && self.plan.is_some() {
            return Err(Failure::Usage {
                message: "a plan is of one cell, here are several".into(),
                next: "one after the other, each with --context and its own --plan".into(),
            });
        }
        let target = |connection: &ConnectionArgs| {
            let cell = connection.cell()?;
            let file = self.inputs.file(name, connection)?;
            let owner = cell.job_owner(self.owner.clone());
            let mut documents = file::load_valid(&file, owner.as_ref())?.documents;
            block_on(package::pin_images(&cell, &mut documents))?;
            let context = connection.context()?.filter(|_| several).map(str::to_owned);
            let wait_options = self.wait_options;
            let (is_attached, again) = (false, self.again);
            Ok(Target { context, wait_options, is_attached, again, cell, file, owner, documents })
        };
        connections.iter().map(target).collect()
    }

    /// The command or script, if that is what is to be run.
    fn program(&self) -> Result<Option<Program>, Failure> {
        let usage = |message: String, next: String| Err(Failure::Usage { message, next });
        let name = self.file()?;
        if name.is_empty() {
            return Ok(Some(Program::Command(self.command.clone())));
        }
        let is_job_file = name == file::STDIN || Format::of(Path::new(name)).is_some();
        let program = if is_job_file { None } else { Program::of_script(name, &self.command) };
        let options = self.one_off.first_given();
        match (&program, options, self.command.is_empty()) {
            (None, Some(option), _) => usage(
                format!("{option} is for a command or a script; {name} has fields of its own"),
                format!("cell run {name}, or cell run {option} … -- COMMAND"),
            ),
            (None, None, false) => usage(
                format!(
                    "{name} is not called with arguments: it is no script, which begins with #!"
                ),
                format!("cell run {name}, or cell run -- COMMAND"),
            ),
            _ => Ok(program),
        }
    }

    /// The cell with the job that the command or script becomes.
    fn one_off_target(
        &self,
        connection: &ConnectionArgs,
        program: &Program,
    ) -> Result<Target, Failure> {
        if self.plan.is_some() {
            return Err(Failure::Usage {
                message: "--plan is for job files".into(),
                next: "the same command without --plan".into(),
            });
        }
        if one_off::has_foreign_options_only(program) {
            print_notice("note: lines of #SBATCH are not read; ours begin with #CELL");
        }
        let options = self.one_off.with_script(program)?;
        let spec = options.job(program, crate::clock::now())?;
        let cell = connection.cell()?;
        let owner = cell.job_owner(self.owner.clone());
        let is_attached = !options.detach;
        let wait_options = if is_attached {
            self.wait_options.attached(self.output.output)
        } else {
            self.wait_options
        };
        let documents = vec![Document::Job(JobDocument { owner: None, spec, image: None })];
        let file = self.inputs.file(file::STDIN, connection)?;
        // A command that is typed is to be run, whatever ran under its name.
        let again = true;
        Ok(Target { context: None, wait_options, is_attached, again, cell, file, owner, documents })
    }

    /// Runs the file in one cell; `done` has the results, also when it fails.
    fn run_in(
        &self,
        target: &Target,
        done: &mut Vec<RunResult>,
        waited_for: &mut Vec<GoalResult>,
    ) -> Result<Success, Failure> {
        let Target { context, wait_options, is_attached, cell, file, owner, documents, again } =
            target;
        let table = self.output.output == Output::Table && !is_attached;
        let owner = owner.as_ref();
        if let Some(context) = context.as_ref().filter(|_| table) {
            print_prose(&format!("context {context}\n"))?;
        }
        let plan = block_on(self.verified_plan(cell, owner, documents, file))?;
        // The warnings are only advice: a cell that cannot list its packages may still accept the
        // jobs.
        for warning in block_on(package::warnings(cell, documents)).unwrap_or_default() {
            print_notice(&warning);
        }
        for (position, document) in documents.iter().enumerate() {
            match block_on(run_document(cell, owner, document, (plan.as_ref(), *again))) {
                Ok(result) => {
                    if table {
                        print_prose(&result.text())?;
                    }
                    done.push(RunResult { context: context.clone(), ..result });
                }
                Err(failure) => {
                    return Err(match documents.len() {
                        1 => failure,
                        _ => failure.with_context(&partial_failure_context(
                            done,
                            &documents[position..],
                            owner,
                        )),
                    });
                }
            }
        }
        if table {
            print(&next_hint(context.as_deref(), done))?;
        }
        if !wait_options.is_set() {
            return Ok(Success::Done);
        }
        if let Some(wait) = wait_options.goal() {
            let jobs: Vec<_> = done
                .iter()
                .filter(|ran| ran.kind == "job")
                .map(|ran| (ran.key(), ran.version))
                .collect();
            let results = block_on(goal::wait_for_all(cell, wait, &jobs))?;
            if table {
                goal::print_results(wait.goal, &results)?;
            }
            let success = goal::success(&results);
            waited_for.extend(results);
            return Ok(success);
        }
        let mut waited = Vec::new();
        let (jobs, output) = (job_keys(done), self.output.output);
        let ended = wait_options.wait_for_jobs(cell, &jobs, output, &mut waited);
        for result in done.iter_mut().filter(|ran| ran.kind == "job") {
            let name = result.key().to_string();
            result.ended = waited.iter().find(|ended| ended.job == name).cloned();
        }
        ended
    }

    /// The one file, given as argument or by `-f`. Other commands use `-f` for either the file or
    /// `--follow`; here a mistaken use is rejected.
    fn file(&self) -> Result<&str, Failure> {
        let usage =
            |message: &str, next: String| Err(Failure::Usage { message: message.to_owned(), next });
        match (self.file.as_deref(), self.named.as_deref()) {
            (file, Some("")) => usage(
                "-f names the file; to show what the tasks write: --follow",
                format!("cell run {} --follow", file.unwrap_or("FILE")),
            ),
            (Some(single), Some(other)) => usage(
                &format!("two files: {single} and {other}; allowed: one"),
                format!("one after the other: cell run {single}"),
            ),
            (single, other) => Ok(single.or(other).unwrap_or_default()),
        }
    }

    /// The plan of the given token, if it is still valid.
    async fn verified_plan(
        &self,
        cell: &Cell,
        owner: Option<&Name>,
        documents: &[Document],
        file: &JobFile,
    ) -> Result<Option<PlanView>, Failure> {
        let Some(token) = self.plan else { return Ok(None) };
        let jobs = PlanJobs { jobs: plan_request::submit_requests(documents, owner) };
        plan_request::verify_plan(cell, &jobs, token, file).await.map(Some)
    }
}

impl RunResult {
    fn key(&self) -> JobKey {
        JobKey { user: self.owner.clone(), job: self.name.clone() }
    }

    fn text(&self) -> String {
        let outcome = match (self.became, self.version) {
            (ApplyOutcome::Created, _) => "created".to_owned(),
            (ApplyOutcome::Updated, Some(version)) => format!("being updated to version {version}"),
            (ApplyOutcome::Updated, None) => "being updated".to_owned(),
            (ApplyOutcome::Unchanged, _) => "unchanged".to_owned(),
            (ApplyOutcome::Ended, _) => "unchanged, and over".to_owned(),
            (ApplyOutcome::Resized, _) => "resized".to_owned(),
        };
        let tasks = format::pluralize(u64::from(self.tasks), "task");
        let word = if self.kind == "cron" { "periodic job" } else { "job" };
        format!("{word} {} of {tasks}: {outcome}\n", self.key())
    }
}

fn job_names(done: &[RunResult]) -> Vec<String> {
    done.iter().map(|result| result.key().to_string()).collect()
}

fn job_keys(done: &[RunResult]) -> Vec<JobKey> {
    done.iter().filter(|result| result.kind == "job").map(RunResult::key).collect()
}

/// What to type next, for what was run.
fn next_hint(context: Option<&str>, done: &[RunResult]) -> String {
    let context = context.map_or(String::new(), |name| format!("--context {name} "));
    match (&job_keys(done)[..], done) {
        ([single], _) => format!("next: cell {context}status {single}\n"),
        ([], [cron]) => format!("next: cell {context}status {}\n", cron.key()),
        _ => format!("next: cell {context}status\n"),
    }
}

/// Makes the cell match `document`; `job_owner` is the owner if the document names none, the caller
/// if absent.
pub async fn run_document(
    cell: &Cell,
    owner: Option<&Name>,
    document: &Document,
    (plan, again): (Option<&PlanView>, bool),
) -> Result<RunResult, Failure> {
    let owner = document.owner().or(owner);
    match (document, owner) {
        (Document::Job(job), owner) => run_job(cell, owner, job, (plan, again)).await,
        (Document::Cron(cron), Some(owner)) => run_cron(cell, owner.clone(), cron).await,
        (Document::Cron(cron), None) => {
            let owner = caller_name(cell, document.job()).await?;
            run_cron(cell, owner, cron).await
        }
    }
}

/// The user as whom the cell knows the caller, who owns jobs that name no owner.
async fn caller_name(cell: &Cell, spec: &JobSpec) -> Result<Name, Failure> {
    let jobs = PlanJobs { jobs: vec![SubmitJob { owner: None, spec: spec.clone() }] };
    let plan = cell.client.plan(&jobs).await?.value.item;
    plan.jobs.into_iter().next().map(|job| job.user).ok_or_else(|| Failure::Operation {
        message: "the cell does not say whose the job would be".into(),
        next: "the same command with --owner USER".into(),
    })
}

/// Which job of the file failed, which ones were run before it and stay, and which were not
/// reached.
fn partial_failure_context(
    done: &[RunResult],
    remaining: &[Document],
    owner: Option<&Name>,
) -> String {
    let name = |document: &Document| match document.owner().or(owner) {
        Some(owner) => format!("{owner}/{}", document.name()),
        None => document.name().to_string(),
    };
    let names: Vec<String> = remaining.iter().map(name).collect();
    let Some((failed, rest)) = names.split_first() else { return String::new() };
    let part = |names: &[String], outcome: &str| match names {
        [] => None,
        some => Some(format!("{outcome}: {}", some.join(", "))),
    };
    let parts = [part(&job_names(done), "done before and staying"), part(rest, "not reached")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{failed} ({})", parts.join("; "))
}

async fn run_job(
    cell: &Cell,
    owner: Option<&Name>,
    job: &JobDocument,
    (plan, again): (Option<&PlanView>, bool),
) -> Result<RunResult, Failure> {
    let spec = &job.spec;
    let named = owner.map_or(spec.name.to_string(), |owner| format!("{owner}/{}", spec.name));
    let planned = plan.and_then(|plan| {
        let matches_job =
            |job: &&JobPlan| job.name == spec.name && owner.is_none_or(|o| *o == job.user);
        plan.jobs.iter().find(matches_job)
    });
    // A run with a plan token changes exactly the versions that the plan saw, or fails.
    let expect = planned.map(|job| job.version.unwrap_or(0));
    let change = ChangeOptions { expect, ..ChangeOptions::default() };
    let apply = async || {
        if again {
            cell.client.apply_job_again(owner, spec, &change).await
        } else {
            cell.client.apply_job(owner, spec, &change).await
        }
    };
    let mut answer = apply().await;
    if let Some(stopping) = stopping_job_of(&answer).filter(|_| plan.is_none()) {
        wait_until_over(cell, &stopping).await?;
        answer = apply().await;
    }
    let in_doubt = |error| Failure::from_change(error, &format!("cell status {named}"));
    let applied = answer.map_err(in_doubt)?.value;
    let key = JobKey { user: applied.user, job: applied.name };
    if let Some(version) = applied.closed_update {
        print_notice(&closed_message(&key, version));
    }
    for warning in &applied.warnings {
        print_notice(&format!("warning: {warning}"));
    }
    if applied.became == ApplyOutcome::Ended {
        print_notice(&ended_text(&key));
    }
    if applied.became == ApplyOutcome::Unchanged {
        warn_stopped_tasks(cell, &key).await?;
    }
    let tasks = match spec.kind {
        JobKind::Daemon => cell.client.job(&key).await?.value.item.wanted(),
        JobKind::Tasks | JobKind::AllocSet => spec.count,
    };
    Ok(RunResult {
        context: None,
        kind: "job",
        owner: key.user,
        name: key.job,
        became: applied.became,
        tasks,
        index: applied.index,
        version: Some(applied.version),
        ended: None,
    })
}

/// The job that has to end first, if that is the cell's answer.
fn stopping_job_of<T>(answer: &Result<T, ClientError>) -> Option<JobKey> {
    match answer {
        Err(ClientError::Api(error)) => error.stopping_job(),
        _ => None,
    }
}

/// Waits until a job that is stopping has ended, up to a timeout.
async fn wait_until_over(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    print_notice(&format!("job {key} is stopping; it is started anew as soon as it is over"));
    if is_over_within(cell, key, STOPPING_TIMEOUT).await? {
        Ok(())
    } else {
        Err(Failure::Operation {
            message: format!("job {key} is still stopping after {} s", STOPPING_TIMEOUT.as_secs()),
            next: format!("wait until it is over, then do it again: cell wait {key}"),
        })
    }
}

/// A periodic job is replaced as a whole; the first version is a new job.
async fn run_cron(cell: &Cell, owner: Name, cron: &CronDocument) -> Result<RunResult, Failure> {
    let path = format!("/v1/crons/{owner}/{}", cron.spec.name);
    let (method, change) = (hyper::Method::PUT, ChangeOptions::default());
    let changed: Changed =
        cell.client.change(method, &path, Some(&cron.spec), &change).await?.value;
    let became = match (changed.changed, changed.version) {
        (false, _) => ApplyOutcome::Unchanged,
        (true, Some(1)) => ApplyOutcome::Created,
        (true, _) => ApplyOutcome::Updated,
    };
    Ok(RunResult {
        context: None,
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
    fn a_short_f_is_the_file_and_never_something_else() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: RunArgs,
        }
        let read = |words: &[&str]| {
            let line: Line = clap::Parser::try_parse_from([&["run"], words].concat()).unwrap();
            (line.args.file().map(str::to_owned), line.args.wait_options.is_set())
        };
        for words in [&["a.yaml"][..], &["-f", "a.yaml"], &["--file", "a.yaml"]] {
            let (file, stays) = read(words);
            assert_eq!((file.unwrap().as_str(), stays), ("a.yaml", false), "{words:?}");
        }
        let usage_error = |words: &[&str]| match read(words).0 {
            Err(Failure::Usage { message, next }) => (message, next),
            other => panic!("{other:?}"),
        };
        let (message, next) = usage_error(&["a.yaml", "-f"]);
        assert_eq!(message, "-f names the file; to show what the tasks write: --follow");
        assert_eq!(next, "cell run a.yaml --follow");
        assert!(usage_error(&["a.yaml", "-f", "b.yaml"]).0.starts_with("two files: "));
    }

    #[test]
    fn what_was_run_is_named_with_its_owner() {
        let name = |text: &str| Name::new(text).unwrap();
        let result = RunResult {
            context: None,
            kind: "job",
            owner: name("dev"),
            name: name("web"),
            became: ApplyOutcome::Created,
            tasks: 1,
            index: 7,
            version: Some(1),
            ended: None,
        };
        assert_eq!(job_names(&[result]), ["dev/web"]);
    }
}
