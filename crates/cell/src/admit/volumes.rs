//! Checks of a job's volumes: their paths are unambiguous, and a task could see them there.

use super::Review;
use super::review::bad;
use crate::field::FieldPath;
use crate::isolation::Volume;
use crate::reason::Allowed;
use crate::spec::JobSpec;

fn volume_path(position: usize, field: &str) -> FieldPath {
    FieldPath::from("task.isolation.volumes").index(position).field(field)
}

/// No target hides what every task has, or is hidden itself.
pub(super) fn targets(spec: &JobSpec, review: &mut Review) {
    let isolation = &spec.task.isolation;
    for (position, flaw) in isolation.invalid_volume_targets() {
        let target = isolation.volumes.get(position).map(|volume| volume.target.as_str());
        let target = format!("{:?}", target.unwrap_or_default());
        review.reject(bad(volume_path(position, "target"), target, Allowed::Target(flaw)));
    }
}

/// The path is absolute and has no segments that lead elsewhere.
pub(super) fn volume(position: usize, volume: &Volume, review: &mut Review) {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    for (field, path) in [("source", &volume.source), ("target", &volume.target)] {
        let plain = path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part));
        review.ensure(plain && path.len() <= 4096 && !path.contains('\0'), || {
            bad(volume_path(position, field), format!("{path:?}"), Allowed::AbsolutePath)
        });
    }
}
