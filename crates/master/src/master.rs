//! One replica of the master, assembled: store, replicated state, core and its loop, link shard.

use crate::clock::Clock;
use crate::handle::{Handle, Parts};
use crate::links::{LinkSettings, LinkShard};
use crate::main_loop::{Loop, Message};
use crate::mend;
use crate::peers::{Peers, RaftOver};
use crate::records::Records;
use crate::refused::RefusedBook;
use crate::replicated::{CellMachine, Replicated};
use crate::settings::Settings;
use cellwright_control::core::Core;
use cellwright_control::dating::Skews;
use cellwright_store::{Disk, NodeId, OpenError, Replica};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// The world around a replica: real in the product, simulated in the simulator.
pub struct World {
    pub disk: Arc<dyn Disk>,
    pub peers: Arc<dyn Peers>,
    pub clock: Arc<dyn Clock>,
}

pub struct Master {
    handle: Handle,
    tasks: Vec<JoinHandle<()>>,
}

impl Master {
    /// # Errors
    /// When what is on the disk cannot be trusted or read.
    pub async fn start(
        id: NodeId,
        settings: Settings,
        store: cellwright_store::Settings,
        world: World,
    ) -> Result<Master, OpenError> {
        Master::start_wrapped(id, settings, store, world, |machine| machine).await
    }

    /// The same with something around the state machine: the simulator plants bugs there.
    ///
    /// # Errors
    /// As [`Master::start`].
    pub async fn start_wrapped<M: cellwright_store::Machine>(
        id: NodeId,
        settings: Settings,
        store: cellwright_store::Settings,
        world: World,
        wrap: impl FnOnce(CellMachine) -> M,
    ) -> Result<Master, OpenError> {
        let (events, audit) = (settings.events, settings.audit);
        let supervisor = store.supervisor.clone();
        let records = Records::open(&world.disk, events, audit, store.on_fatal.clone())
            .map_err(|source| OpenError::Disk { path: "events".into(), source })?;
        records.audit.bound_each_user(settings.audit_per_user, audit);
        let replicated = Replicated::new(records);
        let (peers, shared) = (world.peers.clone(), replicated.clone());
        let transport = Arc::new(RaftOver { id, peers, replicated: shared });
        let machine = wrap(CellMachine(replicated.clone()));
        let replica = Arc::new(Replica::open(id, store, world.disk, transport, machine).await?);
        let links = LinkSettings {
            poll: settings.core.liveness.poll,
            redial: settings.redial,
            reclaim: settings.reclaim,
        };
        let links = Arc::new(LinkShard::new(replicated.clone(), world.clock.clone(), links));
        let (sender, messages) = mpsc::unbounded_channel();
        let (alarms, alarms_seen) = watch::channel(Vec::new());
        let (passes, passes_seen) = watch::channel(BTreeMap::new());
        let (skews, skews_seen) = watch::channel(Skews::default());
        let (controllers, controllers_seen) = watch::channel(BTreeMap::new());
        let handle = Handle(Arc::new(Parts {
            replica: replica.clone(),
            replicated: replicated.clone(),
            links: links.clone(),
            peers: world.peers.clone(),
            sender: sender.clone(),
            alarms: alarms_seen,
            passes: passes_seen,
            skews: skews_seen,
            controllers: controllers_seen,
            past: OnceLock::new(),
            supervisor: supervisor.clone(),
            refused: RefusedBook::default(),
            leaderless: Mutex::default(),
            caught_up: AtomicBool::new(false),
        }));
        let around = Loop {
            core: Core::new(settings.core),
            replica,
            replicated,
            clock: world.clock,
            messages,
            sender,
            alarms,
            passes,
            skews,
            controllers,
            supervisor: supervisor.clone(),
        };
        let peers = world.peers;
        let tasks = vec![
            supervisor.essential("the core loop", around.run()),
            supervisor.essential("the follower of the role", handle.clone().follow_role()),
            supervisor.essential("the mending of records", mend::keep_mending(handle.clone())),
            supervisor.essential("the scrubbing of records", mend::keep_scrubbing(handle.clone())),
            supervisor.essential("the links to agents", {
                let handle = handle.clone();
                async move { links.run(peers, |forward| handle.take_forward(forward)).await }
            }),
        ];
        Ok(Master { handle, tasks })
    }

    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Stops taking work, then the replica. What was acknowledged is on the disk already.
    pub async fn stop(self) {
        self.let_go();
        self.handle.0.replica.shutdown().await;
    }

    /// As if the process had been killed: nothing more reaches the disk.
    pub async fn kill(self) {
        self.let_go();
        self.handle.0.replica.kill().await;
    }

    fn let_go(&self) {
        self.handle.0.supervisor.stops();
        // The loop is gone already when the replica stopped by itself.
        let _ = self.handle.0.sender.send(Message::Stop);
        self.tasks.iter().skip(1).for_each(JoinHandle::abort);
    }
}
