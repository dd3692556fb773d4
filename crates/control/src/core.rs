//! The core of the master: a pure step from an input to outputs. It owns what only the leader knows
//! and no successor needs: the admission queue, the batches in flight, the machines' heartbeats,
//! and the holders of scheduler shards. Everything else is in the log.
//!
//! **Invariant:** every accepted request is answered exactly once: with its verdict, or with the
//! reason why there is none.

use crate::admission::AdmissionQueue;
use crate::batching::Batching;
use crate::config::ControlConfig;
use crate::controller::Controllers;
use crate::input::{
    Alarm, ArchiveProgress, BatchId, Committed, Input, Now, Origin, Output, Role, Ticket,
};
use crate::lease::{Leases, SchedulerShardName, TooManySchedulerShards};
use crate::liveness::Liveness;
use crate::log_time::{ClockSkews, LogTime};
use cellwright_cell::command::{Actor, Command, ControllerName, Request};
use cellwright_cell::credential::PartKind;
use cellwright_cell::id::MachineId;
use cellwright_cell::log_saver::{LogSaverEnd, LogSaverOutcome};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_messages::{LinkShardReport, StateDifference, Unavailable};
use std::collections::{BTreeMap, BTreeSet};

/// Requests that are answered together.
struct Queued {
    /// `None`: the answer is not awaited.
    ticket: Option<Ticket>,
    requests: Vec<Request>,
}

/// A batch in flight: the tickets of its requests, by position.
struct InFlightBatch {
    parts: Vec<(Option<Ticket>, usize)>,
}

pub struct Core {
    settings: ControlConfig,
    role: Role,
    /// The answer to all requests but removals while the disk is nearly full.
    disk_full: Option<Unavailable>,
    queue: AdmissionQueue<Queued>,
    batching: Batching,
    in_flight: BTreeMap<BatchId, InFlightBatch>,
    next_batch: u64,
    log_time: LogTime,
    /// Clock skews as of the last check, and when to check again.
    skews: (ClockSkews, Span),
    /// When an entry is to carry log time to followers of the log, while it differs from real time.
    next_timestamp_entry: Span,
    liveness: Liveness,
    leases: Leases,
    /// Incarnation and number of the newest report of each machine that had news.
    newest_reports: BTreeMap<MachineId, (u64, u64)>,
    controllers: Controllers,
    /// Commands of the controllers in flight. Controllers do not step meanwhile.
    controller_commands_in_flight: usize,
    next_controller_step: Span,
    /// Of this leadership.
    archive: ArchiveProgress,
}

const CONTROLLERS: Ticket = Ticket(0);
/// Between two checks of the clocks.
const CLOCK_CHECK_INTERVAL: Span = Span(1000);
/// Between two entries that carry nothing but a log time that is slowed down.
const TIMESTAMP_ENTRY_INTERVAL: Span = Span::seconds(60);

/// Whether some task may not start yet because its predecessor may still run.
fn is_lease_awaited(state: &State) -> bool {
    let waits_for_lease = |task: &Task| {
        let lease = state.spec_of(task).and_then(|spec| spec.at_most_one);
        lease.is_some() && task.state == TaskState::Pending && task.not_before > state.now()
    };
    state.tasks().iter().any(|(_, task)| waits_for_lease(task))
}

impl Core {
    #[must_use]
    pub fn new(settings: ControlConfig) -> Core {
        Core {
            queue: AdmissionQueue::new(settings.admission),
            batching: Batching::new(settings.batching),
            liveness: Liveness::new(settings.liveness, Span::ZERO),
            leases: Leases::new(settings.scheduler_lease),
            newest_reports: BTreeMap::new(),
            controllers: Controllers::default(),
            log_time: LogTime::new(settings.clocks),
            skews: (ClockSkews::default(), Span::ZERO),
            next_timestamp_entry: Span::ZERO,
            settings,
            role: Role::default(),
            disk_full: None,
            in_flight: BTreeMap::new(),
            next_batch: 0,
            controller_commands_in_flight: 0,
            next_controller_step: Span::ZERO,
            archive: ArchiveProgress::default(),
        }
    }

