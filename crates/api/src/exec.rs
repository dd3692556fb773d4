//! Exec sessions: a command that runs where a task runs, with its input and output carried as
//! frames over one connection. The connection begins as an HTTP/1.1 upgrade request (`Upgrade:
//! cell-exec`); master and agent in between relay bytes and parse none of them, so a slow end slows
//! the other and nothing is buffered in between.
//!
//! Rejected: WebSocket for every client. A page in any browser can open a WebSocket to a dev master
//! on loopback; no page can request an upgrade to `cell-exec`. The master's own pages use one all
//! the same, which requires their origin: `ExecTaskInPage` of the routes.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::time::timeout;

/// `/v1/exec/USER/JOB/INDEX` of an agent.
pub const EXEC_PATH: &str = "/v1/exec";
/// `/v1/copy/USER/JOB/INDEX` of an agent.
pub const COPY_PATH: &str = "/v1/copy";
/// `/v1/forward/USER/JOB/INDEX` of an agent.
pub const FORWARD_PATH: &str = "/v1/forward";
/// The upgrade protocol.
pub const EXEC_PROTOCOL: &str = "cell-exec";
/// Longest command, in bytes of JSON.
pub const MAX_COMMAND: usize = 16 << 10;
/// Largest frame, in bytes.
pub const MAX_FRAME: usize = 64 << 10;
/// Longest time without data from the command's side: it sends a keep-alive every two seconds. A
/// machine that lost its power closes no connection.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Relays bytes between the caller and the command's side, until that side has closed or is silent
/// for too long. A caller that keeps its end open afterwards does not keep the session open.
pub async fn relay_bytes(near: impl AsyncRead + AsyncWrite, far: impl AsyncRead + AsyncWrite) {
    let (mut near_in, mut near_out) = split(near);
    let (mut far_in, mut far_out) = split(far);
    let there = async {
        // However the caller's input ends, the command's side gets its end and sends its last
        // frames.
        let _ = copy(&mut near_in, &mut far_out).await;
        let _ = far_out.shutdown().await;
        std::future::pending::<()>().await;
    };
    let back = async {
        let mut buffer = vec![0; MAX_FRAME];
        while let Ok(Ok(count @ 1..)) = timeout(IDLE_TIMEOUT, far_in.read(&mut buffer)).await {
            if near_out.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
        let _ = timeout(IDLE_TIMEOUT, near_out.shutdown()).await;
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

/// Size of a terminal, `ROWSxCOLUMNS` as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

impl TerminalSize {
    #[must_use]
    pub fn parse(text: &str) -> Option<TerminalSize> {
        let (rows, columns) = text.split_once('x')?;
        Some(TerminalSize { rows: rows.parse().ok()?, columns: columns.parse().ok()? })
    }
}

impl fmt::Display for TerminalSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.rows, self.columns)
    }
}

/// The query of an exec request to an agent: what to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecQuery {
    /// Number of the task and of the attempt: a session belongs to this attempt and to no later
    /// one.
    pub task: u32,
    pub attempt: u32,
    /// The command's words, a JSON list.
    pub command: String,
    /// Size of the terminal. Left out: no terminal, three streams.
    pub terminal: Option<String>,
    /// The terminal's kind, for `TERM`.
    pub term: Option<String>,
}

impl ExecQuery {
    /// The query's pairs.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("task", Some(self.task.to_string())),
            ("attempt", Some(self.attempt.to_string())),
            ("command", Some(self.command.clone())),
            ("terminal", self.terminal.clone()),
            ("term", self.term.clone()),
        ]
    }
}

/// Which way files are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyDirection {
    /// To the task: the caller's frames are an archive.
    Into,
    /// From the task: the answer's frames are.
    OutOf,
}

impl CopyDirection {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CopyDirection::Into => "into",
            CopyDirection::OutOf => "out_of",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<CopyDirection> {
        [CopyDirection::Into, CopyDirection::OutOf].into_iter().find(|one| one.name() == text)
    }
}

/// The query of a request to copy files to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyQuery {
    /// As in [`ExecQuery`].
    pub task: u32,
    pub attempt: u32,
    pub direction: CopyDirection,
    /// Where, as the task sees it; below its folder unless it begins with a slash.
    pub path: String,
    /// What is copied into the task is called so where `path` is a folder.
    pub name: Option<String>,
}

impl CopyQuery {
    /// The query's pairs.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("task", Some(self.task.to_string())),
            ("attempt", Some(self.attempt.to_string())),
            ("direction", Some(self.direction.name().to_owned())),
            ("path", Some(self.path.clone())),
            ("name", self.name.clone()),
        ]
    }
}

/// The query of a request for a connection to a port of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardQuery {
    /// As in [`ExecQuery`].
    pub task: u32,
    pub attempt: u32,
    pub port: u16,
    /// Whether the task was given this port: another may be that of a stranger where tasks share
    /// the network of the machine.
    pub assigned: bool,
}

impl ForwardQuery {
    /// The query's pairs.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, Option<String>); 4] {
        [
            ("task", Some(self.task.to_string())),
            ("attempt", Some(self.attempt.to_string())),
            ("port", Some(self.port.to_string())),
            ("assigned", Some(self.assigned.to_string())),
        ]
    }
}

