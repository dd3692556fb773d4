//! Tests of the decoders under hostile input: any bytes give a value or an error, never a panic,
//! and what is accepted is a state that satisfies every invariant and can apply further entries.
//!
//! Mutations happen below the checksum (the envelope is sealed again after each), or nothing would
//! ever reach the decoders of rows. The same entry points serve coverage-guided fuzzing; see
//! `fuzz/` at the top of the repository.

use crate::draw::Draw;
use crate::generate;
use crate::properties::Run;
use cellwright_cell::encode::text::TableName;
use cellwright_cell::encode::{self, HEADER, LoadError};
use cellwright_cell::invariant::check_state;
use cellwright_cell::state::State;

/// Seals a payload by the documented layout, implemented here separately.
fn sealed(kind: u8, format: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(*b"CELL");
    bytes.push(kind);
    bytes.extend(format.to_le_bytes());
    bytes.extend((payload.len() as u64).to_le_bytes());
    let hash = xxhash_rust::xxh3::xxh3_64;
    let sum = hash(payload) ^ hash(&bytes).rotate_left(1);
    bytes.extend(sum.to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// States and entries of random runs.
fn corpus() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut states, mut entries) = (Vec::new(), Vec::new());
    for run in 0..6u64 {
        let steps = (0..20 * run).map(|step| run * 911 + step * 104_729).collect();
        let world = Run { opening: run, steps }.run_all().unwrap_or_else(|why| panic!("{why}"));
        states.push(encode::save(&world.state));
        entries.extend(world.entries.iter().map(encode::save_entry));
    }
    (states, entries)
}

fn mutated(payload: &[u8], draw: &mut Draw) -> Vec<u8> {
    let mut bytes = payload.to_vec();
    for _ in 0..1 + draw.below(3) {
        let at = draw.below(bytes.len() as u64) as usize;
        match draw.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, draw.next() as u8),
            2 if !bytes.is_empty() => {
                bytes.remove(at);
            }
            3 => {
                // A huge length.
                let end = (at + 9).min(bytes.len());
                bytes[at..end].fill(0xff);
            }
            4 if !bytes.is_empty() => bytes[at] = draw.next() as u8,
            _ if !bytes.is_empty() => bytes[at] ^= 1 << draw.below(8),
            _ => {}
        }
    }
    bytes
}

/// Seeds of the mutations: the same each time, `CELL_FUZZ` times as many if that is set.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let more = std::env::var("CELL_FUZZ").ok().and_then(|text| text.parse().ok());
    0..count * more.unwrap_or(1)
}

/// Checks that an accepted state is sound, and stays so.
fn check_keeps_working(mut state: State, seed: u64) {
    let bytes = encode::save(&state);
    let again = encode::load(&bytes).map(|mut again| again.hash());
    assert_eq!(again, Ok(state.hash()), "an accepted state does not survive a save");
    for step in 0..12 {
        let entry = generate::entry(&state, &[], seed.wrapping_add(step));
        state.apply(&entry, &mut Vec::new());
        let checked = check_state(&state);
        assert_eq!(checked, Ok(()), "an accepted state breaks on {entry:?}");
    }
}

#[test]
fn mutated_states_are_refused_or_sound() {
    let (states, _) = corpus();
    let (mut refused, mut accepted) = (0, 0);
    for seed in seeds(6_000) {
        let mut draw = Draw::new(seed);
        let payload = &states[draw.below(states.len() as u64) as usize][HEADER..];
        match encode::load(&sealed(b'S', encode::FORMAT, &mutated(payload, &mut draw))) {
            Ok(state) => {
                accepted += 1;
                check_keeps_working(state, seed);
            }
            Err(_) => refused += 1,
        }
    }
    println!("{refused} refused, {accepted} accepted and sound");
    assert!(refused > 1_000 && accepted > 10, "{refused} refused, {accepted} accepted");
}

#[test]
fn mutated_entries_are_refused_or_applied() {
    let (states, entries) = corpus();
    let states: Vec<State> = states.iter().filter_map(|bytes| encode::load(bytes).ok()).collect();
    let mut accepted = 0;
    for seed in seeds(20_000) {
        let mut draw = Draw::new(seed);
        let record = &entries[draw.below(entries.len() as u64) as usize];
        let bytes = sealed(b'E', encode::FORMAT, &mutated(&record[HEADER..], &mut draw));
        let Ok(entry) = encode::load_entry(&bytes) else { continue };
        accepted += 1;
        let mut state = states[draw.below(states.len() as u64) as usize].clone();
        state.apply(&entry, &mut Vec::new());
        let checked = check_state(&state);
        assert_eq!(checked, Ok(()), "seed {seed}: {entry:?}");
    }
    println!("{accepted} decoded and were applied");
    assert!(accepted > 1_000, "only {accepted} decoded");
}

#[test]
fn any_flipped_bit_of_a_file_is_noticed() {
    let (states, entries) = corpus();
    for bytes in [&states[0], &entries[0]] {
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let refused = encode::load(&flipped).is_err() && encode::load_entry(&flipped).is_err();
            assert!(refused, "bit {bit} of {} flipped and nobody noticed", bytes.len() * 8);
        }
    }
}

#[test]
fn any_torn_file_is_noticed() {
    let (states, _) = corpus();
    for length in 0..states[0].len() {
        let torn = encode::load(&states[0][..length]);
        assert!(torn.is_err(), "{length} of {} bytes were taken for the whole", states[0].len());
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let (states, entries) = corpus();
    let check = |bytes: &[u8], want: &str| {
        let error = encode::load(bytes).map(drop).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    };
    let payload = &states[0][HEADER..];
    check(b"CELL", "4 bytes are too few");
    check(&[b'x'; 64], "this is something else");
    check(&entries[0], "kind");
    let unknown = "format 9 is not known here; allowed: 1 to 1; run the newer build";
    check(&sealed(b'S', 9, payload), unknown);
    check(&states[0][..states[0].len() - 1], "the header announces");
    check(&sealed(b'S', 1, &[payload, &[0]].concat()), "bytes follow the end");
    // Level 7, time, entries, attempts and the nineteen bounds 0, and empty tables without rows or
    // windows.
    let mut empty = vec![0; 23 + TableName::ALL.len()];
    empty[0] = 7;
    check(&sealed(b'S', 1, &empty), "level is 7; allowed: 1 to");
    // Four billion users in no bytes at all.
    let users = [&[1][..], &[0; 22], &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    check(&sealed(b'S', 1, &users), "user row 0 does not decode");
    let random = |seed| {
        let mut draw = Draw::new(seed);
        (0..draw.below(400)).map(|_| draw.next() as u8).collect::<Vec<u8>>()
    };
    for seed in 0..2_000 {
        let bytes = random(seed);
        assert!(matches!(
            encode::load(&bytes),
            Err(LoadError::TooShort { .. } | LoadError::BadMagic { .. })
        ));
        assert!(encode::load(&sealed(b'S', 1, &bytes)).is_err());
        drop(encode::load_entry(&sealed(b'E', 1, &bytes)));
    }
}
