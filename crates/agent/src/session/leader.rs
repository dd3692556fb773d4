//! `cell session-leader PROGRAM …`: makes the terminal on its standard input its own, in a session
//! of its own, and becomes the program. A process of its own because only between two programs may
//! this be done without `unsafe`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Comes back only when the program cannot be run.
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
