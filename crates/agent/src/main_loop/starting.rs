//! The loop's part in starting tasks: what is set up at once, and what is left to the preparer.

use super::{Agent, AgentError, LocalAttempt};
use crate::attempt::{AttemptUpdate, give_up, supervise_attempt};
use crate::calibration::CpuFactor;
use crate::cgroups::{TaskCgroups, make_alloc};
use crate::config::{Config, ConfigError, DiskScanLimits};
use crate::credentials::TaskCertifier;
use crate::devices::HostDevice;
use crate::driver;
use crate::id_ranges::{self, IdRangeAllocator};
use crate::machine::{self, MachineDescription};
use crate::packages::Packages;
use crate::preparer::{PendingStart, Preparer};
use crate::shim::protocol::{ExitCause, Request};
use crate::shim_program::ShimProgram;
use crate::state_dir::Folders;
use crate::watch::{self, Readings, WatchList};
use cellwright_agent_core::agent::Event;
use cellwright_agent_core::reconcile::End;
use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::id::Attempt;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::task::ExitClass;
use cellwright_cell::time::Span;
use cellwright_supervise::Supervisor;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use tokio::sync::mpsc;

impl Agent {
    pub(super) fn start(&mut self, order: DesiredTask, lease_until: Option<u64>) {
        let attempt = Attempt::of(&order);
        let mut local = LocalAttempt::default();
        let event = match self.make_folder(&order) {
            Ok(()) if matches!(order.action, Order::Hold { .. }) => Some(Event::Held),
            Ok(()) => {
                local.requests = Some(self.start_task(&order, lease_until));
                None
            }
            Err(error) => {
                tracing::error!(task = order.name, error, "cannot be started");
                give_up(&self.folders.attempt_dir(attempt), ExitCause::CouldNotStart(error));
                Some(Event::Ended(End::Failed(ExitClass::CouldNotStart)))
            }
        };
        self.locals.insert(attempt, local);
        // The poll that follows the order reports that the task is starting. A separate message
        // would delay the next one, which reports that it runs.
        if let Some(event) = event {
            self.core.observe(attempt, event);
            self.news.notify_one();
        }
    }

