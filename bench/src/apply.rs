//! How many task state changes a second `apply` makes on one core: a cell built through commands,
//! its tasks placed by one plan, then started and finished by agents' reports, 10,000 reports to a
//! log entry; once without hashing the state, once with the hash after every entry. Rates are by
//! CPU time, so that a busy machine does not spoil them. Then what a checkpoint of it costs.
//!
//! Building the rows directly was rejected: the figure is meant to include what real rows carry.

use crate::report::Report;
use cellwright_cell::command::{Observed, TaskReport};
use cellwright_cell::constraint::Attributes;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::label::Labels;
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::{MAX_QUANTITY, Resources};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use cellwright_cell::{Command, Done, Entry, Request, State};
use cellwright_sim::convert::plain_job;
use cellwright_sim::experiment::process_metrics::process_cpu;
use std::error::Error;
use std::time::Instant;

const REPORTS_PER_ENTRY: usize = 10_000;
const TASKS_PER_JOB: u32 = 1000;

const MACHINES: u32 = 12_477;
const TASKS: u32 = 144_339;

pub fn main() -> std::io::Result<()> {
    let mut report = Report::new(
        "apply",
        "Task state changes through `State::apply` on one core, 12,477 machines and 144,339 tasks, \
         batched 10,000 to a log entry, invariant checks off. Rates are per second of CPU time.",
        0,
    );
    for hashed in [false, true] {
        run(&mut report, hashed).map_err(|e| std::io::Error::other(e.to_string()))?;
    }
    report.save()
}

fn run(report: &mut Report, hashed: bool) -> Result<(), Box<dyn Error>> {
    let (machines, tasks) = (MACHINES, TASKS);
    let mut cell = Cell { state: State::default(), now: 1, hashed };
    let name = Name::new("load")?;
    let mut setup = vec![Command::AddUser { name: name.clone() }, grant(&name)];
    for number in 0..machines {
        setup.push(Command::AddMachine(machine(number)?));
    }
    cell.apply(setup)?;
    let up = |m| Command::MachineUp { machine: MachineId(m), incarnation: 1 };
    let mut setup: Vec<Command> = (0..machines).map(up).collect();
    for number in 0..tasks.div_ceil(TASKS_PER_JOB) {
        let count = TASKS_PER_JOB.min(tasks - number * TASKS_PER_JOB);
        setup.push(Command::SubmitJob { owner: name.clone(), spec: Box::new(job(number, count)?) });
    }
    cell.apply(setup)?;
    let suffix = if hashed { ", state hashed after every entry" } else { "" };
    let target = if hashed { "" } else { "≥ 1,000,000" };
    let placing = vec![vec![Command::CommitPlan(plan(machines, tasks))]];
    let rate = cell.measure(tasks, placing)?;
    report.row(&format!("placed by one plan, rechecked{suffix}"), rate, "tasks/s", "");
    for (what, name) in [(Observed::Started, "started"), (Observed::Finished, "finished")] {
        let rate = cell.measure(tasks, reports(machines, tasks, what))?;
        report.row(&format!("reported {name}{suffix}"), rate, "changes/s", target);
        if what == Observed::Started && !hashed {
            checkpoint(report, &cell.state)?;
        }
    }
    Ok(())
}

fn checkpoint(report: &mut Report, state: &State) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let bytes = cellwright_cell::encode::save(state);
    report.row("save a checkpoint of the running cell", started.elapsed().as_secs_f64(), "s", "");
    report.row("its size", bytes.len() as f64 / 1e6, "MB", "");
    let started = Instant::now();
    cellwright_cell::encode::load(&bytes)?;
    report.row("load it, all invariants checked", started.elapsed().as_secs_f64(), "s", "");
    Ok(())
}

struct Cell {
    state: State,
    now: u64,
    hashed: bool,
}

impl Cell {
    /// Applies one entry; every command must take effect whole.
    fn apply(&mut self, commands: Vec<Command>) -> Result<(), Box<dyn Error>> {
        self.now += 1;
        let request = |command| Request::from_default_sender(command, &self.state);
        let entry =
            Entry { now: Time(self.now), requests: commands.into_iter().map(request).collect() };
        self.apply_entry(&entry)
    }

    fn apply_entry(&mut self, entry: &Entry) -> Result<(), Box<dyn Error>> {
        let mut events = Vec::new();
        for verdict in self.state.apply(entry, &mut events) {
            match verdict? {
                Done::Partly(refused) => return Err(format!("refused: {:?}", refused[0]).into()),
                _ => continue,
            }
        }
        if self.hashed {
            self.state.hash();
        }
        Ok(())
    }

    /// Changes per second of CPU time.
    fn measure(&mut self, changes: u32, batches: Vec<Vec<Command>>) -> Result<f64, Box<dyn Error>> {
        let mut entries = Vec::new();
        for batch in batches {
            self.now += 1;
            let request = |command| Request::from_default_sender(command, &self.state);
            let requests = batch.into_iter().map(request).collect();
            entries.push(Entry { now: Time(self.now), requests });
        }
        self.state.hash();
        let before = process_cpu();
        for entry in &entries {
            self.apply_entry(entry)?;
        }
        Ok(f64::from(changes) / (process_cpu() - before).as_secs_f64())
    }
}

fn grant(user: &Name) -> Command {
    let most = MAX_QUANTITY;
    let amount = Resources::new(most, most, most, most);
    let quota = Quota { amount, from: Time::ZERO, until: Time::NEVER };
    Command::SetQuota { user: user.clone(), band: Band::Batch, quota: Some(quota), expect: None }
}

fn machine(number: u32) -> Result<MachineSpec, Box<dyn Error>> {
    Ok(MachineSpec {
        name: Name::new(&format!("m{number}"))?,
        capacity: Resources::new(1 << 20, 1 << 40, 1 << 40, 1 << 30),
        attributes: Attributes::new(),
        labels: Labels::new(),
        rack: Some(Token::new(&format!("r{}", number / 40))?),
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: PortRange { first: 20_000, last: 30_000 },
        address: None,
    })
}

fn job(number: u32, count: u32) -> Result<JobSpec, Box<dyn Error>> {
    let limits = Resources::new(500, 1 << 30, 1 << 30, 1 << 20);
    Ok(plain_job(Name::new(&format!("j{number}"))?, count, Priority(150), limits))
}

/// Every task in a group of its own, dealt out over the machines.
fn plan(machines: u32, tasks: u32) -> Plan {
    let group = |task: u32| {
        let assignment = Assignment {
            task: TaskId(task),
            attempt: 0,
            machine: MachineId(task % machines),
            alloc: None,
            ports: Vec::new(),
            devices: Vec::new(),
        };
        Group { victims: Vec::new(), assignments: vec![assignment] }
    };
    Plan { made_at: 0, groups: (0..tasks).map(group).collect() }
}

/// Machine by machine, as agents report; as many machines to an entry as make a batch.
fn reports(machines: u32, tasks: u32, what: Observed) -> Vec<Vec<Command>> {
    let mut batches = vec![Vec::new()];
    let mut filled = 0;
    for machine in 0..machines {
        let on_it = (machine..tasks).step_by(machines as usize);
        let reports: Vec<TaskReport> =
            on_it.map(|task| TaskReport { task: TaskId(task), attempt: 1, what }).collect();
        if filled + reports.len() > REPORTS_PER_ENTRY {
            batches.push(Vec::new());
            filled = 0;
        }
        filled += reports.len();
        let machine = MachineId(machine);
        if let Some(batch) = batches.last_mut() {
            batch.push(Command::TaskReports { machine, incarnation: 1, reports });
        }
    }
    batches
}
