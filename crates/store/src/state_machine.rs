//! The replicated state machine that the log is applied to.
//!
//! A state machine is deterministic: the same payloads in the same order give the same bytes on
//! every replica. It must accept any payload that was ever proposed; a rejection is a reply, never
//! a panic.

pub trait StateMachine: Send + 'static {
    /// Applies one agreed payload and returns the reply for its proposer. Indices increase but have
    /// gaps: elections and membership changes take up log entries too.
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8>;

    /// Takes a cheap copy now; the returned work encodes it on a thread of its own.
    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send>;

    /// Replaces everything by a snapshot whose last applied entry is `index`.
    fn restore(&mut self, index: u64, bytes: &[u8]) -> Result<(), String>;

    /// The last entry that, according to this state machine's own files, an earlier process
    /// applied. A log that ends before it was cut short.
    fn durable_applied(&self) -> Option<u64> {
        None
    }
}
