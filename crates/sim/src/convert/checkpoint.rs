//! Workloads from a checkpoint of a live cell: its machines, its jobs and what their tasks reserve.
//!
//! It serves two queries. "Would it all fit if placed anew?" treats it as a workload like any
//! other, submitted to an empty cell ([`checkpoint`]); "what would this job do to it?" must take it
//! as it is, every task where it is ([`running_cell`]). One conversion for both was rejected: a
//! workload has no placements, and a cell with placements cannot be packed from scratch.

use super::ConvertError;
use crate::workload::{ReservedShare, Workload, WorkloadJob, WorkloadMachine};
use cellwright_cell::State;
use cellwright_cell::job::{Job, JobState};
use cellwright_cell::machine::Machine;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::Task;
use cellwright_master::checkpoint::{Header, read};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the file and converts the cell to a workload. Reservations are the cell's own, unless
/// `at_limits`.
///
/// # Errors
/// When the file is not a whole checkpoint.
pub fn checkpoint(file: &Path, at_limits: bool) -> Result<Workload, ConvertError> {
    let (header, view) = read(file)?;
    let mut out = workload(&view.state, at_limits);
    out.notes.insert(0, origin(&header));
    Ok(out)
}

/// Reads the file and keeps the cell as it is; the workload beside it is for counting.
///
/// # Errors
/// When the file is not a whole checkpoint.
pub fn running_cell(file: &Path) -> Result<(Workload, State), ConvertError> {
    let (header, view) = read(file)?;
    let mut out = workload(&view.state, false);
    out.notes =
        vec![origin(&header), "every task is where it was; only those waiting are placed".into()];
    Ok((out, view.state))
}

fn origin(header: &Header) -> String {
    format!("the cell as of log index {}, state hash {:016x}", header.index, header.hash)
}

fn workload(state: &State, at_limits: bool) -> Workload {
    let mut out = Workload::default();
    out.machines.extend(state.machines().iter().map(|(_, row)| machine(row)));
    for (_, row) in state.jobs().iter() {
        let Some(owner) = state.users().get(row.user) else { continue };
        if is_included(state, row) {
            let live = live_tasks(state, row);
            let spec = live_job_spec(state, row, &live);
            let reserved =
                if at_limits { ReservedShare::ALL } else { reserved_share(row.spec(), &live) };
            out.jobs.push(WorkloadJob { owner: owner.name.clone(), spec, reserved });
        }
    }
    out.notes = notes(state, &out, at_limits);
    out
}

fn machine(row: &Machine) -> WorkloadMachine {
    WorkloadMachine {
        spec: row.spec.clone(),
        packages: row.packages.clone(),
        is_up: row.is_schedulable(),
    }
}

/// Stopping jobs request nothing new, and nor do jobs inside an alloc set that is stopping.
fn is_included(state: &State, row: &Job) -> bool {
    let set = row.spec().alloc_set.as_ref();
    let set_goes_on = set.is_none_or(|set| {
        let found = state.job_named(set).and_then(|set| state.jobs().get(set));
        found.is_some_and(|set| is_included(state, set))
    });
    let goes_on = matches!(row.state, JobState::Active | JobState::Deferred);
    goes_on && set_goes_on && !live_tasks(state, row).is_empty()
}

fn live_tasks<'a>(state: &'a State, row: &Job) -> Vec<&'a Task> {
    let tasks = row.tasks.iter().filter_map(|task| state.tasks().get(*task));
    tasks.filter(|task| !task.state.is_dead()).collect()
}

/// The job with only its live tasks, renumbered where some have ended.
fn live_job_spec(state: &State, row: &Job, live: &[&Task]) -> JobSpec {
    let mut spec = JobSpec::clone(row.spec());
    spec.count = live.len() as u32;
    let kept = live.iter().zip(0..).filter_map(|(task, number): (_, u32)| {
        Some((number, spec.overrides.get(&task.index)?.clone()))
    });
    spec.overrides = kept.collect::<BTreeMap<_, _>>();
    // A job that has started waits for no other, whatever became of its predecessors since.
    let rows = row.waits_for.iter().filter_map(|on| Some((on, state.jobs().get(*on)?)));
    let before = rows.filter(|(_, before)| is_included(state, before));
    let awaited: Vec<_> = before.filter_map(|(on, _)| state.job_key(*on)).collect();
    spec.after.retain(|after| awaited.contains(&after.job));
    spec
}

/// The reservations of all tasks together as a share of their limits, rounded up.
fn reserved_share(spec: &JobSpec, live: &[&Task]) -> ReservedShare {
    let sum = |of: &dyn Fn(&Task) -> Resources| {
        live.iter().fold(Resources::default(), |sum, task| sum.plus(of(task)))
    };
    let limits = sum(&|task| spec.limits_of(task.index));
    let reserved = sum(&|task| task.reservation);
    let share = |part: u64, whole: u64| match whole {
        0 => 1000,
        _ => (u128::from(part) * 1000).div_ceil(u128::from(whole)).min(1000) as u32,
    };
    ReservedShare {
        cpu_permille: share(reserved.cpu, limits.cpu),
        ram_permille: share(reserved.ram, limits.ram),
    }
}

fn notes(state: &State, out: &Workload, at_limits: bool) -> Vec<String> {
    let mut notes = vec![if at_limits {
        super::usage_note(None)
    } else {
        "reservations are those of the checkpoint, evened out over each job".into()
    }];
    let mut count = |number: usize, label: &str| {
        if number > 0 {
            notes.push(format!("{number} {label}"));
        }
    };
    let down = out.machines.iter().filter(|machine| !machine.is_up).count();
    count(down, "machines are down or being drained and take nothing");
    count(state.resources().len(), "ephemeral resources are left out: who asks for one waits");
    let ended = state.tasks().iter().filter(|(_, task)| task.state.is_dead()).count();
    count(ended, "tasks have ended and are left out; those left of a job are numbered anew");
    notes
}
