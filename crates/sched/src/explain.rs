//! Why a task waits (B17): how many machines refuse it for which reason first, the nearest change
//! with which it would fit, whom it would have to evict, and where it stands in the queue.
//!
//! Everything is data; [`text`] puts it into sentences. The counts add up to the machines of the
//! cell, because every machine is counted once, under the first reason in the precedence order of
//! [`Misfit`]. One explanation is a walk over the machines; tasks of a class share it. The walk is
//! divided into ranges of fixed length, so its result does not depend on who walks.
//!
//! Rejected: keeping the reasons of the last pass. A pass looks at as few machines as it can and
//! stops at the first predicate that fails, so it cannot say what would have helped.

mod change;
pub mod here;
pub mod names;
pub mod standing;
mod tally;
pub mod text;
pub mod units;
mod verdict;
mod victims;

use crate::board::Board;
use crate::class::ClassId;
use crate::executor::{self, Executor};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::isolation::Loan;
use cellwright_cell::name::Token;
use cellwright_cell::named::ResourceName;
use cellwright_cell::priority::Priority;
use cellwright_cell::reason::Misfit;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::spec::Domain;
pub use change::{Change, Counterfactual, Lowered};
use names::{MachineRef, Names, TaskRef};
use serde::Serialize;
use standing::{Standing, Standings};
use tally::{Group, Subject, Tally};
use verdict::Asked;
use victims::Ledger;
pub use victims::{Obstacle, VictimNeeded, Victims};

/// Machine slots walked as one part.
const PART: usize = 2048;

/// Code of the machines on which the task fits as things are; the other codes are those of
/// [`Misfit`].
pub const FITS: &str = "fits";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub priority: Priority,
    pub limits: Resources,
    /// What a placement would be charged by reservation.
    pub reservation: Resources,
    pub machines_total: u32,
    /// Most machines first; the numbers add up to `machines_total`.
    pub reasons: Vec<ReasonCount>,
    /// The nearest change with which it would fit somewhere; `None` when it fits as it is or when
    /// no change of one thing, or of two limits, helps.
    pub counterfactual: Option<Counterfactual>,
    /// The other changes of one thing that would help, nearest first.
    pub alternatives: Vec<Counterfactual>,
    /// Machines that would take it if nothing were on them, tasks of its own job included.
    pub when_empty: u32,
    /// Of them, those on which the job's spread limits stand against it now.
    pub kept_apart: u32,
    /// Machines that drain or are down and would take it, open again, if nothing were on them.
    pub once_open: u32,
    /// Limits beyond the largest machine there is.
    pub too_large: Vec<TooLarge>,
    /// Whom it would have to evict; `None` when it fits or when no eviction helps.
    pub victims: Option<Victims>,
    /// Tasks that must find a place together, for a gang.
    pub gang: Option<u32>,
    /// Only for a task, not for a class.
    pub standing: Option<Standing>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonCount {
    /// A code of [`Misfit`], or [`FITS`].
    pub code: &'static str,
    pub machines: u32,
    pub detail: Detail,
}

