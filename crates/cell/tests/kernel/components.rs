//! The components of the state in these tests. Each has a file `kernel.rs` in its own folder, with
//! samples for the pinned bytes, random commands and the words of transcripts; this is their list.

use crate::draw::Draw;
use crate::wire::{Pins, every_variant};
use cellwright_cell::command::Command;
use cellwright_cell::components::{self, ComponentEvent};
use cellwright_cell::event::EventKind;
use cellwright_cell::name::Name;
use cellwright_cell::state::State;

#[path = "../../src/components/cron/kernel.rs"]
mod cron;
#[path = "../../src/components/ephemeral/kernel.rs"]
mod ephemeral;
#[path = "../../src/components/rollout/kernel.rs"]
mod rollout;
#[path = "../../src/components/scaling/kernel.rs"]
mod scaling;

macro_rules! each {
    ($($module:ident $variant:ident;)*) => {
        const COUNT: u64 = [$(stringify!($module)),*].len() as u64;

        /// One of every command of every component.
        pub fn commands() -> Vec<Command> {
            let mut all: Vec<Command> = Vec::new();
            $(all.extend($module::commands().into_iter().map(Command::from));)*
            all
        }

        /// One of every change of every component.
        pub fn events() -> Vec<EventKind> {
            let mut all: Vec<EventKind> = Vec::new();
            $(all.extend($module::events().into_iter().map(EventKind::from));)*
            all
        }

        pub fn pin(pins: &mut Pins) {
            let mut commands = Vec::new();
            let mut events = Vec::new();
            $(
                $module::pin(pins);
                let first = $module::commands().into_iter().take(1);
                commands.extend(first.map(components::Command::$variant));
                let first = $module::events().into_iter().take(1);
                events.extend(first.map(components::Event::$variant));
            )*
            every_variant(pins, "ComponentCommand", &commands);
            every_variant(pins, "ComponentEvent", &events);
        }

        /// The user that would send it.
        pub fn owner(command: &components::Command) -> Option<Name> {
            match command {
                $(components::Command::$variant(command) => $module::owner(command),)*
            }
        }

        /// Each component with the same frequency, however many there are.
        fn random_of(number: u64, state: &State, draw: &mut Draw) -> Option<Command> {
            let all: [fn(&State, &mut Draw) -> Command; COUNT as usize] = [$($module::random),*];
            Some(all.get(number as usize)?(state, draw))
        }

        /// Parses a command of a transcript.
        pub fn parse_command(verb: &str, rest: &[&str]) -> Result<Option<Command>, String> {
            $(
                if let Some(command) = $module::parse_command(verb, rest)? {
                    return Ok(Some(command));
                }
            )*
            Ok(None)
        }
    };
}
each! {
    ephemeral Ephemeral;
    cron Cron;
    rollout Rollout;
    scaling Scaling;
}

/// Sometimes a command of some component: each once in twenty-two times.
pub fn random(state: &State, draw: &mut Draw) -> Option<Command> {
    random_of(draw.below(22), state, draw)
}

/// `cron.fired`: the name under which an event is counted.
pub fn name(event: &dyn ComponentEvent) -> String {
    format!("{}.{}", event.kind(), event.label_and_detail().0)
}

/// Names of every change.
pub fn names() -> impl Iterator<Item = String> {
    events().into_iter().filter_map(|what| match what {
        EventKind::Component(event) => Some(name(event.as_component())),
        _ => None,
    })
}
