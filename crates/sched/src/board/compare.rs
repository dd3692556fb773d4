//! Whether two boards say the same. Interned numbers and the order of lists depend on the way a
//! board was made, so everything is compared by what it means. A scheduler can check its mirror
//! against a fresh one with this; the tests do after every step.

use super::Board;
use super::machines::NO_DOMAIN;
use super::rows::{JobRow, TaskRow};
use cellwright_cell::id::{JobId, TaskId};
use std::fmt::Debug;

/// The first thing two boards disagree on.
type Difference = Result<(), String>;

fn equal<T: PartialEq + Debug>(what: impl FnOnce() -> String, a: T, b: T) -> Difference {
    if a == b { Ok(()) } else { Err(format!("{}: {a:?} against {b:?}", what())) }
}

fn sorted<T: Ord + Clone>(list: &[T]) -> Vec<T> {
    let mut list = list.to_vec();
    list.sort_unstable();
    list
}

impl Board {
    /// Where this board and `other` differ first, in words.
    ///
    /// # Errors
    /// The first difference found.
    pub fn same_as(&self, other: &Board) -> Result<(), String> {
        let machines = self.machines.len().max(other.machines.len());
        (0..machines).try_for_each(|m| self.same_machine(other, m))?;
        equal(|| "pending tasks".into(), sorted(&self.pending), sorted(&other.pending))?;
        let tasks = self.tasks.len().max(other.tasks.len());
        (0..tasks).try_for_each(|t| self.same_task(other, TaskId(t as u32)))?;
        let jobs = self.jobs.len().max(other.jobs.len());
        (0..jobs).try_for_each(|j| self.same_job(other, JobId(j as u32), machines))?;
        let allocs = |board: &Board| -> Vec<_> {
            let rows = board.allocs.iter();
            rows.map(|(id, a)| (*id, a.machine, a.set, a.room, sorted(&a.members))).collect()
        };
        equal(|| "allocs".into(), allocs(self), allocs(other))?;
        equal(|| "rooms held elsewhere".into(), &self.reserved, &other.reserved)?;
        let sets = |board: &Board| -> Vec<_> {
            let sets = board.sets.iter().filter(|(_, list)| !list.is_empty());
            sets.map(|(id, list)| (*id, list.clone())).collect()
        };
        equal(|| "alloc sets".into(), sets(self), sets(other))
    }

    fn same_machine(&self, other: &Board, m: usize) -> Difference {
        let what = |part: &'static str| move || format!("machine {m}: {part}");
        let (a, b) = (&self.machines, &other.machines);
        equal(what("existence"), a.exists(m), b.exists(m))?;
        if !a.exists(m) {
            return Ok(());
        }
        equal(what("status"), a.status[m], b.status[m])?;
        equal(what("room"), a.room[m], b.room[m])?;
        equal(what("number of tasks"), a.tasks[m], b.tasks[m])?;
        let bounds = |board: &Board| board.machines.without_band.each_ref().map(|rooms| rooms[m]);
        equal(what("room without a band"), bounds(self), bounds(other))?;
        equal(what("capacity"), a.shape_of(m).capacity, b.shape_of(m).capacity)?;
        let attributes =
            |board: &Board| board.constraints.attributes(board.machines.profile[m]).cloned();
        equal(what("attributes"), attributes(self), attributes(other))?;
        let domain = |board: &Board, id: u32| {
            (id != NO_DOMAIN).then(|| board.machines.domains.get(id).cloned())
        };
        equal(what("rack"), domain(self, a.rack[m]), domain(other, b.rack[m]))?;
        equal(what("power"), domain(self, a.power[m]), domain(other, b.power[m]))?;
        equal(what("retained disk"), a.retained[m], b.retained[m])?;
        equal(what("ports"), &a.ports[m], &b.ports[m])?;
        let devices = |board: &Board| -> Vec<_> {
            let slots = board.machines.devices[m].iter();
            slots.map(|s| (board.machines.device_kinds.get(s.kind).cloned(), s.used)).collect()
        };
        equal(what("devices"), devices(self), devices(other))?;
        equal(what("named resources"), self.named_on(m), other.named_on(m))?;
        let packages = |board: &Board| {
            let ids = board.machines.packages[m].iter();
            let mut all: Vec<_> = ids.filter_map(|id| board.packages.get(*id).cloned()).collect();
            all.sort_unstable();
            all
        };
        equal(what("packages"), packages(self), packages(other))?;
        equal(what("lowest priority"), a.lowest[m], b.lowest[m])?;
        equal(what("holders"), sorted(&a.holders[m]), sorted(&b.holders[m]))
    }