    fn make_folder(&self, order: &DesiredTask) -> Result<(), String> {
        self.folders.make(order).map_err(|error| error.to_string())?;
        let Order::Hold { limits, .. } = &order.action else { return Ok(()) };
        match self.preparer.groups.alloc_group(Attempt::of(order)) {
            Some(group) => make_alloc(&group, *limits).map(drop).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// For an attempt that an earlier agent left.
    pub(super) fn supervise(
        &self,
        attempt: Attempt,
        order: &DesiredTask,
    ) -> mpsc::UnboundedSender<Request> {
        let (requests, received) = mpsc::unbounded_channel();
        let folder = self.folders.attempt_dir(attempt);
        let packages = match &order.action {
            Order::Run(work) => self.preparer.packages.pin_cached(&work.packages),
            _ => Default::default(),
        };
        let (preparer, updates) = (self.preparer.clone(), self.updates_tx.clone());
        // Its exit would never be received; the next agent supervises it again.
        self.supervisor.spawn_finite("the follower of a task", async move {
            let shim = preparer.shim.clone();
            tokio::select! {
                () = supervise_attempt(attempt, folder.clone(), shim, None, received, updates) => {}
                () = preparer.certifier.keep_fresh(attempt, &folder) => {}
            }
            drop(packages);
        });
        requests
    }

    /// Runs beside the loop: packages may have to be fetched.
    fn start_task(
        &self,
        order: &DesiredTask,
        lease_until: Option<u64>,
    ) -> mpsc::UnboundedSender<Request> {
        let (inside, mut devices) = match &order.action {
            Order::Run(work) => (work.alloc, work.devices.clone()),
            _ => (None, Vec::new()),
        };
        let alloc = inside.and_then(|alloc| self.core.alloc(alloc));
        // Tasks inside share what the alloc has, and have no devices of their own.
        if let Some((_, entry)) = alloc
            && let Order::Hold { devices: shared, .. } = &entry.order.action
        {
            devices.clone_from(shared);
        }
        let alloc = alloc.map(|(attempt, _)| attempt);
        let (requests, received) = mpsc::unbounded_channel();
        let pending = PendingStart { order: order.clone(), lease_until, alloc, devices };
        let preparer = Arc::clone(&self.preparer);
        let pending = preparer.run(pending, received, self.updates_tx.clone());
        self.supervisor.spawn_finite("the follower of a task", pending);
        requests
    }
}

/// How this machine starts tasks; adds to the machine's description which driver it has, and why
/// not a better one.
pub(super) fn preparer(
    config: &Config,
    folders: &Folders,
    machine: &mut MachineSpec,
    (devices, cpu_factor): (Vec<HostDevice>, CpuFactor),
    shim: ShimProgram,
) -> Result<Preparer, AgentError> {
    let groups = TaskCgroups::open(folders.root(), config.processes, cpu_factor);
    let ids = IdRangeAllocator::open(config.id_ranges, folders);
    if let Some(taken) = ids.as_ref().and_then(|_| id_ranges::conflicting_account(config.id_ranges))
    {
        return Err(AgentError::from(ConfigError::Field {
            field: "id_ranges".into(),
            value: format!("{:?}", config.id_ranges),
            allowed: format!("numbers that nobody has, unlike some of these: {taken}"),
        }));
    }
    let chosen = driver::select(config, folders, &groups)?;
    let off = chosen.container_off.as_deref();
    machine::set_text_attribute(machine, machine::DRIVER, Some(chosen.driver.name()));
    machine::set_text_attribute(machine, machine::CONTAINERS_OFF, off);
    if off.is_none() {
        // A plain process sees the whole machine, so no host volumes are offered to it.
        machine::advertise_host_volumes(machine, &config.volumes);
    }
    let runtime = chosen.driver.runtime();
    machine::set_text_attribute(machine, machine::RUNTIME, runtime);
    if let Some(runtime) = runtime.filter(|runtime| runtime.contains("CVE")) {
        tracing::warn!(runtime, "known holes: mended by your distribution, or to be mended by you");
    }
    if let (None, gaps) = (off, chosen.driver.isolation_gaps())
        && !gaps.is_empty()
    {
        tracing::warn!(?gaps, "containers with gaps");
    }
    if let Some(why) = off {
        tracing::warn!(why, gaps = ?chosen.driver.isolation_gaps(), "tasks are plain processes");
    }
    let name = machine.name.to_string();
    let packages = Packages::open(&folders.packages_dir(), config.package_bytes, &name)?;
    let logs = config.log_settings();
    let (folders, driver) = (folders.clone(), chosen.driver);
    let registrar = TaskCertifier::default();
    let machine = name;
    Ok(Preparer {
        folders,
        groups,
        ids,
        driver,
        packages,
        certifier: registrar,
        shim,
        machine,
        devices,
        logs,
    })
}

pub(super) fn watcher(
    described: MachineDescription,
    (ask_after, counting): (Span, DiskScanLimits),
    folders: &Folders,
    (readings, updates): (Readings, mpsc::UnboundedSender<(Attempt, AttemptUpdate)>),
    supervisor: &Supervisor,
) -> std::io::Result<SyncSender<WatchList>> {
    let (capacity, cores, data) = (described.usable, described.cores, folders.root().to_owned());
    let machine = watch::MachineConfig {
        capacity,
        cores,
        cpu_factor: described.cpu_factor,
        data,
        eviction_request_delay: ask_after,
        scan_limits: counting,
    };
    let found = move |attempt, finding| {
        // The loop that received updates may have ended.
        let _ = updates.send((attempt, AttemptUpdate::Finding(finding)));
    };
    watch::start(machine, readings, found, supervisor)
}
