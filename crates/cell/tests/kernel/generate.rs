//! Random commands: mostly ones that make sense in the present state, so that runs make progress,
//! and some that should never have been sent: unknown ids, stale attempts, odd specs. There are few
//! names, so that commands affect the same objects.

use crate::build;
use crate::components;
use crate::draw::Draw;
use crate::samples;
use crate::schedule;
use crate::specs;
use crate::tokens_and_blobs;
use cellwright_cell::bounds::Bounds;
use cellwright_cell::command::{
    Actor, Command, Entry, EvictCause, Observed, Request, RequestId, ReservationChange, TaskReport,
    TasksToStart,
};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::job_size::JobSize;
use cellwright_cell::machine::{MachineStatus, ResourcePressureReport};
use cellwright_cell::name::JobKey;
use cellwright_cell::notice::LongestNotice;
use cellwright_cell::observed::{LimitsInForce, ObservedState, ObservedTask};
use cellwright_cell::overcommit_eviction;
use cellwright_cell::plan::{Assignment, Group, Plan, Victim};
use cellwright_cell::pressure_eviction;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::{Capability, Quota};
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::spec::{JobKind, LimitsOverride};
use cellwright_cell::state::{LEVEL, State};
use cellwright_cell::task::{ExitClass, NoticeOutcome, Task, TaskState};
use cellwright_cell::time::{Span, Time};

/// A cell in which work can begin: machines that are up, users with quota. Without it a short run
/// would spend most of its steps on getting there.
pub fn opening(draw: &mut Draw) -> Vec<Entry> {
    let mut requests = Vec::new();
    for number in 0..4 {
        let (name, machine) = (format!("m{number}"), MachineId(number));
        requests.push(by_operator(Command::AddMachine(specs::machine(&name, draw))));
        let (by, command) =
            (Actor::Agent(build::name(&name)), Command::MachineUp { machine, incarnation: 1 });
        requests.push(Request { by, id: None, command });
    }
    for number in 0..3 {
        let user = build::name(&format!("u{number}"));
        requests.push(by_operator(Command::AddUser { name: user.clone() }));
        for (band, cores) in [(Band::BestEffort, 20), (Band::Batch, 20), (Band::Production, 5)] {
            let amount = build::room(cores, 2 * cores, 10 * cores);
            let quota = Some(Quota { amount, from: Time::ZERO, until: Time::NEVER });
            let user = user.clone();
            requests.push(by_operator(Command::SetQuota { user, band, quota, expect: None }));
        }
    }
    let entry = |request| Entry { now: Time::ZERO, requests: vec![request] };
    requests.into_iter().map(entry).collect()
}

fn by_operator(command: Command) -> Request {
    Request { by: Actor::Operator, id: None, command }
}

/// The next entry: nearly always one request, so that every rule about commands can be checked.
pub fn entry(state: &State, sent: &[Entry], seed: u64) -> Entry {
    let mut draw = Draw::new(seed);
    let requests = if draw.one_in(12) { 2 + draw.below(3) } else { 1 };
    let now = next_time(state, &mut draw);
    let requests = (0..requests).map(|_| request(state, sent, &mut draw)).collect();
    Entry { now, requests }
}

/// Seconds later; sometimes a proposer with a slow clock, rarely days later.
fn next_time(state: &State, draw: &mut Draw) -> Time {
    let now = state.now();
    match draw.below(40) {
        0 => Time(now.0.saturating_sub(5_000)),
        1 => now.plus(Span::seconds(25 * 3600)),
        2..8 => now.plus(Span::seconds(draw.below(600))),
        _ => now.plus(Span(draw.below(20_000))),
    }
}

fn request(state: &State, sent: &[Entry], draw: &mut Draw) -> Request {
    if draw.one_in(25)
        && let Some(old) = draw.pick(sent).and_then(|entry| entry.requests.first())
    {
        return old.clone();
    }
    let command = command(state, draw);
    let by = actor(state, &command, draw);
    let id = draw.one_in(4).then(|| RequestId {
        client: draw.below(3),
        sequence: if draw.one_in(3) { draw.below(20) } else { state.applied() + 1 },
    });
    Request { by, id, command }
}

