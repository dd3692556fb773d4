//! A packet at the DNS server, over UDP and TCP: what is a question gets an answer that is no
//! failure of the server and no longer than the asker can take. A name out of any text gets one
//! too.

use cellwright_cell::State;
use cellwright_cell::command::{Command, Entry, Observed, Request, TaskReport};
use cellwright_cell::fit;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_cell::time::Time;
use cellwright_names::answer::{RecordKind, answer};
use cellwright_names::dns::packet::PacketServer;
use cellwright_names::{Directory, SharedDirectory, Zone};
use futures::executor::block_on;
use serde_json::json;
use std::sync::OnceLock;

const KINDS: [RecordKind; 7] = [
    RecordKind::A,
    RecordKind::Aaaa,
    RecordKind::Srv,
    RecordKind::Txt,
    RecordKind::Soa,
    RecordKind::Any,
    RecordKind::Other,
];
/// Longest answer over UDP.
const MOST_UDP: usize = 1232;
/// What a server says that met a fault of its own.
const SERVER_FAILURE: u8 = 2;

/// `ada/web` with two tasks at two machines.
struct Cell {
    packets: PacketServer,
    directory: Directory,
    zone: Zone,
}

fn applied(state: &mut State, at: u64, command: Command) {
    let requests = vec![Request::from_default_sender(command, state)];
    let verdicts = state.apply(&Entry { now: Time(at * 1000), requests }, &mut Vec::new());
    assert!(verdicts[0].is_ok(), "{verdicts:?}");
}

/// Its rows.
pub fn running() -> State {
    let name = |text: &str| Name::new(text).expect("a name");
    let mut state = State::default();
    applied(&mut state, 1, Command::AddUser { name: name("ada") });
    let task = json!({ "limits": { "cpu": 1, "ram": 1 }, "ports": 2, "command": ["serve"] });
    let spec = json!({ "name": "web", "count": 2, "priority": 0, "task": task });
    let spec = serde_json::from_value(spec).expect("a job");
    applied(&mut state, 2, Command::SubmitJob { owner: name("ada"), spec });
    let web = JobKey { user: name("ada"), job: name("web") };
    let job = state.job_named(&web).expect("it is there");
    let tasks: Vec<TaskId> = state.jobs().get(job).expect("it is there").tasks.to_vec();
    for (number, task) in (0..).zip(tasks) {
        let address = if number == 0 { "10.0.0.1" } else { "2001:db8::1" };
        let spec = json!({ "name": format!("m{number}"), "address": address,
            "capacity": { "cpu": 1000, "ram": 1000 }, "rack": null, "power": null });
        let at = 10 * (u64::from(number) + 1);
        let machine = MachineId(number);
        let spec = serde_json::from_value(spec).expect("a machine");
        applied(&mut state, at, Command::AddMachine(spec));
        applied(&mut state, at + 1, Command::MachineUp { machine, incarnation: 1 });
        let candidate = fit::Candidate::of(&state, task).expect("it waits");
        let row = state.machines().get(machine).expect("it is there");
        let load = state.machine_load(machine).expect("it is there");
        let ports = fit::choose_ports(candidate.spec, row, load);
        let attempt = candidate.task.attempt;
        let placed = Assignment { task, attempt, machine, alloc: None, ports, devices: vec![] };
        let group = Group { victims: Vec::new(), assignments: vec![placed] };
        applied(&mut state, at + 2, Command::CommitPlan(Plan { made_at: 0, groups: vec![group] }));
        let attempt = state.tasks().get(task).expect("it is there").attempt;
        let reports = vec![TaskReport { task, attempt, what: Observed::Started }];
        applied(&mut state, at + 3, Command::TaskReports { machine, incarnation: 1, reports });
    }
    state
}

fn cell() -> &'static Cell {
    static CELL: OnceLock<Cell> = OnceLock::new();
    CELL.get_or_init(|| {
        let (state, index) = (running(), 100);
        let names = SharedDirectory::default();
        names.reset(&state, index);
        let zone = Zone::new(&Name::new("main").expect("a name"), "cell.internal").expect("a zone");
        let directory = Directory::from_state(&state, index);
        Cell { packets: PacketServer::new(names, zone.clone()), directory, zone }
    })
}

/// Whether it is a question about what is there.
pub fn run(bytes: &[u8]) -> bool {
    let cell = cell();
    let mut is_found = false;
    for over_tcp in [false, true] {
        let Some(answer) = block_on(cell.packets.answer(bytes, over_tcp)) else { continue };
        assert!(over_tcp || answer.len() <= MOST_UDP, "{} bytes over UDP", answer.len());
        assert_ne!(answer[3] & 0x0f, SERVER_FAILURE, "a fault of the server");
        is_found |= answer[6..8] != [0, 0];
    }
    if let Some((kind, name)) = bytes.split_first()
        && let Ok(name) = str::from_utf8(name)
    {
        let kind = KINDS[usize::from(*kind) % KINDS.len()];
        let turn = (usize::from(bytes[0]), 50);
        let _ = answer(&cell.directory, &cell.zone, name, kind, turn);
    }
    is_found
}
