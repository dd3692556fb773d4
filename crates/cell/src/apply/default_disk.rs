//! The disk of tasks that say nothing of it (B3): the operator's default, written into the spec
//! when the job is admitted, so that it is charged, shown and kept like a limit that was asked
//! for.
//!
//! Rejected: filling it in at the API, which jobs of a schedule do not pass; counting it beside the
//! spec, which everybody who reads limits would have to remember. Tasks inside an alloc set share
//! what their alloc has, so the default is the alloc's.

use super::Context;
use crate::spec::JobSpec;
use std::borrow::Cow;

impl Context<'_> {
    /// The spec with the cell's default wherever it says nothing of disk.
    pub(super) fn with_default_disk<'s>(&self, spec: &'s JobSpec) -> Cow<'s, JobSpec> {
        let disk = self.state.bounds.default_disk;
        let mut own = spec.overrides.values().filter_map(|own| own.limits);
        let is_complete = spec.task.limits.disk > 0 && !own.any(|limits| limits.disk == Some(0));
        if disk == 0 || spec.alloc_set.is_some() || is_complete {
            return Cow::Borrowed(spec);
        }
        let mut spec = spec.clone();
        let limits = &mut spec.task.limits;
        limits.disk = if limits.disk == 0 { disk } else { limits.disk };
        // An override that names no disk has that of the job.
        let own = spec.overrides.values_mut().filter_map(|own| own.limits.as_mut());
        own.filter(|limits| limits.disk == Some(0)).for_each(|limits| limits.disk = Some(disk));
        Cow::Owned(spec)
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::bounds::Bounds;
    use crate::command::Command;
    use crate::priority::Band;
    use crate::spec::{LimitsOverride, TaskOverride};

    fn limited(disk: Option<u64>) -> TaskOverride {
        let limits = LimitsOverride { disk, ..LimitsOverride::default() };
        TaskOverride { limits: Some(limits), ..TaskOverride::default() }
    }

    #[test]
    fn what_says_nothing_of_disk_gets_the_default_and_is_charged_for_it() {
        let mut cell = Cell::with_machines(1);
        cell.ok(Command::SetBounds(Bounds { default_disk: 7, ..Bounds::default() }));
        let owner = || name("ubar");
        let mut spec = job("jfoo", 4, 100);
        spec.task.limits.disk = 0;
        spec.overrides.insert(1, limited(Some(3)));
        spec.overrides.insert(2, limited(Some(0)));
        spec.overrides.insert(3, limited(None));
        cell.ok(Command::SubmitJob { owner: owner(), spec: Box::new(spec.clone()) });
        let kept = |cell: &Cell| {
            let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
            let spec = cell.state.jobs().get(id).unwrap().spec().clone();
            [0, 1, 2, 3].map(|index| spec.limits_of(index).disk)
        };
        assert_eq!(kept(&cell), [7, 3, 7, 7]);
        let user = cell.state.user_named(&owner()).unwrap();
        let charged = cell.state.user_load(user).unwrap().charged[&Band::Batch];
        assert_eq!(charged.disk, 24);
        cell.run("jfoo", 0, "m1");
        let load = cell.state.machine_load(crate::id::MachineId(0)).unwrap();
        assert_eq!(load.reserved.disk, 7);
        // The same file again changes nothing.
        cell.ok(Command::ApplyJob {
            owner: owner(),
            spec: Box::new(spec.clone()),
            expect: None,
            again: false,
        });
        assert_eq!(kept(&cell), [7, 3, 7, 7]);
        spec.overrides.clear();
        cell.ok(Command::UpdateJob { owner: owner(), spec: Box::new(spec), expect: Some(1) });
        assert_eq!(kept(&cell), [7, 7, 7, 7]);
    }
}
