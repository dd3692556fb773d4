//! Membership: how a replica that has its certificate becomes a member of the raft group. It
//! starts, and asks the leader to be added. Its certificate authenticates it, so it can speak for
//! itself and for no other.
//!
//! The addresses to ask are left in the data directory by `cell master join` and removed when the
//! replica is a voter; a crash in between means asking again, which does no harm.
//!
//! Before the configuration changes for a replica, the leader probes which replica answers at the
//! address it gave. A vote for an address where nothing answers, or where another replica does (the
//! leader itself, say), would be a vote that is never cast: with one voter before, the cell would
//! have lost its majority and could not even undo the mistake.
//!
//! Rejected: adding the replica when its token is used. It does not run yet then, and a member that
//! does not answer is a failure the cell is supposed to survive, not to start with.

use crate::access::request_origin;
use crate::config::Config;
use crate::http::access::InternalRoute;
use crate::serve::ServeError;
use crate::wire;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::{Router, routing::post};
use cellwright_api::client::Client;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::AddMaster;
use cellwright_api::wire::WireVersion;
use cellwright_cell::time::Span;
use cellwright_master::handle::{Caller, MasterHandle};
use cellwright_master::level::{ReplicaIdentity, ReplicaProbe};
use cellwright_store::{MemberError, NodeId, Peer, Role};
use http_body_util::{BodyExt, Limited};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Where a replica asks to be added.
pub const MEMBER_PATH: &str = "/internal/member";
const MAX_BODY: usize = 4 << 10;
const MASTERS_TO_JOIN_FILE: &str = "masters-to-join";
/// Its first line, with the version of the list that follows.
const MASTERS_TO_JOIN_HEAD: &str = "cell-masters-to-join 1";
/// Interval between attempts of a replica that is not a member yet.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Adds a replica: it is probed, then becomes a learner, and a voter once it has caught up.
///
/// # Errors
/// Why it is not added.
pub async fn admit(
    handle: &MasterHandle,
    candidates: &dyn ReplicaProbe,
    id: NodeId,
    peer: Peer,
) -> Result<(), ApiError> {
    let replica = handle.replica();
    let status = replica.status();
    if status.role != Role::Leader {
        return Err(member_error_response(MemberError::NotLeader { leader: status.leader_peer() }));
    }
    let existing = status.members.iter().find(|(other, member)| {
        **other != id && (member.peer.address == peer.address || member.peer.name == peer.name)
    });
    if let Some((other, member)) = existing {
        let Peer { name, address } = &member.peer;
        let message = format!("replica {other} is a member already, as {name} at {address}");
        return Err(ApiError::new(Code::Exists, message).hint(REMOVE_FIRST));
    }
    if !status.members.contains_key(&id) {
        let address = &peer.address;
        let found = candidates.identify(address.clone()).await;
        let level = handle.replicated().with(|view| view.state.level());
        let why = match found {
            Ok(ReplicaIdentity { level: known, .. }) if known < level => Some(format!(
                "replica {id} is of a build that knows level {known}; the cell is at {level}"
            )),
            Ok(found) if found.id == id => None,
            Ok(ReplicaIdentity { id: found, .. }) => {
                Some(format!("replica {found} answers at {address}, not replica {id}"))
            }
            Err(why) => Some(format!("replica {id} does not answer at {address}: {why}")),
        };
        if let Some(why) = why {
            return Err(ApiError::new(Code::WrongState, why)
                .hint("start the replica first: cell master join, then cell master start"));
        }
    }
    replica.add_learner(id, peer).await.map_err(member_error_response)?;
    replica.promote(id).await.map_err(member_error_response)
}

#[derive(Clone)]
pub struct Membership {
    pub handle: MasterHandle,
    pub candidates: Arc<dyn ReplicaProbe>,
}

impl Membership {
    /// The routes, to be merged with the others of the listener.
    pub fn router(self) -> Router {
        Router::new().route(
            MEMBER_PATH,
            post(async move |request| -> Response<Body> {
                wire::finish(self.take_in(request).await)
            }),
        )
    }

