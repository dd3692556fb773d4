//! Who may ask what: every decision of the HTTP side about who gets an answer, and how much of it
//! is shown. Handlers ask here and decide nothing by themselves. Changes are decided by `apply`
//! (`crates/cell/src/apply/authorize.rs`) once more and for good, in the caller's own name; what is
//! decided here about them only keeps out who has no business with a route at all.
//!
//! Three tables: public routes ([`may_ask`], and the `access` of each route), routes of the cell's
//! own parts ([`PartRoute::answers`]), and what of a job is shown to whom ([`Viewer`]). Everybody
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
use cellwright_api::routes::{Access, Kind, Operation, Route};
use cellwright_cell::credential::PartKind;
use cellwright_cell::id::UserId;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::quota::Capability;
use cellwright_cell::reason::Refusal;
use cellwright_cell::state::State;
use cellwright_master::handle::Caller;
use cellwright_master::replicated::View;

/// Routes of the cell's own parts, in postcard and without a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartRoute {
    /// Reports of an agent, and what its machine is to hold.
    Poll,
    /// Who has a package.
    Holders,
    /// Whether somebody who has dialled the agent may be listened to.
    Standing,
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

impl PartRoute {
    /// The table. Operators, who hold the cell, may play every part in it.
    fn answers(self, caller: &Caller) -> bool {
        use PartRoute as R;
        match caller {
            Caller::Operator => true,
            Caller::Agent(_) => match self {
                R::Poll | R::Holders | R::Standing | R::Package => true,
                R::Log | R::Propose | R::Lease | R::Peer | R::Member => false,
            },
            Caller::Scheduler(_) => match self {
                R::Log | R::Propose | R::Lease => true,
                R::Poll | R::Holders | R::Standing | R::Peer | R::Member | R::Package => false,
            },
            Caller::Replica(_) => match self {
                R::Log | R::Propose | R::Lease | R::Peer | R::Member | R::Package => true,
                R::Poll | R::Holders | R::Standing => false,
            },
            Caller::User(_) | Caller::Controller(_) | Caller::Task { .. } => false,
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            PartRoute::Poll | PartRoute::Holders | PartRoute::Standing => {
                "the agent of the machine it speaks for"
            }
            PartRoute::Log | PartRoute::Propose | PartRoute::Lease => "a scheduler",
            PartRoute::Peer | PartRoute::Package => "another replica",
            PartRoute::Member => "the replica itself",
        }
    }

    /// # Errors
    /// When the caller has no business with this route.
    pub(crate) fn admit(self, caller: &Caller) -> Result<(), ApiError> {
        match self.answers(caller) {
            true => Ok(()),
            false => Err(stranger(caller, self.wanted())),
        }
    }
}

fn stranger(caller: &Caller, wanted: &str) -> ApiError {
    let message = format!("only {wanted} may call this; the caller is {caller}");
    ApiError::new(Code::NotAllowed, message).hint("use the public routes under /v1")
}

pub(super) fn unauthenticated() -> ApiError {
    ApiError::new(Code::Unauthenticated, "the request does not say who asks")
}

/// An agent speaks for its own machine and no other.
///
/// # Errors
/// When `machine` is another.
pub(super) fn speaks_for(caller: &Caller, machine: &Name) -> Result<(), ApiError> {
    match caller {
        Caller::Agent(own) if own != machine => {
            Err(stranger(caller, "the agent of the machine it speaks for"))
        }
        _ => Ok(()),
    }
}

