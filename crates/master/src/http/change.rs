//! Changes: a command through the log, and its verdict as an answer.

use super::call::Call;
use super::jobs::guess;
use super::limits::FieldErrors;
use super::{Answered, Api, quota_hint, reply};
use cellwright_api::error::ApiError;
use cellwright_api::types::Changed;
use cellwright_cell::command::{Command, Done};
use cellwright_cell::reason::Refusal;
use cellwright_cell::state::State;

impl Api {
    /// Proposes one command under the caller's key; the index at which it stands, and what it did.
    pub(super) async fn commit(
        &self,
        call: &Call,
        command: Command,
    ) -> Result<(u64, Done), ApiError> {
        let caller = call.caller()?;
        self.within_limits(&command)?;
        let asked = |state: &State| quota_hint::asked_of(state, &command);
        let asked = self.handle.replicated().with(|view| asked(&view.state));
        let errors = FieldErrors::of(&command);
        let answer = self.handle.submit(caller, call.request_id()?, command).await?;
        match answer.verdict {
            Ok(done) => Ok((answer.index, done)),
            Err(refusal) => {
                let error = ApiError::from(&refusal).with("index", answer.index);
                let mut error = errors.beside(error);
                // Rows have names here; the refusal itself only knows numbers.
                let said = |state: &State| cellwright_cell::render::refusal(state, &refusal);
                error.message = match &refusal {
                    // All jobs are looked through, which nobody who applies the log shall wait for.
                    Refusal::NoSuchJob(key) => {
                        let view = self.handle.read();
                        said(&view.state) + &guess(&view.state, key)
                    }
                    _ => self.handle.replicated().with(|view| said(&view.state)),
                };
                let now = self.handle.log_time();
                let more = |state: &State| quota_hint::hint(state, &refusal, asked, now);
                match self.handle.replicated().with(|view| more(&view.state)) {
                    Some(hint) => Err(error.hint(hint)),
                    None => Err(error),
                }
            }
        }
    }

    /// As [`Api::commit`], answered as every plain change is.
    pub(super) async fn change(&self, call: &Call, command: Command) -> Answered {
        let (index, done) = self.commit(call, command).await?;
        Ok(reply::json(call, index, &Changed::new(index, &done)))
    }
}
