//! What is said to a question, as data: no packets here.
//!
//! | name | A, AAAA | SRV |
//! |---|---|---|
//! | `INDEX.JOB.USER.CELL.SUFFIX` | the task's machine | the task's first port |
//! | `JOB.USER.CELL.SUFFIX` | machines of all healthy tasks | first port of each |
//! | `_N._tcp.` in front of either | | port number N, from 0 (`_udp` too) |
//!
//! A name that has other names below it exists and has no records; everything else does not exist.
//! Both are said with the cell's SOA, so that resolvers forget a "no" as fast as a "yes".

use crate::directory::{Directory, Endpoint};
use crate::zone::Zone;
use cellwright_cell::name::{JobKey, Name};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Seconds an answer may be believed; promised to be at most 5.
pub const TTL: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    A,
    Aaaa,
    Srv,
    Soa,
    Any,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub name: String,
    pub data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Address(IpAddr),
    Service {
        port: u16,
        target: String,
    },
    /// The start of authority; its serial is the log index, cut to 32 bits.
    Authority {
        serial: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Records {
        answers: Vec<Record>,
        /// What the asker will want to know next.
        additional: Vec<Record>,
    },
    /// The name exists and has nothing of that kind.
    NoData,
    NoName,
    /// Not a name of this cell.
    NotOurs,
}

/// Answers for `name`, in lower case. `turn` says with which task to begin, so that askers who take
/// the first answer do not all take the same.
#[must_use]
pub fn answer(directory: &Directory, zone: &Zone, name: &str, kind: Kind, turn: usize) -> Answer {
    let Some(labels) = zone.inside(name) else { return Answer::NotOurs };
    let name = name.strip_suffix('.').unwrap_or(name);
    match labels.as_slice() {
        [] => match kind {
            Kind::Soa | Kind::Any => records(vec![authority(directory, zone)]),
            _ => Answer::NoData,
        },
        [user] => match Name::new(user) {
            Ok(user) if directory.has_user(&user) => Answer::NoData,
            _ => Answer::NoName,
        },
        [protocol, rest @ ..] if is_protocol(protocol) => match tasks(directory, rest) {
            Some(_) => Answer::NoData,
            None => Answer::NoName,
        },
        [port, protocol, rest @ ..] if is_protocol(protocol) => {
            let found = tasks(directory, rest);
            match (found, port_number(port)) {
                (Some((job, tasks)), Some(number)) => {
                    services(zone, name, &job, &turned(tasks, turn), kind, number)
                }
                _ => Answer::NoName,
            }
        }
        labels => match tasks(directory, labels) {
            Some((job, tasks)) => plain(zone, name, &job, &turned(tasks, turn), kind),
            None => Answer::NoName,
        },
    }
}

/// The start of authority, which goes with every "no".
#[must_use]
pub fn authority(directory: &Directory, zone: &Zone) -> Record {
    let serial = u32::try_from(directory.version() & u64::from(u32::MAX)).unwrap_or(0);
    Record { name: zone.origin().to_owned(), data: Data::Authority { serial } }
}

type Found<'a> = Vec<(u32, &'a Endpoint)>;

/// The tasks that `JOB.USER` or `INDEX.JOB.USER` means.
fn tasks<'a>(directory: &'a Directory, labels: &[&str]) -> Option<(JobKey, Found<'a>)> {
    let (index, job, user) = match labels {
        [job, user] => (None, job, user),
        [index, job, user] => (Some(number(index)?), job, user),
        _ => return None,
    };
    let key = JobKey { user: Name::new(user).ok()?, job: Name::new(job).ok()? };
    let tasks = directory.job(&key)?;
    let found: Found<'_> = match index {
        None => tasks.iter().map(|(index, endpoint)| (*index, endpoint)).collect(),
        Some(index) => vec![(index, tasks.get(&index)?)],
    };
    Some((key, found))
}

/// One spelling for each number: no sign, no leading zero.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

fn port_number(label: &str) -> Option<usize> {
    number(label.strip_prefix('_')?).and_then(|number| usize::try_from(number).ok())
}

fn is_protocol(label: &str) -> bool {
    matches!(label, "_tcp" | "_udp")
}

