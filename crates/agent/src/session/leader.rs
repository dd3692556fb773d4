//! `cell session-leader PROGRAM …`: makes the terminal on its standard input the controlling
//! terminal of a new session, and executes the program. A process of its own because without
//! `unsafe` this can only be done between two `exec`s.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Returns only when the program cannot be executed.
#[must_use]
pub fn run(words: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = words.split_first() else { return ExitCode::from(127) };
    let own =
        rustix::process::setsid().and_then(|_| rustix::process::ioctl_tiocsctty(std::io::stdin()));
    if let Err(error) = own {
        eprintln!("cell: no terminal for {}: {error}", program.display());
        return ExitCode::from(126);
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("cell: cannot start {}: {error}", program.display());
    ExitCode::from(super::helper::shell_exit_code(&error))
}