/// Mostly an actor that may send the command.
fn actor(state: &State, command: &Command, draw: &mut Draw) -> Actor {
    let owner = match command {
        Command::SubmitJob { owner, .. }
        | Command::UpdateJob { owner, .. }
        | Command::ApplyJob { owner, .. } => Some(owner.clone()),
        Command::ResizeJob { job, .. }
        | Command::ResizeLimits { job, .. }
        | Command::StopJob { job, .. }
        | Command::StopTask { job, .. }
        | Command::RestartTasks { job, .. }
        | Command::StartTasks { job, .. }
        | Command::StopWithin { job, .. } => Some(job.user.clone()),
        Command::Component(command) => components::owner(command),
        Command::UndoUpdate { job, .. } | Command::CloseUpdate { job, .. } => {
            Some(job.user.clone())
        }
        _ => None,
    };
    match (draw.below(60), owner) {
        (0, _) => Actor::User(build::name(&user_name(draw))),
        (1..40, Some(owner)) => Actor::User(owner),
        (1..3, None) => {
            let users: Vec<_> = state.users().iter().map(|(_, user)| user.name.clone()).collect();
            draw.pick(&users).map_or(Actor::Operator, |name| Actor::User(name.clone()))
        }
        (59, _) => draw.pick(&samples::actors()).cloned().unwrap_or(Actor::Operator),
        _ => Actor::default_sender(command, state),
    }
}

pub fn user_name(draw: &mut Draw) -> String {
    format!("u{}", draw.below(3))
}

pub fn machine_name(draw: &mut Draw) -> String {
    format!("m{}", draw.below(5))
}

fn job_name(draw: &mut Draw) -> String {
    format!("j{}", draw.below(5))
}

/// Mostly users, quota and machines until there are some.
fn command(state: &State, draw: &mut Draw) -> Command {
    if state.users().len() < 2 || state.machines().len() < 2 {
        return match draw.below(3) {
            0 => Command::AddUser { name: build::name(&user_name(draw)) },
            1 => Command::AddMachine(specs::machine(&machine_name(draw), draw)),
            _ => any_command(state, draw),
        };
    }
    any_command(state, draw)
}

fn any_command(state: &State, draw: &mut Draw) -> Command {
    let waiting = state.tasks().iter().filter(|(_, row)| row.state == TaskState::Pending).count();
    if let Some(command) = components::random(state, draw) {
        return command;
    }
    match draw.below(97) {
        _ if draw.one_in(30) => tokens_and_blobs::random(draw),
        _ if state.tasks().len() < 6 && draw.one_in(3) => submit(state, draw),
        _ if waiting > 3 && draw.one_in(4) => Command::CommitPlan(plan(state, draw)),
        _ if draw.one_in(10) => hold(state, draw),
        0..7 => machine_command(state, draw),
        7..10 => user_command(draw),
        10..30 => job_command(state, draw),
        30..37 => step_update(state, draw),
        37..53 => Command::CommitPlan(plan(state, draw)),
        53..60 => evict(state, draw),
        60..86 => reports(state, draw),
        86..88 => release(state, draw),
        88..90 => Command::Expire,
        90..95 => reservations(state, draw),
        _ => match draw.below(4) {
            3 => bounds(draw),
            0 => Command::RaiseLevel { level: draw.below(u64::from(LEVEL) + 1) as u32 },
            _ => Command::PurgeJobs { ended_before: state.now() },
        },
    }
}

fn machine_command(state: &State, draw: &mut Draw) -> Command {
    let name = build::name(&machine_name(draw));
    let machine = some_machine(state, draw);
    let row = state.machines().get(machine);
    match draw.below(22) {
        19 | 20 => report_pressure(state, draw),
        18 => Command::RegisterMachine(specs::machine(name.as_str(), draw)),
        0 | 1 => Command::AddMachine(specs::machine(name.as_str(), draw)),
        2 | 9 | 10 => match row {
            Some(row) => Command::UpdateMachine {
                spec: specs::changed_machine(&row.spec, draw),
                expect: tokens_and_blobs::expect(draw),
            },
            None => Command::UpdateMachine {
                spec: specs::machine(name.as_str(), draw),
                expect: tokens_and_blobs::expect(draw),
            },
        },
        3 => Command::RemoveMachine { name, expect: tokens_and_blobs::expect(draw) },
        21 => Command::RemoveEmptyMachine { name, expect: tokens_and_blobs::expect(draw) },
        4 => Command::MachineDown { machine },
        5 => Command::DrainWithin {
            name,
            within: Span(draw.below(40) * 100),
            expect: tokens_and_blobs::expect(draw),
        },
        11 => Command::StartDrain { name, expect: tokens_and_blobs::expect(draw) },
        6 | 7 => Command::StopDrain { name, expect: tokens_and_blobs::expect(draw) },
        8 => Command::SetMachinePackages { machine, packages: specs::packages(draw).collect() },
        _ => {
            let down = |id: &MachineId| {
                state.machines().get(*id).is_some_and(|row| row.status == MachineStatus::Down)
            };
            let all: Vec<MachineId> =
                state.machines().iter().map(|(id, _)| id).filter(down).collect();
            let machine = draw.pick(&all).copied().unwrap_or(machine);
            let incarnation = state.machines().get(machine).map_or(1, |row| row.incarnation);
            Command::MachineUp { machine, incarnation: incarnation + draw.below(3) }
        }
    }
}

