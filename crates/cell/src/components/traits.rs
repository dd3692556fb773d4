//! What a component gives to the state machine, and what its commands and events say of themselves
//! to whoever treats those of all components alike: rendering, history, the feed, the audit.

use crate::apply::Context;
use crate::apply::authorize::Rights;
use crate::command::Verdict;
use crate::id::{MachineId, UserId};
use crate::invariant::{Check, Step};
use crate::state::State;
use crate::tables::RowRef;

/// A part of the state with rules of its own. Implemented by the struct that holds its tables.
pub(crate) trait Component {
    type Command;

    /// Applies one command: decides, reading only, and then writes what can no longer fail.
    fn apply(context: &mut Context<'_>, command: &Self::Command) -> Verdict;

    /// Rebuilds what its rows add up to, names included. Users have their loads by then.
    fn derive(state: &mut State);

    /// Ids and names lead to rows. Asked of rows nobody has vouched for, before anything is
    /// derived.
    fn references(state: &State) -> Check;

    /// Every invariant of its rows, and that what is derived equals what they add up to. With code
    /// of its own: a check that calls what it guards agrees with its mistakes.
    fn check_state(state: &State) -> Check;

    /// Every invariant of a step.
    fn check_step(_: &Step<'_>) -> Check {
        Ok(())
    }

    /// Lets end what ends by the passing of time.
    fn expire(_: &mut Context<'_>) {}

    /// What of it keeps a user in the cell: `owns 2 ephemeral resources`.
    fn blocks_user_removal(&self, _: UserId) -> Option<String> {
        None
    }

    /// Bytes of specs that count towards the bound of their owners.
    fn spec_bytes(&self) -> Vec<(UserId, u64)> {
        Vec::new()
    }

    /// A machine is gone, and what it had of this component with it.
    fn forget_machine(&mut self, _: MachineId) {}

    /// The row whose end takes this one along, and tells of it.
    fn removed_with(&self, _: RowRef) -> Option<RowRef> {
        None
    }
}

/// What a command says of itself.
pub trait ComponentCommand {
    /// What the audit calls it: `set_cron`.
    fn name(&self) -> &'static str;

    /// Who may send it.
    fn rights(&self) -> Rights<'_>;

    /// What it is about, without secrets.
    fn object(&self) -> String;

    /// Whether it takes something away, so that there is more room in the end.
    fn frees_space(&self) -> bool;
}

/// What an event says of itself.
pub trait ComponentEvent {
    /// What it is about, as history calls the kind: `cron`.
    fn kind(&self) -> &'static str;

    /// The row that it is about.
    fn row(&self) -> RowRef;

    /// Another row that it names.
    fn related_row(&self) -> Option<RowRef> {
        None
    }

    /// Whether the row is gone after it.
    fn removes_row(&self) -> bool;

    /// What happened in a word, and the numbers it carries: `updated`, `version 2`.
    fn label_and_detail(&self) -> (&'static str, Option<String>);

    /// What happened, for people, with names.
    fn describe(&self, state: &State) -> String;

    /// The rows whose change it tells.
    fn changed_rows(&self, _before: &State, _after: &State) -> Vec<RowRef> {
        vec![self.row()]
    }

    /// Whether a task that found no place may find one after it. When in doubt, yes.
    fn may_free_room(&self) -> bool {
        false
    }
}
