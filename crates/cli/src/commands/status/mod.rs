//! `cell status [ANYTHING]`: how the cell stands, or whatever is called so, or begins so. People
//! remember names, not which kind of thing they belong to.

mod cell;
mod job;
mod other;

use super::target::{self, ambiguous};
use super::{Success, pages, parse};
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_named, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::client::JobFilter;
use cellwright_api::error::Code;
use cellwright_api::types::{CronView, FoundKind, FoundView, MachineView, UserView};
use clap::Args;
pub use job::{JobStatus, Words, read as read_job, show_list, shown as shown_job, words_of_starts};
pub use other::{cron as shown_cron, user as shown_user};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  cell status
  cell status hello
  cell status dev/hello/0
  cell status 'dev/hello/[0-2]'
  cell status local
  cell status last
  cell status -l team=search,stage!=prod
  cell status dev/hello --watch

`last` is the job that you submitted last, unless something is called so.";

/// How the cell stands, or one thing in it: a job, task, machine, user or cron
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// A name, or how it begins [default: the cell]
    #[arg(value_name = "ANYTHING")]
    what: Option<String>,

    /// The jobs whose labels match: a=b, a!=b, a, !a, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "what")]
    selector: Option<String>,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// One thing, whatever it is.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Thing {
    Job(JobStatus),
    AllocSet(JobStatus),
    /// One task, or some, of a job.
    Task(JobStatus),
    Machine {
        machine: MachineView,
    },
    User {
        user: UserView,
    },
    Cron {
        cron: CronView,
    },
}

impl StatusArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        if let Some(selector) = self.selector {
            let filter = JobFilter { selector: Some(selector), ..JobFilter::default() };
            let jobs = ask(pages::jobs(&cell, &filter))?;
            match self.output.output {
                Output::Json => print_json(&jobs)?,
                Output::Table => show_list(&jobs, true)?,
            }
            return Ok(Success::Done);
        }
        let Some(text) = &self.what else {
            let standing = ask(cell::read(&cell))?;
            match self.output.output {
                Output::Json => print_json(&standing)?,
                Output::Table => say(&cell::shown(&standing))?,
            }
            // What was asked for was shown, but it may be old and nothing can change it.
            return Ok(if standing.is_led() { Success::Done } else { Success::NobodyLeads });
        };
        let thing = ask(find(&cell, text))?;
        match self.output.output {
            Output::Json => print_named(&thing, &thing.names())?,
            Output::Table => say(&thing.shown())?,
        }
        Ok(Success::Done)
    }
}

impl Thing {
    /// What commands take to mean this very thing again.
    pub fn names(&self) -> Vec<String> {
        match self {
            Thing::Job(status) | Thing::AllocSet(status) => vec![status.job_name()],
            Thing::Task(status) => status.task_names(),
            Thing::Machine { machine } => vec![machine.name.to_string()],
            Thing::User { user } => vec![user.name.to_string()],
            Thing::Cron { cron } => vec![format!("{}/{}", cron.user, cron.name)],
        }
    }

    fn shown(&self) -> String {
        let now = crate::clock::now();
        match self {
            Thing::Job(job) | Thing::AllocSet(job) | Thing::Task(job) => job::shown(job, now),
            Thing::Machine { machine } => super::machine::shown(machine),
            Thing::User { user } => other::user(user),
            Thing::Cron { cron } => other::cron(cron, now),
        }
    }
}

/// The one thing that is meant.
pub async fn find(cell: &Cell, text: &str) -> Result<Thing, Failure> {
    if text.is_empty() {
        return Err(Failure::Usage {
            message: "the name is empty; allowed: a job, task, machine, user or periodic job, or \
                      the beginning of its name"
                .into(),
            next: "see what there is: cell status, cell job status, cell machine ls".into(),
        });
    }
    // A range is of tasks; no name has brackets.
    if text.contains('[') {
        let typed = target::typed(text).map_err(|message| Failure::Usage {
            message: format!("{text:?}: {message}"),
            next: "cell status".into(),
        })?;
        let target = typed.resolve(cell).await?;
        return Ok(Thing::Task(job::read(cell, &target.job, target.tasks.as_deref()).await?));
    }
    let found = cell.client.find(text).await?.value.items;
    match &found[..] {
        [one] => read(cell, one).await,
        [] => {
            if let Some(failure) = no_such_task(cell, text).await {
                return Err(failure);
            }
            let near = target::near(cell, text, |_| true).await;
            Err(Failure::Work {
                message: format!("nothing is called {text:?} or begins so{near}"),
                next: "see what there is: cell status, cell job status, cell machine ls".into(),
            })
        }
        several => Err(ambiguous(text, several)),
    }
}

/// Of a job that there is, and an index that it has not, the cell says how many it has.
async fn no_such_task(cell: &Cell, text: &str) -> Option<Failure> {
    let target = target::typed(text).ok()?.resolve(cell).await.ok()?;
    let [index] = target.tasks.as_deref()? else { return None };
    match cell.client.task(&target.job, *index).await {
        Err(error) if error.code() == Some(Code::NoSuchTask) => Some(error.into()),
        _ => None,
    }
}

async fn read(cell: &Cell, found: &FoundView) -> Result<Thing, Failure> {
    let odd = |message: String| Failure::Work {
        message,
        next: "compare `cell --version` with the version in `cell master status`".into(),
    };
    let client = &cell.client;
    Ok(match found.kind {
        FoundKind::Job | FoundKind::AllocSet => {
            let key = parse::job(&found.name).map_err(odd)?;
            let status = job::read(cell, &key, None).await?;
            match found.kind {
                FoundKind::Job => Thing::Job(status),
                _ => Thing::AllocSet(status),
            }
        }
        FoundKind::Task => {
            let typed = target::typed(&found.name).map_err(odd)?;
            let target = typed.resolve(cell).await?;
            Thing::Task(job::read(cell, &target.job, target.tasks.as_deref()).await?)
        }
        FoundKind::Machine => {
            let name = parse::name(&found.name).map_err(odd)?;
            Thing::Machine { machine: client.machine(&name).await?.value.item }
        }
        FoundKind::User => {
            let name = parse::name(&found.name).map_err(odd)?;
            Thing::User { user: client.user(&name).await?.value.item }
        }
        FoundKind::Cron => {
            let key = parse::job(&found.name).map_err(odd)?;
            Thing::Cron { cron: client.cron(&key).await?.value.item }
        }
    })
}
