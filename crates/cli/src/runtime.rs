//! What long-running commands share: an async runtime, a log on stderr, and an orderly shutdown on
//! a signal or ctrl-c.

use crate::commands::Success;
use crate::failure::Failure;
use crate::sanitize::sanitize_line;
use cellwright_agent::open_files;
use cellwright_supervise::{
    Supervisor, catch_panic_async, exit_fatal, mark_process_stopping, report_in_one_line,
    trim_heap_periodically,
};
use std::future::Future;
use std::io::{self, Stderr, Write};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

const RUNTIME_HINT: &str = "free memory or threads on this machine, then run it again";
/// The exit code that shells use for ctrl-c.
const INTERRUPTED_EXIT_CODE: u8 = 130;
/// The log filter unless `CELL_LOG` sets another: our own crates, and warnings of the others.
/// Consensus is off: it warns at every lost vote and failed call, which our crates log once
/// (`master/src/announce.rs`, `http_peers.rs`); errors it cannot recover from end the process by
/// another path.
const DEFAULT_LOG_FILTER: &str = "warn,openraft=off,cellwright_agent=info,cellwright_master=info,\
                      cellwright_gateway=info,cellwright_package=info,\
                      cellwright_scheduler=info,cellwright_store=info";

/// For commands that make requests and print the answers.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::from_error(&error, RUNTIME_HINT))?.block_on(work)
}

/// Runs the work unless ctrl-c comes first: then prints what `remaining` returns about the
/// operations that continue without this command.
pub async fn unless_interrupted(
    remaining: impl AsyncFnOnce() -> String,
    work: impl Future<Output = Result<Success, Failure>>,
) -> Result<Success, Failure> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => {
            let left = remaining().await;
            // Print below the `^C` that the terminal echoed.
            crate::output::note!("\n{left}");
            Ok(Success::ExitWith(INTERRUPTED_EXIT_CODE))
        }
    }
}

/// For commands that serve. Signal handlers are installed before anything else, long before the
/// command announces that it serves, so that every signal leads to an orderly shutdown.
pub fn serve<T>(
    work: impl AsyncFnOnce(ShutdownSignal) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime: Runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::from_error(&error, RUNTIME_HINT))?;
    let stop = {
        let _inside = runtime.enter();
        let stop = ShutdownSignal::listen()?;
        Supervisor::default().spawn_restarting("memory", trim_heap_periodically);
        stop
    };
    open_files::raise();
    report_in_one_line();
    let filter =
        EnvFilter::try_from_env("CELL_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG_FILTER));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(LogLine::to_stderr).init();
    let done = runtime
        .block_on(catch_panic_async(work(stop)))
        .unwrap_or_else(|panicked| exit_fatal(&format!("the main task {panicked}")));
    // The remaining threads may end from here on.
    mark_process_stopping();
    // Nothing waits for the results of blocking threads any more.
    runtime.shutdown_background();
    done
}

/// Receives one log line at a time from the subscriber. Names, reasons and errors in it come from
/// others, so control sequences and line breaks in them are escaped.
struct LogLine<W>(W);

impl LogLine<Stderr> {
    fn to_stderr() -> LogLine<Stderr> {
        LogLine(io::stderr())
    }
}

impl<W: Write> Write for LogLine<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = sanitize_line(text.strip_suffix('\n').unwrap_or(&text));
        self.0.write_all(format!("{line}\n").as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Listens for the signals that ask the process to shut down.
pub struct ShutdownSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignal {
    /// Signals from here on are recorded even when nothing awaits them yet.
    pub fn listen() -> Result<ShutdownSignal, Failure> {
        let failed = |error: io::Error| Failure::from_error(&error, RUNTIME_HINT);
        Ok(ShutdownSignal {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    /// Completes once for each request to shut down.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        mark_process_stopping();
    }

    /// The result of the work, or nothing if a shutdown is requested first.
    pub async fn run_unless_requested<T, E>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<Option<T>, E> {
        tokio::select! {
            biased;
            () = self.requested() => Ok(None),
            done = work => done.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn what_others_wrote_begins_no_line_of_the_log_and_commands_no_terminal() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let shared_log = log.clone();
        let writer = move || LogLine(Shared(shared_log.clone()));
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            let hostile =
                "no\r\n2026-01-01T00:00:00Z  INFO all is well\u{1b}]52;c;aGk=\u{7}\u{9b}2J";
            tracing::warn!(hostile, words = %hostile, "refused: {hostile}");
            tracing::warn!("next");
        });
        let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        let commands = |c: char| c.is_control() && c != '\n';
        assert!(text.contains("]52;c;") && !text.contains(commands), "{text:?}");
    }

    #[derive(Clone)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