/// An agent's report that repeats a request, ends the shortage, or starts anew.
fn report_pressure(state: &State, draw: &mut Draw) -> Command {
    let machine = some_machine(state, draw);
    let row = state.machines().get(machine);
    let mut resource_pressure = Vec::new();
    for dimension in [Dimension::Cpu, Dimension::DiskRate] {
        let known =
            row.and_then(|row| row.resource_pressure.iter().find(|s| s.dimension == dimension));
        let requested = known.map_or(1, |known| known.requested + draw.below(2) as u32);
        let requested = if draw.one_in(4) { 0 } else { requested };
        if !draw.one_in(3) {
            let lasted = Span(draw.below(200_000));
            resource_pressure.push(ResourcePressureReport { dimension, lasted, requested });
        }
    }
    if draw.one_in(20) {
        resource_pressure.reverse();
    }
    let incarnation = row.map_or(0, |row| row.incarnation);
    Command::SetResourcePressure { machine, incarnation, resource_pressure }
}

/// Nearly always a machine that exists.
pub fn some_machine(state: &State, draw: &mut Draw) -> MachineId {
    let all: Vec<MachineId> = state.machines().iter().map(|(id, _)| id).collect();
    match draw.pick(&all) {
        Some(id) if !draw.one_in(30) => *id,
        _ => MachineId(draw.below(1 << 33) as u32),
    }
}

fn some_task(state: &State, draw: &mut Draw, like: impl Fn(&Task) -> bool) -> TaskId {
    let all: Vec<TaskId> =
        state.tasks().iter().filter(|(_, task)| like(task)).map(|(id, _)| id).collect();
    match draw.pick(&all) {
        Some(id) if !draw.one_in(30) => *id,
        _ => TaskId(draw.below(200) as u32),
    }
}

/// Nearly always the present attempt of the row.
fn attempt_of(state: &State, task: TaskId, draw: &mut Draw) -> u32 {
    let attempt = state.tasks().get(task).map_or(0, |row| row.attempt);
    if draw.one_in(15) { attempt.wrapping_sub(1) } else { attempt }
}

fn user_command(draw: &mut Draw) -> Command {
    let name = build::name(&user_name(draw));
    match draw.below(14) {
        0 | 1 => Command::AddUser { name },
        2 => Command::RemoveUser { name, expect: tokens_and_blobs::expect(draw) },
        3 => {
            let capabilities = Capability::ALL.into_iter().filter(|_| draw.one_in(2)).collect();
            Command::SetCapabilities {
                user: name,
                capabilities,
                expect: tokens_and_blobs::expect(draw),
            }
        }
        _ => {
            let band = *draw.pick(&Band::ALL).unwrap_or(&Band::Batch);
            let quota = (!draw.one_in(6)).then(|| Quota {
                amount: build::room(draw.below(20), draw.below(40), draw.below(200)),
                from: if draw.one_in(5) { Time(draw.below(2_000_000)) } else { Time::ZERO },
                until: if draw.one_in(4) { Time(draw.below(4_000_000)) } else { Time::NEVER },
            });
            Command::SetQuota { user: name, band, quota, expect: tokens_and_blobs::expect(draw) }
        }
    }
}

