//! A small cell for tests of what the leader does by itself: commands in a line each, a scheduler
//! that takes the first machine that fits, agents that carry out their orders at once. Every step
//! is checked against every invariant.

use super::{ControllerConfig, Controllers};
use cellwright_cell::command::{Command, Done, Entry, Observed, Request, TaskReport, Verdict};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::invariant;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use cellwright_cell::time::Time;
use serde_json::json;

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// The job of the only user, `ubar`.
pub fn key(job: &str) -> JobKey {
    JobKey { user: name("ubar"), job: name(job) }
}

/// The same amount in every dimension.
pub fn all(amount: u64) -> Resources {
    Resources::new(amount, amount, amount, amount)
}

/// A batch job of tasks that request 10 of everything.
pub fn job(job: &str, count: u32) -> JobSpec {
    let limits = all(10);
    let spec = json!({
        "name": job, "count": count, "priority": 100, "task": { "limits": limits, "command": [] },
    });
    serde_json::from_value(spec).unwrap()
}

pub fn machine(number: u32, capacity: u64) -> MachineSpec {
    let spec = json!({ "name": format!("m{number}"), "capacity": all(capacity) });
    serde_json::from_value(spec).unwrap()
}

/// Each command has its default sender.
fn entry(now: u64, commands: &[Command], state: &State) -> Entry {
    let sent = |command: &Command| Request::from_default_sender(command.clone(), state);
    Entry { now: Time(now), requests: commands.iter().map(sent).collect() }
}

#[derive(Default)]
pub struct Cell {
    pub state: State,
    pub now: u64,
    incarnation: u64,
    pub settings: ControllerConfig,
    /// How far the archive has come.
    pub archived_before: Time,
    pub controllers: Controllers,
    /// The scheduler tries the first machine first, draining or not.
    pub ignores_drain: bool,
}

impl Cell {
    /// Machines `m0`, `m1`, ... of 100 each, up; `ubar` has quota for all of them.
    pub fn with_machines(count: u32) -> Cell {
        let mut cell = Cell::default();
        cell.ok(Command::AddUser { name: name("ubar") });
        for number in 0..count {
            cell.ok(Command::AddMachine(machine(number, 100)));
            cell.up(number);
        }
        let quota = Quota { amount: all(1_000_000), from: Time::ZERO, until: Time::NEVER };
        let (user, quota) = (name("ubar"), Some(quota));
        cell.ok(Command::SetQuota { user, band: Band::Batch, quota, expect: None });
        cell
    }

    pub fn up(&mut self, machine: u32) {
        self.incarnation += 1;
        let (machine, incarnation) = (MachineId(machine), self.incarnation);
        self.ok(Command::MachineUp { machine, incarnation });
    }

    pub fn apply_all(&mut self, commands: &[Command]) -> Vec<Verdict> {
        let sent = |command: &Command| Request::from_default_sender(command.clone(), &self.state);
        let requests = commands.iter().map(sent).collect();
        self.apply_requests(requests)
    }

    fn apply_requests(&mut self, requests: Vec<Request>) -> Vec<Verdict> {
        self.now += 1;
        let before = self.state.clone();
        let entry = Entry { now: Time(self.now), requests };
        let mut events = Vec::new();
        let verdicts = self.state.apply(&entry, &mut events);
        invariant::check_state(&self.state).unwrap();
        invariant::check_step(&before, &entry, &verdicts, &self.state, &events).unwrap();
        verdicts
    }

    /// The cell's answers, without applying the commands.
    pub fn try_all(&self, commands: &[Command]) -> Vec<Verdict> {
        self.state.clone().apply(&entry(self.now + 1, commands, &self.state), &mut Vec::new())
    }

    pub fn ok(&mut self, command: Command) -> Done {
        self.apply_all(&[command]).remove(0).unwrap()
    }

