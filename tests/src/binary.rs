//! The `cell` binary that belongs to these sources.
//!
//! Cargo tells a test where a binary is only if both are of one package. So it is asked to build it
//! once more, which in a run of the whole workspace is a look at what is there already: the same
//! packages and targets with tests are named, lest other features mean another build.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
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
pub fn said(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } =
        command.output().map_err(|why| format!("{command:?}: {why}"))?;
    match status.success() {
        true => Ok(text(&stdout)),
        false => Err(format!("{command:?}: {status}: {}", text(&stderr).trim())),
    }
}
