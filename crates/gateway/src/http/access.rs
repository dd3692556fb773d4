//! Authorization: every decision of the HTTP side about who gets an answer, and how much of it.
//! Handlers call this module and decide nothing by themselves. Changes are authorised once more,
//! and finally, by `apply` (`crates/cell/src/apply/authorize.rs`) in the caller's own name; the
//! checks of changes here only keep out callers that have no business with a route at all.
//!
//! Three tables: public routes ([`may_call`], and the `access` of each route), internal routes
//! ([`InternalRoute::allows`]), and how much of a job a caller may see ([`Viewer`]). Every user of
//! the cell sees which jobs there are, how much they request and their status. What they run
//! (commands, environment, files, packages) is for the owner, for users with `read_specs`, and for
//! those who may replace it (`administrate_jobs`). Capabilities are looked up each time an object
//! is rendered, in the state it is rendered from, so that a watch that lasts for days does not
//! outlive a capability that was revoked.
//!
//! Authentication comes before (`crate::access::caller`).

use super::Api;
use super::call::Call;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::routes::{Access, Operation, Route, RouteKind};
use cellwright_cell::credential::PartKind;
use cellwright_cell::id::UserId;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::quota::Capability;
use cellwright_cell::reason::Rejection;
use cellwright_cell::state::State;
use cellwright_master::handle::Caller;
use cellwright_master::replicated_state::View;
use cellwright_messages::Proposal;

/// Internal routes for the cell's own parts, in postcard and not in the OpenAPI document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InternalRoute {
    /// Reports of an agent, answered with its orders.
    Poll,
    /// Which machines have a package.
    Holders,
    /// Whether a part that has dialled the agent is a member of the cell.
    MembershipCheck,
    Log,
    Propose,
    Lease,
    /// Calls between replicas, and whole packages.
    Peer,
    /// A replica requests to become a member.
    Member,
    /// Ranges of packages.
    Package,
}

impl InternalRoute {
    /// The table. Operators, who hold the cell, may act as every part.
    fn allows(self, caller: &Caller) -> bool {
        use InternalRoute as R;
        match caller {
            Caller::Operator => true,
            Caller::Agent(_) => match self {
                R::Poll | R::Holders | R::MembershipCheck | R::Package => true,
                R::Log | R::Propose | R::Lease | R::Peer | R::Member => false,
            },
            Caller::Scheduler(_) => match self {
                R::Log | R::Propose | R::Lease => true,
                R::Poll | R::Holders | R::MembershipCheck | R::Peer | R::Member | R::Package => {
                    false
                }
            },
            Caller::Replica(_) => match self {
                R::Log | R::Propose | R::Lease | R::Peer | R::Member | R::Package => true,
                R::Poll | R::Holders | R::MembershipCheck => false,
            },
            Caller::User(_) | Caller::Controller(_) | Caller::Task { .. } => false,
        }
    }

    fn allowed_callers(self) -> &'static str {
        match self {
            InternalRoute::Poll | InternalRoute::Holders | InternalRoute::MembershipCheck => {
                "the agent of the machine it speaks for"
            }
            InternalRoute::Log | InternalRoute::Propose | InternalRoute::Lease => "a scheduler",
            InternalRoute::Peer | InternalRoute::Package => "another replica",
            InternalRoute::Member => "the replica itself",
        }
    }

    /// # Errors
    /// When the caller may not use this route.
    pub(crate) fn admit(self, caller: &Caller) -> Result<(), ApiError> {
        if self.allows(caller) {
            Ok(())
        } else {
            Err(wrong_caller_error(caller, self.allowed_callers()))
        }
    }
}

fn wrong_caller_error(caller: &Caller, allowed: &str) -> ApiError {
    let message = format!("only {allowed} may call this; the caller is {caller}");
    ApiError::new(Code::NotAllowed, message).hint("use the public routes under /v1")
}

