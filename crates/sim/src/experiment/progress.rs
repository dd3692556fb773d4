//! How an experiment tells how far it is. The experiments know the steps, the caller knows the
//! terminal; this trait is all that is between them.

/// Receives news of long work. Called from many threads.
pub trait Progress: Sync {
    /// A new stage of `steps` steps begins; 0 when nobody can say how many.
    fn stage(&self, name: &str, steps: u64);

    /// Some steps of the current stage are done; `note` says what the last one found.
    fn advance(&self, steps: u64, note: &str);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn stage(&self, _name: &str, _steps: u64) {}
    fn advance(&self, _steps: u64, _note: &str) {}
}
