//! What the watcher knew of shortages, kept beside the agent's state: the next agent goes on from
//! there, see [`Remembered`].
//!
//! Written while something is short and when that changes, not at every look, and never flushed: a
//! machine that lost its power has other things to tell, and times of another boot mean nothing.

use crate::boot;
use crate::record::{self, Keep};
use cellwright_agent_core::control::Remembered;
use cellwright_cell::time::Span;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const FILE: &str = "shortages";
/// How long after a look its record may still be the one before.
const WRITTEN_WITHIN: Span = Span::seconds(5);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    boot_id: String,
    known: Remembered,
}

pub struct Past {
    path: PathBuf,
    record: Record,
}

impl Past {
    /// What an agent of this boot left in its folder. A record of no use counts as none.
    pub fn open(data: &Path) -> Past {
        let path = data.join(FILE);
        let boot_id = boot::boot_id().unwrap_or_default();
        let found = record::read::<Record>(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "what the machine was short of is not known");
            None
        });
        let known = found.filter(|record| record.boot_id == boot_id).map(|record| record.known);
        Past { path, record: Record { boot_id, known: known.unwrap_or_default() } }
    }

    pub fn known(&self) -> &Remembered {
        &self.record.known
    }

    /// Writes it down, if it says more than what is there.
    pub fn keep(&mut self, known: Remembered) {
        if !known.is_news(&self.record.known, WRITTEN_WITHIN) {
            return;
        }
        self.record.known = known;
        if let Err(error) = record::write(&self.path, &self.record, Keep::Process) {
            tracing::warn!(%error, "the next agent will not know what the machine is short of");
        }
    }
}