pub(super) fn unauthenticated() -> ApiError {
    ApiError::new(Code::Unauthenticated, "the request does not say who asks")
}

/// An agent speaks for its own machine and no other.
///
/// # Errors
/// When `machine` is another.
pub(super) fn check_own_machine(caller: &Caller, machine: &Name) -> Result<(), ApiError> {
    match caller {
        Caller::Agent(own) if own != machine => {
            Err(wrong_caller_error(caller, "the agent of the machine it speaks for"))
        }
        _ => Ok(()),
    }
}

/// A scheduler requests leases and proposes under the name of its certificate and no other.
///
/// # Errors
/// When `name` is another.
pub(super) fn check_scheduler_name(caller: &Caller, name: &str) -> Result<(), ApiError> {
    match caller {
        Caller::Scheduler(own) if own.as_str() != name => {
            let message = format!("scheduler {own} asks in the name of {name}");
            Err(ApiError::new(Code::NotAllowed, message)
                .hint("start it under the name its certificate is for"))
        }
        _ => Ok(()),
    }
}

/// Proposals here may only name schedulers as actors; what schedulers may do is decided by `apply`.
///
/// # Errors
/// When a request names another kind of actor.
pub(super) fn check_proposal_actors(caller: &Caller, proposal: &Proposal) -> Result<(), ApiError> {
    for (at, request) in proposal.requests.iter().enumerate() {
        match &request.by {
            Caller::Scheduler(name) => check_scheduler_name(caller, name.as_str())?,
            other => {
                let field = format!("requests[{at}].by");
                return Err(ApiError::field(&field, &other.to_string(), "a scheduler"));
            }
        }
    }
    Ok(())
}

/// The agent of a removed machine learns from its polls that its tasks are to end, and gets nothing
/// else.
fn check_machine_exists(caller: &Caller, state: &State) -> Result<(), ApiError> {
    match caller {
        Caller::Agent(machine) if state.is_revoked(PartKind::Agent, machine) => {
            let message = format!("machine {machine} was removed from the cell");
            Err(ApiError::new(Code::NotAllowed, message)
                .hint(format!("let it join again: cell token create --agent {machine}")))
        }
        _ => Ok(()),
    }
}

/// Whether a user holds the capability. Of the cell's own parts only the operator does.
fn check_capability(
    caller: &Caller,
    capability: Capability,
    state: &State,
) -> Result<(), ApiError> {
    let user = match caller {
        Caller::Operator => return Ok(()),
        Caller::User(user) => user,
        Caller::Agent(_)
        | Caller::Scheduler(_)
        | Caller::Replica(_)
        | Caller::Controller(_)
        | Caller::Task { .. } => {
            let message = format!("only users with {capability} see this");
            return Err(ApiError::new(Code::NotAllowed, message));
        }
    };
    let row = state.user_named(user).and_then(|id| state.users().get(id));
    match row.map(|row| row.capabilities.contains(&capability)) {
        Some(true) => Ok(()),
        Some(false) => Err(Rejection::NotAllowed { user: user.clone(), capability }.into()),
        None => Err(Rejection::NoSuchUser(user.clone()).into()),
    }
}

/// The cell's own parts have their internal routes. Of the public ones an agent may use those about
/// its own machine, and fetch packages by digest: its machine's tasks come with its polls, and
/// those of others are not for it, because it runs where tasks may break out. Schedulers and
/// replicas read. Tasks do not call as themselves yet.
fn may_call(caller: &Caller, route: &Route) -> bool {
    match caller {
        Caller::User(_) | Caller::Operator => true,
        Caller::Agent(_) => matches!(route.operation, Operation::SetResource | Operation::GetBlob),
        Caller::Scheduler(_) | Caller::Replica(_) => {
            !matches!(route.kind, RouteKind::Change | RouteKind::Create)
        }
        Caller::Controller(_) | Caller::Task { .. } => false,
    }
}

