//! The `cell` binary that belongs to these sources.
//!
//! Cargo tells a test where a binary is only if both are of one package. So it is asked to build it
//! once more, which in a run of the whole workspace is a look at what is there already: the same
//! packages and targets with tests are named, lest other features mean another build.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The program; `CELL_BINARY` names another one.
pub fn cell() -> &'static Path {
    static CELL: OnceLock<PathBuf> = OnceLock::new();
    CELL.get_or_init(|| match std::env::var_os("CELL_BINARY") {
        Some(path) => path.into(),
        None => build(),
    })
}

fn build() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its file");
    // <target>/<profile>/deps/<test>
    let profile = own.ancestors().nth(2).expect("cargo's folders").to_owned();
    let target = profile.parent().expect("cargo's folders");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command.args(["build", "--quiet", "--locked", "--workspace", "--bin", "cell"]);
    // Agents find it beside the program.
    command.args(["--bin", "cell-shim"]);
    command.args(["--test", "cell"]).env("CARGO_TARGET_DIR", target);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let done = command.status().expect("cargo runs");
    assert!(done.success(), "the cell binary does not build");
    profile.join("cell")
}

#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command to its end and says what it wrote, or why it failed.
///
/// # Errors
/// What it said when it did not end well.
pub fn command_output(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } =
        command.output().map_err(|why| format!("{command:?}: {why}"))?;
    if status.success() {
        Ok(text(&stdout))
    } else {
        Err(format!("{command:?}: {status}: {}", text(&stderr).trim()))
    }
}

/// Runs `cell master join` and, once it shows its fingerprint, confirms that, as an operator who
/// reads one screen and types at another.
///
/// # Errors
/// What the newcomer or the cell said instead.
pub fn join_and_confirm(
    command: &mut Command,
    confirm: impl FnOnce(&str) -> Result<String, String>,
) -> Result<(), String> {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(|why| format!("{command:?}: {why}"))?;
    let stdout = child.stdout.take().ok_or("no output")?;
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let fingerprint = lines.find_map(|line| {
        let typed = line.trim().strip_prefix("cell master confirm ")?.split_once(' ')?.1.to_owned();
        Some(typed)
    });
    let confirmed = fingerprint.map(|fingerprint| confirm(&fingerprint)).transpose();
    if confirmed.is_err() {
        // It would wait for as long as its token is good.
        let _ = child.kill();
    }
    // Read to the end, so that it can write to it.
    lines.for_each(drop);
    let Output { status, stderr, .. } =
        child.wait_with_output().map_err(|why| format!("{command:?}: {why}"))?;
    confirmed?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {status}: {}", text(&stderr).trim()))
    }
}
