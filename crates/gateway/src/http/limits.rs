//! The door: what is kept out of the log though it could be in it. The log has rules of its own,
//! which are the same everywhere and for ever; those here are no rules of `apply`. Some are an
//! operator's choice and may differ between replicas while a new configuration is rolled out: they
//! keep a slip of the hand (a count with three zeros too many) out. Others came after logs that do
//! not keep them: what runs no program, or a package that cannot be, is refused whoever writes it,
//! and jobs from before stay.

use super::Api;
use cellwright_api::error::{ApiError, Code};
use cellwright_cell::admit::{self, Rejection};
use cellwright_cell::command::Command;
use cellwright_cell::components::{
    self,
    cron::{self, CronSpec},
};
use cellwright_cell::field::FieldSet;
use cellwright_cell::reason::Refusal;
use cellwright_cell::spec::JobSpec;
use serde_json::{Value, json};

impl Api {
    /// Whether the command asks for what this cell lets in.
    pub(super) fn within_limits(&self, command: &Command) -> Result<(), ApiError> {
        can_ever_run(command)
            .map_err(|refusal| FieldErrors::of(command).beside(ApiError::from(&refusal)))?;
        let (field, count) = match command {
            Command::SubmitJob { spec, .. }
            | Command::UpdateJob { spec, .. }
            | Command::ApplyJob { spec, .. } => ("count", spec.count),
            Command::ResizeJob { count, .. } => ("count", *count),
            other => match cron_spec(other) {
                Some(spec) => ("job.count", spec.job.count),
                None => return Ok(()),
            },
        };
        let most = self.settings.tasks_per_job;
        if count <= most {
            return Ok(());
        }
        let allowed = format!("at most {most}, the tasks_per_job of this master");
        let error = ApiError::field(field, &count.to_string(), &allowed).with("limit", most);
        Err(FieldErrors::of(command).beside(error))
    }
}

fn can_ever_run(command: &Command) -> Result<(), Refusal> {
    let checked = |spec: &JobSpec| {
        admit::check(spec, admit::runs_a_program)?;
        admit::check(spec, admit::digests_are_whole)
    };
    match command {
        Command::SubmitJob { spec, .. }
        | Command::UpdateJob { spec, .. }
        | Command::ApplyJob { spec, .. } => checked(spec),
        other => match cron_spec(other) {
            Some(spec) => checked(&spec.job).map_err(|refusal| match refusal {
                Refusal::BadField { field, value, allowed } => {
                    Refusal::BadField { field: format!("job.{field}"), value, allowed }
                }
                other => other,
            }),
            None => Ok(()),
        },
    }
}

/// The periodic job that a command asks for.
fn cron_spec(command: &Command) -> Option<&CronSpec> {
    match command {
        Command::Component(components::Command::Cron(cron::Command::Set { spec, .. })) => {
            Some(spec)
        }
        _ => None,
    }
}

/// Fields of a spec that an error names at once.
const MOST_ERRORS: usize = 20;

/// Every field that is wrong with a spec, for the error of the first: whoever corrects one shall
/// not send it again to hear of the next.
pub(super) struct FieldErrors(Vec<Rejection>);

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

    /// With all of them beside the one that it is about.
    pub(super) fn beside(&self, error: ApiError) -> ApiError {
        if error.code != Code::BadField || self.0.is_empty() {
            return error;
        }
        let shown = |one: &Rejection| {
            let path = one.path.to_string();
            json!({ "path": path, "value": one.value, "allowed": one.allowed })
        };
        let errors: Vec<Value> = self.0.iter().take(MOST_ERRORS).map(shown).collect();
        error.with("errors", errors)
    }
}
