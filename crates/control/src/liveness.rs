//! Which machines are gone. Link shards tell the leader whom they heard; a machine silent for
//! several polls is declared down, and its tasks are placed elsewhere. A wrong declaration costs a
//! machine's worth of restarts, a late one some seconds, so the leader doubts itself first:
//!
//! - A new leader has heard nobody and gives everyone the full time, and more: the agents of a
//!   replica that died must find another one.
//! - The same while a machine's own shard is silent: it is the messenger that is missing.
//! - More than half silent is our network, not their power: nothing moves, an alarm is raised.
//!   Machines declared down lately count as silent, so that a cut that spreads slowly is the same.
//!   So do those that are one poll short of it, once anybody is due: polls come one after another,
//!   and of many that were cut off at once the first would be taken for the only ones.
//!   When the first of them are back, the others have the full time again: whoever brings a network
//!   or a rack back brings its machines back one after another.
//! - At most so many machines a minute: what looks dead may still come back.
//!
//! Whom this leaves up though nobody hears it is said by name and since when: in a cell of one
//! machine there is nowhere to move its tasks, and its owner still wants to know.
//!
//! All times are elapsed time of this process, which no change of clocks moves.
//!
//! Rejected: asking a second replica to look at each silent machine. An agent that loses its
//! replica dials the others by itself, which is the same look from the better side.

use crate::input::Alarm;
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::state::State;
use cellwright_cell::time::Span;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest time between two polls of one agent.
    pub poll: Span,
    /// Missed polls after which a machine is silent.
    pub missed_polls: u64,
    /// A shard that has not reported for this long is silent itself.
    pub shard_silence: Span,
    /// What machines get on top while their shard is silent or unknown: time to find another.
    pub extra: Span,
    /// Most machines declared down a minute, beyond the first `burst`.
    pub per_minute: u64,
    pub burst: u64,
    /// When more than so many of a thousand machines that were up are silent, the fault is ours or
    /// the network's: nothing is declared.
    pub hold_above_permille: usize,
    /// How long a machine declared down still counts against the half.
    pub remember: Span,
    /// When a declaration that had no effect is repeated.
    pub retry: Span,
    /// How often all machines are looked at; in between a step costs nothing.
    pub look_every: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            poll: Span::seconds(5),
            missed_polls: 3,
            shard_silence: Span::seconds(5),
            extra: Span::seconds(20),
            per_minute: 60,
            burst: 10,
            hold_above_permille: 500,
            remember: Span::seconds(900),
            retry: Span::seconds(5),
            look_every: Span(500),
        }
    }
}

impl Settings {
    fn patience(&self) -> Span {
        Span(self.poll.0.saturating_mul(self.missed_polls))
    }

    /// Whoever fell silent together with one whose patience is over has been silent for longer.
    fn suspicion(&self) -> Span {
        Span(self.poll.0.saturating_mul(self.missed_polls.saturating_sub(1)))
    }

    fn is_most(&self, silent: usize, up: usize) -> bool {
        silent * 1000 > up * self.hold_above_permille
    }
}

/// What the leader should do about silent machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// To be declared down, longest silent first.
    pub down: Vec<MachineId>,
    pub alarms: Vec<Alarm>,
    /// Up and silent for longer than allowed, and for how long: longest first, not all of many.
    pub silent: Vec<(MachineId, Span)>,
}

/// Most silent machines that are named.
const NAMED: usize = 50;

#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Span,
    /// `None` until a shard has told of the machine under this leader.
    shard: Option<u64>,
}

/// The leader's view of who speaks. Made anew by every election.
#[derive(Clone, Debug)]
pub struct Liveness {
    settings: Settings,
    /// Machines that are up, and when they last gave a sign of life.
    heard: BTreeMap<MachineId, Heard>,
    shards: BTreeMap<u64, Span>,
    /// When machines were declared down.
    declared: BTreeMap<MachineId, Span>,
    /// When so many were last silent that nobody was declared down.
    held: Option<Span>,
    tokens: Tokens,
    next_look: Span,
    /// As of the last look.
    alarms: Vec<Alarm>,
    silent: Vec<(MachineId, Span)>,
}

