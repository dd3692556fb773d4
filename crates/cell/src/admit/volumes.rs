//! Volumes of a job: that their paths mean one place, and that a task could see them there.

use super::Review;
use super::review::field_error;
use crate::field::FieldPath;
use crate::isolation::Volume;
use crate::spec::JobSpec;

fn volume_path(position: usize, field: &str) -> FieldPath {
    FieldPath::from("task.isolation.volumes").index(position).field(field)
}

/// A rule for what is asked anew, apart from [`super::well_formed`]: the machine of a job from
/// before it says the same when it is to start a task.
pub fn volume_targets_are_valid(spec: &JobSpec, review: &mut Review) {
    let isolation = &spec.task.isolation;
    for (position, allowed) in isolation.invalid_volume_targets() {
        let target = isolation.volumes.get(position).map(|volume| volume.target.as_str());
        let target = format!("{:?}", target.unwrap_or_default());
        review.reject(field_error(volume_path(position, "target"), target, allowed));
    }
}

/// Absolute, and nothing in it that leads elsewhere than it reads.
pub(super) fn volume(position: usize, volume: &Volume, review: &mut Review) {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    for (field, path) in [("source", &volume.source), ("target", &volume.target)] {
        let plain = path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part));
        review.ensure(plain && path.len() <= 4096 && !path.contains('\0'), || {
            field_error(
                volume_path(position, field),
                format!("{path:?}"),
                "absolute, as /srv/data, without ..",
            )
        });
    }
}
