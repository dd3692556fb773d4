//! A cell that lives at random: submissions, reports, machines that come and go. Everything is
//! drawn from one seed.

use super::{Inside, job, key, machine, name};
use cellwright_cell::command::{
    Command, EvictCause, Observed, Request, ReservationChange, TaskReport,
};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::{ExitClass, TaskState};

pub struct Draw(pub u64);

impl Draw {
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

/// Requests of one entry; some of them nobody should have sent.
pub fn requests(inside: &Inside, draw: &mut Draw) -> Vec<Request> {
    let count = 1 + draw.below(3);
    (0..count).map(|_| Request::sent(command(inside, draw), &inside.state)).collect()
}

fn command(inside: &Inside, draw: &mut Draw) -> Command {
    match draw.below(12) {
        0..3 => Command::SubmitJob { owner: name("ada"), spec: spec(draw) },
        3..5 => report(inside, draw, |s| s == TaskState::Assigned, Observed::Started),
        5 => report(inside, draw, |s| matches!(s, TaskState::Stopping(_)), Observed::Stopped),
        6 => {
            let outcome = [Observed::Finished, Observed::Failed(ExitClass::Code(1))];
            let what = outcome[draw.below(2) as usize];
            report(inside, draw, |s| s == TaskState::Running, what)
        }
        7 | 8 => machine_command(inside, draw),
        9 => job_command(draw),
        10 => evict(inside, draw),
        _ => reserve(inside, draw),
    }
}

fn spec(draw: &mut Draw) -> JobSpec {
    let text = format!("j{}", draw.below(40));
    let mut spec = job(&text, draw.below(6) as u32 + 1, draw.below(30) + 1);
    spec.priority = Priority(draw.below(200) as u16);
    spec.gang = draw.one_in(4);
    spec.max_down = draw.one_in(3).then_some(1);
    spec.task.ports = draw.below(3) as u8;
    spec
}

fn some_machine(inside: &Inside, draw: &mut Draw) -> MachineId {
    let all: Vec<MachineId> = inside.state.machines().iter().map(|(id, _)| id).collect();
    draw.pick(&all).unwrap_or(MachineId(9))
}

fn some_task(inside: &Inside, draw: &mut Draw, like: impl Fn(TaskState) -> bool) -> TaskId {
    draw.pick(&inside.tasks_in(like)).unwrap_or(TaskId(999))
}

fn report(
    inside: &Inside,
    draw: &mut Draw,
    like: impl Fn(TaskState) -> bool,
    what: Observed,
) -> Command {
    let task = some_task(inside, draw, like);
    let row = inside.state.tasks().get(task);
    let attempt = row.map_or(0, |row| row.attempt);
    let machine = row.and_then(|row| row.machine()).unwrap_or(MachineId(0));
    let incarnation = inside.state.machines().get(machine).map_or(1, |row| row.incarnation);
    Command::TaskReports { machine, incarnation, reports: vec![TaskReport { task, attempt, what }] }
}

fn machine_command(inside: &Inside, draw: &mut Draw) -> Command {
    let id = some_machine(inside, draw);
    let incarnation = inside.state.machines().get(id).map_or(1, |row| row.incarnation + 1);
    let text = format!("m{}", draw.below(8));
    match draw.below(6) {
        0 => Command::MachineDown { machine: id },
        1 => Command::AddMachine(machine(&text, 100)),
        2 => Command::StartDrain { name: name(&text), expect: None },
        3 => Command::StopDrain { name: name(&text), expect: None },
        _ => Command::MachineUp { machine: id, incarnation },
    }
}

fn job_command(draw: &mut Draw) -> Command {
    let job = key(&format!("j{}", draw.below(40)));
    match draw.below(3) {
        0 => Command::StopJob { job, expect: None },
        1 => Command::Expire,
        _ => Command::ResizeJob { job, count: draw.below(8) as u32 + 1, expect: None },
    }
}

fn evict(inside: &Inside, draw: &mut Draw) -> Command {
    let task = some_task(inside, draw, |s| s == TaskState::Running);
    let attempt = inside.state.tasks().get(task).map_or(0, |row| row.attempt);
    Command::Evict { task, attempt, cause: EvictCause::Rebalance }
}

fn reserve(inside: &Inside, draw: &mut Draw) -> Command {
    let running = inside.tasks_in(|s| s == TaskState::Running);
    let change = |task: TaskId| {
        let row = inside.state.tasks().get(task)?;
        let limits = inside.state.spec_of(row)?.limits_of(row.index).to_array();
        let part = draw.below(4) + 1;
        let reservation = Resources::from_array(limits.map(|limit| limit * part / 4));
        Some(ReservationChange { task, attempt: row.attempt, reservation })
    };
    Command::SetReservations(running.into_iter().filter_map(change).collect())
}
