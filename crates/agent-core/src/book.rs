//! The book of what tasks used: every microsecond of CPU that the kernel counts for a task is in
//! exactly one entry, whoever is killed meanwhile.
//!
//! An entry has what a counter grew by since the entry before it. So nothing is lost between two
//! entries, however long nobody looked, and a restarted agent goes on from the last counter that
//! was booked. The last entry of an attempt comes from the counters that its shim read when the
//! last process was gone; an attempt that ended before anybody looked has that one alone.
//!
//! The caller keeps the book on disk ([`UsageBook`] is what is written) and sends an entry only
//! once it is there: an entry that a master has and the disk has not would be booked again. Entries
//! stay until a master has confirmed them.
//!
//! Rejected: an entry for each report. Five minutes of a task are one row of history whoever
//! polls it, and a master that is away for an hour is told twelve rows and not seven hundred.

use crate::usage::LatestReading;
use cellwright_cell::desired::RunSpec;
use cellwright_cell::id::Attempt;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::{Span, Time};
use cellwright_messages::{UsageEntry, UsageMark, UsageReport};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Entries end at whole multiples of this, by the machine's clock, and where a task ends.
const WINDOW: Span = Span::seconds(300);
/// Most entries that wait for a master before those of tasks that go on are not cut any more: a
/// machine that no master hears for a year must not fill its disk. The entries then grow longer.
const MAX_WAITING: usize = 10_000;
/// Most closed entries of one report.
const MAX_SENT: usize = 500;
/// Entries that are not closed are told this often, in milliseconds: they are for people who look.
const OPEN_INTERVAL: u64 = 10_000;
/// An entry begins where the one before ended, unless the machine's clock was set by more.
const CLOCK_JUMP: Span = Span::seconds(1);

/// A clock that is wrong by no more is believed.
const MAX_SKEW: Span = Span::seconds(300);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The time of day, corrected.
    pub wall: Time,
    /// Milliseconds on the boot clock.
    pub boot: u64,
}

impl Clocks {
    fn wall_at(self, boot: u64) -> Time {
        let ago = self.boot.saturating_sub(boot);
        Time(self.wall.0.saturating_sub(ago).saturating_add(boot.saturating_sub(self.boot)))
    }
}

/// By how much the machine's clock is moved where it is wrong: what a machine used before its clock
/// was set is no usage of 1970.
///
/// On the machine and not where it is read: an entry has one time, however often it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockCorrection {
    ahead: u64,
    behind: u64,
}

impl ClockCorrection {
    /// The masters answered at `cell` when the clock of the machine said `machine`.
    pub fn observe(&mut self, machine: Time, cell: Time) {
        let wrong_by = machine.0.abs_diff(cell.0);
        // A master that has applied nothing yet knows no time.
        if cell == Time::ZERO {
            return;
        }
        *self = if wrong_by <= MAX_SKEW.0 {
            ClockCorrection::default()
        } else if machine > cell {
            ClockCorrection { ahead: wrong_by, behind: 0 }
        } else {
            ClockCorrection { ahead: 0, behind: wrong_by }
        };
    }

    #[must_use]
    pub fn correct(self, machine: Time) -> Time {
        Time(machine.0.saturating_sub(self.ahead).saturating_add(self.behind))
    }
}

/// The counters of a task that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalReading {
    /// When its program started, and when the last of its processes was gone, on the boot clock.
    pub started: u64,
    pub ended: u64,
    /// Since it started.
    pub cpu_micros: u64,
    pub io_bytes: u64,
    /// Most memory that the kernel saw; 0 where it does not say.
    pub ram_peak: u64,
}

/// What has been counted at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Totals {
    cpu_micros: u64,
    io_bytes: u64,
}

impl Totals {
    fn of(reading: &LatestReading) -> Totals {
        Totals { cpu_micros: micros(reading.reading.cpu), io_bytes: reading.reading.io }
    }
}

/// An entry that is being filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OpenEntry {
    attempt: Attempt,
    name: String,
    priority: Priority,
    reserved: Resources,
    limit: Resources,
    begun: Time,
    /// When it began, and when it was last added to, on the boot clock.
    from: u64,
    until: u64,
    /// What was counted when it began. Absent: it begins with the first reading.
    booked: Option<Totals>,
    counted: Totals,
    samples: u64,
    cpu_max: u64,
    /// Memory at the last reading.
    ram: u64,
    ram_max: u64,
    disk_max: u64,
    /// KiB and milliseconds.
    ram_millis: u64,
    reserved_ram_millis: u64,
    /// Milli-cores and milliseconds.
    reserved_cpu_millis: u64,
}

impl OpenEntry {
    fn new(attempt: Attempt, name: &str, work: &RunSpec, (begun, from): (Time, u64)) -> OpenEntry {
        OpenEntry {
            attempt,
            name: name.to_owned(),
            priority: work.priority,
            reserved: work.reservation,
            limit: work.limits,
            begun,
            from,
            until: from,
            booked: Some(Totals::default()),
            counted: Totals::default(),
            samples: 0,
            cpu_max: 0,
            ram: 0,
            ram_max: 0,
            disk_max: 0,
            ram_millis: 0,
            reserved_ram_millis: 0,
            reserved_cpu_millis: 0,
        }
    }

