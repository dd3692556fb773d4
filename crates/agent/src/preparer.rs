//! From an order to a shim: fetches packages, creates the cgroup, has the driver set up the
//! environment of the program, and writes the launch for the shim. This may take long and runs
//! beside the agent's loop; a task that is cancelled meanwhile is given up.
//!
//! Fetching runs for all starts at once, setting up in turns: every idle mount and cgroup is one
//! more that each program that starts meanwhile has to look through.
//!
//! None of this is needed again after `launch` is written. An agent that dies before that finds a
//! folder without it, in which nothing ever ran, and starts over.

use crate::attempt::{AttemptUpdate, give_up, supervise_attempt};
use crate::cgroups::TaskCgroups;
use crate::credentials::{TaskCertifier, TaskCredentials};
use crate::devices::{self, GrantedDevice, HostDevice};
use crate::driver::{Driver, DriverError, StartContext};
use crate::id_ranges::{IdRangeAllocator, IdsError};
use crate::packages::{Packages, PinnedPackages};
use crate::record::{self, Durability, RecordError};
use crate::shim::protocol::{ExitCause, LAUNCH, LogSettings, Request};
use crate::shim::sandbox::{Occupancy, Sandbox};
use crate::shim_program::{ShimProgram, StartPermit};
use crate::state_dir::Folders;
use cellwright_agent_core::reconcile::End;
use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::device::DeviceGrant;
use cellwright_cell::id::Attempt;
use cellwright_cell::task::ExitClass;
use cellwright_package::cache::ObtainError;
use cellwright_supervise::{
    CaughtPanic, catch_panic, catch_panic_async, failpoint, note_handler_panic,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// What every start needs.
pub struct Preparer {
    pub folders: Folders,
    pub groups: TaskCgroups,
    /// User and group IDs of tasks; none where the agent is not root.
    pub ids: Option<IdRangeAllocator>,
    pub driver: Arc<dyn Driver>,
    pub packages: Packages,
    pub certifier: TaskCertifier,
    pub shim: ShimProgram,
    /// The machine's name.
    pub machine: String,
    /// Devices of the machine, indexed as the masters index them.
    pub devices: Vec<HostDevice>,
    pub logs: LogSettings,
}

/// One attempt that is about to start.
pub struct PendingStart {
    pub order: DesiredTask,
    pub lease_until: Option<u64>,
    /// The alloc that it runs in.
    pub alloc: Option<Attempt>,
    /// Its devices, or those of its alloc.
    pub devices: Vec<DeviceGrant>,
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("{0}")]
    Driver(#[from] DriverError),
    #[error("{0}")]
    Ids(#[from] IdsError),
    #[error("{0}")]
    Packages(#[from] ObtainError),
    #[error("making it ready was cut short")]
    Interrupted,
    #[error("the agent met a fault of its own: {0}")]
    Fault(String),
    #[error("what the alloc left is not on this machine any more")]
    NothingLeft,
}

/// What was obtained for a start before the driver sets it up.
struct StartInputs {
    devices: Vec<GrantedDevice>,
    packages: Vec<(String, PathBuf)>,
    credentials: Option<TaskCredentials>,
}

/// The outcome of a preparation.
enum Preparation {
    Ready(PinnedPackages, Option<StartPermit>),
    /// Told to end before it began.
    Cancelled,
}

/// A panic is counted, and fails this start alone.
fn panic_error<T>(panicked: CaughtPanic) -> Result<T, StartError> {
    note_handler_panic();
    Err(StartError::Fault(panicked.to_string()))
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

impl Preparer {
    /// Prepares the attempt and supervises it to its end.
    pub async fn run(
        self: Arc<Preparer>,
        mut pending: PendingStart,
        mut requests: mpsc::UnboundedReceiver<Request>,
        updates: mpsc::UnboundedSender<(Attempt, AttemptUpdate)>,
    ) {
        let attempt = Attempt::of(&pending.order);
        let folder = self.folders.attempt_dir(attempt);
        // Its input comes from others: a task on which the agent panics fails alone.
        let preparation = catch_panic_async(self.prepare(&mut pending, &mut requests)).await;
        let preparation = preparation.unwrap_or_else(panic_error);
        let (end, cause, words) = match preparation {
            Ok(Preparation::Ready(_packages, permit)) => {
                // The packages stay pinned as long as the attempt lives.
                let shim = self.shim.clone();
                let supervised =
                    supervise_attempt(attempt, folder.clone(), shim, permit, requests, updates);
                tokio::select! {
                    () = supervised => {}
                    () = self.certifier.keep_fresh(attempt, &folder) => {}
                }
                return;
            }
            Ok(Preparation::Cancelled) => {
                (End::Gone, ExitCause::Told, "stopped before it began".into())
            }
            Err(error) => {
                let words = error.to_string();
                tracing::error!(task = pending.order.name, words, "cannot be started");
                let failed = End::Failed(ExitClass::CouldNotStart);
                (failed, ExitCause::CouldNotStart(words.clone()), words)
            }
        };
        // No process was ever in it.
        if let Some(group) = self.groups.task_group(attempt, pending.alloc)
            && let Err(error) = group.remove()
        {
            tracing::warn!(%error, "a group that was not needed stays");
        }
        give_up(&folder, cause);
        // The loop that received updates may have ended.
        let _ = updates.send((attempt, AttemptUpdate::Ended(end, words)));
    }

    async fn prepare(
        self: &Arc<Preparer>,
        pending: &mut PendingStart,
        requests: &mut mpsc::UnboundedReceiver<Request>,
    ) -> Result<Preparation, StartError> {
        failpoint("ready");
        let Order::Run(work) = &pending.order.action else { return Ok(Preparation::Cancelled) };
        let delay = Duration::from_millis(work.delay.0);
        let attempt = Attempt::of(&pending.order);
        let fetch = async move {
            // Tokio's timer has a resolution of whole milliseconds, and a delay of zero is not
            // waited for at all.
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let packages = self.packages.obtain(&work.packages, attempt.task);
            let (packages, credentials) = tokio::join!(packages, self.certifier.issue(attempt));
            // Last: a start that waits for the network keeps no other from starting.
            Ok::<_, StartError>((packages?, credentials, self.shim.start_permit().await))
        };
        tokio::pin!(fetch);
        let (packages, credentials, permit) = loop {
            tokio::select! {
                biased;
                request = requests.recv() => match request {
                    Some(Request::Lease { until }) => pending.lease_until = Some(until),
                    Some(Request::Signal { .. } | Request::Status) => {}
                    Some(Request::Stop { .. } | Request::Kill | Request::Condemn { .. }) | None => {
                        return Ok(Preparation::Cancelled);
                    }
                },
                fetched = &mut fetch => break fetched?,
            }
        };
        let order = pending.order.clone();
        let (lease_until, alloc) = (pending.lease_until, pending.alloc);
        let preparer = Arc::clone(self);
        let devices = devices::granted(&self.devices, &pending.devices)?;
        let inputs = StartInputs { devices, packages: packages.folders(), credentials };
        // Caught in the blocking thread: outside, a panic there would look like a cancellation.
        let lay_out =
            move || catch_panic(|| preparer.create_task_env(&order, lease_until, alloc, &inputs));
        let created = tokio::task::spawn_blocking(lay_out).await;
        created.map_err(|_| StartError::Interrupted)?.unwrap_or_else(panic_error)?;
        Ok(Preparation::Ready(packages, permit))
    }

    fn create_task_env(
        &self,
        order: &DesiredTask,
        lease_until: Option<u64>,
        alloc: Option<Attempt>,
        inputs: &StartInputs,
    ) -> Result<(), StartError> {
        let Order::Run(work) = &order.action else { return Ok(()) };
        let attempt = Attempt::of(order);
        let folder = self.folders.attempt_dir(attempt);
        let left =
            attempt.is_log_saver().then(|| self.folders.work_dir(attempt.without_log_saver()));
        if left.as_ref().is_some_and(|left| !is_folder(left)) {
            return Err(StartError::NothingLeft);
        }
        let group = self.groups.task_group(attempt, alloc);
        if let Some(group) = &group {
            let missing = self.groups.make_task(group, work).map_err(DriverError::from)?;
            if !missing.is_empty() {
                tracing::warn!(task = order.name, ?missing, "limits that cannot be enforced");
            }
        }
        // A log saver of an alloc runs as the user that its tasks ran as.
        let together = alloc.unwrap_or(attempt).without_log_saver();
        let range = self.ids.as_ref().map(|ids| ids.allocate(together)).transpose()?;
        let launch = self.driver.prepare(&StartContext {
            attempt,
            range,
            name: &order.name,
            machine: &self.machine,
            work,
            directory: self.folders.work_dir(attempt),
            folder: folder.clone(),
            alloc: left.or_else(|| alloc.map(|alloc| self.folders.work_dir(alloc))),
            packages: &inputs.packages,
            credentials: inputs.credentials.as_ref(),
            devices: &inputs.devices,
            group,
            lease_until,
            logs: self.logs,
        })?;
        record::write(&folder.join(LAUNCH), &launch, Durability::Process).map_err(|error| {
            // No other code will know of mounts and secrets that no launch names.
            let stuck = Sandbox::of(&launch)
                .map(|sandbox| sandbox.tear_down(Occupancy::Unknown))
                .unwrap_or_default();
            stuck.iter().for_each(|stuck| tracing::warn!(stuck, "what was laid out stays"));
            error.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_orders::{order, run};
    use crate::shim::protocol::LOGS;
    use crate::state_dir::scratch::Scratch;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::time::timeout;

    /// Sets up nothing, and counts its calls.
    #[derive(Default)]
    struct CountingDriver(AtomicUsize);

    impl Driver for CountingDriver {
        fn name(&self) -> &'static str {
            "none"
        }

        fn isolation_gaps(&self) -> Vec<String> {
            Vec::new()
        }

        fn prepare(
            &self,
            _: &StartContext<'_>,
        ) -> Result<crate::shim::protocol::Launch, DriverError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let (value, allowed) = ("x".to_owned(), "none".to_owned());
            Err(DriverError::Cannot { field: "command", value, allowed })
        }

        fn sweep(&self, _: &Path, _: &BTreeSet<String>) {}
    }

    /// A bug in the agent.
    struct PanickingDriver;

    impl Driver for PanickingDriver {
        fn name(&self) -> &'static str {
            "faulty"
        }

        fn isolation_gaps(&self) -> Vec<String> {
            Vec::new()
        }

        fn prepare(
            &self,
            _: &StartContext<'_>,
        ) -> Result<crate::shim::protocol::Launch, DriverError> {
            panic!("a planted fault")
        }

        fn sweep(&self, _: &Path, _: &BTreeSet<String>) {}
    }

    /// The start of the first attempt of a task, and its preparer.
    fn start(
        scratch: &Scratch,
        driver: Arc<dyn Driver>,
        shim: ShimProgram,
    ) -> (Arc<Preparer>, PendingStart) {
        let folders = Folders::open(&scratch.path("agent")).unwrap();
        let preparer = Preparer {
            packages: Packages::open(&folders.packages_dir(), 1 << 20, "m").unwrap(),
            folders,
            groups: TaskCgroups::disabled(),
            ids: None,
            driver,
            certifier: TaskCertifier::default(),
            shim,
            machine: "m".into(),
            devices: Vec::new(),
            logs: LogSettings { file_bytes: 1000, files: 1, rate: 1000 },
        };
        let order = order(1, 1, run());
        preparer.folders.make(&order).unwrap();
        let pending = PendingStart { order, lease_until: None, alloc: None, devices: Vec::new() };
        (Arc::new(preparer), pending)
    }

    #[tokio::test]
    async fn a_fault_while_laying_out_is_counted_and_named() {
        let scratch = Scratch::new();
        let (preparer, pending) =
            start(&scratch, Arc::new(PanickingDriver), ShimProgram::absent(1));
        let folders = preparer.folders.clone();
        let (_requests, received) = mpsc::unbounded_channel();
        let (updates_tx, mut updates_rx) = mpsc::unbounded_channel();
        let before = cellwright_supervise::handler_panics();
        preparer.run(pending, received, updates_tx).await;
        let (_, ended) = updates_rx.recv().await.unwrap();
        let AttemptUpdate::Ended(end, words) = ended else { panic!("{ended:?}") };
        assert_eq!(end, End::Failed(ExitClass::CouldNotStart));
        assert!(words.contains("a fault of its own") && words.contains("planted"), "{words}");
        let attempt = folders.attempt_dir(Attempt::of(&order(1, 1, run())));
        let log = std::fs::read_to_string(attempt.join(LOGS).join("stderr")).unwrap();
        assert_eq!(log.matches("[cell: ").count(), 1, "told once: {log}");
        assert!(cellwright_supervise::handler_panics() > before);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_laid_out_before_its_turn() {
        let scratch = Scratch::new();
        let (driver, shim) = (Arc::new(CountingDriver::default()), ShimProgram::absent(1));
        let (preparer, pending) = start(&scratch, driver.clone(), shim.clone());
        let (_requests, received) = mpsc::unbounded_channel();
        let (updates_tx, mut updates_rx) = mpsc::unbounded_channel();
        let other = shim.start_permit().await;
        tokio::spawn(preparer.run(pending, received, updates_tx));
        // Tokio's paused clock advances when every task is idle.
        assert!(timeout(Duration::from_secs(3600), updates_rx.recv()).await.is_err());
        assert_eq!(driver.0.load(Ordering::Relaxed), 0);
        drop(other);
        let (_, ended) = updates_rx.recv().await.unwrap();
        let failed = End::Failed(ExitClass::CouldNotStart);
        assert!(matches!(ended, AttemptUpdate::Ended(end, _) if end == failed), "{ended:?}");
        assert_eq!(driver.0.load(Ordering::Relaxed), 1);
    }
}
