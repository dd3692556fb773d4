//! The Python client against real cells: its own tests, run by the Python of this machine.

use cellwright_tests::alone::{guarded_master, open_cell};
use cellwright_tests::binary::said;
use cellwright_tests::folder::Folder;
use std::path::Path;
use std::process::Command;

#[tokio::test]
async fn the_python_client_reaches_open_and_guarded_cells() {
    let folder = Folder::new();
    let (_cell, address) = open_cell(&folder, &["--driver", "process"]).await;
    let (_master, _) = guarded_master(&folder).await;
    let mut tests = Command::new("python3");
    tests.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python"));
    tests.args(["-m", "unittest", "discover", "--start-directory", "tests"]);
    tests.env("CELL_ADDR", address).env("CELL_CONTEXTS", folder.path("contexts.toml"));
    tests.env("PYTHONDONTWRITEBYTECODE", "1");
    said(&mut tests).expect("the client's tests pass");
}
