//! Another account of the machine looks into the files of a master: none is open to it, and a
//! folder that is open to others is not served from.

use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_secure_master;
use cellwright_tests::process::Process;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What others have of a file or folder.
fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777
}

/// Every file and folder in this one, and itself.
fn all_entries(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() {
        let inside = fs::read_dir(path).expect("a folder").flatten();
        found.extend(inside.flat_map(|entry| all_entries(&entry.path())));
    }
    found
}

/// As an operator whose files are open to everybody unless a program says otherwise.
fn start(folder: &Folder) -> Process {
    let mut start = Command::new("sh");
    start.args(["-c", r#"umask 0; exec "$0" "$@""#]).arg(cell());
    start.args(["master", "start", "--config"]).arg(folder.path("master.toml"));
    Process::start(start, &folder.path("again.log"))
}

#[tokio::test]
async fn what_a_master_keeps_is_for_its_account_alone() {
    let folder = Folder::new();
    let (process, address) = start_secure_master(&folder).await;
    process.kill();
    let data = folder.path("guarded");
    let mut master = start(&folder);
    let begun = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(master.is_alive() && begun.elapsed() < TIMEOUT, "{}", master.output());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let own = |words: &[&str]| {
        let mut command = Command::new(cell());
        command_output(command.arg("--contexts").arg(folder.path("contexts.toml")).args(words))
    };
    own(&["user", "add", "ann"]).expect("something is kept");
    own(&["checkpoint", "save"]).expect("and saved");
    let package = folder.path("package");
    fs::create_dir(&package).expect("a folder");
    fs::write(package.join("program"), "what it runs").expect("a file");
    let pushed = own(&["package", "push", package.to_str().expect("a path"), "--name", "web"]);
    pushed.expect("a package");
    own(&["sql", "SELECT count(*) FROM events"]).expect("history answers");
    let kept = all_entries(&data);
    for part in ["log", "checkpoints", "history", "blobs", "identity"] {
        let is_of = |path: &PathBuf| path.starts_with(data.join(part)) && path.is_file();
        assert!(kept.iter().any(is_of), "nothing of {part} was looked at: {kept:#?}");
    }
    let open = kept.iter().filter(|path| {
        if path.is_dir() {
            // To pass through is not to read; behind the first folder nobody else gets to another.
            **path == data && mode(path) & 0o077 != 0
        } else {
            mode(path) & 0o077 != 0
        }
    });
    let mode_line = |path: &PathBuf| format!("{} {:o}", path.display(), mode(path));
    let open: Vec<String> = open.map(mode_line).collect();
    assert_eq!(open, Vec::<String>::new());
    let limits = fs::read_to_string(format!("/proc/{}/limits", master.id())).expect("it runs");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    let words: Vec<&str> = core.split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "a crash leaves no memory behind: {core}");
    master.kill();

    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut master = start(&folder);
    assert!(!master.ended().await.success());
    let output = master.output();
    assert!(output.contains("is open to others: its mode is 0755"), "{output}");
    assert_eq!(mode(&data), 0o755, "a person is to see it");
}
