//! `cell status [ANYTHING]`: the status of the cell, or of any object with this name or prefix.
//! People remember names, not which kind of object they belong to.

mod cell;
mod job;
mod user_and_cron;

use super::status_text::{TASK_STATES, failures_first, is_in_state};
use super::target::{self, ambiguous_name};
use super::{Success, pagination, parse};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_named, print_prose};
use crate::runtime::block_on;
use cellwright_api::client::JobFilter;
use cellwright_api::error::Code;
use cellwright_api::types::{CronView, FoundKind, FoundView, MachineView, TaskView, UserView};
use clap::Args;
pub use job::{
    JobStatus, StartError, fetch_start_errors, print_jobs, read as read_job, render as shown_job,
};
use serde::Serialize;
pub use user_and_cron::{cron as shown_cron, user as shown_user};

const EXAMPLES: &str = "\
Examples:
  cell status
  cell status hello
  cell status dev/hello/0
  cell status 'dev/hello/[0-2]'
  cell status local
  cell status last
  cell status hello --state failed
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

    /// Only tasks of the job, or on the machine, in this state
    #[arg(long, value_name = "STATE", value_parser = TASK_STATES, requires = "what")]
    state: Option<String>,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// An object of any kind.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CellObject {
    Job(JobStatus),
    AllocSet(JobStatus),
    /// One or some tasks of a job.
    Task(JobStatus),
    Machine {
        machine: MachineView,
        /// What is bound to it.
        tasks: Vec<TaskView>,
    },
    User {
        user: UserView,
    },
    Cron {
        cron: CronView,
    },
}

impl StatusArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        if let Some(selector) = self.selector {
            let filter = JobFilter { selector: Some(selector), ..JobFilter::default() };
            let jobs = block_on(pagination::jobs(&cell, &filter))?;
            match self.output.output {
                Output::Json => print_json(&jobs)?,
                Output::Table => print_jobs(&jobs, true)?,
            }
            return Ok(Success::Done);
        }
        let Some(text) = &self.what else {
            let cell_status = block_on(cell::read(&cell))?;
            match self.output.output {
                Output::Json => print_json(&cell_status)?,
                Output::Table => print_prose(&cell::render(&cell_status))?,
            }
            // The status was printed, but it may be stale, and no change is possible.
            return Ok(if cell_status.is_led() { Success::Done } else { Success::NoLeader });
        };
        let mut object = block_on(find_object(&cell, text))?;
        object.arrange(self.state.as_deref())?;
        match self.output.output {
            Output::Json => print_named(&object, &object.names())?,
            Output::Table => print_prose(&object.text())?,
        }
        Ok(Success::Done)
    }
}

impl CellObject {
    /// The names by which commands refer to this object.
    pub fn names(&self) -> Vec<String> {
        match self {
            CellObject::Job(status) | CellObject::AllocSet(status) => vec![status.job_name()],
            CellObject::Task(status) => status.task_names(),
            CellObject::Machine { machine, .. } => vec![machine.name.to_string()],
            CellObject::User { user } => vec![user.name.to_string()],
            CellObject::Cron { cron } => vec![format!("{}/{}", cron.user, cron.name)],
        }
    }

    /// Puts tasks with problems first, and leaves out those that are not in `state`.
    fn arrange(&mut self, state: Option<&str>) -> Result<(), Failure> {
        let tasks = match (&mut *self, state) {
            (CellObject::Job(job) | CellObject::AllocSet(job) | CellObject::Task(job), _) => {
                &mut job.tasks
            }
            (CellObject::Machine { tasks, .. }, _) => tasks,
            (CellObject::User { .. } | CellObject::Cron { .. }, None) => return Ok(()),
            (CellObject::User { .. } | CellObject::Cron { .. }, Some(_)) => {
                return Err(Failure::Usage {
                    message: format!("{} has no tasks; --state is for tasks", self.names()[0]),
                    next: "the same command without --state".into(),
                });
            }
        };
        if let Some(state) = state {
            tasks.retain(|task| is_in_state(task, state));
        }
        failures_first(tasks);
        Ok(())
    }

