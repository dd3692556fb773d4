//! Changes: a command through the log, and its verdict as an answer.

use super::call::Call;
use super::jobs::guess;
use super::limits::FieldErrors;
use super::{Answered, Api, quota_hint, reply};
use cellwright_api::error::ApiError;
use cellwright_api::types::Changed;
use cellwright_cell::command::{Command, Done};
use cellwright_cell::reason::Refusal;
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;

/// What is known of a command before its verdict, for the error if it is refused.
pub(super) struct Refusing {
    errors: FieldErrors,
    /// What a new job asks for.
    asked: Option<Resources>,
}

impl Api {
    /// Proposes one command under the caller's key; the index at which it stands, and what it did.
    pub(super) async fn commit(
        &self,
        call: &Call,
        command: Command,
    ) -> Result<(u64, Done), ApiError> {
        let caller = call.caller()?;
        self.within_limits(&command)?;
        let refusing = self.refusing(&command);
        let answer = self.handle.submit(caller, call.request_id()?, command).await?;
        match answer.verdict {
            Ok(done) => Ok((answer.index, done)),
            Err(refusal) => Err(self.refused(&refusal, answer.index, &refusing)),
        }
    }

    /// What a refusal of this command would be told with.
    pub(super) fn refusing(&self, command: &Command) -> Refusing {
        let asked = |state: &State| quota_hint::asked_of(state, command);
        let asked = self.handle.replicated().with(|view| asked(&view.state));
        Refusing { errors: FieldErrors::of(command), asked }
    }

    /// A refusal at that index as its sender is told.
    pub(super) fn refused(&self, refusal: &Refusal, index: u64, refusing: &Refusing) -> ApiError {
        let error = ApiError::from(refusal).with("index", index);
        let mut error = refusing.errors.beside(error);
        // Rows have names here; the refusal itself only knows numbers.
        let said = |state: &State| cellwright_cell::render::refusal(state, refusal);
        error.message = match refusal {
            // All jobs are looked through, which nobody who applies the log shall wait for.
            Refusal::NoSuchJob(key) => {
                let view = self.handle.read();
                said(&view.state) + &guess(&view.state, key)
            }
            _ => self.handle.replicated().with(|view| said(&view.state)),
        };
        let now = self.handle.log_time();
        let more = |state: &State| quota_hint::hint(state, refusal, refusing.asked, now);
        match self.handle.replicated().with(|view| more(&view.state)) {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }

    /// As [`Api::commit`], answered as every plain change is.
    pub(super) async fn change(&self, call: &Call, command: Command) -> Answered {
        let (index, done) = self.commit(call, command).await?;
        Ok(reply::json(call, index, &Changed::new(index, &done)))
    }
}