    /// `read_state` returns the current state; it is called only where a decision needs it.
    pub fn step(
        &mut self,
        input: Input,
        now: Now,
        read_state: &dyn Fn() -> State,
        outputs: &mut Vec<Output>,
    ) {
        match input {
            Input::Tick => self.on_tick(now, read_state, outputs),
            Input::Role(role) => self.on_role(role, now, read_state, outputs),
            Input::Requests { ticket, origin, bytes, requests } => {
                self.on_requests(ticket, &origin, bytes, requests, outputs);
            }
            Input::Committed { batch, result } => self.on_committed(batch, result, outputs),
            Input::Forward(forward) => self.on_forward(forward, now, read_state),
            Input::Archive(progress) => self.archive = progress,
            Input::Lease { ticket, scheduler, scheduler_shard, wall } => {
                self.log_time.observe_scheduler(&scheduler, wall, now);
                let rejected = |error: TooManySchedulerShards| Unavailable::Overloaded {
                    who: error.to_string(),
                    retry_after: self.settings.scheduler_lease,
                };
                let answer = if self.role.leading {
                    self.leases.request(&scheduler, &scheduler_shard, now.elapsed).map_err(rejected)
                } else {
                    Err(self.not_leader())
                };
                outputs.push(Output::Lease { ticket, answer });
            }
        }
    }

    /// Sets or clears the state in which the disk has room for removals only; `full` is the answer
    /// to all other requests.
    pub fn set_disk_full(&mut self, full: Option<Unavailable>) {
        self.disk_full = full;
    }

    /// Requests that are in the log already.
    #[must_use]
    pub fn in_flight(&self) -> BTreeSet<Ticket> {
        let parts = self.in_flight.values().flat_map(|flying| &flying.parts);
        parts.filter_map(|(ticket, _)| *ticket).collect()
    }

    /// The holder of a scheduler shard at `at`; only the leader knows.
    ///
    /// # Errors
    /// When this replica does not lead.
    pub fn scheduler_shard_holder(
        &self,
        scheduler_shard: &SchedulerShardName,
        at: Span,
    ) -> Result<Option<String>, Unavailable> {
        if self.role.leading {
            Ok(self.leases.holder(scheduler_shard, at).map(str::to_owned))
        } else {
            Err(self.not_leader())
        }
    }

    /// Starts batches while items are waiting and more may be in flight.
    pub fn flush(&mut self, now: Now, outputs: &mut Vec<Output>) {
        if !self.role.leading {
            return;
        }
        while let Some(room) = self.batching.room_for_batch(self.queue.waiting()) {
            let queued_batch = self.queue.pop_batch(room);
            self.batching.sent();
            self.next_batch += 1;
            let batch = BatchId(self.next_batch);
            let date = self.log_time.timestamp(now);
            let parts = queued_batch.iter().map(|q| (q.ticket, q.requests.len())).collect();
            let requests = queued_batch.into_iter().flat_map(|q| q.requests).collect();
            self.in_flight.insert(batch, InFlightBatch { parts });
            outputs.push(Output::Propose { batch, now: date, requests });
        }
    }

    fn not_leader(&self) -> Unavailable {
        Unavailable::NotLeader { leader: self.role.leader.clone() }
    }

    fn on_requests(
        &mut self,
        ticket: Ticket,
        origin: &Origin,
        bytes: usize,
        requests: Vec<Request>,
        outputs: &mut Vec<Output>,
    ) {
        let reject = |why| Output::Answer { ticket, result: Err(why) };
        if !self.role.leading {
            return outputs.push(reject(self.not_leader()));
        }
        let removes = |request: &Request| request.command.frees_space();
        if let Some(full) = self.disk_full.as_ref().filter(|_| !requests.iter().all(removes)) {
            return outputs.push(reject(full.clone()));
        }
        let limit = self.settings.batching.max_batch.bytes;
        if bytes > limit {
            return outputs.push(reject(Unavailable::TooLarge { bytes, limit }));
        }
        let item = Queued { ticket: Some(ticket), requests };
        if let Err(overload) = self.queue.push(origin, bytes, item) {
            let (origin_name, retry_after) = (origin.to_string(), overload.retry_after);
            outputs.push(reject(Unavailable::Overloaded { who: origin_name, retry_after }));
        }
    }