pub fn some_job(state: &State, draw: &mut Draw) -> JobKey {
    let all: Vec<_> = state.jobs().iter().map(|(id, _)| id).collect();
    let known = draw.pick(&all).and_then(|id| state.job_key(*id));
    match known {
        Some(key) if !draw.one_in(20) => key,
        _ => build::job_key(&user_name(draw), &job_name(draw)),
    }
}

/// Jobs that need an alloc set or a dependency mostly name one that exists.
fn submit(state: &State, draw: &mut Draw) -> Command {
    let owner = build::name(&user_name(draw));
    let mut spec = specs::job(&job_name(draw), draw);
    let live = |wanted: fn(&Job) -> bool| -> Vec<JobKey> {
        let rows = state.jobs().iter().filter(|(_, row)| !row.is_dead() && wanted(row));
        rows.filter_map(|(id, _)| state.job_key(id)).collect()
    };
    if let Some(set) = &mut spec.alloc_set
        && let Some(known) = draw.pick(&live(|row| row.spec().kind == JobKind::AllocSet))
    {
        *set = known.clone();
    }
    for after in &mut spec.after {
        if let Some(known) = draw.pick(&live(|_| true)) {
            after.job = known.clone();
        }
    }
    Command::SubmitJob { owner, spec: Box::new(spec) }
}

/// What ran or failed shall run again.
fn restart_or_start(state: &State, draw: &mut Draw) -> Command {
    let (job, index) = (some_job(state, draw), draw.below(5) as u32);
    match draw.below(5) {
        0 => Command::RestartTasks { job, index: Some(index) },
        1 => Command::RestartTasks { job, index: None },
        2 => Command::StepRestart { job, index },
        3 => Command::StartTasks { job, which: TasksToStart::One(index) },
        _ => Command::StartTasks { job, which: TasksToStart::Failed },
    }
}

fn job_command(state: &State, draw: &mut Draw) -> Command {
    let expect = draw.one_in(6).then(|| draw.below(4) as u32);
    match draw.below(20) {
        0..9 => submit(state, draw),
        9..14 => {
            let key = some_job(state, draw);
            let row = state.job_named(&key).and_then(|id| state.jobs().get(id));
            let spec = match row {
                Some(row) => specs::changed_job(row.spec(), draw),
                None => specs::job(key.job.as_str(), draw),
            };
            if draw.one_in(2) {
                Command::ApplyJob {
                    owner: key.user,
                    spec: Box::new(spec),
                    expect,
                    again: draw.one_in(3),
                }
            } else {
                Command::UpdateJob { owner: key.user, spec: Box::new(spec), expect }
            }
        }
        14 | 15 => {
            let count = draw.below(7) as u32;
            let mut size = JobSize::tasks(count);
            if draw.one_in(3) {
                (size.cpu, size.disk) = (Some(draw.below(4)), Some(draw.below(4)));
            }
            let job = some_job(state, draw);
            if draw.one_in(2) {
                let limits = LimitsOverride {
                    cpu: Some(draw.below(4) * 700),
                    disk: draw.one_in(2).then(|| draw.below(4)),
                    ..LimitsOverride::default()
                };
                return Command::ResizeLimits { job, limits, expect };
            }
            Command::ResizeJob { job, size, expect }
        }
        16 if draw.one_in(3) => Command::StopWithin {
            job: some_job(state, draw),
            index: draw.one_in(2).then(|| draw.below(5) as u32),
            notice: Span(draw.below(20) * 1000),
            expect: tokens_and_blobs::expect(draw),
        },
        16 => {
            Command::StopJob { job: some_job(state, draw), expect: tokens_and_blobs::expect(draw) }
        }
        17 if draw.one_in(3) => restart_or_start(state, draw),
        17 if draw.one_in(4) => Command::GiveBack { job: some_job(state, draw) },
        17 if draw.one_in(2) => {
            let (job, index) = (some_job(state, draw), draw.below(5) as u32);
            Command::StopTask { job, index, expect: tokens_and_blobs::expect(draw) }
        }
        17 => Command::UndoUpdate {
            job: updating(state, draw),
            expect: tokens_and_blobs::expect(draw),
        },
        _ => Command::CloseUpdate {
            job: updating(state, draw),
            expect: tokens_and_blobs::expect(draw),
        },
    }
}

