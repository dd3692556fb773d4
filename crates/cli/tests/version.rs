//! The binary as cargo builds it says which release it is.
//!
//! Whole cells are tested in the crate `tests`, with the `cell` of the same build. Cargo builds a
//! binary beside the tests of its own package alone, so without this one there would be none.

use std::process::Command;

#[test]
fn the_binary_says_its_release() {
    let output = Command::new(env!("CARGO_BIN_EXE_cell")).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.starts_with(concat!("cell ", env!("CARGO_PKG_VERSION"))), "{text}");
}
