//! Liveness: which machines are down. Link shards report heartbeats of machines to the leader; a
//! machine silent for several polls is declared down, and its tasks are placed elsewhere. A wrong
//! declaration costs a machine's worth of restarts, a late one some seconds, so the leader doubts
//! itself first:
//!
//! - A new leader has no heartbeats and gives every machine the full time, and more: the agents of
//!   a replica that died must find another one.
//! - The same while a machine's own shard is silent: the reporter is missing, not the machine.
//! - More than half silent is our network, not their power: none is declared down, an alarm is
//!   raised. Machines declared down lately count as silent, so that a cut that spreads slowly is
//!   the same. So do those that are one poll short of it, once any machine is due: polls come one
//!   after another, and of many that were cut off at once the first would be taken for the only
//!   ones. When the first of them are back, the others have the full time again: when a network or
//!   a rack returns, its machines return one after another.
//! - At most so many machines a minute, by default a share of the cell: a machine that looks dead
//!   may still come back. A number that suits ten machines leaves the tasks of a lost rack of a
//!   large cell waiting for a quarter of an hour, and one that suits the large cell is no limit in
//!   the small one.
//!
//! Silent machines that are left up are reported by name and since when: in a cell of one machine
//! there is nowhere to move its tasks, and its owner still wants to know.
//!
//! All times are elapsed time of this process, which no change of clocks moves.
//!
//! Rejected: having a second replica check each silent machine. An agent that loses its replica
//! dials the others by itself, which is the same check from the better side.

use crate::input::Alarm;
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::state::State;
use cellwright_cell::time::Span;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessConfig {
    /// Longest time between two polls of one agent.
    pub poll_interval: Span,
    /// Missed polls after which a machine is silent.
    pub missed_polls: u64,
    /// A shard that has not reported for this long is silent itself.
    pub link_shard_timeout: Span,
    /// What machines get on top while their shard is silent or unknown: time to find another.
    pub reconnect_grace: Span,
    /// Most machines declared down a minute, beyond the first `burst`.
    pub max_down_per_minute: DownRate,
    pub burst: u64,
    /// When more than so many of a thousand machines that were up are silent, the fault is ours or
    /// the network's: none is declared down.
    pub pause_above_permille: usize,
    /// How long a machine declared down still counts as silent for that share.
    pub count_down_for: Span,
    /// When a declaration that had no effect is repeated.
    pub retry_after: Span,
    /// How often all machines are checked; in between a step costs nothing.
    pub check_interval: Span,
}

/// How many machines may be declared down in a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownRate {
    Machines(u64),
    /// Of the machines that are up or were until lately; at least [`DownRate::LEAST`] machines.
    Percent(u64),
}

impl DownRate {
    /// In a cell of few machines a share would be less than one in a minute.
    pub const LEAST: u64 = 6;

    /// Machines a minute in a cell of so many.
    #[must_use]
    pub fn of(self, machines: usize) -> u64 {
        match self {
            DownRate::Machines(number) => number,
            DownRate::Percent(percent) => {
                ((machines as u64).saturating_mul(percent) / 100).max(DownRate::LEAST)
            }
        }
    }
}

impl Default for LivenessConfig {
    fn default() -> Self {
        LivenessConfig {
            poll_interval: Span::seconds(5),
            missed_polls: 3,
            link_shard_timeout: Span::seconds(5),
            reconnect_grace: Span::seconds(20),
            max_down_per_minute: DownRate::Percent(5),
            burst: 10,
            pause_above_permille: 500,
            count_down_for: Span::seconds(900),
            retry_after: Span::seconds(5),
            check_interval: Span(500),
        }
    }
}

impl LivenessConfig {
    fn heartbeat_timeout(&self) -> Span {
        Span(self.poll_interval.0.saturating_mul(self.missed_polls))
    }

    /// A machine that fell silent together with one that is overdue has been silent for longer than
    /// this.
    fn suspect_after(&self) -> Span {
        Span(self.poll_interval.0.saturating_mul(self.missed_polls.saturating_sub(1)))
    }

    fn is_most(&self, silent: usize, up: usize) -> bool {
        silent * 1000 > up * self.pause_above_permille
    }
}

