//! What commands that keep running have in common: a runtime, a log on stderr, and an end when the
//! system or the person at the terminal asks for it.

use crate::commands::Success;
use crate::failure::Failure;
use cellwright_supervise::{give_up, guarded, process_ends, report_in_one_line};
use std::future::Future;
use std::io;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

const CANNOT: &str = "free memory or threads on this machine, then run it again";
/// As shells count an end by ctrl-c.
const INTERRUPTED: u8 = 130;
/// What is logged unless `CELL_LOG` says otherwise: our own parts, and warnings of the rest. Not
/// those of consensus: it warns at every vote it loses and every call that fails, which our parts
/// say once (`master/src/announce.rs`, `http_peers.rs`); what it cannot recover from ends the
/// process by another way.
const LOGGED: &str = "warn,openraft=off,cellwright_agent=info,cellwright_master=info,\
                      cellwright_package=info,cellwright_scheduler=info,cellwright_store=info";

/// For a command that asks and prints.
pub fn ask<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::work(&error, CANNOT))?.block_on(work)
}

/// Does the work, unless ctrl-c comes first: then says what `left` has to say of all that goes on
/// without whoever waited for it.
pub async fn unless_interrupted(
    left: impl AsyncFnOnce() -> String,
    work: impl Future<Output = Result<Success, Failure>>,
) -> Result<Success, Failure> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => {
            let left = left().await;
            // What the terminal echoed of the key stands in a line of its own.
            crate::output::note!("\n{left}");
            Ok(Success::Ended(INTERRUPTED))
        }
    }
}

/// For a command that serves. Signals are heard before anything else is done, and long before
/// anybody is told that it serves: whenever it is asked to end, it ends in order.
pub fn serve<T>(work: impl AsyncFnOnce(Stop) -> Result<T, Failure>) -> Result<T, Failure> {
    let runtime: Runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::work(&error, CANNOT))?;
    let stop = {
        let _inside = runtime.enter();
        Stop::listen()?
    };
    report_in_one_line();
    let filter = EnvFilter::try_from_env("CELL_LOG").unwrap_or_else(|_| EnvFilter::new(LOGGED));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let done = runtime
        .block_on(guarded(work(stop)))
        .unwrap_or_else(|panicked| give_up(&format!("the main task {panicked}")));
    // What is left of it may end now.
    process_ends();
    // Work on blocking threads has nobody left to tell.
    runtime.shutdown_background();
    done
}

/// Ears for those who ask the process to end.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Whatever comes from here on is heard, also when nobody waits for it yet.
    pub fn listen() -> Result<Stop, Failure> {
        let failed = |error: io::Error| Failure::work(&error, CANNOT);
        Ok(Stop {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    /// Done when the process is asked to end; once for every time it is.
    pub async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        process_ends();
    }

    /// What comes of the work; nothing when the process is asked to end before.
    pub async fn unless_told<T, E>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<Option<T>, E> {
        tokio::select! {
            biased;
            () = self.told() => Ok(None),
            done = work => done.map(Some),
        }
    }
}
