//! The components of the state: parts that own their rows and all code that handles them.
//!
//! A component is a folder here: rows, commands, events, `apply`, derived data, invariants and
//! text. It is connected to the state machine through the lists below and the traits of [`traits`];
//! everything that treats all components alike (dispatch, rendering, checks, history, audit) is
//! generated from the list, so nothing else names a component. Users, machines, jobs and tasks
//! change each other in one step, and so stay together in the core beside the components.
//!
//! Rejected: trait objects in the state. Readers of rows know their types, and the scheduler reads
//! them on its hot path.

pub mod cron;
pub mod ephemeral;
pub mod rollout;
pub mod scaling;
mod traits;

pub(crate) use traits::Component;
pub use traits::{ComponentCommand, ComponentEvent};

use crate::apply::Context;
use crate::bounds::BoundKind;
use crate::command::Verdict;
use crate::event::EventKind;
use crate::id::{MachineId, UserId};
use crate::invariant::{Check, Step};
use crate::state::State;
use crate::tables::RowRef;
use serde::{Deserialize, Serialize};

/// Passes every component to a macro: module, variant of [`Command`] and [`Event`]. Their order is
/// that of variants in the log, so new ones go last.
macro_rules! each_component {
    ($then:ident) => {
        $then! {
            ephemeral Ephemeral;
            cron Cron;
            rollout Rollout;
            scaling Scaling;
        }
    };
}

/// Passes the tables of components to a macro, after those given: see [`crate::tables`]. Their
/// order is that of a checkpoint, so new ones go last.
macro_rules! with_component_tables {
    ($then:ident [$($before:tt)*]) => {
        $then! {
            $($before)*
            resources Resources "resources" (
                crate::id::ResourceId, crate::components::ephemeral::ResourceRow
            ) at components.ephemeral.resources;
            capacities Capacities "capacities" (
                crate::components::ephemeral::CapacityId, crate::components::ephemeral::Capacity
            ) at components.ephemeral.capacities;
            crons Crons "crons" (
                crate::id::CronId, crate::components::cron::Cron
            ) at components.cron.crons;
            versions JobVersions "versions" (
                crate::components::rollout::JobVersionId, crate::components::rollout::JobVersion
            ) at components.rollout.versions;
            scalings Scalings "scalings" (
                crate::components::scaling::ScalingId, crate::components::scaling::Scaling
            ) at components.scaling.scalings;
        }
    };
}
pub(crate) use with_component_tables;

macro_rules! sum_types {
    ($($module:ident $variant:ident;)*) => {
        /// The components' parts of the state.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Components {
            $(pub(crate) $module: $module::Tables,)*
        }

        /// A command of a component.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum Command {
            $($variant($module::Command),)*
        }

        /// An event of a component.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum Event {
            $($variant($module::Event),)*
        }

        $(
            impl From<$module::Command> for crate::command::Command {
                fn from(command: $module::Command) -> Self {
                    crate::command::Command::Component(Command::$variant(command))
                }
            }

            impl From<$module::Event> for EventKind {
                fn from(event: $module::Event) -> Self {
                    EventKind::Component(Event::$variant(event))
                }
            }
        )*

        impl Command {
            /// The command as its component's trait object.
            #[must_use]
            pub fn as_component(&self) -> &dyn ComponentCommand {
                match self {
                    $(Command::$variant(command) => command,)*
                }
            }

            pub(crate) fn apply(&self, context: &mut Context<'_>) -> Verdict {
                match self {
                    $(Command::$variant(command) => $module::Tables::apply(context, command),)*
                }
            }
        }

        impl Event {
            /// The event as its component's trait object.
            #[must_use]
            pub fn as_component(&self) -> &dyn ComponentEvent {
                match self {
                    $(Event::$variant(event) => event,)*
                }
            }
        }
    };
}
each_component!(sum_types);

macro_rules! for_all {
    ($($module:ident $variant:ident;)*) => {
        /// Rebuilds the derived data of a state that has rows alone.
        pub(crate) fn derive(state: &mut State) {
            $($module::Tables::derive(state);)*
        }

        pub(crate) fn expire(context: &mut Context<'_>) {
            $($module::Tables::expire(context);)*
        }

        pub(crate) fn references(state: &State) -> Check {
            $($module::Tables::references(state)?;)*
            Ok(())
        }

        pub(crate) fn check_state(state: &State) -> Check {
            $($module::Tables::check_state(state)?;)*
            Ok(())
        }

        pub(crate) fn check_step(step: &Step<'_>) -> Check {
            $($module::Tables::check_step(step)?;)*
            Ok(())
        }

        impl Components {
            /// The first thing that keeps a user from being removed: `owns 2 ephemeral resources`.
            pub(crate) fn blocks_user_removal(&self, user: UserId) -> Option<(BoundKind, u64)> {
                None$(.or_else(|| self.$module.blocks_user_removal(user)))*
            }

            /// Bytes of specs that count towards the bound of a user.
            pub(crate) fn spec_bytes(&self) -> Vec<(UserId, u64)> {
                let mut all = Vec::new();
                $(all.extend(self.$module.spec_bytes());)*
                all
            }

            pub(crate) fn forget_machine(&mut self, machine: MachineId) {
                $(self.$module.forget_machine(machine);)*
            }

            /// The row whose events report every change of this one.
            pub(crate) fn reported_with(&self, row: RowRef) -> Option<RowRef> {
                None$(.or_else(|| self.$module.reported_with(row)))*
            }

            /// The row whose removal reports the removal of this one.
            pub(crate) fn removed_with(&self, row: RowRef) -> Option<RowRef> {
                None$(.or_else(|| self.$module.removed_with(row)))*
            }
        }
    };
}
each_component!(for_all);