/// The leader's decision about silent machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LivenessDecision {
    /// To be declared down, longest silent first.
    pub down: Vec<MachineId>,
    pub alarms: Vec<Alarm>,
    /// Up and silent for longer than allowed, and for how long: longest first, not all of many.
    pub silent: Vec<(MachineId, Span)>,
}

/// Most silent machines that are listed.
const MAX_NAMED: usize = 50;

#[derive(Clone, Copy, Debug)]
struct Heartbeat {
    at: Span,
    /// `None` until a shard has reported the machine under this leader.
    shard: Option<u64>,
}

/// The leader's view of heartbeats. Made anew by every election.
#[derive(Clone, Debug)]
pub struct Liveness {
    settings: LivenessConfig,
    /// Machines that are up, and their last heartbeats.
    heartbeats: BTreeMap<MachineId, Heartbeat>,
    shards: BTreeMap<u64, Span>,
    /// When machines were declared down.
    declared_down: BTreeMap<MachineId, Span>,
    /// When so many were last silent that none was declared down.
    paused_at: Option<Span>,
    down_budget: TokenBucket,
    next_check: Span,
    /// As of the last check.
    alarms: Vec<Alarm>,
    silent: Vec<(MachineId, Span)>,
}

impl Liveness {
    /// For a leader elected `at`.
    #[must_use]
    pub fn new(settings: LivenessConfig, at: Span) -> Liveness {
        Liveness {
            settings,
            heartbeats: BTreeMap::new(),
            shards: BTreeMap::new(),
            declared_down: BTreeMap::new(),
            paused_at: None,
            down_budget: TokenBucket::full(settings.burst, at),
            next_check: at,
            alarms: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// `shard` reports a heartbeat of `machine`.
    pub fn heartbeats(&mut self, machine: MachineId, shard: u64, at: Span) {
        self.declared_down.remove(&machine);
        self.heartbeats.insert(machine, Heartbeat { at, shard: Some(shard) });
    }

    /// `shard` has reported to the leader, if only that there were no heartbeats.
    pub fn shard_reported(&mut self, shard: u64, at: Span) {
        self.shards.insert(shard, at);
    }

    /// Forgets shards of replicas that are no longer voters.
    pub fn set_voters(&mut self, voters: &[u64]) {
        self.shards.retain(|shard, _| voters.contains(shard));
    }

    /// The machines to declare down now.
    pub fn step(&mut self, state: &State, at: Span) -> LivenessDecision {
        if at < self.next_check {
            let (alarms, silent) = (self.alarms.clone(), self.silent.clone());
            return LivenessDecision { down: Vec::new(), alarms, silent };
        }
        self.next_check = Span(at.0.saturating_add(self.settings.check_interval.0));
        let decision = self.check(state, at);
        self.alarms.clone_from(&decision.alarms);
        self.silent.clone_from(&decision.silent);
        decision
    }

    fn check(&mut self, state: &State, at: Span) -> LivenessDecision {
        let up = self.track_up_machines(state, at);
        let mut silent: Vec<(Span, MachineId)> = Vec::new();
        let mut overdue: Vec<(Span, MachineId)> = Vec::new();
        let (mut suspected, mut due) = (0, false);
        for (machine, heartbeat) in &self.heartbeats {
            let silence = elapsed_between(heartbeat.at, at);
            suspected += usize::from(silence > self.settings.suspect_after());
            if silence <= self.settings.heartbeat_timeout() {
                continue;
            }
            silent.push((heartbeat.at, *machine));
            let allowed = self.heartbeat_timeout(heartbeat, at);
            if silence > allowed && !self.is_recently_declared(*machine, at) {
                due = true;
                if self.paused_at.is_none_or(|held| elapsed_between(held, at) > allowed) {
                    overdue.push((heartbeat.at, *machine));
                }
            }
        }
        let named = longest_silent(&silent, at);
        let gone = self.declared_down.keys().filter(|id| !self.heartbeats.contains_key(id)).count();
        let silent = if due { suspected } else { silent.len() } + gone;
        let were_up = up + gone;
        if self.settings.is_most(silent, were_up) {
            self.paused_at = Some(at);
            let (silent, up) = (count(silent), count(were_up));
            let alarms = vec![Alarm::MostMachinesSilent { silent, up }];
            return LivenessDecision { down: Vec::new(), alarms, silent: named };
        }
        let mut decision = self.declare_down(overdue, were_up, at);
        // Machines that are declared down now are no longer up and silent.
        let stays = |(machine, _): &(MachineId, Span)| !decision.down.contains(machine);
        decision.silent = named.into_iter().filter(stays).collect();
        decision
    }

    /// Tracks exactly the machines that are up; returns their number. One that came up, or that is
    /// new to this leader, is given the full time from here.
    fn track_up_machines(&mut self, state: &State, at: Span) -> usize {
        let machines = state.machines();
        let is_up =
            |id: &MachineId| machines.get(*id).is_some_and(|row| row.status == MachineStatus::Up);
        self.heartbeats.retain(|id, _| is_up(id));
        let remember = self.settings.count_down_for;
        self.declared_down.retain(|id, declared| {
            machines.get(*id).is_some() && elapsed_between(*declared, at) < remember
        });
        let mut up = 0;
        for (id, _) in machines.iter().filter(|(_, row)| row.status == MachineStatus::Up) {
            up += 1;
            self.heartbeats.entry(id).or_insert(Heartbeat { at, shard: None });
        }
        up
    }

    /// How long this machine may be silent.
    fn heartbeat_timeout(&self, heartbeat: &Heartbeat, at: Span) -> Span {
        let heartbeat_timeout = self.settings.heartbeat_timeout();
        let reported = heartbeat.shard.and_then(|shard| self.shards.get(&shard));
        match reported {
            Some(last) if elapsed_between(*last, at) <= self.settings.link_shard_timeout => {
                heartbeat_timeout
            }
            _ => Span(heartbeat_timeout.0.saturating_add(self.settings.reconnect_grace.0)),
        }
    }

    fn is_recently_declared(&self, machine: MachineId, at: Span) -> bool {
        let declared = self.declared_down.get(&machine);
        declared.is_some_and(|declared| elapsed_between(*declared, at) < self.settings.retry_after)
    }

    fn declare_down(
        &mut self,
        mut overdue: Vec<(Span, MachineId)>,
        machines: usize,
        at: Span,
    ) -> LivenessDecision {
        overdue.sort_unstable();
        let per_minute = self.settings.max_down_per_minute.of(machines);
        let allowed = self.down_budget.take(overdue.len(), per_minute, at);
        let waiting = overdue.len() - allowed;
        overdue.truncate(allowed);
        let down: Vec<MachineId> = overdue.into_iter().map(|(_, machine)| machine).collect();
        self.declared_down.extend(down.iter().map(|machine| (*machine, at)));
        let limited = Alarm::DownRateLimited { waiting: count(waiting) };
        let alarms = if waiting > 0 { vec![limited] } else { Vec::new() };
        LivenessDecision { down, alarms, silent: Vec::new() }
    }
}

fn longest_silent(silent: &[(Span, MachineId)], at: Span) -> Vec<(MachineId, Span)> {
    let mut silent = silent.to_vec();
    silent.sort_unstable();
    silent
        .iter()
        .take(MAX_NAMED)
        .map(|(heartbeat, machine)| (*machine, elapsed_between(*heartbeat, at)))
        .collect()
}

/// The rate limit of declarations: one token for each machine whose tasks may start elsewhere. In
/// units of a machine / 60,000, of which a rate of one a minute makes one a millisecond: exact in
/// whole numbers.
#[derive(Clone, Debug)]
struct TokenBucket {
    capacity: u64,
    units: u64,
    at: Span,
}

const UNITS_PER_MACHINE: u64 = 60_000;

impl TokenBucket {
    fn full(burst: u64, at: Span) -> TokenBucket {
        let capacity = burst.max(1).saturating_mul(UNITS_PER_MACHINE);
        TokenBucket { capacity, units: capacity, at }
    }

    /// Takes tokens for up to `wanted` whole machines.
    fn take(&mut self, wanted: usize, per_minute: u64, at: Span) -> usize {
        let grown = elapsed_between(self.at, at).0.saturating_mul(per_minute);
        self.units = self.units.saturating_add(grown).min(self.capacity);
        self.at = Span(self.at.0.max(at.0));
        let taken = (self.units / UNITS_PER_MACHINE).min(wanted as u64);
        self.units -= taken * UNITS_PER_MACHINE;
        usize::try_from(taken).unwrap_or(wanted)
    }
}

fn elapsed_between(from: Span, until: Span) -> Span {
    Span(until.0.saturating_sub(from.0))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
