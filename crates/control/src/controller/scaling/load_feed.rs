//! From what agents report to what the rules of scaling ask: the usage of all tasks of a job,
//! looked at a few times a minute, becomes one row for each minute.
//!
//! Of CPU the mean counts, of memory the most: what is short of memory is killed, what is short of
//! CPU waits. A number that tasks tell counts where every running task told it; otherwise what was
//! told is a part of it, and the rules are told so. Soft state of the leading master: a new leader
//! begins a new minute.

use cellwright_cell::command::Command;
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::reason::Reason;
use cellwright_cell::resource::Resources;
use cellwright_cell::scale::{MetricSeries, MetricTarget, ScaleSize, Untold};
use cellwright_cell::scaling::{self, JobLoad};
use cellwright_cell::state::State;
use cellwright_cell::task::{ExitClass, TaskState};
use cellwright_cell::time::Time;
use cellwright_scale::need::{Usage, largest, signals};
use std::collections::BTreeMap;

/// Most jobs in one command.
const JOBS_PER_COMMAND: usize = 1000;

/// Sums over the samples of a minute.
/// What was told of one number.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Samples in which every running task told it, and the sum over them.
    complete: u32,
    sum: u128,
    /// Of the others the one in which most did: what they told, how many, of how many.
    part: u64,
    tasks: u32,
    of: u32,
}

impl Told {
    fn add(&mut self, part: u64, tasks: u32, of: u32) {
        if tasks == of {
            self.complete += u32::from(of > 0);
            self.sum += u128::from(part);
        } else if self.of == 0 || of - tasks <= self.of - self.tasks {
            (self.part, self.tasks, self.of) = (part, tasks, of);
        }
    }

    /// What all of them told on average, or a part of it. `None`: nobody told anything.
    fn load(&self) -> Option<u64> {
        match self.sum.checked_div(u128::from(self.complete)) {
            Some(mean) => Some(u64::try_from(mean).unwrap_or(u64::MAX)),
            None => (self.tasks > 0).then_some(self.part),
        }
    }

    fn untold(&self, metric: &MetricTarget) -> Option<Untold> {
        let (tasks, metric) = (self.of - self.tasks, metric.name.clone());
        (self.complete == 0 && tasks > 0).then_some(Untold { metric, tasks, of: self.of })
    }
}

#[derive(Clone, Debug, Default)]
struct Sums {
    samples: u64,
    cpu: u64,
    most_ram: u64,
    tasks: u32,
    missing: u32,
    peak_cpu: u64,
    peak_ram: u64,
    told: BTreeMap<MetricSeries, Told>,
}

#[derive(Debug, Default)]
pub struct LoadFeed {
    jobs: BTreeMap<JobId, Sums>,
    reported_at: Time,
}

impl LoadFeed {
    /// Adds one sample. `usage`: what an attempt of a task uses, if that was reported lately;
    /// `told`: thousandths of a number that it told lately.
    pub fn sample(
        &mut self,
        state: &State,
        usage: impl Fn(MachineId, TaskId, u32) -> Option<Resources>,
        told: impl Fn(MachineId, TaskId, u32, &MetricSeries) -> Option<u64>,
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
            sums.add_told(state, job, &told);
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

impl Sums {
    fn add_told(
        &mut self,
        state: &State,
        job: &Job,
        told: &impl Fn(MachineId, TaskId, u32, &MetricSeries) -> Option<u64>,
    ) {
        let Some(policy) = &job.spec().scale else { return };
        for series in policy.target.metrics.iter().map(MetricTarget::series) {
            let (mut sum, mut tasks, mut of) = (0_u64, 0, 0);
            let rows = job.tasks.iter().filter_map(|task| Some((task, state.tasks().get(*task)?)));
            for (task, row) in rows.filter(|(_, row)| row.state == TaskState::Running) {
                let Some(machine) = row.machine() else { continue };
                of += 1;
                if let Some(number) = told(machine, *task, row.attempt, &series) {
                    (sum, tasks) = (sum.saturating_add(number), tasks + 1);
                }
            }
            self.told.entry(series).or_default().add(sum, tasks, of);
        }
    }
}

/// Live jobs with a policy.
fn scaled_jobs(state: &State) -> impl Iterator<Item = (JobId, &Job)> {
    state.jobs().iter().filter(|(_, job)| !job.is_dead() && job.spec().scale.is_some())
}

fn load(state: &State, id: JobId, job: &Job, sums: &Sums, since: Time) -> JobLoad {
    let spec = job.spec();
    let targets = spec.scale.iter().flat_map(|policy| &policy.target.metrics);
    let told = |target: &MetricTarget| sums.told.get(&target.series()).copied();
    let numbers: Vec<(&MetricTarget, Told)> =
        targets.map(|target| (target, told(target).unwrap_or_default())).collect();
    let usage = Usage {
        tasks: sums.tasks,
        cpu: sums.cpu.checked_div(sums.samples).unwrap_or(0),
        ram: sums.most_ram,
        metrics: numbers.iter().map(|(_, told)| told.load()).collect(),
    };
    let untold = numbers.iter().filter_map(|(target, told)| told.untold(target));
    let untold = untold.max_by_key(|untold| untold.tasks);
    let signals = spec.scale.as_ref().map(|policy| signals(policy, ScaleSize::of(spec), &usage));
    JobLoad {
        job: id,
        need: largest(&signals.unwrap_or_default()),
        missing: sums.missing,
        peak_cpu: sums.peak_cpu,
        peak_ram: sums.peak_ram,
        oom_limit: oom_limit(state, job, since),
        untold,
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
