//! The Python client against real cells: its own tests, run by the Python of this machine.

use cellwright_tests::binary::command_output;
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::{start_open_cell, start_secure_master};
use std::path::Path;
use std::process::Command;

#[tokio::test]
async fn the_python_client_reaches_open_and_guarded_cells() {
    let folder = Folder::new();
    let (_cell, address) = start_open_cell(&folder, &["--driver", "process"]).await;
    let (_master, _) = start_secure_master(&folder).await;
    let mut tests = Command::new("python3");
    tests.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python"));
    tests.args(["-m", "unittest", "discover", "--start-directory", "tests"]);
    tests.env("CELL_ADDR", address).env("CELL_CONTEXTS", folder.path("contexts.toml"));
    tests.env("PYTHONDONTWRITEBYTECODE", "1");
    command_output(&mut tests).expect("the client's tests pass");
}
