//! The books of machines between an agent's report and this replica's tables.
//!
//! Agents repeat an entry with every poll until it is confirmed, and it is confirmed when it is on
//! the disk. So an entry waits here once, whatever is repeated meanwhile, and what waits is lost
//! with the process and comes again. Entries that several replicas were told, because an agent went
//! from one to the other, are the same row of history.
//!
//! Rejected: confirming what was heard. Five minutes of every machine went with a master that died.

use crate::links::UsageLedger;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_history::UsageRow;
use cellwright_messages::{AgentReport, UsageEntry, UsageMark};
use std::collections::BTreeMap;

/// Most rows that wait to be written. What comes beyond is not taken; the agents keep it.
const MAX_WAITING: usize = 200_000;
/// A machine that was not heard for so long is another replica's, or nobody's: what it measures at
/// present is not known here any more.
const PRESENT_FOR: Span = Span::seconds(60);

/// What agents told this replica.
#[derive(Debug, Default)]
pub struct UsageInbox {
    waiting: Vec<UsageRow>,
    machines: BTreeMap<Name, MachineBook>,
}

#[derive(Debug, Default)]
struct MachineBook {
    book: u64,
    /// The newest entry that waits, or was written.
    accepted: u64,
    /// The newest entry that is on the disk.
    recorded: u64,
    /// What is measured at present, and when the machine was last heard.
    open: Vec<UsageEntry>,
    heard: Time,
}

/// Rows on their way to the disk, and what is confirmed when they are there.
#[derive(Debug, Default)]
pub struct UsageDelivery {
    pub rows: Vec<UsageRow>,
    marks: Vec<(Name, UsageMark)>,
}

