//! That every task has a program: no package brings a command with it, so a task without one fails
//! wherever it is started.

use super::review::bad;
use super::{Review, override_of};
use crate::field::FieldPath;
use crate::spec::{JobKind, JobSpec};

/// A rule for those who write jobs, not for the log, as [`super::can_begin`] is: jobs from before
/// it, and the logs that made them, stay what they are.
pub fn runs_a_program(spec: &JobSpec, review: &mut Review) {
    if spec.kind == JobKind::AllocSet || !review.knows(["kind"]) {
        return;
    }
    let (counted, listed) = (review.knows(["count"]), review.knows(["overrides"]));
    let mut names_one = |path: FieldPath, command: &[String]| {
        review.ensure(command.first().is_some_and(|program| !program.is_empty()), || {
            let allowed = "a program and its arguments, such as [\"sleep\", \"60\"]";
            bad(path, format!("{command:?}"), allowed)
        });
    };
    let own = || spec.overrides.iter().filter_map(|(at, own)| Some((at, own.command.as_ref()?)));
    for (at, command) in own() {
        names_one(override_of(*at).field("command"), command);
    }
    // Nobody runs the common one where every task has its own; some task does where none has.
    let overridden = own().count();
    if listed && (overridden == 0 || (counted && overridden < spec.count as usize)) {
        names_one("task.command".into(), &spec.task.command);
    }
}
