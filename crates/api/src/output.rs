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

/// The query of an output request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputQuery {
    pub stream: Stream,
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
    /// Milliseconds the answer may wait for more. Left out: 0.
    pub wait: u64,
}

impl OutputQuery {
    /// The query's pairs.
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
    /// Bytes that are not UTF-8 are replaced.
    pub text: String,
    /// Where the next chunk begins.
    pub next: String,
    /// This attempt will produce no more output.
    pub ended: bool,
}
