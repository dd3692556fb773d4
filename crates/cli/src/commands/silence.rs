//! What the leader misses: machines that are up and that nobody hears, and other alarms.
//!
//! Only the leader knows, and it does not write it into the log: a machine that answers again a
//! second later was never down. So it is asked for its metrics, which say the same to everybody.

use crate::format;
use crate::reach::Cell;
use cellwright_api::types::MasterStatus;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);

/// What a page of metrics says of alarms.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// In words.
    pub alarms: Vec<String>,
    /// Seconds since machines that are up were heard from, by name.
    pub silent: BTreeMap<String, u64>,
}

impl Alarms {
    pub fn read(page: &str) -> Alarms {
        let mut found = Alarms::default();
        for line in page.lines() {
            let Some((metric, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse() else { continue };
            if let Some(alarm) = label(metric, "cell_alarms{alarm=") {
                found.alarms.push(in_words(alarm, value));
            } else if let Some(machine) = label(metric, "cell_machine_silent_seconds{machine=") {
                found.silent.insert(machine.to_owned(), value);
            }
        }
        found
    }

    /// Asks the replica at this address.
    pub async fn of(cell: &Cell, address: &str) -> Result<Alarms, String> {
        let page = cell.client.bytes_at(address, "/metrics", PATIENCE).await;
        let page = page.map_err(|error| error.to_string())?;
        Ok(Alarms::read(&String::from_utf8_lossy(&page)))
    }

    /// Asks whoever leads; nothing when nobody can be asked, for this is only an addition.
    pub async fn of_leader(cell: &Cell) -> Alarms {
        let status = cell.client.get::<MasterStatus>("/v1/masters").await;
        let Ok(status) = status.map(|answer| answer.value) else { return Alarms::default() };
        let leader = status.members.iter().find(|member| Some(member.id) == status.leader);
        let Some(leader) = leader else { return Alarms::default() };
        Alarms::of(cell, &leader.address).await.unwrap_or_default()
    }

    /// One line for each thing a person should look at.
    pub fn lines(&self) -> Vec<String> {
        let silent = |(machine, seconds): (&String, &u64)| {
            format!("machine {machine} has not been heard from for {seconds} s")
        };
        self.alarms.iter().cloned().chain(self.silent.iter().map(silent)).collect()
    }
}

fn label<'a>(metric: &'a str, start: &str) -> Option<&'a str> {
    metric.strip_prefix(start)?.strip_prefix('"')?.strip_suffix("\"}")
}

fn in_words(alarm: &str, value: u64) -> String {
    match alarm {
        "most_machines_silent" => format!(
            "{} silent, more than half of the cell: none is declared down and nothing moves",
            format::counted(value, "machine")
        ),
        "down_rate_limited" => format!(
            "{} to be declared down, a few a minute",
            match value {
                1 => "1 silent machine waits".to_owned(),
                _ => format!("{} silent machines wait", format::count(value)),
            }
        ),
        _ => format!("{alarm} {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_metrics_is_read_as_sentences() {
        let page = "# HELP cell_alarms What a person should look at.\n\
                    cell_raft_term 3\n\
                    cell_alarms{alarm=\"most_machines_silent\"} 1\n\
                    cell_alarms{alarm=\"of_the_future\"} 7\n\
                    cell_machine_silent_seconds{machine=\"n1\"} 40\n";
        let found = Alarms::read(page);
        assert_eq!(found.silent, BTreeMap::from([("n1".to_owned(), 40)]));
        assert_eq!(
            found.lines(),
            [
                "1 machine silent, more than half of the cell: none is declared down and nothing \
                 moves",
                "of_the_future 7",
                "machine n1 has not been heard from for 40 s",
            ]
        );
        assert_eq!(Alarms::read("cell_raft_term 3\n").lines(), [""; 0]);
    }
}
