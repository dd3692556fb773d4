//! A recorded log and the hash of the state after each of its entries, in `tests/wire/log-N.txt`.
//! The same log must lead every build through the same states: otherwise a replica that takes over
//! in the middle of an upgrade, or replays an old log, would have another state.
//!
//! Texts are no part of a hash: answers stored for repeated requests are hashed as data with fields
//! (record 35), and words are made of them where they are shown, so rewording a rejection changes
//! no hash. A table that was never used adds nothing either.
//!
//! Each line is a hash and the entry that led to it. With `UPDATE_WIRE=1` the hashes are rewritten
//! for the recorded entries; if those no longer decode, or the file is missing, a new log is
//! generated. From the first release on, any change of a hash without a change of level breaks
//! compatibility.

use crate::properties::Run;
use crate::wire::{hex, unhex};
use cellwright_cell::command::Entry;
use cellwright_cell::encode::{self, FORMAT};
use cellwright_cell::invariant::check_state;
use cellwright_cell::state::State;
use std::path::PathBuf;

fn file() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/wire");
    folder.join(format!("log-{FORMAT}.txt"))
}

/// Reads the recorded hashes and entries; an entry that does not decode is an error.
fn recorded() -> Result<Vec<(String, Entry)>, String> {
    let text = std::fs::read_to_string(file()).map_err(|error| error.to_string())?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &str| {
        let (hash, bytes) = line.split_once(' ').ok_or("a hash and an entry")?;
        let entry = encode::load_entry(&unhex(bytes)).map_err(|error| error.to_string())?;
        Ok((hash.to_owned(), entry))
    };
    lines.map(read).collect()
}

/// Generates a run long enough to reach most rules.
fn drawn() -> Vec<Entry> {
    let steps = (0..160).map(|step| 31 + step * 7_919).collect();
    Run { opening: 3, steps }.run_all().unwrap_or_else(|why| panic!("{why}")).entries
}

/// The hash after each entry, starting from an empty cell.
fn replay<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<String> {
    let mut state = State::default();
    let hash = |entry: &Entry| {
        state.apply(entry, &mut Vec::new());
        check_state(&state).unwrap_or_else(|violation| panic!("{violation}"));
        format!("{:016x}", state.hash())
    };
    entries.map(hash).collect()
}

fn write(entries: &[Entry]) {
    let head = format!(
        "# A log of format {FORMAT}: hash of the state after an entry, the entry. Written by the \
         tests.\n"
    );
    let hashes = replay(entries.iter());
    let line =
        |(hash, entry): (&String, &Entry)| format!("{hash} {}\n", hex(&encode::save_entry(entry)));
    let lines: String = hashes.iter().zip(entries).map(line).collect();
    std::fs::write(file(), head + &lines).expect("the log is written");
}

#[test]
fn a_recorded_log_leads_through_the_recorded_states() {
    let log = recorded();
    if std::env::var_os("UPDATE_WIRE").is_some() {
        let entries = log.map(|log| log.into_iter().map(|(_, entry)| entry).collect());
        return write(&entries.unwrap_or_else(|_| drawn()));
    }
    let log = log.unwrap_or_else(|why| panic!("{}: {why}", file().display()));
    assert!(log.len() > 100, "{} entries are too few to say anything", log.len());
    let hashes = replay(log.iter().map(|(_, entry)| entry));
    for (index, ((recorded, entry), now)) in log.iter().zip(&hashes).enumerate() {
        assert_eq!(recorded, now, "entry {index} leads to another state: {entry:?}");
    }
}
