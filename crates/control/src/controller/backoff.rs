//! Not asking again at once for what was just refused. A command carries all its conditions, so the
//! same command meeting the same obstacle is the rule, and one that names a newer attempt or slot
//! is another command: commands themselves are the keys, by fingerprint.
//!
//! Waits are counted in rounds of the controllers, not in time: the date of the log may stand still
//! or jump with somebody's clock, and a controller must neither freeze nor spin with it.

use cellwright_cell::command::{Command, Done, Verdict};
use cellwright_cell::replay::fingerprint;
use std::collections::BTreeMap;

/// Rounds until the first repetition; each further refusal doubles the wait.
const FIRST: u64 = 4;
const MOST: u64 = 256;

#[derive(Clone, Copy, Debug)]
struct Wait {
    until: u64,
    rounds: u64,
}

#[derive(Debug, Default)]
pub struct Backoff {
    round: u64,
    /// Fingerprints of the commands that are under way, in their order.
    asked: Vec<u64>,
    waits: BTreeMap<u64, Wait>,
}

impl Backoff {
    pub fn next_round(&mut self) {
        self.round += 1;
        if self.round.is_multiple_of(MOST) {
            // What nobody asked for any more, although it could have, is settled.
            let round = self.round;
            self.waits.retain(|_, wait| wait.until + MOST > round);
        }
    }

    pub fn allows(&self, command: &Command) -> bool {
        let wait = self.waits.get(&fingerprint(command));
        wait.is_none_or(|wait| wait.until <= self.round)
    }

    pub fn asked(&mut self, commands: &[Command]) {
        self.asked = commands.iter().map(fingerprint).collect();
    }

    pub fn answered(&mut self, verdicts: &[Verdict]) {
        for (asked, verdict) in std::mem::take(&mut self.asked).into_iter().zip(verdicts) {
            match verdict {
                Err(_) | Ok(Done::Unchanged) => self.in_vain(asked),
                Ok(_) => drop(self.waits.remove(&asked)),
            }
        }
    }

    fn in_vain(&mut self, asked: u64) {
        let before = self.waits.get(&asked).map(|wait| wait.rounds * 2);
        let rounds = before.unwrap_or(FIRST).min(MOST);
        self.waits.insert(asked, Wait { until: self.round + rounds, rounds });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::reason::Refusal;

    fn asked_rounds(verdict: &Verdict, rounds: u64) -> Vec<u64> {
        let mut backoff = Backoff::default();
        let mut asked = Vec::new();
        for round in 1..=rounds {
            backoff.next_round();
            if backoff.allows(&Command::Expire) {
                asked.push(round);
                backoff.asked(&[Command::Expire]);
                backoff.answered(std::slice::from_ref(verdict));
            }
        }
        asked
    }

    #[test]
    fn what_is_refused_or_changes_nothing_is_asked_ever_more_rarely() {
        let refused = Err(Refusal::Full("jobs".into()));
        for verdict in [refused, Ok(Done::Unchanged)] {
            assert_eq!(asked_rounds(&verdict, 100), [1, 5, 13, 29, 61]);
            let all = asked_rounds(&verdict, 10_000);
            assert!(all.windows(2).all(|pair| pair[1] - pair[0] <= MOST), "{all:?}");
        }
        assert_eq!(asked_rounds(&Ok(Done::Applied), 3), [1, 2, 3]);
    }

    #[test]
    fn an_answer_that_never_came_holds_nothing_back() {
        let mut backoff = Backoff::default();
        backoff.asked(&[Command::Expire]);
        backoff.answered(&[]);
        assert!(backoff.allows(&Command::Expire));
    }
}
