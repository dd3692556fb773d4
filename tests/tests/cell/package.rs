//! Packages, tested with the real binary: built, stored in a running cell, described, removed.

use crate::support::{Folder, Running, TIMEOUT, cell, command, json, stdout_of, text};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

fn server(folder: &Folder) -> String {
    let path = folder.0.join("server");
    std::fs::create_dir_all(path.join("bin")).unwrap();
    std::fs::write(path.join("bin/run"), "#!/bin/sh\n").unwrap();
    std::fs::write(path.join("data"), "some data").unwrap();
    path.display().to_string()
}

fn check_rejected(args: &[&str], code: i32, part: &str) {
    let output = cell(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(error.contains(part) && error.contains("next: "), "{args:?}: {error}");
}

#[test]
fn a_folder_becomes_a_file_that_any_tar_lists() {
    let folder = Folder::new();
    let (from, to) = (server(&folder), folder.path("server.package"));
    let built = json(&["package", "build", &from, "--to", &to, "-o", "json"]);
    assert_eq!((&built["entries"], &built["content_bytes"]), (&3.into(), &19.into()));
    let again = stdout_of(&["package", "build", &from, "--to", &folder.path("again")]);
    assert!(again.contains(built["digest"].as_str().unwrap()), "{again}");
    assert!(again.contains("next: cell package push"), "{again}");
    let displayed = json(&["package", "show", &to, "-o", "json"]);
    assert_eq!(displayed["digest"], built["digest"]);
    let paths: Vec<&str> = displayed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["bin", "bin/run", "data"]);
    let listed = std::process::Command::new("tar").args(["tf", &to]).output().expect("tar runs");
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    assert!(text(&listed.stdout).contains("bin/run"), "{}", text(&listed.stdout));
    std::os::unix::fs::symlink("/etc/passwd", folder.0.join("server/out")).unwrap();
    check_rejected(&["package", "build", &from, "--to", &folder.path("bad")], 1, "\"out\"");
    check_rejected(&["package", "show", "Makefile"], 1, "not a package");
    check_rejected(&["package", "import", &to], 1, "index.json");
    check_rejected(
        &["package", "show", "no such thing"],
        2,
        "neither a file nor a digest nor a name",
    );
}

/// A prefix shorter than the digest in lists removes nothing.
fn removed_by_what_is_listed(rm: &[&str], digest: &str) {
    let remove = |digits: &str| cell(&[rm, &[digits]].concat());
    let (beginning, listed) = (remove(&digest[..8]), &digest[..12]);
    let printed = text(&beginning.stderr);
    assert_eq!(beginning.status.code(), Some(2), "{printed}");
    assert!(printed.contains(&format!(" package rm {listed}\n")), "{printed}");
    assert!(text(&remove(listed).stdout).contains("removed"));
}

/// A package that a job names can be found by that name; a package in use is not removed, and the
/// error says how to end the jobs that use it.
fn known_by_the_name_of(cell: &[&str], digest: &str) {
    let with = |verb, name| [cell, &["package", verb, name]].concat();
    let displayed = stdout_of(&with("show", "server"));
    assert!(displayed.contains(digest) && displayed.contains("bin/run"), "{displayed}");
    check_rejected(&with("show", "serve"), 1, "no job calls a package serve");
    check_rejected(&with("rm", "server"), 1, "is needed by dev/early");
    check_rejected(&with("rm", "server"), 1, "next: cell stop dev/early; then");
}

