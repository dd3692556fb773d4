//! Images from a real registry (Debian's docker-registry), imported with the real binary and run as
//! tasks. Skipped with a message where the registry is not installed.

use crate::containers::{RootCell, can_run};
use crate::support::{Folder, cell, json, stdout_of, text};
use cellwright_cell::task::{TaskOutcome, TaskState};
use cellwright_identity::secret::{hex, sha256};
use serde_json::{Value, json as value};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Basic credentials of the only user, and the line of the registry's password file: `u` with the
/// password `pass word:1`, hashed at the lowest cost.
const AUTH: &str = "dTpwYXNzIHdvcmQ6MQ==";
const PASSWORDS: &str = "u:$2b$04$wrbKxailjEOl65atwUXjE.QvIBK5PTz8zj8sKYk8NmogzKnhY4pLW\n";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

struct Registry {
    child: Child,
    address: String,
    is_private: bool,
}

impl Registry {
    /// Returns `None` where it is not installed.
    fn start(folder: &Folder, is_private: bool) -> Option<Registry> {
        if Command::new("docker-registry").arg("--version").output().is_err() {
            println!("skipped: needs docker-registry");
            return None;
        }
        let data = folder.path("registry");
        let mut config = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {data}\n\
             http:\n  addr: 127.0.0.1:0\n  secret: not-used-twice\n"
        );
        if is_private {
            let passwords = folder.path("passwords");
            fs::write(&passwords, PASSWORDS).unwrap();
            config.push_str(&format!("auth:\n  htpasswd:\n    realm: r\n    path: {passwords}\n"));
        }
        let file = folder.path("registry.yml");
        fs::write(&file, config).unwrap();
        let mut child = Command::new("docker-registry")
            .args(["serve", &file])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the registry starts");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let (_, rest) = line.split_once("listening on ")?;
            Some(rest.split(['"', ' ']).next()?.to_owned())
        });
        // Its output must be read, or it blocks.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Registry { child, address: address.expect("it listens"), is_private })
    }

    /// Sends a request and returns head and body.
    fn request(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (String, Vec<u8>) {
        let auth = if self.is_private {
            format!("authorization: Basic {AUTH}\r\n")
        } else {
            String::new()
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{auth}\
             content-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let ends = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = text(&answer[..ends]);
        assert!(head.starts_with("HTTP/1.1 20"), "{method} {path}: {}", text(&answer));
        (head, answer.split_off(ends + 4))
    }

    fn push_blob(&self, kind: &str, content: &[u8]) -> Value {
        let digest = format!("sha256:{}", hex(&sha256(content)));
        let (head, _) = self.request("POST", "/v2/team/small/blobs/uploads/", kind, b"");
        let location = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
        });
        let location = location.expect("where to put it");
        let path = location.split_once(&self.address).map_or(&*location, |(_, path)| path);
        let put = format!("{path}&digest={digest}");
        self.request("PUT", &put, "application/octet-stream", content);
        value!({ "mediaType": kind, "digest": digest, "size": content.len() })
    }

    fn push_manifest(&self, version: &str, kind: &str, manifest: &Value) -> Value {
        let content = manifest.to_string().into_bytes();
        let digest = format!("sha256:{}", hex(&sha256(&content)));
        let version = if version.is_empty() { &digest } else { version };
        self.request("PUT", &format!("/v2/team/small/manifests/{version}"), kind, &content);
        value!({ "mediaType": kind, "digest": digest, "size": content.len() })
    }

    /// Pushes an image with these layers for every platform a test may run on, and for an unknown
    /// one.
    fn push(&self, tag: &str, layers: &[Vec<u8>]) {
        let layer = "application/vnd.oci.image.layer.v1.tar+gzip";
        let layers: Vec<Value> = layers.iter().map(|c| self.push_blob(layer, c)).collect();
        let mut images = Vec::new();
        for architecture in ["s390x", "amd64", "arm64"] {
            let config = value!({ "os": "linux", "architecture": architecture,
                "config": { "Entrypoint": ["/bin/sh"] } });
            let kind = "application/vnd.oci.image.config.v1+json";
            let config = self.push_blob(kind, config.to_string().as_bytes());
            let manifest = value!({ "schemaVersion": 2, "mediaType": MANIFEST,
                "config": config, "layers": layers });
            let mut image = self.push_manifest("", MANIFEST, &manifest);
            image["platform"] = value!({ "os": "linux", "architecture": architecture });
            images.push(image);
        }
        let index = value!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": images });
        self.push_manifest(tag, INDEX, &index);
    }

    fn image(&self, version: &str) -> String {
        format!("docker://{}/team/small{version}", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().expect("it can be ended");
        self.child.wait().expect("it is gone");
    }
}

/// The content of `folder` as a compressed layer.
fn layer(folder: &Path) -> Vec<u8> {
    let folder_path = folder.to_str().unwrap();
    let made =
        Command::new("tar").args(["czf", "-", "-C", folder_path, "."]).output().expect("tar runs");
    assert!(made.status.success(), "{}", text(&made.stderr));
    made.stdout
}

