//! How a command reads a join token: from a file, from standard input, or typed without echo. Never
//! from the command line, which every account of the machine can read while the command runs
//! (`/proc/PID/cmdline`), and which shells keep in their history. No command takes a token from an
//! environment variable either; it would be readable by the same account and root, as the file is.

use crate::failure::Failure;
use cellwright_identity::contexts::read_private;
use cellwright_identity::enroll::JoinToken;
use cellwright_identity::secret::Secret;
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// An upper bound on the length of a token.
const MAX_TOKEN_BYTES: u64 = 4096;
/// Names standard input instead of a file.
const STDIN: &str = "-";
const TOKEN_SOURCES: &str =
    "--token-file FILE, or - for standard input; without it the token is asked for";

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// A file with the join token that only you can read (0600), or - for standard input
    /// [default: asked for on the terminal, else standard input]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// For a command that needs no token.
    pub const fn none() -> TokenArgs {
        TokenArgs { token_file: None }
    }

    pub fn is_given(&self) -> bool {
        self.token_file.is_some()
    }

    /// Reads the token from its source. `next`: the hint how to get one.
    pub fn read_token(&self, next: &str) -> Result<JoinToken, Failure> {
        let text = self.read_text()?;
        JoinToken::parse(text.expose()).map_err(|error| Failure::from_error(&error, next))
    }

    fn read_text(&self) -> Result<Secret, Failure> {
        let read_failed = |source_name: &str, why: io::Error| Failure::Operation {
            message: format!("{source_name}: {why}"),
            next: TOKEN_SOURCES.into(),
        };
        let stdin = io::stdin();
        match &self.token_file {
            Some(file) if file != Path::new(STDIN) => {
                let text = read_private(file, MAX_TOKEN_BYTES).map_err(|error| {
                    Failure::from_error(
                        &error,
                        "a file of your own that nobody else can read: chmod 600",
                    )
                })?;
                Ok(first_line(text.expose()))
            }
            None if stdin.is_terminal() => {
                read_without_echo().map_err(|why| read_failed("reading what is typed", why))
            }
            _ => {
                let mut line = String::new();
                let read = stdin.lock().take(MAX_TOKEN_BYTES).read_line(&mut line);
                read.map_err(|why| read_failed("standard input", why))?;
                if line.trim().is_empty() {
                    return Err(Failure::Usage {
                        message: "no token came by standard input".into(),
                        next: TOKEN_SOURCES.into(),
                    });
                }
                Ok(first_line(&line))
            }
        }
    }
}

/// The output of `cell token create` has the token in its first line.
fn first_line(text: &str) -> Secret {
    Secret::new(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Disables echo and signal keys of the terminal until dropped: a ctrl-c that ended the process
/// here would leave the terminal without echo for good.
struct NoEcho(Termios);

impl NoEcho {
    fn enter() -> io::Result<NoEcho> {
        let before = tcgetattr(io::stdin())?;
        let mut no_echo = before.clone();
        no_echo.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Flush, &no_echo)?;
        Ok(NoEcho(before))
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

fn read_without_echo() -> io::Result<Secret> {
    // Before the prompt: input typed as soon as the prompt appears is the answer.
    let no_echo = NoEcho::enter()?;
    crate::output::print_stderr("join token (it is not shown): ");
    let line = read_edited_line(io::stdin().lock().take(MAX_TOKEN_BYTES));
    drop(no_echo);
    crate::output::print_stderr("\n");
    line.map(|line| first_line(&line))
}

/// Reads a line and applies the terminal's editing keys.
fn read_edited_line(keys: impl BufRead) -> io::Result<String> {
    const CTRL_C: u8 = 3;
    const CTRL_D: u8 = 4;
    const BACKSPACE: u8 = 8;
    const CTRL_U: u8 = 21;
    const DELETE: u8 = 127;
    let mut line = Vec::new();
    for key in keys.bytes() {
        match key? {
            b'\n' | b'\r' | CTRL_D => break,
            CTRL_C => return Err(io::Error::new(io::ErrorKind::Interrupted, "given up")),
            BACKSPACE | DELETE => drop(line.pop()),
            CTRL_U => line.clear(),
            key => line.push(key),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Rejects a token among the arguments, whichever command it is: by the time it is read here,
/// others may have read it too.
pub fn reject_tokens_in_args(args: &[OsString]) -> Result<(), Failure> {
    let Some(id) = args.iter().filter_map(|arg| arg.to_str()).find_map(token_id) else {
        return Ok(());
    };
    Err(Failure::Usage {
        message: format!(
            "token {id} stands in the command line, where every account of this machine can read \
             it: it was not used"
        ),
        next: format!("cell token revoke {id}, make another, and give it by {TOKEN_SOURCES}"),
    })
}

/// The non-secret prefix of a complete token, of a user token or a join token.
fn token_id(word: &str) -> Option<&str> {
    if let Some((_, token)) = word.split_once("CELL-JOIN.") {
        // The secret follows the third dot; a file name such as CELL-JOIN.txt is not a token.
        let mut parts = token.split('.').skip(2);
        return parts.next().zip(parts.next()).map(|(id, _)| if id.is_empty() { "ID" } else { id });
    }
    let word = word.rsplit(['=', ' ']).next().unwrap_or(word);
    let (id, secret) = word.split_once('.')?;
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_id = id.strip_prefix('t').is_some_and(|rest| rest.len() >= 12 && hex(rest));
    (is_id && secret.len() == 64 && hex(secret)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_typed_and_mended_and_given_up() {
        for (keys, line) in [
            (&b"secret\n"[..], "secret"),
            (b"secret\rmore", "secret"),
            (b"sex\x7fcret\x04", "secret"),
            (b"wrong\x15secret", "secret"),
            (b"\x7f\n", ""),
        ] {
            assert_eq!(read_edited_line(keys).unwrap(), line);
        }
        let given_up = read_edited_line(&b"sec\x03ret\n"[..]).unwrap_err();
        assert_eq!(given_up.kind(), io::ErrorKind::Interrupted);
    }

    fn rejection(words: &[&str]) -> Option<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        reject_tokens_in_args(&words).err().map(|failure| failure.to_string())
    }

    #[test]
    fn a_token_among_the_words_is_refused_and_not_repeated() {
        let secret = "0b".repeat(32);
        let join = format!("CELL-JOIN.replica.m2.t0123456789ab.{secret}.{secret}");
        let user = format!("t0123456789ab.{secret}");
        let token_option = format!("--token={user}");
        for word in [&join, &user, &token_option, &format!("--join={join}")] {
            let message = rejection(&["cell", "master", "join", word]).expect("it is refused");
            assert!(message.contains("t0123456789ab") && !message.contains(&secret), "{message}");
        }
        let harmless = ["t0123456789ab", "a.b", "t01.example", "1.5", "./CELL-JOIN.m2.txt"];
        assert_eq!(rejection(&harmless), None);
    }
}
