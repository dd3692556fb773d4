//! Hostile packages: each is consistent in itself (head, chunks, digest), so that it is rejected
//! for its content. After each, the folder around the target is as it was.

use super::*;
use crate::build::build;
use crate::head::plain_header;
use crate::testing::{Folder, list_names, write_tree};
use cellwright_identity::secret::sha256;
use proptest::prelude::*;
use std::os::unix::fs::{MetadataExt, symlink};
use tar::Header;

/// A member as a header and its bytes.
type Raw = (Header, Vec<u8>);

fn raw(kind: EntryType, path: &str, link: &str, content: &[u8]) -> Raw {
    let mode = if kind == EntryType::Directory { 0o755 } else { 0o644 };
    let mut header = plain_header(kind, mode, content.len() as u64);
    // Written past the checks of the library: an attacker has none.
    let ustar = header.as_ustar_mut().unwrap();
    ustar.name[..path.len()].copy_from_slice(path.as_bytes());
    ustar.linkname[..link.len()].copy_from_slice(link.as_bytes());
    (header, content.to_vec())
}

fn file(path: &str, content: &[u8]) -> Raw {
    raw(EntryType::Regular, path, "", content)
}

fn folder(path: &str) -> Raw {
    raw(EntryType::Directory, path, "", b"")
}

fn package(members: Vec<Raw>) -> Vec<u8> {
    let mut body = Vec::new();
    for (mut header, content) in members {
        header.set_cksum();
        body.extend_from_slice(header.as_bytes());
        body.extend_from_slice(&content);
        body.resize(body.len().next_multiple_of(512), 0);
    }
    body.resize(body.len() + 1024, 0);
    with_head(&body)
}

fn with_head(body: &[u8]) -> Vec<u8> {
    let chunks: Vec<[u8; 32]> =
        body.chunks(crate::head::CHUNK_BYTES as usize).map(sha256).collect();
    let mut whole = Head::render(&chunks, body.len() as u64).unwrap();
    whole.extend_from_slice(body);
    whole
}

fn unpacked(bytes: &[u8], into: &Path) -> Result<Unpacked, PackageError> {
    let limits = Limits { entries: 50, bytes: 1 << 16, disk: 52 * 4096 };
    unpack(bytes, bytes.len() as u64, into, limits, Some(PackageDigest::of(bytes)))
}

/// The package is rejected with this error, and nothing is left of the attempt.
fn check_rejected(members: Vec<Raw>, expected: &str) {
    let dir = Folder::new();
    fs::write(dir.path("victim"), "untouched").unwrap();
    let error = unpacked(&package(members), &dir.path("into")).unwrap_err().to_string();
    assert!(error.contains(expected), "{expected}: {error}");
    assert_eq!(dir.list(), ["victim"], "{expected}");
    assert_eq!(fs::read_to_string(dir.path("victim")).unwrap(), "untouched", "{expected}");
}

