//! CPU affinity of tasks. A latency-sensitive task can reserve whole cores: others of its kind keep
//! off them, batch does not, because it yields at once.

use super::{Action, MachineSample, ResourceControl, TaskSample};
use crate::cpus::CpuList;
use cellwright_cell::id::Attempt;
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl ResourceControl {
    pub(super) fn share_cores(
        &mut self,
        machine: &MachineSample,
        tasks: &[&TaskSample],
        actions: &mut Vec<Action>,
    ) {
        self.assign(machine, tasks, actions);
        let all = joined(machine.cores.iter());
        let reserved = joined(self.reserved_cores.values().flatten());
        let unreserved = all.without(&reserved);
        for sample in tasks {
            let cpus = match self.reserved_cores.get(&sample.attempt) {
                Some(cores) => joined(cores.iter()),
                None if sample.is_batch() => all.clone(),
                None => unreserved.clone(),
            };
            // A task without a setting runs anywhere, as most should.
            if self.cpus.get(&sample.attempt).unwrap_or(&all) != &cpus {
                self.cpus.insert(sample.attempt, cpus.clone());
                actions.push(Action::RunOn { attempt: sample.attempt, cpus });
            }
        }
    }

    /// Keeps reserved cores, and assigns free ones from the last core down, highest priority first.
    /// One core always stays for tasks without reservations.
    fn assign(
        &mut self,
        machine: &MachineSample,
        tasks: &[&TaskSample],
        actions: &mut Vec<Action>,
    ) {
        let mut wanting: Vec<&&TaskSample> =
            tasks.iter().filter(|task| !task.is_batch() && task.whole_cores > 0).collect();
        wanting.sort_by_key(|task| (Reverse(task.priority), task.attempt));
        let reserved = std::mem::take(&mut self.reserved_cores);
        let kept_cores = |task: &&&TaskSample| {
            let cores = reserved.get(&task.attempt)?;
            let present = cores.iter().all(|core| machine.cores.contains(core));
            (present && cores.len() == task.whole_cores as usize)
                .then(|| (task.attempt, cores.clone()))
        };
        let mut owned: BTreeMap<Attempt, Vec<CpuList>> =
            wanting.iter().filter_map(kept_cores).collect();
        let mut free: Vec<CpuList> = machine.cores.iter().skip(1).cloned().collect();
        free.retain(|core| !owned.values().flatten().any(|reserved| reserved == core));
        for task in wanting {
            if owned.contains_key(&task.attempt) {
                self.rejected_reservations.remove(&task.attempt);
                continue;
            }
            let requested = task.whole_cores as usize;
            if requested <= free.len() {
                owned.insert(task.attempt, free.split_off(free.len() - requested));
                self.rejected_reservations.remove(&task.attempt);
                continue;
            }
            let (requested_cores, left) =
                (task.whole_cores, u32::try_from(free.len()).unwrap_or(u32::MAX));
            if self.rejected_reservations.insert(task.attempt, (requested_cores, left))
                != Some((requested_cores, left))
            {
                let attempt = task.attempt;
                actions.push(Action::NoFreeCores {
                    attempt,
                    requested: requested_cores,
                    free: left,
                });
            }
        }
        self.reserved_cores = owned;
    }
}

fn joined<'a>(cores: impl Iterator<Item = &'a CpuList>) -> CpuList {
    CpuList::new(cores.flat_map(|core| core.as_slice().iter().copied()).collect())
}