    /// Enqueues commands of the core itself: no answer is awaited, and they are never behind users.
    fn enqueue(&mut self, origin: &Origin, ticket: Option<Ticket>, mut requests: Vec<Request>) {
        if self.disk_full.is_some() {
            requests.retain(|request| request.command.frees_space());
        }
        if requests.is_empty() {
            if ticket == Some(CONTROLLERS) {
                self.controller_commands_in_flight = 0;
            }
            return;
        }
        let bytes = postcard::experimental::serialized_size(&requests).unwrap_or(0);
        // A full level drops the commands here: differences and controllers' commands are found
        // again from the state.
        let queued = self.queue.push(origin, bytes, Queued { ticket, requests });
        if queued.is_err() && ticket == Some(CONTROLLERS) {
            self.controller_commands_in_flight = 0;
        }
    }

    fn on_committed(
        &mut self,
        batch: BatchId,
        result: Result<Committed, Unavailable>,
        outputs: &mut Vec<Output>,
    ) {
        let Some(in_flight) = self.in_flight.remove(&batch) else { return };
        self.batching.done();
        let mut rest = result.as_ref().map(|done| done.verdicts.as_slice()).unwrap_or_default();
        for (ticket, count) in in_flight.parts {
            let (own_verdicts, later) = rest.split_at(count.min(rest.len()));
            rest = later;
            match ticket {
                None => {}
                Some(CONTROLLERS) => {
                    self.controller_commands_in_flight = 0;
                    self.controllers.on_verdicts(own_verdicts);
                }
                Some(ticket) => {
                    let result = result.as_ref().map_err(Clone::clone).map(|done| Committed {
                        index: done.index,
                        term: done.term,
                        verdicts: own_verdicts.to_vec(),
                    });
                    outputs.push(Output::Answer { ticket, result });
                }
            }
        }
    }

    /// Soft state belongs to one leadership: a new leader gives every machine its full grace
    /// period.
    fn on_role(
        &mut self,
        role: Role,
        now: Now,
        read_state: &dyn Fn() -> State,
        outputs: &mut Vec<Output>,
    ) {
        let previous_role = std::mem::replace(&mut self.role, role);
        if self.role.leading && (!previous_role.leading || previous_role.term != self.role.term) {
            self.liveness = Liveness::new(self.settings.liveness, now.elapsed);
            self.leases = Leases::new(self.settings.scheduler_lease);
            self.controllers = Controllers::default();
            self.archive = ArchiveProgress::default();
            self.controller_commands_in_flight = 0;
            self.next_controller_step = now.elapsed;
            let state = read_state();
            self.log_time.lead(state.now(), !is_lease_awaited(&state), now);
            self.skews = (ClockSkews::default(), now.elapsed);
            self.next_timestamp_entry = now.elapsed;
        }
        self.liveness.set_voters(&self.role.voters);
        self.log_time.set_voters(self.role.id, &self.role.voters);
        if previous_role.leading && !self.role.leading {
            for queued in self.queue.drain() {
                if let Some(ticket) = queued.ticket.filter(|ticket| *ticket != CONTROLLERS) {
                    let result = Err(self.not_leader());
                    outputs.push(Output::Answer { ticket, result });
                }
            }
            outputs.push(Output::Alarms(Vec::new()));
            outputs.push(Output::Skews(ClockSkews::default()));
            outputs.push(Output::Controllers(BTreeMap::new()));
        }
    }

    fn on_forward(&mut self, forward: LinkShardReport, now: Now, read_state: &dyn Fn() -> State) {
        if !self.role.leading || forward.term != self.role.term {
            return;
        }
        self.liveness.shard_reported(forward.shard, now.elapsed);
        self.log_time.observe_voter(forward.shard, forward.wall, &forward.clock_offsets, now);
        for machine in &forward.heard_machines {
            self.liveness.heartbeats(*machine, forward.shard, now.elapsed);
        }
        if forward.differences.is_empty() {
            return;
        }
        let state = read_state();
        for difference in forward.differences {
            if self.is_outdated(&difference) {
                continue;
            }
            // Each machine has its own queue: one that reports without end delays no other.
            let machine = reporting_machine(&difference, &state);
            let agent = |machine: &Name| Origin::Agent(machine.to_string());
            let origin = machine.as_ref().map_or(Origin::System, agent);
            self.enqueue(&origin, None, difference_requests(difference, machine, &state));
        }
    }

