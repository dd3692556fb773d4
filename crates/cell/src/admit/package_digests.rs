//! Checks that every package is named by a digest that some content could have: with any other
//! digest a machine would search for it as long as the job lives.

use super::Review;
use super::review::bad;
use crate::field::FieldPath;
use crate::reason::Allowed;
use crate::spec::JobSpec;

/// Digits of a SHA-256.
const DIGITS: usize = 64;

/// A rule for authors of jobs, not for the log, like [`super::has_memory_to_start`].
pub fn package_digests_are_valid(spec: &JobSpec, review: &mut Review) {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    for (at, package) in spec.task.packages.iter().enumerate() {
        let digest = package.digest.as_str();
        review.ensure(digest.len() == DIGITS && digest.bytes().all(is_digit), || {
            let path = FieldPath::from("task.packages").index(at).field("digest");
            bad(path, digest, Allowed::PackageDigest)
        });
    }
}
