//! Requests for evictions to the masters, where throttling and kills have not helped for long.
//!
//! The history of a shortage outlives the agent that observed it. An agent that is restarted every
//! half minute, by a failing upgrade or by the very shortage of its machine, would otherwise never
//! make a request, and one that is restarted once would report that all is well. Its first passes
//! report nothing: rates need two samples, and throttled tasks are released. So the stored history
//! counts until it is confirmed, for a few seconds; meanwhile nothing is requested.
//!
//! Rejected: the kernel's pressure averages (PSI), which go back far enough but do not exist on
//! machines with cgroups v1, and do not tell production from others.

use super::Action;
use cellwright_cell::machine::ResourcePressureReport;
use cellwright_cell::resource::Dimension;
use cellwright_cell::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How long a shortage from an earlier agent's history counts without being confirmed.
pub const CONFIRM_WITHIN: Span = Span::seconds(10);

/// A request to the masters, and the state of the shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EvictionRequest {
    since: Time,
    /// 0 once the machine was well: another shortage is another request.
    requested: u32,
    /// When it was last requested, or last short after it had been well.
    at: Time,
}

/// What the next agent has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureHistory {
    /// The time of the last pass.
    looked: Time,
    short_since: BTreeMap<Dimension, Time>,
    pleas: BTreeMap<Dimension, EvictionRequest>,
}

impl PressureHistory {
    /// That nothing is short, and nothing was lately.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.short_since.is_empty() && self.pleas.is_empty()
    }

    /// Whether it has anything that `older` has not, or is newer by `by`.
    #[must_use]
    pub fn is_news(&self, older: &PressureHistory, by: Span) -> bool {
        let request_counts = |all: &PressureHistory| -> Vec<(Dimension, u32)> {
            all.pleas.iter().map(|(dimension, request)| (*dimension, request.requested)).collect()
        };
        let has_changed_pressure =
            self.short_since != older.short_since || request_counts(self) != request_counts(older);
        has_changed_pressure || (!self.is_empty() && self.looked.since(older.looked) >= by)
    }
}

#[derive(Clone, Debug)]
pub(super) struct PressureEviction {
    request_delay: Span,
    short_since: BTreeMap<Dimension, Time>,
    requests: BTreeMap<Dimension, EvictionRequest>,
    /// Shortages only from an earlier agent's history, and until when they count.
    unconfirmed: BTreeMap<Dimension, Time>,
}

impl PressureEviction {
    pub fn new(request_delay: Span) -> PressureEviction {
        PressureEviction {
            request_delay,
            short_since: BTreeMap::new(),
            requests: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
        }
    }

    /// Continues from the history of an earlier agent. After a gap without passes as long as a
    /// shortage must last to matter, it is not known to have lasted, and earlier requests are
    /// obsolete.
    pub fn resume(history: PressureHistory, request_delay: Span, now: Time) -> PressureEviction {
        let PressureHistory { looked, mut short_since, pleas: mut requests } = history;
        if now.since(looked) > request_delay {
            short_since.clear();
            requests.clear();
        }
        let until = now.plus(CONFIRM_WITHIN);
        let unconfirmed = short_since.keys().map(|dimension| (*dimension, until)).collect();
        PressureEviction { request_delay, short_since, requests, unconfirmed }
    }

    pub fn history(&self, now: Time) -> PressureHistory {
        let (short_since, pleas) = (self.short_since.clone(), self.requests.clone());
        PressureHistory { looked: now, short_since, pleas }
    }

    /// The shortages to report to the masters, in the order of dimensions.
    pub fn resource_pressure(&self, now: Time) -> Vec<ResourcePressureReport> {
        let report =
            |(dimension, request): (&Dimension, &EvictionRequest)| ResourcePressureReport {
                dimension: *dimension,
                lasted: now.since(request.since),
                requested: request.requested,
            };
        self.requests.iter().map(report).collect()
    }

    /// Records whether a dimension is short, for [`PressureEviction::request_evictions`].
    pub fn observe(&mut self, dimension: Dimension, now: Time, short: bool) {
        if short {
            self.short_since.entry(dimension).or_insert(now);
            self.unconfirmed.remove(&dimension);
        } else if !self.unconfirmed.contains_key(&dimension) {
            self.short_since.remove(&dimension);
        }
    }

    /// Requests evictions for what has been short for long, again and again while it is, and
    /// forgets what has not been short for as long.
    pub fn request_evictions(&mut self, now: Time, actions: &mut Vec<Action>) {
        for (dimension, _) in self.unconfirmed.extract_if(.., |_, until| *until <= now) {
            self.short_since.remove(&dimension);
        }
        let is_overdue = |since: Time| now.since(since) >= self.request_delay;
        let seen = self.short_since.iter().filter(|(it, _)| !self.unconfirmed.contains_key(*it));
        for (dimension, since) in seen {
            let (dimension, since) = (*dimension, *since);
            let request = self.requests.get_mut(&dimension);
            let requested = match request {
                Some(request) if request.requested > 0 && !is_overdue(request.at) => continue,
                Some(request) if request.requested > 0 => request.requested.saturating_add(1),
                _ if is_overdue(since) => 1,
                Some(request) => {
                    request.at = now;
                    continue;
                }
                None => continue,
            };
            self.requests.insert(dimension, EvictionRequest { since, requested, at: now });
            actions.push(Action::RequestEviction { dimension, since, requested });
        }
        let short = &self.short_since;
        self.requests.retain(|dimension, request| {
            let well = !short.contains_key(dimension);
            if well && request.requested > 0 {
                (request.requested, request.at) = (0, now);
            }
            !(well && is_overdue(request.at))
        });
    }
}
