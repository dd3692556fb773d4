//! From what agents report to what the rules of scaling ask: the usage of all tasks of a job,
//! looked at a few times a minute, becomes one row for each minute.
//!
//! Of CPU the mean counts, of memory the most: what is short of memory is killed, what is short of
//! CPU waits. Soft state of the leading master: a new leader begins a new minute.

use cellwright_cell::command::Command;
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::reason::Reason;
use cellwright_cell::resource::Resources;
use cellwright_cell::scale::ScaleSize;
use cellwright_cell::scaling::{self, JobLoad};
use cellwright_cell::state::State;
use cellwright_cell::task::{ExitClass, TaskState};
use cellwright_cell::time::Time;
use cellwright_scale::need::{Usage, largest, signals};
use std::collections::BTreeMap;

/// Most jobs in one command.
const JOBS_PER_COMMAND: usize = 1000;

/// Sums over the samples of a minute.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    samples: u64,
    cpu: u64,
    most_ram: u64,
    tasks: u32,
    missing: u32,
    peak_cpu: u64,
    peak_ram: u64,
}

#[derive(Debug, Default)]
pub struct LoadFeed {
    jobs: BTreeMap<JobId, Sums>,
    reported_at: Time,
}

impl LoadFeed {
    /// Adds one sample. `usage`: what an attempt of a task uses, if that was reported lately.
    pub fn sample(
        &mut self,
        state: &State,
        usage: impl Fn(MachineId, TaskId, u32) -> Option<Resources>,
    ) {
        for (id, job) in scaled_jobs(state) {
            let sums = self.jobs.entry(id).or_default();
            let (mut all, mut tasks, mut live) = (Resources::ZERO, 0, 0);
            for task in job.tasks.iter() {
                let Some(row) = state.tasks().get(*task).filter(|row| !row.state.is_dead()) else {
                    continue;
                };
                live += 1;
                let running = row.machine().filter(|_| row.state == TaskState::Running);
                let used = running.and_then(|machine| usage(machine, *task, row.attempt));
                let Some(used) = used else { continue };
                tasks += 1;
                all = all.plus(used);
                sums.peak_cpu = sums.peak_cpu.max(used.cpu);
                sums.peak_ram = sums.peak_ram.max(used.ram);
            }
            sums.missing = live - tasks;
            if tasks > 0 {
                sums.samples += 1;
                sums.tasks = tasks;
                sums.cpu = sums.cpu.saturating_add(all.cpu);
                sums.most_ram = sums.most_ram.max(all.ram);
            }
        }
    }

    /// What the samples since the last report come to; `now` is log time.
    pub fn report(&mut self, state: &State, now: Time) -> Vec<Command> {
        let since = std::mem::replace(&mut self.reported_at, now);
        let sums = std::mem::take(&mut self.jobs);
        let loads: Vec<JobLoad> = scaled_jobs(state)
            .filter_map(|(id, job)| Some(load(state, id, job, sums.get(&id)?, since)))
            .collect();
        let commands = loads.chunks(JOBS_PER_COMMAND);
        commands.map(|loads| scaling::Command::Measure { loads: loads.to_vec() }.into()).collect()
    }
}

/// Live jobs with a policy.
fn scaled_jobs(state: &State) -> impl Iterator<Item = (JobId, &Job)> {
    state.jobs().iter().filter(|(_, job)| !job.is_dead() && job.spec().scale.is_some())
}

fn load(state: &State, id: JobId, job: &Job, sums: &Sums, since: Time) -> JobLoad {
    let spec = job.spec();
    let usage = Usage {
        tasks: sums.tasks,
        cpu: sums.cpu.checked_div(sums.samples).unwrap_or(0),
        ram: sums.most_ram,
    };
    let signals = spec.scale.as_ref().map(|policy| signals(policy, ScaleSize::of(spec), &usage));
    JobLoad {
        job: id,
        need: largest(&signals.unwrap_or_default()),
        missing: sums.missing,
        peak_cpu: sums.peak_cpu,
        peak_ram: sums.peak_ram,
        oom_limit: oom_limit(state, job, since),
    }
}

/// The largest limit at which a task of the job was killed for want of memory since `since`.
fn oom_limit(state: &State, job: &Job, since: Time) -> u64 {
    let rows = job.tasks.iter().filter_map(|task| state.tasks().get(*task));
    let limits = rows.filter_map(|row| {
        let end = row.last_end.as_ref().filter(|end| end.at > since)?;
        let killed = end.why == Reason::Exited(ExitClass::OutOfMemory);
        killed.then(|| job.spec_of(row.version).limits_of(row.index).ram)
    });
    limits.max().unwrap_or(0)
}
