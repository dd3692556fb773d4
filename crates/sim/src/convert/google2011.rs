//! The Google cell of 2011. The trace has requests and placements, but no usage (beyond a sample),
//! no disk capacity, no attributes and no packages; what stands in for them is noted.

use super::{ConvertError, UsageModel, plain_job, plain_machine, usage_note};
use crate::trace::google2011::{
    FIRST_PRODUCTION_PRIORITY, Snapshot, TaskRow, read_t0, snapshot_at,
};
use crate::workload::{ReservedShare, Workload, WorkloadJob};
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, SpreadLimit, TaskOverride};
use std::collections::BTreeMap;
use std::path::Path;

/// Of the trace's scheduling classes 0 to 3, the first that serves users who wait.
const FIRST_LATENCY_SENSITIVE: u8 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Google2011Options {
    /// Seconds since trace start at which to read the cell; `None`: the prepared table of time 0.
    pub at_seconds: Option<u64>,
    pub prod_only: bool,
    /// `None`: everything reserves its limits.
    pub usage: Option<UsageModel>,
}

/// Reads the trace and converts it to a workload.
///
/// # Errors
/// When a file cannot be read at all; unusable rows are counted in the reports.
pub fn google2011(folder: &Path, options: Google2011Options) -> Result<Workload, ConvertError> {
    let snapshot = match options.at_seconds {
        None => read_t0(folder)?,
        Some(s) => snapshot_at(folder, s.saturating_mul(1_000_000))?,
    };
    let mut out = Workload { reports: snapshot.reports.clone(), ..Workload::default() };
    notes(&mut out, &options);
    for row in &snapshot.machines {
        let capacity = Resources::new(row.cpu_micro, row.memory_micro, 0, 0);
        let mut machine = plain_machine(Name::new(&format!("m{}", row.machine.0))?, capacity);
        let platform = AttributeValue::Integer(i64::from(row.platform.0));
        machine.spec.attributes.insert(Token::new("platform")?, platform);
        out.machines.push(machine);
    }
    for ((job, priority), tasks) in tasks_by_job(&snapshot, options.prod_only) {
        out.jobs.push(convert_job(job, priority, &tasks, &options)?);
    }
    Ok(out)
}

fn notes(out: &mut Workload, options: &Google2011Options) {
    out.notes.push("amounts are in units of the largest machine, as the trace gives them".into());
    out.notes.push("disk requests are left out: the trace has no disk capacity".into());
    out.notes
        .push("priorities 0-1 are best effort, 2-8 batch, 9-10 production, 11 monitoring".into());
    out.notes.push("scheduling classes 2 and 3 are latency-sensitive".into());
    out.notes.push(usage_note(options.usage));
}

/// Tasks by job and priority, in trace order of jobs: in the trace a priority belongs to a task,
/// here to a job.
fn tasks_by_job(snapshot: &Snapshot, prod_only: bool) -> BTreeMap<(u64, u8), Vec<TaskRow>> {
    let mut jobs: BTreeMap<(u64, u8), Vec<TaskRow>> = BTreeMap::new();
    let wanted = |t: &&TaskRow| !prod_only || t.priority >= FIRST_PRODUCTION_PRIORITY;
    for task in snapshot.tasks.iter().filter(wanted) {
        jobs.entry((task.task.job.0, task.priority)).or_default().push(task.clone());
    }
    for tasks in jobs.values_mut() {
        tasks.sort_by_key(|t| t.task.index);
    }
    jobs
}

fn convert_job(
    job: u64,
    priority: u8,
    tasks: &[TaskRow],
    options: &Google2011Options,
) -> Result<WorkloadJob, ConvertError> {
    let limits = |t: &TaskRow| Resources::new(t.cpu_micro, t.memory_micro, 0, 0);
    let usual = limits(&tasks[0]);
    let name = Name::new(&format!("j{job}-p{priority}"))?;
    let mut spec = plain_job(name, tasks.len() as u32, to_priority(priority), usual);
    spec.appclass = Some(if tasks[0].scheduling_class >= FIRST_LATENCY_SENSITIVE {
        AppClass::LatencySensitive
    } else {
        AppClass::Batch
    });
    if tasks.iter().any(|t| t.different_machines) {
        spec.spread.push(SpreadLimit { domain: Domain::Machine, limit: 1 });
    }
    for (index, task) in tasks.iter().enumerate().filter(|(_, t)| limits(t) != usual) {
        let limits = Some(limits(task).into());
        spec.overrides.insert(index as u32, TaskOverride { limits, ..TaskOverride::default() });
    }
    let reserved = options.usage.map_or(ReservedShare::ALL, |model| model.reserved());
    let owner = Name::new(&format!("u{}", tasks[0].user.0))?;
    Ok(WorkloadJob { owner, spec, reserved })
}

fn to_priority(priority: u8) -> Priority {
    let p = u16::from(priority);
    Priority(match priority {
        0..=1 => p,
        2..=8 => 100 + p,
        9..=10 => 200 + p,
        _ => 300 + p,
    })
}