    fn named_on(&self, m: usize) -> Vec<(String, u64, u64)> {
        let rooms = self.machines.named[m].iter().filter(|(_, r)| r.capacity > 0 || r.used > 0);
        let mut named: Vec<_> = rooms
            .map(|(id, room)| {
                let name = self.names.get(*id).map(ToString::to_string);
                (name.unwrap_or_default(), room.capacity, room.used)
            })
            .collect();
        named.sort_unstable();
        named
    }

    fn same_task(&self, other: &Board, task: TaskId) -> Difference {
        let what = |part: &'static str| move || format!("task {}: {part}", task.0);
        equal(what("place"), self.place_of(task), other.place_of(task))?;
        equal(what("room elsewhere"), self.reserved_of(task), other.reserved_of(task))?;
        if self.place_of(task).is_none() {
            return Ok(());
        }
        let facts = |board: &Board| {
            let TaskRow { job, index, attempt, holding, leaves_disk, .. } =
                board.tasks[task.slot()];
            (job, index, attempt, holding, leaves_disk)
        };
        equal(what("facts"), facts(self), facts(other))?;
        equal(what("request"), self.request_in_words(task), other.request_in_words(task))
    }

    /// A request with every interned number replaced by what it stands for.
    fn request_in_words(&self, task: TaskId) -> String {
        let mut request = self.class(self.tasks[task.slot()].class).request.clone();
        let named: Vec<_> = request.named.iter().map(|n| (self.names.get(n.0), n.1)).collect();
        let list = request
            .constraints
            .map(|list| (self.constraints.constraints(list), self.constraints.loans(list)));
        let mut packages: Vec<_> = request.packages.iter().map(|p| self.packages.get(*p)).collect();
        packages.sort_unstable();
        let words = format!("{named:?} {list:?} {packages:?}");
        (request.named, request.constraints, request.packages) = (vec![], None, vec![]);
        format!("{request:?} {words}")
    }

    fn same_job(&self, other: &Board, job: JobId, machines: usize) -> Difference {
        let what = |part: &'static str| move || format!("job {}: {part}", job.0);
        let (a, b) = (self.job(job), other.job(job));
        equal(what("existence"), a.is_some(), b.is_some())?;
        let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
        let facts = |row: &JobRow| (row.user, row.version, row.alloc_set, row.budget, row.absent);
        equal(what("facts"), facts(a), facts(b))?;
        equal(what("spec"), &a.spec, &b.spec)?;
        let counts = |board: &Board, row: &JobRow, m: usize| {
            let at = |counts: &Option<Box<super::rows::DomainCounts>>| {
                counts.as_ref().map_or([0u32; 3], |c| {
                    let domain = |id: u32| (id != NO_DOMAIN).then_some(id);
                    let (rack, power) = (board.machines.rack[m], board.machines.power[m]);
                    let rack = domain(rack).map_or(0, |id| c.rack.get(id));
                    let power = domain(power).map_or(0, |id| c.power.get(id));
                    [c.machine.get(m as u32), rack, power]
                })
            };
            (at(&row.strict), at(&row.soft))
        };
        for m in (0..machines).filter(|m| self.machines.exists(*m)) {
            let what = || format!("job {}: tasks in the domains of machine {m}", job.0);
            equal(what, counts(self, a, m), counts(other, b, m))?;
        }
        Ok(())
    }
}
