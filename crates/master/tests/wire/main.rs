//! Recorded bytes of every message between parts, in `tests/wire/version-N.txt` for each version
//! that is spoken. Writing a message in a version must give these bytes, and reading them the same
//! message, or a part of the release before this one would not be understood.
//!
//! A recorded line that changes means a new version (`crates/api/src/wire.rs`) with the old form
//! kept for one release. `UPDATE_WIRE=1` writes the file of a version that has none, and adds lines
//! to that of the newest; lines that are there it leaves alone, unless the file is removed, which
//! is for versions that no release has spoken yet.

mod answers;
mod questions;

use cellwright_api::wire::{NEWEST, OLDEST, WireMessage, WireRange, WireVersion, pack, unpack};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Name of a sample and its bytes in hexadecimal.
type Lines = BTreeMap<String, String>;

/// Samples of all messages as one version writes them.
struct Samples {
    version: WireVersion,
    lines: Lines,
    messages: BTreeSet<&'static str>,
}

impl Samples {
    fn new(version: WireVersion) -> Samples {
        let (lines, messages) = Default::default();
        let mut samples = Samples { version, lines, messages };
        questions::take_all(&mut samples);
        answers::take_all(&mut samples);
        samples
    }

    /// One message, written as JSON so that each field has a name here.
    fn one<M: WireMessage>(&mut self, label: &str, json: Value) {
        let (name, version) = (format!("{}.{label}", M::NAME), self.version);
        let message: M = serde_json::from_value(json).unwrap_or_else(|e| panic!("{name}: {e}"));
        let bytes = pack(version, &message).expect("every sample can be written");
        let own = WireRange::of_release(version);
        let back: M = unpack(own, version, &bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(pack(version, &back).as_ref(), Ok(&bytes), "{name} changes on its way");
        check_ends::<M>(own, version, &bytes);
        self.messages.insert(M::NAME);
        let old = self.lines.insert(name.clone(), hex(&bytes));
        assert_eq!(old, None, "two samples are called {name}");
    }

    /// One of each variant of an enum, by the names of the variants.
    fn each<M: WireMessage>(&mut self, samples: Vec<(&str, Value)>) {
        let known = variants::<M>();
        assert_eq!(samples.len(), known, "samples of {}, and its variants", M::NAME);
        for (variant, inside) in samples {
            let json = match inside {
                Value::Null => variant.into(),
                inside => serde_json::json!({ variant: inside }),
            };
            self.one::<M>(variant, json);
        }
    }
}

/// Nothing may be missing or left over.
fn check_ends<M: WireMessage>(own: WireRange, version: WireVersion, bytes: &[u8]) {
    let longer = [bytes, &[0]].concat();
    assert!(unpack::<M>(own, version, &longer).is_err(), "{}: a byte too many", M::NAME);
    if let Some((_, shorter)) = bytes.split_last() {
        assert!(unpack::<M>(own, version, shorter).is_err(), "{}: a byte short", M::NAME);
    }
}

/// Number of variants an enum can decode: an unknown variant is told apart from missing bytes.
pub fn variants<T: DeserializeOwned>() -> usize {
    let known = |index: &u8| {
        let decoded = postcard::from_bytes::<T>(&[*index]);
        !matches!(decoded, Err(postcard::Error::SerdeDeCustom))
    };
    (0..128u8).take_while(known).count()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file(version: WireVersion) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/wire");
    folder.join(format!("version-{version}.txt"))
}

fn recorded(version: WireVersion) -> Lines {
    let text = std::fs::read_to_string(file(version)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(' ').or(Some((line, ""))));
    pairs.map(|(name, bytes)| (name.to_owned(), bytes.to_owned())).collect()
}

fn record(version: WireVersion, lines: &Lines) {
    let mut text =
        format!("# Wire version {version}: name of a message, its bytes. Written by tests.\n");
    for (name, bytes) in lines {
        text.push_str(format!("{name} {bytes}").trim_end());
        text.push('\n');
    }
    std::fs::write(file(version), text).expect("the file is written");
}

/// Names of lines that `there` has not, or not so.
fn differing(here: &Lines, there: &Lines) -> Vec<String> {
    let differ = here.iter().filter(|(name, bytes)| there.get(*name) != Some(bytes));
    differ.map(|(name, _)| name.clone()).collect()
}

#[test]
fn messages_of_every_version_that_is_spoken_are_as_recorded() {
    for version in (OLDEST.0..=NEWEST.0).map(WireVersion) {
        let (mut old, new) = (recorded(version), Samples::new(version).lines);
        let may_grow = version == NEWEST || old.is_empty();
        if may_grow && std::env::var_os("UPDATE_WIRE").is_some() {
            for (name, bytes) in &new {
                old.entry(name.clone()).or_insert_with(|| bytes.clone());
            }
            record(version, &old);
        }
        let (changed, now) = (differing(&old, &new), differing(&new, &old));
        assert!(
            changed.is_empty() && now.is_empty(),
            "messages differ from those recorded for wire version {version}.\nrecorded: \
             {changed:?}\nnow: {now:?}\nA change of bytes needs a new version; see the head of \
             this file."
        );
    }
}

/// Versions that are rehearsed are not those of this build, and are never taken for them.
#[test]
fn a_message_of_the_next_version_is_another_one_and_says_so() {
    let (now, next) = (Samples::new(NEWEST), Samples::new(WireVersion(NEWEST.0 + 1)));
    assert_eq!(now.messages, next.messages);
    for (name, bytes) in &now.lines {
        assert!(next.lines[name].starts_with(bytes), "{name} has what it had");
        assert_eq!(next.lines[name].len(), bytes.len() + 16, "{name} has one field more");
    }
}
