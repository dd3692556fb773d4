//! Admission limits: what is kept out of the log though it would be valid in it. The log has rules
//! of its own, which are the same everywhere and for ever; these are not rules of `apply`. Some are
//! an operator's choice and may differ between replicas while a new configuration is rolled out:
//! they stop typing errors (a count with three zeros too many). Others are about what only machines
//! can tell: the cell itself works as well with a spec that runs no program, or with a package that
//! cannot exist, but whoever submits one is told.

use super::Api;
use cellwright_api::error::{ApiError, Code};
use cellwright_cell::admit::{self, FieldError};
use cellwright_cell::command::Command;
use cellwright_cell::components::{
    self,
    cron::{self, CronSpec},
};
use cellwright_cell::field::FieldSet;
use cellwright_cell::reason::{FieldName, Rejection};
use cellwright_cell::spec::JobSpec;
use serde_json::{Value, json};

impl Api {
    /// Whether the command is within the limits of this cell.
    pub(super) fn check_limits(&self, command: &Command) -> Result<(), ApiError> {
        check_runnable(command)
            .map_err(|rejection| FieldErrors::of(command).attach_to(ApiError::from(&rejection)))?;
        let (field, count) = match command {
            Command::SubmitJob { spec, .. }
            | Command::UpdateJob { spec, .. }
            | Command::ApplyJob { spec, .. } => ("count", spec.count),
            Command::ResizeJob { size, .. } => ("count", size.count.unwrap_or(0)),
            other => match cron_spec(other) {
                Some(spec) => ("job.count", spec.job.count),
                None => return Ok(()),
            },
        };
        let max_tasks = self.config.tasks_per_job;
        if count <= max_tasks {
            return Ok(());
        }
        let allowed = format!("at most {max_tasks}, the tasks_per_job of this master");
        let error = ApiError::field(field, &count.to_string(), &allowed).with("limit", max_tasks);
        Err(FieldErrors::of(command).attach_to(error))
    }
}

fn check_runnable(command: &Command) -> Result<(), Rejection> {
    let checked = |spec: &JobSpec| {
        admit::check(spec, admit::has_command)?;
        admit::check(spec, admit::package_digests_are_valid)
    };
    match command {
        Command::SubmitJob { spec, .. }
        | Command::UpdateJob { spec, .. }
        | Command::ApplyJob { spec, .. } => checked(spec),
        other => match cron_spec(other) {
            Some(spec) => checked(&spec.job).map_err(|rejection| match rejection {
                Rejection::BadField { field, value, allowed } => {
                    let field = FieldName { path: format!("job.{}", field.path), ..field };
                    Rejection::BadField { field, value, allowed }
                }
                other => other,
            }),
            None => Ok(()),
        },
    }
}

/// The periodic job in a command.
fn cron_spec(command: &Command) -> Option<&CronSpec> {
    match command {
        Command::Component(components::Command::Cron(cron::Command::Set { spec, .. })) => {
            Some(spec)
        }
        _ => None,
    }
}

/// Limit of field errors in one answer.
const MAX_ERRORS: usize = 20;

/// All field errors of a spec, attached to the error of the first: a user should not have to send
/// it again to learn of the next.
pub(super) struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    pub(super) fn of(command: &Command) -> FieldErrors {
        match command {
            Command::SubmitJob { spec, .. }
            | Command::UpdateJob { spec, .. }
            | Command::ApplyJob { spec, .. } => FieldErrors::of_job(spec),
            other => FieldErrors(cron_spec(other).map_or_else(Vec::new, |spec| {
                admit::review_cron(spec, &admit::RULES, FieldSet::default())
            })),
        }
    }

    pub(super) fn of_job(spec: &JobSpec) -> FieldErrors {
        FieldErrors(admit::review_job(spec, &admit::RULES, FieldSet::default()))
    }

    /// Attaches all of them to the error, which is about the first.
    pub(super) fn attach_to(&self, error: ApiError) -> ApiError {
        if error.code != Code::BadField || self.0.is_empty() {
            return error;
        }
        let error_entry = |field_error: &FieldError| {
            let path = field_error.path.to_string();
            let (value, allowed) = (field_error.value.to_string(), field_error.allowed.to_string());
            json!({ "path": path, "value": value, "allowed": allowed })
        };
        let errors: Vec<Value> = self.0.iter().take(MAX_ERRORS).map(error_entry).collect();
        error.with("errors", errors)
    }
}
