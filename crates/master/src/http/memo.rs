//! Changes whose command depends on when they are asked (a lease counted from now, nodes chosen by
//! what is free) must become the same command when they are sent again under the same key: the log
//! tells a repetition by its content. This remembers the command of the last few keys.
//!
//! It is soft: after a change of leaders a repetition may become another command and is refused as
//! a reused key; the client then reads the resource to learn whether the first one counted.

use super::call::Call;
use cellwright_api::error::ApiError;
use cellwright_cell::command::Command;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Commands remembered.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct Memo(Mutex<VecDeque<(u64, Command)>>);

impl Memo {
    /// The command made for this key before, or a new one. `body` tells apart what differs.
    pub fn command(
        &self,
        call: &Call,
        body: &str,
        make: impl FnOnce() -> Result<Command, ApiError>,
    ) -> Result<Command, ApiError> {
        let Some(key) = call.key()? else { return make() };
        let text = format!("{:?}\0{key}\0{}\0{body}", call.caller, call.route.path);
        let print = xxh3_64(text.as_bytes());
        let known = {
            let memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            memo.iter().find(|(known, _)| *known == print).map(|(_, command)| command.clone())
        };
        if let Some(command) = known {
            return Ok(command);
        }
        let command = make()?;
        let mut memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if memo.len() >= MOST {
            memo.pop_front();
        }
        memo.push_back((print, command.clone()));
        Ok(command)
    }
}
