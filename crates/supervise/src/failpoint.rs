//! Failpoints: how tests make a task panic in a real process, to see that its end is noticed.
//!
//! A failpoint is a name in the code. It panics once when a file of that name is in the folder that
//! `CELL_PLANT_PANIC` names, and removes the file. Only builds with debug assertions check: release
//! builds contain nothing to trigger, neither by the environment nor from outside.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Panics here if a test has requested it.
#[track_caller]
pub fn failpoint(point: &str) {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return;
    }
    let read = || std::env::var_os("CELL_PLANT_PANIC").map(PathBuf::from);
    let Some(folder) = FOLDER.get_or_init(read) else { return };
    if std::fs::remove_file(folder.join(point)).is_ok() {
        panic!("planted at\n{point}");
    }
}
