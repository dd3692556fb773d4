//! Changes: a command through the log, and its verdict as an answer.

use super::call::Call;
use super::{Answered, Api, reply};
use cellwright_api::error::ApiError;
use cellwright_api::types::Changed;
use cellwright_cell::command::{Command, Done};

impl Api {
    /// Proposes one command under the caller's key; the index at which it stands, and what it did.
    pub(super) async fn commit(
        &self,
        call: &Call,
        command: Command,
    ) -> Result<(u64, Done), ApiError> {
        let caller = call.caller()?;
        self.within_limits(&command)?;
        let answer = self.handle.submit(caller, call.request_id()?, command).await?;
        match answer.verdict {
            Ok(done) => Ok((answer.index, done)),
            Err(refusal) => {
                let mut error = ApiError::from(&refusal).with("index", answer.index);
                // Rows have names here; the refusal itself only knows numbers.
                error.message = self
                    .handle
                    .replicated()
                    .with(|view| cellwright_cell::render::refusal(&view.state, &refusal));
                Err(error)
            }
        }
    }

    /// As [`Api::commit`], answered as every plain change is.
    pub(super) async fn change(&self, call: &Call, command: Command) -> Answered {
        let (index, done) = self.commit(call, command).await?;
        Ok(reply::json(call, index, &Changed::new(index, &done)))
    }
}
