//! Alarms: what a person should look at, as data and in a sentence.
//!
//! Only the leader hears all machines and compares all clocks, and it writes none of this into the
//! log: a machine that answers again a second later was never down. So whichever replica is asked
//! asks the leader, and the others for what they know of themselves.

use cellwright_cell::resource::Dimension;
use cellwright_cell::units::{Rounding, amount, group_digits, pluralize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The owner of a clock that deviates from the cell's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClockOwner {
    /// The time of the log itself.
    Log,
    Master(String),
    Scheduler(String),
    Machine(String),
}

/// `the log`, `master m1`, `machine n2`.
impl fmt::Display for ClockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockOwner::Log => f.write_str("the log"),
            ClockOwner::Master(name) => write!(f, "master {name}"),
            ClockOwner::Scheduler(name) => write!(f, "scheduler {name}"),
            ClockOwner::Machine(name) => write!(f, "machine {name}"),
        }
    }
}

/// The alarms of the cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Alarms {
    /// The replica that answers.
    pub replica: String,
    /// The leader, which has said what it knows of machines, clocks and disks. Absent: none has
    /// answered, and these are what replicas know of themselves.
    pub leader: Option<String>,
    pub items: Vec<AlarmView>,
}

/// An alarm with its message for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmView {
    #[serde(flatten)]
    pub alarm: Alarm,
    /// The same in a sentence, with what to do about it.
    pub message: String,
}

impl From<Alarm> for AlarmView {
    fn from(alarm: Alarm) -> AlarmView {
        let message = alarm.to_string();
        AlarmView { alarm, message }
    }
}

/// Something that a person should look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Alarm {
    /// So many machines are silent that none is declared down: a network fault is more likely.
    MostMachinesSilent { silent: u32, up: u32 },
    /// Silent machines that wait to be declared down, a few a minute.
    DownRateLimited { waiting: u32 },
    /// A machine that is up has not been heard from.
    MachineSilent { machine: String, seconds: u64 },
    /// A clock is ahead of the cell's, or behind it where negative, beyond what is allowed.
    ClockSkew { clock: ClockOwner, seconds: i64 },
    /// The disk of a replica's log has less free than its reserve.
    DiskShort { replica: String, free_bytes: u64 },
    /// The disk of a replica's log has less free than twice its reserve.
    DiskLow { replica: String, free_bytes: u64 },
    /// Parts of a replica's files are damaged or missing; `GET /v1/masters` says which.
    DiskDamage { replica: String, parts: u32 },
    /// This replica knows no leader, or leads and hears no majority: nothing can change.
    NoLeader { seconds: u64 },
    /// The archive is not written. Jobs and logs wait for it; some were forgotten before.
    ArchiveFailing { seconds: u64, waiting: u32, lost: u32 },
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Alarm::MostMachinesSilent { silent, .. } => write!(
                f,
                "{} silent, more than half of the cell: none is declared down and nothing moves",
                pluralize(u64::from(*silent), "machine")
            ),
            Alarm::DownRateLimited { waiting: 1 } => {
                f.write_str("1 silent machine waits to be declared down, a few a minute")
            }
            Alarm::DownRateLimited { waiting } => write!(
                f,
                "{} silent machines wait to be declared down, a few a minute",
                group_digits(u64::from(*waiting))
            ),
            Alarm::MachineSilent { machine, seconds } => {
                write!(f, "machine {machine} has not been heard from for {seconds} s")
            }
            Alarm::ClockSkew { clock: ClockOwner::Log, seconds } => {
                write!(f, "the time of the log is {} the masters' clocks", skew_text(*seconds))
            }
            Alarm::ClockSkew { clock, seconds } => {
                let by = skew_text(*seconds);
                write!(f, "the clock of {clock} is {by} the cell's: set it, or keep it by NTP")
            }
            Alarm::DiskShort { replica, free_bytes } => write!(
                f,
                "master {replica} has {} free on the disk of its log, less than its reserve: it \
                 leads only if no other has room, and takes nothing but removals then; free some \
                 of it",
                bytes(*free_bytes)
            ),
            Alarm::DiskLow { replica, free_bytes } => write!(
                f,
                "master {replica} has {} free on the disk of its log, less than twice its \
                 reserve: it takes no packages; free some of it",
                bytes(*free_bytes)
            ),
            Alarm::DiskDamage { replica, parts } => write!(
                f,
                "{} of master {replica}: cell master status",
                pluralize(u64::from(*parts), "damaged or missing part")
            ),
            Alarm::NoLeader { seconds } => {
                write!(f, "no leader for {seconds} s: nothing can change")
            }
            Alarm::ArchiveFailing { seconds: 0, lost, .. } => write!(
                f,
                "{} forgotten before the archive took them: cell archive status",
                match lost {
                    1 => "1 job or log was".to_owned(),
                    _ => format!("{} jobs and logs were", group_digits(u64::from(*lost))),
                }
            ),
            Alarm::ArchiveFailing { seconds, waiting, lost } => {
                write!(
                    f,
                    "the archive has not been written for {seconds} s, and {} for it",
                    match waiting {
                        1 => "1 job or log waits".to_owned(),
                        _ => format!("{} jobs and logs wait", group_digits(u64::from(*waiting))),
                    }
                )?;
                if *lost > 0 {
                    write!(f, "; {} were forgotten before", group_digits(u64::from(*lost)))?;
                }
                f.write_str(": cell archive status")
            }
        }
    }
}

