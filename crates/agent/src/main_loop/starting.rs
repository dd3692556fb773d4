//! The loop's part in starting tasks: what is made at once, and what is left to whoever makes them
//! ready.

use super::{Agent, AgentError, Local};
use crate::attempt::{Heard, follow, give_up};
use crate::config::{Config, ConfigError, Counting};
use crate::devices::Held;
use crate::driver;
use crate::folder::Folders;
use crate::groups::{Groups, make_alloc};
use crate::ids::{self, Ranges};
use crate::machine::{self, Described};
use crate::packages::Packages;
use crate::papers::Registrar;
use crate::ready::{Beginning, Preparer};
use crate::shim::protocol::{Cause, Request};
use crate::shim_program::ShimProgram;
use crate::watch::{self, Readings, Watched};
use cellwright_agent_core::agent::Event;
use cellwright_agent_core::decide::End;
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
        let mut local = Local::default();
        let event = match self.make_folder(&order) {
            Ok(()) if matches!(order.action, Order::Hold { .. }) => Some(Event::Held),
            Ok(()) => {
                local.requests = Some(self.begin(&order, lease_until));
                None
            }
            Err(error) => {
                tracing::error!(task = order.name, error, "cannot be started");
                give_up(&self.folders.attempt(attempt), Cause::CouldNotStart(error));
                Some(Event::Ended(End::Failed(ExitClass::CouldNotStart)))
            }
        };
        self.locals.insert(attempt, local);
        // That one is on its way is told by the poll that follows the order. A message apart would
        // hold up the next, which says that it runs.
        if let Some(event) = event {
            self.core.observe(attempt, event);
            self.news.notify_one();
        }
    }

    fn make_folder(&self, order: &DesiredTask) -> Result<(), String> {
        self.folders.make(order).map_err(|error| error.to_string())?;
        let Order::Hold { limits, .. } = &order.action else { return Ok(()) };
        match self.preparer.groups.of_alloc(Attempt::of(order)) {
            Some(group) => make_alloc(&group, *limits).map(drop).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Of an attempt that an earlier agent left.
    pub(super) fn follow(
        &self,
        attempt: Attempt,
        order: &DesiredTask,
    ) -> mpsc::UnboundedSender<Request> {
        let (requests, received) = mpsc::unbounded_channel();
        let folder = self.folders.attempt(attempt);
        let packages = match &order.action {
            Order::Run(work) => self.preparer.packages.keep(&work.packages),
            _ => Default::default(),
        };
        let (preparer, told) = (self.preparer.clone(), self.told.clone());
        // Its end would never be heard of; the next agent follows it again.
        self.supervisor.errand("the follower of a task", async move {
            let shim = preparer.shim.clone();
            tokio::select! {
                () = follow(attempt, folder.clone(), shim, None, received, told) => {}
                () = preparer.registrar.keep_fresh(attempt, &folder) => {}
            }
            drop(packages);
        });
        requests
    }

    /// Away from this loop: packages may have to be fetched.
    fn begin(
        &self,
        order: &DesiredTask,
        lease_until: Option<u64>,
    ) -> mpsc::UnboundedSender<Request> {
        let (inside, mut devices) = match &order.action {
            Order::Run(work) => (work.alloc, work.devices.clone()),
            _ => (None, Vec::new()),
        };
        let alloc = inside.and_then(|alloc| self.core.alloc(alloc));
        // Its tasks share what the alloc has, and have no devices of their own.
        if let Some((_, entry)) = alloc
            && let Order::Hold { devices: shared, .. } = &entry.order.action
        {
            devices.clone_from(shared);
        }
        let alloc = alloc.map(|(attempt, _)| attempt);
        let (requests, received) = mpsc::unbounded_channel();
        let beginning = Beginning { order: order.clone(), lease_until, alloc, devices };
        let preparer = Arc::clone(&self.preparer);
        let beginning = preparer.begin(beginning, received, self.told.clone());
        self.supervisor.errand("the follower of a task", beginning);
        requests
    }
}

/// How this machine starts tasks; says of it which driver it has, and why not a better one.
pub(super) fn preparer(
    config: &Config,
    folders: &Folders,
    machine: &mut MachineSpec,
    devices: Vec<Held>,
    shim: ShimProgram,
) -> Result<Preparer, AgentError> {
    let groups = Groups::open(folders.root(), config.processes);
    let ids = Ranges::open(config.id_ranges, folders);
    if let Some(taken) = ids.as_ref().and_then(|_| ids::taken(config.id_ranges)) {
        return Err(AgentError::from(ConfigError::Field {
            field: "id_ranges".into(),
            value: format!("{:?}", config.id_ranges),
            allowed: format!("numbers that nobody has, unlike some of these: {taken}"),
        }));
    }
    let chosen = driver::choose(config, folders, &groups)?;
    let off = chosen.container_off.as_deref();
    machine::say(machine, machine::DRIVER, Some(chosen.driver.name()));
    machine::say(machine, machine::CONTAINERS_OFF, off);
    if off.is_none() {
        // A plain process sees the whole machine, and is lent nothing.
        machine::say_lent(machine, &config.volumes);
    }
    let runtime = chosen.driver.runtime();
    machine::say(machine, machine::RUNTIME, runtime);
    if let Some(runtime) = runtime.filter(|runtime| runtime.contains("CVE")) {
        tracing::warn!(runtime, "known holes: mended by your distribution, or to be mended by you");
    }
    if let (None, gaps) = (off, chosen.driver.gaps())
        && !gaps.is_empty()
    {
        tracing::warn!(?gaps, "containers with gaps");
    }
    if let Some(why) = off {
        tracing::warn!(why, gaps = ?chosen.driver.gaps(), "tasks are plain processes");
    }
    let name = machine.name.to_string();
    let packages = Packages::open(&folders.packages(), config.package_bytes, &name)?;
    let logs = config.log_settings();
    let (folders, driver) = (folders.clone(), chosen.driver);
    let registrar = Registrar::default();
    let machine = name;
    Ok(Preparer { folders, groups, ids, driver, packages, registrar, shim, machine, devices, logs })
}

pub(super) fn watcher(
    described: Described,
    (ask_after, counting): (Span, Counting),
    folders: &Folders,
    (readings, told): (Readings, mpsc::UnboundedSender<(Attempt, Heard)>),
    supervisor: &Supervisor,
) -> std::io::Result<SyncSender<Vec<Watched>>> {
    let (capacity, cores, data) = (described.usable, described.cores, folders.root().to_owned());
    let machine = watch::Machine { capacity, cores, data, ask_after, counting };
    let found = move |attempt, finding| {
        // The loop that wanted to hear it may have ended.
        let _ = told.send((attempt, Heard::Found(finding)));
    };
    watch::start(machine, readings, found, supervisor)
}
