//! Any name of any kind gets an answer.
#![no_main]

use cellwright_cell::State;
use cellwright_names::answer::{Kind, answer};
use cellwright_names::{Directory, Zone};

libfuzzer_sys::fuzz_target!(|question: (u8, u16, &str)| {
    let (kind, turn, name) = question;
    let kinds =
        [Kind::A, Kind::Aaaa, Kind::Srv, Kind::Txt, Kind::Soa, Kind::Any, Kind::Other];
    let kind = kinds[usize::from(kind) % kinds.len()];
    let directory = Directory::from_state(&State::default(), 1);
    let zone = Zone::default();
    let _ = answer(&directory, &zone, name, kind, (usize::from(turn), 50));
});
