//! `cell update`: a rolling update in progress: its status, undo, and close.

use super::target::{TargetArg, parse_target};
use super::{Success, pagination};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::runtime::block_on;
use crate::{format, table};
use cellwright_api::client::ChangeOptions;
use cellwright_api::types::{Changed, JobView, RolledBackView, TaskView};
use cellwright_cell::job::Update as Roll;
use cellwright_cell::name::JobKey;
use cellwright_cell::time::{Span, Time};
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::ffi::OsStr;

const EXAMPLES: &str = "\
Examples:
  cell update dev/hello
  cell update undo dev/hello
  cell update dev/hello close
  cell update promote dev/hello
  cell update finish dev/hello

An update is opened by `cell run FILE` with a changed file. It can be undone
until it is closed. Promote gives the version that canaries try to all tasks;
finish gives it to those that max_update_disruptions skipped, also later. The
job may also come first: `cell update dev/hello undo`.";

/// A rolling update: its status, undo it, close it, promote canaries, finish it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UpdateArgs {
    /// The job that is updated
    #[arg(value_name = "JOB", value_parser = parse_target)]
    job: TargetArg,

    /// How far it is, back to the version before, or for good
    #[arg(value_name = "WHAT", value_parser = ActionOrJobParser, default_value = "status")]
    what: ActionOrJob,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UpdateAction {
    /// How far it is.
    Status,
    /// Roll every task back to the version before.
    Undo,
    /// Keep the new version for good: it cannot be undone after that.
    Close,
    /// Give the version that canaries try to all tasks.
    Promote,
    /// Give the version to the tasks that the update skipped.
    Finish,
}

/// Accepts `cell update undo JOB` as well as `cell update JOB undo`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ActionOrJob {
    Action(UpdateAction),
    Job(TargetArg),
}

/// Parses both orders, and offers the actions in completions.
#[derive(Clone)]
struct ActionOrJobParser;

impl TypedValueParser for ActionOrJobParser {
    type Value = ActionOrJob;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<ActionOrJob, clap::Error> {
        let action = EnumValueParser::<UpdateAction>::new().parse_ref(command, arg, value);
        let job = value.to_str().and_then(|text| parse_target(text).ok());
        match (action, job) {
            (Ok(action), _) => Ok(ActionOrJob::Action(action)),
            (Err(_), Some(job)) => Ok(ActionOrJob::Job(job)),
            (Err(error), None) => Err(error),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            UpdateAction::value_variants().iter().filter_map(UpdateAction::to_possible_value),
        ))
    }
}

/// The job and the action, in whichever order they were given.
fn action_last(
    first: TargetArg,
    action_or_job: ActionOrJob,
) -> Result<(TargetArg, UpdateAction), Failure> {
    let word = first.single_word().and_then(|word| UpdateAction::from_str(word, false).ok());
    match (action_or_job, word) {
        (ActionOrJob::Action(action), _) => Ok((first, action)),
        (ActionOrJob::Job(job), Some(action)) => Ok((job, action)),
        (ActionOrJob::Job(_), None) => Err(Failure::Usage {
            message: "neither word says what to do; allowed: status, undo, close, promote or \
                      finish"
                .into(),
            next: "cell update undo JOB".into(),
        }),
    }
}

#[derive(Serialize)]
struct UpdateStatus {
    job: String,
    version: u32,
    update: Option<Roll>,
    /// Every task runs the version that the update leads to.
    complete: bool,
    /// Tasks that run another version than the job's.
    outdated: u32,
    /// While canaries try the version and all are well: since when.
    canaries_well_since: Option<Time>,
    /// After so many milliseconds of that it is promoted.
    promote_after: Option<Span>,
    /// The newest version, if it failed and was rolled back.
    rolled_back: Option<RolledBackView>,
    /// Tasks by the version they run, or will run.
    tasks: Vec<VersionTasks>,
}

#[derive(Serialize)]
struct VersionTasks {
    version: u32,
    tasks: u32,
    running: u32,
}

impl UpdateArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let (job, action) = action_last(self.job, self.what)?;
        let cell = connection.cell()?;
        let key = block_on(async { Ok(job.resolve(&cell).await?.job) })?;
        if action != UpdateAction::Status {
            apply_action(&cell, &key, action, self.output.output)?;
            return Ok(Success::Done);
        }
        let status = block_on(read(&cell, &key))?;
        match self.output.output {
            Output::Json => print_json(&status)?,
            Output::Table => print_prose(&render(&status))?,
        }
        Ok(Success::Done)
    }
}

