//! Progress reports of an experiment. The experiments know the steps, the caller knows the
//! terminal; this trait is the only connection between them.

/// Receives the progress of long work. Called from many threads.
pub trait Progress: Sync {
    /// A new stage of `steps` steps begins; 0 when the number is unknown.
    fn stage(&self, name: &str, steps: u64);

    /// Some steps of the current stage are done; `note` describes what the last one found.
    fn advance(&self, steps: u64, note: &str);
}

/// Discards all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn stage(&self, _name: &str, _steps: u64) {}
    fn advance(&self, _steps: u64, _note: &str) {}
}
