//! An agent's report: any bytes, bare and behind the number of the format, are refused, or are a
//! report that reads the same again.

use cellwright_api::internal::{AgentReport, REPORT_FORMAT};

/// Whether they are one, bare or behind the number.
pub fn run(bytes: &[u8]) -> bool {
    let mut numbered = postcard::to_stdvec(&REPORT_FORMAT).expect("a number");
    numbered.extend(bytes);
    reads_again(bytes) | reads_again(&numbered)
}

fn reads_again(bytes: &[u8]) -> bool {
    let Ok(report) = AgentReport::read(bytes) else { return false };
    let written = postcard::to_stdvec(&report).expect("what was read can be written");
    let again = AgentReport::read(&written).expect("what was written can be read");
    assert_eq!(postcard::to_stdvec(&again).as_ref(), Ok(&written));
    true
}