    /// Adds the time until a moment at which these were the totals.
    fn add(&mut self, until: u64, counted: Totals) {
        let millis = until.saturating_sub(self.until);
        let spent = counted.cpu_micros.saturating_sub(self.counted.cpu_micros);
        if self.booked.is_none() {
            self.booked = Some(counted);
        } else if let Some(rate) = spent.checked_div(millis) {
            // Microseconds in a millisecond are milli-cores.
            self.cpu_max = self.cpu_max.max(rate);
        }
        let over = |amount: u64| amount.saturating_mul(millis);
        self.ram_millis = self.ram_millis.saturating_add(over(self.ram >> 10));
        self.reserved_ram_millis =
            self.reserved_ram_millis.saturating_add(over(self.reserved.ram >> 10));
        self.reserved_cpu_millis = self.reserved_cpu_millis.saturating_add(over(self.reserved.cpu));
        self.until = self.until.max(until);
        // A counter never goes back; one that seems to is of processes that left the tree.
        self.counted.cpu_micros = self.counted.cpu_micros.max(counted.cpu_micros);
        self.counted.io_bytes = self.counted.io_bytes.max(counted.io_bytes);
    }

    /// The entry as far as it goes.
    fn entry(&self, number: u64) -> UsageEntry {
        let booked = self.booked.unwrap_or(self.counted);
        let millis = self.until.saturating_sub(self.from);
        let average = |sum: u64| sum.checked_div(millis).unwrap_or(0);
        let reserved = Resources {
            cpu: average(self.reserved_cpu_millis),
            ram: average(self.reserved_ram_millis).saturating_mul(1 << 10),
            ..self.reserved
        };
        UsageEntry {
            number,
            name: self.name.clone(),
            attempt: self.attempt.number,
            priority: self.priority,
            begun: self.begun,
            millis,
            samples: self.samples,
            cpu_micros: self.counted.cpu_micros.saturating_sub(booked.cpu_micros),
            cpu_max: self.cpu_max,
            ram_avg: average(self.ram_millis).saturating_mul(1 << 10),
            ram_max: self.ram_max,
            disk_max: self.disk_max,
            io_bytes: self.counted.io_bytes.saturating_sub(booked.io_bytes),
            reserved,
            limit: self.limit,
        }
    }

    /// The one after it, which begins where it ends.
    fn next(&self, clocks: Clocks) -> OpenEntry {
        let follows = Time(self.begun.0.saturating_add(self.until.saturating_sub(self.from)));
        let by_clock = clocks.wall_at(self.until);
        let was_set = follows.0.abs_diff(by_clock.0) > CLOCK_JUMP.0;
        OpenEntry {
            begun: if was_set { by_clock } else { follows },
            from: self.until,
            booked: Some(self.counted),
            samples: 0,
            cpu_max: 0,
            ram_max: 0,
            disk_max: 0,
            ram_millis: 0,
            reserved_ram_millis: 0,
            reserved_cpu_millis: 0,
            ..self.clone()
        }
    }
}

/// The book, as it is kept on disk.
///
/// Invariant: `open` and `ended` are sorted by attempt and have none in common; numbers of `closed`
/// grow, and none is above `last`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageBook {
    id: u64,
    /// Number of the newest closed entry.
    last: u64,
    open: Vec<OpenEntry>,
    closed: Vec<UsageEntry>,
    /// Attempts whose last entry is closed, until they are forgotten: an agent that restarts finds
    /// their ends again.
    ended: Vec<Attempt>,
    /// When the open entries were last told, on the boot clock.
    #[serde(skip)]
    open_told_at: Option<u64>,
}

impl UsageBook {
    /// An empty book; no other book of this machine has had this id.
    #[must_use]
    pub fn new(id: u64) -> UsageBook {
        let (open, closed, ended) = (Vec::new(), Vec::new(), Vec::new());
        UsageBook { id, last: 0, open, closed, ended, open_told_at: None }
    }

    /// Goes on as another book, whose numbers say nothing of those of this one.
    pub fn renew(&mut self, id: u64) {
        (self.id, self.last) = (id, 0);
        for entry in &mut self.closed {
            self.last += 1;
            entry.number = self.last;
        }
    }

