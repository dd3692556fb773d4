//! Output of tasks, chunk by chunk. A chunk says where the next one begins, so following is
//! repeated requests, and a reader that was disconnected continues where it was. Masters request
//! chunks from agents and pass them on; the public API uses the same chunks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `/v1/output/USER/JOB/INDEX` of an agent.
pub const OUTPUT_PATH: &str = "/v1/output";
/// Attribute of a machine with the address of its agent.
pub const AGENT_ADDRESS_ATTRIBUTE: &str = "agent-address";
/// The position before the oldest retained output of a stream.
pub const STREAM_START: &str = "0-0";

/// Standard output or standard error.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    #[default]
    Stdout,
    Stderr,
}

impl Stream {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Which of a program's two streams are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamSelection {
    #[default]
    Stdout,
    Stderr,
    /// Both, in the order in which they were written, as far as that is known.
    All,
}

impl StreamSelection {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StreamSelection::Stdout => Stream::Stdout.name(),
            StreamSelection::Stderr => Stream::Stderr.name(),
            StreamSelection::All => "all",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<StreamSelection> {
        let all = [StreamSelection::Stdout, StreamSelection::Stderr, StreamSelection::All];
        all.into_iter().find(|one| one.name() == text)
    }

    #[must_use]
    pub fn streams(self) -> &'static [Stream] {
        match self {
            StreamSelection::Stdout => &[Stream::Stdout],
            StreamSelection::Stderr => &[Stream::Stderr],
            StreamSelection::All => &[Stream::Stdout, Stream::Stderr],
        }
    }
}

/// The query of an output request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputQuery {
    pub stream: StreamSelection,
    /// Number of the task, where the name alone could be that of an earlier job. Left out: any.
    pub task: Option<u32>,
    /// Left out: the newest this machine has.
    pub attempt: Option<u32>,
    /// The `next` of the previous chunk. Left out: near the end.
    pub from: Option<String>,
    /// How many lines before the end to begin. Left out: see `tail`.
    pub lines: Option<u32>,
    /// How many bytes before the end to begin. Left out: 65536.
    pub tail: Option<u64>,
    /// Nothing that was written before this time. Left out: see `lines`.
    pub since: Option<u64>,
    /// The answer has `parts` in place of `text`; always so for both streams.
    pub parts: bool,
    /// Milliseconds the answer may wait for more. Left out: 0.
    pub wait: u64,
}

impl OutputQuery {
    /// Whether it is about times.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.parts || self.since.is_some()
    }

    /// The query's pairs.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, Option<String>); 9] {
        [
            ("stream", Some(self.stream.name().to_owned())),
            ("task", self.task.map(|number| number.to_string())),
            ("attempt", self.attempt.map(|number| number.to_string())),
            ("from", self.from.clone()),
            ("lines", self.lines.map(|number| number.to_string())),
            ("tail", self.tail.map(|number| number.to_string())),
            ("since", self.since.map(|number| number.to_string())),
            ("parts", self.parts.then(|| "true".to_owned())),
            ("wait", (self.wait > 0).then(|| self.wait.to_string())),
        ]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputPiece {
    pub attempt: u32,
    /// Bytes that are not UTF-8 are replaced. Empty where `parts` were requested.
    pub text: String,
    /// The same with its stream and time, in the order in which it was written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<OutputPart>,
    /// Where the next chunk begins.
    pub next: String,
    /// This attempt will produce no more output.
    pub ended: bool,
}

impl OutputPiece {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.parts.is_empty()
    }
}

/// Lines of one stream that were written at the same time. A line without an end goes on in the
/// next part of its stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputPart {
    pub stream: Stream,
    /// When it was written, in milliseconds since 1970; absent where that is not known.
    pub at: Option<u64>,
    pub text: String,
}
