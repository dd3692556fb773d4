//! `cell resize`: changes the number of tasks or their limits, without the job file at hand.

use super::parse::{nonzero_cores, size};
use super::target::{TargetArg, parse_target};
use super::{Success, update_closing};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::print_prose;
use crate::runtime::block_on;
use cellwright_api::client::ChangeOptions;
use cellwright_cell::admit;
use cellwright_cell::name::JobKey;
use cellwright_cell::spec::JobSpec;
use clap::{ArgGroup, Args};

const EXAMPLES: &str = "\
Examples:
  cell resize dev/hello --tasks 5
  cell resize dev/hello --cpu 0.5 --ram 256MiB

Another number of tasks takes effect at once. Other limits are a rolling update:
cell update JOB.";

const USAGE: &str = "\
cell resize [OPTIONS]
       <--tasks <N>|--cpu <CORES>|--ram <SIZE>|--disk <SIZE>> <JOB>";

/// Change how many tasks a job has, or how much each may use
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
#[command(group = ArgGroup::new("size").required(true).multiple(true)
    .args(["tasks", "cpu", "ram", "disk"]))]
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
}

impl ResizeArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(async {
            let key = self.job.resolve(&cell).await?.job;
            match (self.tasks, self.cpu.or(self.ram).or(self.disk)) {
                (Some(count), None) => set_task_count(&cell, &key, count).await?,
                _ => self.set_limits(&cell, &key).await?,
            }
            Ok(Success::Done)
        })
    }

    async fn set_limits(&self, cell: &Cell, key: &JobKey) -> Result<(), Failure> {
        let job = cell.client.job(key).await?.value.item;
        let spec = job.spec;
        // A spec is returned without its secrets, so writing it back would lose them.
        if !spec.task.secrets.is_empty() {
            return Err(Failure::Operation {
                message: format!("job {key} has secrets, which are never shown"),
                next: "change the limits in its file: cell run FILE".into(),
            });
        }
        let spec = self.resized_spec(spec)?;
        let change = ChangeOptions { expect: Some(job.version), ..ChangeOptions::default() };
        let update = async || cell.client.update_job(&key.user, &spec, &change).await;
        let done =
            update_closing::send_change(cell, key, Some(job.version), Some(&spec), update).await?;
        let outcome = if done.changed {
            format!("rolls to version {}", done.version.unwrap_or(job.version))
        } else {
            "was like this already".into()
        };
        print_prose(&format!("job {key} {outcome}\nnext: cell update {key} status\n"))
    }

    /// The resulting spec, if its tasks can start: job files are checked in the same way, since the
    /// cell itself would roll the job into tasks that never start.
    fn resized_spec(&self, mut spec: JobSpec) -> Result<JobSpec, Failure> {
        let limits = &mut spec.task.limits;
        limits.cpu = self.cpu.unwrap_or(limits.cpu);
        limits.ram = self.ram.unwrap_or(limits.ram);
        limits.disk = self.disk.unwrap_or(limits.disk);
        spec.count = self.tasks.unwrap_or(spec.count);
        admit::check(&spec, admit::has_memory_to_start).map_err(|rejection| {
            // This command does not change tasks with limits of their own.
            let next = if spec.task.limits.ram < admit::MIN_RAM {
                "the same command with a larger --ram"
            } else {
                "change the limits in its file: cell run FILE"
            };
            Failure::from_error(&rejection, next)
        })?;
        Ok(spec)
    }
}

async fn set_task_count(cell: &Cell, key: &JobKey, count: u32) -> Result<(), Failure> {
    let resize = async || cell.client.resize_job(key, count, &ChangeOptions::default()).await;
    let done = update_closing::send_change(cell, key, None, None, resize).await?;
    let tasks = crate::format::pluralize(u64::from(count), "task");
    let outcome = if done.changed { "has now" } else { "had already" };
    print_prose(&format!("job {key} {outcome} {tasks}\nnext: cell status {key}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ResizeArgs,
    }

    fn resized(options: &[&str], overrides: &str) -> Result<JobSpec, Failure> {
        let line = Line::try_parse_from([&["resize", "ann/web"], options].concat()).unwrap();
        let spec = format!(
            r#"{{"name": "web", "priority": 100, "overrides": {overrides},
                 "task": {{"limits": {{"cpu": 100, "ram": 33554432}}, "command": ["sleep"]}}}}"#
        );
        line.args.resized_spec(serde_json::from_str(&spec).unwrap())
    }

    #[test]
    fn tasks_that_could_not_begin_are_refused_before_anything_is_sent() {
        let failure_text = |options: &[&str], overrides: &str| match resized(options, overrides) {
            Err(Failure::Operation { message, next }) => (message, next),
            other => panic!("{other:?}"),
        };
        let (message, next) = failure_text(&["--ram", "1B"], "{}");
        let want = "field task.limits.ram: value 1 is not valid; allowed: 2097152 (2 MiB) or more";
        assert!(message.starts_with(want), "{message}");
        assert_eq!(next, "the same command with a larger --ram");
        let own = r#"{"0": {"limits": {"cpu": 100, "ram": 1}}}"#;
        let (message, next) = failure_text(&["--cpu", "1"], own);
        assert!(message.starts_with("field overrides.0.limits.ram: value 1"), "{message}");
        assert!(next.contains("in its file"), "{next}");
        // Job files call the option `count`.
        for tasks in ["--tasks", "--count"] {
            let spec = resized(&["--ram", "2MiB", "--cpu", "0.5", tasks, "3"], "{}").unwrap();
            assert_eq!((spec.task.limits.ram, spec.task.limits.cpu, spec.count), (2 << 20, 500, 3));
        }
    }

    #[test]
    fn no_cores_are_a_slip() {
        let error = Line::try_parse_from(["resize", "ann/web", "--cpu", "0"]).err().unwrap();
        assert!(error.to_string().contains("from 0.001 on"), "{error}");
    }
}
