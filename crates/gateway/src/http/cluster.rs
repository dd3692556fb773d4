//! Status of the cell as a whole (E1) and of its replicas.

use super::call::Call;
use super::{Api, ApiResult, reply, view};
use crate::membership;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{
    AddMaster, Changed, ClusterStatus, ConfirmMaster, DriverView, MasterStatus, MemberView,
    NodeStatus, PartRevocation, TaskCounts, WaitingReplica,
};
use cellwright_cell::command::{Command, Done};
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::credential::{AccessToken, KeyFingerprint, PartKind, TokenKind};
use cellwright_cell::load::MachineLoad;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;
use cellwright_store::{Member, Peer, Role};
use std::collections::BTreeMap;

impl Api {
    pub(super) async fn cluster_status(&self, call: Call) -> ApiResult {
        let (view, consistent) = call.view(self).await?;
        let mut status = cluster_sums(&view.state);
        if call.flag("summary") {
            status.nodes.clear();
        }
        (status.index, status.consistent) = (view.index, consistent);
        Ok(reply::read(&call, view.index, consistent, &status))
    }

    pub(super) async fn master_status(&self, call: Call) -> ApiResult {
        let status = self.handle.status();
        let member = |(id, member): (&u64, &cellwright_store::Member)| MemberView {
            id: *id,
            name: member.peer.name.clone(),
            address: member.peer.address.clone(),
            voter: member.voter,
            leader: status.leader == Some(*id),
        };
        let is_removed = self.handle.is_removed();
        let leaderless = self.handle.leaderless_for();
        let master_status = MasterStatus {
            id: status.id,
            role: if is_removed { "removed" } else { role_text(status.role) }.into(),
            term: status.term,
            leader: status.leader,
            last_log: status.last_log.unwrap_or(0),
            applied: status.applied.unwrap_or(0),
            snapshot: status.snapshot.unwrap_or(0),
            purged: status.purged.unwrap_or(0),
            members: status.members.iter().map(member).collect(),
            version: env!("CARGO_PKG_VERSION").into(),
            level: self.handle.replicated().known_level(),
            leaderless_ms: leaderless
                .map(|long| u64::try_from(long.as_millis()).unwrap_or(u64::MAX)),
            damage: self.handle.disk_damage(),
            waiting: self
                .handle
                .replicated()
                .with(|view| waiting_replicas(&view.state, &status.members)),
        };
        Ok(reply::json(&call, master_status.applied, &master_status))
    }

    pub(super) async fn confirm_master(&self, mut call: Call) -> ApiResult {
        let ConfirmMaster { name, fingerprint } = call.json(self).await?;
        let allowed = "32 hexadecimal digits, as the replica shows them where it joins";
        let bad = || ApiError::field("fingerprint", &fingerprint, allowed);
        let key = KeyFingerprint::parse(&fingerprint).ok_or_else(bad)?;
        self.change(&call, Command::ConfirmReplica { name, key }).await
    }

    pub(super) async fn add_master(&self, mut call: Call) -> ApiResult {
        let AddMaster { id, name, address } = call.json(self).await?;
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if id == 0 || port.is_none() {
            let (field, value) = if id == 0 { ("id", "0") } else { ("address", address.as_str()) };
            return Err(ApiError::field(field, value, "an id of 1 or more and host:port"));
        }
        let peer = Peer { name: name.to_string(), address };
        let object = format!("{id} {} at {}", peer.name, peer.address);
        let done = membership::admit(&self.handle, self.services.candidates(), id, peer).await;
        self.audit_member_change(&call, "add_master", &object, done)
    }

    pub(super) async fn remove_master(&self, call: Call) -> ApiResult {
        let id = call.number("replica")?;
        let member = self.handle.status().members.get(&id).map(|member| member.peer.name.clone());
        let done =
            self.handle.replica().remove(id).await.map_err(membership::member_error_response);
        if done.is_ok() {
            self.revoke_replica(member.as_deref()).await;
        }
        self.audit_member_change(&call, "remove_master", &id.to_string(), done)
    }

    /// Revokes the certificates of a removed replica. It is removed already: if this fails, its
    /// certificate is still valid for no longer than a day.
    async fn revoke_replica(&self, member: Option<&str>) {
        let Some(name) = member.and_then(|name| Name::new(name).ok()) else { return };
        let command = Command::RevokePart { part: PartKind::Replica, name };
        let sent = async { self.handle.submit(&self.handle.own_caller()?, None, command).await };
        if let Err(error) = sent.await {
            tracing::warn!(%error, member, "a replica that was removed may still call");
        }
    }

