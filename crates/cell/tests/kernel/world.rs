//! A cell under test: every entry is applied with all invariants, its events and answers stored.

use crate::components;
use cellwright_cell::command::{Actor, Command, Done, Entry, Request, RequestId, Verdict};
use cellwright_cell::event::{Event, EventKind};
use cellwright_cell::invariant::{check_state, check_step};
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

#[derive(Default)]
pub struct World {
    pub state: State,
    pub entries: Vec<Entry>,
    /// Codes of the reasons that events have had so far.
    pub reasons: BTreeSet<&'static str>,
    /// Changes and rejections that happened, by name, and how often.
    pub seen: BTreeMap<String, u64>,
}

/// The result of one entry.
pub struct Outcome {
    pub verdicts: Vec<Verdict>,
    pub events: Vec<Event>,
}

pub fn entry(now: Time, by: Actor, id: Option<RequestId>, command: Command) -> Entry {
    Entry { now, requests: vec![Request { by, id, command }] }
}

impl World {
    /// # Errors
    /// The first invariant the entry broke, and the entry.
    pub fn apply(&mut self, entry: Entry) -> Result<Outcome, String> {
        let before = self.state.clone();
        let mut events = Vec::new();
        let verdicts = self.state.apply(&entry, &mut events);
        let checked = check_state(&self.state)
            .and_then(|()| check_step(&before, &entry, &verdicts, &self.state, &events));
        if let Err(violation) = checked {
            let number = self.entries.len();
            return Err(format!(
                "{violation}\nafter entry {number}: {entry:?}\nanswers {verdicts:?}\n\
                 events {events:?}"
            ));
        }
        self.reasons.extend(events.iter().map(|event| event.reason.code()));
        self.tally(&verdicts, &events);
        self.entries.push(entry);
        Ok(Outcome { verdicts, events })
    }

    fn tally(&mut self, verdicts: &[Verdict], events: &[Event]) {
        let seen = std::cell::RefCell::new(&mut self.seen);
        let count_name = |name: String| *seen.borrow_mut().entry(name).or_default() += 1;
        let count =
            |kind: &str, value: &dyn Debug| count_name(format!("{kind}.{}", variant(value)));
        for event in events {
            match &event.kind {
                EventKind::Component(event) => count_name(components::name(event.as_component())),
                EventKind::Task { change, .. } => count("TaskChange", change),
                EventKind::Job { change, .. } => count("JobChange", change),
                EventKind::Machine { change, .. } => count("MachineChange", change),
                EventKind::User { change, .. } => count("UserChange", change),
                EventKind::Token { change, .. } => count("TokenChange", change),
                EventKind::Blob { change, .. } => count("BlobChange", change),
                EventKind::JobRejected { .. }
                | EventKind::LevelRaised { .. }
                | EventKind::BoundsChanged => {}
            }
        }
        for verdict in verdicts {
            match verdict {
                Err(rejection) => count("Rejection", rejection),
                Ok(Done::Partly(refused)) => {
                    refused.iter().for_each(|(_, rejection)| count("Rejection", rejection));
                }
                Ok(_) => {}
            }
        }
    }
}

/// The name of an enum's variant.
pub fn variant(value: &dyn Debug) -> String {
    let text = format!("{value:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
