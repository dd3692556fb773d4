//! The log of machine changes: which machines each class of tasks must score again since its last
//! scan.
//!
//! Positions are absolute and grow for ever; old entries are dropped once the log is a few times
//! longer than the cell, because a class that is that far behind is better off with a full scan.

#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    base: u64,
    machines: Vec<u32>,
}

const MIN_TRIM_LENGTH: usize = 1 << 16;

impl ChangeLog {
    #[inline]
    pub fn push(&mut self, machine: u32) {
        self.machines.push(machine);
    }

    /// Position after the last change.
    #[inline]
    pub fn end(&self) -> u64 {
        self.base + self.machines.len() as u64
    }

    /// Changes since `position`, oldest first; `None` when some of them have been dropped.
    #[inline]
    pub fn since(&self, position: u64) -> Option<&[u32]> {
        let at = position.checked_sub(self.base)?;
        self.machines.get(at as usize..)
    }

    /// Drops the older half once the log is longer than four times the number of machines.
    pub fn trim(&mut self, machines: usize) {
        if self.machines.len() > (machines * 4).max(MIN_TRIM_LENGTH) {
            let drop = self.machines.len() / 2;
            self.machines.drain(..drop);
            self.base += drop as u64;
        }
    }
}
