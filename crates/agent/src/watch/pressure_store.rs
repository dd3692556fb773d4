//! Stores the watcher's history of shortages beside the agent's state: the next agent continues
//! from it, see [`PressureHistory`].
//!
//! Written while something is short and when that changes, not in every pass, and never flushed: a
//! machine that lost its power has other things to report, and times of another boot mean nothing.

use crate::boot;
use crate::record::{self, Durability, Recorded};
use cellwright_agent_core::resource_control::PressureHistory;
use cellwright_cell::time::Span;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const PRESSURE_FILE: &str = "resource_pressure";
/// How long after a pass its record may still be the one before.
const WRITTEN_WITHIN: Span = Span::seconds(5);

#[derive(Debug, Default, Serialize, Deserialize)]
struct StoredPressure {
    boot_id: String,
    known: PressureHistory,
}

impl Recorded for StoredPressure {}

pub struct PressureStore {
    path: PathBuf,
    record: StoredPressure,
}

impl PressureStore {
    /// Reads the record that an agent of this boot left in its folder. A damaged record counts as
    /// none.
    pub fn open(data: &Path) -> PressureStore {
        let path = data.join(PRESSURE_FILE);
        let boot_id = boot::boot_id().unwrap_or_default();
        let found = record::read::<StoredPressure>(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "what the machine was short of is not known");
            None
        });
        let history = found.filter(|record| record.boot_id == boot_id).map(|record| record.known);
        PressureStore {
            path,
            record: StoredPressure { boot_id, known: history.unwrap_or_default() },
        }
    }

    pub fn history(&self) -> &PressureHistory {
        &self.record.known
    }

    /// Writes the history, if it is news against the stored one.
    pub fn save(&mut self, history: PressureHistory) {
        if !history.is_news(&self.record.known, WRITTEN_WITHIN) {
            return;
        }
        self.record.known = history;
        if let Err(error) = record::write(&self.path, &self.record, Durability::Process) {
            tracing::warn!(%error, "the next agent will not know what the machine is short of");
        }
    }
}