fn turned(mut tasks: Found<'_>, turn: usize) -> Found<'_> {
    if !tasks.is_empty() {
        let by = turn % tasks.len();
        tasks.rotate_left(by);
    }
    tasks
}

fn records(answers: Vec<Record>) -> Answer {
    Answer::Records { answers, additional: Vec::new() }
}

fn plain(zone: &Zone, name: &str, job: &JobKey, tasks: &Found<'_>, kind: Kind) -> Answer {
    let wanted = |address: &IpAddr| match kind {
        Kind::A => address.is_ipv4(),
        Kind::Aaaa => address.is_ipv6(),
        Kind::Any => true,
        _ => false,
    };
    // Several tasks of a job may share a machine; an address is said once.
    let mut seen = BTreeSet::new();
    let addresses = tasks.iter().map(|(_, endpoint)| endpoint.address);
    let answers: Vec<Record> = addresses
        .filter(|address| wanted(address) && seen.insert(*address))
        .map(|address| Record { name: name.to_owned(), data: Data::Address(address) })
        .collect();
    match kind {
        Kind::Srv => services(zone, name, job, tasks, kind, 0),
        _ if answers.is_empty() => Answer::NoData,
        _ => records(answers),
    }
}

fn services(
    zone: &Zone,
    name: &str,
    job: &JobKey,
    tasks: &Found<'_>,
    kind: Kind,
    number: usize,
) -> Answer {
    if !matches!(kind, Kind::Srv | Kind::Any) {
        return Answer::NoData;
    }
    let (mut answers, mut additional) = (Vec::new(), Vec::new());
    for (index, endpoint) in tasks {
        let Some(port) = endpoint.ports.get(number) else { continue };
        let target = zone.task(job, *index);
        additional.push(Record { name: target.clone(), data: Data::Address(endpoint.address) });
        let data = Data::Service { port: *port, target };
        answers.push(Record { name: name.to_owned(), data });
    }
    if answers.is_empty() {
        return Answer::NoData;
    }
    Answer::Records { answers, additional }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cell, job, key, name};

    fn zone() -> Zone {
        Zone::new(&name("main"), "cell.internal").unwrap()
    }

    /// `web` has two tasks with two ports on two machines, `one` a task without ports.
    fn cell() -> Cell {
        let mut cell = Cell::with_machines(2);
        cell.submit(job("web", 2, 2));
        cell.submit(job("one", 1, 0));
        cell.run("web", 0, 0);
        cell.run("web", 1, 1);
        cell.run("one", 0, 0);
        cell
    }

    fn said(cell: &Cell, name: &str, kind: Kind, turn: usize) -> Vec<String> {
        match answer(&cell.directory, &zone(), name, kind, turn) {
            Answer::Records { answers, .. } => answers
                .into_iter()
                .map(|record| match record.data {
                    Data::Address(address) => address.to_string(),
                    Data::Service { port, target } => format!("{port} {target}"),
                    Data::Authority { serial } => format!("serial {serial}"),
                })
                .collect(),
            other => vec![format!("{other:?}")],
        }
    }

    #[test]
    fn jobs_and_tasks_have_addresses() {
        let cell = cell();
        let check = |name: &str, kind, expected: &[&str]| {
            assert_eq!(said(&cell, name, kind, 0), expected, "{name} {kind:?}");
        };
        check("web.ada.main.cell.internal.", Kind::A, &["10.0.0.1", "10.0.0.2"]);
        check("1.web.ada.main.cell.internal", Kind::A, &["10.0.0.2"]);
        check("web.ada.main.cell.internal", Kind::Aaaa, &["NoData"]);
        check("web.ada.main.cell.internal", Kind::Other, &["NoData"]);
        check("ada.main.cell.internal", Kind::A, &["NoData"]);
        check("bob.main.cell.internal", Kind::A, &["NoName"]);
        check("2.web.ada.main.cell.internal", Kind::A, &["NoName"]);
        check("01.web.ada.main.cell.internal", Kind::A, &["NoName"]);
        check("x.1.web.ada.main.cell.internal", Kind::A, &["NoName"]);
        check("we\\.b.ada.main.cell.internal", Kind::A, &["NoName"]);
        check("main.cell.internal", Kind::A, &["NoData"]);
        check("main.cell.internal", Kind::Soa, &[&format!("serial {}", cell.index)]);
        check("web.ada.other.cell.internal", Kind::A, &["NotOurs"]);
    }

    #[test]
    fn services_name_the_ports_the_system_gave() {
        let cell = cell();
        let ports: Vec<Vec<u16>> =
            cell.directory.job(&key("web")).unwrap().values().map(|e| e.ports.clone()).collect();
        let line = |task: usize, port: usize| {
            format!("{} {task}.web.ada.main.cell.internal", ports[task][port])
        };
        let srv = |name: &str| said(&cell, name, Kind::Srv, 0);
        assert_eq!(srv("web.ada.main.cell.internal"), [line(0, 0), line(1, 0)]);
        assert_eq!(srv("_1._tcp.web.ada.main.cell.internal"), [line(0, 1), line(1, 1)]);
        assert_eq!(srv("_1._udp.0.web.ada.main.cell.internal"), [line(0, 1)]);
        assert_eq!(srv("_2._tcp.web.ada.main.cell.internal"), ["NoData"]);
        assert_eq!(srv("_x._tcp.web.ada.main.cell.internal"), ["NoName"]);
        assert_eq!(srv("_tcp.web.ada.main.cell.internal"), ["NoData"]);
        assert_eq!(srv("one.ada.main.cell.internal"), ["NoData"]);
        let turned = said(&cell, "web.ada.main.cell.internal", Kind::Srv, 3);
        assert_eq!(turned, [line(1, 0), line(0, 0)]);
        let whole = answer(&cell.directory, &zone(), "web.ada.main.cell.internal", Kind::Srv, 0);
        let Answer::Records { additional, .. } = whole else { panic!("{whole:?}") };
        let address = Data::Address("10.0.0.1".parse().unwrap());
        assert_eq!(additional[0].data, address);
        assert_eq!(additional[0].name, "0.web.ada.main.cell.internal");
    }
}