#[test]
fn what_was_built_comes_back() {
    let dir = Folder::new();
    let from = dir.path("from");
    let deep = format!("{}/{}", "d".repeat(200), "n".repeat(200));
    write_tree(&from, &[("bin/run", "#!/bin/sh\n"), (&deep, "deep"), ("empty", "")]);
    fs::create_dir(from.join("nothing")).unwrap();
    fs::set_permissions(from.join("bin/run"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("../empty", from.join("bin/link")).unwrap();
    let far = "t/".repeat(80);
    symlink(&far, from.join("far")).unwrap();
    let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(from.join("big"), &big).unwrap();
    let built = build(&from, &dir.path("p")).unwrap();
    let into = dir.path("into");
    let open = || File::open(dir.path("p")).unwrap();
    let done = unpack(open(), built.bytes, &into, Limits::default(), Some(built.digest)).unwrap();
    assert_eq!((done.digest, done.entries), (built.digest, built.entries));
    assert_eq!(done.bytes, built.content);
    assert_eq!(fs::read(into.join("big")).unwrap(), big);
    assert_eq!(fs::read_to_string(into.join(&deep)).unwrap(), "deep");
    assert_eq!(fs::read_link(into.join("bin/link")).unwrap(), Path::new("../empty"));
    assert_eq!(fs::read_link(into.join("far")).unwrap(), Path::new(&far));
    assert_eq!(fs::metadata(into.join("bin/run")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(list_names(&into.join("nothing")), Vec::<String>::new());
    let again = build(&into, &dir.path("q")).unwrap();
    assert_eq!(again.digest, built.digest);
    let (digest, listed) = list(open(), built.bytes, Limits::default()).unwrap();
    assert_eq!((digest, listed.len() as u64), (built.digest, built.entries));
    let taken = unpack(open(), built.bytes, &into, Limits::default(), None);
    assert!(matches!(taken, Err(PackageError::Exists { .. })));
}

#[test]
fn what_everybody_may_write_in_an_image_nobody_else_may_write_here() {
    let dir = Folder::new();
    let (mut shared, mut program) = (folder("tmp"), file("tmp/run", b"x"));
    shared.0.set_mode(0o1777);
    program.0.set_mode(0o777);
    let into = dir.path("into");
    unpacked(&package(vec![shared, program]), &into).unwrap();
    let mode = |path: &str| fs::metadata(into.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("tmp"), mode("tmp/run")), (0o1755, 0o755));
}

#[test]
fn many_empty_entries_take_more_than_their_bytes() {
    let mut many: Vec<Raw> = (0..48).map(|n| folder(&format!("d{n:02}"))).collect();
    many.push(file("z", &[1; 20_000]));
    check_rejected(many, "the package has 217088 bytes on disk; allowed: at most 212992");
}

#[test]
fn paths_that_lead_out_are_refused() {
    for path in ["/etc/x", "../victim", "a/../../victim", "..", "./a", "a//b", ""] {
        let rule = match path {
            "" => "it is empty",
            path if path.starts_with('/') => "starts at the root",
            "a//b" => "empty part",
            _ => "a part . or ..",
        };
        check_rejected(vec![folder("a"), file(path, b"x")], rule);
    }
    let mut not_text = file("a", b"");
    not_text.0.as_ustar_mut().unwrap().name[1] = 0xff;
    check_rejected(vec![not_text], "not UTF-8");
    check_rejected(vec![file("a/b", b"x")], "a folder that is missing");
}

#[test]
fn links_that_lead_out_are_refused_and_none_is_followed() {
    let link = |path: &str, to: &str| raw(EntryType::Symlink, path, to, b"");
    check_rejected(vec![link("a", "/etc")], "starts at the root");
    check_rejected(vec![link("a", "../victim")], "above the package's root");
    check_rejected(vec![folder("d"), link("d/a", "../../victim")], "above the package's root");
    check_rejected(vec![link("s", "."), link("a", "s/../victim")], ".. after a name");
    check_rejected(vec![folder("d"), link("l", "d"), file("l/x", b"x")], "in a link");
    check_rejected(vec![link("l", "victim"), file("l", b"x")], "there twice");
    check_rejected(vec![link("l", "l"), file("l/x", b"x")], "in a link");
    check_rejected(vec![file("f", b""), file("f/x", b"x")], "in a file");
    check_rejected(vec![link("a", "")], "target is empty");
}

#[test]
fn hard_links_name_earlier_files_only() {
    let link = |path: &str, to: &str| raw(EntryType::Link, path, to, b"");
    let names_earlier = "names an earlier file";
    check_rejected(vec![link("a", "/etc/passwd")], "starts at the root");
    check_rejected(vec![link("a", "../victim")], "a part . or ..");
    check_rejected(vec![link("a", "b"), file("b", b"")], names_earlier);
    check_rejected(vec![link("a", "a")], names_earlier);
    let symbolic = raw(EntryType::Symlink, "d/l", "../x", b"");
    check_rejected(vec![folder("d"), symbolic, link("h", "d/l")], names_earlier);
    check_rejected(vec![folder("d"), link("h", "d")], names_earlier);
    let dir = Folder::new();
    let fine = package(vec![folder("d"), file("d/f", b"one"), link("h", "d/f")]);
    let done = unpacked(&fine, &dir.path("into")).unwrap();
    assert_eq!((done.entries, done.bytes), (3, 3));
    let inode = |name: &str| fs::metadata(dir.path("into").join(name)).unwrap().ino();
    assert_eq!(inode("h"), inode("d/f"));
}

#[test]
fn devices_pipes_and_other_kinds_are_refused() {
    for (kind, words) in [
        (EntryType::Char, "a device"),
        (EntryType::Block, "a device"),
        (EntryType::Fifo, "a FIFO"),
        (EntryType::GNUSparse, "a sparse file"),
        (EntryType::Continuous, "a contiguous file"),
        (EntryType::new(b'Z'), "of an unknown kind"),
    ] {
        check_rejected(vec![raw(kind, "x", "", b"")], words);
    }
    let mut owner_root = file("x", b"");
    owner_root.0.set_mode(0o4755);
    check_rejected(vec![owner_root], "mode 4755");
    let mut shut = folder("x");
    shut.0.set_mode(0o555);
    check_rejected(vec![shut], "mode 555");
    check_rejected(vec![raw(EntryType::Directory, "x", "", b"bytes")], "is no file");
}

#[test]
fn sizes_and_counts_are_claims_until_they_are_seen() {
    let many = (0..51).map(|n| file(&format!("f{n:03}"), b"")).collect();
    check_rejected(many, "51 entries; allowed: at most 50");
    let large = vec![0; 1 << 15];
    let three = ["a", "b", "c"].map(|path| file(path, &large)).into();
    check_rejected(three, "98304 bytes unpacked; allowed: at most 65536");
    let mut huge = file("a", b"short");
    huge.0.set_size(1 << 50);
    check_rejected(vec![huge], "bytes unpacked; allowed");
    let mut cut = file("a", b"short");
    cut.0.set_size(60_000);
    check_rejected(vec![cut], "cannot be read");
    let mut name = raw(EntryType::GNULongName, "x", "", b"");
    name.0.set_size(1 << 40);
    check_rejected(vec![name], "bytes of extended header; allowed");
    let extended = |record: &[u8]| raw(EntryType::XHeader, "x", "", record);
    check_rejected(vec![extended(b"18 path=../victim\n"), file("a", b"")], "a part . or ..");
    check_rejected(vec![extended(b"12 size=99\n\n"), file("a", b"x")], "");
    check_rejected(vec![extended(b"11 size=99\n"), file("a", b"x")], "different lengths");
    let long_name = raw(EntryType::GNULongName, "x", "", b"/etc/passwd\0");
    check_rejected(vec![long_name, file("a", b"")], "starts at the root");
}

#[test]
fn damage_is_found_before_a_byte_is_used() {
    let dir = Folder::new();
    let good = package(vec![file("a", b"content")]);
    let into = dir.path("into");
    for at in [good.len() - 2000, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let error = unpacked(&bad, &into).unwrap_err();
        assert!(matches!(error, PackageError::DamagedChunk { chunk: 0 }), "{error}");
    }
    let other = PackageDigest::of(b"other");
    let error = unpack(&good[..], good.len() as u64, &into, Limits::default(), Some(other));
    assert!(matches!(error, Err(PackageError::OtherContent { .. })), "{error:?}");
    for cut in [0, 100, 512, 600, good.len() - 1] {
        assert!(unpacked(&good[..cut], &into).is_err(), "{cut}");
    }
    let mut more = good.clone();
    more.push(0);
    assert!(unpacked(&more, &into).is_err());
    assert_eq!(dir.list(), Vec::<String>::new());
    unpacked(&good, &into).unwrap();
    assert_eq!(fs::read(into.join("a")).unwrap(), b"content");
}

/// Names an attacker would try, and some that are fine.
const NAMES: &[&str] =
    &["a", "b", "a/b", "a/b/c", "..", "../v", "/v", ".", "a/..", "a/../../v", "l"];
const KINDS: &[u8] = b"0125364LKxgS7";

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// For any members: unpacked or not, only `into` can be new, and everything in it leads back
    /// into it.
    #[test]
    fn nothing_outside_is_touched(
        picks in prop::collection::vec(
            (0..KINDS.len(), 0..NAMES.len(), 0..NAMES.len(), 0..9_u8), 0..8)
    ) {
        let dir = Folder::new();
        fs::write(dir.path("v"), "untouched").unwrap();
        let members = picks.iter().map(|(kind, path, link, size)| {
            let content = vec![b'x'; usize::from(*size) * usize::from(*kind == 0)];
            raw(EntryType::new(KINDS[*kind]), NAMES[*path], NAMES[*link], &content)
        });
        let result = unpacked(&package(members.collect()), &dir.path("into"));
        let left = dir.list();
        prop_assert_eq!(&left[left.len() - 1], "v");
        prop_assert_eq!(left.len(), if result.is_ok() { 2 } else { 1 });
        prop_assert_eq!(fs::read_to_string(dir.path("v")).unwrap(), "untouched");
        if result.is_ok() {
            prop_assert!(stays_inside(&dir.path("into")));
        }
    }

    /// Bytes that are no archive at all end in an error, not in a panic.
    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..4096), framed: bool) {
        let dir = Folder::new();
        let bytes = if framed { with_head(&noise) } else { noise };
        let fine = unpacked(&bytes, &dir.path("into")).is_ok();
        prop_assert_eq!(dir.list().len(), usize::from(fine));
    }
}

/// Every link below leads to something below, or to nothing.
fn stays_inside(root: &Path) -> bool {
    let canonical = fs::canonicalize(root).unwrap();
    let mut open = vec![root.to_owned()];
    while let Some(here) = open.pop() {
        for entry in fs::read_dir(&here).unwrap() {
            let path = entry.unwrap().path();
            if fs::canonicalize(&path).is_ok_and(|real| !real.starts_with(&canonical)) {
                return false;
            }
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                open.push(path);
            }
        }
    }
    true
}
