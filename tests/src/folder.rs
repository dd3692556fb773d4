//! A folder of its own for each test, gone with it, and with all that ran in it.

use crate::leftovers;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Folder(pub PathBuf);

impl Folder {
    #[must_use]
    pub fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("cellwright-tests-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder can be made");
        // Tasks of an agent that is root are nobody, and meet their test here.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, open).expect("it is opened to all");
        Folder(path)
    }

    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Folder {
    fn default() -> Folder {
        Folder::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        leftovers::remove(&self.0);
    }
}
