//! Evaluates Jsonnet in a child process. The evaluator has no limit on memory or time, so the
//! program starts itself again with an internal command, and the child sets kernel resource limits
//! on itself before it reads the file. Whatever the file does, the caller gets a value or an error
//! that names the limit.
//!
//! Rejected: counting steps, by assertions added to the source. The cost of a step ranges from
//! nothing to seconds, so limits on memory and time were needed anyway, and every location in an
//! error had to be translated back. Rejected: a watchdog thread in this process. It could observe
//! the time but not stop the evaluation, and a failed allocation aborts the whole process.

mod child;
pub(crate) mod error_text;
pub(crate) mod import;
mod in_process;
mod parameters;

pub use child::run as run_child;

use crate::LoadOptions;
use crate::diagnostic::{Diagnostic, Source};
use crate::inputs::Inputs;
use crate::limits::Limits;
use import::ImportFolders;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};

/// The internal command that turns the program into an evaluator: `cell evaluate-jobs`.
pub const CHILD_COMMAND: &str = "evaluate-jobs";

/// The maximum length of a dead child's stderr that is read.
const MAX_STDERR: u64 = 16 << 10;

/// Where Jsonnet is evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluator {
    /// In a child process: this program with [`CHILD_COMMAND`] as its only argument runs
    /// [`run_child`].
    Child(PathBuf),
    /// In this process, without limits on time and memory: for trusted files, as in tests.
    InProcess,
}

/// The request to a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct EvaluationRequest {
    source: Source,
    /// Imports are restricted to these folders and those below them.
    folders: ImportFolders,
    inputs: Inputs,
    limits: Limits,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EvaluationAnswer {
    /// The result as JSON.
    Value(String),
    Failed(Vec<Diagnostic>),
}

/// The JSON that the source evaluates to.
pub(crate) fn evaluate(
    source: &Source,
    folders: &ImportFolders,
    options: &LoadOptions,
) -> Result<String, Vec<Diagnostic>> {
    let request = EvaluationRequest {
        source: source.clone(),
        folders: folders.clone(),
        inputs: options.inputs.clone(),
        limits: options.limits,
    };
    match &options.evaluator {
        Evaluator::InProcess => match in_process::evaluate(&request) {
            EvaluationAnswer::Value(text) => Ok(text),
            EvaluationAnswer::Failed(failed) => Err(failed),
        },
        Evaluator::Child(program) => evaluate_in_child(program, &request),
    }
}

fn evaluate_in_child(
    program: &Path,
    request: &EvaluationRequest,
) -> Result<String, Vec<Diagnostic>> {
    let file = &request.source.name;
    let cannot = |error: io::Error| {
        vec![Diagnostic::error(file, format!("the evaluator does not start: {error}"))]
    };
    let request_bytes = serde_json::to_vec(request).map_err(|error| cannot(error.into()))?;
    let mut child = Command::new(program)
        .arg(CHILD_COMMAND)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    // In JSON, a byte of text may take two.
    let max_bytes = request.limits.output_bytes.saturating_mul(2).saturating_add(1 << 20);
    let answer = spawn_reader(child.stdout.take(), max_bytes);
    let stderr = spawn_reader(child.stderr.take(), MAX_STDERR);
    if let Some(mut input) = child.stdin.take() {
        // If the child died before it had read everything, its exit status says why.
        let _ = input.write_all(&request_bytes);
    }
    let output = answer.recv_timeout(request.limits.wall);
    let end = wait_for_exit(&mut child, output.is_err()).map_err(cannot)?;
    let stderr = stderr.recv().unwrap_or_default();
    let Ok(output) = output else { return Err(vec![timed_out(request)]) };
    match serde_json::from_slice(&output) {
        Ok(EvaluationAnswer::Value(text)) => Ok(text),
        Ok(EvaluationAnswer::Failed(failed)) => Err(failed),
        Err(_) => Err(vec![child_failure(request, end, &String::from_utf8_lossy(&stderr))]),
    }
}

/// Reads up to `max_bytes` on a thread of its own; the pipe is closed after that.
fn spawn_reader(pipe: Option<impl Read + Send + 'static>, max_bytes: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // An error ends the output like its end.
            let _ = pipe.take(max_bytes).read_to_end(&mut bytes);
        }
        // The receiver may have given up.
        let _ = sender.send(bytes);
    });
    receiver
}

fn wait_for_exit(child: &mut Child, late: bool) -> io::Result<ExitStatus> {
    if late {
        child.kill()?;
    }
    child.wait()
}

fn timed_out(request: &EvaluationRequest) -> Diagnostic {
    let seconds = request.limits.wall.as_secs();
    Diagnostic::error(&request.source.name, format!("evaluation took more than {seconds} s"))
        .with_help(format!("time limit: {seconds} s by the clock"))
}

/// The diagnostic for a child without an answer.
fn child_failure(request: &EvaluationRequest, end: ExitStatus, stderr: &str) -> Diagnostic {
    const KILLED: i32 = 9;
    const ABORTED: i32 = 6;
    const SEGMENT: i32 = 11;
    const CPU_TIME: i32 = 24;
    let Limits { cpu_seconds, memory_bytes, .. } = request.limits;
    let to_diagnostic = |message: String| Diagnostic::error(&request.source.name, message);
    let deep = stderr.contains("overflowed its stack");
    match end.signal() {
        Some(CPU_TIME | KILLED) => {
            to_diagnostic(format!("evaluation used more than {cpu_seconds} s of processor time"))
                .with_help(format!("time limit: {cpu_seconds} s; look for what never ends"))
        }
        Some(SEGMENT) => too_deep(to_diagnostic),
        Some(ABORTED) if deep => too_deep(to_diagnostic),
        Some(ABORTED) => {
            let mib = memory_bytes >> 20;
            to_diagnostic(format!("evaluation needs more than {mib} MiB of memory"))
                .with_help(format!("memory limit: {mib} MiB; look for what grows without end"))
        }
        _ => {
            let last = stderr.lines().next().unwrap_or("it said nothing");
            to_diagnostic(format!("the evaluator ended ({end}) without an answer: {last}"))
        }
    }
}

fn too_deep(to_diagnostic: impl FnOnce(String) -> Diagnostic) -> Diagnostic {
    to_diagnostic("the file is nested too deeply to be read".into())
        .with_help("depth limit: what fits on a stack of 8 MiB, some thousand levels")
}