    /// Whether a later report of the machine, perhaps through another replica, has arrived.
    fn is_outdated(&mut self, difference: &StateDifference) -> bool {
        let StateDifference::Tasks { machine, incarnation, number, .. } = difference else {
            return false;
        };
        let newest = self.newest_reports.entry(*machine).or_default();
        let is_outdated = (*incarnation, *number) < *newest;
        *newest = (*newest).max((*incarnation, *number));
        is_outdated
    }

    fn on_tick(&mut self, now: Now, read_state: &dyn Fn() -> State, outputs: &mut Vec<Output>) {
        if !self.role.leading {
            return;
        }
        let state = read_state();
        let date = self.update_log_time(&state, now, outputs);
        let liveness = self.liveness.step(&state, now.elapsed);
        let down = liveness.down.iter().map(|machine| Command::MachineDown { machine: *machine });
        let down = controller_requests(ControllerName::Liveness, down.collect());
        self.enqueue(&Origin::System, None, down);
        let silent = liveness.silent.into_iter();
        let silent = silent.map(|(machine, silent)| Alarm::MachineSilent { machine, silent });
        let skewed = self.skews.0.beyond(self.settings.clocks.max_skew);
        let skewed = skewed.map(|(source, seconds)| Alarm::ClockSkew { source, seconds });
        let unarchived = self.archive.trouble.map(|trouble| Alarm::ArchiveFailing {
            seconds: trouble.lasts.0 / 1000,
            waiting: trouble.waiting,
            lost: trouble.lost,
        });
        let alarms = liveness.alarms.into_iter().chain(unarchived).chain(silent).chain(skewed);
        outputs.push(Output::Alarms(alarms.collect()));
        if self.controller_commands_in_flight == 0 && now.elapsed >= self.next_controller_step {
            self.next_controller_step = Span(now.elapsed.0 + self.settings.controller_interval.0);
            let settings = &self.settings.controllers;
            let requests = self.controllers.step(&state, date, self.archive.before, settings);
            self.controller_commands_in_flight = requests.len();
            outputs.push(Output::Controllers(self.controllers.commands_issued().clone()));
            self.enqueue(&Origin::System, Some(CONTROLLERS), requests);
        }
        self.flush(now, outputs);
    }
}

impl Core {
    /// Updates log time for this replica, and the clock skews.
    fn update_log_time(&mut self, state: &State, now: Now, outputs: &mut Vec<Output>) -> Time {
        // Checked only when it matters: it reads every task.
        let may_step = self.log_time.is_step_wanted(now) && !is_lease_awaited(state);
        self.log_time.set_may_step(may_step);
        let date = self.log_time.timestamp(now);
        outputs.push(Output::LogTime(date));
        if now.elapsed >= self.skews.1 {
            let known = |machine| state.machines().get(machine).is_some();
            let skews = self.log_time.skews(known, now);
            outputs.push(Output::Skews(skews.clone()));
            self.skews = (skews, Span(now.elapsed.0 + CLOCK_CHECK_INTERVAL.0));
        }
        let is_slewing = self.skews.0.log.unsigned_abs() > self.settings.clocks.max_skew.0;
        let stepped = self.log_time.take_stepped();
        if stepped || (is_slewing && now.elapsed >= self.next_timestamp_entry) {
            self.next_timestamp_entry = Span(now.elapsed.0 + TIMESTAMP_ENTRY_INTERVAL.0);
            let stamp = controller_requests(ControllerName::Expire, vec![Command::Expire]);
            self.enqueue(&Origin::System, None, stamp);
        }
        date
    }
}

/// The machine whose report a difference comes from; `None` when it has no row any more.
fn reporting_machine(difference: &StateDifference, state: &State) -> Option<Name> {
    let machine = match difference {
        StateDifference::Up { machine, .. } => return Some(machine.clone()),
        StateDifference::Tasks { machine, .. }
        | StateDifference::Packages { machine, .. }
        | StateDifference::LogSavers { machine, .. }
        | StateDifference::ResourcePressure { machine, .. } => Some(*machine),
        StateDifference::Reservations(changes) => {
            let task = changes.first().and_then(|change| state.tasks().get(change.task));
            task.and_then(|task| task.machine())
        }
    };
    let row = machine.and_then(|machine| state.machines().get(machine));
    row.map(|row| row.spec.name.clone())
}

