//! What clients were promised. Every acknowledged request is recorded with its log index. Whatever
//! was acknowledged must be there at the end, and the order of indices must agree with the order in
//! which clients saw things happen: what began after an acknowledgement has a higher index.

use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use std::collections::BTreeMap;

/// A promise that was broken, as text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CheckFailure(pub String);

#[derive(Debug, Default)]
pub struct Ledger {
    /// Highest index acknowledged to any client.
    max_acknowledged_index: u64,
    /// Jobs acknowledged, with their index.
    pub jobs: BTreeMap<Name, u64>,
    /// Increments of the counter: acknowledged, and sent without ever being answered.
    pub added: i64,
    pub perhaps_added: i64,
    pub acknowledged: u64,
    pub reads: u64,
    failure: Option<CheckFailure>,
}

impl Ledger {
    /// Taken when a request or read begins.
    #[must_use]
    pub fn acknowledged_floor(&self) -> u64 {
        self.max_acknowledged_index
    }

    pub fn acknowledge(&mut self, index: u64, floor: u64) {
        if index <= floor {
            self.record_failure(format!(
                "acknowledged at index {index}, after index {floor} was seen"
            ));
        }
        self.max_acknowledged_index = self.max_acknowledged_index.max(index);
        self.acknowledged += 1;
    }

    /// A linearizable read saw `state` at `index`.
    pub fn read(&mut self, index: u64, floor: u64, state: &State, since: &[Name]) {
        self.reads += 1;
        if index < floor {
            self.record_failure(format!(
                "a fresh read stands at index {index}, {floor} was acknowledged"
            ));
        }
        for name in since {
            if !present(state, name) {
                self.record_failure(format!("a fresh read at {index} misses the job {name}"));
            }
        }
    }

    pub fn record_failure(&mut self, message: String) {
        self.failure.get_or_insert(CheckFailure(message));
    }

    /// # Errors
    /// The first promise found broken.
    pub fn check(&self) -> Result<(), CheckFailure> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Everything promised is in the healed cell.
    ///
    /// # Errors
    /// The first promise found broken.
    pub fn check_end(&self, state: &State, counter: u64) -> Result<(), CheckFailure> {
        self.check()?;
        for (name, index) in &self.jobs {
            if !present(state, name) {
                return Err(CheckFailure(format!("job {name}, acknowledged at {index}, is lost")));
            }
        }
        let counter = i64::try_from(counter).unwrap_or(i64::MAX);
        let allowed = self.added..=self.added + self.perhaps_added;
        if !allowed.contains(&counter) {
            return Err(CheckFailure(format!(
                "the counter stands at {counter}, allowed {allowed:?}"
            )));
        }
        Ok(())
    }
}

fn present(state: &State, name: &Name) -> bool {
    let key =
        cellwright_cell::name::JobKey { user: super::client::client_user(), job: name.clone() };
    state.job_named(&key).is_some()
}
