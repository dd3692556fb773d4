//! What commands that keep running have in common: a runtime, a log on stderr, and an end when the
//! system or the person at the terminal asks for it.

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
/// As shells count an end by ctrl-c.
const INTERRUPTED_EXIT_CODE: u8 = 130;
/// What is logged unless `CELL_LOG` says otherwise: our own parts, and warnings of the rest. Not
/// those of consensus: it warns at every vote it loses and every call that fails, which our parts
/// say once (`master/src/announce.rs`, `http_peers.rs`); what it cannot recover from ends the
/// process by another way.
const DEFAULT_LOG_FILTER: &str = "warn,openraft=off,cellwright_agent=info,cellwright_master=info,\
                      cellwright_gateway=info,cellwright_package=info,\
                      cellwright_scheduler=info,cellwright_store=info";

/// For a command that asks and prints.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::from_error(&error, RUNTIME_HINT))?.block_on(work)
}

/// Does the work, unless ctrl-c comes first: then says what `remaining` has to say of all that goes on
/// without whoever waited for it.
pub async fn unless_interrupted(
    remaining: impl AsyncFnOnce() -> String,
    work: impl Future<Output = Result<Success, Failure>>,
) -> Result<Success, Failure> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => {
            let left = remaining().await;
            // What the terminal echoed of the key stands in a line of its own.
            crate::output::note!("\n{left}");
            Ok(Success::ExitWith(INTERRUPTED_EXIT_CODE))
        }
    }
}

/// For a command that serves. Signals are heard before anything else is done, and long before
/// anybody is told that it serves: whenever it is asked to end, it ends in order.
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
    // What is left of it may end now.
    mark_process_stopping();
    // Work on blocking threads has nobody left to tell.
    runtime.shutdown_background();
    done
}

/// Takes a line of the log at a time, as the subscriber writes it. Names, reasons and errors in it
/// are words of others: they command no terminal, and begin no line of their own.
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

/// Ears for those who ask the process to end.
pub struct ShutdownSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignal {
    /// Whatever comes from here on is heard, also when nobody waits for it yet.
    pub fn listen() -> Result<ShutdownSignal, Failure> {
        let failed = |error: io::Error| Failure::from_error(&error, RUNTIME_HINT);
        Ok(ShutdownSignal {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    /// Done when the process is asked to end; once for every time it is.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        mark_process_stopping();
    }

    /// What comes of the work; nothing when the process is asked to end before.
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