fn controller_requests(name: ControllerName, commands: Vec<Command>) -> Vec<Request> {
    let request = |command| Request { by: Actor::Controller(name), id: None, command };
    commands.into_iter().map(request).collect()
}

/// The requests for a difference, in the name of the machine's agent; none for a machine without a
/// row. Reservations are estimated beside the link from the usage that the agent reported.
fn difference_requests(
    difference: StateDifference,
    machine: Option<Name>,
    state: &State,
) -> Vec<Request> {
    if matches!(difference, StateDifference::Reservations(_)) {
        return controller_requests(
            ControllerName::Reclaim,
            difference_commands(difference, state),
        );
    }
    let Some(machine) = machine else { return Vec::new() };
    let request = |command| Request { by: Actor::Agent(machine.clone()), id: None, command };
    difference_commands(difference, state).into_iter().map(request).collect()
}

/// The commands for a difference found by a link shard.
fn difference_commands(difference: StateDifference, state: &State) -> Vec<Command> {
    match difference {
        StateDifference::Tasks { machine, incarnation, reports, .. } => {
            vec![Command::TaskReports { machine, incarnation, reports }]
        }
        StateDifference::Packages { machine, packages } => {
            vec![Command::SetMachinePackages { machine, packages }]
        }
        StateDifference::ResourcePressure { machine, incarnation, resource_pressure } => {
            vec![Command::SetResourcePressure { machine, incarnation, resource_pressure }]
        }
        StateDifference::Reservations(changes) => vec![Command::SetReservations(changes)],
        StateDifference::LogSavers { machine, ends } => {
            ends.into_iter().map(|end| log_saver_ended(machine, end)).collect()
        }
        StateDifference::Up { machine: name, incarnation, spec } => {
            // A machine cannot report for another one.
            let spec = spec.filter(|spec| spec.name == name);
            let known = state.machine_named(&name);
            let row = known.and_then(|id| Some((id, state.machines().get(id)?)));
            let Some((machine, row)) = row else {
                // The machine comes up with its next report, when it has a row.
                let row = |spec: Box<MachineSpec>| Command::RegisterMachine(*spec);
                let gone = state.is_revoked(PartKind::Agent, &name);
                return spec.filter(|_| !gone).map(row).into_iter().collect();
            };
            let changed = spec.filter(|spec| **spec != row.spec);
            let update = changed.map(|spec| Command::UpdateMachine { spec: *spec, expect: None });
            update.into_iter().chain([Command::MachineUp { machine, incarnation }]).collect()
        }
    }
}

