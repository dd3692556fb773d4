//! Packages made to harm the machine that unpacks them, brought past the command line, which makes
//! none such: each is refused by the agent with a reason its owner can read, leaves nothing behind,
//! and the agent goes on. And a job that names a package nobody has yet.

use cellwright_api::types::{Changed, EventView};
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_identity::secret::{hex, sha256};
use cellwright_tests::machines::{Machines, MachinesPlan, SLEEP_FOREVER, on};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tar::{EntryType, Header};

/// What the packages of a machine may take: 4096 entries, a block for each.
const PACKAGE_BYTES: &str = "package_bytes = 16777216";

struct Hostile {
    name: &'static str,
    members: Vec<Vec<u8>>,
    /// Of the reason that its owner is told.
    reason: &'static str,
}

/// A member of an archive, written past the checks of the library: an attacker has none.
fn member(kind: EntryType, path: &str, link: &str, content: &[u8]) -> Vec<u8> {
    let mode = if kind == EntryType::Directory { 0o755 } else { 0o644 };
    with_mode(kind, path, link, content, (mode, content.len() as u64))
}

fn with_mode(
    kind: EntryType,
    path: &str,
    link: &str,
    content: &[u8],
    (mode, bytes): (u32, u64),
) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(bytes);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let fields = header.as_ustar_mut().expect("such a header");
    fields.name[..path.len()].copy_from_slice(path.as_bytes());
    fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    let mut whole = [&header.as_bytes()[..], content].concat();
    whole.resize(whole.len().next_multiple_of(512), 0);
    whole
}

fn file(path: &str) -> Vec<u8> {
    member(EntryType::Regular, path, "", b"harm")
}

fn folder(path: &str) -> Vec<u8> {
    member(EntryType::Directory, path, "", b"")
}

/// A package that is whole in itself, so that it is refused for what is in it.
fn package(members: &[Vec<u8>]) -> Vec<u8> {
    let mut body = members.concat();
    body.resize(body.len() + 1024, 0);
    let chunks: Vec<String> = body.chunks(1 << 20).map(|chunk| hex(&sha256(chunk))).collect();
    let head = json!({
        "format": 1, "chunk_bytes": 1 << 20, "body_bytes": body.len(), "chunks": chunks,
    });
    let head = head.to_string();
    [member(EntryType::Regular, ".cellwright-package", "", head.as_bytes()), body].concat()
}

/// `victim` is a folder on the machine.
fn all(victim: &Path) -> Vec<Hostile> {
    let hostile = |name, members, reason| Hostile { name, members, reason };
    let victim = victim.to_str().expect("a path in UTF-8");
    let (out, kept) = (format!("{victim}/escaped"), format!("{victim}/kept"));
    let link = |path: &str, to: &str| member(EntryType::Symlink, path, to, b"");
    let hard = |path: &str, to: &str| member(EntryType::Link, path, to, b"");
    let special = |kind| member(kind, "escaped", "", b"");
    let sized = |mode, bytes| with_mode(EntryType::Regular, "f", "", b"harm", (mode, bytes));
    let many = (0..5000).map(|n| folder(&format!("d{n:04}")));
    vec![
        hostile("climbs", vec![file("../../../escaped")], "a part . or .."),
        hostile("absolute", vec![file(&out)], "starts at the root"),
        hostile("follows", vec![link("l", victim), file("l/escaped")], "starts at the root"),
        hostile("leaves", vec![link("l", "../.."), file("l/escaped")], "above the package's root"),
        hostile("inside", vec![folder("d"), link("l", "d"), file("l/escaped")], "in a link"),
        hostile("hardlink", vec![hard("escaped", &kept)], "starts at the root"),
        hostile("device", vec![special(EntryType::Block)], "a device"),
        hostile("pipe", vec![special(EntryType::Fifo)], "a FIFO"),
        hostile("setuid", vec![sized(0o4755, 4)], "mode 4755"),
        hostile("claims", vec![sized(0o644, 1 << 40)], "bytes unpacked; allowed: at most"),
        hostile("bomb", many.collect(), "bytes on disk; allowed: at most"),
    ]
}