fn apply_action(
    cell: &Cell,
    key: &JobKey,
    action: UpdateAction,
    output: Output,
) -> Result<(), Failure> {
    let change = ChangeOptions::default();
    let done: Changed = block_on(async {
        Ok(match action {
            UpdateAction::Undo => cell.client.undo_update(key, &change).await?.value,
            UpdateAction::Promote => cell.client.promote_update(key, &change).await?.value,
            UpdateAction::Finish => cell.client.finish_update(key, &change).await?.value,
            UpdateAction::Status | UpdateAction::Close => {
                cell.client.close_update(key, &change).await?.value
            }
        })
    })?;
    if output == Output::Json {
        return print_json(&done);
    }
    let outcome = match (action, done.changed) {
        (UpdateAction::Undo, true) => "is rolled back",
        (UpdateAction::Undo, false) => "was being rolled back already",
        (UpdateAction::Promote, true) => "is promoted: all tasks get the new version",
        (UpdateAction::Promote, false) => "had no version to promote",
        (UpdateAction::Finish, true) => "goes on with the tasks that it skipped",
        (UpdateAction::Finish, false) => "has skipped no task",
        (_, true) => "is closed: the version it has is the one that counts",
        (_, false) => "was closed already",
    };
    print_prose(&format!("the update of {key} {outcome}\nnext: cell status {key}\n"))
}

async fn read(cell: &Cell, key: &JobKey) -> Result<UpdateStatus, Failure> {
    let job: JobView = cell.client.job(key).await?.value.item;
    let tasks: Vec<TaskView> = pagination::tasks(cell, key).await?;
    let mut versions: Vec<u32> = tasks.iter().map(|task| task.version).collect();
    versions.sort_unstable();
    versions.dedup();
    let at = |version: u32| {
        let of = |task: &&TaskView| task.version == version;
        let running = cellwright_cell::task::TaskState::Running;
        VersionTasks {
            version,
            tasks: tasks.iter().filter(of).count() as u32,
            running: tasks.iter().filter(of).filter(|task| task.state == running).count() as u32,
        }
    };
    let tasks = versions.into_iter().map(at).collect();
    let JobView {
        version,
        update,
        update_complete: complete,
        outdated,
        canaries_well_since,
        rolled_back,
        spec,
        ..
    } = job;
    let (job, promote_after) = (key.to_string(), spec.update.promote_after);
    Ok(UpdateStatus {
        job,
        version,
        update,
        complete,
        outdated,
        canaries_well_since,
        promote_after,
        rolled_back,
        tasks,
    })
}

fn render(status: &UpdateStatus) -> String {
    let UpdateStatus { job, version, update, complete, outdated, tasks, .. } = status;
    let mut out = match update {
        None => format!("{job}: no update is open, version {version}\n"),
        Some(roll) => {
            let direction = if roll.undoing { "undoing" } else { "update" };
            let (from, to) = (roll.from, roll.to);
            let skipped = format::pluralize(roll.skipped.len() as u64, "task");
            let done = if *complete { " complete" } else { "" };
            format!(
                "{job}: {direction} from version {from} to {to}{done}, opened {}\n\
                 {} caused, {skipped} skipped\n",
                format::utc(roll.opened_at),
                format::pluralize(u64::from(roll.disruptions), "disruption"),
            )
        }
    };
    if let Some(canaries) = canary_text(status) {
        out.push_str(&format!("{canaries}\n"));
    }
    if let Some(back) = &status.rolled_back {
        out.push_str(&format!("{}\n", rolled_back_text(job, back)));
    }
    let rows: Vec<Vec<String>> = tasks
        .iter()
        .map(|at| vec![at.version.to_string(), at.tasks.to_string(), at.running.to_string()])
        .collect();
    out.push('\n');
    out.push_str(&table::render(&["version", "tasks", "running"], &rows));
    match update {
        None if *outdated > 0 => out.push_str(&format!("{}\n", skipped_text(job, *outdated))),
        None => {}
        Some(roll) if !roll.undoing && !roll.skipped.is_empty() => {
            out.push_str(&format!("{}\n", skipped_text(job, roll.skipped.len() as u32)));
        }
        Some(roll) if roll.canaries > 0 => {
            out.push_str(&format!("next: cell promote {job}, or: cell update undo {job}\n"));
        }
        // The update is being undone, and closes by itself.
        Some(roll) if roll.undoing => {
            out.push_str(&format!("next: cell status {job} --watch\n"));
        }
        Some(_) if *complete => {
            out.push_str("the next update of the job closes this one by itself\n");
            out.push_str(&format!("next: cell update close {job}, or: cell update undo {job}\n"));
        }
        Some(_) => {
            let watch = format!("cell update {job} --watch");
            out.push_str(&format!("next: {watch}, or: cell update undo {job}\n"));
        }
    }
    out
}

/// How the canaries are, if some try the version.
fn canary_text(status: &UpdateStatus) -> Option<String> {
    let canaries = status.update.as_ref()?.canaries;
    if canaries == 0 {
        return None;
    }
    let tried = format::pluralize_as(u64::from(canaries), "canary", "canaries");
    Some(match (status.canaries_well_since, status.promote_after) {
        (None, _) => format!("{tried} to try it before all others get it"),
        (Some(since), Some(span)) => {
            let due = format::utc(since.plus(span));
            format!("{tried} well since {}: promoted at {due}", format::utc(since))
        }
        (Some(since), None) => {
            format!("{tried} well since {}: to be promoted by hand", format::utc(since))
        }
    })
}

