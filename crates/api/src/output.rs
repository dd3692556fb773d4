//! What an agent tells of a task's output, piece by piece. A piece says where the next one begins,
//! so following is asking again and again, and a reader that was cut off goes on where it was.

use serde::{Deserialize, Serialize};

/// `/v1/output/USER/JOB/INDEX` of an agent.
pub const OUTPUT_PATH: &str = "/v1/output";
/// Attribute of a machine under which its agent says where it can be asked.
pub const ADDRESS_ATTRIBUTE: &str = "agent-address";

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
    /// Left out: the newest this machine has.
    pub attempt: Option<u32>,
    /// The `next` of the piece before. Left out: the last `tail` bytes.
    pub from: Option<String>,
    pub tail: Option<u64>,
    /// Milliseconds the answer may wait for more. Left out: 0.
    pub wait: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPiece {
    pub attempt: u32,
    /// Bytes that are no UTF-8 are replaced.
    pub text: String,
    pub next: String,
    /// Nothing more will come of this attempt.
    pub ended: bool,
}
