//! How a command gets a join token: from a file, from standard input, or typed unseen. Never from
//! the command line, which every account of a machine reads for as long as the command runs
//! (`/proc/PID/cmdline`), and which shells keep in their history. A variable of the environment is
//! for the same account and root alone, as the file is, and no command takes a token from one.

use crate::failure::Failure;
use cellwright_api::context::read_private;
use cellwright_identity::enroll::JoinToken;
use cellwright_identity::secret::Secret;
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// More than any token has.
const MOST_BYTES: u64 = 4096;
/// Stands for standard input.
const STDIN: &str = "-";
const WAYS: &str = "--token-file FILE, or - for standard input; without it the token is asked for";

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// A file with the join token that only you can read (0600), or - for standard input
    /// [default: asked for on the terminal, else standard input]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// For a command that needs none.
    pub const fn none() -> TokenArgs {
        TokenArgs { token_file: None }
    }

    pub fn is_given(&self) -> bool {
        self.token_file.is_some()
    }

    /// The token, from wherever it comes. `next`: how to get one.
    pub fn token(&self, next: &str) -> Result<JoinToken, Failure> {
        let text = self.text()?;
        JoinToken::parse(text.expose()).map_err(|error| Failure::work(&error, next))
    }

    fn text(&self) -> Result<Secret, Failure> {
        let unread = |what: &str, why: io::Error| Failure::Work {
            message: format!("{what}: {why}"),
            next: WAYS.into(),
        };
        let stdin = io::stdin();
        match &self.token_file {
            Some(file) if file != Path::new(STDIN) => {
                let text = read_private(file, MOST_BYTES).map_err(|error| {
                    Failure::work(&error, "a file of your own that nobody else can read: chmod 600")
                })?;
                Ok(first_line(text.expose()))
            }
            None if stdin.is_terminal() => {
                typed_unseen().map_err(|why| unread("reading what is typed", why))
            }
            _ => {
                let mut line = String::new();
                let read = stdin.lock().take(MOST_BYTES).read_line(&mut line);
                read.map_err(|why| unread("standard input", why))?;
                if line.trim().is_empty() {
                    return Err(Failure::Usage {
                        message: "no token came by standard input".into(),
                        next: WAYS.into(),
                    });
                }
                Ok(first_line(&line))
            }
        }
    }
}

/// What `cell token create` prints begins with the token.
fn first_line(text: &str) -> Secret {
    Secret::new(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// The terminal shows nothing while this lives, and passes every key on: a ctrl-c that ended the
/// process here would leave a terminal that shows nothing for good.
struct Unseen(Termios);

impl Unseen {
    fn begin() -> io::Result<Unseen> {
        let before = tcgetattr(io::stdin())?;
        let mut unseen = before.clone();
        unseen.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Flush, &unseen)?;
        Ok(Unseen(before))
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        // A terminal that is gone needs no mending.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

fn typed_unseen() -> io::Result<Secret> {
    // Before it is asked for: what is typed the moment the question is there is the answer.
    let unseen = Unseen::begin()?;
    crate::output::warn("join token (it is not shown): ");
    let line = line_of_keys(io::stdin().lock().take(MOST_BYTES));
    drop(unseen);
    crate::output::warn("\n");
    line.map(|line| first_line(&line))
}

/// What was typed up to the end of the line, with the keys that terminals know for mending it.
fn line_of_keys(keys: impl BufRead) -> io::Result<String> {
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

/// Refuses a token among the words of a command, whichever command it is: by the time it is read
/// here others may have read it too.
pub fn check_words(words: &[OsString]) -> Result<(), Failure> {
    let Some(id) = words.iter().filter_map(|word| word.to_str()).find_map(id_of_token) else {
        return Ok(());
    };
    Err(Failure::Usage {
        message: format!(
            "token {id} stands in the command line, where every account of this machine can read \
             it: it was not used"
        ),
        next: format!("cell token revoke {id}, make another, and give it by {WAYS}"),
    })
}

/// What stands before the secret in a whole token, of a user or to join with.
fn id_of_token(word: &str) -> Option<&str> {
    if let Some((_, token)) = word.split_once("CELL-JOIN.") {
        // Its secret stands behind the third dot; a file may well be called CELL-JOIN.txt.
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
            assert_eq!(line_of_keys(keys).unwrap(), line);
        }
        let given_up = line_of_keys(&b"sec\x03ret\n"[..]).unwrap_err();
        assert_eq!(given_up.kind(), io::ErrorKind::Interrupted);
    }

    fn refused(words: &[&str]) -> Option<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        check_words(&words).err().map(|failure| failure.to_string())
    }

    #[test]
    fn a_token_among_the_words_is_refused_and_not_repeated() {
        let secret = "0b".repeat(32);
        let join = format!("CELL-JOIN.replica.m2.t0123456789ab.{secret}.{secret}");
        let user = format!("t0123456789ab.{secret}");
        let given = format!("--token={user}");
        for word in [&join, &user, &given, &format!("--join={join}")] {
            let said = refused(&["cell", "master", "join", word]).expect("it is refused");
            assert!(said.contains("t0123456789ab") && !said.contains(&secret), "{said}");
        }
        let harmless = ["t0123456789ab", "a.b", "t01.example", "1.5", "./CELL-JOIN.m2.txt"];
        assert_eq!(refused(&harmless), None);
    }
}
