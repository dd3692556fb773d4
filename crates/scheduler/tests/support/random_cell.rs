//! A cell that changes at random: submissions, reports, machines that come and go. Everything is
//! drawn from one seed.

use super::{MasterState, job, key, machine, name};
use cellwright_cell::command::{
    Command, EvictCause, Observed, Request, ReservationChange, TaskReport,
};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::job_size::JobSize;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::{ExitClass, TaskState};

pub struct TestRng(pub u64);

impl TestRng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Clone>(&mut self, list: &[T]) -> Option<T> {
        list.get(self.below(list.len() as u64) as usize).cloned()
    }
}

/// Requests of one entry; some of them invalid.
pub fn requests(master_state: &MasterState, rng: &mut TestRng) -> Vec<Request> {
    let count = 1 + rng.below(3);
    (0..count)
        .map(|_| Request::from_default_sender(command(master_state, rng), &master_state.state))
        .collect()
}

fn command(master_state: &MasterState, rng: &mut TestRng) -> Command {
    match rng.below(12) {
        0..3 => Command::SubmitJob { owner: name("ada"), spec: Box::new(spec(rng)) },
        3..5 => report(master_state, rng, |s| s == TaskState::Assigned, Observed::Started),
        5 => report(master_state, rng, |s| matches!(s, TaskState::Stopping(_)), Observed::Stopped),
        6 => {
            let outcome = [Observed::Finished, Observed::Failed(ExitClass::Code(1))];
            let observed = outcome[rng.below(2) as usize];
            report(master_state, rng, |s| s == TaskState::Running, observed)
        }
        7 | 8 => machine_command(master_state, rng),
        9 => job_command(rng),
        10 => evict(master_state, rng),
        _ => reserve(master_state, rng),
    }
}

fn spec(rng: &mut TestRng) -> JobSpec {
    let text = format!("j{}", rng.below(40));
    let mut spec = job(&text, rng.below(6) as u32 + 1, rng.below(30) + 1);
    spec.priority = Priority(rng.below(200) as u16);
    spec.gang = rng.one_in(4);
    spec.max_down = rng.one_in(3).then_some(1);
    spec.task.ports = rng.below(3) as u8;
    spec
}

fn some_machine(master_state: &MasterState, rng: &mut TestRng) -> MachineId {
    let all: Vec<MachineId> = master_state.state.machines().iter().map(|(id, _)| id).collect();
    rng.pick(&all).unwrap_or(MachineId(9))
}

fn some_task(
    master_state: &MasterState,
    rng: &mut TestRng,
    like: impl Fn(TaskState) -> bool,
) -> TaskId {
    rng.pick(&master_state.tasks_in(like)).unwrap_or(TaskId(999))
}

fn report(
    master_state: &MasterState,
    rng: &mut TestRng,
    like: impl Fn(TaskState) -> bool,
    observed: Observed,
) -> Command {
    let task = some_task(master_state, rng, like);
    let row = master_state.state.tasks().get(task);
    let attempt = row.map_or(0, |row| row.attempt);
    let machine = row.and_then(|row| row.machine()).unwrap_or(MachineId(0));
    let incarnation = master_state.state.machines().get(machine).map_or(1, |row| row.incarnation);
    Command::TaskReports {
        machine,
        incarnation,
        reports: vec![TaskReport { task, attempt, what: observed }],
    }
}

fn machine_command(master_state: &MasterState, rng: &mut TestRng) -> Command {
    let id = some_machine(master_state, rng);
    let incarnation = master_state.state.machines().get(id).map_or(1, |row| row.incarnation + 1);
    let text = format!("m{}", rng.below(8));
    match rng.below(6) {
        0 => Command::MachineDown { machine: id },
        1 => Command::AddMachine(machine(&text, 100)),
        2 => Command::StartDrain { name: name(&text), expect: None },
        3 => Command::StopDrain { name: name(&text), expect: None },
        _ => Command::MachineUp { machine: id, incarnation },
    }
}

fn job_command(rng: &mut TestRng) -> Command {
    let job = key(&format!("j{}", rng.below(40)));
    match rng.below(3) {
        0 => Command::StopJob { job, expect: None },
        1 => Command::Expire,
        _ => {
            Command::ResizeJob { job, size: JobSize::tasks(rng.below(8) as u32 + 1), expect: None }
        }
    }
}

fn evict(master_state: &MasterState, rng: &mut TestRng) -> Command {
    let task = some_task(master_state, rng, |s| s == TaskState::Running);
    let attempt = master_state.state.tasks().get(task).map_or(0, |row| row.attempt);
    Command::Evict { task, attempt, cause: EvictCause::Rebalance }
}

fn reserve(master_state: &MasterState, rng: &mut TestRng) -> Command {
    let running = master_state.tasks_in(|s| s == TaskState::Running);
    let change = |task: TaskId| {
        let row = master_state.state.tasks().get(task)?;
        let limits = master_state.state.spec_of(row)?.limits_of(row.index).to_array();
        let part = rng.below(4) + 1;
        let reservation = Resources::from_array(limits.map(|limit| limit * part / 4));
        Some(ReservationChange { task, attempt: row.attempt, reservation })
    };
    Command::SetReservations(running.into_iter().filter_map(change).collect())
}