fn log_saver_ended(machine: MachineId, end: LogSaverEnd) -> Command {
    let LogSaverEnd { task, attempt, run, outcome: how } = end;
    match how {
        LogSaverOutcome::Succeeded => Command::ReleaseRetained { machine, task, attempt },
        LogSaverOutcome::Failed(exit) => {
            Command::LogSaverFailed { machine, task, attempt, run, exit }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports of agents stand in the log under their own names, and are accepted there.
    #[test]
    fn what_agents_report_is_sent_in_their_own_names() {
        use crate::controller::testing::{Cell, machine, name};
        let cell = Cell::with_machines(2);
        let mut core = Core::new(ControlConfig::default());
        let (read_state, mut outputs) = (|| cell.state.clone(), Vec::new());
        let now = Now { wall: Time(1), elapsed: Span(1) };
        let role = Role { id: 1, term: 1, leading: true, leader: None, voters: vec![1] };
        core.step(Input::Role(role), now, &read_state, &mut outputs);
        outputs.clear();
        let packages = |machine| {
            let machine = MachineId(machine);
            StateDifference::Packages { machine, packages: BTreeSet::new() }
        };
        let spec = Some(Box::new(machine(7, 100)));
        let differences = vec![
            packages(1),
            packages(99),
            StateDifference::Up { machine: name("m7"), incarnation: 1, spec },
            StateDifference::Reservations(Vec::new()),
        ];
        let (wall, clocks, heard_machines) = (Time(1), Vec::new(), Vec::new());
        let forward = LinkShardReport {
            shard: 1,
            term: 1,
            heard_machines,
            differences,
            wall,
            clock_offsets: clocks,
        };
        core.step(Input::Forward(forward), now, &read_state, &mut outputs);
        core.flush(now, &mut outputs);
        let requests = outputs.into_iter().find_map(|output| match output {
            Output::Propose { requests, .. } => Some(requests),
            _ => None,
        });
        let requests = requests.expect("a batch");
        let mut senders: Vec<String> = requests.iter().map(|sent| sent.by.to_string()).collect();
        senders.sort();
        assert_eq!(senders, ["agent:m1", "agent:m7", "controller:reclaim"]);
        let entry = cellwright_cell::command::Entry { now: Time(cell.now + 1), requests };
        let verdicts = cell.state.clone().apply(&entry, &mut Vec::new());
        assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
    }

    /// A request that a client should repeat must not have been executed.
    #[test]
    fn what_is_in_the_hands_of_the_log_is_told_apart_from_what_waits() {
        let mut core = Core::new(ControlConfig::default());
        let (read_state, mut outputs) = (|| State::default(), Vec::new());
        let now = Now { wall: Time(1), elapsed: Span(1) };
        let role = Role { id: 1, term: 1, leading: true, leader: None, voters: vec![1] };
        core.step(Input::Role(role), now, &read_state, &mut outputs);
        let request = |number| {
            let requests =
                vec![Request { by: Actor::Operator, id: None, command: Command::Expire }];
            let (ticket, origin) = (Ticket(number), Origin::User("ann".into()));
            Input::Requests { ticket, origin, bytes: 10, requests }
        };
        core.step(request(7), now, &read_state, &mut outputs);
        assert_eq!(core.in_flight(), BTreeSet::new());
        core.flush(now, &mut outputs);
        core.step(request(8), now, &read_state, &mut outputs);
        assert_eq!(core.in_flight(), BTreeSet::from([Ticket(7)]));
    }

    #[test]
    fn on_a_full_disk_removals_are_taken_and_all_else_is_told_why() {
        let mut core = Core::new(ControlConfig::default());
        let (read_state, mut outputs) = (|| State::default(), Vec::new());
        let now = Now { wall: Time(1), elapsed: Span(1) };
        let role = Role { id: 1, term: 1, leading: true, leader: None, voters: vec![1] };
        core.step(Input::Role(role), now, &read_state, &mut outputs);
        outputs.clear();
        let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
        let request = |number, command| {
            let requests = vec![Request { by: Actor::Operator, id: None, command }];
            let (ticket, origin) = (Ticket(number), Origin::User("ann".into()));
            Input::Requests { ticket, origin, bytes: 10, requests }
        };
        let full = Unavailable::DiskFull { free: 3, reserve: 9 };
        core.set_disk_full(Some(full.clone()));
        core.step(
            request(7, Command::AddUser { name: name("bob") }),
            now,
            &read_state,
            &mut outputs,
        );
        assert_eq!(outputs, [Output::Answer { ticket: Ticket(7), result: Err(full) }]);
        let gone = Command::RemoveUser { name: name("bob"), expect: None };
        core.step(request(8, gone), now, &read_state, &mut outputs);
        core.flush(now, &mut outputs);
        assert_eq!(core.in_flight(), BTreeSet::from([Ticket(8)]));
        core.set_disk_full(None);
        outputs.clear();
        core.step(
            request(9, Command::AddUser { name: name("bob") }),
            now,
            &read_state,
            &mut outputs,
        );
        assert_eq!(outputs, [], "it waits for its turn");
    }

    #[test]
    fn what_a_late_report_says_through_another_replica_is_not_believed() {
        let mut core = Core::new(ControlConfig::default());
        let mut is_outdated = |incarnation, number| {
            let machine = MachineId(1);
            let reports = Vec::new();
            core.is_outdated(&StateDifference::Tasks { machine, incarnation, number, reports })
        };
        assert!(!is_outdated(1, 5));
        assert!(is_outdated(1, 4));
        assert!(!is_outdated(1, 6));
        assert!(!is_outdated(2, 1), "after a reboot");
        assert!(is_outdated(1, 7), "of the life before");
    }
}
