//! `cell-shim`, as it is installed beside `cell`: the arguments of `cell shim …`, and nothing else.
//!
//! There is a shim for every task, and its start is part of every start of a task. `cell` is fifty
//! times as large, and the dynamic loader relocates each of its 200,000 addresses before it begins;
//! here it relocates a few thousand. See `docs/decisions/0033-the-shim-is-a-program-of-its-own.md`.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    cellwright_shim::dispatch(&words).unwrap_or_else(|| {
        // Only agents and shims start it, and they know how.
        let _ = writeln!(std::io::stderr(), "cell-shim is started by `cell agent start`");
        ExitCode::from(2)
    })
}