/// A job whose update is open, if there is one.
fn updating(state: &State, draw: &mut Draw) -> JobKey {
    let open: Vec<_> =
        state.jobs().iter().filter(|(_, row)| row.update.is_some()).map(|(id, _)| id).collect();
    let key = draw.pick(&open).and_then(|id| state.job_key(*id));
    key.unwrap_or_else(|| some_job(state, draw))
}

/// A step of an update; where there are daemons, sometimes that one follows its machines.
fn step_update(state: &State, draw: &mut Draw) -> Command {
    // Draws of their own, so that the other draws stay what they were.
    let mut own = Draw::new(state.applied());
    let daemons: Vec<_> =
        state.jobs().iter().filter(|(_, row)| row.is_daemon()).map(|(id, _)| id).collect();
    if own.one_in(2)
        && let Some(job) = own.pick(&daemons).and_then(|id| state.job_key(*id))
    {
        return Command::MatchMachines { job };
    }
    let job = updating(state, draw);
    let row = state.job_named(&job).and_then(|id| state.jobs().get(id));
    let tasks = row.map_or(1, |row| row.tasks.len() as u64);
    Command::StepUpdate { job, index: draw.below(tasks + 1) as u32 }
}

/// Mostly a plan of the simple scheduler; else groups that should be rejected.
fn plan(state: &State, draw: &mut Draw) -> Plan {
    let mut plan = schedule::plan(state, draw);
    if !draw.one_in(8) {
        return plan;
    }
    let task = some_task(state, draw, |_| true);
    let machine = some_machine(state, draw);
    let alloc = draw.one_in(4).then(|| some_task(state, draw, |task| task.machine().is_some()));
    let attempt = attempt_of(state, task, draw);
    let odd = schedule::assign(state, task, machine, alloc, &[]).unwrap_or(Assignment {
        task,
        attempt,
        machine,
        alloc,
        ports: vec![draw.below(1 << 16) as u16],
        devices: Vec::new(),
    });
    let victims = (0..draw.below(3)).map(|_| {
        let task = some_task(state, draw, |task| task.machine().is_some());
        Victim { task, attempt: attempt_of(state, task, draw) }
    });
    let victims = victims.collect();
    plan.groups.push(Group { victims, assignments: vec![odd] });
    if let Some(group) = plan.groups.first().cloned()
        && draw.one_in(3)
    {
        plan.groups.push(group);
    }
    plan
}

/// Mostly a reservation for a running task, on a machine with room for it, or its release.
fn hold(state: &State, draw: &mut Draw) -> Command {
    let reserved = |task: &Task| task.holds.reserved().is_some();
    if draw.one_in(4) {
        let task = some_task(state, draw, reserved);
        let row = state.tasks().get(task);
        let held = row.and_then(|row| row.holds.reserved()).map(|hold| hold.machine);
        let machine = held.filter(|_| !draw.one_in(6)).or(row.and_then(Task::machine));
        let machine = machine.unwrap_or_else(|| some_machine(state, draw));
        return Command::ReleaseHold { task, attempt: attempt_of(state, task, draw), machine };
    }
    let runs = |task: &Task| task.state == TaskState::Running && !reserved(task);
    let task = some_task(state, draw, runs);
    let places = schedule::targets(state, task);
    let place = draw.pick(&places).copied().filter(|_| !draw.one_in(6));
    let (machine, alloc) = place.unwrap_or_else(|| (some_machine(state, draw), None));
    let attempt = attempt_of(state, task, draw);
    let target = schedule::assign(state, task, machine, alloc, &[]);
    let (ports, devices) = target.map(|target| (target.ports, target.devices)).unwrap_or_default();
    Command::ReserveHold(Assignment { task, attempt, machine, alloc, ports, devices })
}

