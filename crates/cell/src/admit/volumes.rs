//! Volumes of a job: that their paths mean one place, and that a task could see them there.

use super::Review;
use super::review::bad;
use crate::field::FieldPath;
use crate::isolation::Volume;
use crate::spec::JobSpec;

fn path_of(position: usize, field: &str) -> FieldPath {
    FieldPath::from("task.isolation.volumes").index(position).field(field)
}

/// A rule for what is asked anew, apart from [`super::well_formed`]: the machine of a job from
/// before it says the same when it is to start a task.
pub fn volumes_can_be_seen(spec: &JobSpec, review: &mut Review) {
    let asked = &spec.task.isolation;
    for (position, allowed) in asked.misplaced() {
        let target = asked.volumes.get(position).map(|volume| volume.target.as_str());
        let target = format!("{:?}", target.unwrap_or_default());
        review.reject(bad(path_of(position, "target"), target, allowed));
    }
}

/// Absolute, and nothing in it that leads elsewhere than it reads.
pub(super) fn volume(position: usize, volume: &Volume, review: &mut Review) {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    for (field, path) in [("source", &volume.source), ("target", &volume.target)] {
        let plain = path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part));
        review.ensure(plain && path.len() <= 4096 && !path.contains('\0'), || {
            bad(path_of(position, field), format!("{path:?}"), "absolute, as /srv/data, without ..")
        });
    }
}
