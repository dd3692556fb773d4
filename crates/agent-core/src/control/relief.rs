//! Asking the masters for relief, where holding others back has not helped for long.
//!
//! What is known of a shortage outlives the agent that saw it. An agent that is restarted every
//! half minute, by an upgrade that fails or by what makes its machine short, would otherwise never
//! ask, and one that is restarted once would tell the masters that all is well. Its first looks
//! tell nothing: rates need two of them, and those who were held back are set free. So what was
//! remembered stands until it is seen again, for a few seconds; meanwhile nothing is asked for.
//!
//! Rejected: pressure averages of the kernel, which go back far enough but do not exist on machines
//! with control groups v1, and do not tell production from others.

use super::Action;
use cellwright_cell::machine::ShortageReport;
use cellwright_cell::resource::Dimension;
use cellwright_cell::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How long a shortage that an earlier agent saw counts without being seen again.
pub const SEEN_AGAIN: Span = Span::seconds(10);

/// A request to the master, and what became of the shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Plea {
    since: Time,
    /// 0 once the machine was well: another shortage is another plea.
    asked: u32,
    /// When it was last asked, or last short after it had been well.
    at: Time,
}

/// What the next agent is to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// When the machine was last looked at.
    looked: Time,
    short_since: BTreeMap<Dimension, Time>,
    pleas: BTreeMap<Dimension, Plea>,
}

impl Remembered {
    /// That nothing is short, and nothing was lately.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.short_since.is_empty() && self.pleas.is_empty()
    }

    /// Whether it says anything that `older` does not, or is newer by so much.
    #[must_use]
    pub fn is_news(&self, older: &Remembered, by: Span) -> bool {
        let asked = |all: &Remembered| -> Vec<(Dimension, u32)> {
            all.pleas.iter().map(|(dimension, plea)| (*dimension, plea.asked)).collect()
        };
        let another = self.short_since != older.short_since || asked(self) != asked(older);
        another || (!self.is_empty() && self.looked.since(older.looked) >= by)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Relief {
    ask_after: Span,
    short_since: BTreeMap<Dimension, Time>,
    pleas: BTreeMap<Dimension, Plea>,
    /// Shortages that only an earlier agent saw, with how long it is believed.
    hearsay: BTreeMap<Dimension, Time>,
}

impl Relief {
    pub fn new(ask_after: Span) -> Relief {
        Relief {
            ask_after,
            short_since: BTreeMap::new(),
            pleas: BTreeMap::new(),
            hearsay: BTreeMap::new(),
        }
    }

    /// Goes on where another left off. Whatever happened while nobody looked for as long as a
    /// shortage must last to matter, it is not known to have lasted, and what was asked is past.
    pub fn after(past: Remembered, ask_after: Span, now: Time) -> Relief {
        let Remembered { looked, mut short_since, mut pleas } = past;
        if now.since(looked) > ask_after {
            short_since.clear();
            pleas.clear();
        }
        let until = now.plus(SEEN_AGAIN);
        let hearsay = short_since.keys().map(|dimension| (*dimension, until)).collect();
        Relief { ask_after, short_since, pleas, hearsay }
    }

    pub fn remembered(&self, now: Time) -> Remembered {
        let (short_since, pleas) = (self.short_since.clone(), self.pleas.clone());
        Remembered { looked: now, short_since, pleas }
    }

    /// What the masters are to know of the machine, in the order of dimensions.
    pub fn shortages(&self, now: Time) -> Vec<ShortageReport> {
        let told = |(dimension, plea): (&Dimension, &Plea)| ShortageReport {
            dimension: *dimension,
            lasted: now.since(plea.since),
            asked: plea.asked,
        };
        self.pleas.iter().map(told).collect()
    }

    /// Notes whether a dimension is short, for [`Relief::ask`].
    pub fn note(&mut self, dimension: Dimension, now: Time, short: bool) {
        if short {
            self.short_since.entry(dimension).or_insert(now);
            self.hearsay.remove(&dimension);
        } else if !self.hearsay.contains_key(&dimension) {
            self.short_since.remove(&dimension);
        }
    }

    /// Asks for what has been short for long, again and again while it is, and forgets what there
    /// has been enough of for as long.
    pub fn ask(&mut self, now: Time, actions: &mut Vec<Action>) {
        for (dimension, _) in self.hearsay.extract_if(.., |_, until| *until <= now) {
            self.short_since.remove(&dimension);
        }
        let long = |since: Time| now.since(since) >= self.ask_after;
        let seen = self.short_since.iter().filter(|(it, _)| !self.hearsay.contains_key(*it));
        for (dimension, since) in seen {
            let (dimension, since) = (*dimension, *since);
            let known = self.pleas.get_mut(&dimension);
            let asked = match known {
                Some(plea) if plea.asked > 0 && !long(plea.at) => continue,
                Some(plea) if plea.asked > 0 => plea.asked.saturating_add(1),
                _ if long(since) => 1,
                Some(plea) => {
                    plea.at = now;
                    continue;
                }
                None => continue,
            };
            self.pleas.insert(dimension, Plea { since, asked, at: now });
            actions.push(Action::AskForRelief { dimension, since, asked });
        }
        let short = &self.short_since;
        self.pleas.retain(|dimension, plea| {
            let well = !short.contains_key(dimension);
            if well && plea.asked > 0 {
                (plea.asked, plea.at) = (0, now);
            }
            !(well && long(plea.at))
        });
    }
}
