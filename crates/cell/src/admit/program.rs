//! That every task has a program: no package brings a command with it, so a task without one fails
//! wherever it is started.

use super::review::field_error;
use super::{Review, override_path};
use crate::field::FieldPath;
use crate::spec::{JobKind, JobSpec};

/// A rule for those who write jobs, not for the log, as [`super::can_begin`] is: jobs from before
/// it, and the logs that made them, stay what they are.
pub fn has_command(spec: &JobSpec, review: &mut Review) {
    if spec.kind == JobKind::AllocSet || !review.are_known(["kind"]) {
        return;
    }
    let (counted, listed) = (review.are_known(["count"]), review.are_known(["overrides"]));
    let mut check_command = |path: FieldPath, command: &[String]| {
        review.ensure(command.first().is_some_and(|program| !program.is_empty()), || {
            let allowed = "a program and its arguments, such as [\"sleep\", \"60\"]";
            field_error(path, format!("{command:?}"), allowed)
        });
    };
    let own = || spec.overrides.iter().filter_map(|(at, own)| Some((at, own.command.as_ref()?)));
    for (at, command) in own() {
        check_command(override_path(*at).field("command"), command);
    }
    // Nobody runs the common one where every task has its own; some task does where none has.
    let overridden = own().count();
    if listed && (overridden == 0 || (counted && overridden < spec.count as usize)) {
        check_command("task.command".into(), &spec.task.command);
    }
}