/// Whether the caller may use a public route; `user`: the user that its path names.
fn check_access(caller: &Caller, route: &Route, user: &str, state: &State) -> Result<(), ApiError> {
    if !may_call(caller, route) {
        let message = "agents, schedulers, replicas and tasks have no business with this route";
        return Err(ApiError::new(Code::NotAllowed, message)
            .hint("ask as a user: send a user's token or certificate"));
    }
    check_machine_exists(caller, state)?;
    match route.access {
        Access::Open | Access::Authenticated => Ok(()),
        Access::HasCapability(capability) => check_capability(caller, capability, state),
        Access::SelfOrHasCapability(capability) => match caller {
            Caller::User(name) if name.as_str() == user => Ok(()),
            _ => check_capability(caller, capability, state),
        },
    }
}

impl Api {
    /// Checks whether the caller may use the route at all.
    pub(super) fn check_admitted(&self, call: &Call) -> Result<(), ApiError> {
        if call.route.access == Access::Open {
            return Ok(());
        }
        let caller = call.caller()?;
        let admits = |view: &View| check_access(caller, call.route, call.text("user"), &view.state);
        self.handle.replicated().with(admits)
    }

    /// Whether the caller would still be admitted.
    pub(super) fn is_still_admitted(&self, call: &Call) -> bool {
        call.is_proof_valid() && self.check_admitted(call).is_ok()
    }

    pub(super) fn check_machine_exists(&self, caller: &Caller) -> Result<(), ApiError> {
        self.handle.replicated().with(|view| check_machine_exists(caller, &view.state))
    }

    pub(super) fn check_capability(
        &self,
        caller: &Caller,
        capability: Capability,
    ) -> Result<(), ApiError> {
        self.handle.replicated().with(|view| check_capability(caller, capability, &view.state))
    }

    /// Rejects a change of a job by a caller that may not make it. It comes before anything of the
    /// job is looked at, so that an error reveals nothing of it.
    pub(super) fn check_may_change(&self, caller: &Caller, job: &JobKey) -> Result<(), ApiError> {
        let Caller::User(user) = caller else { return Ok(()) };
        if *user == job.user || self.check_capability(caller, Capability::AdministrateJobs).is_ok()
        {
            Ok(())
        } else {
            Err(Rejection::NotOwner { user: user.clone(), job: job.clone() }.into())
        }
    }
}

/// The caller, as far as it matters for what it may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    /// A caller that has the whole state anyway: masters, schedulers, and operators.
    Trusted,
    User(Name),
    /// Authenticated, and without jobs of its own.
    Nobody,
}

impl Viewer {
    pub fn of(caller: &Caller) -> Viewer {
        match caller {
            Caller::Operator | Caller::Replica(_) | Caller::Scheduler(_) => Viewer::Trusted,
            Caller::User(name) => Viewer::User(name.clone()),
            Caller::Agent(_) | Caller::Controller(_) | Caller::Task { .. } => Viewer::Nobody,
        }
    }

    /// Whether the specs of `owner`'s jobs may be seen.
    pub fn sees_specs(&self, state: &State, owner: UserId) -> bool {
        match self {
            Viewer::Trusted => true,
            Viewer::Nobody => false,
            Viewer::User(name) => {
                state.user_named(name) == Some(owner) || self.sees_all_specs(state)
            }
        }
    }

    /// Whether the specs of all jobs may be seen.
    pub fn sees_all_specs(&self, state: &State) -> bool {
        match self {
            Viewer::Trusted => true,
            Viewer::Nobody => false,
            Viewer::User(name) => {
                let row = state.user_named(name).and_then(|id| state.users().get(id));
                row.is_some_and(cellwright_cell::quota::User::can_read_specs)
            }
        }
    }

    pub fn is_user(&self, user: &Name) -> bool {
        matches!(self, Viewer::User(name) if name == user)
    }
}

impl Call {
    pub fn viewer(&self) -> Result<Viewer, ApiError> {
        self.caller().map(Viewer::of)
    }
}
