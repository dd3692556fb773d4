//! What tasks wrote, piece by piece. A piece says where the next one begins, so following is asking
//! again and again, and a reader that was cut off goes on where it was. Masters ask agents this way
//! and pass it on; the same pieces travel in the public API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `/v1/output/USER/JOB/INDEX` of an agent.
pub const OUTPUT_PATH: &str = "/v1/output";
/// Attribute of a machine under which its agent says where it can be dialled.
pub const AGENT_ADDRESS_ATTRIBUTE: &str = "agent-address";
/// The place before everything that is kept of a stream.
pub const STREAM_START: &str = "0-0";

/// Which of a program's two streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// The query of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputQuery {
    pub stream: Stream,
    /// Number of the task, where the name alone could be that of an earlier job. Left out: any.
    pub task: Option<u32>,
    /// Left out: the newest this machine has.
    pub attempt: Option<u32>,
    /// The `next` of the piece before. Left out: near the end.
    pub from: Option<String>,
    /// How many lines before the end to begin. Left out: see `tail`.
    pub lines: Option<u32>,
    /// How many bytes before the end to begin. Left out: 65536.
    pub tail: Option<u64>,
    /// Milliseconds the answer may wait for more. Left out: 0.
    pub wait: u64,
}

impl OutputQuery {
    /// As it travels.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, Option<String>); 7] {
        [
            ("stream", Some(self.stream.name().to_owned())),
            ("task", self.task.map(|number| number.to_string())),
            ("attempt", self.attempt.map(|number| number.to_string())),
            ("from", self.from.clone()),
            ("lines", self.lines.map(|number| number.to_string())),
            ("tail", self.tail.map(|number| number.to_string())),
            ("wait", (self.wait > 0).then(|| self.wait.to_string())),
        ]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputPiece {
    pub attempt: u32,
    /// Bytes that are no UTF-8 are replaced.
    pub text: String,
    /// Where the next piece begins.
    pub next: String,
    /// Nothing more will come of this attempt.
    pub ended: bool,
}
