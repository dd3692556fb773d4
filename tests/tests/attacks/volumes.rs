//! A task that may write to a folder which the machine lends swaps what is in it, all the time, for
//! a link to what it may not have; whoever borrows a folder inside would be given the machine's.

use crate::users::{Cell, can_run_containers};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_open_cell;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::Instant;
use tokio::time::sleep;

/// How often somebody borrows what is swapped meanwhile.
const BORROWERS: usize = 12;
/// Exchanges a folder and a link to a folder of the machine, in one step and without an end, and
/// says now and then how often it has.
const SWAP: &str = r#"my ($inner, $link, $count) = ("/data/inner", "/data/link", 0);
    symlink($ARGV[0], $link) or die $!; $| = 1; print "swaps\n";
    while (1) {
        syscall(316, -100, $inner, -100, $link, 2) == 0 or die $!;
        print "$count\n" if ++$count % 10000 == 0;
    }"#;
/// Between two times that it says so.
const SWAPS: u64 = 10_000;

/// Waits until it has swapped more often than that, and says how often.
async fn swapped_since(cell: &Cell<'_>, before: u64) -> u64 {
    let begun = Instant::now();
    loop {
        let output = cell.cell(&["logs", "dev/swaps/0"]);
        let count = output.lines().filter_map(|line| line.parse().ok()).max().unwrap_or(0);
        if count > before {
            return count;
        }
        assert!(begun.elapsed() < TIMEOUT, "it swaps no more after {before}: {output}");
        sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test]
async fn a_folder_that_is_swapped_while_it_is_borrowed_is_never_the_machines() {
    if !can_run_containers() {
        return;
    }
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: numbers of system calls are those of x86-64");
    }
    let folder = Folder::new();
    let (shared, private) = (folder.path("lent"), folder.path("kept"));
    fs::create_dir_all(shared.join("inner")).expect("a folder");
    fs::write(shared.join("inner/what"), "lent\n").expect("a file");
    fs::create_dir_all(&private).expect("a folder");
    fs::write(private.join("what"), "the machine's\n").expect("a file");
    for path in [&shared, &shared.join("inner")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("a mode");
        chown(path, Some(65_534), Some(65_534)).expect("nobody has it");
    }
    let lend = shared.to_str().expect("a path");
    let (process, address) =
        start_open_cell(&folder, &["--driver", "container", "--volume", lend]).await;
    let cell = Cell { folder: &folder, address };
    let borrow = |source: String| {
        json!({ "isolation": { "volumes": [
            { "source": source, "target": "/data", "writable": true }] } })
    };
    let mut swaps = borrow(lend.to_owned());
    swaps["command"] = json!(["perl", "-e", SWAP, private]);
    cell.run("swaps", "", &swaps);
    assert!(cell.wait_for_output("swaps", &[]).await.starts_with("swaps\n"));

    let read = "cat /data/what; echo over; exec sleep 1000";
    let (mut given, mut rejection, mut swapped) = (0, 0, 0);
    for number in 0..BORROWERS {
        swapped = swapped_since(&cell, swapped).await;
        let name = format!("borrows{number}");
        cell.run(&name, read, &borrow(format!("{lend}/inner")));
        let begun = Instant::now();
        let task = format!("dev/{name}/0");
        loop {
            let output = cell.cell(&["logs", &task, "--stdout"]);
            assert!(!output.contains("machine's"), "it was given what is not lent: {output}");
            if output.ends_with("over\n") {
                assert_eq!(output, "lent\nover\n");
                given += 1;
                break;
            }
            if cell
                .cell(&["logs", &task, "--stderr"])
                .contains("what this machine's operator lends")
            {
                rejection += 1;
                break;
            }
            assert!(begun.elapsed() < TIMEOUT, "{name}: {output}");
            sleep(POLL_INTERVAL).await;
        }
        cell.cell(&["stop", &format!("dev/{name}")]);
    }
    // Whichever was there when it was looked at: that is what was decided about, and given.
    assert_eq!(given + rejection, BORROWERS, "{given} {rejection}");
    // It was at it all the time, and still is.
    swapped = swapped_since(&cell, swapped).await;
    assert!(swapped > SWAPS * BORROWERS as u64, "{swapped} swaps");
    process.kill();
}
