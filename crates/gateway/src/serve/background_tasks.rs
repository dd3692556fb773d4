//! Background tasks of a running master, beside its listener: checkpoints, blob replication,
//! raising the level, the first commands of a new cell, joining, and the renewal of credentials.

use super::{AccessMode, DEV_USER, ServeError, agent_dialler};
use crate::access::authenticator::MasterAuthenticator;
use crate::access::replica_credentials::ReplicaCredentials;
use crate::archiver::{Archiver, restore};
use crate::config::Config;
use crate::http::master_services::MasterServices;
use crate::init::{first_requests, forget_first_requests};
use crate::membership;
use cellwright_api::client::Client;
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::command::Command;
use cellwright_cell::name::Name;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_identity::dev_token::PublishedToken;
use cellwright_master::blob_syncer::BlobSyncer;
use cellwright_master::bounds_publisher;
use cellwright_master::clock::Clock;
use cellwright_master::handle::{Caller, MasterHandle};
use cellwright_master::leadership_log;
use cellwright_master::level;
use cellwright_master::level::ReplicaProbe;
use cellwright_master::load_sampler;
use cellwright_store::Role;
use cellwright_supervise::failpoint;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Starts the background tasks. A cell of one replica has its first users when this returns; a
/// larger one may be waiting for its other replicas.
pub(super) async fn start_background_tasks(
    config: &Config,
    access: AccessMode,
    handle: &MasterHandle,
    files: Arc<MasterServices>,
    client: Client,
) -> Result<Vec<JoinHandle<()>>, ServeError> {
    let every = Duration::from_millis(config.checkpoint_interval.0);
    let candidates: Arc<dyn ReplicaProbe> = files.peers.clone();
    let (blobs, blob_peers) = (files.blobs.clone(), files.peers.clone());
    let supervisor = handle.supervisor();
    let (raising, announcing) = (handle.clone(), handle.clone());
    let (saving, keeping) = (handle.clone(), handle.clone());
    let mut background_tasks = vec![
        supervisor.spawn_restarting("saving checkpoints", move || {
            save_checkpoints(saving.clone(), files.clone(), every)
        }),
        supervisor.spawn_restarting("raising the level", move || {
            level::raise_level_periodically(raising.clone(), candidates.clone())
        }),
        supervisor.spawn_restarting("keeping packages", move || {
            BlobSyncer::new(keeping.clone(), blobs.clone(), blob_peers.clone()).run()
        }),
        supervisor.spawn_restarting("announcing leaders", move || {
            leadership_log::log_leader_changes(announcing.clone())
        }),
    ];
    let first_commands = match access {
        AccessMode::Dev => Some(dev_user_commands()),
        AccessMode::Authenticated => first_requests(&config.data_dir)?
            .map(|requests| requests.into_iter().map(|request| request.command).collect()),
    };
    if let Some(mut commands) = first_commands {
        commands.push(Command::SetBounds(config.bounds));
        // A new cell has no replica with a lower level.
        let next = State::default().level() + 1;
        let known = handle.replicated().known_level();
        commands.extend((next..=known).map(|level| Command::RaiseLevel { level }));
        let submitting = submit_first_commands(handle.clone(), commands, config.data_dir.clone());
        match handle.status().members.len() {
            0 | 1 => submitting.await,
            _ => background_tasks.push(supervisor.spawn_finite("the first requests", submitting)),
        }
    }
    let (publishing, bounds) = (handle.clone(), config.bounds);
    background_tasks.push(supervisor.spawn_restarting("saying the limits", move || {
        bounds_publisher::publish_bounds_periodically(publishing.clone(), bounds)
    }));
    let sampling = handle.clone();
    background_tasks.push(supervisor.spawn_restarting("sampling the loads of jobs", move || {
        load_sampler::sample_loads_periodically(sampling.clone(), load_sampler::SAMPLE_EVERY)
    }));
    if !membership::masters_to_join(&config.data_dir)?.is_empty() {
        let joining = membership::request_membership(handle.clone(), config.clone(), client);
        background_tasks.push(supervisor.spawn_finite("joining", joining));
    }
    Ok(background_tasks)
}

/// Starts the writer of the archive, and what brings history back from it, if the cell has one.
pub(super) fn start_archiver(
    config: &Config,
    handle: &MasterHandle,
    services: &Arc<MasterServices>,
    credentials: Option<&ReplicaCredentials>,
) -> Vec<JoinHandle<()>> {
    let Some(archive) = services.archive.clone() else { return Vec::new() };
    let history = cellwright_master::history::folder(&config.data_dir);
    if let Some(archive) = &config.archive {
        // Until the leader knows what is in there, nothing that is old is sure to be.
        services.history.set_archived(archive.wait, BTreeSet::new());
    }
    let archiver = Archiver {
        archive: archive.clone(),
        handle: handle.clone(),
        services: services.clone(),
        agents: agent_dialler(config, credentials),
        history: history.clone(),
    };
    let archiving = move || archiver.clone().run();
    let restoring = handle.clone();
    let restoring = move || restore::run(archive.clone(), restoring.clone(), history.clone());
    let supervisor = handle.supervisor();
    vec![
        supervisor.spawn_restarting("writing the archive", archiving),
        supervisor.spawn_restarting("bringing history back", restoring),
    ]
}

