//! How two sides agree on a version, and a message that has one field more since the last release,
//! made as the documentation of [`WireMessage`] says.

use super::*;
use serde::Deserialize;

fn range(text: &str) -> WireRange {
    text.parse().unwrap()
}

#[test]
fn the_newest_version_that_both_sides_speak_is_written() {
    for (own, peer, common, written) in [
        ("1-1", "1-1", Some(1), 1),
        ("1-2", "1-2", Some(2), 2),
        // A release, and the one before or after it.
        ("1-2", "1-1", Some(1), 1),
        ("1-2", "2-3", Some(2), 2),
        ("2-3", "1-2", Some(2), 2),
        // Two releases apart: the other side will say so.
        ("2-3", "1-1", None, 2),
        ("1-1", "2-3", None, 1),
    ] {
        let (own, peer) = (range(own), range(peer));
        assert_eq!(own.common(peer).map(|version| version.0), common, "{own} and {peer}");
        assert_eq!(own.to_write(Some(peer)).0, written, "{own} to {peer}");
        assert_eq!(own.to_write(None), own.oldest, "whoever is not known may be older");
    }
}

#[test]
fn a_release_speaks_its_own_version_and_the_one_before() {
    for (newest, spoken) in [(0, "1-1"), (1, "1-1"), (2, "1-2"), (9, "8-9")] {
        assert_eq!(WireRange::of_release(WireVersion(newest)).to_string(), spoken);
    }
    assert_eq!(WireRange::BUILT, WireRange::of_release(NEWEST));
    for bad in ["", "1", "-", "1-", "-1", "0-1", "2-1", "1-70000", "1-2-3", "a-b"] {
        assert_eq!(bad.parse::<WireRange>(), Err(NoRange), "{bad:?}");
    }
}

#[test]
fn headers_say_what_was_written_and_what_is_spoken() {
    let spoken = Spoken { version: WireVersion(7), range: range("6-8") };
    let mut headers = HeaderMap::new();
    spoken.write(&mut headers);
    assert_eq!(Spoken::of(&headers), Some(spoken));
    headers.remove(WIRE_HEADER);
    assert_eq!((Spoken::of(&headers), WireRange::of(&headers)), (None, Some(range("6-8"))));
    headers.insert(RANGE_HEADER, HeaderValue::from_static("8-6"));
    assert_eq!(WireRange::of(&headers), None);
}

#[test]
fn a_refusal_names_both_sides_and_which_of_them_to_upgrade() {
    let refused = |own: &str, said: Option<(u16, &str)>| {
        let said = said.map(|(version, spoken)| Spoken {
            version: WireVersion(version),
            range: range(spoken),
        });
        range(own).rejection("agent:n1", said, "this master")
    };
    let newer = refused("1-2", Some((3, "3-4")));
    let build = env!("CARGO_PKG_VERSION");
    let want = format!(
        "agent:n1 speaks wire 3-4 and wrote version 3; this master speaks wire 1-2 (cellwright \
         {build})"
    );
    assert_eq!((newer.code, newer.message.as_str()), (Code::OtherWire, want.as_str()));
    assert!(newer.hint.starts_with("upgrade the masters first"), "{}", newer.hint);
    let older = refused("3-4", Some((2, "1-2")));
    assert!(older.hint.starts_with("upgrade the caller"), "{}", older.hint);
    let none = refused("1-2", None);
    assert!(none.hint.starts_with("this is for parts of the cell"), "{}", none.hint);
}

/// What a message was before version 2: without `since`.
#[derive(Serialize, Deserialize)]
struct GreetingOfVersion1 {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Greeting {
    name: String,
    since: Option<u64>,
}

impl WireMessage for Greeting {
    const NAME: &'static str = "Greeting";

    fn encode(&self, version: WireVersion) -> Result<Vec<u8>, WireError> {
        match version {
            WireVersion(1) => {
                put(Self::NAME, version, &GreetingOfVersion1 { name: self.name.clone() })
            }
            _ => put(Self::NAME, version, self),
        }
    }

    fn decode(version: WireVersion, bytes: &[u8]) -> Result<Self, WireError> {
        match version {
            WireVersion(1) => {
                let GreetingOfVersion1 { name } = take(Self::NAME, version, bytes)?;
                Ok(Greeting { name, since: None })
            }
            _ => take(Self::NAME, version, bytes),
        }
    }
}

#[test]
fn a_field_more_is_left_out_for_the_release_before_and_unknown_from_it() {
    let (one, two) = (WireVersion(1), WireVersion(2));
    let whole = Greeting { name: "n1".into(), since: Some(3) };
    let (old, new) = (whole.encode(one).unwrap(), whole.encode(two).unwrap());
    assert_eq!(Greeting::decode(two, &new), Ok(whole.clone()));
    assert_eq!(Greeting::decode(one, &old), Ok(Greeting { since: None, ..whole }));
    // Neither is ever taken for the other.
    assert!(matches!(Greeting::decode(one, &new), Err(WireError::Trailing { bytes: 2, .. })));
    assert!(matches!(Greeting::decode(two, &old), Err(WireError::Broken { .. })));
}

#[test]
fn a_rehearsed_version_is_another_one_and_every_bit_of_it_counts() {
    let own = WireRange::of_release(WireVersion(NEWEST.0 + 2));
    for ahead in [1, 2] {
        let version = WireVersion(NEWEST.0 + ahead);
        let bytes = pack(version, &true).unwrap();
        assert_eq!(unpack::<bool>(own, version, &bytes), Ok(true));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(unpack::<bool>(own, version, &other).is_err(), "byte {at}");
        }
        for end in 0..bytes.len() {
            assert!(unpack::<bool>(own, version, &bytes[..end]).is_err(), "{end} bytes");
        }
        let below = WireVersion(version.0 - 1);
        assert!(unpack::<bool>(own, below, &bytes).is_err(), "taken for version {below}");
    }
    let refused = unpack::<bool>(WireRange::BUILT, WireVersion(NEWEST.0 + 1), &[1]);
    assert!(matches!(refused, Err(WireError::Version { .. })), "{refused:?}");
}
