//! Compares two snapshots for equality. Interned numbers and the order of lists depend on how a
//! snapshot was made, so everything is compared by what it means. A scheduler can check its mirror
//! against a fresh snapshot with this; the tests do after every step.

use super::ClusterSnapshot;
use super::machines::NO_DOMAIN;
use super::rows::{JobRow, TaskRow};
use cellwright_cell::id::{JobId, TaskId};
use std::fmt::Debug;

/// The first difference between two snapshots.
type Comparison = Result<(), String>;

fn check_equal<T: PartialEq + Debug>(label: impl FnOnce() -> String, a: T, b: T) -> Comparison {
    if a == b { Ok(()) } else { Err(format!("{}: {a:?} against {b:?}", label())) }
}

fn sorted<T: Ord + Clone>(list: &[T]) -> Vec<T> {
    let mut list = list.to_vec();
    list.sort_unstable();
    list
}

impl ClusterSnapshot {
    /// Describes the first difference between this snapshot and `other`.
    ///
    /// # Errors
    /// The first difference found.
    pub fn compare_with(&self, other: &ClusterSnapshot) -> Result<(), String> {
        let machines = self.machines.len().max(other.machines.len());
        (0..machines).try_for_each(|m| self.compare_machine(other, m))?;
        check_equal(|| "pending tasks".into(), sorted(&self.pending), sorted(&other.pending))?;
        let tasks = self.tasks.len().max(other.tasks.len());
        (0..tasks).try_for_each(|t| self.compare_task(other, TaskId(t as u32)))?;
        let jobs = self.jobs.len().max(other.jobs.len());
        (0..jobs).try_for_each(|j| self.compare_job(other, JobId(j as u32), machines))?;
        let allocs = |snapshot: &ClusterSnapshot| -> Vec<_> {
            let rows = snapshot.allocs.iter();
            rows.map(|(id, a)| (*id, a.machine, a.set, a.room, sorted(&a.members))).collect()
        };
        check_equal(|| "allocs".into(), allocs(self), allocs(other))?;
        check_equal(|| "rooms held elsewhere".into(), &self.reserved, &other.reserved)?;
        check_equal(|| "places of gangs".into(), &self.gangs, &other.gangs)?;
        let sets = |snapshot: &ClusterSnapshot| -> Vec<_> {
            let sets = snapshot.alloc_sets.iter().filter(|(_, list)| !list.is_empty());
            sets.map(|(id, list)| (*id, list.clone())).collect()
        };
        check_equal(|| "alloc sets".into(), sets(self), sets(other))
    }

    fn compare_machine(&self, other: &ClusterSnapshot, m: usize) -> Comparison {
        let label = |part: &'static str| move || format!("machine {m}: {part}");
        let (a, b) = (&self.machines, &other.machines);
        check_equal(label("existence"), a.exists(m), b.exists(m))?;
        if !a.exists(m) {
            return Ok(());
        }
        check_equal(label("status"), a.status[m], b.status[m])?;
        check_equal(label("room"), a.room[m], b.room[m])?;
        check_equal(label("number of tasks"), a.task_counts[m], b.task_counts[m])?;
        let bounds = |snapshot: &ClusterSnapshot| {
            snapshot.machines.room_without_band.each_ref().map(|rooms| rooms[m])
        };
        check_equal(label("room without a band"), bounds(self), bounds(other))?;
        check_equal(label("capacity"), a.shape_of(m).capacity, b.shape_of(m).capacity)?;
        let attributes = |snapshot: &ClusterSnapshot| {
            snapshot.constraints.attributes(snapshot.machines.profile[m]).cloned()
        };
        check_equal(label("attributes"), attributes(self), attributes(other))?;
        let domain = |snapshot: &ClusterSnapshot, id: u32| {
            (id != NO_DOMAIN).then(|| snapshot.machines.domains.get(id).cloned())
        };
        check_equal(label("rack"), domain(self, a.rack[m]), domain(other, b.rack[m]))?;
        check_equal(label("power"), domain(self, a.power[m]), domain(other, b.power[m]))?;
        check_equal(label("retained disk"), a.retained_disk[m], b.retained_disk[m])?;
        check_equal(label("ports"), &a.ports[m], &b.ports[m])?;
        let devices = |snapshot: &ClusterSnapshot| -> Vec<_> {
            let slots = snapshot.machines.devices[m].iter();
            slots.map(|s| (snapshot.machines.device_kinds.get(s.kind).cloned(), s.used)).collect()
        };
        check_equal(label("devices"), devices(self), devices(other))?;
        check_equal(
            label("named resources"),
            self.named_resources_on(m),
            other.named_resources_on(m),
        )?;
        let packages = |snapshot: &ClusterSnapshot| {
            let ids = snapshot.machines.packages[m].iter();
            let mut all: Vec<_> =
                ids.filter_map(|id| snapshot.packages.get(*id).cloned()).collect();
            all.sort_unstable();
            all
        };
        check_equal(label("packages"), packages(self), packages(other))?;
        check_equal(label("lowest priority"), a.lowest_priority[m], b.lowest_priority[m])?;
        check_equal(label("holders"), sorted(&a.holders[m]), sorted(&b.holders[m]))
    }

