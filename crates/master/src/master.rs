//! One replica of the master, assembled: store, replicated state, core and its loop, link shard.

use crate::clock::Clock;
use crate::config::MasterConfig;
use crate::handle::{MasterHandle, MasterParts};
use crate::links::{LinkConfig, LinkShard};
use crate::main_loop::{MainLoop, Message};
use crate::peers::{Peers, RaftTransport};
use crate::record_logs::RecordLogs;
use crate::record_repair;
use crate::rejected_polls::RejectedPolls;
use crate::replicated_state::{CellStateMachine, ReplicatedState};
use cellwright_control::core::Core;
use cellwright_control::log_time::ClockSkews;
use cellwright_store::{Disk, NodeId, OpenError, Replica};
use cellwright_supervise::Supervisor;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// The environment of a replica: real in the product, simulated in the simulator.
pub struct Environment {
    pub disk: Arc<dyn Disk>,
    pub peers: Arc<dyn Peers>,
    pub clock: Arc<dyn Clock>,
}

pub struct Master {
    handle: MasterHandle,
    tasks: Vec<JoinHandle<()>>,
}

impl Master {
    /// # Errors
    /// When what is on the disk cannot be trusted or read.
    pub async fn start(
        id: NodeId,
        settings: MasterConfig,
        store: cellwright_store::StoreConfig,
        env: Environment,
    ) -> Result<Master, OpenError> {
        Master::start_wrapped(id, settings, store, env, |machine| machine).await
    }

    /// The same with a wrapper around the state machine: the simulator injects bugs there.
    ///
    /// # Errors
    /// As [`Master::start`].
    pub async fn start_wrapped<M: cellwright_store::StateMachine>(
        id: NodeId,
        settings: MasterConfig,
        store: cellwright_store::StoreConfig,
        env: Environment,
        wrap: impl FnOnce(CellStateMachine) -> M,
    ) -> Result<Master, OpenError> {
        let (events, audit) = (settings.events, settings.audit);
        let supervisor = store.supervisor.clone();
        let records = RecordLogs::open(&env.disk, events, audit, store.on_fatal.clone())
            .map_err(|source| OpenError::Disk { path: "events".into(), source })?;
        records.audit.set_user_allowance(settings.audit_per_user, audit);
        let replicated = ReplicatedState::with_known_level(records, settings.known_level);
        let (peers, shared) = (env.peers.clone(), replicated.clone());
        let transport = Arc::new(RaftTransport { id, peers, replicated: shared });
        let machine = wrap(CellStateMachine(replicated.clone()));
        let replica = Arc::new(Replica::open(id, store, env.disk, transport, machine).await?);
        let links = LinkConfig {
            poll: settings.core.liveness.poll_interval,
            redirect: settings.redirect,
            reclaim: settings.reclaim,
        };
        let links = Arc::new(LinkShard::new(replicated.clone(), env.clock.clone(), links));
        let (sender, messages) = mpsc::unbounded_channel();
        let (alarms, alarms_receiver) = watch::channel(Vec::new());
        let (passes, passes_receiver) = watch::channel(BTreeMap::new());
        let (skews, skews_receiver) = watch::channel(ClockSkews::default());
        let (controllers, controllers_receiver) = watch::channel(BTreeMap::new());
        let handle = MasterHandle(Arc::new(MasterParts {
            replica: replica.clone(),
            replicated: replicated.clone(),
            links: links.clone(),
            peers: env.peers.clone(),
            sender: sender.clone(),
            alarms: alarms_receiver,
            passes: passes_receiver,
            skews: skews_receiver,
            controllers: controllers_receiver,
            usage_history: OnceLock::new(),
            supervisor: supervisor.clone(),
            rejected_polls: RejectedPolls::default(),
            damage: OnceLock::new(),
            leaderless_since: Mutex::default(),
            has_caught_up: AtomicBool::new(false),
            scheduler_levels: Mutex::default(),
        }));
        let main_loop = MainLoop {
            core: Core::new(settings.core),
            replica,
            replicated,
            clock: env.clock,
            messages,
            sender,
            alarms,
            passes,
            skews,
            controllers,
            supervisor: supervisor.clone(),
        };
        let tasks = spawn_tasks(&supervisor, main_loop, &handle, links, env.peers);
        Ok(Master { handle, tasks })
    }

    #[must_use]
    pub fn handle(&self) -> &MasterHandle {
        &self.handle
    }

    /// Stops accepting work, then stops the replica. What was acknowledged is on the disk already.
    pub async fn stop(self) {
        self.begin_stop();
        self.handle.0.replica.shutdown().await;
    }

    /// Simulates a killed process: nothing more reaches the disk.
    pub async fn kill(self) {
        self.begin_stop();
        self.handle.0.replica.kill().await;
    }

    fn begin_stop(&self) {
        self.handle.0.supervisor.mark_stopping();
        // The loop is gone already when the replica stopped by itself.
        let _ = self.handle.0.sender.send(Message::Stop);
        self.tasks.iter().skip(1).for_each(JoinHandle::abort);
    }
}

fn spawn_tasks(
    supervisor: &Supervisor,
    main_loop: MainLoop,
    handle: &MasterHandle,
    links: Arc<LinkShard>,
    peers: Arc<dyn Peers>,
) -> Vec<JoinHandle<()>> {
    vec![
        supervisor.spawn_essential("the core loop", main_loop.run()),
        supervisor.spawn_essential("the follower of the role", handle.clone().sync_role()),
        supervisor.spawn_essential(
            "the mending of records",
            record_repair::repair_periodically(handle.clone()),
        ),
        supervisor.spawn_essential(
            "the scrubbing of records",
            record_repair::scrub_periodically(handle.clone()),
        ),
        supervisor.spawn_essential("the links to agents", {
            let handle = handle.clone();
            async move { links.run(peers, |forward| handle.accept_forward(forward)).await }
        }),
    ]
}
