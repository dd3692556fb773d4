//! The shim executable that is started for every task, and the limit of concurrent starts.
//!
//! Beside `cell` a small program is installed that is nothing but the shim, and starts faster than
//! the whole (`crates/shim/src/main.rs`). An agent uses it when it is of the same build as the shim
//! in `cell` itself; where it is absent or different, shims are `cell shim …`, which is slower and
//! does the same.
//!
//! It is opened once, when the agent begins, and started through its descriptor: an upgrade
//! replaces files while the agent runs, and a running agent keeps using the shim it opened.

use cellwright_shim::installed::Installed;
use cellwright_shim::{SHIM_BINARY, VERB};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Programs that start at the same time, for every core: one computes while another waits for the
/// disk.
const STARTS_PER_CORE: usize = 2;
/// The running program itself, even when its file has been replaced since.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The name of shims in lists of processes, whichever executable they are.
const PROCESS_NAME: &str = "cell";

/// Held while a task is prepared and its program starts.
pub type StartPermit = OwnedSemaphorePermit;

/// How a shim is started.
#[derive(Clone, Debug)]
pub struct ShimProgram {
    /// The whole program, which the helpers of sessions run.
    pub program: PathBuf,
    /// The program that is nothing but the shim, if there is one.
    dedicated_shim: Option<Arc<Installed>>,
    /// A thousand concurrent starts would all be late, and take the memory of a thousand runtimes.
    start_permits: Arc<Semaphore>,
}

impl ShimProgram {
    fn new(program: PathBuf, small: Option<Installed>) -> ShimProgram {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let start_permits = Arc::new(Semaphore::new(STARTS_PER_CORE * cores));
        ShimProgram { program, dedicated_shim: small.map(Arc::new), start_permits }
    }

    /// The running program, and the shim that is installed beside it.
    #[must_use]
    pub fn installed() -> ShimProgram {
        let own = std::env::current_exe().ok();
        let small = own.and_then(|own| find_dedicated_shim(&own.with_file_name(SHIM_BINARY)));
        ShimProgram::new(OWN_PROGRAM.into(), small)
    }

    /// A program that is not there, with this many start permits.
    #[cfg(test)]
    pub(crate) fn absent(start_permits: usize) -> ShimProgram {
        let program = PathBuf::from("/no/such/program");
        ShimProgram {
            program,
            dedicated_shim: None,
            start_permits: Arc::new(Semaphore::new(start_permits)),
        }
    }

    /// A permit to start. The semaphore is never closed, so it is always obtained in the end.
    pub async fn start_permit(&self) -> Option<StartPermit> {
        self.start_permits.clone().acquire_owned().await.ok()
    }

    /// The command that starts the shim of the attempt in `folder`.
    #[must_use]
    pub fn command(&self, folder: &Path) -> Command {
        let program =
            self.dedicated_shim.as_deref().map_or_else(|| self.program.clone(), Installed::path);
        let mut command = Command::new(program);
        command.arg0(PROCESS_NAME).arg(VERB).arg(folder);
        command
    }
}

/// The shim at `path`, if it can be used; logs why not.
fn find_dedicated_shim(path: &Path) -> Option<Installed> {
    Installed::open(path).unwrap_or_else(|why| {
        let path = path.display();
        tracing::warn!(%path, %why, "a shim that is not taken; cell does its work");
        None
    })
}
