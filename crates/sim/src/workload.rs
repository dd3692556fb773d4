//! A workload: machines and jobs in the cell's own types, whatever their source, and how it gets
//! into a state: through the same commands a live cell would accept, so that the experiments
//! measure the product and not a model of it.

use crate::trace::ReadReport;
use cellwright_cell::command::{Command, Done, Entry, Request, ReservationChange, Verdict};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Name;
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobSpec, PackageRef};
use cellwright_cell::time::Time;
use cellwright_cell::{Event, State};
use std::collections::{BTreeMap, BTreeSet};

/// How much of its limits a task of the workload reserves once it has run for a while, in
/// thousandths. Stands in for the estimator where a trace has no usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedShare {
    pub cpu_permille: u32,
    pub ram_permille: u32,
}

impl ReservedShare {
    pub const ALL: ReservedShare = ReservedShare { cpu_permille: 1000, ram_permille: 1000 };

    /// Rounded up, so that nothing is under-counted.
    #[must_use]
    pub fn of(self, limits: Resources) -> Resources {
        let share = |amount: u64, permille: u32| {
            let exact = u128::from(amount) * u128::from(permille);
            exact.div_ceil(1000).min(u128::from(amount)) as u64
        };
        Resources {
            cpu: share(limits.cpu, self.cpu_permille),
            ram: share(limits.ram, self.ram_permille),
            ..limits
        }
    }
}

/// A machine and the packages that are installed on it already.
#[derive(Clone, Debug)]
pub struct WorkloadMachine {
    pub spec: MachineSpec,
    pub packages: BTreeSet<PackageRef>,
    /// Accepts tasks. A machine that does not still counts for the quota that can be sold.
    pub is_up: bool,
}

#[derive(Clone, Debug)]
pub struct WorkloadJob {
    pub owner: Name,
    pub spec: JobSpec,
    /// What its tasks reserve; [`ReservedShare::ALL`] keeps reservations at limits.
    pub reserved: ReservedShare,
}

#[derive(Clone, Debug, Default)]
pub struct Workload {
    pub machines: Vec<WorkloadMachine>,
    /// In submission order.
    pub jobs: Vec<WorkloadJob>,
    /// Substitutes for what the source does not contain; printed with every result.
    pub notes: Vec<String>,
    pub reports: Vec<ReadReport>,
}

/// A command of the workload that the cell rejected.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what} was refused: {rejection}")]
pub struct RejectedCommand {
    pub what: String,
    pub rejection: cellwright_cell::reason::Rejection,
}

