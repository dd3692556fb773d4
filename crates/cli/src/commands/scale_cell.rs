//! `cell scale --cell`: how large the cell would have to be for its scaled jobs. It starts no
//! machines; whoever does can ask this.

use super::pagination;
use crate::connection::Cell;
use crate::failure::Failure;
use crate::format;
use crate::table;
use cellwright_api::client::JobFilter;
use cellwright_api::types::JobView;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::JobKey;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::scale::{ScalePolicy, ScaleSize};
use cellwright_cell::units::{Rounding, amount};
use serde::Serialize;

/// Sums of limits in milli-cores and bytes.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct CellDemand {
    /// Scaled jobs that live.
    pub scaled_jobs: u64,
    /// Machines that are up and not drained, and what they have.
    pub machines: u64,
    pub capacity: Resources,
    /// Limits of all tasks as they are, as the rules ask for now, and with every scaled job at its
    /// largest.
    pub now: Resources,
    pub want: Resources,
    pub largest: Resources,
    /// Machines like the average of those that it has, for the last two.
    pub machines_for_want: u64,
    pub machines_for_largest: u64,
}

impl CellDemand {
    pub async fn fetch(cell: &Cell) -> Result<CellDemand, Failure> {
        let live = JobFilter { state: Some("live".into()), ..JobFilter::default() };
        let mut demand = CellDemand::default();
        for job in pagination::jobs(cell, &live).await? {
            // What runs inside an alloc has its room from it.
            if job.spec.alloc_set.is_some() {
                continue;
            }
            let want = match &job.spec.scale {
                Some(_) => {
                    let key = JobKey { user: job.user.clone(), job: job.name.clone() };
                    // One that ended meanwhile asks for nothing more.
                    cell.client.scale(&key).await.ok().map(|view| view.value.item.want_size)
                }
                None => None,
            };
            demand.add_job(&job, want);
        }
        let machines = pagination::machines(cell).await?;
        let usable = machines.iter().filter(|m| m.status == MachineStatus::Up && !m.draining);
        for machine in usable {
            demand.machines += 1;
            demand.capacity = demand.capacity.plus(machine.spec.capacity);
        }
        demand.machines_for_want = demand.machines_for(demand.want);
        demand.machines_for_largest = demand.machines_for(demand.largest);
        Ok(demand)
    }

    fn add_job(&mut self, job: &JobView, want: Option<ScaleSize>) {
        let now = job.spec.total_limits();
        let sized = |size: ScaleSize| {
            let mut spec = job.spec.clone();
            (spec.task.limits.cpu, spec.task.limits.ram) = (size.cpu, size.ram);
            spec.count = size.count;
            spec.total_limits()
        };
        self.now = self.now.plus(now);
        self.want = self.want.plus(want.map_or(now, sized));
        let largest = job.spec.scale.as_ref().map(|policy| largest(policy, &job.spec.task.limits));
        self.scaled_jobs += u64::from(largest.is_some());
        self.largest = self.largest.plus(largest.map_or(now, sized));
    }

    /// So many average machines have room for the sum, if nothing is left over on any.
    fn machines_for(&self, sum: Resources) -> u64 {
        let count = |of: fn(Resources) -> u64| {
            let needed = u128::from(of(sum)) * u128::from(self.machines);
            let all = u128::from(of(self.capacity)).max(1);
            u64::try_from(needed.div_ceil(all)).unwrap_or(u64::MAX)
        };
        count(|sum: Resources| sum.cpu).max(count(|sum: Resources| sum.ram))
    }

    pub fn render(&self) -> String {
        let row = |name: &str, sum: Resources, machines: u64| {
            let of = |dimension| amount(dimension, sum.get(dimension), Rounding::Up);
            vec![name.to_owned(), of(Dimension::Cpu), of(Dimension::Ram), machines.to_string()]
        };
        let rows = [
            row("capacity", self.capacity, self.machines),
            row("limits of all tasks", self.now, self.machines_for(self.now)),
            row("as the rules ask for", self.want, self.machines_for_want),
            row("scaled jobs at their largest", self.largest, self.machines_for_largest),
        ];
        let mut out = format!("{}\n\n", format::pluralize(self.scaled_jobs, "scaled job"));
        out.push_str(&table::render(&["", "cpu", "ram", "machines"], &rows));
        out
    }
}

/// A job at its largest.
fn largest(policy: &ScalePolicy, limits: &Resources) -> ScaleSize {
    ScaleSize {
        count: policy.max,
        cpu: policy.vertical.cpu.map_or(limits.cpu, |range| range.max),
        ram: policy.vertical.ram.map_or(limits.ram, |range| range.max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_counted_by_what_is_scarcer() {
        let demand = CellDemand {
            machines: 2,
            capacity: Resources::new(8000, 16, 0, 0),
            ..CellDemand::default()
        };
        assert_eq!(demand.machines_for(Resources::new(4000, 1, 0, 0)), 1);
        assert_eq!(demand.machines_for(Resources::new(4001, 1, 0, 0)), 2);
        assert_eq!(demand.machines_for(Resources::new(1, 33, 0, 0)), 5);
        assert_eq!(CellDemand::default().machines_for(Resources::new(5, 5, 0, 0)), 0);
    }
}
