//! Whole cells of real processes: hosts that are network namespaces, the real `cell` binary, and a
//! ledger of what clients were promised.
//!
//! The simulator finds more, and finds it again; what it cannot show is that the program as it is
//! installed keeps its promises on a real kernel: real sockets that hang, real signals, real disks.
//! So these tests are few, and each is about a fault that only exists outside the process.
//!
//! Everything here is for tests, so what goes wrong is a panic that says what.

pub mod binary;
pub mod browser;
pub mod dns;
pub mod folder;
pub mod guide;
pub mod hosts;
pub mod ledger;
pub mod leftovers;
pub mod load;
pub mod local_cell;
pub mod machines;
pub mod process;
pub mod replicas;

use std::time::Duration;

/// Bounds every wait; nothing takes nearly as long.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks at something that cannot be watched.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Says that a test cannot be made here, and why.
///
/// Only those who are not root, where `CI` is not set, and whoever asks for it with
/// `CELL_TEST_SKIP=1`, can go without a test: a machine where root runs them has what they need, or
/// it is a failure. What is skipped quietly where everything is meant to be tested is tested
/// nowhere.
pub fn skip(why: &str) {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let is_root = rustix::process::geteuid().is_root();
    let may = is_set("CELL_TEST_SKIP") || !is_root && !is_set("CI");
    assert!(may, "{why}; scripts/install-tools.sh test, or CELL_TEST_SKIP=1 to go without");
    println!("skipped: {why}");
}
