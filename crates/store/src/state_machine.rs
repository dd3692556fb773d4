//! What the log is fed to.
//!
//! A machine is deterministic: the same payloads in the same order give the same bytes on every
//! replica. It must accept any payload that was ever proposed; a refusal is a reply, never a panic.

pub trait StateMachine: Send + 'static {
    /// Applies one agreed payload and returns the reply for whoever proposed it. Indices rise but
    /// have gaps: elections and membership changes take places in the log too.
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8>;

    /// Takes a cheap copy now; the returned work encodes it on a thread of its own.
    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send>;

    /// Replaces everything by a snapshot whose last applied entry is `index`.
    fn restore(&mut self, index: u64, bytes: &[u8]) -> Result<(), String>;

    /// The last entry that this machine's own files say was applied in an earlier life. A log that
    /// ends before it was cut short.
    fn durable_applied(&self) -> Option<u64> {
        None
    }
}