/// Starts the background tasks that depend on how callers authenticate: counted rejections, the
/// token of a dev master, and the renewal of this replica's certificate.
pub(super) fn start_access_tasks(
    handle: &MasterHandle,
    authenticator: &Arc<MasterAuthenticator>,
    dev_token: Option<Arc<PublishedToken>>,
    credentials: Option<ReplicaCredentials>,
    clock: Arc<dyn Clock>,
) -> Vec<JoinHandle<()>> {
    let supervisor = handle.supervisor();
    let authenticator = authenticator.clone();
    let mut background_tasks = vec![supervisor.spawn_restarting("settling refusals", move || {
        authenticator.clone().run_rejection_flush()
    })];
    if let Some(token) = dev_token {
        let keep = move || keep_token_published(token.clone());
        background_tasks
            .push(supervisor.spawn_restarting("keeping the token where it is found", keep));
    }
    if let Some(credentials) = credentials {
        let fresh = credentials.run_renewal(clock, handle.replicated().clone());
        background_tasks.push(supervisor.spawn_essential("the renewal of the certificate", fresh));
    }
    background_tasks
}

/// Keeps the token of a dev master published for as long as it runs, even when old files are
/// cleaned.
async fn keep_token_published(token: Arc<PublishedToken>) {
    const EVERY: Duration = Duration::from_secs(10);
    loop {
        tokio::time::sleep(EVERY).await;
        let again = Arc::clone(&token);
        match tokio::task::spawn_blocking(move || again.ensure_published()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the token of this cell cannot be found"),
            Err(_) => return,
        }
    }
}

/// A dev master has one user to submit jobs as, with ample quota below production: production quota
/// is limited by the machines, which join later.
fn dev_user_commands() -> Vec<Command> {
    let Ok(name) = Name::new(DEV_USER) else { return Vec::new() };
    let max_amount = MAX_TOTAL;
    let amount =
        Resources { cpu: max_amount, ram: max_amount, disk: max_amount, disk_rate: max_amount };
    let quota = |band| Command::SetQuota {
        user: name.clone(),
        band,
        quota: Some(Quota { amount, from: Time(0), until: Time::NEVER }),
        expect: None,
    };
    vec![Command::AddUser { name: name.clone() }, quota(Band::BestEffort), quota(Band::Batch)]
}

/// Whether the cell has its first user: all commands are in one entry, so it has the rest too.
fn is_applied(commands: &[Command], state: &State) -> bool {
    commands.iter().any(|command| match command {
        Command::AddUser { name } => state.user_named(name).is_some(),
        _ => false,
    })
}

/// Submits the first commands of a new cell, as soon as this replica leads.
async fn submit_first_commands(handle: MasterHandle, commands: Vec<Command>, data_dir: PathBuf) {
    let mut status = handle.replica().watch();
    let caller = Caller::Operator;
    loop {
        if status.wait_for(|status| status.role == Role::Leader).await.is_err() {
            return;
        }
        if handle.read_linearizable().await.is_ok_and(|view| is_applied(&commands, &view.state)) {
            break;
        }
        let requests = commands.iter().map(|command| (None, command.clone())).collect();
        match handle.submit_many(&caller, requests).await {
            Ok(_) => break,
            Err(error) => {
                tracing::debug!(%error, "the first users are not in the log yet");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    if let Err(error) = forget_first_requests(&data_dir) {
        tracing::warn!(%error, "the first requests will be repeated at the next start");
    }
}

/// Saves a checkpoint at every interval in which something happened.
async fn save_checkpoints(handle: MasterHandle, files: Arc<MasterServices>, every: Duration) {
    let mut saved = handle.read().index;
    loop {
        failpoint("checkpoints");
        tokio::time::sleep(every).await;
        let view = handle.read();
        let index = view.index;
        if index == saved {
            continue;
        }
        // The rest of the disk is reserved for the log.
        let room = handle.replica().disk_space();
        if room.is_low() {
            tracing::warn!(room.free, "no checkpoint is saved: the disk is getting full");
            continue;
        }
        let files = files.clone();
        let done = tokio::task::spawn_blocking(move || files.checkpoints.save(&view)).await;
        match done {
            Ok(Ok(_)) => saved = index,
            Ok(Err(error)) => tracing::warn!(%error, "no checkpoint was saved"),
            Err(error) => tracing::warn!(%error, "no checkpoint was saved"),
        }
    }
}