/// What was skipped, and how to have it after all.
pub fn skipped_text(job: &str, skipped: u32) -> String {
    let behind = match skipped {
        1 => "1 task was skipped and stays at an older version".to_owned(),
        more => format!(
            "{} tasks were skipped and stay at an older version",
            format::count(more.into())
        ),
    };
    format!("{behind} (max_update_disruptions)\nnext: cell update finish {job}")
}

/// That the newest version failed, and how to see more.
pub fn rolled_back_text(job: &str, back: &RolledBackView) -> String {
    let RolledBackView { version, at, failures } = back;
    let attempts = format::pluralize(u64::from(*failures), "attempt");
    format!(
        "version {version} was rolled back at {}: {attempts} failed; cell job diff {job} {version}",
        format::utc(*at)
    )
}

/// Give the version that canaries try to all tasks: `cell update promote`
#[derive(Debug, Args)]
pub struct PromoteArgs {
    /// The job whose canaries were well
    #[arg(value_name = "JOB", value_parser = parse_target)]
    job: TargetArg,

    #[command(flatten)]
    output: OutputArgs,
}

impl PromoteArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let key = block_on(async { Ok(self.job.resolve(&cell).await?.job) })?;
        apply_action(&cell, &key, UpdateAction::Promote, self.output.output)?;
        Ok(Success::Done)
    }
}

/// The message about an update that was closed for the next change of its job.
pub fn closed_message(key: &JobKey, version: u32) -> String {
    format!("the update of {key} to version {version} was complete: it is closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        update: UpdateArgs,
    }

    #[test]
    fn the_job_and_what_to_do_may_come_in_either_order() {
        let read = |words: &[&str]| {
            let line = Line::try_parse_from([&["cell"], words].concat()).unwrap();
            action_last(line.update.job, line.update.what).map_err(|failure| failure.to_string())
        };
        let job = |text: &str| parse_target(text).unwrap();
        assert_eq!(read(&["dev/web"]), Ok((job("dev/web"), UpdateAction::Status)));
        assert_eq!(read(&["dev/web", "undo"]), Ok((job("dev/web"), UpdateAction::Undo)));
        assert_eq!(read(&["undo", "dev/web"]), Ok((job("dev/web"), UpdateAction::Undo)));
        assert_eq!(read(&["close", "web"]), Ok((job("web"), UpdateAction::Close)));
        // A job may be called `undo`.
        assert_eq!(read(&["undo", "close"]), Ok((job("undo"), UpdateAction::Close)));
        let rendered = read(&["dev/web", "dev/api"]).unwrap_err();
        assert!(rendered.contains("allowed: status, undo, close, promote or finish"), "{rendered}");
    }

    #[test]
    fn an_update_says_whether_it_goes_on_is_undone_or_is_complete() {
        let roll = Roll { disruptions: 1, undoing: true, ..Roll::opened(3, 2, Time(0)) };
        let tasks = vec![VersionTasks { version: 2, tasks: 2, running: 2 }];
        let status = |roll: Roll, complete: bool, tasks: Vec<VersionTasks>| {
            let (job, version, update) = ("dev/web".into(), 2, Some(roll));
            render(&UpdateStatus {
                job,
                version,
                update,
                complete,
                outdated: 0,
                canaries_well_since: Some(Time(60_000)),
                promote_after: Some(Span::seconds(60)),
                rolled_back: None,
                tasks,
            })
        };
        let rendered = status(roll.clone(), false, tasks);
        assert!(
            rendered.starts_with("dev/web: undoing from version 3 to 2, opened "),
            "{rendered}"
        );
        assert!(rendered.ends_with("\nnext: cell status dev/web --watch\n"), "{rendered}");
        let roll = Roll { from: 1, undoing: false, ..roll };
        let rendered = status(roll.clone(), false, Vec::new());
        assert!(rendered.starts_with("dev/web: update from version 1 to 2, opened "), "{rendered}");
        let goes_on = "\nnext: cell update dev/web --watch, or: cell update undo dev/web\n";
        assert!(rendered.ends_with(goes_on), "{rendered}");
        let tries = status(Roll { canaries: 1, ..roll.clone() }, false, Vec::new());
        let since = "1 canary well since 1970-01-01 00:01:00Z: promoted at 1970-01-01 00:02:00Z\n";
        assert!(tries.contains(since), "{tries}");
        assert!(tries.contains("next: cell promote dev/web, or: "), "{tries}");
        let skips = status(Roll { skipped: [1, 2].into(), ..roll.clone() }, false, Vec::new());
        let finish = "2 tasks were skipped and stay at an older version (max_update_disruptions)\n\
                      next: cell update finish dev/web\n";
        assert!(skips.ends_with(finish), "{skips}");
        let rendered = status(roll, true, Vec::new());
        assert!(
            rendered.starts_with("dev/web: update from version 1 to 2 complete, "),
            "{rendered}"
        );
        let over = "\nnext: cell update close dev/web, or: cell update undo dev/web\n";
        assert!(rendered.ends_with(over), "{rendered}");
    }
}
