//! Bytes of the format that is rehearsed: what a cell writes once it is at the level after the
//! newest. Their reader is a build that knows the level; this build's own, which does not, names
//! the format and leaves them alone.

use crate::samples;
use crate::wire::{hex, unhex};
use cellwright_cell::command::{Actor, Command, Entry, Request};
use cellwright_cell::encode::{self, FORMAT, HEADER, LoadError};
use cellwright_cell::name::Name;
use cellwright_cell::state::{HIGHEST_LEVEL, LEVEL, State};
use cellwright_cell::time::Time;
use std::path::PathBuf;

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/wire/rehearsed.txt")
}

/// The command that replicas send when all of them know a level.
fn raise(state: &mut State) {
    let by = Actor::Replica(Name::new("m1").unwrap());
    let command = Command::RaiseLevel { level: HIGHEST_LEVEL };
    let requests = vec![Request { by, id: None, command }];
    let now = Time(state.now().0 + 1);
    let verdicts = state.apply(&Entry { now, requests }, &mut Vec::new());
    assert!(verdicts[0].is_ok(), "{verdicts:?}");
}

fn raised() -> (State, Entry) {
    let (mut state, entry) = samples::state_and_entry();
    raise(&mut state);
    (state, entry)
}

#[test]
fn a_cell_writes_the_format_of_its_level_and_both_are_read() {
    let (mut state, entry) = samples::state_and_entry();
    let (before, entry_before) = (encode::save(&state), encode::save_entry_at(&entry, LEVEL));
    assert_eq!(entry_before.as_ref(), Ok(&encode::save_entry(&entry)));
    raise(&mut state);
    let (after, entry_after) = (encode::save(&state), encode::save_entry_at(&entry, HIGHEST_LEVEL));
    let (entry_before, entry_after) = (entry_before.unwrap(), entry_after.unwrap());
    let format = |bytes: &[u8]| u16::from_le_bytes([bytes[5], bytes[6]]);
    let formats = [&before, &entry_before, &after, &entry_after].map(|bytes| format(bytes));
    assert_eq!(formats, [FORMAT, FORMAT, FORMAT + 1, FORMAT + 1]);
    // Not one for the other: the new format is longer by its stamp.
    assert_eq!(entry_after.len(), entry_before.len() + 8);
    for bytes in [&entry_before, &entry_after] {
        assert_eq!(encode::load_entry_known(bytes, HIGHEST_LEVEL).as_ref(), Ok(&entry));
    }
    let again = encode::load_known(&after, HIGHEST_LEVEL).map(|mut state| state.hash());
    assert_eq!(again, Ok(state.hash()));
    assert_eq!(encode::save(&encode::load_known(&before, HIGHEST_LEVEL).unwrap()), before);
}

#[test]
fn a_build_that_does_not_know_the_level_names_the_format() {
    let (state, entry) = raised();
    let unknown = LoadError::UnknownFormat { found: FORMAT + 1, newest: FORMAT };
    let bytes = encode::save_entry_at(&entry, HIGHEST_LEVEL).unwrap();
    assert_eq!(encode::load_entry(&bytes), Err(unknown.clone()));
    assert_eq!(encode::load(&encode::save(&state)).map(drop), Err(unknown));
}

#[test]
fn rehearsed_bytes_are_as_recorded() {
    let (state, entry) = raised();
    let entry_bytes = encode::save_entry_at(&entry, HIGHEST_LEVEL).unwrap();
    let text = format!("state {}\nentry {}\n", hex(&encode::save(&state)), hex(&entry_bytes));
    if std::env::var_os("UPDATE_WIRE").is_some() {
        std::fs::write(file(), &text).unwrap();
    }
    let recorded = std::fs::read_to_string(file()).unwrap_or_default();
    assert_eq!(recorded, text, "other bytes than recorded (UPDATE_WIRE=1 before a release)");
    for line in recorded.lines() {
        let (what, bytes) = line.split_once(' ').unwrap();
        let bytes = unhex(bytes);
        assert!(bytes.len() > HEADER, "{what}");
        if what == "entry" {
            assert_eq!(encode::load_entry_known(&bytes, HIGHEST_LEVEL).as_ref(), Ok(&entry));
        } else {
            let read = encode::load_known(&bytes, HIGHEST_LEVEL).map(|mut read| read.hash());
            assert_eq!(read, Ok(state.clone().hash()));
        }
    }
}