/// What a reason is about. `machine` is the one that comes nearest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Detail {
    /// The code says it all.
    Nothing,
    Constraint {
        position: u32,
        constraint: String,
    },
    /// A folder that the machines do not lend, or not for writing.
    Volume(Loan),
    Spread {
        domain: Domain,
        limit: u32,
    },
    /// The first few holders of the port.
    StaticPort {
        port: u16,
        holders: Vec<PortHolder>,
    },
    DynamicPorts {
        asked: u64,
        available: u64,
        machine: Option<MachineRef>,
    },
    Device {
        kind: Token,
        /// Any of these; empty: any at all.
        models: Vec<Token>,
        asked: u32,
        milli: u16,
        available: u64,
        machine: Option<MachineRef>,
    },
    Named {
        name: ResourceName,
        asked: u64,
        available: u64,
        machine: Option<MachineRef>,
    },
    Resource {
        dimension: Dimension,
        asked: u64,
        available: u64,
        machine: Option<MachineRef>,
    },
    /// As many as a machine may hold.
    Tasks {
        most: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortHolder {
    pub task: TaskRef,
    pub machine: MachineRef,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TooLarge {
    pub dimension: Dimension,
    pub asked: u64,
    /// The largest capacity of any machine.
    pub largest: u64,
}

/// Explains classes of one board. Making it costs a look at every task; each class then costs a
/// look at every machine.
pub struct Explainer<'a> {
    board: &'a Board,
    names: &'a dyn Names,
    executor: &'a dyn Executor,
    ledger: Ledger,
    largest: Resources,
}

/// Why tasks of `class` wait. For many classes, [`Explainer`] shares the preparation.
#[must_use]
pub fn explain(
    board: &Board,
    class: ClassId,
    names: &dyn Names,
    executor: &dyn Executor,
) -> Explanation {
    Explainer::new(board, names, executor).class(class)
}

impl<'a> Explainer<'a> {
    #[must_use]
    pub fn new(
        board: &'a Board,
        names: &'a dyn Names,
        executor: &'a dyn Executor,
    ) -> Explainer<'a> {
        let largest =
            board.machine_ids().fold(Resources::ZERO, |most, m| most.max(board.capacity(m)));
        Explainer { board, names, executor, ledger: Ledger::new(board), largest }
    }

    #[must_use]
    pub fn class(&self, class: ClassId) -> Explanation {
        let asked = Asked::new(self.board, &self.ledger, self.board.class(class));
        let tallies = executor::map(self.executor, self.parts(), |part| walk(&asked, part));
        self.finish(&asked, tallies)
    }

    /// Explanations of many classes, in their order.
    #[must_use]
    pub fn classes(&self, classes: &[ClassId]) -> Vec<Explanation> {
        let asked: Vec<Asked<'_>> = classes
            .iter()
            .map(|class| Asked::new(self.board, &self.ledger, self.board.class(*class)))
            .collect();
        let parts = self.parts();
        let work = |part: usize| walk(&asked[part / parts], part % parts);
        let tallies = executor::map(self.executor, asked.len() * parts, work);
        let mut tallies = tallies.into_iter();
        asked.iter().map(|asked| self.finish(asked, tallies.by_ref().take(parts))).collect()
    }

    /// Why this task waits, with its standing in the queue; `None` for a task that does not.
    #[must_use]
    pub fn task(&self, task: TaskId, standings: &Standings) -> Option<Explanation> {
        let standing = standings.of(self.board, task)?;
        let (job, _) = self.board.identity_of(task)?;
        let mut explanation = self.class(self.board.class_of(task)?);
        explanation.standing = Some(standing);
        explanation.gang = self.gang(job);
        Some(explanation)
    }

    /// How many tasks of a gang wait for a place together.
    fn gang(&self, job: JobId) -> Option<u32> {
        self.board.job_spec(job).filter(|spec| spec.gang)?;
        let of_job = |task: &&TaskId| {
            self.board.identity_of(**task).is_some_and(|(its_job, _)| its_job == job)
        };
        Some(self.board.pending().iter().filter(of_job).count() as u32)
    }

    /// At least one, so that an empty cell has a tally too.
    fn parts(&self) -> usize {
        self.board.machine_slots().div_ceil(PART).max(1)
    }

    fn finish(&self, asked: &Asked<'_>, tallies: impl IntoIterator<Item = Tally>) -> Explanation {
        let mut tally = Tally::default();
        tallies.into_iter().for_each(|later| tally.add(later));
        tally.groups.sort_unstable_by_key(|g| (std::cmp::Reverse(g.machines), g.subject));
        let request = &asked.class.request;
        let fits = tally.fitting() > 0;
        let mut changes = if fits { vec![] } else { change::singles(asked, &tally, self.names) };
        if let Some(pair) = &tally.pair
            && !fits
            && !changes.iter().any(Counterfactual::is_ours)
        {
            changes.insert(0, change::pair(asked, pair, self.names));
        }
        let mut changes = changes.into_iter();
        Explanation {
            priority: request.priority,
            limits: request.limits,
            reservation: request.reservation,
            machines_total: self.board.machine_count() as u32,
            reasons: tally.groups.iter().map(|group| self.reason(asked, group)).collect(),
            counterfactual: changes.next(),
            alternatives: changes.collect(),
            when_empty: tally.when_empty,
            kept_apart: tally.kept_apart,
            once_open: tally.once_open,
            too_large: self.too_large(request.limits),
            victims: match fits {
                true => None,
                false => tally.candidates.cheapest(asked, self.names),
            },
            gang: None,
            standing: None,
        }
    }

    fn too_large(&self, limits: Resources) -> Vec<TooLarge> {
        let beyond = |dimension: Dimension| {
            let (asked, largest) = (limits.get(dimension), self.largest.get(dimension));
            (asked > largest).then_some(TooLarge { dimension, asked, largest })
        };
        Dimension::ALL.into_iter().filter_map(beyond).collect()
    }

    fn reason(&self, asked: &Asked<'_>, group: &Group) -> ReasonCount {
        let request = &asked.class.request;
        let available = group.most.map_or(0, |most| most.amount);
        let machine = group.most.map(|most| names::machine(self.names, most.machine));
        let (code, detail) = match group.subject {
            Subject::Fits => (FITS, Detail::Nothing),
            Subject::Down => (Misfit::MachineDown.code(), Detail::Nothing),
            Subject::Draining => (Misfit::MachineDraining.code(), Detail::Nothing),
            Subject::Crashed => (Misfit::CrashedHere.code(), Detail::Nothing),
            Subject::Short => (Misfit::MachineShort.code(), Detail::Nothing),
            Subject::Full => {
                let most = self.board.machine_tasks.unwrap_or(u64::MAX);
                ("machine-full", Detail::Tasks { most })
            }
            Subject::NoAlloc => (Misfit::NoAllocHere.code(), Detail::Nothing),
            Subject::Constraint(position) => {
                let constraint = constraint_text(asked, position);
                ("constraint", Detail::Constraint { position, constraint })
            }
            Subject::Volume(i) => {
                let loan = asked.loans().get(i as usize).cloned();
                ("volume", loan.map_or(Detail::Nothing, Detail::Volume))
            }
            Subject::Spread(i) => {
                let limit = request.spread[i as usize];
                ("spread", Detail::Spread { domain: limit.domain, limit: limit.limit })
            }
            Subject::StaticPort(port) => {
                let holders = group.holders.iter().map(|(task, machine)| PortHolder {
                    task: names::task(self.names, *task),
                    machine: names::machine(self.names, *machine),
                });
                ("static-port", Detail::StaticPort { port, holders: holders.collect() })
            }
            Subject::DynamicPorts => {
                let asked = u64::from(request.ports);
                ("dynamic-ports", Detail::DynamicPorts { asked, available, machine })
            }
            Subject::Device(i) => {
                let device = &request.devices[i as usize];
                let (kind, asked) = (device.kind.clone(), u32::from(device.count));
                let (models, milli) = (device.models.clone(), device.milli);
                ("device", Detail::Device { kind, models, asked, milli, available, machine })
            }
            Subject::Named(i) => {
                let (id, amount) = request.named[i as usize];
                let detail = self.board.resource_name(id).map_or(Detail::Nothing, |name| {
                    Detail::Named { name: name.clone(), asked: amount, available, machine }
                });
                ("named-resource", detail)
            }
            Subject::Resource(d) => {
                let dimension = Dimension::ALL[usize::from(d)];
                let asked = request.limits.get(dimension);
                ("resource", Detail::Resource { dimension, asked, available, machine })
            }
        };
        ReasonCount { code, machines: group.machines, detail }
    }
}

fn walk(asked: &Asked<'_>, part: usize) -> Tally {
    let end = asked.board.machine_slots().min((part + 1) * PART);
    Tally::walk(asked, part * PART..end)
}

/// The constraint at `position` of the class, as people write it.
fn constraint_text(asked: &Asked<'_>, position: u32) -> String {
    let list = asked.class.request.constraints;
    let constraints = list.map_or(&[][..], |list| asked.board.constraints.constraints(list));
    constraints.get(position as usize).map_or_else(String::new, ToString::to_string)
}
