//! `scripts/campaign.sh` with a stand-in for cargo: what it takes for a success, what it does not,
//! and what of the report is left by a run of some parts.

use cellwright_tests::binary::text;
use cellwright_tests::folder::Folder;
use cellwright_tests::skip;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Says what the file `answer` beside it says, for the words it was called with.
const CARGO: &str = r#"#!/bin/bash
echo "$*" >>"$STAND_IN/asked"
case "$*" in
*promises_hold*) eval "$(cat "$STAND_IN/seeds")" ;;
*"--test faults"*"--test machines"*) eval "$(cat "$STAND_IN/build")" ;;
*"--test faults"*) eval "$(cat "$STAND_IN/faults")" ;;
*"--test machines"*) eval "$(cat "$STAND_IN/machines")" ;;
"fuzz build"*) eval "$(cat "$STAND_IN/fuzz-build")" ;;
"fuzz run"*) eval "$(cat "$STAND_IN/fuzz")" ;;
esac
"#;

/// A copy of the script in a folder that is laid out as the sources are.
struct Sources(Folder);

impl Sources {
    fn new() -> Sources {
        let sources = Sources(Folder::new());
        let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for script in ["campaign.sh", "powercut.sh", "leftovers.sh"] {
            let script = format!("scripts/{script}");
            sources.write(&script, &fs::read(real.join(&script)).expect("a script"));
        }
        sources.write("fuzz/Cargo.toml", b"[[bin]]\nname = \"dns\"\n[[bin]]\nname = \"oci\"\n");
        sources.write("fuzz/corpus/dns/kept", b"kept");
        sources.write("Cargo.lock", b"");
        sources.write("bin/cargo", CARGO.as_bytes());
        sources.write("bin/rustc", b"#!/bin/bash\necho rustc of today\n");
        sources.write("bin/seeds", br#"echo "seeds $CELL_SEEDS: 2 ran, 0 failed""#);
        sources.write("bin/fuzz", br#"echo "Done 77 runs in 1 second(s)""#);
        sources.write("bin/build", b"true");
        sources.write("bin/fuzz-build", b"true");
        sources.write("bin/faults", b"sleep 1; echo 'test result: ok. 14 passed; 0 failed'");
        sources.write("bin/machines", b"echo 'test result: ok. 5 passed; 0 failed'");
        sources
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.0.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, content).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }

    /// Whether it went well, and the rows of the report without what differs from run to run.
    fn campaign(&self, parts: &[&str]) -> (bool, Vec<String>) {
        let bin = self.0.path("bin");
        let path = std::env::var("PATH").expect("a path");
        let mut script = Command::new(self.0.path("scripts/campaign.sh"));
        script.args(parts).env("PATH", format!("{}:{path}", bin.display()));
        script.env("STAND_IN", &bin).env("CARGO_TARGET_DIR", self.0.path("target"));
        script.env("CELL_CAMPAIGN_SEEDS", "2").env("CELL_CAMPAIGN_CUTS", "3");
        script.env("CELL_CAMPAIGN_FAULT_SECONDS", "1");
        script.env("CELL_CAMPAIGN_FUZZ_SECONDS", "1").env("CELL_FAULTLAB", self.0.path("lab"));
        script.env("CELL_BINARY", "/bin/true").env("CELL_POWERCUT_LOAD", "/bin/true");
        let done = script.output().expect("it runs");
        let report = fs::read_to_string(self.0.path("bench/reports/campaign.md"));
        let report = report.unwrap_or_else(|why| panic!("{why}: {}", text(&done.stderr)));
        let rows = report.lines().skip_while(|line| !line.starts_with("|---"));
        let row = |line: &str| line.split(" | ").take(3).collect::<Vec<_>>().join(" | ");
        (done.status.success(), rows.skip(1).map(row).collect())
    }
}

#[test]
fn each_part_replaces_its_own_rows_and_no_others() {
    let sources = Sources::new();
    let fuzz =
        ["| fuzz dns | 1 s | no finding in 77 runs", "| fuzz oci | 1 s | no finding in 77 runs"];
    assert_eq!(sources.campaign(&["fuzz"]), (true, fuzz.map(str::to_owned).to_vec()));
    let seeds = "| seeds | 2 simulated cells, seeds 1000000 to 1000001 | ";
    let healed = format!("{seeds}all kept every promise and healed");
    let all = [&[healed.as_str()], &fuzz[..]].concat();
    assert_eq!(sources.campaign(&["seeds"]), (true, all.iter().map(|s| (*s).to_owned()).collect()));
    sources.write("bin/seeds", b"echo '4 runs failed:'; exit 101");
    let failed = format!("{seeds}**failed**: 4 runs, in 1 lots of 1000");
    let all = [&[failed.as_str()], &fuzz[..]].concat();
    assert_eq!(
        sources.campaign(&["seeds"]),
        (false, all.iter().map(|s| (*s).to_owned()).collect())
    );
}

#[test]
fn what_was_not_run_has_not_passed() {
    for (part, file, said, expected) in [
        ("seeds", "seeds", "true", "**failed**: 0 runs, in 1 lots of 1000"),
        ("seeds", "seeds", "echo seeds 0..1000: 1000 ran, 0 failed", "**failed**: 0 runs"),
        ("powercuts", "seeds", "true", "**not run**: skipped: "),
        ("fuzz", "fuzz", "echo Done 0 runs", "**nothing was tried**"),
        ("fuzz", "fuzz", "exit 77", "**finding**, see fuzz/artifacts/dns"),
        ("fuzz", "fuzz-build", "exit 1", "**they do not build**"),
        ("faults", "build", "exit 1", "**they do not build**"),
    ] {
        let sources = Sources::new();
        sources.write(&format!("bin/{file}"), said.as_bytes());
        let (passed, rows) = sources.campaign(&[part]);
        assert!(!passed && rows[0].contains(expected), "{part}, {said}: {passed} {rows:?}");
        assert!(sources.0.path("fuzz/corpus/dns/kept").exists());
    }
}

#[test]
fn a_round_of_faults_has_tests_of_both_kinds() {
    for (machines, passed) in [
        ("echo 'test result: ok. 5 passed; 0 failed'", true),
        ("echo 'test result: ok. 0 passed; 0 failed'", false),
        ("echo 'test result: ok. 5 passed; 0 failed'; exit 101", false),
    ] {
        let sources = Sources::new();
        sources.write("bin/machines", machines.as_bytes());
        let (went_well, rows) = sources.campaign(&["faults"]);
        assert_eq!(went_well, passed, "{machines}: {rows:?}");
    }
}

#[test]
fn power_cuts_under_a_master_that_acknowledges_nothing_have_not_passed() {
    if !rustix::process::geteuid().is_root() {
        return skip("power is cut by root alone");
    }
    for (acked, lost, passed) in [(12, 0, true), (0, 0, false), (12, 1, false)] {
        let sources = Sources::new();
        let says = format!(
            "#!/bin/bash\necho cut=3 acked={acked} recovered=20 ok\necho cuts=3 bad={lost}\n\
             exit {lost}\n"
        );
        sources.write("lab/powercut.sh", says.as_bytes());
        let (went_well, rows) = sources.campaign(&["powercuts"]);
        assert_eq!(went_well, passed, "{acked} {lost}: {rows:?}");
    }
}
