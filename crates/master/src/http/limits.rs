//! The door: what is kept out of the log though it could be in it. The log has rules of its own,
//! which are the same everywhere and for ever; those here are no rules of `apply`. Some are an
//! operator's choice and may differ between replicas while a new configuration is rolled out: they
//! keep a slip of the hand (a count with three zeros too many) out. Others came after logs that do
//! not keep them: what runs no program, or a package that cannot be, is refused whoever writes it,
//! and jobs from before stay.

use super::Api;
use cellwright_api::error::ApiError;
use cellwright_cell::admit;
use cellwright_cell::command::Command;
use cellwright_cell::reason::Refusal;
use cellwright_cell::spec::JobSpec;

impl Api {
    /// Whether the command asks for what this cell lets in.
    pub(super) fn within_limits(&self, command: &Command) -> Result<(), ApiError> {
        can_ever_run(command)?;
        let (field, count) = match command {
            Command::SubmitJob { spec, .. } | Command::UpdateJob { spec, .. } => {
                ("count", spec.count)
            }
            Command::ResizeJob { count, .. } => ("count", *count),
            Command::SetCron { spec, .. } => ("job.count", spec.job.count),
            _ => return Ok(()),
        };
        let most = self.settings.tasks_per_job;
        if count <= most {
            return Ok(());
        }
        let allowed = format!("at most {most}, the tasks_per_job of this master");
        Err(ApiError::field(field, &count.to_string(), &allowed).with("limit", most))
    }
}

fn can_ever_run(command: &Command) -> Result<(), Refusal> {
    let checked =
        |spec: &JobSpec| admit::runs_a_program(spec).and_then(|()| admit::digests_are_whole(spec));
    match command {
        Command::SubmitJob { spec, .. } | Command::UpdateJob { spec, .. } => checked(spec),
        Command::SetCron { spec, .. } => checked(&spec.job).map_err(|refusal| match refusal {
            Refusal::BadField { field, value, allowed } => {
                Refusal::BadField { field: format!("job.{field}"), value, allowed }
            }
            other => other,
        }),
        _ => Ok(()),
    }
}
