//! Controllers: what the cell does by itself. Each is a pure step from the state and the time to
//! commands, one file each, which implements [`Controller`] and has its line in
//! [`all_controllers`]. What must outlive a leadership is in the replicated state; what makes them
//! quick (the cursors of their scans) is in their own fields, which end with a leadership, and so
//! does the memory of rejections.
//!
//! Every command carries what it is conditional on (an attempt, a version, a slot), so repeating
//! one is harmless, and `apply` enforces budgets, so the commands of a faulty controller are
//! rejected. Controllers still count budgets themselves: commands that are sure to be rejected only
//! fill the log. Commands that were rejected or changed nothing are repeated later and later, see
//! [`backoff`].
//!
//! A step reads a bounded number of rows and issues a bounded number of commands, whatever the size
//! of the cell; rows that it watches are read in every step, see [`sweep`].
//!
//! Reservations are the exception: their estimates follow usage samples, which reach a link shard
//! and not the leader, so [`reclaim`] runs there.
//!
//! Deferred jobs have no controller: the command that ends a job releases those that wait for it.
//!
//! Rejected: controllers that follow the events. They would be quicker by a part of a second and
//! wrong for ever after one missed event.

mod backoff;
mod budget;
mod bugs;
mod cron;
mod daemon;
mod drain;
mod expire;
mod gang;
mod overcommit;
mod pressure_eviction;
mod purge;
pub mod reclaim;
mod restart;
pub mod scaling;
mod sweep;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod update;

use backoff::Backoff;
use budget::Budgets;
pub use bugs::ControllerBugs;
use cellwright_cell::command::{Actor, Command, ControllerName, Request, Verdict};
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Rows of one table that a controller reads in one step.
    pub rows_per_step: usize,
    /// Commands that a controller issues in one step.
    pub commands_per_step: usize,
    /// Tasks of a job without a disruption budget that an update or a restart takes down at once,
    /// in thousandths of the job; at least one task.
    pub wave_permille: u32,
    /// Tasks being stopped on draining machines at once, over all machines.
    pub max_draining: usize,
    /// How long jobs stay on record after their end.
    pub retain_dead_jobs: Span,
    /// How much longer they wait for an archive that cannot be written. `None`: there is no
    /// archive.
    pub archive_wait: Option<Span>,
    /// About how many tasks one purge command removes.
    pub tasks_per_purge: usize,
    /// Expiry is requested this often even when nothing seems due: replay windows of silent clients
    /// are not visible from here.
    pub expire_every: Span,
    /// For the simulator.
    pub bugs: ControllerBugs,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        ControllerConfig {
            rows_per_step: 4096,
            commands_per_step: 256,
            wave_permille: 100,
            max_draining: 100,
            retain_dead_jobs: Span::seconds(7 * 24 * 3600),
            archive_wait: None,
            tasks_per_purge: 10_000,
            expire_every: Span::seconds(3600),
            bugs: ControllerBugs::default(),
        }
    }
}

impl ControllerConfig {
    /// How many tasks of a job of `count` without a disruption budget may be down at once because
    /// of its owner's wishes.
    fn wave(&self, count: u32) -> u32 {
        let part = u64::from(count) * u64::from(self.wave_permille) / 1000;
        u32::try_from(part).unwrap_or(u32::MAX).max(1)
    }
}

/// One thing that the cell does by itself. Fields of the implementing type are kept from step to
/// step; a new leader starts with none, so they may only make it quicker.
trait Controller: fmt::Debug + Send {
    /// The name under which it acts, also on the metrics page. Its permissions stand beside that
    /// name in `cell`'s `apply/authorize.rs`.
    fn name(&self) -> ControllerName;

    /// Adds to `draft` the commands that the state requires now.
    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>);
}

/// Every controller, in the order of their turns: mandatory disruptions come before voluntary ones,
/// so that they are the ones that spend disruption budgets.
fn all_controllers() -> Vec<Box<dyn Controller>> {
    vec![
        Box::<overcommit::Overcommit>::default(),
        Box::<pressure_eviction::PressureEviction>::default(),
        Box::<gang::Gangs>::default(),
        Box::<cron::Cron>::default(),
        Box::<daemon::Daemon>::default(),
        Box::<scaling::Scaling>::default(),
        Box::<drain::Drain>::default(),
        Box::<update::RollingUpdate>::default(),
        Box::<restart::RollingRestart>::default(),
        Box::<expire::Expire>::default(),
        Box::<purge::Purge>::default(),
    ]
}

/// The controllers of one leadership.
#[derive(Debug)]
pub struct Controllers {
    backoff: Backoff,
    list: Vec<Box<dyn Controller>>,
    /// Commands issued so far, by the controller's name.
    commands_issued: BTreeMap<&'static str, u64>,
}

impl Default for Controllers {
    fn default() -> Self {
        let list = all_controllers();
        let issued = list.iter().map(|controller| (controller.name().as_str(), 0)).collect();
        Controllers { backoff: Backoff::default(), list, commands_issued: issued }
    }
}

/// The input of a controller's step.
struct ControllerView<'a> {
    state: &'a State,
    now: Time,
    /// Every job that ended before this time is in the archive, where there is one.
    archived_before: Time,
    settings: &'a ControllerConfig,
}

/// What controllers have decided so far in this step.
struct CommandDraft<'a> {
    backoff: &'a Backoff,
    budgets: Budgets,
    commands: Vec<Command>,
    /// The number of commands at which the present controller has to stop.
    max: usize,
}

impl CommandDraft<'_> {
    fn is_full(&self) -> bool {
        self.commands.len() >= self.max
    }

    /// How many more commands the present controller may issue.
    fn room(&self) -> usize {
        self.max.saturating_sub(self.commands.len())
    }

    /// Whether there is room for the command, and it was not rejected a moment ago.
    fn accepts(&self, command: &Command) -> bool {
        !self.is_full() && self.backoff.allows(command)
    }

    fn push(&mut self, command: Command) {
        self.commands.push(command);
    }
}

impl Controllers {
    /// One step of all controllers. `now` is the log time of the commands, or earlier. What ended
    /// before `archived_before` is in the archive, where there is one.
    pub fn step(
        &mut self,
        state: &State,
        now: Time,
        archived_before: Time,
        settings: &ControllerConfig,
    ) -> Vec<Request> {
        self.backoff.next_round();
        let now = now.max(state.now());
        let view = ControllerView { state, now, archived_before, settings };
        let backoff = &self.backoff;
        let mut draft =
            CommandDraft { backoff, budgets: Budgets::default(), commands: Vec::new(), max: 0 };
        let mut senders = Vec::new();
        for controller in &mut self.list {
            let before = draft.commands.len();
            draft.max = before + settings.commands_per_step;
            controller.step(&view, &mut draft);
            let more = draft.commands.len() - before;
            *self.commands_issued.entry(controller.name().as_str()).or_default() += more as u64;
            senders.extend(std::iter::repeat_n(controller.name(), more));
        }
        let commands = draft.commands;
        self.backoff.in_flight(&commands);
        let sent = senders.into_iter().zip(commands);
        let request = |(name, command)| Request { by: Actor::Controller(name), id: None, command };
        sent.map(request).collect()
    }

    /// How many commands each controller has issued, by its name.
    #[must_use]
    pub fn commands_issued(&self) -> &BTreeMap<&'static str, u64> {
        &self.commands_issued
    }

    /// Verdicts on the commands of the last step, in their order; none when they are not known.
    pub fn on_verdicts(&mut self, verdicts: &[Verdict]) {
        self.backoff.on_verdicts(verdicts);
    }
}

#[cfg(test)]
mod tests;
