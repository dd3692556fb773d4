//! A pseudoterminal for a session: the end that the helper reads and writes. Once the last program
//! on the other end is gone, the kernel returns an error for reads, which cannot be told from an
//! end of file.

use cellwright_api::exec::TerminalSize;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;
use tokio::net::unix::pipe;

/// The helper's end.
pub struct Pty {
    own: OwnedFd,
}

impl Pty {
    /// A terminal of this size, and the end for the command.
    ///
    /// # Errors
    /// When the system has none left.
    pub fn open(size: TerminalSize) -> io::Result<(Pty, OwnedFd)> {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&own)?;
        unlockpt(&own)?;
        let name = ptsname(&own, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let commands = rustix::fs::open(&name, flags, Mode::empty())?;
        rustix::io::ioctl_fionbio(&own, true)?;
        let pty = Pty { own };
        pty.resize(size)?;
        Ok((pty, commands))
    }

    /// To read and to write. A pseudoterminal is no pipe, but can be polled for both as one can.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn ends(&self) -> io::Result<(pipe::Receiver, pipe::Sender)> {
        let output = pipe::Receiver::from_owned_fd_unchecked(self.own.try_clone()?)?;
        let input = pipe::Sender::from_owned_fd_unchecked(self.own.try_clone()?)?;
        Ok((output, input))
    }

    /// # Errors
    /// When the system refuses.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let TerminalSize { rows, columns } = size;
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.own, size)?)
    }
}
