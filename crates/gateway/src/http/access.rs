//! Who may ask what: every decision of the HTTP side about who gets an answer, and how much of it
//! is shown. Handlers ask here and decide nothing by themselves. Changes are decided by `apply`
//! (`crates/cell/src/apply/authorize.rs`) once more and for good, in the caller's own name; what is
//! decided here about them only keeps out who has no business with a route at all.
//!
//! Three tables: public routes ([`may_call`], and the `access` of each route), routes of the cell's
//! own parts ([`InternalRoute::allows`]), and what of a job is shown to whom ([`Viewer`]). Everybody
//! in the cell sees which jobs there are, how much they ask for and how they fare. What they run
//! (commands, environment, files, packages) is for the owner, for users with `read_specs`, and for
//! those who may replace it (`administrate_jobs`). Rights are looked up whenever something is
//! shown, in the state it is shown from, so that a watch that goes on for days does not outlive a
//! right that was taken away.
//!
//! Who asks is established before (`crate::access::caller`).

use super::Api;
use super::call::Call;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::internal::Proposal;
use cellwright_api::routes::{Access, Operation, Route, RouteKind};
use cellwright_cell::credential::PartKind;
use cellwright_cell::id::UserId;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::quota::Capability;
use cellwright_cell::reason::Rejection;
use cellwright_cell::state::State;
use cellwright_master::handle::Caller;
use cellwright_master::replicated_state::View;

/// Routes of the cell's own parts, in postcard and without a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InternalRoute {
    /// Reports of an agent, and what its machine is to hold.
    Poll,
    /// Who has a package.
    Holders,
    /// Whether somebody who has dialled the agent may be listened to.
    MembershipCheck,
    Log,
    Propose,
    Lease,
    /// Calls between replicas, and content of packages as a whole.
    Peer,
    /// A replica asks to be taken in.
    Member,
    /// Content of packages in pieces.
    Package,
}

impl InternalRoute {
    /// The table. Operators, who hold the cell, may play every part in it.
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
    /// When the caller has no business with this route.
    pub(crate) fn admit(self, caller: &Caller) -> Result<(), ApiError> {
        match self.allows(caller) {
            true => Ok(()),
            false => Err(wrong_caller_error(caller, self.allowed_callers())),
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

/// A scheduler asks and proposes under the name of its certificate and no other.
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

/// Nobody proposes in the name of anybody but a scheduler here; what schedulers may is decided by
/// `apply`.
///
/// # Errors
/// When a request says that somebody else acts.
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

/// The agent of a machine that was removed hears with its polls that its tasks are to end, and gets
/// nothing else.
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

/// The cell's own parts have their own routes. Of the public ones an agent has what is about its
/// own machine, and fetches packages by digest: the work of its machine comes with its polls, and
/// that of others is none of its business, for it runs where tasks may break out. Schedulers and
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

/// Whether the caller gets an answer of a public route; `user`: whom its path names.
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
    /// Whether the caller gets in at all.
    pub(super) fn check_admitted(&self, call: &Call) -> Result<(), ApiError> {
        if call.route.access == Access::Open {
            return Ok(());
        }
        let caller = call.caller()?;
        let admits = |view: &View| check_access(caller, call.route, call.text("user"), &view.state);
        self.handle.replicated().with(admits)
    }

    /// Whether the caller would still get in.
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

    /// Refuses what is asked of a job by whoever could not change it. Comes before anything of the
    /// job is looked at, so that a refusal tells nothing of it.
    pub(super) fn check_may_change(&self, caller: &Caller, job: &JobKey) -> Result<(), ApiError> {
        let Caller::User(user) = caller else { return Ok(()) };
        match *user == job.user
            || self.check_capability(caller, Capability::AdministrateJobs).is_ok()
        {
            true => Ok(()),
            false => Err(Rejection::NotOwner { user: user.clone(), job: job.clone() }.into()),
        }
    }
}

/// Whoever asked, as far as it matters for what is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    /// Whoever has the whole state anyway: masters, schedulers, and who holds the cell.
    Trusted,
    User(Name),
    /// Known, and without a job of its own.
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

    /// Whether what jobs of `owner` run may be seen.
    pub fn sees_specs(&self, state: &State, owner: UserId) -> bool {
        match self {
            Viewer::Trusted => true,
            Viewer::Nobody => false,
            Viewer::User(name) => {
                state.user_named(name) == Some(owner) || self.sees_all_specs(state)
            }
        }
    }

    /// Whether what everybody's jobs run may be seen.
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
