//! Jsonnet in a process of its own. The evaluator has no limit on memory or time, so the program
//! starts itself again with a word that only it types, and the child puts limits of the kernel on
//! itself before it looks at the file. Whatever the file does, the caller gets a value or an error
//! that names the limit.
//!
//! Rejected: counting steps, by assertions added to the source. What a step costs ranges from
//! nothing to seconds, so the limits on memory and time were needed all the same, and every place
//! in an error had to be translated back. Rejected: a watchdog thread in this process. It could see
//! the time but not end the work, and an allocation that fails ends the whole process.

mod child;
pub(crate) mod error_text;
pub(crate) mod import;
mod in_process;

pub use child::run as run_child;

use crate::diagnostic::{Diagnostic, Source};
use crate::limits::Limits;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};

/// The word that makes the program an evaluator: `cell evaluate-jobs`.
pub const CHILD_COMMAND: &str = "evaluate-jobs";

/// Of what a child that died said.
const MAX_STDERR: u64 = 16 << 10;

/// Who evaluates Jsonnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluator {
    /// A child: this program with [`CHILD_COMMAND`] as its only argument ends in [`run_child`].
    Child(PathBuf),
    /// This process, without limits on time and memory: for files one wrote oneself, as in tests.
    InProcess,
}

/// What a child is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct EvaluationRequest {
    source: Source,
    /// Imports come from here and below.
    root: PathBuf,
    limits: Limits,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EvaluationAnswer {
    /// JSON.
    Value(String),
    Failed(Vec<Diagnostic>),
}

/// The JSON that the source stands for.
pub(crate) fn evaluate(
    source: &Source,
    root: &Path,
    evaluator: &Evaluator,
    limits: &Limits,
) -> Result<String, Vec<Diagnostic>> {
    let request =
        EvaluationRequest { source: source.clone(), root: root.to_owned(), limits: *limits };
    match evaluator {
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
    // Text may take two bytes for each of its own when it is put into JSON.
    let max_bytes = request.limits.output_bytes.saturating_mul(2).saturating_add(1 << 20);
    let answer = spawn_reader(child.stdout.take(), max_bytes);
    let stderr = spawn_reader(child.stderr.take(), MAX_STDERR);
    if let Some(mut input) = child.stdin.take() {
        // A child that died before it had read everything has an end that says why.
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

/// Reads to the end, or as far as is looked at; what comes after finds nobody reading.
fn spawn_reader(pipe: Option<impl Read + Send + 'static>, max_bytes: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // What was read so far is what there is.
            let _ = pipe.take(max_bytes).read_to_end(&mut bytes);
        }
        // The other side may have given up.
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

/// Why there was no answer.
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
