//! Answers to DNS queries, as data: no packets here.
//!
//! | name | A, AAAA | SRV | TXT |
//! |---|---|---|---|
//! | `INDEX.JOB.USER.CELL.SUFFIX` | the task's machine | its first port | state, health |
//! | `JOB.USER.CELL.SUFFIX` | machines of all healthy tasks | first port of each | size, health |
//! | `_N._tcp.` in front of either | | port number N, from 0 (`_udp` too) | |
//!
//! Jobs have names until they are over, and so have their tasks: a task that cannot be reached has
//! no address, and its TXT record has its status. A name that has other names below it exists and
//! has no records; everything else does not exist. Both negative answers carry the cell's SOA
//! record, so that resolvers forget a "no" as fast as a "yes".

use crate::directory::{Directory, Endpoint};
use crate::task_status::JobStatus;
use crate::zone::Zone;
use cellwright_cell::name::{JobKey, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Seconds an answer may be cached; promised to be at most 5.
pub const TTL_SECONDS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    A,
    Aaaa,
    Srv,
    Txt,
    Soa,
    Any,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub name: String,
    pub data: RecordData,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordData {
    Address(IpAddr),
    Service {
        port: u16,
        target: String,
    },
    /// `name=value` each.
    Text(Vec<String>),
    /// The start of authority; its serial is the log index, truncated to 32 bits.
    Authority {
        serial: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Records {
        answers: Vec<Record>,
        /// Records that the client will probably query next.
        additional: Vec<Record>,
        /// There are more records than the limit.
        truncated: bool,
    },
    /// The name exists and has no records of that kind.
    NoData,
    NxDomain,
    /// The name is outside this cell's zone.
    OutsideZone,
}

/// Answers for `name`, in lower case. `turn` selects the first task, so that clients that take the
/// first answer do not all take the same one. Of a job of thousands, at most `max` tasks are in the
/// answer: a query must not make us encode them all for a packet that holds a few.
#[must_use]
pub fn answer(
    directory: &Directory,
    zone: &Zone,
    name: &str,
    kind: RecordKind,
    (turn, max): (usize, usize),
) -> Answer {
    let Some(labels) = zone.relative_labels(name) else { return Answer::OutsideZone };
    let name = name.strip_suffix('.').unwrap_or(name);
    match labels.as_slice() {
        [] => match kind {
            RecordKind::Soa | RecordKind::Any => records(vec![soa_record(directory, zone)]),
            _ => Answer::NoData,
        },
        [user] => match Name::new(user) {
            Ok(user) if directory.has_user(&user) => Answer::NoData,
            _ => Answer::NxDomain,
        },
        [protocol, rest @ ..] if is_protocol(protocol) => match find_job(directory, rest) {
            Some(_) => Answer::NoData,
            None => Answer::NxDomain,
        },
        [port, protocol, rest @ ..] if is_protocol(protocol) => {
            let job = find_job(directory, rest);
            match (job, port_number(port)) {
                (Some(job), Some(number)) => {
                    service_answer(zone, name, &job, kind, number, (turn, max))
                }
                _ => Answer::NxDomain,
            }
        }
        labels => match find_job(directory, labels) {
            Some(job) => plain_answer(zone, name, &job, kind, (turn, max)),
            None => Answer::NxDomain,
        },
    }
}

/// The start of authority record, which goes with every negative answer.
#[must_use]
pub fn soa_record(directory: &Directory, zone: &Zone) -> Record {
    let serial = u32::try_from(directory.version() & u64::from(u32::MAX)).unwrap_or(0);
    Record { name: zone.origin().to_owned(), data: RecordData::Authority { serial } }
}

/// The tasks that a name matches: all tasks of a job, or one.
struct JobMatch<'a> {
    job: JobKey,
    tasks: &'a BTreeMap<u32, Endpoint>,
    only: Option<u32>,
    statuses: &'a JobStatus,
}

/// For a job without reachable tasks.
static NO_ENDPOINTS: BTreeMap<u32, Endpoint> = BTreeMap::new();

impl<'a> JobMatch<'a> {
    /// In order, beginning with the task selected by `turn`. Nothing is copied: there may be
    /// thousands.
    fn rotated(&self, turn: usize) -> impl Iterator<Item = (u32, &'a Endpoint)> {
        let (from, end) = match self.only {
            Some(index) => (index, index),
            None => (0, u32::MAX),
        };
        let tasks = self.tasks;
        let count = if self.only.is_some() { 1 } else { tasks.len() };
        let by = turn % count.max(1);
        let whole = move || tasks.range(from..=end).map(|(index, endpoint)| (*index, endpoint));
        whole().skip(by).chain(whole().take(by))
    }

    /// The size of the job and the health of its tasks; for a single task, its status.
    fn txt_values(&self) -> Vec<String> {
        let size = self.statuses.size();
        match self.only.and_then(|index| self.statuses.task(index)) {
            Some(task) => {
                vec![format!("state={}", task.state), format!("healthy={}", task.healthy)]
            }
            None => vec![
                format!("size={}", size.tasks),
                format!("healthy={}", size.healthy),
                format!("unhealthy={}", size.unhealthy),
            ],
        }
    }
}

/// The job or task that `JOB.USER` or `INDEX.JOB.USER` names.
fn find_job<'a>(directory: &'a Directory, labels: &[&str]) -> Option<JobMatch<'a>> {
    let (index, job, user) = match labels {
        [job, user] => (None, job, user),
        [index, job, user] => (Some(parse_number(index)?), job, user),
        _ => return None,
    };
    let job = JobKey { user: Name::new(user).ok()?, job: Name::new(job).ok()? };
    let statuses = directory.job_status(&job)?;
    if index.is_some_and(|index| statuses.task(index).is_none()) {
        return None;
    }
    let tasks = directory.job(&job).unwrap_or(&NO_ENDPOINTS);
    Some(JobMatch { job, tasks, only: index, statuses })
}

