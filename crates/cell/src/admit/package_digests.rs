//! That every package is named by a digest which some content could have: a machine looks for
//! another one as long as the job lives.

use super::Review;
use super::review::field_error;
use crate::field::FieldPath;
use crate::spec::JobSpec;

/// Digits of a SHA-256.
const DIGITS: usize = 64;

/// A rule for those who write jobs, not for the log, as [`super::can_begin`] is: jobs from before
/// it, and the logs that made them, stay what they are.
pub fn package_digests_are_valid(spec: &JobSpec, review: &mut Review) {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    for (at, package) in spec.task.packages.iter().enumerate() {
        let digest = package.digest.as_str();
        review.ensure(digest.len() == DIGITS && digest.bytes().all(is_digit), || {
            let allowed =
                format!("{DIGITS} digits 0-9 and a-f, as `cell package ls -o json` shows them");
            let path = FieldPath::from("task.packages").index(at).field("digest");
            field_error(path, digest, allowed)
        });
    }
}