fn evict(state: &State, draw: &mut Draw) -> Command {
    let flagged: Vec<MachineId> =
        state.machines().iter().filter(|(_, row)| row.over_committed).map(|(id, _)| id).collect();
    if let Some(machine) = draw.pick(&flagged)
        && let Some(task) = draw.pick(&overcommit_eviction::victims(state, *machine))
    {
        let attempt = attempt_of(state, *task, draw);
        return Command::Evict { task: *task, attempt, cause: EvictCause::OverCommit };
    }
    let requests =
        state.machines().iter().filter_map(|(id, _)| pressure_eviction::next_victim(state, id));
    let requests: Vec<(TaskId, Dimension)> = requests.collect();
    if let Some((task, dimension)) = draw.pick(&requests)
        && !draw.one_in(4)
    {
        let attempt = attempt_of(state, *task, draw);
        return Command::Evict {
            task: *task,
            attempt,
            cause: EvictCause::ResourcePressure(*dimension),
        };
    }
    let draining = |task: &Task| {
        task.machine().and_then(|m| state.machines().get(m)).is_some_and(|row| row.draining)
    };
    let causes = [
        EvictCause::Drain,
        EvictCause::OverCommit,
        EvictCause::Rebalance,
        EvictCause::ResourcePressure(Dimension::Cpu),
    ];
    let cause = *draw.pick(&causes).unwrap_or(&EvictCause::Drain);
    let task = match cause {
        EvictCause::Drain => some_task(state, draw, draining),
        _ => some_task(state, draw, |task| task.state == TaskState::Running),
    };
    Command::Evict { task, attempt: attempt_of(state, task, draw), cause }
}

/// An agent's reports about some of the tasks on its machine.
fn reports(state: &State, draw: &mut Draw) -> Command {
    let machine = match some_task(state, draw, |task| task.machine().is_some()) {
        task if draw.one_in(10) => MachineId(task.0),
        task => {
            let on = state.tasks().get(task).and_then(|row| row.machine());
            on.unwrap_or_else(|| some_machine(state, draw))
        }
    };
    let incarnation = state.machines().get(machine).map_or(0, |row| row.incarnation);
    let incarnation = if draw.one_in(25) { incarnation.wrapping_sub(1) } else { incarnation };
    let tasks = state.machine_load(machine).map_or(Vec::new(), |load| load.tasks.clone());
    let mut reports = Vec::new();
    for task in tasks.into_iter().filter(|_| !draw.one_in(4)).collect::<Vec<_>>() {
        let attempt = attempt_of(state, task, draw);
        let what = match state.tasks().get(task).map(|row| row.state) {
            _ if draw.one_in(20) => any_observation(draw),
            Some(TaskState::Assigned) => Observed::Started,
            Some(TaskState::Running) if !draw.one_in(3) => continue,
            Some(TaskState::Running) => any_observation(draw),
            Some(TaskState::Stopping(_)) if draw.one_in(4) => Observed::Finished,
            _ => notice(task).map_or(Observed::Stopped, Observed::Left),
        };
        reports.push(TaskReport { task, attempt, what });
    }
    if draw.one_in(20) {
        let task = some_task(state, draw, |_| true);
        reports.push(TaskReport {
            task,
            attempt: draw.below(3) as u32,
            what: any_observation(draw),
        });
    }
    Command::TaskReports { machine, incarnation, reports }
}

/// What an agent might hold: some of its desired tasks, in any condition, and unknown ones.
pub fn observed_by_agent(state: &State, machine: MachineId, draw: &mut Draw) -> Vec<ObservedTask> {
    let load = state.machine_load(machine);
    let tasks = load.map_or(Vec::new(), |load| load.tasks.clone());
    let mut seen = Vec::new();
    for task in tasks.into_iter().filter(|_| !draw.one_in(8)).collect::<Vec<_>>() {
        let attempt = attempt_of(state, task, draw);
        let limits = limits_in_force(state, task, draw);
        let state = match draw.below(8) {
            0 => ObservedState::Preparing,
            1 => ObservedState::Finished,
            2 => ObservedState::Failed(exit(draw)),
            3 => notice(task).map_or(ObservedState::Stopped, ObservedState::Left),
            _ => ObservedState::Running { healthy: !draw.one_in(6) },
        };
        seen.push(ObservedTask { task, attempt, log_saver_run: 0, state, limits });
    }
    if draw.one_in(3) {
        let task = some_task(state, draw, |_| true);
        let known = seen.iter().any(|report| report.task == task);
        let state = ObservedState::Running { healthy: true };
        let unknown = ObservedTask { task, attempt: 9, log_saver_run: 0, state, limits: None };
        seen.extend((!known).then_some(unknown));
    }
    seen
}

