//! Any bytes are refused or are a report that reads the same again.
#![no_main]

use cellwright_api::internal::{AgentReport, REPORT_FORMAT};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = AgentReport::read(bytes);
    // Behind the right number of the format.
    let mut framed = postcard::to_stdvec(&REPORT_FORMAT).expect("a number");
    framed.extend(bytes);
    if let Ok(report) = AgentReport::read(&framed) {
        let written = postcard::to_stdvec(&report).expect("what was read can be written");
        assert!(AgentReport::read(&written).is_ok());
    }
});
