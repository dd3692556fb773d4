//! Pinned bytes: one value of every variant of every durable type, as it was encoded when the
//! format was made, in `tests/wire/format-N.txt`. Encoding must give these bytes and decoding these
//! values, or a replica of the last release would read the log differently.
//!
//! A pin that changes means a new format: raise it in `encode.rs` with an upgrade, then write the
//! new file with `UPDATE_WIRE=1`. The same switch adds pins of new values to the present file, and,
//! until the first release, rewrites those that changed; it never touches files of older formats.

use crate::samples;
use crate::world::variant;
use cellwright_cell::encode::{self, FORMAT};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;

/// Name of a value and its bytes in hexadecimal.
pub type Pins = BTreeMap<String, String>;

fn file(format: u16) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/wire");
    folder.join(format!("format-{format}.txt"))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("pins are hex");
    (0..text.len() / 2).map(|i| digit(2 * i)).collect()
}

fn recorded(format: u16) -> Pins {
    let text = std::fs::read_to_string(file(format)).unwrap_or_default();
    let pins = text.lines().filter(|line| !line.starts_with('#'));
    pins.filter_map(|line| line.split_once(' '))
        .map(|(name, bytes)| (name.to_owned(), bytes.to_owned()))
        .collect()
}

/// Number of variants an enum can decode: an unknown variant is distinguished from missing bytes.
fn variants<T: DeserializeOwned>() -> usize {
    let known = |index: &u8| {
        let decoded = postcard::from_bytes::<T>(&[*index]);
        !matches!(decoded, Err(postcard::Error::SerdeDeCustom))
    };
    (0..128u8).take_while(known).count()
}

fn add<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    pins: &mut Pins,
    kind: &str,
    label: &str,
    value: &T,
) -> u8 {
    let bytes = postcard::to_stdvec(value).expect("every durable noun can be encoded");
    let back: T = postcard::from_bytes(&bytes).expect("what was encoded decodes");
    assert_eq!(back, *value, "{kind} {label} changes on the way");
    let old = pins.insert(format!("{kind}.{label}"), hex(&bytes));
    assert_eq!(old, None, "two samples are called {kind}.{label}");
    bytes.first().copied().unwrap_or(0)
}

/// Pins one value of every variant, and fails when one is missing.
pub fn every_variant<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    pins: &mut Pins,
    kind: &str,
    values: &[T],
) {
    let mut seen = vec![false; variants::<T>()];
    for value in values {
        seen[usize::from(add(pins, kind, &variant(value), value))] = true;
    }
    let missing: Vec<usize> = (0..seen.len()).filter(|at| !seen[*at]).collect();
    assert!(missing.is_empty(), "no sample of the variants {missing:?} of {kind}");
}

/// Pins one value of a struct.
pub fn one<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    pins: &mut Pins,
    kind: &str,
    value: &T,
) {
    add(pins, kind, "sample", value);
}

fn present() -> Pins {
    let mut pins = Pins::new();
    samples::pin_all(&mut pins);
    let (state, entry) = samples::state_and_entry();
    pins.insert("envelope.state".to_owned(), hex(&encode::save(&state)));
    pins.insert("envelope.entry".to_owned(), hex(&encode::save_entry(&entry)));
    pins
}

#[test]
fn encoded_bytes_are_as_pinned() {
    let (old, new) = (recorded(FORMAT), present());
    if old == new {
        return;
    }
    if std::env::var_os("UPDATE_WIRE").is_some() {
        let head =
            format!("# Format {FORMAT}: name of a value, its bytes. Written by the tests.\n");
        let lines = new.iter().map(|(name, bytes)| format!("{name} {bytes}\n"));
        std::fs::write(file(FORMAT), head + &lines.collect::<String>()).expect("pins are written");
        return;
    }
    let changed: Vec<&String> =
        old.iter().filter(|(name, bytes)| new.get(*name) != Some(bytes)).map(|(n, _)| n).collect();
    let added: Vec<&String> = new.keys().filter(|name| !old.contains_key(*name)).collect();
    panic!(
        "bytes differ from those pinned for format {FORMAT}.\nchanged or gone: {changed:?}\nnew: \
         {added:?}\nA change of bytes needs a new format and an upgrade; see the head of wire.rs."
    );
}

#[test]
fn what_older_formats_wrote_is_still_read() {
    for format in 1..=FORMAT {
        let pins = recorded(format);
        let bytes = |name: &str| pins.get(name).map(|text| unhex(text)).unwrap_or_default();
        let state = encode::load(&bytes("envelope.state"));
        let entry = encode::load_entry(&bytes("envelope.entry"));
        let mut state = state.unwrap_or_else(|error| panic!("format {format}: {error}"));
        let entry = entry.unwrap_or_else(|error| panic!("format {format}: {error}"));
        if format == FORMAT {
            let (mut now_state, now_entry) = samples::state_and_entry();
            assert_eq!(state.hash(), now_state.hash(), "the pinned state decodes to another one");
            assert_eq!(entry, now_entry);
        }
    }
}