/// What an agent may have in force for a task: what it shall be, what it was, or something between.
fn limits_in_force(state: &State, task: TaskId, draw: &mut Draw) -> Option<LimitsInForce> {
    let row = state.tasks().get(task).filter(|row| row.resizes > 0)?;
    let limits = state.spec_of(row)?.limits_of(row.index);
    let before = row.limits_in_force.as_deref().copied().unwrap_or(limits);
    let half = |d: u64, other: u64| d / 2 + other / 2;
    let limits = match draw.below(3) {
        0 => before,
        1 => Resources { ram: half(limits.ram, before.ram), ..limits },
        _ => limits,
    };
    let resizes = row.resizes.saturating_sub(u32::from(draw.one_in(4)));
    Some(LimitsInForce { resizes, limits })
}

/// Outcome of this task's notice; for some tasks unknown.
fn notice(task: TaskId) -> Option<NoticeOutcome> {
    let all = [
        None,
        Some(NoticeOutcome::LeftInTime),
        Some(NoticeOutcome::Overrun),
        Some(NoticeOutcome::NotGiven),
    ];
    all[task.0 as usize % all.len()]
}

fn any_observation(draw: &mut Draw) -> Observed {
    match draw.below(13) {
        0..4 => Observed::Finished,
        4..6 => Observed::Failed(exit(draw)),
        6..8 => Observed::Unhealthy,
        8 => Observed::Started,
        9 => Observed::Stopped,
        10 => Observed::Lost,
        11 => Observed::LimitsInForce {
            resizes: draw.below(4) as u32,
            limits: build::room(draw.below(4), draw.below(4), draw.below(4)),
        },
        _ => Observed::Healthy,
    }
}

fn exit(draw: &mut Draw) -> ExitClass {
    let all = [
        ExitClass::Code(1),
        ExitClass::Signal(9),
        ExitClass::OutOfMemory,
        ExitClass::OutOfMemoryBystander,
        ExitClass::OverDiskLimit,
        ExitClass::CouldNotStart,
        ExitClass::TimedOut,
    ];
    *draw.pick(&all).unwrap_or(&ExitClass::TimedOut)
}

fn release(state: &State, draw: &mut Draw) -> Command {
    let kept: Vec<_> = state
        .machines()
        .iter()
        .flat_map(|(id, row)| row.retained.iter().map(move |r| (id, r.task, r.attempt, r.run)))
        .collect();
    let picked = draw.pick(&kept).copied();
    let (machine, task, attempt, run) = picked.unwrap_or_else(|| {
        let number = draw.below(3) as u32;
        (some_machine(state, draw), some_task(state, draw, |_| true), number, Some(number))
    });
    if draw.one_in(2) {
        let exit = draw.one_in(4).then(|| exit(draw));
        return Command::LogSaverFailed { machine, task, attempt, run: run.unwrap_or(1), exit };
    }
    Command::ReleaseRetained { machine, task, attempt }
}

/// Sometimes without limits, or runs would make no progress.
fn bounds(draw: &mut Draw) -> Command {
    let wide = Bounds::default();
    Command::SetBounds(match draw.below(3) {
        0 => wide,
        1 => Bounds {
            jobs: 2 + draw.below(5),
            tasks: 5 + draw.below(60),
            machine_tasks: 1 + draw.below(9),
            versions: 2,
            default_disk: 1 << 30,
            ..wide
        },
        _ => Bounds {
            least_charge: Resources::new(draw.below(9), draw.below(9), 0, 0),
            spec_bytes: 500 + draw.below(5000),
            resources: draw.below(4),
            longest_notice: LongestNotice::same(Span::seconds(draw.below(30))),
            ..wide
        },
    })
}

/// Up, down, and beyond what is allowed.
fn reservations(state: &State, draw: &mut Draw) -> Command {
    let changes = (0..1 + draw.below(5)).map(|_| {
        let task = some_task(state, draw, |task| task.state == TaskState::Running);
        let attempt = attempt_of(state, task, draw);
        let limits = state
            .tasks()
            .get(task)
            .and_then(|row| Some(state.spec_of(row)?.limits_of(row.index)))
            .unwrap_or_default();
        let share = draw.below(6);
        let part = |whole: u64| whole / 4 * share.min(4) + u64::from(share == 5) * (whole + 1);
        let [cpu, ram, disk, rate] = limits.to_array().map(part);
        ReservationChange { task, attempt, reservation: Resources::new(cpu, ram, disk, rate) }
    });
    Command::SetReservations(changes.collect())
}
