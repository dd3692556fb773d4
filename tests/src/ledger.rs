//! What clients were promised, checked as it happens and at the end.
//!
//! Each key is a register with one writer that writes 1, 2, 3 … and goes on to the next number only
//! when the last one was acknowledged. A history of such registers is linearizable exactly if every
//! read returns a number that was not replaced before the read began (neither by an acknowledged
//! write nor in the eyes of an earlier read) and whose writing had begun before the read ended. So
//! every operation is judged in constant time, while a search over interleavings would be
//! exponential. Across keys the log index is the judge: what begins after an answer stands later.
//!
//! The register's version counts how often the cell wrote it: a repetition that counted twice
//! shows.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A register as the cell shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub value: u64,
    pub version: u64,
    pub index: u64,
}

/// What held when an operation began.
#[derive(Clone, Copy, Debug)]
pub struct OperationStart {
    /// Highest index anybody was told.
    floor: u64,
    /// Lowest value the register may have from now on.
    least: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Register {
    begun: u64,
    acknowledged: u64,
    /// Highest value a read has returned.
    seen: u64,
    /// Its version before the first write.
    base: u64,
}

struct LedgerState {
    floor: u64,
    registers: Vec<Register>,
    reads: u64,
    last: Instant,
    longest: Duration,
    violations: Vec<String>,
}

pub struct Ledger {
    state: Mutex<LedgerState>,
    acknowledged: watch::Sender<u64>,
}

impl Ledger {
    /// `bases`: the version of each register before it is written.
    #[must_use]
    pub fn new(bases: &[u64]) -> Ledger {
        let registers = bases.iter().map(|base| Register { base: *base, ..Register::default() });
        let books = LedgerState {
            floor: 0,
            registers: registers.collect(),
            reads: 0,
            last: Instant::now(),
            longest: Duration::ZERO,
            violations: Vec::new(),
        };
        Ledger { state: Mutex::new(books), acknowledged: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer of `key` sends `value` for the first time.
    pub fn write_begins(&self, key: usize, value: u64) -> OperationStart {
        let mut books = self.state();
        books.registers[key].begun = value;
        OperationStart { floor: books.floor, least: value }
    }

    pub fn write_acknowledged(&self, key: usize, value: u64, index: u64, began: OperationStart) {
        let mut books = self.state();
        if index <= began.floor {
            let floor = began.floor;
            books.violations.push(format!(
                "key {key}: {value} was acknowledged at index {index}, after {floor} was told"
            ));
        }
        books.floor = books.floor.max(index);
        books.registers[key].acknowledged = value;
        let gap = books.last.elapsed();
        books.longest = books.longest.max(gap);
        books.last = Instant::now();
        self.acknowledged.send_modify(|count| *count += 1);
    }

    pub fn read_begins(&self, key: usize) -> OperationStart {
        let books = self.state();
        let register = books.registers[key];
        OperationStart { floor: books.floor, least: register.acknowledged.max(register.seen) }
    }

    /// A read that claims to be linearizable has returned.
    pub fn read_ends(&self, key: usize, began: OperationStart, seen: Seen) {
        let mut books = self.state();
        books.reads += 1;
        let register = books.registers[key];
        let Seen { value, version, index } = seen;
        let mut broken = Vec::new();
        if index < began.floor {
            let floor = began.floor;
            broken.push(format!("key {key}: a read is of index {index}, after {floor} was told"));
        }
        if value < began.least {
            let least = began.least;
            broken.push(format!("key {key}: a read returned {value}, after {least} was told"));
        }
        if value > register.begun {
            let begun = register.begun;
            broken.push(format!("key {key}: a read returned {value}, only {begun} was written"));
        }
        if version != register.base + value {
            broken.push(format!(
                "key {key}: version {version} with value {value}: a write counted more than once"
            ));
        }
        books.registers[key].seen = register.seen.max(value);
        books.floor = books.floor.max(index);
        books.violations.extend(broken);
    }

    /// From now on the longest wait between two acknowledgements is measured anew.
    pub fn fault_begins(&self) {
        let mut books = self.state();
        (books.last, books.longest) = (Instant::now(), Duration::ZERO);
    }

    /// The longest time nobody had a write acknowledged.
    pub fn outage(&self) -> Duration {
        self.state().longest
    }

    /// Writes acknowledged, as they come.
    pub fn acknowledged(&self) -> watch::Receiver<u64> {
        self.acknowledged.subscribe()
    }

    pub fn reads(&self) -> u64 {
        self.state().reads
    }

    /// What each register must hold when all writers have stopped.
    pub fn last_values(&self) -> Vec<u64> {
        self.state().registers.iter().map(|register| register.acknowledged).collect()
    }

    /// Highest index anybody was told.
    pub fn floor(&self) -> u64 {
        self.state().floor
    }

    /// Every promise found broken.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two registers; the first was written twice and read once.
    fn ledger() -> Ledger {
        let ledger = Ledger::new(&[7, 7]);
        for (value, index) in [(1, 10), (2, 12)] {
            let began = ledger.write_begins(0, value);
            ledger.write_acknowledged(0, value, index, began);
        }
        let began = ledger.read_begins(0);
        ledger.read_ends(0, began, Seen { value: 2, version: 9, index: 12 });
        assert_eq!(ledger.violations(), Vec::<String>::new());
        ledger
    }

    fn read(value: u64, version: u64, index: u64) -> Vec<String> {
        let ledger = ledger();
        let began = ledger.read_begins(0);
        ledger.read_ends(0, began, Seen { value, version, index });
        ledger.violations()
    }

    #[test]
    fn lost_stale_invented_and_repeated_writes_are_caught() {
        assert_eq!(read(2, 9, 13), Vec::<String>::new());
        assert_eq!(read(1, 8, 13), ["key 0: a read returned 1, after 2 was told"]);
        assert_eq!(read(2, 9, 11), ["key 0: a read is of index 11, after 12 was told"]);
        assert_eq!(read(3, 10, 13), ["key 0: a read returned 3, only 2 was written"]);
        let twice = "key 0: version 10 with value 2: a write counted more than once";
        assert_eq!(read(2, 10, 13), [twice]);
    }

    #[test]
    fn a_write_in_flight_may_be_seen_and_then_stays_seen() {
        let ledger = ledger();
        ledger.write_begins(0, 3);
        let (first, early) = (ledger.read_begins(0), ledger.read_begins(0));
        ledger.read_ends(0, first, Seen { value: 3, version: 10, index: 13 });
        ledger.read_ends(0, early, Seen { value: 2, version: 9, index: 12 });
        assert_eq!(ledger.violations(), Vec::<String>::new(), "the two reads overlap");
        let later = ledger.read_begins(0);
        ledger.read_ends(0, later, Seen { value: 2, version: 9, index: 13 });
        assert_eq!(ledger.violations(), ["key 0: a read returned 2, after 3 was told"]);
    }

    #[test]
    fn an_acknowledgement_below_what_was_told_is_caught() {
        let ledger = ledger();
        let began = ledger.write_begins(1, 1);
        ledger.write_acknowledged(1, 1, 12, began);
        let broken = "key 1: 1 was acknowledged at index 12, after 12 was told";
        assert_eq!(ledger.violations(), [broken]);
        assert_eq!(ledger.last_values(), [2, 1]);
    }
}