/// Brings it to the masters as any program could, and says what a job names it by.
async fn put(cell: &Machines, name: &str, bytes: &[u8]) -> Value {
    let digest = hex(&sha256(bytes));
    let path = cell.masters.folder.path(&format!("{name}.package"));
    fs::write(&path, bytes).expect("written");
    cell.until("it is stored", async |cell| {
        let target = format!("/v1/blobs/{digest}");
        cell.client().put_file::<Changed>(&target, &path, &Arc::default()).await.ok().map(drop)
    })
    .await;
    json!({ "name": name, "digest": digest, "bytes": bytes.len() })
}

/// What the command line explains of the first task, on one line.
fn explained(cell: &Machines, job: &str) -> String {
    let explanation =
        cell.masters.cell(&["explain", &format!("admin/{job}/0")]).expect("an explanation");
    explanation.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Everything below a folder that is called like this.
fn found(folder: &Path, called: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(called) {
            found.push(entry.path());
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(self::found(&entry.path(), called));
        }
    }
    found
}

/// Has the first machine run from it, which fails for this reason and leaves nothing.
async fn check_rejected(cell: &Machines, hostile: &Hostile) {
    let Hostile { name, members, reason } = hostile;
    let mut job = cell.job(name, 1, "exit 0");
    job["task"]["packages"] = json!([put(cell, name, &package(members)).await]);
    job["constraints"] = on(1);
    cell.submit(&job).await;
    let end = TaskState::Dead(TaskOutcome::Failed(ExitClass::CouldNotStart));
    cell.wait_for_tasks(name, |task| task.state == end).await;
    let why = explained(cell, name);
    assert!(why.contains("could not start: ") && why.contains(reason), "{name}: {why}");
    let events = cell.events(name).await;
    let is_start_failure = |event: &EventView| event.text.contains("could not start");
    assert!(events.iter().any(is_start_failure), "{name}: {events:#?}");
    let packages = cell.data(1).join("packages");
    for place in ["files", "folders", "incoming"] {
        assert_eq!(names(&packages.join(place)), Vec::<String>::new(), "{name}: {place}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_packages_touch_nothing_and_their_owners_are_told_why() {
    let Some(mut cell) =
        Machines::launch_with(&MachinesPlan { agents: PACKAGE_BYTES, ..MachinesPlan::default() })
            .await
    else {
        return;
    };
    let victim = cell.masters.folder.path("victim");
    fs::create_dir(&victim).expect("a folder");
    fs::write(victim.join("kept"), "as it was").expect("written");
    for hostile in all(&victim) {
        check_rejected(&cell, &hostile).await;
    }
    assert_eq!(names(&victim), ["kept"]);
    assert_eq!(fs::read_to_string(victim.join("kept")).expect("read"), "as it was");
    assert_eq!(fs::metadata(victim.join("kept")).expect("it is there").nlink(), 1);
    assert_eq!(found(&cell.masters.folder.0, "escaped"), Vec::<PathBuf>::new());
    // The same agent goes on as before.
    let mut fine =
        cell.job("fine", 1, &format!("cat \"$CELL_PACKAGES/fine/f\" || exit 3{SLEEP_FOREVER}"));
    fine["task"]["packages"] = json!([put(&cell, "fine", &package(&[file("f")])).await]);
    fine["constraints"] = on(1);
    cell.submit(&fine).await;
    cell.wait_until_running("fine").await;
    assert!(cell.agent(1).is_alive());
    assert_eq!(cell.agent_starts(1), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_may_come_before_its_package_and_is_told_so_until_it_comes() {
    let Some(cell) = Machines::launch().await else { return };
    let bytes = package(&[file("f")]);
    let digest = hex(&sha256(&bytes));
    let mut early =
        cell.job("early", 1, &format!("cat \"$CELL_PACKAGES/late/f\" || exit 3{SLEEP_FOREVER}"));
    early["task"]["packages"] = json!([{ "name": "late", "digest": digest, "bytes": bytes.len() }]);
    cell.submit(&early).await;
    cell.until("a machine looks for it", async |cell| {
        (cell.tasks("early").await.first()?.state == TaskState::Assigned).then_some(())
    })
    .await;
    let expected = format!("package late ({}) is not in the cell: bring it with", &digest[..12]);
    let explanation = explained(&cell, "early");
    assert!(explanation.starts_with(&expected), "{explanation}");
    put(&cell, "late", &bytes).await;
    let tasks = cell.wait_until_running("early").await;
    assert_eq!(tasks[0].attempt, 1, "no start has failed");
    assert!(!explained(&cell, "early").contains("is not in the cell"));
}
