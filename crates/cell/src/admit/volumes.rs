//! Volumes of a job: that their paths mean one place, and that a task could see them there.

use super::{Checked, bad, ensure};
use crate::isolation::Volume;
use crate::spec::JobSpec;

/// A rule for what is asked anew, apart from [`super::check_job`]: the machine of a job from before
/// it says the same when it is to start a task.
///
/// # Errors
/// [`crate::reason::Refusal::BadField`] for a volume that no task could see where it is asked for.
pub fn volumes_can_be_seen(spec: &JobSpec) -> Checked {
    let asked = &spec.task.isolation;
    asked.misplaced().map_or(Ok(()), |(position, allowed)| {
        let target = asked.volumes.get(position).map(|volume| volume.target.as_str());
        let field = format!("task.isolation.volumes.{position}.target");
        Err(bad(field, format!("{:?}", target.unwrap_or_default()), allowed))
    })
}

/// Absolute, and nothing in it that leads elsewhere than it reads.
pub(super) fn volume(position: usize, volume: &Volume) -> Checked {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    for (field, path) in [("source", &volume.source), ("target", &volume.target)] {
        let plain = path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part));
        ensure(plain && path.len() <= 4096 && !path.contains('\0'), || {
            let field = format!("task.isolation.volumes.{position}.{field}");
            bad(field, format!("{path:?}"), "absolute, as /srv/data, without ..")
        })?;
    }
    Ok(())
}
