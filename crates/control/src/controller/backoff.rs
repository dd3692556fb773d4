//! Backoff of controllers: commands that were just rejected are not repeated at once. A command
//! carries all its conditions, so the same command meeting the same obstacle is the rule, and one
//! that names a newer attempt or slot is another command: commands themselves are the keys, by
//! fingerprint.
//!
//! Backoff is counted in rounds of the controllers, not in time: log time may stand still or jump
//! with a clock, and a controller must neither freeze nor spin with it.

use cellwright_cell::command::{Command, Done, Verdict};
use cellwright_cell::replay_windows::fingerprint;
use std::collections::BTreeMap;

/// Rounds until the first repetition; each further rejection doubles the wait.
const INITIAL_ROUNDS: u64 = 4;
const MAX_ROUNDS: u64 = 256;

#[derive(Clone, Copy, Debug)]
struct Wait {
    until: u64,
    rounds: u64,
}

#[derive(Debug, Default)]
pub struct Backoff {
    round: u64,
    /// Fingerprints of the commands in flight, in their order.
    in_flight: Vec<u64>,
    waits: BTreeMap<u64, Wait>,
}

impl Backoff {
    pub fn next_round(&mut self) {
        self.round += 1;
        if self.round.is_multiple_of(MAX_ROUNDS) {
            // A command that could have been repeated and was not is no longer needed.
            let round = self.round;
            self.waits.retain(|_, wait| wait.until + MAX_ROUNDS > round);
        }
    }

    pub fn allows(&self, command: &Command) -> bool {
        let wait = self.waits.get(&fingerprint(command));
        wait.is_none_or(|wait| wait.until <= self.round)
    }

    pub fn in_flight(&mut self, commands: &[Command]) {
        self.in_flight = commands.iter().map(fingerprint).collect();
    }

    pub fn on_verdicts(&mut self, verdicts: &[Verdict]) {
        for (command, verdict) in std::mem::take(&mut self.in_flight).into_iter().zip(verdicts) {
            match verdict {
                Err(_) | Ok(Done::Unchanged) => self.back_off(command),
                Ok(_) => drop(self.waits.remove(&command)),
            }
        }
    }

    fn back_off(&mut self, fingerprint: u64) {
        let before = self.waits.get(&fingerprint).map(|wait| wait.rounds * 2);
        let rounds = before.unwrap_or(INITIAL_ROUNDS).min(MAX_ROUNDS);
        self.waits.insert(fingerprint, Wait { until: self.round + rounds, rounds });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::reason::{Rejection, Storage};

    fn asked_rounds(verdict: &Verdict, rounds: u64) -> Vec<u64> {
        let mut backoff = Backoff::default();
        let mut rounds_sent = Vec::new();
        for round in 1..=rounds {
            backoff.next_round();
            if backoff.allows(&Command::Expire) {
                rounds_sent.push(round);
                backoff.in_flight(&[Command::Expire]);
                backoff.on_verdicts(std::slice::from_ref(verdict));
            }
        }
        rounds_sent
    }

    #[test]
    fn what_is_refused_or_changes_nothing_is_asked_ever_more_rarely() {
        let refused = Err(Rejection::Full(Storage::Jobs));
        for verdict in [refused, Ok(Done::Unchanged)] {
            assert_eq!(asked_rounds(&verdict, 100), [1, 5, 13, 29, 61]);
            let all = asked_rounds(&verdict, 10_000);
            assert!(all.windows(2).all(|pair| pair[1] - pair[0] <= MAX_ROUNDS), "{all:?}");
        }
        assert_eq!(asked_rounds(&Ok(Done::Applied), 3), [1, 2, 3]);
    }

    #[test]
    fn an_answer_that_never_came_holds_nothing_back() {
        let mut backoff = Backoff::default();
        backoff.in_flight(&[Command::Expire]);
        backoff.on_verdicts(&[]);
        assert!(backoff.allows(&Command::Expire));
    }
}
