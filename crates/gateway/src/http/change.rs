//! Changes: proposes a command to the log, and answers with its verdict.

use super::admission_limits::FieldErrors;
use super::call::Call;
use super::jobs::suggestion;
use super::{Api, ApiResult, quota_hint, reply, warnings};
use cellwright_api::error::ApiError;
use cellwright_api::types::Changed;
use cellwright_cell::command::{Command, Done};
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;

/// Facts about a command before its verdict, for the error if it is rejected.
pub(super) struct RejectionContext {
    errors: FieldErrors,
    /// Resources that a new job requests.
    requested: Option<Resources>,
}

impl Api {
    /// Proposes one command under the caller's idempotency key; returns its index and its effect.
    pub(super) async fn commit(
        &self,
        call: &Call,
        command: Command,
    ) -> Result<(u64, Done), ApiError> {
        let caller = call.caller()?;
        self.check_limits(&command)?;
        let rejection_context = self.rejection_context(&command);
        let answer = self.handle.submit(caller, call.request_id()?, command).await?;
        match answer.verdict {
            Ok(done) => Ok((answer.index, done)),
            Err(rejection) => {
                Err(self.rejection_error(&rejection, answer.index, &rejection_context))
            }
        }
    }

    /// The context for a rejection of this command.
    pub(super) fn rejection_context(&self, command: &Command) -> RejectionContext {
        let requested_of = |state: &State| quota_hint::requested_resources(state, command);
        let requested = self.handle.replicated().with(|view| requested_of(&view.state));
        RejectionContext { errors: FieldErrors::of(command), requested }
    }

    /// The API error for a rejection at that index.
    pub(super) fn rejection_error(
        &self,
        rejection: &Rejection,
        index: u64,
        context: &RejectionContext,
    ) -> ApiError {
        let error = ApiError::from(rejection).with("index", index);
        let mut error = context.errors.attach_to(error);
        // The state has names; the rejection itself only has numbers.
        let text_of = |state: &State| cellwright_cell::words::rejection(state, rejection);
        error.message = match rejection {
            // All jobs are searched, which must not block the applier of the log.
            Rejection::NoSuchJob(key) => {
                let view = self.handle.read();
                text_of(&view.state) + &suggestion(&view.state, key)
            }
            _ => self.handle.replicated().with(|view| text_of(&view.state)),
        };
        let now = self.handle.log_time();
        let more = |state: &State| quota_hint::hint(state, rejection, context.requested, now);
        match self.handle.replicated().with(|view| more(&view.state)) {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }

    /// As [`Api::commit`], answered as every plain change is.
    pub(super) async fn change(&self, call: &Call, command: Command) -> ApiResult {
        let warnings = self.warnings(&command);
        let (index, done) = self.commit(call, command).await?;
        Ok(reply::json(call, index, &Changed { warnings, ..Changed::new(index, &done) }))
    }

    /// What the command asks for and does not get.
    pub(super) fn warnings(&self, command: &Command) -> Vec<String> {
        self.handle.replicated().with(|view| warnings::of(&view.state, command))
    }
}
