//! Controllers: what the cell does by itself. Each is a pure step from the state and the time to
//! commands, one file each; what must survive them is in the replicated state, what makes them
//! quick (where they were looking, what was refused) is [`Memory`], which dies with a leadership.
//!
//! Every command carries what it is conditional on (an attempt, a version, a slot), so repeating
//! one is harmless, and `apply` enforces budgets, so a controller that is wrong is refused. It
//! still counts budgets itself: commands that are sure to be refused only fill the log. What was
//! refused or changed nothing is asked again later and later, see [`backoff`].
//!
//! A step looks at a bounded number of rows and gives a bounded number of commands, whatever the
//! size of the cell; what it found worth watching it looks at every time, see [`sweep`].
//!
//! Reservations are the exception: their estimates follow usage samples, which reach a link shard
//! and not the leader, so [`reclaim`] runs there.
//!
//! Deferred jobs have no controller: the command that ends a job releases those that wait for it.
//!
//! Rejected: controllers that follow the events. They would be quicker by a part of a second and
//! wrong for ever after one event missed.

mod backoff;
mod budget;
mod cron;
mod drain;
mod expire;
mod overcommit;
mod purge;
pub mod reclaim;
mod relief;
mod sweep;
#[cfg(test)]
pub(crate) mod testing;
mod update;

use backoff::Backoff;
use budget::Budgets;
use cellwright_cell::command::{Command, Verdict};
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rows of one table that a controller looks at in one step.
    pub rows: usize,
    /// Commands that a controller gives in one step.
    pub commands: usize,
    /// Tasks of a job without a disruption budget that an update takes down at once, in thousandths
    /// of the job; at least one task.
    pub wave_permille: u32,
    /// Tasks on their way out of draining machines at once, over all machines.
    pub draining_at_once: usize,
    /// How long jobs stay on record after their end.
    pub keep_jobs: Span,
    /// Tasks that one command of purging forgets, about.
    pub purged_tasks: usize,
    /// Expiry is asked for this often even when nothing seems due: windows of silent clients are
    /// not visible from here.
    pub expire_every: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rows: 4096,
            commands: 256,
            wave_permille: 100,
            draining_at_once: 100,
            keep_jobs: Span::seconds(7 * 24 * 3600),
            purged_tasks: 10_000,
            expire_every: Span::seconds(3600),
        }
    }
}

/// What controllers remember from step to step. A new leader starts with none.
#[derive(Debug, Default)]
pub struct Memory {
    backoff: Backoff,
    cron: cron::Memory,
    drain: drain::Memory,
    expire: expire::Memory,
    overcommit: overcommit::Memory,
    purge: purge::Memory,
    relief: relief::Memory,
    update: update::Memory,
}

impl Memory {
    /// Verdicts on the commands of the last step, in their order; none when they are not known.
    pub fn answered(&mut self, verdicts: &[Verdict]) {
        self.backoff.answered(verdicts);
    }
}

/// What a controller sees.
struct Look<'a> {
    state: &'a State,
    now: Time,
    settings: &'a Settings,
}

/// What controllers have decided so far in this step.
struct Draft<'a> {
    backoff: &'a Backoff,
    budgets: Budgets,
    commands: Vec<Command>,
    /// Where the present controller has to stop.
    most: usize,
}

impl Draft<'_> {
    fn is_full(&self) -> bool {
        self.commands.len() >= self.most
    }

    /// How many more commands the present controller may give.
    fn room(&self) -> usize {
        self.most.saturating_sub(self.commands.len())
    }

    /// Whether there is room for the command, and it was not refused a moment ago.
    fn takes(&self, command: &Command) -> bool {
        !self.is_full() && self.backoff.allows(command)
    }

    fn push(&mut self, command: Command) {
        self.commands.push(command);
    }
}

/// One step of all controllers. `now` is the date the commands will bear, or earlier.
pub fn step(state: &State, now: Time, settings: &Settings, memory: &mut Memory) -> Vec<Command> {
    let Memory { backoff, cron, drain, expire, overcommit, purge, relief, update } = memory;
    backoff.next_round();
    let look = Look { state, now: now.max(state.now()), settings };
    let mut draft = Draft { backoff, budgets: Budgets::default(), commands: Vec::new(), most: 0 };
    // What must be done comes before what is chosen, so that it is what spends budgets.
    let mut run = |controller: &mut dyn FnMut(&mut Draft<'_>)| {
        draft.most = draft.commands.len() + settings.commands;
        controller(&mut draft);
    };
    run(&mut |draft| overcommit::step(&look, overcommit, draft));
    run(&mut |draft| relief::step(&look, relief, draft));
    run(&mut |draft| cron::step(&look, cron, draft));
    run(&mut |draft| drain::step(&look, drain, draft));
    run(&mut |draft| update::step(&look, update, draft));
    run(&mut |draft| expire::step(&look, expire, draft));
    run(&mut |draft| purge::step(&look, purge, draft));
    let commands = draft.commands;
    backoff.asked(&commands);
    commands
}

#[cfg(test)]
mod tests;