impl Liveness {
    /// For a leader elected `at`.
    #[must_use]
    pub fn new(settings: Settings, at: Span) -> Liveness {
        Liveness {
            settings,
            heard: BTreeMap::new(),
            shards: BTreeMap::new(),
            declared: BTreeMap::new(),
            held: None,
            tokens: Tokens::full(settings.per_minute, settings.burst, at),
            next_look: at,
            alarms: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// `shard` has heard `machine`.
    pub fn heard(&mut self, machine: MachineId, shard: u64, at: Span) {
        self.declared.remove(&machine);
        self.heard.insert(machine, Heard { at, shard: Some(shard) });
    }

    /// `shard` has told the leader something, if only that it has heard nobody.
    pub fn shard_reported(&mut self, shard: u64, at: Span) {
        self.shards.insert(shard, at);
    }

    /// Shards of replicas that are no longer voters are forgotten.
    pub fn set_voters(&mut self, voters: &[u64]) {
        self.shards.retain(|shard, _| voters.contains(shard));
    }

    /// Whom to declare down now.
    pub fn step(&mut self, state: &State, at: Span) -> Judgement {
        if at < self.next_look {
            let (alarms, silent) = (self.alarms.clone(), self.silent.clone());
            return Judgement { down: Vec::new(), alarms, silent };
        }
        self.next_look = Span(at.0.saturating_add(self.settings.look_every.0));
        let judgement = self.look(state, at);
        self.alarms.clone_from(&judgement.alarms);
        self.silent.clone_from(&judgement.silent);
        judgement
    }

    fn look(&mut self, state: &State, at: Span) -> Judgement {
        let up = self.follow(state, at);
        let mut silent: Vec<(Span, MachineId)> = Vec::new();
        let mut overdue: Vec<(Span, MachineId)> = Vec::new();
        let (mut suspected, mut due) = (0, false);
        for (machine, heard) in &self.heard {
            let silence = passed(heard.at, at);
            suspected += usize::from(silence > self.settings.suspicion());
            if silence <= self.settings.patience() {
                continue;
            }
            silent.push((heard.at, *machine));
            let allowed = self.allowed(heard, at);
            if silence > allowed && !self.just_declared(*machine, at) {
                due = true;
                if self.held.is_none_or(|held| passed(held, at) > allowed) {
                    overdue.push((heard.at, *machine));
                }
            }
        }
        let named = longest(&silent, at);
        let gone = self.declared.keys().filter(|id| !self.heard.contains_key(id)).count();
        let silent = if due { suspected } else { silent.len() } + gone;
        let were_up = up + gone;
        if self.settings.is_most(silent, were_up) {
            self.held = Some(at);
            let (silent, up) = (count(silent), count(were_up));
            let alarms = vec![Alarm::MostMachinesSilent { silent, up }];
            return Judgement { down: Vec::new(), alarms, silent: named };
        }
        let mut judgement = self.declare(overdue, at);
        // Who is declared down now is no longer up and silent.
        let stays = |(machine, _): &(MachineId, Span)| !judgement.down.contains(machine);
        judgement.silent = named.into_iter().filter(stays).collect();
        judgement
    }

    /// Keeps the books to the machines that are up; returns their number. One that came up, or
    /// that this leader never heard of, is given the full time from here.
    fn follow(&mut self, state: &State, at: Span) -> usize {
        let machines = state.machines();
        let is_up =
            |id: &MachineId| machines.get(*id).is_some_and(|row| row.status == MachineStatus::Up);
        self.heard.retain(|id, _| is_up(id));
        let remember = self.settings.remember;
        self.declared
            .retain(|id, declared| machines.get(*id).is_some() && passed(*declared, at) < remember);
        let mut up = 0;
        for (id, _) in machines.iter().filter(|(_, row)| row.status == MachineStatus::Up) {
            up += 1;
            self.heard.entry(id).or_insert(Heard { at, shard: None });
        }
        up
    }

    /// How long this machine may be silent.
    fn allowed(&self, heard: &Heard, at: Span) -> Span {
        let patience = self.settings.patience();
        let reported = heard.shard.and_then(|shard| self.shards.get(&shard));
        match reported {
            Some(last) if passed(*last, at) <= self.settings.shard_silence => patience,
            _ => Span(patience.0.saturating_add(self.settings.extra.0)),
        }
    }

    fn just_declared(&self, machine: MachineId, at: Span) -> bool {
        let declared = self.declared.get(&machine);
        declared.is_some_and(|declared| passed(*declared, at) < self.settings.retry)
    }

    fn declare(&mut self, mut overdue: Vec<(Span, MachineId)>, at: Span) -> Judgement {
        overdue.sort_unstable();
        let allowed = self.tokens.take(overdue.len(), at);
        let waiting = overdue.len() - allowed;
        overdue.truncate(allowed);
        let down: Vec<MachineId> = overdue.into_iter().map(|(_, machine)| machine).collect();
        self.declared.extend(down.iter().map(|machine| (*machine, at)));
        let limited = Alarm::DownRateLimited { waiting: count(waiting) };
        let alarms = if waiting > 0 { vec![limited] } else { Vec::new() };
        Judgement { down, alarms, silent: Vec::new() }
    }
}

fn longest(silent: &[(Span, MachineId)], at: Span) -> Vec<(MachineId, Span)> {
    let mut silent = silent.to_vec();
    silent.sort_unstable();
    silent.iter().take(NAMED).map(|(heard, machine)| (*machine, passed(*heard, at))).collect()
}

/// A machine's tasks may start elsewhere once a token is spent. In units of a machine / 60,000, of
/// which a rate of one a minute makes one a millisecond: exact in whole numbers.
#[derive(Clone, Debug)]
struct Tokens {
    per_minute: u64,
    most: u64,
    units: u64,
    at: Span,
}

const MACHINE: u64 = 60_000;

impl Tokens {
    fn full(per_minute: u64, burst: u64, at: Span) -> Tokens {
        let most = burst.max(1).saturating_mul(MACHINE);
        Tokens { per_minute, most, units: most, at }
    }

    /// Takes up to `wanted` whole machines.
    fn take(&mut self, wanted: usize, at: Span) -> usize {
        let grown = passed(self.at, at).0.saturating_mul(self.per_minute);
        self.units = self.units.saturating_add(grown).min(self.most);
        self.at = Span(self.at.0.max(at.0));
        let taken = (self.units / MACHINE).min(wanted as u64);
        self.units -= taken * MACHINE;
        usize::try_from(taken).unwrap_or(wanted)
    }
}

fn passed(from: Span, to: Span) -> Span {
    Span(to.0.saturating_sub(from.0))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