    async fn take_in(&self, request: Request<Body>) -> Result<(WireVersion, ()), ApiError> {
        let (parts, body) = request.into_parts();
        let replica_name = match parts.extensions.get::<Caller>() {
            Some(caller) => {
                InternalRoute::Member.admit(caller).map_err(|_| not_own_name_error())?;
                match caller {
                    Caller::Replica(name) => Some(name.as_str()),
                    _ => None,
                }
            }
            None => return Err(not_own_name_error()),
        };
        request_origin::require_postcard(&parts.headers)?;
        let version = wire::spoken(&parts.headers, replica_name.unwrap_or("the caller"))?;
        let collected = Limited::new(body, MAX_BODY).collect().await;
        let bytes = collected.map_err(|e| ApiError::new(Code::TooLarge, e.to_string()))?.to_bytes();
        let requested: AddMaster = wire::decode(version, &bytes)?;
        if replica_name.is_some_and(|own| own != requested.name.as_str()) {
            return Err(not_own_name_error());
        }
        let peer = Peer { name: requested.name.to_string(), address: requested.address };
        admit(&self.handle, self.candidates.as_ref(), requested.id, peer).await?;
        Ok((version, ()))
    }
}

fn not_own_name_error() -> ApiError {
    ApiError::new(Code::NotAllowed, "a replica asks for itself, with its own certificate")
}

const REMOVE_FIRST: &str = "remove the old replica first: cell master remove NAME";

/// The store's membership error as an API error.
pub(crate) fn member_error_response(error: MemberError) -> ApiError {
    let message = error.to_string();
    match error {
        MemberError::NotLeader { leader: Some((_, peer)) } => {
            ApiError::new(Code::NotLeader, message).with("leader", peer.address)
        }
        MemberError::NotLeader { leader: None } => {
            ApiError::new(Code::NoLeader, message).with_retry_after(Span(200))
        }
        MemberError::Exists { .. } => ApiError::new(Code::Exists, message).hint(REMOVE_FIRST),
        MemberError::Busy
        | MemberError::NotCaughtUp { .. }
        | MemberError::LastVoter { .. }
        | MemberError::NoMajorityLeft { .. } => ApiError::new(Code::WrongState, message),
        MemberError::Unknown { .. } => ApiError::new(Code::NoSuchReplica, message),
        MemberError::OutcomeUnknown { .. }
        | MemberError::Deposed { .. }
        | MemberError::Fatal { .. } => ApiError::new(Code::TimedOut, message),
    }
}

fn io_error_at(path: PathBuf) -> impl FnOnce(io::Error) -> ServeError {
    move |why| ServeError::Joining { path, why }
}

/// Saves the addresses that the replica with this data directory asks.
///
/// # Errors
/// When the file cannot be written.
pub fn remember_masters(data_dir: &Path, masters: &[String]) -> Result<(), ServeError> {
    let path = data_dir.join(MASTERS_TO_JOIN_FILE);
    let text = format!("{MASTERS_TO_JOIN_HEAD}\n{}\n", masters.join("\n"));
    std::fs::write(&path, text).map_err(io_error_at(path))
}

/// The addresses to ask; empty when the replica is a member or was never to join.
///
/// # Errors
/// When the file cannot be read.
pub fn masters_to_join(data_dir: &Path) -> Result<Vec<String>, ServeError> {
    let path = data_dir.join(MASTERS_TO_JOIN_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => match text.split_once('\n') {
            Some((MASTERS_TO_JOIN_HEAD, rest)) => {
                Ok(rest.split_whitespace().map(str::to_owned).collect())
            }
            _ => {
                let why = format!(
                    "it does not begin with {MASTERS_TO_JOIN_HEAD:?}; run the build \
                                   that wrote it, or join again"
                );
                Err(io_error_at(path)(io::Error::new(io::ErrorKind::InvalidData, why)))
            }
        },
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(why) => Err(io_error_at(path)(why)),
    }
}

fn forget_masters(data_dir: &Path) {
    if let Err(error) = std::fs::remove_file(data_dir.join(MASTERS_TO_JOIN_FILE)) {
        tracing::warn!(%error, "this replica will ask to be taken in again at its next start");
    }
}

/// Asks until this replica is a voter.
pub async fn request_membership(handle: MasterHandle, config: Config, client: Client) {
    let me =
        AddMaster { id: config.id, name: config.name.clone(), address: config.advertise.clone() };
    let votes = || handle.status().members.get(&me.id).is_some_and(|member| member.voter);
    while !votes() {
        let result: Result<(), _> = client.call_internal(MEMBER_PATH, &me).await;
        match result {
            Ok(()) => break,
            Err(error) => tracing::warn!(%error, "not taken in yet"),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    tracing::info!(name = %me.name, id = me.id, "this replica votes");
    forget_masters(&config.data_dir);
}
