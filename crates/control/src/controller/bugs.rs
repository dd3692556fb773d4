//! Bugs that the simulator plants in controllers, to check that it notices a controller that does
//! not do its work, or asks for what it may not.

/// Known bugs that the simulator injects to check that it catches them. All are off in every other
/// run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerBugs {
    /// Broken gangs never give back what they hold.
    pub keeps_broken_gangs: bool,
    /// Gangs are told to give back as soon as they are broken.
    pub gives_back_at_once: bool,
    /// Daemons get no task on machines that come, or come back.
    pub forgets_returned_machines: bool,
    /// Tasks that are to be restarted are left as they are.
    pub skips_restarts: bool,
    /// Canaries are promoted however short they have been well.
    pub promotes_at_once: bool,
    /// Canaries are never promoted.
    pub never_promotes: bool,
    /// Updates that turned back roll no task back.
    pub leaves_undone_updates: bool,
    /// Sizes of jobs are chosen as if every quota had room for them.
    pub ignores_quota: bool,
    /// Tasks that were not measured count as not used.
    pub forgets_unmeasured_tasks: bool,
    /// A job of which nothing was measured counts as not used.
    pub takes_silence_for_rest: bool,
}
