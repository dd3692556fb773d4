//! The interface of a component to the state machine, and of its commands and events to code that
//! treats those of all components alike: rendering, history, the feed, the audit log.

use crate::apply::Context;
use crate::apply::authorize::Rights;
use crate::bounds::BoundKind;
use crate::command::Verdict;
use crate::id::{MachineId, UserId};
use crate::invariant::{Check, Step};
use crate::state::State;
use crate::tables::RowRef;

/// A part of the state with its own rules. Implemented by the struct that holds its tables.
pub(crate) trait Component {
    type Command;

    /// Applies one command: decides by reading only, and then makes changes that cannot fail.
    fn apply(context: &mut Context<'_>, command: &Self::Command) -> Verdict;

    /// Rebuilds what its rows add up to, names included. The users' loads exist by then.
    fn derive(state: &mut State);

    /// Checks that ids and names lead to rows. Called on unvalidated rows, before anything is
    /// derived.
    fn references(state: &State) -> Check;

    /// Checks every invariant of its rows, and that derived data equals what they add up to. With
    /// code of its own: a check that calls the code it guards agrees with its mistakes.
    fn check_state(state: &State) -> Check;

    /// Checks every invariant of a step.
    fn check_step(_: &Step<'_>) -> Check {
        Ok(())
    }

    /// Expires what ends by the passing of time.
    fn expire(_: &mut Context<'_>) {}

    /// What of this component keeps a user from being removed, and how many.
    fn blocks_user_removal(&self, _: UserId) -> Option<(BoundKind, u64)> {
        None
    }

    /// Bytes of specs that count towards the bound of their owners.
    fn spec_bytes(&self) -> Vec<(UserId, u64)> {
        Vec::new()
    }

    /// A machine was removed; removes its rows of this component.
    fn forget_machine(&mut self, _: MachineId) {}

    /// The row whose events report every change of this one too.
    fn reported_with(&self, _: RowRef) -> Option<RowRef> {
        None
    }

    /// The row whose removal removes this one too, and reports it.
    fn removed_with(&self, _: RowRef) -> Option<RowRef> {
        None
    }
}

/// Description and properties of a command.
pub trait ComponentCommand {
    /// The command's name in the audit log: `set_cron`.
    fn name(&self) -> &'static str;

    /// The actors that may send it.
    fn rights(&self) -> Rights<'_>;

    /// The object of the command, without secrets.
    fn object(&self) -> String;

    /// Whether the command removes something, so that the state shrinks in the end.
    fn frees_space(&self) -> bool;
}

/// Description and properties of an event.
pub trait ComponentEvent {
    /// The kind of object, as history names it: `cron`.
    fn kind(&self) -> &'static str;

    /// The row that the event is about.
    fn row(&self) -> RowRef;

    /// Another row that the event names.
    fn related_row(&self) -> Option<RowRef> {
        None
    }

    /// Whether the event reports the row's removal.
    fn removes_row(&self) -> bool;

    /// A word for what happened, and its details: `updated`, `version 2`.
    fn label_and_detail(&self) -> (&'static str, Option<String>);

    /// What kind of object it is about, where people cannot tell by its name.
    fn object_kind(&self) -> Option<&'static str> {
        None
    }

    /// The name of the object, or its number where it has no row any more.
    fn object_name(&self, state: &State) -> String;

    /// What happened to the object, as text with names for people.
    fn describe(&self, state: &State) -> String;

    /// The rows whose change the event reports.
    fn changed_rows(&self, _before: &State, _after: &State) -> Vec<RowRef> {
        vec![self.row()]
    }

    /// Whether an unplaceable task may become placeable after it. When in doubt, yes.
    fn may_free_room(&self) -> bool {
        false
    }
}