fn bytes(free: u64) -> String {
    amount(Dimension::Disk, free, Rounding::Down)
}

/// The difference between two clocks; the sentence goes on with the other clock.
fn skew_text(ahead: i64) -> String {
    let seconds = ahead.unsigned_abs();
    let by = match seconds {
        0..100 => format!("{seconds} s"),
        100..6_000 => format!("{} min", seconds / 60),
        6_000..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    };
    if ahead < 0 { format!("{by} behind") } else { format!("{by} ahead of") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(alarm: Alarm, data: serde_json::Value, sentence: &str) {
        let view = AlarmView::from(alarm);
        let mut expected = data;
        expected["message"] = json!(sentence);
        assert_eq!(serde_json::to_value(&view).unwrap(), expected);
        assert_eq!(serde_json::from_value::<AlarmView>(expected).unwrap(), view);
    }

    #[test]
    fn an_alarm_is_data_and_a_sentence() {
        check(
            Alarm::MostMachinesSilent { silent: 1, up: 1 },
            json!({"kind": "most_machines_silent", "silent": 1, "up": 1}),
            "1 machine silent, more than half of the cell: none is declared down and nothing moves",
        );
        check(
            Alarm::DownRateLimited { waiting: 1200 },
            json!({"kind": "down_rate_limited", "waiting": 1200}),
            "1,200 silent machines wait to be declared down, a few a minute",
        );
        check(
            Alarm::MachineSilent { machine: "n1".into(), seconds: 40 },
            json!({"kind": "machine_silent", "machine": "n1", "seconds": 40}),
            "machine n1 has not been heard from for 40 s",
        );
        check(
            Alarm::ClockSkew { clock: ClockOwner::Machine("n2".into()), seconds: -3600 },
            json!({"kind": "clock_skew", "clock": {"machine": "n2"}, "seconds": -3600}),
            "the clock of machine n2 is 60 min behind the cell's: set it, or keep it by NTP",
        );
        check(
            Alarm::ClockSkew { clock: ClockOwner::Log, seconds: 5 },
            json!({"kind": "clock_skew", "clock": "log", "seconds": 5}),
            "the time of the log is 5 s ahead of the masters' clocks",
        );
        check(
            Alarm::DiskShort { replica: "m1".into(), free_bytes: 200 << 20 },
            json!({"kind": "disk_short", "replica": "m1", "free_bytes": 200 << 20}),
            "master m1 has 200 MiB free on the disk of its log, less than its reserve: it leads \
             only if no other has room, and takes nothing but removals then; free some of it",
        );
        check(
            Alarm::DiskDamage { replica: "m1".into(), parts: 2 },
            json!({"kind": "disk_damage", "replica": "m1", "parts": 2}),
            "2 damaged or missing parts of master m1: cell master status",
        );
        check(
            Alarm::ArchiveFailing { seconds: 70, waiting: 1200, lost: 0 },
            json!({"kind": "archive_failing", "seconds": 70, "waiting": 1200, "lost": 0}),
            "the archive has not been written for 70 s, and 1,200 jobs and logs wait for it: cell \
             archive status",
        );
        check(
            Alarm::ArchiveFailing { seconds: 0, waiting: 0, lost: 2 },
            json!({"kind": "archive_failing", "seconds": 0, "waiting": 0, "lost": 2}),
            "2 jobs and logs were forgotten before the archive took them: cell archive status",
        );
        check(
            Alarm::ArchiveFailing { seconds: 7, waiting: 1, lost: 3 },
            json!({"kind": "archive_failing", "seconds": 7, "waiting": 1, "lost": 3}),
            "the archive has not been written for 7 s, and 1 job or log waits for it; 3 were \
             forgotten before: cell archive status",
        );
    }
}
