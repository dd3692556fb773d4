//! Images made here, member by member, and the packages they become.

use super::*;
use crate::digest::PackageDigest;
use crate::testing::{Folder, list_names};
use crate::unpack::{Listed, list, unpack};
use flate2::Compression as Level;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::fs;
use tar::{EntryType, Header};

type Raw<'a> = (EntryType, &'a str, &'a str, u32, &'a [u8]);

fn tar_of(members: &[Raw<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, path, link, mode, content) in members {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_uid(1000);
        header.set_mtime(1_700_000_000);
        header.set_size(content.len() as u64);
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn file<'a>(path: &'a str, content: &'a [u8]) -> Raw<'a> {
    (EntryType::Regular, path, "", 0o644, content)
}

fn folder(path: &str) -> Raw<'_> {
    (EntryType::Directory, path, "", 0o755, b"")
}

fn link<'a>(path: &'a str, to: &'a str) -> Raw<'a> {
    (EntryType::Symlink, path, to, 0o777, b"")
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[derive(Default)]
struct Layout(Vec<(String, Vec<u8>)>);

impl Layout {
    fn blob(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let digest = PackageDigest::of(&content).to_string();
        let size = content.len();
        self.0.push((format!("blobs/sha256/{digest}"), content));
        json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
    }

    fn json(&mut self, media_type: &str, value: &Value) -> Value {
        self.blob(media_type, value.to_string().into_bytes())
    }

    /// A whole image; the second and later layers are compressed.
    fn of(layers: &[Vec<u8>]) -> Layout {
        let mut layout = Layout::default();
        let layers: Vec<Value> = layers
            .iter()
            .enumerate()
            .map(|(at, layer)| match at {
                0 => layout.blob("application/vnd.oci.image.layer.v1.tar", layer.clone()),
                _ => layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", gzipped(layer)),
            })
            .collect();
        let config = layout.json(
            "application/vnd.oci.image.config.v1+json",
            &json!({"os": "linux", "architecture": "amd64", "config": {
                "Entrypoint": ["/bin/server"], "Cmd": ["--port", "80"], "Env": ["A=b"],
                "WorkingDir": "/srv", "User": "1000"}}),
        );
        let manifest = layout.json(
            "application/vnd.oci.image.manifest.v1+json",
            &json!({"config": config, "layers": layers}),
        );
        layout.0.push(("index.json".into(), json!({"manifests": [manifest]}).to_string().into()));
        layout
    }

    fn write(&self, path: &Path) {
        let members: Vec<Raw<'_>> = self.0.iter().map(|(name, b)| file(name, b)).collect();
        fs::write(path, tar_of(&members)).unwrap();
    }

    fn import(&self, dir: &Folder) -> Result<Imported, PackageError> {
        let archive = dir.path("image.tar");
        self.write(&archive);
        let limits = Limits { entries: 100, bytes: 1 << 20, disk: 1 << 20 };
        import(&archive, &dir.path("package"), Some("linux/amd64"), limits)
    }
}

fn listing(dir: &Folder) -> Vec<Listed> {
    let path = dir.path("package");
    let bytes = fs::metadata(&path).unwrap().len();
    list(File::open(path).unwrap(), bytes, Limits::default()).unwrap().1
}

/// Imports the layers; each line is a path and what it is.
fn check(layers: &[Vec<u8>], expected: &[&str]) -> Imported {
    let dir = Folder::new();
    let imported = Layout::of(layers).import(&dir).unwrap();
    let lines: Vec<String> = listing(&dir)
        .into_iter()
        .map(|line| match line.target {
            Some(target) => format!("{} {} {target}", line.path, line.kind),
            None => format!("{} {} {:o} {}", line.path, line.kind, line.mode.unwrap(), line.bytes),
        })
        .collect();
    assert_eq!(lines, expected);
    assert_eq!(dir.list(), ["image.tar", "package"], "no leftovers");
    let package = File::open(dir.path("package")).unwrap();
    let into = dir.path("into");
    let built = imported.built;
    unpack(package, built.bytes, &into, Limits::default(), Some(built.digest)).unwrap();
    imported
}

#[test]
fn later_layers_lie_over_earlier_ones() {
    let below =
        tar_of(&[folder("./"), folder("./etc/"), file("./etc/a", b"old"), file("./etc/b", b"b")]);
    let above = tar_of(&[file("etc/a", b"newer"), (EntryType::Directory, "tmp/", "", 0o1777, b"")]);
    let imported = check(
        &[below, above],
        &["etc folder 755 0", "etc/a file 644 5", "etc/b file 644 1", "tmp folder 1777 0"],
    );
    assert_eq!((imported.layers, imported.platform.as_str()), (2, "linux/amd64"));
    assert_eq!(imported.command, ["/bin/server", "--port", "80"]);
    assert_eq!((imported.env, imported.user.as_str()), (vec!["A=b".to_owned()], "1000"));
}

#[test]
fn whiteouts_take_from_below_and_not_from_their_own_layer() {
    let below = tar_of(&[
        folder("d/"),
        file("d/a", b"a"),
        file("d/b", b"b"),
        folder("e/"),
        file("e/x", b"x"),
    ]);
    let above = tar_of(&[
        file("e/new", b"n"),
        file("d/.wh.a", b""),
        file("e/.wh..wh..opq", b""),
        file("d/.wh.missing", b""),
    ]);
    check(
        &[below, above],
        &["d folder 755 0", "d/b file 644 1", "e folder 755 0", "e/new file 644 1"],
    );
}

#[test]
fn links_are_followed_within_the_image_and_rewritten_to_stay_there() {
    let below = tar_of(&[
        folder("usr/"),
        folder("usr/bin/"),
        link("bin", "usr/bin"),
        link("abs", "/usr/bin"),
        link("usr/bin/up", "../../../../etc/x"),
        link("usr/odd", "bin/../../abs"),
        link("loop", "loop"),
        link("plain", "./usr"),
    ]);
    let above = tar_of(&[file("bin/tool", b"t"), file("abs/other", b"o")]);
    let imported = check(
        &[below, above],
        &[
            "abs link usr/bin",
            "bin link usr/bin",
            "loop link loop",
            "plain link ./usr",
            "usr folder 755 0",
            "usr/bin folder 755 0",
            "usr/bin/other file 644 1",
            "usr/bin/tool file 644 1",
            "usr/bin/up link ../../etc/x",
            "usr/odd link ../abs",
        ],
    );
    assert_eq!(imported.dropped.rewritten_links, 3);
}

#[test]
fn hard_links_are_kept_and_devices_are_not() {
    let layer = tar_of(&[
        (EntryType::Regular, "su", "", 0o4755, b"su"),
        (EntryType::Link, "z", "su", 0o644, b""),
        (EntryType::Char, "null", "", 0o666, b""),
        (EntryType::Fifo, "pipe", "", 0o666, b""),
        (EntryType::Regular, "shut", "", 0o000, b"s"),
    ]);
    let imported = check(&[layer], &["shut file 400 1", "su file 755 2", "z hard link su"]);
    let dropped = Dropped { devices: 2, owner_modes: 1, rewritten_links: 0 };
    assert_eq!(imported.dropped, dropped);
}

#[test]
fn hostile_and_damaged_images_are_refused_and_leave_nothing() {
    let check_rejected = |layout: &Layout, expected: &str| {
        let dir = Folder::new();
        let error = layout.import(&dir).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(list_names(dir.root()), ["image.tar"], "{expected}");
    };
    let layer = |members: &[Raw<'_>]| Layout::of(&[tar_of(members)]);
    check_rejected(&layer(&[file("../x", b"")]), "a part . or ..");
    check_rejected(&layer(&[file("a", b""), file("a/b", b"")]), "no folder");
    check_rejected(&layer(&[(EntryType::Link, "a", "gone", 0, b"")]), "names an earlier file");
    // Links that each lead deep into the next, and a path through all of them.
    let far = "d/".repeat(40);
    let targets: Vec<String> = (0..30).map(|n| format!("l{}/{far}", n + 1)).collect();
    let links: Vec<String> = (0..30).map(|n| format!("l{n}")).collect();
    let mut chained: Vec<Raw<'_>> =
        links.iter().zip(&targets).map(|(path, to)| link(path, to)).collect();
    chained.push(file("l0/x", b""));
    check_rejected(&layer(&chained), "a path of more than 400 parts");
    let bomb = Layout::of(&[tar_of(&[]), vec![0; 2 << 20]]);
    check_rejected(&bomb, "bytes unpacked; allowed: at most");
    let mut damaged = layer(&[file("a", b"content")]);
    damaged.0[0].1[600] ^= 1;
    check_rejected(&damaged, "digest is");
    let mut missing = layer(&[]);
    missing.0.remove(0);
    check_rejected(&missing, "is missing");
    check_rejected(&Layout::default(), "no index.json");
    let other = json!({"manifests": [{"digest": "sha256:0", "size": 1,
        "platform": {"os": "plan9", "architecture": "mips\u{1b}[2J"}}]});
    let other = Layout(vec![("index.json".into(), other.to_string().into())]);
    check_rejected(&other, r"plan9/mips\u{1b}[2J");
}