/// Each number has one spelling: no sign, no leading zero.
fn parse_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

fn port_number(label: &str) -> Option<usize> {
    parse_number(label.strip_prefix('_')?).and_then(|number| usize::try_from(number).ok())
}

fn is_protocol(label: &str) -> bool {
    matches!(label, "_tcp" | "_udp")
}

fn records(answers: Vec<Record>) -> Answer {
    Answer::Records { answers, additional: Vec::new(), truncated: false }
}

fn plain_answer(
    zone: &Zone,
    name: &str,
    job: &JobMatch<'_>,
    kind: RecordKind,
    (turn, max): (usize, usize),
) -> Answer {
    if kind == RecordKind::Srv {
        return service_answer(zone, name, job, kind, 0, (turn, max));
    }
    let text = || Record { name: name.to_owned(), data: RecordData::Text(job.txt_values()) };
    if kind == RecordKind::Txt {
        return records(vec![text()]);
    }
    let wanted = |address: &IpAddr| match kind {
        RecordKind::A => address.is_ipv4(),
        RecordKind::Aaaa => address.is_ipv6(),
        RecordKind::Any => true,
        _ => false,
    };
    // Several tasks of a job may share a machine; each address is listed once.
    let mut seen = BTreeSet::new();
    let addresses = job.rotated(turn).map(|(_, endpoint)| endpoint.address);
    let mut different = addresses.filter(|address| wanted(address) && seen.insert(*address));
    let mut answers: Vec<Record> = different
        .by_ref()
        .take(max)
        .map(|address| Record { name: name.to_owned(), data: RecordData::Address(address) })
        .collect();
    answers.extend((kind == RecordKind::Any).then(text));
    if answers.is_empty() {
        return Answer::NoData;
    }
    let truncated = different.next().is_some();
    Answer::Records { answers, additional: Vec::new(), truncated }
}