#[test]
fn a_package_is_stored_with_a_cell_shown_and_removed() {
    let folder = Folder::new();
    let data = folder.path("data");
    let dev = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--machines", "1"];
    let running = Running::spawn_args(&dev);
    let address = running.address();
    let with = |args: &[&'static str]| [&["--master", &address][..], args].concat();
    let from = server(&folder);
    let push = [&with(&["package", "push"])[..], &[&from, "--name", "server"]].concat();
    let stored = json(&[&push[..], &["-o", "json"]].concat());
    let digest = stored["digest"].as_str().unwrap();
    assert_eq!(stored["name"], "server");
    let again = stdout_of(&push);
    assert!(again.contains("was stored already") && again.contains(digest), "{again}");
    let listed = json(&with(&["package", "ls", "-o", "json"]));
    assert_eq!(listed[0]["digest"], digest);
    assert_eq!(listed[0]["bytes"], stored["bytes"]);
    assert_eq!(listed[0]["held"], true);
    assert!(again.contains("next: cell run FILE"), "{again}");
    let bytes = folder.path(&format!("data/blobs/{digest}"));
    std::fs::remove_file(&bytes).unwrap();
    assert!(stdout_of(&with(&["package", "ls"])).contains("lost: push it again"));
    let mended = stdout_of(&push);
    assert!(mended.contains("stored again: the masters had lost its bytes"), "{mended}");
    assert!(stdout_of(&push).contains("was stored already"));
    assert!(!stdout_of(&with(&["package", "ls"])).contains("lost"));
    let named = [&with(&["package", "push"])[..], &[&from, "--name", "a/b"]].concat();
    let misnamed = cell(&named);
    assert_eq!(misnamed.status.code(), Some(2));
    let printed = text(&misnamed.stderr);
    assert!(printed.contains("allowed: 1 to 128 letters, digits, -, _ and ."), "{printed}");
    let short = &digest[..8];
    let displayed = stdout_of(&[&with(&["package", "show"])[..], &[short]].concat());
    assert!(displayed.contains(digest) && displayed.contains("bin/run"), "{displayed}");
    removed_by_what_is_listed(&with(&["package", "rm"]), digest);
    check_rejected(
        &[&with(&["package", "rm"])[..], &[short]].concat(),
        1,
        "no package begins with",
    );
    assert!(text(&cell(&with(&["package", "ls"])).stderr).contains("no packages"));
    // A job may be submitted before its package, with a warning.
    let spec = serde_json::json!({
        "name": "early", "count": 1, "priority": 100,
        "task": {
            "limits": { "cpu": "100m", "ram": 32 << 20 }, "command": ["run"], "packages": [stored],
        },
    });
    let file = folder.path("early.json");
    std::fs::write(&file, spec.to_string()).unwrap();
    let planned = stdout_of(&[&with(&["plan"])[..], &[&file]].concat());
    let planned = planned.split_whitespace().collect::<Vec<_>>().join(" ");
    let missing = format!("package server ({}) is not in the cell", &digest[..12]);
    assert!(planned.contains(&missing), "{planned}");
    let run = cell(&[&with(&["run"])[..], &[&file]].concat());
    let warned = text(&run.stderr);
    assert!(run.status.success() && warned.contains("warning: package server ("), "{warned}");
    assert!(warned.contains("next: cell package push FILE --name server"), "{warned}");
    stdout_of(&push);
    assert_eq!(text(&cell(&[&with(&["run"])[..], &[&file]].concat()).stderr), "");
    let listed = json(&with(&["package", "ls", "-o", "json"]));
    let of = |field: &str| listed[0][field].clone();
    assert_eq!(of("names"), serde_json::json!(["server"]));
    assert_eq!((of("used_by"), of("uses")), (serde_json::json!(["dev/early"]), 1.into()));
    let displayed = stdout_of(&with(&["package", "ls"]));
    assert!(displayed.contains(" server ") && displayed.ends_with(" dev/early\n"), "{displayed}");
    known_by_the_name_of(&["--master", &address], digest);
    pinned_by_its_image(&folder, &["--master", &address], digest);
    running.stop();
}

/// A job that names an image holds the digest that the cell has, by whatever it names it.
fn pinned_by_its_image(folder: &Folder, at: &[&str], digest: &str) {
    let file = folder.path("pinned.json");
    let write = |image: &str| {
        let spec = serde_json::json!({
            "name": "pinned", "priority": 100, "cpu": 0.1, "ram": "32Mi", "command": ["run"],
            "image": image,
        });
        std::fs::write(&file, spec.to_string()).unwrap();
    };
    write(&format!("server:2@{}", &digest[..12]));
    let planned = cell(&[at, &["plan", &file]].concat());
    let pinned = format!("is package {digest}");
    assert!(text(&planned.stderr).contains(&pinned), "{}", text(&planned.stderr));
    stdout_of(&[at, &["run", &file]].concat());
    let status = json(&[at, &["status", "pinned", "-o", "json"]].concat());
    let task = &status["job"]["spec"]["task"];
    assert_eq!(task["isolation"]["root"], "server-2", "{task}");
    assert_eq!(
        (&task["packages"][0]["digest"], &task["packages"][1]),
        (&digest.into(), &serde_json::Value::Null)
    );
    // By the name that jobs have for it, and never by one that they have not.
    write("server:2");
    let again = stdout_of(&[at, &["run", &file]].concat());
    assert!(again.contains("unchanged"), "{again}");
    for (image, code, part) in [
        ("nothing", 1, "no job calls a package nothing"),
        ("docker://alpine:3.20", 1, "is in a registry"),
    ] {
        write(image);
        let output = cell(&[at, &["run", &file]].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn an_import_that_is_told_to_stop_leaves_nothing() {
    let folder = Folder::new();
    // Nothing is ever written to this pipe, so the import is busy until it is stopped.
    let image = folder.path("image.tar");
    assert!(Command::new("mkfifo").arg(&image).status().expect("mkfifo runs").success());
    let to = folder.path("x.package");
    let mut import = command(&["package", "import", &image, "--to", &to]);
    let import = import.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("cell starts");
    let deadline = Instant::now() + TIMEOUT;
    while names(&folder.0).len() < 2 {
        assert!(Instant::now() < deadline, "it never began: {:?}", names(&folder.0));
        std::thread::yield_now();
    }
    let pid = import.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    let ended = import.wait_with_output().expect("it ends");
    let error = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert!(error.contains("stopped, and nothing of it was kept"), "{error}");
    assert_eq!(names(&folder.0), ["image.tar"]);
}
