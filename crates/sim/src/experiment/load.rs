//! Loads a cell from the name of a trace, with all machines up and all jobs submitted through the
//! commands that a live cell accepts.

use super::process_metrics::timed;
use super::progress::Progress;
use crate::convert::{self, ConvertError, Google2011Options, UsageModel};
use crate::trace::TraceSource;
use crate::workload::{RejectedCommand, ReservedShare, Workload, WorkloadJob};
use cellwright_cell::State;
use cellwright_cell::name::Name;
use serde::Serialize;

/// Which part of the trace to load, and the substitutes for what it lacks.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub source: TraceSource,
    pub prod_only: bool,
    /// `None`: everything reserves its limits, so nothing is reclaimed.
    pub usage: Option<UsageModel>,
    /// Seconds since trace start; only the 2011 trace has a time line.
    pub at_seconds: Option<u64>,
    pub copies: u32,
    /// The pod list; only the GPU trace has several.
    pub pods: String,
}

/// The units in which people read the amounts of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Units {
    /// Milli-cores and bytes.
    CoresAndBytes,
    /// Millionths of the largest machine, in both dimensions.
    LargestMachine,
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Rejected(#[from] RejectedCommand),
    #[error("{option} does not apply to {source_name}; allowed: {allowed}")]
    NotForThisTrace { option: &'static str, source_name: String, allowed: &'static str },
    #[error("{source_name} has no {what} left; allowed: at least one")]
    Empty { what: &'static str, source_name: String },
}

/// A cell as the scheduler finds it.
#[derive(Debug)]
pub struct LoadedCell {
    pub workload: Workload,
    pub state: State,
    pub units: Units,
    pub read_seconds: f64,
    pub submit_seconds: f64,
}

/// Reads the trace and submits it.
///
/// # Errors
/// When the trace cannot be read, an option does not apply to it, or the cell rejects a command.
pub fn load(options: &LoadOptions, progress: &dyn Progress) -> Result<LoadedCell, LoadError> {
    let (workload, read_seconds) = timed(|| read(options, progress));
    let workload = workload?;
    progress.stage("submitting jobs", 0);
    let (state, submit_seconds) = timed(|| workload.submit());
    let units = units_of(&options.source);
    Ok(LoadedCell { state: state?, workload, units, read_seconds, submit_seconds })
}

/// Loads a checkpoint with every task where it was, so that a pass places only waiting tasks.
///
/// # Errors
/// When the trace is not a readable checkpoint, or an option would change what is running.
pub fn load_running(
    options: &LoadOptions,
    progress: &dyn Progress,
) -> Result<LoadedCell, LoadError> {
    let source_name = options.source.to_string();
    let refused = |option, allowed| {
        Err(LoadError::NotForThisTrace { option, source_name: source_name.clone(), allowed })
    };
    let TraceSource::Checkpoint(file) = &options.source else {
        return refused("--as-it-stands", "only checkpoint:FILE, which has places");
    };
    let kept = "not with a cell as it stands";
    let changes = [
        ("--at limits", options.usage.is_none()),
        ("--prod-only", options.prod_only),
        ("--copies", options.copies > 1),
        ("--at-time", options.at_seconds.is_some()),
    ];
    if let Some((option, _)) = changes.into_iter().find(|(_, is_given)| *is_given) {
        return refused(option, kept);
    }
    progress.stage(&format!("reading {source_name}"), 0);
    let (read, read_seconds) = timed(|| convert::running_cell(file));
    let (workload, state) = read?;
    let units = units_of(&options.source);
    Ok(LoadedCell { workload, state, units, read_seconds, submit_seconds: 0.0 })
}

/// Reads the trace as a workload; nothing is submitted yet.
///
/// # Errors
/// When the trace cannot be read or an option does not apply to it.
pub fn read(options: &LoadOptions, progress: &dyn Progress) -> Result<Workload, LoadError> {
    let source_name = options.source.to_string();
    if options.at_seconds.is_some() && !matches!(options.source, TraceSource::Google2011(_)) {
        let (option, allowed) = ("--at-time", "only google2011:DIR, which has a time line");
        return Err(LoadError::NotForThisTrace { option, source_name, allowed });
    }
    progress.stage(&format!("reading {source_name}"), 0);
    let workload = match &options.source {
        TraceSource::Google2011(folder) => {
            let LoadOptions { at_seconds, prod_only, usage, .. } = *options;
            convert::google2011(folder, Google2011Options { at_seconds, prod_only, usage })?
        }
        TraceSource::Openb(folder) => openb(folder, &options.pods)?,
        TraceSource::Swf(file) => convert::swf(file)?,
        TraceSource::Example(folder) => convert::example(folder, options.usage)?,
        TraceSource::Checkpoint(file) => convert::checkpoint(file, options.usage.is_none())?,
    };
    let workload = if options.prod_only {
        workload.filter_jobs(|job| job.priority.is_prod())
    } else {
        workload
    };
    for (what, is_empty) in
        [("machine", workload.machines.is_empty()), ("job", workload.jobs.is_empty())]
    {
        if is_empty {
            return Err(LoadError::Empty { what, source_name });
        }
    }
    Ok(workload.copies(options.copies))
}

#[must_use]
pub fn units_of(source: &TraceSource) -> Units {
    match source {
        TraceSource::Google2011(_) => Units::LargestMachine,
        _ => Units::CoresAndBytes,
    }
}

/// The pod list as it is, every pod once and all at the same time.
fn openb(folder: &std::path::Path, pods: &str) -> Result<Workload, LoadError> {
    let cell = convert::openb_cell(folder, pods)?;
    let owner = Name::new("openb").map_err(ConvertError::from)?;
    let job = |spec| WorkloadJob { owner: owner.clone(), spec, reserved: ReservedShare::ALL };
    Ok(Workload {
        machines: cell.machines,
        jobs: cell.jobs.into_iter().map(job).collect(),
        notes: vec![
            format!("pod list {pods}, every pod once, as the job of one task it would be"),
            "only the nodes with GPUs are in the cell".into(),
            "reservations equal limits: pods say what they ask for, not what they use".into(),
        ],
        reports: cell.reports,
    })
}