    fn text(&self) -> String {
        let now = crate::clock::now();
        match self {
            CellObject::Job(job) | CellObject::AllocSet(job) | CellObject::Task(job) => {
                job::render(job, now)
            }
            CellObject::Machine { machine, tasks } => {
                format!("{}{}", super::machine::render(machine), job::render_bound(tasks, now))
            }
            CellObject::User { user } => user_and_cron::user(user),
            CellObject::Cron { cron } => user_and_cron::cron(cron, now),
        }
    }
}

/// Finds the one object with this name.
pub async fn find_object(cell: &Cell, text: &str) -> Result<CellObject, Failure> {
    if text.is_empty() {
        return Err(Failure::Usage {
            message: "the name is empty; allowed: a job, task, machine, user or periodic job, or \
                      the beginning of its name"
                .into(),
            next: "see what there is: cell status, cell job status, cell machine ls".into(),
        });
    }
    // Only task ranges have brackets; names have none.
    if text.contains('[') {
        let target_arg = target::parse_target(text).map_err(|message| Failure::Usage {
            message: format!("{text:?}: {message}"),
            next: "cell status".into(),
        })?;
        let target = target_arg.resolve(cell).await?;
        return Ok(CellObject::Task(job::read(cell, &target.job, target.tasks.as_deref()).await?));
    }
    let found = cell.client.find(text).await?.value.items;
    match &found[..] {
        [one] => read_object(cell, one).await,
        [] => {
            if let Some(failure) = missing_task_failure(cell, text).await {
                return Err(failure);
            }
            let suggestion = target::suggestion_text(cell, text, |_| true).await;
            Err(Failure::Operation {
                message: format!("nothing is called {text:?} or begins so{suggestion}"),
                next: "see what there is: cell status, cell job status, cell machine ls".into(),
            })
        }
        several => Err(ambiguous_name(text, several)),
    }
}

/// For an existing job and a missing index, the cell's error says how many tasks it has.
async fn missing_task_failure(cell: &Cell, text: &str) -> Option<Failure> {
    let target = target::parse_target(text).ok()?.resolve(cell).await.ok()?;
    let [index] = target.tasks.as_deref()? else { return None };
    match cell.client.task(&target.job, *index).await {
        Err(error) if error.code() == Some(Code::NoSuchTask) => Some(error.into()),
        _ => None,
    }
}

async fn read_object(cell: &Cell, found: &FoundView) -> Result<CellObject, Failure> {
    let unexpected_reply = |message: String| Failure::Operation {
        message,
        next: "compare `cell --version` with the version in `cell master status`".into(),
    };
    let client = &cell.client;
    Ok(match found.kind {
        FoundKind::Job | FoundKind::AllocSet => {
            let key = parse::job_key(&found.name).map_err(unexpected_reply)?;
            let status = job::read(cell, &key, None).await?;
            match found.kind {
                FoundKind::Job => CellObject::Job(status),
                _ => CellObject::AllocSet(status),
            }
        }
        FoundKind::Task => {
            let target_arg = target::parse_target(&found.name).map_err(unexpected_reply)?;
            let target = target_arg.resolve(cell).await?;
            CellObject::Task(job::read(cell, &target.job, target.tasks.as_deref()).await?)
        }
        FoundKind::Machine => {
            let name = parse::name(&found.name).map_err(unexpected_reply)?;
            let machine = client.machine(&name).await?.value.item;
            let tasks = pagination::machine_tasks(cell, &name).await?;
            CellObject::Machine { machine, tasks }
        }
        FoundKind::User => {
            let name = parse::name(&found.name).map_err(unexpected_reply)?;
            CellObject::User { user: client.user(&name).await?.value.item }
        }
        FoundKind::Cron => {
            let key = parse::job_key(&found.name).map_err(unexpected_reply)?;
            CellObject::Cron { cron: client.cron(&key).await?.value.item }
        }
    })
}
