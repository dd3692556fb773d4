//! The child process: sets its own resource limits, then evaluates the file.

use super::{EvaluationAnswer, EvaluationRequest, in_process};
use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{self, Write};
use std::process::ExitCode;

/// The main function of an evaluator process: reads a request from standard input and writes the
/// answer to standard output.
#[must_use]
pub fn run() -> ExitCode {
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The parent still sees the exit code.
            let _ = writeln!(io::stderr(), "cell: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer() -> io::Result<()> {
    let request: EvaluationRequest = serde_json::from_reader(io::stdin().lock())?;
    let answer = match apply_limits(&request.limits) {
        Ok(()) => in_process::evaluate(&request),
        Err(error) => {
            let message = format!("no limits can be set on the evaluator: {error}");
            EvaluationAnswer::Failed(vec![Diagnostic::error(&request.source.name, message)])
        }
    };
    let mut out = io::stdout().lock();
    out.write_all(&serde_json::to_vec(&answer)?)?;
    out.flush()
}

fn apply_limits(limits: &Limits) -> io::Result<()> {
    let limit = |amount: u64, above: u64| Rlimit {
        current: Some(amount),
        maximum: Some(amount.saturating_add(above)),
    };
    // The hard limit, whose signal cannot be handled, is a second after the soft one, whose signal
    // names the reason.
    setrlimit(Resource::Cpu, limit(limits.cpu_seconds, 1))?;
    setrlimit(Resource::As, limit(address_space()?.saturating_add(limits.memory_bytes), 0))?;
    setrlimit(Resource::Core, limit(0, 0))?;
    // The process writes only to a pipe, never to a file.
    Ok(setrlimit(Resource::Fsize, limit(0, 0))?)
}

/// Bytes of address space that the process uses before it evaluates anything. Most of it is the
/// program itself, which is large in debug builds and must not count as the file's memory.
fn address_space() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.and_then(|size| size.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmSize"))
}