    /// Revokes any part, when its certificate is in the wrong hands.
    pub(super) async fn revoke(&self, mut call: Call) -> ApiResult {
        let PartRevocation { part, name } = call.json(self).await?;
        let present = |member: &cellwright_store::Member| member.peer.name == name.as_str();
        if part == PartKind::Replica && self.handle.status().members.values().any(present) {
            let message = format!("replica {name} is a member");
            return Err(ApiError::new(Code::WrongState, message)
                .hint(format!("remove it: cell master remove {name}")));
        }
        self.change(&call, Command::RevokePart { part, name }).await
    }

    /// Membership changes are not commands of the log, so they are audited here.
    fn audit_member_change(
        &self,
        call: &Call,
        command: &str,
        object: &str,
        done: Result<(), ApiError>,
    ) -> ApiResult {
        let verdict = done.as_ref().map_or_else(|error| error.code.as_str(), |()| "done");
        self.write_audit(call, command, object, verdict);
        done?;
        let index = self.handle.read().index;
        Ok(reply::json(call, index, &Changed::new(index, &Done::Applied)))
    }
}

pub(super) fn role_text(role: Role) -> &'static str {
    match role {
        Role::Learner => "learner",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Leader => "leader",
        Role::Stopped => "stopped",
    }
}

/// The status without its index.
pub(super) fn cluster_sums(state: &State) -> ClusterStatus {
    let mut status = ClusterStatus {
        nodes: Vec::with_capacity(state.machines().len()),
        failed: Vec::new(),
        machines: state.machines().len() as u32,
        machines_up: 0,
        machines_draining: 0,
        capacity: state.capacity(),
        available: Resources::ZERO,
        jobs: state.jobs().len() as u32,
        tasks: TaskCounts::default(),
        users: state.users().len() as u32,
        drivers: Vec::new(),
        now: state.now(),
        index: 0,
        consistent: false,
    };
    let none = MachineLoad::default();
    for (id, row) in state.machines().iter() {
        let load = state.machine_load(id).unwrap_or(&none);
        let available = view::available(row, load);
        status.available = status.available.plus(available);
        status.machines_draining += u32::from(row.draining);
        match row.status {
            MachineStatus::Up => status.machines_up += 1,
            MachineStatus::Down => status.failed.push(row.spec.name.clone()),
        }
        status.nodes.push(NodeStatus {
            node: row.spec.name.clone(),
            status: row.status,
            draining: row.draining,
            capacity: row.spec.capacity,
            available,
            named: view::named_resources(state, id, row, load),
        });
    }
    status.drivers = drivers(state);
    for (id, _) in state.jobs().iter() {
        if let Some(load) = state.job_load(id) {
            add_counts(&mut status.tasks, &view::task_counts(load));
        }
    }
    status
}

/// Limit of the driver groups that are listed, the commonest first.
const MAX_DRIVERS: usize = 8;

fn drivers(state: &State) -> Vec<DriverView> {
    type DriverKey<'a> = (Option<&'a str>, Option<&'a str>);
    let (driver, off) = (Token::new("driver").ok(), Token::new("containers-off").ok());
    let mut kinds: BTreeMap<DriverKey<'_>, u32> = BTreeMap::new();
    for (_, row) in state.machines().iter() {
        let text = |name: &Option<Token>| match row.spec.attributes.get(name.as_ref()?) {
            Some(AttributeValue::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        *kinds.entry((text(&driver), text(&off))).or_default() += 1;
    }
    let mut found: Vec<DriverView> = kinds
        .into_iter()
        .map(|((driver, off), machines)| DriverView {
            driver: driver.map(str::to_owned),
            off: off.map(str::to_owned),
            machines,
        })
        .collect();
    found.sort_by_key(|kind| std::cmp::Reverse(kind.machines));
    found.truncate(MAX_DRIVERS);
    found
}

pub(super) fn add_counts(sum: &mut TaskCounts, more: &TaskCounts) {
    sum.deferred += more.deferred;
    sum.pending += more.pending;
    sum.assigned += more.assigned;
    sum.running += more.running;
    sum.stopping += more.stopping;
    sum.finished += more.finished;
    sum.failed += more.failed;
    sum.killed += more.killed;
}

/// Replicas that requested to join and are not members yet.
fn waiting_replicas(state: &State, members: &BTreeMap<u64, Member>) -> Vec<WaitingReplica> {
    let rows = state.tokens().iter().map(|(_, row)| row);
    let is_in = |name: &Name| members.values().any(|member| member.peer.name == name.as_str());
    let waiting_replica = |row: &AccessToken| {
        let (TokenKind::JoinReplica { name }, Some(waiting)) = (&row.kind, &row.waiting) else {
            return None;
        };
        if waiting.confirmed && is_in(name) {
            return None;
        }
        Some(WaitingReplica {
            name: name.clone(),
            fingerprint: waiting.who.key.to_string(),
            address: waiting.who.address.clone(),
            since: waiting.since,
            until: row.expires,
            confirmed: waiting.confirmed,
            token: row.id.clone(),
        })
    };
    rows.filter(|row| row.expires > state.now()).filter_map(waiting_replica).collect()
}
