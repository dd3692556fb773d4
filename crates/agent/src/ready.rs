//! From an order to a shim: fetches packages, makes the control group, has the driver lay out what
//! is around the program, and writes down what the shim is to launch. Takes as long as it takes,
//! away from the agent's loop; a task that is no longer wanted meanwhile is given up.
//!
//! Fetching is done for all at once, laying out in turns: every mount and every group that stands
//! and waits makes each program that starts meanwhile look through one more.
//!
//! Nothing here is needed again after `launch` is written. An agent that dies before finds a folder
//! without it, in which nothing ever ran, and begins anew.

use crate::attempt::{Heard, follow, give_up};
use crate::devices::{self, Granted, Held};
use crate::driver::{Driver, DriverError, Start};
use crate::folder::Folders;
use crate::groups::Groups;
use crate::ids::{IdsError, Ranges};
use crate::packages::{Packages, Unpacked};
use crate::papers::{Papers, Registrar};
use crate::record::{self, Keep, RecordError};
use crate::shim::protocol::{Cause, LAUNCH, LogSettings, Request};
use crate::shim::room::{Inside, Room};
use crate::shim_program::{ShimProgram, Turn};
use cellwright_agent_core::decide::End;
use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::device::DeviceGrant;
use cellwright_cell::id::Attempt;
use cellwright_cell::task::ExitClass;
use cellwright_package::cache::ObtainError;
use cellwright_supervise::{Panicked, caught, guarded, note_handler_panic, plant};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// What every start needs.
pub struct Preparer {
    pub folders: Folders,
    pub groups: Groups,
    /// Users and groups of tasks; none where the agent is not root.
    pub ids: Option<Ranges>,
    pub driver: Arc<dyn Driver>,
    pub packages: Packages,
    pub registrar: Registrar,
    pub shim: ShimProgram,
    /// The machine's name.
    pub machine: String,
    /// Devices of the machine, as the masters count them.
    pub devices: Vec<Held>,
    pub logs: LogSettings,
}

/// One attempt that is to start.
pub struct Beginning {
    pub order: DesiredTask,
    pub lease_until: Option<u64>,
    /// The alloc that it is to run in.
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
    CutShort,
    #[error("the agent met a fault of its own: {0}")]
    Fault(String),
    #[error("what the alloc left is not on this machine any more")]
    NothingLeft,
}

/// What was had for it elsewhere.
struct Given {
    devices: Vec<Granted>,
    packages: Vec<(String, PathBuf)>,
    papers: Option<Papers>,
}

/// How far it came.
enum Readied {
    Ready(Unpacked, Option<Turn>),
    /// Told to end before it began.
    Unwanted,
}

