//! Scaling of jobs (B42): measured, decided, handed over, forgotten.
//!
//! A decision is carried out as a resize in the name of the job's owner: what the owner may not
//! have, the cell does not take for them.

use super::{Event, JobLoad, MeasuredNeed, Scaling, ScalingChange, ScalingId};
use crate::apply::Context;
use crate::command::{Done, Verdict};
use crate::id::JobId;
use crate::job::Job;
use crate::job_size::JobSize;
use crate::name::JobKey;
use crate::reason::{Allowed, Conflict, Given, Reason, Rejection, Storage};
use crate::scale::{Decision, LimitRange, MAX_NEED, ScaleMemory, ScalePolicy, ScaleSize};

impl Context<'_> {
    /// Jobs that have ended or have no policy meanwhile are passed over.
    pub(super) fn measure_jobs(&mut self, loads: &[JobLoad]) -> Verdict {
        let mut measured = 0;
        for load in loads {
            measured += u64::from(self.remember_load(load));
        }
        Ok(if measured > 0 { Done::Applied } else { Done::Unchanged })
    }

    /// Whether anything is known now that was not.
    fn remember_load(&mut self, load: &JobLoad) -> bool {
        let known = self.state.scaling_of(load.job).map(|(_, row)| row.clone());
        let basis = self.scaled_job(load.job).map(|(job, policy)| policy.basis(job.spec()));
        let Some((basis, id)) = basis.zip(self.scaling_row(load.job)) else { return false };
        let now = self.now;
        self.state.edit_scaling(id, |row| {
            if row.basis != basis {
                row.basis = basis;
                row.memory.forget_load();
            }
            row.measured = load.need.as_ref().map(|(by, need)| {
                let (by, need) = (by.clone(), (*need).min(MAX_NEED));
                MeasuredNeed { at: now, by, need, missing: load.missing }
            });
            row.untold.clone_from(&load.untold);
            // A part of what was needed is nothing to compare later needs with.
            if let (Some((_, need)), None) = (&load.need, &load.untold) {
                row.memory.remember_need(now, *need);
            }
            row.memory.remember_peak(now, load.peak_cpu, load.peak_ram, load.oom_limit);
        });
        let is_new = self.state.scaling_of(load.job).map(|(_, row)| row) != known.as_ref();
        if is_new {
            let change = ScalingChange::Measured { need: load.need.clone() };
            self.scaling_event(id, load.job, change, Reason::Measured);
        }
        is_new
    }

    /// A decision about a job that is another one meanwhile is no decision any more.
    pub(super) fn scale_job(&mut self, job: JobId, decision: &Decision) -> Verdict {
        let Some((row, policy)) = self.scaled_job(job) else { return Ok(Done::Unchanged) };
        let stale = ScaleSize::of(row.spec()) != decision.from || decision.at > self.now;
        let by_owner = decision.changes_size()
            && (policy.advise || self.state.scaling_of(job).is_some_and(|(_, row)| row.manual));
        let Some((id, known)) = self.state.scaling_of(job).filter(|_| !stale && !by_owner) else {
            return Ok(Done::Unchanged);
        };
        if known.decision.as_ref().is_some_and(|last| !decision.differs_from(last)) {
            return Ok(Done::Unchanged);
        }
        check_bounds(policy, decision)?;
        if decision.changes_size() {
            let Some(key) = self.state.job_key(job) else { return Ok(Done::Unchanged) };
            self.take_size(&key, decision.from, decision.to)?;
        }
        let (now, made) = (self.now, decision.clone());
        self.state.edit_scaling(id, |row| {
            row.memory.remember_change(now, made.from, made.to);
            row.decision = Some(made);
        });
        let change = ScalingChange::Decided { decision: decision.clone() };
        self.scaling_event(id, job, change, Reason::Scaled);
        Ok(Done::Applied)
    }

    /// The one place where a size becomes that of the job.
    fn take_size(&mut self, key: &JobKey, from: ScaleSize, to: ScaleSize) -> Verdict {
        let size = JobSize {
            count: (to.count != from.count).then_some(to.count),
            cpu: (to.cpu != from.cpu).then_some(to.cpu),
            ram: (to.ram != from.ram).then_some(to.ram),
            disk: None,
            disk_rate: None,
        };
        self.as_user(&key.user, |context| context.resize_job(key, &size, None))
    }

    pub(super) fn set_scale_mode(&mut self, key: &JobKey, manual: bool) -> Verdict {
        let (id, _) = self.job_to_change(key)?;
        if self.scaled_job(id).is_none() {
            return Err(Rejection::WrongState(Conflict::NotScaled(key.clone())));
        }
        if self.state.scaling_of(id).map_or(!manual, |(_, row)| row.manual == manual) {
            return Ok(Done::Unchanged);
        }
        let Some(row) = self.scaling_row(id) else {
            return Err(Rejection::Full(Storage::Scalings));
        };
        self.hand_over(row, id, manual);
        Ok(Done::Applied)
    }

    /// Somebody has chosen the size of a scaled job: it is theirs to choose from now on.
    pub(crate) fn sized_by_hand(&mut self, job: JobId) {
        if self.state.scaling_of(job).is_some_and(|(_, row)| row.manual) {
            return;
        }
        if let Some(row) = self.scaling_row(job) {
            self.hand_over(row, job, true);
        }
    }

    fn hand_over(&mut self, id: ScalingId, job: JobId, manual: bool) {
        self.state.edit_scaling(id, |row| row.manual = manual);
        self.scaling_event(id, job, ScalingChange::ModeChanged { manual }, Reason::Requested);
    }

    pub(super) fn forget_scaling(&mut self, job: JobId) -> Verdict {
        let known = self.state.scaling_of(job).map(|(id, _)| id);
        let Some(id) = known.filter(|_| self.scaled_job(job).is_none()) else {
            return Ok(Done::Unchanged);
        };
        self.state.drop_scaling(id);
        self.scaling_event(id, job, ScalingChange::Forgotten, Reason::NotScaled);
        Ok(Done::Applied)
    }

    /// A live job with a policy.
    fn scaled_job(&self, job: JobId) -> Option<(&Job, &ScalePolicy)> {
        let row = self.state.jobs.get(job).filter(|row| !row.is_dead())?;
        Some((row, row.spec().scale.as_ref()?))
    }

    /// The row of a scaled job, which it gets when it has none.
    fn scaling_row(&mut self, job: JobId) -> Option<ScalingId> {
        let basis = self.scaled_job(job).map(|(row, policy)| policy.basis(row.spec()))?;
        if let Some((id, _)) = self.state.scaling_of(job) {
            return Some(id);
        }
        if !self.state.components.scaling.scalings.has_room_for(1) {
            return None;
        }
        Some(self.state.insert_scaling(Scaling {
            job,
            manual: false,
            basis,
            memory: ScaleMemory::default(),
            measured: None,
            decision: None,
            untold: None,
        }))
    }

    fn scaling_event(
        &mut self,
        scaling: ScalingId,
        job: JobId,
        change: ScalingChange,
        reason: Reason,
    ) {
        self.emit(Event { scaling, job, change }, reason);
    }
}

/// Whoever decides: no size is taken beyond the bounds of the policy, but on the way back to them.
fn check_bounds(policy: &ScalePolicy, decision: &Decision) -> Result<(), Rejection> {
    let Decision { from, to, .. } = decision;
    let allowed = from.count.min(policy.min)..=from.count.max(policy.max);
    if !allowed.contains(&to.count) {
        let allowed = Allowed::range(*allowed.start(), *allowed.end());
        return Err(Rejection::bad_field("to.count", Given::text(to.count), allowed));
    }
    let vertical = policy.vertical;
    let limits = [
        ("to.cpu", from.cpu, to.cpu, vertical.cpu.map(LimitRange::from)),
        ("to.ram", from.ram, to.ram, vertical.ram.map(LimitRange::from)),
    ];
    for (field, from, to, range) in limits {
        let LimitRange { min, max } = range.unwrap_or(LimitRange { min: from, max: from });
        if to != from && !(min..=max).contains(&to) {
            return Err(Rejection::bad_field(field, Given::text(to), Allowed::range(min, max)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
