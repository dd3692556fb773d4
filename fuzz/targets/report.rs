//! An agent's report: any bytes are refused, or are a report that reads the same again.

use cellwright_api::wire::{NEWEST, WireMessage};
use cellwright_messages::AgentReport;

/// Whether they are one.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(report) = AgentReport::decode(NEWEST, bytes) else { return false };
    let written = report.encode(NEWEST).expect("what was read can be written");
    let again = AgentReport::decode(NEWEST, &written).expect("what was written can be read");
    assert_eq!(again.encode(NEWEST).as_ref(), Ok(&written));
    true
}