    pub fn submit(&mut self, spec: &JobSpec) {
        self.ok(Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec.clone()) });
    }

    pub fn task_id(&self, job: &str, index: usize) -> TaskId {
        let id = self.state.job_named(&key(job)).unwrap();
        self.state.jobs().get(id).unwrap().tasks[index]
    }

    pub fn task(&self, job: &str, index: usize) -> &Task {
        self.state.tasks().get(self.task_id(job, index)).unwrap()
    }

    /// How many tasks of the job should run and do not.
    pub fn missing_tasks(&self, job: &str) -> u32 {
        self.state.job_load(self.state.job_named(&key(job)).unwrap()).unwrap().down()
    }

    /// Every pending task goes to the first machine, or alloc of its set, that has room.
    pub fn place_pending(&mut self) {
        let pending = |(id, row): (TaskId, &Task)| (row.state == TaskState::Pending).then_some(id);
        let pending: Vec<TaskId> = self.state.tasks().iter().filter_map(pending).collect();
        for task in pending {
            if let Some(assignment) = self.first_fit(task) {
                let groups = vec![Group { victims: Vec::new(), assignments: vec![assignment] }];
                self.ok(Command::CommitPlan(Plan { made_at: 0, groups }));
            }
        }
    }

    /// Places the tasks of a gang on these machines, in their order.
    pub fn place_gang(&mut self, job: &str, machines: &[u32]) {
        let mut assignments = Vec::new();
        for (index, machine) in machines.iter().enumerate() {
            let (task, attempt) = (self.task_id(job, index), self.task(job, index).attempt);
            let (machine, alloc) = (MachineId(*machine), None);
            let (ports, devices) = (Vec::new(), Vec::new());
            assignments.push(Assignment { task, attempt, machine, alloc, ports, devices });
        }
        let groups = vec![Group { victims: Vec::new(), assignments }];
        assert_eq!(self.ok(Command::CommitPlan(Plan { made_at: 0, groups })), Done::Applied);
    }

    fn first_fit(&self, task: TaskId) -> Option<Assignment> {
        let row = self.state.tasks().get(task)?;
        let set = self.state.jobs().get(row.job)?.spec().alloc_set.clone();
        let allocs: Vec<Option<TaskId>> = match set.and_then(|key| self.state.job_named(&key)) {
            None => vec![None],
            Some(set) => self.state.jobs().get(set)?.tasks.iter().copied().map(Some).collect(),
        };
        let mut machines: Vec<(bool, MachineId)> = self
            .state
            .machines()
            .iter()
            .map(|(id, row)| (row.draining && !self.ignores_drain, id))
            .collect();
        machines.sort_unstable();
        let machines = machines.into_iter().map(|(_, id)| id);
        let mut targets = machines.flat_map(|id| allocs.iter().map(move |alloc| (id, *alloc)));
        targets.find_map(|(machine, alloc)| self.fits(task, machine, alloc))
    }

    fn fits(&self, task: TaskId, machine: MachineId, alloc: Option<TaskId>) -> Option<Assignment> {
        let attempt = self.state.tasks().get(task)?.attempt;
        let (ports, devices) = (Vec::new(), Vec::new());
        let assignment = Assignment { task, attempt, machine, alloc, ports, devices };
        let group = Group { victims: Vec::new(), assignments: vec![assignment.clone()] };
        let command = Command::CommitPlan(Plan { made_at: 0, groups: vec![group] });
        (self.try_all(&[command]) == [Ok(Done::Applied)]).then_some(assignment)
    }

    /// Agents start assigned tasks and stop tasks that are to stop.
    pub fn run_agents(&mut self) {
        let report_of = |(id, row): (TaskId, &Task)| {
            let observed = match row.state {
                TaskState::Assigned => Observed::Started,
                TaskState::Stopping(_) => Observed::Stopped,
                _ => return None,
            };
            Some((row.machine()?, TaskReport { task: id, attempt: row.attempt, what: observed }))
        };
        let reports_by_machine: Vec<(MachineId, TaskReport)> =
            self.state.tasks().iter().filter_map(report_of).collect();
        // Stopping tasks first: others may wait for them.
        let leaving =
            reports_by_machine.iter().filter(|(_, report)| report.what == Observed::Stopped);
        let starting =
            reports_by_machine.iter().filter(|(_, report)| report.what == Observed::Started);
        for (machine, report) in leaving.chain(starting).cloned().collect::<Vec<_>>() {
            let incarnation = self.state.machines().get(machine).unwrap().incarnation;
            let reports = vec![report];
            self.ok(Command::TaskReports { machine, incarnation, reports });
        }
    }

    /// Places and starts all tasks that can be.
    pub fn place_and_start(&mut self) {
        self.run_agents();
        self.place_pending();
        self.run_agents();
    }

    /// One step of the controllers, as commands only.
    pub fn decide(&mut self) -> Vec<Command> {
        self.step().into_iter().map(|request| request.command).collect()
    }

    fn step(&mut self) -> Vec<Request> {
        let now = Time(self.now);
        self.controllers.step(&self.state, now, self.archived_before, &self.settings)
    }

    /// One step of the controllers, applied and answered.
    pub fn control(&mut self) -> Vec<(Command, Verdict)> {
        let requests = self.step();
        let commands: Vec<Command> = requests.iter().map(|r| r.command.clone()).collect();
        let verdicts = self.apply_requests(requests);
        self.controllers.on_verdicts(&verdicts);
        commands.into_iter().zip(verdicts).collect()
    }
}
