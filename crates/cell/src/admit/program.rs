//! Checks that every task has a program: no package has a default command, so a task without one
//! fails wherever it is started.

use super::review::bad;
use super::{Review, override_path};
use crate::field::FieldPath;
use crate::reason::Allowed;
use crate::spec::{JobKind, JobSpec};

/// A rule for authors of jobs, not for the log, like [`super::has_memory_to_start`].
pub fn has_command(spec: &JobSpec, review: &mut Review) {
    if spec.kind == JobKind::AllocSet || !review.are_known(["kind"]) {
        return;
    }
    let (counted, listed) = (review.are_known(["count"]), review.are_known(["overrides"]));
    let mut check_command = |path: FieldPath, command: &[String]| {
        review.ensure(command.first().is_some_and(|program| !program.is_empty()), || {
            bad(path, format!("{command:?}"), Allowed::Program)
        });
    };
    let own = || spec.overrides.iter().filter_map(|(at, own)| Some((at, own.command.as_ref()?)));
    for (at, command) in own() {
        check_command(override_path(*at).field("command"), command);
    }
    // The common command is not run if every task has its own; it is needed as soon as one has
    // none.
    let overridden = own().count();
    if listed && (overridden == 0 || (counted && overridden < spec.count as usize)) {
        check_command("task.command".into(), &spec.task.command);
    }
}