impl UsageInbox {
    /// A report that came at `now`.
    pub fn accept(&mut self, state: &State, report: &AgentReport, now: Time) {
        let told = &report.book;
        let known = self.machines.entry(report.machine.clone()).or_default();
        if known.book != told.book {
            *known = MachineBook { book: told.book, ..MachineBook::default() };
        }
        let row = |entry: &UsageEntry| usage_row(state, &report.machine, entry);
        let accepted = known.accepted;
        for entry in told.closed.iter().filter(|entry| entry.number > accepted) {
            if self.waiting.len() >= MAX_WAITING {
                break;
            }
            known.accepted = entry.number;
            // An entry without a task's name could not be asked for.
            self.waiting.extend(row(entry));
        }
        if let Some(open) = &told.open {
            known.open.clone_from(open);
        }
        known.heard = now;
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What is to be written now, by the one writer. It stays here until it is confirmed, so that a
    /// query sees it in one of both places.
    #[must_use]
    pub fn delivery(&self) -> UsageDelivery {
        let mark = |(machine, known): (&Name, &MachineBook)| {
            let mark = UsageMark { book: known.book, up_to: known.accepted };
            (known.accepted > known.recorded).then(|| (machine.clone(), mark))
        };
        let marks = self.machines.iter().filter_map(mark).collect();
        UsageDelivery { rows: self.waiting.clone(), marks }
    }

    /// These are on the disk.
    pub fn confirm(&mut self, delivery: &UsageDelivery) {
        self.waiting.drain(..delivery.rows.len().min(self.waiting.len()));
        for (machine, mark) in &delivery.marks {
            if let Some(known) = self.machines.get_mut(machine)
                && known.book == mark.book
            {
                known.recorded = known.recorded.max(mark.up_to);
            }
        }
    }

    #[must_use]
    pub fn recorded(&self, machine: &Name) -> Option<UsageMark> {
        let known = self.machines.get(machine).filter(|known| known.recorded > 0)?;
        Some(UsageMark { book: known.book, up_to: known.recorded })
    }

    /// What was measured and is in no table, entries that are not closed included.
    #[must_use]
    pub fn unwritten(&self, state: &State, now: Time) -> Vec<UsageRow> {
        let present = self.machines.iter().filter(|(_, known)| is_present(known, now));
        let open = present.flat_map(|(machine, known)| {
            known.open.iter().filter_map(|entry| usage_row(state, machine, entry))
        });
        self.waiting.iter().cloned().chain(open).collect()
    }

    /// Forgets machines that are not heard any more.
    pub fn drop_silent(&mut self, now: Time) {
        self.machines.retain(|_, known| known.accepted > known.recorded || is_present(known, now));
    }
}

fn is_present(known: &MachineBook, now: Time) -> bool {
    now.since(known.heard) <= PRESENT_FOR
}

/// A row of history; nothing for an entry whose name is that of no task.
fn usage_row(state: &State, machine: &Name, entry: &UsageEntry) -> Option<UsageRow> {
    let mut parts = entry.name.splitn(3, '/');
    let (user, job) = (Name::new(parts.next()?).ok()?, Name::new(parts.next()?).ok()?);
    let task_index = parts.next()?.parse().ok()?;
    let key = JobKey { user, job };
    let named = state.job_named(&key).and_then(|id| state.jobs().get(id));
    // Where the job is forgotten, history looks for what was submitted.
    let labels = named.and_then(|job| serde_json::to_string(&job.spec().labels).ok());
    let per_second = |amount: u64| {
        let rate = u128::from(amount) * 1000 / u128::from(entry.millis.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    };
    Some(UsageRow {
        time: entry.begun,
        millis: entry.millis,
        user: key.user.to_string(),
        job: key.job.to_string(),
        task_index,
        attempt: entry.attempt,
        machine: machine.to_string(),
        band: entry.priority.band().to_string(),
        samples: entry.samples,
        average: Resources {
            cpu: entry.cpu_micros / entry.millis.max(1),
            ram: entry.ram_avg,
            disk: 0,
            disk_rate: per_second(entry.io_bytes),
        },
        peak: Resources {
            cpu: entry.cpu_max,
            ram: entry.ram_max,
            disk: entry.disk_max,
            disk_rate: 0,
        },
        reserved: entry.reserved,
        limit: entry.limit,
        cpu_micros: entry.cpu_micros,
        labels: labels.unwrap_or_default(),
    })
}

impl UsageLedger for super::HistoryService {
    fn record(&self, state: &State, report: &AgentReport) {
        let now = self.0.replicated.log_time();
        let mut inbox = super::lock(&self.0.usage);
        inbox.accept(state, report, now);
        if !inbox.is_empty() {
            self.0.usage_arrived.notify_one();
        }
    }

    fn recorded(&self, machine: &Name) -> Option<UsageMark> {
        super::lock(&self.0.usage).recorded(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::priority::Priority;
    use cellwright_messages::{Epoch, UsageReport};

    const NOW: Time = Time(1_793_491_200_000);

    fn entry(number: u64) -> UsageEntry {
        UsageEntry {
            number,
            name: format!("ann/web/{number}"),
            attempt: 1,
            priority: Priority(200),
            begun: Time(NOW.0 - 1000),
            millis: 50,
            samples: 0,
            cpu_micros: 48_123,
            cpu_max: 962,
            ram_avg: 1 << 20,
            ram_max: 1 << 20,
            disk_max: 0,
            io_bytes: 5000,
            reserved: Resources::ZERO,
            limit: Resources::ZERO,
        }
    }

    fn report(book: u64, wall: Time, numbers: &[u64]) -> AgentReport {
        let closed = numbers.iter().map(|number| entry(*number)).collect();
        AgentReport {
            machine: Name::new("m1").unwrap(),
            incarnation: 1,
            number: 1,
            taken: Epoch::default(),
            hang: true,
            orders_digest: 0,
            spec: None,
            tasks: Vec::new(),
            packages: None,
            usage: Vec::new(),
            resource_pressure: Vec::new(),
            wall,
            book: UsageReport { book, closed, open: Some(vec![entry(0)]) },
            numbers: Vec::new(),
        }
    }

    fn indices(rows: &[UsageRow]) -> Vec<u32> {
        rows.iter().map(|row| row.task_index).collect()
    }

    #[test]
    fn an_entry_is_confirmed_when_it_is_on_the_disk_and_waits_once() {
        let (mut inbox, state) = (UsageInbox::default(), State::default());
        let machine = Name::new("m1").unwrap();
        for _ in 0..3 {
            inbox.accept(&state, &report(7, NOW, &[1, 2]), NOW);
        }
        assert_eq!(
            indices(&inbox.unwritten(&state, NOW)),
            [1, 2, 0],
            "and what is measured at present"
        );
        assert_eq!(indices(&inbox.delivery().rows), [1, 2]);
        assert_eq!(inbox.recorded(&machine), None, "that failed");
        let delivery = inbox.delivery();
        inbox.accept(&state, &report(7, NOW, &[1, 2, 3]), NOW);
        inbox.confirm(&delivery);
        assert_eq!(inbox.recorded(&machine), Some(UsageMark { book: 7, up_to: 2 }));
        let delivery = inbox.delivery();
        assert_eq!(indices(&delivery.rows), [3], "it came meanwhile");
        inbox.confirm(&delivery);
        assert_eq!(inbox.recorded(&machine), Some(UsageMark { book: 7, up_to: 3 }));
        assert!(inbox.is_empty());
        // The machine lost its data, and begins with 1 again.
        inbox.accept(&state, &report(8, NOW, &[1]), NOW);
        assert_eq!(inbox.recorded(&machine), None);
        assert_eq!(indices(&inbox.delivery().rows), [1]);
    }

    #[test]
    fn what_a_silent_machine_measured_at_last_is_not_the_present() {
        let (mut inbox, state) = (UsageInbox::default(), State::default());
        inbox.accept(&state, &report(7, NOW, &[]), NOW);
        let later = Time(NOW.0 + 61_000);
        assert_eq!(
            (inbox.unwritten(&state, NOW).len(), inbox.unwritten(&state, later).len()),
            (1, 0)
        );
        inbox.drop_silent(later);
        assert!(inbox.machines.is_empty());
    }

    #[test]
    fn a_row_has_what_the_kernel_counted_to_the_microsecond() {
        let row_of = |entry: &UsageEntry| {
            let (state, machine) = (State::default(), Name::new("m1").unwrap());
            usage_row(&state, &machine, entry)
        };
        let row = row_of(&entry(3)).unwrap();
        assert_eq!((row.user.as_str(), row.job.as_str(), row.task_index), ("ann", "web", 3));
        assert_eq!(
            (row.cpu_micros, row.average.cpu, row.average.disk_rate),
            (48_123, 962, 100_000)
        );
        assert_eq!(row.band, "production");
        let nameless = UsageEntry { name: "ann".into(), ..entry(3) };
        assert_eq!(row_of(&nameless), None);
    }
}