/// A panic is counted, and ends this start alone.
fn fault<T>(panicked: Panicked) -> Result<T, StartError> {
    note_handler_panic();
    Err(StartError::Fault(panicked.to_string()))
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

impl Preparer {
    /// Makes the attempt ready and follows it to its end.
    pub async fn begin(
        self: Arc<Preparer>,
        mut beginning: Beginning,
        mut requests: mpsc::UnboundedReceiver<Request>,
        heard: mpsc::UnboundedSender<(Attempt, Heard)>,
    ) {
        let attempt = Attempt::of(&beginning.order);
        let folder = self.folders.attempt(attempt);
        // What it runs comes from others: one that the agent chokes on fails by itself.
        let readied = guarded(self.make_ready(&mut beginning, &mut requests)).await;
        let readied = readied.unwrap_or_else(fault);
        let (end, cause, words) = match readied {
            Ok(Readied::Ready(_packages, turn)) => {
                // The packages stay as long as the attempt does.
                let shim = self.shim.clone();
                tokio::select! {
                    () = follow(attempt, folder.clone(), shim, turn, requests, heard) => {}
                    () = self.registrar.keep_fresh(attempt, &folder) => {}
                }
                return;
            }
            Ok(Readied::Unwanted) => (End::Gone, Cause::Told, "stopped before it began".into()),
            Err(error) => {
                let words = error.to_string();
                tracing::error!(task = beginning.order.name, words, "cannot be started");
                let failed = End::Failed(ExitClass::CouldNotStart);
                (failed, Cause::CouldNotStart(words.clone()), words)
            }
        };
        // Nobody was ever in it.
        if let Some(group) = self.groups.of_task(attempt, beginning.alloc)
            && let Err(error) = group.remove()
        {
            tracing::warn!(%error, "a group that was not needed stays");
        }
        give_up(&folder, cause);
        // The loop that wanted to hear it may have ended.
        let _ = heard.send((attempt, Heard::Ended(end, words)));
    }

    async fn make_ready(
        self: &Arc<Preparer>,
        beginning: &mut Beginning,
        requests: &mut mpsc::UnboundedReceiver<Request>,
    ) -> Result<Readied, StartError> {
        plant("ready");
        let Order::Run(work) = &beginning.order.action else { return Ok(Readied::Unwanted) };
        let delay = Duration::from_millis(work.delay.0);
        let attempt = Attempt::of(&beginning.order);
        let fetch = async move {
            // The clock under it has whole milliseconds, and none is waited for in vain.
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let packages = self.packages.obtain(&work.packages, attempt.task);
            let (packages, papers) = tokio::join!(packages, self.registrar.papers(attempt));
            // Last: who waits for the network keeps nobody from starting.
            Ok::<_, StartError>((packages?, papers, self.shim.turn().await))
        };
        tokio::pin!(fetch);
        let (packages, papers, turn) = loop {
            tokio::select! {
                biased;
                request = requests.recv() => match request {
                    Some(Request::Lease { until }) => beginning.lease_until = Some(until),
                    Some(Request::Signal { .. } | Request::Status) => {}
                    Some(Request::Stop { .. } | Request::Kill | Request::Condemn { .. }) | None => {
                        return Ok(Readied::Unwanted);
                    }
                },
                fetched = &mut fetch => break fetched?,
            }
        };
        let order = beginning.order.clone();
        let (lease_until, alloc) = (beginning.lease_until, beginning.alloc);
        let preparer = Arc::clone(self);
        let devices = devices::granted(&self.devices, &beginning.devices)?;
        let given = Given { devices, packages: packages.folders(), papers };
        // Caught where it is met: a panic in another thread would look like being cut short.
        let lay_out = move || caught(|| preparer.lay_out(&order, lease_until, alloc, &given));
        let laid_out = tokio::task::spawn_blocking(lay_out).await;
        laid_out.map_err(|_| StartError::CutShort)?.unwrap_or_else(fault)?;
        Ok(Readied::Ready(packages, turn))
    }

    fn lay_out(
        &self,
        order: &DesiredTask,
        lease_until: Option<u64>,
        alloc: Option<Attempt>,
        given: &Given,
    ) -> Result<(), StartError> {
        let Order::Run(work) = &order.action else { return Ok(()) };
        let attempt = Attempt::of(order);
        let folder = self.folders.attempt(attempt);
        let left = attempt.is_saver().then(|| self.folders.work(attempt.itself()));
        if left.as_ref().is_some_and(|left| !is_folder(left)) {
            return Err(StartError::NothingLeft);
        }
        let group = self.groups.of_task(attempt, alloc);
        if let Some(group) = &group {
            let missing = self.groups.make_task(group, work).map_err(DriverError::from)?;
            if !missing.is_empty() {
                tracing::warn!(task = order.name, ?missing, "limits that cannot be enforced");
            }
        }
        // Whoever saves what an alloc left is who its tasks were.
        let together = alloc.unwrap_or(attempt).itself();
        let range = self.ids.as_ref().map(|ids| ids.of(together)).transpose()?;
        let launch = self.driver.prepare(&Start {
            attempt,
            range,
            name: &order.name,
            machine: &self.machine,
            work,
            directory: self.folders.work(attempt),
            folder: folder.clone(),
            alloc: left.or_else(|| alloc.map(|alloc| self.folders.work(alloc))),
            packages: &given.packages,
            papers: given.papers.as_ref(),
            devices: &given.devices,
            group,
            lease_until,
            logs: self.logs,
        })?;
        record::write(&folder.join(LAUNCH), &launch, Keep::Process).map_err(|error| {
            // Nobody else will know of mounts and secrets that no launch tells of.
            let stuck =
                Room::of(&launch).map(|room| room.clear(Inside::Unknown)).unwrap_or_default();
            stuck.iter().for_each(|stuck| tracing::warn!(stuck, "what was laid out stays"));
            error.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::scratch::Scratch;
    use crate::sample_orders::{order, run};
    use crate::shim::protocol::LOGS;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::time::timeout;

    /// Lays out nothing, and counts how often it was asked to.
    #[derive(Default)]
    struct Asked(AtomicUsize);

    impl Driver for Asked {
        fn name(&self) -> &'static str {
            "none"
        }

        fn gaps(&self) -> Vec<String> {
            Vec::new()
        }

        fn prepare(&self, _: &Start<'_>) -> Result<crate::shim::protocol::Launch, DriverError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let (value, allowed) = ("x".to_owned(), "none".to_owned());
            Err(DriverError::Cannot { field: "command", value, allowed })
        }

        fn sweep(&self, _: &Path, _: &BTreeSet<String>) {}
    }

    /// A fault of the agent's own.
    struct Faulty;

    impl Driver for Faulty {
        fn name(&self) -> &'static str {
            "faulty"
        }

        fn gaps(&self) -> Vec<String> {
            Vec::new()
        }

        fn prepare(&self, _: &Start<'_>) -> Result<crate::shim::protocol::Launch, DriverError> {
            panic!("a planted fault")
        }

        fn sweep(&self, _: &Path, _: &BTreeSet<String>) {}
    }

    /// A start of the first attempt of a task, and what makes it ready.
    fn start(
        scratch: &Scratch,
        driver: Arc<dyn Driver>,
        shim: ShimProgram,
    ) -> (Arc<Preparer>, Beginning) {
        let folders = Folders::open(&scratch.path("agent")).unwrap();
        let preparer = Preparer {
            packages: Packages::open(&folders.packages(), 1 << 20, "m").unwrap(),
            folders,
            groups: Groups::none(),
            ids: None,
            driver,
            registrar: Registrar::default(),
            shim,
            machine: "m".into(),
            devices: Vec::new(),
            logs: LogSettings { file_bytes: 1000, files: 1, rate: 1000 },
        };
        let order = order(1, 1, run());
        preparer.folders.make(&order).unwrap();
        let beginning = Beginning { order, lease_until: None, alloc: None, devices: Vec::new() };
        (Arc::new(preparer), beginning)
    }

    #[tokio::test]
    async fn a_fault_while_laying_out_is_counted_and_named() {
        let scratch = Scratch::new();
        let (preparer, beginning) = start(&scratch, Arc::new(Faulty), ShimProgram::absent(1));
        let folders = preparer.folders.clone();
        let (_requests, received) = mpsc::unbounded_channel();
        let (told, mut heard) = mpsc::unbounded_channel();
        let before = cellwright_supervise::handler_panics();
        preparer.begin(beginning, received, told).await;
        let (_, ended) = heard.recv().await.unwrap();
        let Heard::Ended(end, words) = ended else { panic!("{ended:?}") };
        assert_eq!(end, End::Failed(ExitClass::CouldNotStart));
        assert!(words.contains("a fault of its own") && words.contains("planted"), "{words}");
        let attempt = folders.attempt(Attempt::of(&order(1, 1, run())));
        let said = std::fs::read_to_string(attempt.join(LOGS).join("stderr")).unwrap();
        assert_eq!(said.matches("[cell: ").count(), 1, "told once: {said}");
        assert!(cellwright_supervise::handler_panics() > before);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_laid_out_before_its_turn() {
        let scratch = Scratch::new();
        let (asked, shim) = (Arc::new(Asked::default()), ShimProgram::absent(1));
        let (preparer, beginning) = start(&scratch, asked.clone(), shim.clone());
        let (_requests, received) = mpsc::unbounded_channel();
        let (told, mut heard) = mpsc::unbounded_channel();
        let other = shim.turn().await;
        tokio::spawn(preparer.begin(beginning, received, told));
        // The clock moves on when nobody has anything left to do.
        assert!(timeout(Duration::from_secs(3600), heard.recv()).await.is_err());
        assert_eq!(asked.0.load(Ordering::Relaxed), 0);
        drop(other);
        let (_, ended) = heard.recv().await.unwrap();
        let failed = End::Failed(ExitClass::CouldNotStart);
        assert!(matches!(ended, Heard::Ended(end, _) if end == failed), "{ended:?}");
        assert_eq!(asked.0.load(Ordering::Relaxed), 1);
    }
}
