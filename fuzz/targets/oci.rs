//! An image archive: any bytes are refused and leave nothing, or become a package.

use cellwright_package::oci::import;
use cellwright_package::unpack::Limits;
use std::fs;
use std::path::PathBuf;

const LIMITS: Limits = Limits { entries: 10_000, bytes: 1 << 24, disk: 1 << 26 };

/// Memory, where there is a file system in it.
fn folder() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    let base = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = base.join(format!("cellwright-fuzz-oci-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for one image");
    folder
}

/// Whether they became one.
pub fn run(bytes: &[u8]) -> bool {
    let folder = folder();
    let (archive, target) = (folder.join("image.tar"), folder.join("image.package"));
    fs::write(&archive, bytes).expect("an image is written");
    let imported = import(&archive, &target, None, LIMITS);
    assert_eq!(imported.is_ok(), target.exists(), "a package exists whole or not at all");
    let _ = fs::remove_file(&target);
    let left: Vec<_> = fs::read_dir(&folder).expect("the folder").flatten().collect();
    assert_eq!(left.len(), 1, "left behind: {left:?}");
    fs::remove_dir_all(&folder).expect("the folder goes");
    imported.is_ok()
}
