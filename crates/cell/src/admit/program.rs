//! That every task has a program: no package brings a command with it, so a task without one fails
//! wherever it is started.

use super::{Checked, bad, ensure};
use crate::spec::{JobKind, JobSpec};

/// A rule for those who write jobs, not for the log, as [`super::can_begin`] is: jobs from before
/// it, and the logs that made them, stay what they are.
///
/// # Errors
/// [`crate::reason::Refusal::BadField`] for the first command that names no program.
pub fn runs_a_program(spec: &JobSpec) -> Checked {
    if spec.kind == JobKind::AllocSet {
        return Ok(());
    }
    let names_one = |field: String, command: &[String]| {
        ensure(command.first().is_some_and(|program| !program.is_empty()), || {
            let allowed = "a program and its arguments, such as [\"sleep\", \"60\"]";
            bad(field, format!("{command:?}"), allowed)
        })
    };
    let own = || spec.overrides.iter().filter_map(|(at, own)| Some((at, own.command.as_ref()?)));
    for (at, command) in own() {
        names_one(format!("overrides.{at}.command"), command)?;
    }
    // Nobody runs the common one where every task has its own.
    match own().count() < spec.count as usize {
        true => names_one("task.command".to_owned(), &spec.task.command),
        false => Ok(()),
    }
}
