//! `cell update`: a rolling update that is under way: how far it is, back, or for good.

use super::target::{Typed, typed};
use super::{Success, pages};
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::{format, table};
use cellwright_api::client::Change;
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
    #[arg(value_name = "JOB", value_parser = typed)]
    job: Typed,

    /// How far it is, back to the version before, or for good
    #[arg(value_name = "WHAT", value_parser = WhatOrJob, default_value = "status")]
    what: Second,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// How far it is.
    Status,
    /// Roll every task back to the version before.
    Undo,
    /// Keep the new version for good: it cannot be undone after that.
    Close,
}

/// Who types `cell update undo JOB` means the same as who types `cell update JOB undo`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Second {
    What(What),
    Job(Typed),
}

/// Takes both, and offers what there is to do.
#[derive(Clone)]
struct WhatOrJob;

impl TypedValueParser for WhatOrJob {
    type Value = Second;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Second, clap::Error> {
        let what = EnumValueParser::<What>::new().parse_ref(command, arg, value);
        let job = value.to_str().and_then(|text| typed(text).ok());
        match (what, job) {
            (Ok(what), _) => Ok(Second::What(what)),
            (Err(_), Some(job)) => Ok(Second::Job(job)),
            (Err(error), None) => Err(error),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(What::value_variants().iter().filter_map(What::to_possible_value)))
    }
}

/// The job and what to do with its update, whichever comes first.
fn in_order(first: Typed, second: Second) -> Result<(Typed, What), Failure> {
    let word = first.word().and_then(|word| What::from_str(word, false).ok());
    match (second, word) {
        (Second::What(what), _) => Ok((first, what)),
        (Second::Job(job), Some(what)) => Ok((job, what)),
        (Second::Job(_), None) => Err(Failure::Usage {
            message: "neither word says what to do; allowed: status, undo or close".into(),
            next: "cell update undo JOB".into(),
        }),
    }
}

#[derive(Serialize)]
struct Status {
    job: String,
    version: u32,
    update: Option<Roll>,
    /// Every task runs the version that it leads to.
    complete: bool,
    /// Tasks by the version they run, or will run.
    tasks: Vec<AtVersion>,
}

#[derive(Serialize)]
struct AtVersion {
    version: u32,
    tasks: u32,
    running: u32,
}

impl UpdateArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let (job, what) = in_order(self.job, self.what)?;
        let cell = reach.cell()?;
        let key = ask(async { Ok(job.resolve(&cell).await?.job) })?;
        if what != What::Status {
            change(&cell, &key, what, self.output.output)?;
            return Ok(Success::Done);
        }
        let status = ask(read(&cell, &key))?;
        match self.output.output {
            Output::Json => print_json(&status)?,
            Output::Table => say(&shown(&status))?,
        }
        Ok(Success::Done)
    }
}

fn change(cell: &Cell, key: &JobKey, what: What, output: Output) -> Result<(), Failure> {
    let change = Change::default();
    let done: Changed = ask(async {
        Ok(match what {
            What::Undo => cell.client.undo_update(key, &change).await?.value,
            What::Status | What::Close => cell.client.close_update(key, &change).await?.value,
        })
    })?;
    if output == Output::Json {
        return print_json(&done);
    }
    let became = match (what, done.changed) {
        (What::Undo, true) => "is rolled back",
        (What::Undo, false) => "was being rolled back already",
        (_, true) => "is closed: the version it has is the one that counts",
        (_, false) => "was closed already",
    };
    say(&format!("the update of {key} {became}\nnext: cell status {key}\n"))
}

async fn read(cell: &Cell, key: &JobKey) -> Result<Status, Failure> {
    let job: JobView = cell.client.job(key).await?.value.item;
    let tasks: Vec<TaskView> = pages::tasks(cell, key).await?;
    let mut versions: Vec<u32> = tasks.iter().map(|task| task.version).collect();
    versions.sort_unstable();
    versions.dedup();
    let at = |version: u32| {
        let of = |task: &&TaskView| task.version == version;
        let running = cellwright_cell::task::TaskState::Running;
        AtVersion {
            version,
            tasks: tasks.iter().filter(of).count() as u32,
            running: tasks.iter().filter(of).filter(|task| task.state == running).count() as u32,
        }
    };
    let tasks = versions.into_iter().map(at).collect();
    let JobView { version, update, update_complete: complete, .. } = job;
    Ok(Status { job: key.to_string(), version, update, complete, tasks })
}

fn shown(status: &Status) -> String {
    let Status { job, version, update, complete, tasks } = status;
    let mut out = match update {
        None => format!("{job}: no update is open, version {version}\n"),
        Some(roll) => {
            let way = if roll.undoing { "undoing" } else { "update" };
            let (from, to) = (roll.from, roll.to);
            let skipped = format::counted(roll.skipped.len() as u64, "task");
            let done = if *complete { " complete" } else { "" };
            format!(
                "{job}: {way} from version {from} to {to}{done}, opened {}\n\
                 {} caused, {skipped} skipped\n",
                format::utc(roll.opened_at),
                format::counted(u64::from(roll.disruptions), "disruption"),
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
        // It is on its way back, and ends by itself.
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
            in_order(line.update.job, line.update.what).map_err(|failure| failure.to_string())
        };
        let job = |text: &str| typed(text).unwrap();
        assert_eq!(read(&["dev/web"]), Ok((job("dev/web"), What::Status)));
        assert_eq!(read(&["dev/web", "undo"]), Ok((job("dev/web"), What::Undo)));
        assert_eq!(read(&["undo", "dev/web"]), Ok((job("dev/web"), What::Undo)));
        assert_eq!(read(&["close", "web"]), Ok((job("web"), What::Close)));
        // A job may have such a name.
        assert_eq!(read(&["undo", "close"]), Ok((job("undo"), What::Close)));
        let told = read(&["dev/web", "dev/api"]).unwrap_err();
        assert!(told.contains("allowed: status, undo or close"), "{told}");
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
        };
        let tasks = vec![AtVersion { version: 2, tasks: 2, running: 2 }];
        let status = |roll: Roll, complete: bool, tasks: Vec<AtVersion>| {
            let (job, version, update) = ("dev/web".into(), 2, Some(roll));
            shown(&Status { job, version, update, complete, tasks })
        };
        let told = status(roll.clone(), false, tasks);
        assert!(told.starts_with("dev/web: undoing from version 3 to 2, opened "), "{told}");
        assert!(told.ends_with("\nnext: cell status dev/web --watch\n"), "{told}");
        let roll = Roll { from: 1, undoing: false, ..roll };
        let told = status(roll.clone(), false, Vec::new());
        assert!(told.starts_with("dev/web: update from version 1 to 2, opened "), "{told}");
        let goes_on = "\nnext: cell update dev/web --watch, or: cell update undo dev/web\n";
        assert!(told.ends_with(goes_on), "{told}");
        let told = status(roll, true, Vec::new());
        assert!(told.starts_with("dev/web: update from version 1 to 2 complete, "), "{told}");
        let over = "\nnext: cell update close dev/web, or: cell update undo dev/web\n";
        assert!(told.ends_with(over), "{told}");
    }
}
