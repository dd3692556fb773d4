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
use cellwright_api::types::{Changed, JobView, TaskView};
use cellwright_cell::job::Update as Roll;
use cellwright_cell::name::JobKey;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::ffi::OsStr;

const EXAMPLES: &str = "\
Examples:
  cell update dev/hello
  cell update undo dev/hello
  cell update dev/hello close

An update is opened by `cell run FILE` with a changed file. It can be undone
until it is closed. The job may also come first: `cell update dev/hello undo`.";

/// A rolling update under way: its status, undo it, or close it
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
            message: "neither word says what to do; allowed: status, undo or close".into(),
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
    let JobView { version, update, update_complete: complete, .. } = job;
    Ok(UpdateStatus { job: key.to_string(), version, update, complete, tasks })
}

fn render(status: &UpdateStatus) -> String {
    let UpdateStatus { job, version, update, complete, tasks } = status;
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
    let rows: Vec<Vec<String>> = tasks
        .iter()
        .map(|at| vec![at.version.to_string(), at.tasks.to_string(), at.running.to_string()])
        .collect();
    out.push('\n');
    out.push_str(&table::render(&["version", "tasks", "running"], &rows));
    match update {
        None => {}
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

/// The message about an update that was closed for the next change of its job.
pub fn closed_message(key: &JobKey, version: u32) -> String {
    format!("the update of {key} to version {version} was complete: it is closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::time::Time;
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
        assert!(rendered.contains("allowed: status, undo or close"), "{rendered}");
    }

    #[test]
    fn an_update_says_whether_it_goes_on_is_undone_or_is_complete() {
        let roll = Roll {
            from: 3,
            to: 2,
            opened_at: Time(0),
            disruptions: 1,
            skipped: [].into(),
            undoing: true,
            limits_only: false,
        };
        let tasks = vec![VersionTasks { version: 2, tasks: 2, running: 2 }];
        let status = |roll: Roll, complete: bool, tasks: Vec<VersionTasks>| {
            let (job, version, update) = ("dev/web".into(), 2, Some(roll));
            render(&UpdateStatus { job, version, update, complete, tasks })
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
        let rendered = status(roll, true, Vec::new());
        assert!(
            rendered.starts_with("dev/web: update from version 1 to 2 complete, "),
            "{rendered}"
        );
        let over = "\nnext: cell update close dev/web, or: cell update undo dev/web\n";
        assert!(rendered.ends_with(over), "{rendered}");
    }
}