impl Workload {
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.jobs.iter().map(|job| u64::from(job.spec.count)).sum()
    }

    /// Keeps only jobs for which `keep` holds.
    #[must_use]
    pub fn filter_jobs(mut self, keep: impl Fn(&JobSpec) -> bool) -> Workload {
        self.jobs.retain(|job| keep(&job.spec));
        self
    }

    /// The cell and its workload `copies` times over, as separate machines, users and jobs.
    #[must_use]
    pub fn copies(self, copies: u32) -> Workload {
        if copies <= 1 {
            return self;
        }
        let mut out = Workload { notes: self.notes, reports: self.reports, ..Workload::default() };
        for copy in 0..copies {
            for machine in &self.machines {
                let mut machine = machine.clone();
                machine.spec.name = suffixed_name(&machine.spec.name, copy);
                out.machines.push(machine);
            }
            for job in &self.jobs {
                let mut job = job.clone();
                job.owner = suffixed_name(&job.owner, copy);
                out.jobs.push(job);
            }
        }
        out.notes.push(format!("cell and workload replicated {copies} times"));
        out
    }

    /// Adds the first `original` machines once more under new names; `copy` distinguishes them.
    pub fn add_machine_copies(&mut self, original: usize, copy: u32) {
        let mut cloned: Vec<WorkloadMachine> =
            self.machines.iter().take(original).cloned().collect();
        for machine in &mut cloned {
            machine.spec.name = suffixed_name(&machine.spec.name, copy);
        }
        self.machines.append(&mut cloned);
    }

    /// Creates a cell with all machines and submits every job: the state that a scheduler then
    /// finds.
    ///
    /// # Errors
    /// The first command that the cell rejected.
    pub fn submit(&self) -> Result<State, RejectedCommand> {
        let mut state = State::default();
        let mut events = Vec::new();
        self.bring_up_machines(&mut state, &mut events)?;
        self.add_users(&mut state, &mut events)?;
        for job in &self.jobs {
            let command =
                Command::SubmitJob { owner: job.owner.clone(), spec: Box::new(job.spec.clone()) };
            apply_command(&mut state, &mut events, command)?;
            events.clear();
        }
        self.set_reservations(&mut state, &mut events)?;
        Ok(state)
    }

    fn bring_up_machines(
        &self,
        state: &mut State,
        events: &mut Vec<Event>,
    ) -> Result<(), RejectedCommand> {
        for machine in &self.machines {
            apply_command(state, events, Command::AddMachine(machine.spec.clone()))?;
            let Some(id) = state.machine_named(&machine.spec.name) else { continue };
            if machine.is_up {
                apply_command(state, events, Command::MachineUp { machine: id, incarnation: 1 })?;
            }
            if !machine.packages.is_empty() {
                let packages = machine.packages.clone();
                apply_command(
                    state,
                    events,
                    Command::SetMachinePackages { machine: id, packages },
                )?;
            }
            events.clear();
        }
        Ok(())
    }

    /// Every user gets the quota that its jobs need, so that admission is exercised and passes.
    fn add_users(&self, state: &mut State, events: &mut Vec<Event>) -> Result<(), RejectedCommand> {
        let mut needs: BTreeMap<&Name, BTreeMap<Band, Resources>> = BTreeMap::new();
        for job in &self.jobs {
            let bands = needs.entry(&job.owner).or_default();
            if job.spec.priority != Priority(0) && job.spec.alloc_set.is_none() {
                let sum = bands.entry(job.spec.priority.band()).or_default();
                *sum = sum.plus(job.spec.total_limits());
            }
        }
        for (user, bands) in needs {
            apply_command(state, events, Command::AddUser { name: user.clone() })?;
            for (band, amount) in bands {
                let quota = Some(Quota { amount, from: Time::ZERO, until: Time::NEVER });
                let user = user.clone();
                apply_command(
                    state,
                    events,
                    Command::SetQuota { user, band, quota, expect: None },
                )?;
            }
        }
        events.clear();
        Ok(())
    }

    fn set_reservations(
        &self,
        state: &mut State,
        events: &mut Vec<Event>,
    ) -> Result<(), RejectedCommand> {
        let mut changes = Vec::new();
        for job in self.jobs.iter().filter(|job| job.reserved != ReservedShare::ALL) {
            let key = cellwright_cell::name::JobKey {
                user: job.owner.clone(),
                job: job.spec.name.clone(),
            };
            let Some(row) = state.job_named(&key).and_then(|id| state.jobs().get(id)) else {
                continue;
            };
            changes.extend(row.tasks.iter().enumerate().map(|(index, task)| ReservationChange {
                task: *task,
                attempt: 0,
                reservation: job.reserved.of(job.spec.limits_of(index as u32)),
            }));
        }
        if changes.is_empty() {
            return Ok(());
        }
        apply_command(state, events, Command::SetReservations(changes))?;
        events.clear();
        Ok(())
    }
}

/// Applies one command as an entry of its own, as the actor who sends such a command in a cell.
///
/// # Errors
/// When the cell rejects it, or a part of it.
pub fn apply_command(
    state: &mut State,
    events: &mut Vec<Event>,
    command: Command,
) -> Result<(), RejectedCommand> {
    let description = describe(&command);
    let now = state.now();
    let request = Request::from_default_sender(command, state);
    let verdicts = state.apply(&Entry { now, requests: vec![request] }, events);
    match verdicts.into_iter().next() {
        Some(Verdict::Err(rejection)) => Err(RejectedCommand { what: description, rejection }),
        Some(Verdict::Ok(Done::Partly(refused))) => match refused.into_iter().next() {
            Some((_, rejection)) => Err(RejectedCommand { what: description, rejection }),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn describe(command: &Command) -> String {
    match command {
        Command::AddMachine(spec) => format!("machine {}", spec.name),
        Command::SubmitJob { owner, spec } => format!("job {owner}/{}", spec.name),
        Command::SetQuota { user, band, .. } => format!("quota of {user} in band {band}"),
        Command::AddUser { name } => format!("user {name}"),
        _ => "a command of the workload".into(),
    }
}

/// `name-3`; names of traces are short, so the result is a name again.
fn suffixed_name(name: &Name, copy: u32) -> Name {
    Name::new(&format!("{name}-c{copy}")).unwrap_or_else(|_| name.clone())
}