/// The words of a command, from its JSON.
///
/// # Errors
/// The reason why it is not valid.
pub fn parse_command(command: &str) -> Result<Vec<String>, &'static str> {
    match serde_json::from_str::<Vec<String>>(command) {
        Ok(words) if words.first().is_some_and(|first| !first.is_empty()) => {
            if words.iter().any(|word| word.contains('\0')) {
                Err("words without the character 0")
            } else {
                Ok(words)
            }
        }
        _ => Err("a JSON list of at least one word, such as [\"sh\",\"-c\",\"date\"]"),
    }
}

/// A frame of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Input, or standard output.
    Data(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// No more input.
    End,
    Resize(TerminalSize),
    /// A signal for the command.
    Signal(u8),
    /// The command has ended with this code; 128 and the number of the signal that ended it.
    Exit(i32),
    /// The session could not start, or broke off; text for a person.
    Failed(String),
}

const HEADER_BYTES: usize = 5;

impl Frame {
    fn encode(&self) -> (u8, Bytes) {
        match self {
            Frame::Data(bytes) => (0, bytes.clone()),
            Frame::Stderr(bytes) => (1, bytes.clone()),
            Frame::End => (2, Bytes::new()),
            Frame::Resize(TerminalSize { rows, columns }) => {
                let [a, b] = rows.to_be_bytes();
                let [c, d] = columns.to_be_bytes();
                (3, Bytes::copy_from_slice(&[a, b, c, d]))
            }
            Frame::Signal(number) => (4, Bytes::copy_from_slice(&[*number])),
            Frame::Exit(code) => (5, Bytes::copy_from_slice(&code.to_be_bytes())),
            Frame::Failed(text) => {
                let cut = text.floor_char_boundary(MAX_FRAME);
                (6, Bytes::copy_from_slice(&text.as_bytes()[..cut]))
            }
        }
    }

    fn decode(kind: u8, body: Bytes) -> Option<Frame> {
        Some(match (kind, &body[..]) {
            (0, _) => Frame::Data(body),
            (1, _) => Frame::Stderr(body),
            (2, []) => Frame::End,
            (3, &[a, b, c, d]) => Frame::Resize(TerminalSize {
                rows: u16::from_be_bytes([a, b]),
                columns: u16::from_be_bytes([c, d]),
            }),
            (4, &[number]) => Frame::Signal(number),
            (5, &[a, b, c, d]) => Frame::Exit(i32::from_be_bytes([a, b, c, d])),
            (6, _) => Frame::Failed(String::from_utf8_lossy(&body).into_owned()),
            _ => return None,
        })
    }

    /// # Errors
    /// When the other side has closed.
    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let (kind, body) = self.encode();
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.push(kind);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&body);
        to.write_all(&bytes).await?;
        to.flush().await
    }

    /// Reads the next frame; `None` when the other side has closed between two. Not cancel-safe.
    ///
    /// # Errors
    /// When the connection breaks, or the bytes are not a frame.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
        let mut head = [0; HEADER_BYTES];
        if from.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut head[1..]).await?;
        let [kind, a, b, c, d] = head;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > MAX_FRAME {
            let text = format!("a frame of {length} bytes; allowed: {MAX_FRAME}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).await?;
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "not a frame of a session");
        Frame::decode(kind, body.into()).map(Some).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test]
    async fn a_caller_that_stays_holds_nothing_open_and_hears_the_last_word() {
        let ((mut caller, near), (mut command, far)) = (duplex(64), duplex(64));
        let carried = tokio::spawn(relay_bytes(near, far));
        caller.write_all(b"in").await.unwrap();
        let mut received = [0; 2];
        command.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"in");
        command.write_all(b"last").await.unwrap();
        drop(command);
        carried.await.unwrap();
        let mut received = String::new();
        caller.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "last");
    }

    #[tokio::test]
    async fn a_caller_that_goes_is_told_to_the_command() {
        let ((caller, near), (mut command, far)) = (duplex(64), duplex(64));
        let carried = tokio::spawn(relay_bytes(near, far));
        drop(caller);
        let mut received = String::new();
        command.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "");
        drop(command);
        carried.await.unwrap();
    }

    #[tokio::test]
    async fn frames_are_read_as_they_were_written_and_others_are_refused() {
        let size = TerminalSize { rows: 24, columns: 300 };
        assert_eq!(TerminalSize::parse(&size.to_string()), Some(size));
        let all = [
            Frame::Data(Bytes::from_static(b"in")),
            Frame::Stderr(Bytes::new()),
            Frame::End,
            Frame::Resize(size),
            Frame::Signal(2),
            Frame::Exit(-3),
            Frame::Failed("no".into()),
        ];
        let mut bytes = Vec::new();
        for frame in &all {
            frame.write(&mut bytes).await.unwrap();
        }
        let mut from = &bytes[..];
        for frame in &all {
            assert_eq!(Frame::read(&mut from).await.unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from).await.unwrap(), None);
        for bad in [&[9, 0, 0, 0, 0][..], &[2, 0, 0, 0, 1, 7], &[0, 0, 1, 0, 1], &[0, 0, 0]] {
            let mut bad = bad;
            assert!(Frame::read(&mut bad).await.is_err());
        }
    }

    #[test]
    fn a_command_is_a_list_of_words() {
        assert_eq!(parse_command(r#"["sh","-c",""]"#).unwrap(), ["sh", "-c", ""]);
        for bad in ["sh", "[]", "[\"\"]", "[1]", "[\"a\\u0000b\"]"] {
            assert!(parse_command(bad).is_err(), "{bad}");
        }
    }
}
