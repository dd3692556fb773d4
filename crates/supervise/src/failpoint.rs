//! Planted panics: how tests see that the end of a task is noticed, on processes as they are run.
//!
//! A point is a name in the code. It panics once when a file of that name is in the folder that
//! `CELL_PLANT_PANIC` names, and takes the file away. Only builds with debug assertions look: in
//! what is shipped there is nothing to trigger, neither by the environment nor by anybody outside.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Panics here if a test wants it.
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
