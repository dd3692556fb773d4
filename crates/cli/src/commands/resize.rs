//! `cell resize`: changes the number of tasks or their limits, while they run and without the job
//! file at hand. It sends what was asked for; the cell merges that with the job as it is.

use super::Success;
use super::parse::{nonzero_cores, size};
use super::target::{TargetArg, parse_target};
use super::update::closed_message;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{print_notice, print_prose};
use crate::runtime::block_on;
use cellwright_api::client::{ChangeOptions, ClientError};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::Applied;
use cellwright_cell::command::ApplyOutcome;
use cellwright_cell::job_size::JobSize;
use cellwright_cell::name::JobKey;
use clap::{ArgGroup, Args};
use serde_json::Value;

const EXAMPLES: &str = "\
Examples:
  cell resize dev/hello --tasks 5
  cell resize dev/hello --cpu 0.5 --ram 256MiB

Tasks keep running with their new limits; those that do not fit where they are
move, as in an update.";

const USAGE: &str = "\
cell resize [OPTIONS]
       <--tasks <N>|--cpu <CORES>|--ram <SIZE>|--disk <SIZE>
        |--disk-rate <SIZE>> <JOB>";

/// Change how many tasks a job has, or how much each may use
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
#[command(group = ArgGroup::new("size").required(true).multiple(true)
    .args(["tasks", "cpu", "ram", "disk", "disk_rate"]))]
pub struct ResizeArgs {
    /// Which
    #[arg(value_name = "JOB", value_parser = parse_target)]
    job: TargetArg,

    /// Tasks the job shall have
    #[arg(long, visible_alias = "count", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=200_000))]
    tasks: Option<u32>,

    /// Cores of each task
    #[arg(long, value_name = "CORES", value_parser = nonzero_cores)]
    cpu: Option<u64>,

    /// Memory of each task
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ram: Option<u64>,

    /// Disk of each task
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<u64>,

    /// Bytes a second of each task from and to disks
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk_rate: Option<u64>,
}

impl ResizeArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let size = self.size();
        let (key, answer) = block_on(async {
            let key = self.job.resolve(&cell).await?.job;
            let answer = cell.client.resize_job(&key, &size, &ChangeOptions::default()).await;
            Ok::<_, Failure>((key, answer))
        })?;
        let applied = answer.map_err(|error| rejected(&key, error))?.value;
        if let Some(version) = applied.closed_update {
            print_notice(&closed_message(&key, version));
        }
        print_prose(&outcome(&key, &size, &applied))?;
        Ok(Success::Done)
    }

    fn size(&self) -> JobSize {
        JobSize {
            count: self.tasks,
            cpu: self.cpu,
            ram: self.ram,
            disk: self.disk,
            disk_rate: self.disk_rate,
        }
    }
}

fn outcome(key: &JobKey, size: &JobSize, applied: &Applied) -> String {
    let count_alone = size.count.filter(|count| *size == JobSize::tasks(*count));
    let next = format!("cell status {key}");
    let tasks = count_alone.map(|count| format::pluralize(u64::from(count), "task"));
    let outcome = match (applied.became, tasks) {
        (ApplyOutcome::Unchanged | ApplyOutcome::Ended, Some(tasks)) => {
            format!("had already {tasks}")
        }
        (ApplyOutcome::Unchanged | ApplyOutcome::Ended, None) => "was like this already".into(),
        (ApplyOutcome::Resized, Some(tasks)) => format!("has now {tasks}"),
        (ApplyOutcome::Resized, None) => {
            format!("takes its new size as version {}", applied.version)
        }
        (ApplyOutcome::Created | ApplyOutcome::Updated, _) => {
            format!("rolls to version {}", applied.version)
        }
    };
    format!("job {key} {outcome}\nnext: {next}\n")
}

/// What to do about a size that the cell rejects. This command does not change tasks with limits of
/// their own.
fn rejected(key: &JobKey, error: ClientError) -> Failure {
    let next = match &error {
        ClientError::Api(error) => match bad_field(error) {
            Some("task.limits.ram") => Some("the same command with a larger --ram"),
            Some(field) if field.starts_with("overrides.") => {
                Some("change the limits in its file: cell run FILE")
            }
            _ => None,
        },
        _ => None,
    };
    match (next, error) {
        (Some(next), ClientError::Api(error)) => Failure::from_error(&error, next),
        (_, error) => Failure::from_change(error, &format!("cell status {key}")),
    }
}

fn bad_field(error: &ApiError) -> Option<&str> {
    let field = error.details.get("field").and_then(Value::as_str);
    field.filter(|_| error.code == Code::BadField)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::name::Name;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ResizeArgs,
    }

    fn key() -> JobKey {
        JobKey { user: Name::new("ann").unwrap(), job: Name::new("web").unwrap() }
    }

    #[test]
    fn only_what_is_named_is_asked_for() {
        let size = |options: &[&str]| {
            Line::try_parse_from([&["resize", "ann/web"], options].concat()).unwrap().args.size()
        };
        // Job files call the option `count`.
        for tasks in ["--tasks", "--count"] {
            assert_eq!(size(&[tasks, "3"]), JobSize::tasks(3));
        }
        let limits = JobSize { cpu: Some(500), ram: Some(2 << 20), ..JobSize::default() };
        assert_eq!(size(&["--cpu", "0.5", "--ram", "2MiB"]), limits);
    }

    #[test]
    fn no_cores_are_a_slip() {
        let error = Line::try_parse_from(["resize", "ann/web", "--cpu", "0"]).err().unwrap();
        assert!(error.to_string().contains("from 0.001 on"), "{error}");
    }

    #[test]
    fn what_was_done_is_told_in_the_words_of_what_was_asked() {
        let check = |size: JobSize, became: ApplyOutcome, want: &str| {
            let JobKey { user, job: name } = key();
            let applied = Applied {
                index: 7,
                user,
                name,
                became,
                version: 3,
                closed_update: None,
                dry_run: false,
                expect: None,
                changes: Vec::new(),
                class: None,
                warnings: Vec::new(),
            };
            assert_eq!(outcome(&key(), &size, &applied), want);
        };
        let tasks = JobSize::tasks(2);
        let ram = JobSize { ram: Some(1 << 30), ..tasks };
        let next = "next: cell status ann/web\n";
        check(tasks, ApplyOutcome::Resized, &format!("job ann/web has now 2 tasks\n{next}"));
        check(tasks, ApplyOutcome::Unchanged, &format!("job ann/web had already 2 tasks\n{next}"));
        let said = format!("job ann/web takes its new size as version 3\n{next}");
        check(ram, ApplyOutcome::Resized, &said);
        check(ram, ApplyOutcome::Unchanged, &format!("job ann/web was like this already\n{next}"));
    }

    #[test]
    fn a_size_that_is_rejected_is_answered_with_what_to_type() {
        let next = |field: &str| {
            let error = ApiError::field(field, "1", "2097152 or more");
            match rejected(&key(), ClientError::Api(error)) {
                Failure::Operation { message, next } => {
                    assert!(message.starts_with(&format!("field {field}: value 1")), "{message}");
                    next
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(next("task.limits.ram"), "the same command with a larger --ram");
        assert!(next("overrides.0.limits.ram").contains("in its file"));
        assert_eq!(next("count"), Code::BadField.hint());
    }
}