/// A small root file system: a shell, and a file that the second layer removes.
fn layers(folder: &Folder) -> Vec<Vec<u8>> {
    let (below, above) = (folder.0.join("below"), folder.0.join("above"));
    fs::create_dir_all(below.join("bin")).unwrap();
    fs::create_dir_all(&above).unwrap();
    fs::copy("/bin/busybox", below.join("bin/busybox")).expect("busybox is there");
    fs::set_permissions(below.join("bin/busybox"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("busybox", below.join("bin/sh")).unwrap();
    fs::write(below.join("old"), "old").unwrap();
    fs::write(above.join(".wh.old"), "").unwrap();
    fs::write(above.join("new"), "from the second layer\n").unwrap();
    vec![layer(&below), layer(&above)]
}

#[test]
fn an_image_of_a_private_registry_becomes_a_package() {
    let folder = Folder::new();
    let Some(registry) = Registry::start(&folder, true) else { return };
    registry.push("v1", &layers(&folder));
    let (image, to) = (registry.image(":v1"), folder.path("small.package"));
    let import = ["package", "import", &image, "--to", &to];
    let denied = cell(&import);
    let error = text(&denied.stderr);
    assert_eq!(denied.status.code(), Some(1), "{error}");
    assert!(error.contains(&format!("{image}: manifest v1: access is denied")), "{error}");
    assert!(error.contains("--credentials FILE"), "{error}");
    assert!(!Path::new(&to).exists());
    let auth = folder.path("auth.json");
    let entry = value!({ "auths": { &registry.address: { "auth": AUTH } } });
    fs::write(&auth, entry.to_string()).unwrap();
    let import = [&import[..], &["--credentials", &auth]].concat();
    let imported = json(&[&import[..], &["-o", "json"]].concat());
    let displayed = stdout_of(&["package", "show", &to]);
    assert!(displayed.contains("bin/busybox") && displayed.contains(" new"), "{displayed}");
    assert!(!displayed.contains(" old\n"), "{displayed}");
    // The reported reference with its digest imports the same package again.
    let pinned = imported["image"]["reference"].as_str().unwrap();
    assert!(pinned.contains("@sha256:"), "{pinned}");
    let again = folder.path("again.package");
    let by_digest = ["package", "import", pinned, "--to", &again, "--credentials", &auth];
    assert!(stdout_of(&by_digest).contains(imported["digest"].as_str().unwrap()));
    let other = cell(&[&import[..], &["--platform", "linux/mips"]].concat());
    let error = text(&other.stderr);
    assert!(error.contains("one of linux/s390x, linux/amd64, linux/arm64"), "{error}");
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn a_task_runs_in_an_image_from_a_registry() {
    let folder = Folder::new();
    let Some(registry) = Registry::start(&folder, false) else { return };
    if !can_run("an image from a registry") {
        return;
    }
    registry.push("latest", &layers(&folder));
    let package = folder.path("small.package");
    stdout_of(&["package", "import", &registry.image(""), "--to", &package]);
    let lab = RootCell::open("container");
    let push = ["--master", &lab.address, "package", "push", &package, "--name", "small"];
    let pushed = json(&[&push[..], &["-o", "json"]].concat());
    let more = value!({
        "packages": [pushed], "isolation": { "root": "small" },
        "command": ["/bin/sh", "-c", "/bin/busybox cat /new; test ! -e /old"],
    });
    lab.run("small", "", more);
    let state = lab.end_state("small");
    assert_eq!(
        state,
        TaskState::Dead(TaskOutcome::Finished),
        "{}",
        lab.log("small", &["--stderr"])
    );
    assert_eq!(lab.log("small", &[]), "from the second layer\n");
    lab.stop();
}

#[test]
fn what_cannot_be_fetched_says_what_to_type() {
    let folder = Folder::new();
    let Some(registry) = Registry::start(&folder, false) else { return };
    let to = folder.path("x.package");
    let check = |image: &str, code: i32, parts: &[&str]| {
        let output = cell(&["package", "import", image, "--to", &to]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        parts.iter().for_each(|part| assert!(error.contains(part), "{part}: {error}"));
    };
    check(
        &registry.image(":none"),
        1,
        &["manifest none", "MANIFEST_UNKNOWN", "check name and tag"],
    );
    check("docker://127.0.0.1:1/x", 1, &["127.0.0.1:1", "next: check the host's name"]);
    check("alpine:3.20", 2, &["no file", "cell package import docker://alpine:3.20"]);
    check("docker://Alpine", 2, &["names no image", "docker://HOST[:PORT]/NAME"]);
    let file = cell(&["package", "import", "Makefile", "--insecure-http"]);
    assert_eq!(file.status.code(), Some(2));
    assert!(text(&file.stderr).contains("--insecure-http is for registries"));
    assert!(!Path::new(&to).exists());
}