fn service_answer(
    zone: &Zone,
    name: &str,
    job: &JobMatch<'_>,
    kind: RecordKind,
    number: usize,
    (turn, max): (usize, usize),
) -> Answer {
    if !matches!(kind, RecordKind::Srv | RecordKind::Any) {
        return Answer::NoData;
    }
    let (mut answers, mut additional) = (Vec::new(), Vec::new());
    let with_port = |(index, endpoint): (u32, &Endpoint)| {
        let port = *endpoint.ports.get(number)?;
        Some((index, port, endpoint.address))
    };
    let mut services = job.rotated(turn).filter_map(with_port);
    for (index, port, address) in services.by_ref().take(max) {
        let target = zone.task(&job.job, index);
        additional.push(Record { name: target.clone(), data: RecordData::Address(address) });
        let data = RecordData::Service { port, target };
        answers.push(Record { name: name.to_owned(), data });
    }
    if answers.is_empty() {
        return Answer::NoData;
    }
    let truncated = services.next().is_some();
    Answer::Records { answers, additional, truncated }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cell, job, key, name};
    use cellwright_cell::command::{Command, Observed};

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

    fn answer_lines(cell: &Cell, name: &str, kind: RecordKind, turn: usize) -> Vec<String> {
        match answer(&cell.directory, &zone(), name, kind, (turn, usize::MAX)) {
            Answer::Records { answers, .. } => answers
                .into_iter()
                .map(|record| match record.data {
                    RecordData::Address(address) => address.to_string(),
                    RecordData::Service { port, target } => format!("{port} {target}"),
                    RecordData::Text(values) => values.join(" "),
                    RecordData::Authority { serial } => format!("serial {serial}"),
                })
                .collect(),
            other => vec![format!("{other:?}")],
        }
    }

    #[test]
    fn jobs_and_tasks_have_addresses() {
        let cell = cell();
        let check = |name: &str, kind, expected: &[&str]| {
            assert_eq!(answer_lines(&cell, name, kind, 0), expected, "{name} {kind:?}");
        };
        check("web.ada.main.cell.internal.", RecordKind::A, &["10.0.0.1", "10.0.0.2"]);
        check("1.web.ada.main.cell.internal", RecordKind::A, &["10.0.0.2"]);
        check("web.ada.main.cell.internal", RecordKind::Aaaa, &["NoData"]);
        check("web.ada.main.cell.internal", RecordKind::Other, &["NoData"]);
        check("ada.main.cell.internal", RecordKind::A, &["NoData"]);
        check("bob.main.cell.internal", RecordKind::A, &["NxDomain"]);
        check("2.web.ada.main.cell.internal", RecordKind::A, &["NxDomain"]);
        check("01.web.ada.main.cell.internal", RecordKind::A, &["NxDomain"]);
        check("x.1.web.ada.main.cell.internal", RecordKind::A, &["NxDomain"]);
        check("we\\.b.ada.main.cell.internal", RecordKind::A, &["NxDomain"]);
        check("main.cell.internal", RecordKind::A, &["NoData"]);
        check("main.cell.internal", RecordKind::Soa, &[&format!("serial {}", cell.index)]);
        check("web.ada.other.cell.internal", RecordKind::A, &["OutsideZone"]);
    }

    #[test]
    fn text_says_how_large_a_job_is_and_how_its_tasks_stand() {
        let mut cell = cell();
        let check = |cell: &Cell, name: &str, expected: &str| {
            let name = format!("{name}.main.cell.internal");
            assert_eq!(answer_lines(cell, &name, RecordKind::Txt, 0), [expected], "{name}");
        };
        check(&cell, "web.ada", "size=2 healthy=2 unhealthy=0");
        check(&cell, "1.web.ada", "state=running healthy=true");
        assert!(cell.report(cell.task("web", 1), Observed::Unhealthy));
        check(&cell, "web.ada", "size=2 healthy=1 unhealthy=1");
        // It has no address any more, and its status is still known.
        check(&cell, "1.web.ada", "state=stopping healthy=false");
        assert_eq!(
            answer_lines(&cell, "1.web.ada.main.cell.internal", RecordKind::A, 0),
            ["NoData"]
        );
        cell.submit(job("late", 3, 0));
        check(&cell, "late.ada", "size=3 healthy=0 unhealthy=0");
        check(&cell, "2.late.ada", "state=pending healthy=false");
        check(&cell, "3.late.ada", "NxDomain");
        check(&cell, "_0._tcp.web.ada", "NoData");
        let all = answer_lines(&cell, "0.web.ada.main.cell.internal", RecordKind::Any, 0);
        assert_eq!(all, ["10.0.0.1", "state=running healthy=true"]);
        cell.ok(Command::StopJob { job: key("late"), expect: None });
        check(&cell, "late.ada", "NxDomain");
    }

    #[test]
    fn services_name_the_ports_the_system_gave() {
        let cell = cell();
        let ports: Vec<Vec<u16>> =
            cell.directory.job(&key("web")).unwrap().values().map(|e| e.ports.clone()).collect();
        let line = |task: usize, port: usize| {
            format!("{} {task}.web.ada.main.cell.internal", ports[task][port])
        };
        let srv = |name: &str| answer_lines(&cell, name, RecordKind::Srv, 0);
        assert_eq!(srv("web.ada.main.cell.internal"), [line(0, 0), line(1, 0)]);
        assert_eq!(srv("_1._tcp.web.ada.main.cell.internal"), [line(0, 1), line(1, 1)]);
        assert_eq!(srv("_1._udp.0.web.ada.main.cell.internal"), [line(0, 1)]);
        assert_eq!(srv("_2._tcp.web.ada.main.cell.internal"), ["NoData"]);
        assert_eq!(srv("_x._tcp.web.ada.main.cell.internal"), ["NxDomain"]);
        assert_eq!(srv("_tcp.web.ada.main.cell.internal"), ["NoData"]);
        assert_eq!(srv("one.ada.main.cell.internal"), ["NoData"]);
        let turned = answer_lines(&cell, "web.ada.main.cell.internal", RecordKind::Srv, 3);
        assert_eq!(turned, [line(1, 0), line(0, 0)]);
        let all = (0, usize::MAX);
        let web = "web.ada.main.cell.internal";
        let whole = answer(&cell.directory, &zone(), web, RecordKind::Srv, all);
        let Answer::Records { additional, .. } = whole else { panic!("{whole:?}") };
        let address = RecordData::Address("10.0.0.1".parse().unwrap());
        assert_eq!(additional[0].data, address);
        assert_eq!(additional[0].name, "0.web.ada.main.cell.internal");
    }

    #[test]
    fn no_more_are_spelt_than_were_asked_for() {
        let cell = cell();
        let web = "web.ada.main.cell.internal";
        for (kind, max, expected, left) in [
            (RecordKind::Srv, 1, 1, true),
            (RecordKind::Srv, 2, 2, false),
            (RecordKind::A, 1, 1, true),
            (RecordKind::A, 2, 2, false),
        ] {
            for turn in 0..3 {
                let records = answer(&cell.directory, &zone(), web, kind, (turn, max));
                let Answer::Records { answers, truncated, .. } = records else {
                    panic!("{records:?}")
                };
                assert_eq!((answers.len(), truncated), (expected, left), "{kind:?} {max} {turn}");
            }
        }
    }
}
