//! Output from the archive: lines of JSON, of which one says whose it is, and the others are what
//! was written.

use super::printer::{LineStyle, Printer};
use crate::failure::Failure;
use crate::output::print_notice;
use cellwright_api::output::{OutputPart, Stream};
use cellwright_api::types::{ARCHIVED_LOG_FORMAT, ArchivedLogHead};
use cellwright_archive::decompress;
use cellwright_cell::name::JobKey;
use serde::Deserialize;

/// Most bytes of one log.
const MAX_BYTES: u64 = 4 << 30;

/// What of it is printed, and how.
#[derive(Clone, Copy, Debug)]
pub struct ArchivedOutput {
    pub stdout: bool,
    pub stderr: bool,
    pub timestamps: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Head(ArchivedLogHead),
    Part(OutputPart),
}

impl ArchivedOutput {
    pub fn print(self, job: &JobKey, index: u32, compressed: &[u8]) -> Result<(), Failure> {
        let broken = |why: String| Failure::Operation {
            message: format!("the output of {job}/{index} in the archive does not read: {why}"),
            next: "see whether the store is damaged: cell archive status".into(),
        };
        let name = format!("{job}/{index}");
        let text =
            decompress(&name, compressed, MAX_BYTES).map_err(|why| broken(why.to_string()))?;
        let style = LineStyle { named: false, timestamps: self.timestamps, apart: false };
        let mut printer = Printer::new(job, index, style);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line).map_err(|why| broken(why.to_string()))? {
                Line::Head(head) if head.format > ARCHIVED_LOG_FORMAT => {
                    let known = ARCHIVED_LOG_FORMAT;
                    return Err(broken(format!("format {}; allowed: up to {known}", head.format)));
                }
                Line::Head(head) => {
                    if let Some(note) = head.note {
                        print_notice(&format!("note: attempt {}: {note}", head.attempt));
                    }
                }
                Line::Part(part) if self.wants(part.stream) => printer.push(&part)?,
                Line::Part(_) => {}
            }
        }
        printer.finish()
    }

    fn wants(self, stream: Stream) -> bool {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}
