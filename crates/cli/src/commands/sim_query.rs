//! The common part of `cell sim fits` and `cell sim whatif`: a packed cell and a job that is not in
//! it.

use crate::args::{MachineSearch, OutputArgs, SchedulerArgs, Score, TraceArgs};
use crate::failure::Failure;
use crate::{format, progress};
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::Dimension;
use cellwright_cell::spec::JobSpec;
use cellwright_sched::Options;
use cellwright_sched::executor::Executor;
use cellwright_sched::whatif::MachineTasks;
use cellwright_sim::experiment::job_text::parse_job;
use cellwright_sim::experiment::load::{Units, load, load_running};
use cellwright_sim::experiment::pack::{PackOptions, PackResult, PackedCell, pack};
use cellwright_sim::experiment::pending::Explain;
use cellwright_sim::experiment::threads::executor;
use cellwright_sim::experiment::what_if::{CellSummary, JobSummary};
use clap::Args;
use std::fs;

#[derive(Debug, Args)]
pub struct SimQueryArgs {
    #[command(flatten)]
    trace: TraceArgs,

    #[command(flatten)]
    scheduler: SchedulerArgs,

    /// How machines are compared
    #[arg(long, value_enum, default_value = "hybrid", help_heading = "Scheduler")]
    score: Score,

    /// The job: a JSON file, or KEY=VALUE,... with name, count (1 if not given), priority (200 if
    /// not given), cpu, ram, disk, disk_rate, ports, static_ports, gpus, gpu_share, gpu_model,
    /// constraints, max_per_machine, gang
    #[arg(long, value_name = "FILE|KEY=VALUE,...")]
    job: String,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// A packed cell that can be queried.
pub struct SimQuery {
    pub result: PackResult,
    pub packed: PackedCell,
    pub spec: JobSpec,
    pub scheduler: Options,
    pub executor: Box<dyn Executor>,
}

impl SimQueryArgs {
    pub fn pack(&self) -> Result<SimQuery, Failure> {
        let threads = usize::from(self.scheduler.threads);
        let executor = executor(threads)?;
        let progress = progress::to_stderr();
        let options = self.trace.load_options()?;
        let units = cellwright_sim::experiment::load::units_of(&options.source);
        let spec = self.spec(units)?;
        // A live cell is used as it is; a trace has no placements yet.
        let loaded = if self.trace.is_checkpoint() {
            load_running(&options, progress.as_ref())?
        } else {
            load(&options, progress.as_ref())?
        };
        let scheduler = self.scheduler.options(self.score.model(), MachineSearch::Sampled);
        let (seed, explain) = (self.scheduler.seed, Explain::Classes(0));
        let pack_options =
            PackOptions { scheduler, seed, threads, executor: executor.as_ref(), explain };
        let (result, packed) = pack(loaded, pack_options, progress.as_ref())?;
        Ok(SimQuery { result, packed, spec, scheduler, executor })
    }

    fn spec(&self, units: Units) -> Result<JobSpec, Failure> {
        let is_text = self.job.contains('=') || self.job.trim_start().starts_with('{');
        let text = if is_text {
            self.job.clone()
        } else {
            fs::read_to_string(&self.job).map_err(|error| Failure::Usage {
                message: format!("cannot read the job file {}: {error}", self.job),
                next: "write the job out: --job cpu=500m,ram=1GiB,priority=200,count=10".into(),
            })?
        };
        parse_job(&text, units).map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: match units {
                Units::CoresAndBytes => "correct it: --job cpu=500m,ram=1GiB,priority=200".into(),
                Units::LargestMachine => {
                    "this trace counts in shares of its largest machine: --job cpu=0.25,ram=0.1"
                        .into()
                }
            },
        })
    }
}

/// The failure for a job that no cell would admit.
pub fn rejection_failure(rejection: &Rejection) -> Failure {
    Failure::Usage {
        message: format!("no cell would admit this job: {rejection}"),
        next: "correct that field of --job".into(),
    }
}

pub fn render_header(cell: &CellSummary, job: &JobSummary) -> String {
    let count = |number: usize| format::count(number as u64);
    let requested = Dimension::ALL.into_iter().filter(|d| job.limits.get(*d) > 0);
    let amounts: Vec<String> = requested
        .map(|d| {
            format!("{} {}", d.as_str(), format::amount(cell.units, d.as_str(), job.limits.get(d)))
        })
        .collect();
    format!(
        "cell  {}, {} of {} placed\njob   priority {} ({}), each task {}\n\n",
        format::pluralize(cell.machines as u64, "machine"),
        count(cell.placed),
        format::pluralize(cell.tasks, "task"),
        job.priority,
        job.band,
        if amounts.is_empty() { "without cpu or ram".into() } else { amounts.join(", ") },
    )
}

/// The machines with the most tasks, several per line.
pub fn format_placements(placements: &[MachineTasks]) -> String {
    const MAX_NAMED_MACHINES: usize = 8;
    let named: Vec<String> = placements
        .iter()
        .take(MAX_NAMED_MACHINES)
        .map(|placement| format!("{} ({})", placement.machine.name, placement.tasks))
        .collect();
    named.join(", ")
}