    fn named_resources_on(&self, m: usize) -> Vec<(String, u64, u64)> {
        let rooms = self.machines.named[m].iter().filter(|(_, r)| r.capacity > 0 || r.used > 0);
        let mut named: Vec<_> = rooms
            .map(|(id, room)| {
                let name = self.resource_names.get(*id).map(ToString::to_string);
                (name.unwrap_or_default(), room.capacity, room.used)
            })
            .collect();
        named.sort_unstable();
        named
    }

    fn compare_task(&self, other: &ClusterSnapshot, task: TaskId) -> Comparison {
        let label = |part: &'static str| move || format!("task {}: {part}", task.0);
        check_equal(label("place"), self.placement_of(task), other.placement_of(task))?;
        check_equal(label("room elsewhere"), self.reserved_of(task), other.reserved_of(task))?;
        if self.placement_of(task).is_none() {
            return Ok(());
        }
        let info = |snapshot: &ClusterSnapshot| {
            let TaskRow {
                job, index, attempt, phase: holding, retained_on_exit: leaves_disk, ..
            } = snapshot.tasks[task.slot()];
            (job, index, attempt, holding, leaves_disk)
        };
        check_equal(label("facts"), info(self), info(other))?;
        check_equal(label("request"), self.describe_request(task), other.describe_request(task))
    }

    /// A request with every interned number replaced by what it stands for.
    fn describe_request(&self, task: TaskId) -> String {
        let mut request = self.class(self.tasks[task.slot()].class).request.clone();
        let named: Vec<_> =
            request.named.iter().map(|n| (self.resource_names.get(n.0), n.1)).collect();
        let list = request
            .constraints
            .map(|list| (self.constraints.constraints(list), self.constraints.host_volumes(list)));
        let mut packages: Vec<_> = request.packages.iter().map(|p| self.packages.get(*p)).collect();
        packages.sort_unstable();
        let interned = format!("{named:?} {list:?} {packages:?}");
        (request.named, request.constraints, request.packages) = (vec![], None, vec![]);
        format!("{request:?} {interned}")
    }

    fn compare_job(&self, other: &ClusterSnapshot, job: JobId, machines: usize) -> Comparison {
        let label = |part: &'static str| move || format!("job {}: {part}", job.0);
        let (a, b) = (self.job(job), other.job(job));
        check_equal(label("existence"), a.is_some(), b.is_some())?;
        let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
        let info =
            |row: &JobRow| (row.user, row.version, row.alloc_set, row.budget, row.in_transition);
        check_equal(label("facts"), info(a), info(b))?;
        check_equal(label("spec"), &a.spec, &b.spec)?;
        let counts = |snapshot: &ClusterSnapshot, row: &JobRow, m: usize| {
            let at = |counts: &Option<Box<super::rows::DomainCounts>>| {
                counts.as_ref().map_or([0u32; 4], |c| {
                    let domain = |id: u32| (id != NO_DOMAIN).then_some(id);
                    let (rack, power) = (snapshot.machines.rack[m], snapshot.machines.power[m]);
                    let rack = domain(rack).map_or(0, |id| c.rack.get(id));
                    let power = domain(power).map_or(0, |id| c.power.get(id));
                    [c.machine.get(m as u32), rack, power, c.cell]
                })
            };
            (at(&row.hard_spread_counts), at(&row.soft_spread_counts))
        };
        for m in (0..machines).filter(|m| self.machines.exists(*m)) {
            let label = || format!("job {}: tasks in the domains of machine {m}", job.0);
            check_equal(label, counts(self, a, m), counts(other, b, m))?;
        }
        Ok(())
    }
}
