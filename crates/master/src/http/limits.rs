//! Limits at the door: what one request may ask for, as this cell's configuration says. They keep
//! a slip of the hand (a count with three zeros too many) out of the log. The log has bounds of its
//! own, which are the same everywhere; these are an operator's choice and may differ between
//! replicas while a new configuration is rolled out, so they are no rule of `apply`.

use super::Api;
use cellwright_api::error::ApiError;
use cellwright_cell::command::Command;

impl Api {
    /// Whether the command asks for no more than this cell lets in.
    pub(super) fn within_limits(&self, command: &Command) -> Result<(), ApiError> {
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