    /// Number of the newest closed entry; grows with each.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    fn open_entry(&mut self, attempt: Attempt) -> Option<&mut OpenEntry> {
        let at = self.open.binary_search_by_key(&attempt, |entry| entry.attempt).ok()?;
        Some(&mut self.open[at])
    }

    /// An attempt runs since `started`, on the boot clock. Nothing changes for one that is in the
    /// book. Log savers and allocs have no usage of their own.
    pub fn begin(
        &mut self,
        attempt: Attempt,
        name: &str,
        work: &RunSpec,
        started: u64,
        clocks: Clocks,
    ) {
        self.insert(attempt, || {
            OpenEntry::new(attempt, name, work, (clocks.wall_at(started), started))
        });
    }

    /// The same for an attempt that ran while there was another book, which is lost: what it used
    /// until now is on no page, or was on one of that book.
    pub fn begin_late(&mut self, attempt: Attempt, name: &str, work: &RunSpec, clocks: Clocks) {
        self.insert(attempt, || {
            let entry = OpenEntry::new(attempt, name, work, (clocks.wall, clocks.boot));
            OpenEntry { booked: None, ..entry }
        });
    }

    fn insert(&mut self, attempt: Attempt, entry: impl FnOnce() -> OpenEntry) {
        if attempt.is_log_saver() || self.ended.binary_search(&attempt).is_ok() {
            return;
        }
        if let Err(at) = self.open.binary_search_by_key(&attempt, |entry| entry.attempt) {
            self.open.insert(at, entry());
        }
    }

    /// A reading of an attempt, and its order at the time.
    pub fn observe(&mut self, attempt: Attempt, work: &RunSpec, reading: &LatestReading) {
        let Some(entry) = self.open_entry(attempt) else { return };
        if reading.at <= entry.until {
            return;
        }
        entry.ram = reading.reading.ram;
        entry.add(reading.at, Totals::of(reading));
        entry.samples += 1;
        entry.ram_max = entry.ram_max.max(reading.reading.ram);
        entry.disk_max = entry.disk_max.max(reading.disk);
        (entry.reserved, entry.limit) = (work.reservation, work.limits);
        entry.priority = work.priority;
    }

    /// Closes entries whose window is over.
    pub fn close_due(&mut self, clocks: Clocks) {
        let window = |at: Time| at.0 / WINDOW.0;
        for at in 0..self.open.len() {
            let entry = &self.open[at];
            let due = window(entry.begun) != window(clocks.wall) && entry.until > entry.from;
            if due && self.closed.len() < MAX_WAITING {
                let next = entry.next(clocks);
                self.close(at);
                self.open[at] = next;
            }
        }
    }

    fn close(&mut self, at: usize) {
        let entry = self.open[at].entry(self.last + 1);
        if entry.millis > 0 || entry.cpu_micros > 0 || entry.io_bytes > 0 {
            self.last += 1;
            self.closed.push(entry);
        }
    }

    /// An attempt has ended, with these counters if anybody read them. Counts once.
    pub fn end(&mut self, attempt: Attempt, reading: Option<FinalReading>) {
        let Ok(at) = self.open.binary_search_by_key(&attempt, |entry| entry.attempt) else {
            return;
        };
        let entry = &mut self.open[at];
        if let Some(reading) = reading {
            // Memory is free by now, so it is what the kernel saw of a task that nobody looked at.
            if entry.samples == 0 && entry.ram == 0 {
                (entry.ram, entry.ram_max) = (reading.ram_peak, reading.ram_peak);
            }
            let (cpu_micros, io_bytes) = (reading.cpu_micros, reading.io_bytes);
            entry.add(reading.ended, Totals { cpu_micros, io_bytes });
        }
        self.close(at);
        self.open.remove(at);
        if let Err(at) = self.ended.binary_search(&attempt) {
            self.ended.insert(at, attempt);
        }
    }

    /// The masters know the end of an attempt, and it does not come again.
    pub fn forget(&mut self, attempt: Attempt) {
        self.end(attempt, None);
        self.ended.retain(|ended| *ended != attempt);
    }

    /// Attempts that are not there any more are over, with what was counted of them.
    pub fn retain(&mut self, is_there: impl Fn(Attempt) -> bool) {
        let gone: Vec<Attempt> = self.open.iter().map(|entry| entry.attempt).collect();
        gone.into_iter().filter(|attempt| !is_there(*attempt)).for_each(|attempt| {
            self.end(attempt, None);
        });
        self.ended.retain(|attempt| is_there(*attempt));
    }

    /// A master has these on its disk.
    pub fn confirm(&mut self, mark: UsageMark) {
        if mark.book == self.id {
            self.closed.retain(|entry| entry.number > mark.up_to);
        }
    }

    /// What goes with a report at `now`, on the boot clock. Entries up to `written` are on disk;
    /// others must wait.
    #[must_use]
    pub fn report(&mut self, written: u64, now: u64) -> UsageReport {
        let is_due = |told: u64| now.saturating_sub(told) >= OPEN_INTERVAL;
        let open = self.open_told_at.is_none_or(is_due).then(|| {
            self.open_told_at = Some(now);
            self.open.iter().map(|entry| entry.entry(0)).collect()
        });
        let closed = self.closed.iter().take_while(|entry| entry.number <= written);
        let closed = closed.take(MAX_SENT).cloned().collect();
        UsageReport { book: self.id, closed, open }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
