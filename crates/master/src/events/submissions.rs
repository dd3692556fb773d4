//! What was submitted with an event of a job: the version and the spec, as far as everybody in the
//! cell may see it.
//!
//! In JSON, as the API shows it, and not in the encoding of the state: events are kept for longer
//! than any form of that, and history shows the text as it is. Rejected: the spec of the state as
//! history reads the event. It may be another version by then, or be gone.

use cellwright_cell::event::{Event, EventKind, JobChange};
use cellwright_cell::id::JobId;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use serde::{Deserialize, Serialize};

/// A version of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// Of the event, among those of its entry.
    pub position: u32,
    pub version: u32,
    /// The part of the spec that everybody may see, as JSON.
    pub spec: String,
}

/// The versions that the events of an entry brought; `state` is the one after it.
pub(super) fn submissions(events: &[Event], state: &State) -> Vec<Submission> {
    let submission = |(position, event): (usize, &Event)| {
        let EventKind::Job { job, change } = &event.kind else { return None };
        let (version, spec) = submitted_spec(*change, *job, state)?;
        let spec = serde_json::to_string(&spec.public_view()).ok()?;
        Some(Submission { position: u32::try_from(position).ok()?, version, spec })
    };
    events.iter().enumerate().filter_map(submission).collect()
}

/// Nothing for an event that brought none, and for a job that went with the same entry.
fn submitted_spec(change: JobChange, job: JobId, state: &State) -> Option<(u32, &JobSpec)> {
    let row = state.jobs().get(job)?;
    let version = match change {
        // The first there is: the same entry may have updated it.
        JobChange::Submitted => *row.specs.keys().next()?,
        JobChange::UpdateOpened { version } | JobChange::UpdateUndone { version } => version,
        JobChange::Resized { .. } => row.version,
        _ => return None,
    };
    Some((version, &**row.spec_of(version)))
}