/// A scheduler asks and proposes under the name of its certificate and no other.
///
/// # Errors
/// When `name` is another.
pub(super) fn schedules_as(caller: &Caller, name: &str) -> Result<(), ApiError> {
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
pub(super) fn proposes_as(caller: &Caller, proposal: &Proposal) -> Result<(), ApiError> {
    for (at, request) in proposal.requests.iter().enumerate() {
        match &request.by {
            Caller::Scheduler(name) => schedules_as(caller, name.as_str())?,
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
fn still_here(caller: &Caller, state: &State) -> Result<(), ApiError> {
    match caller {
        Caller::Agent(machine) if state.is_dismissed(PartKind::Agent, machine) => {
            let message = format!("machine {machine} was removed from the cell");
            Err(ApiError::new(Code::NotAllowed, message)
                .hint(format!("let it join again: cell token create --agent {machine}")))
        }
        _ => Ok(()),
    }
}

/// Whether a user holds the capability. Of the cell's own parts only the operator does.
fn holds(caller: &Caller, capability: Capability, state: &State) -> Result<(), ApiError> {
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
        Some(false) => Err(Refusal::NotAllowed { user: user.clone(), capability }.into()),
        None => Err(Refusal::NoSuchUser(user.clone()).into()),
    }
}

/// The cell's own parts have their own routes. Of the public ones an agent has what is about its
/// own machine, and fetches packages by digest: the work of its machine comes with its polls, and
/// that of others is none of its business, for it runs where tasks may break out. Schedulers and
/// replicas read. Tasks do not call as themselves yet.
fn may_ask(caller: &Caller, route: &Route) -> bool {
    match caller {
        Caller::User(_) | Caller::Operator => true,
        Caller::Agent(_) => matches!(route.operation, Operation::SetResource | Operation::GetBlob),
        Caller::Scheduler(_) | Caller::Replica(_) => {
            !matches!(route.kind, Kind::Change | Kind::Make)
        }
        Caller::Controller(_) | Caller::Task { .. } => false,
    }
}

/// Whether the caller gets an answer of a public route; `user`: whom its path names.
fn admits(caller: &Caller, route: &Route, user: &str, state: &State) -> Result<(), ApiError> {
    if !may_ask(caller, route) {
        let message = "agents, schedulers, replicas and tasks have no business with this route";
        return Err(ApiError::new(Code::NotAllowed, message)
            .hint("ask as a user: send a user's token or certificate"));
    }
    still_here(caller, state)?;
    match route.access {
        Access::Open | Access::Known => Ok(()),
        Access::Holder(capability) => holds(caller, capability, state),
        Access::SelfOrHolder(capability) => match caller {
            Caller::User(name) if name.as_str() == user => Ok(()),
            _ => holds(caller, capability, state),
        },
    }
}

impl Api {
    /// Whether the caller gets in at all.
    pub(super) fn admit(&self, call: &Call) -> Result<(), ApiError> {
        if call.route.access == Access::Open {
            return Ok(());
        }
        let caller = call.caller()?;
        let admits = |view: &View| admits(caller, call.route, call.text("user"), &view.state);
        self.handle.replicated().with(admits)
    }

    /// Whether the caller would still get in.
    pub(super) fn still_admits(&self, call: &Call) -> bool {
        call.proof_stands() && self.admit(call).is_ok()
    }

    pub(super) fn still_here(&self, caller: &Caller) -> Result<(), ApiError> {
        self.handle.replicated().with(|view| still_here(caller, &view.state))
    }

    pub(super) fn holds(&self, caller: &Caller, capability: Capability) -> Result<(), ApiError> {
        self.handle.replicated().with(|view| holds(caller, capability, &view.state))
    }

    /// Refuses what is asked of a job by whoever could not change it. Comes before anything of the
    /// job is looked at, so that a refusal tells nothing of it.
    pub(super) fn may_change(&self, caller: &Caller, job: &JobKey) -> Result<(), ApiError> {
        let Caller::User(user) = caller else { return Ok(()) };
        match *user == job.user || self.holds(caller, Capability::AdministrateJobs).is_ok() {
            true => Ok(()),
            false => Err(Refusal::NotOwner { user: user.clone(), job: job.clone() }.into()),
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
    pub fn sees_inside(&self, state: &State, owner: UserId) -> bool {
        match self {
            Viewer::Trusted => true,
            Viewer::Nobody => false,
            Viewer::User(name) => {
                state.user_named(name) == Some(owner) || self.sees_all_inside(state)
            }
        }
    }

    /// Whether what everybody's jobs run may be seen.
    pub fn sees_all_inside(&self, state: &State) -> bool {
        match self {
            Viewer::Trusted => true,
            Viewer::Nobody => false,
            Viewer::User(name) => {
                let row = state.user_named(name).and_then(|id| state.users().get(id));
                row.is_some_and(cellwright_cell::quota::User::reads_specs)
            }
        }
    }

    pub fn is(&self, user: &Name) -> bool {
        matches!(self, Viewer::User(name) if name == user)
    }
}

impl Call {
    pub fn viewer(&self) -> Result<Viewer, ApiError> {
        self.caller().map(Viewer::of)
    }
}
