//! The directory against the state it was folded from, in small cases and at random.

use super::*;
use crate::testing::{Cell, job, key, machine, name};
use cellwright_cell::command::{Command, Observed};
use cellwright_cell::task::ExitClass;
use proptest::prelude::*;

fn directory_entries(cell: &Cell) -> Vec<(String, u32, String)> {
    let jobs = cell.directory.jobs();
    jobs.flat_map(|(key, tasks)| {
        tasks.iter().map(move |(index, e)| (key.to_string(), *index, e.address.to_string()))
    })
    .collect()
}

#[test]
fn a_record_comes_with_the_start_and_goes_with_the_order_to_stop() {
    let mut cell = Cell::with_machines(2);
    cell.submit(job("web", 2, 1));
    assert_eq!(directory_entries(&cell), []);
    cell.run("web", 0, 0);
    cell.run("web", 1, 1);
    let at = |index, address: &str| ("ada/web".to_owned(), index, address.to_owned());
    assert_eq!(directory_entries(&cell), [at(0, "10.0.0.1"), at(1, "10.0.0.2")]);
    assert!(cell.directory.has_user(&name("ada")) && !cell.directory.has_user(&name("bob")));
    let ports = &cell.directory.job(&key("web")).unwrap()[&0].ports;
    assert_eq!(ports, cell.state.tasks().get(cell.task("web", 0)).unwrap().ports());
    assert_eq!(ports.len(), 1);
    let size = |healthy, unhealthy| JobSize { tasks: 2, healthy, unhealthy };
    assert_eq!(job_size(&cell.state, &key("web")), size(2, 0));
    assert!(cell.report(cell.task("web", 0), Observed::Unhealthy));
    assert_eq!(directory_entries(&cell), [at(1, "10.0.0.2")]);
    assert_eq!(job_size(&cell.state, &key("web")), size(1, 1));
    assert!(cell.report(cell.task("web", 1), Observed::Failed(ExitClass::Code(1))));
    assert_eq!(directory_entries(&cell), []);
    assert!(cell.directory.has_user(&name("ada")), "the job is not over");
    assert_eq!(job_size(&cell.state, &key("web")), size(0, 1));
    assert_eq!(job_size(&cell.state, &key("nowhere")), JobSize::default());
}

#[test]
fn the_machine_has_its_say() {
    let mut cell = Cell::with_machines(1);
    cell.submit(job("web", 1, 0));
    cell.run("web", 0, 0);
    let moved = machine("m0", Some("fd00::7".parse().unwrap()));
    cell.ok(Command::UpdateMachine { spec: moved, expect: None });
    assert_eq!(directory_entries(&cell), [("ada/web".into(), 0, "fd00::7".into())]);
    cell.ok(Command::UpdateMachine { spec: machine("m0", None), expect: None });
    assert_eq!(directory_entries(&cell), []);
    let back = machine("m0", Some("10.0.0.1".parse().unwrap()));
    cell.ok(Command::UpdateMachine { spec: back, expect: None });
    assert_eq!(directory_entries(&cell).len(), 1);
    cell.ok(Command::MachineDown { machine: MachineId(0) });
    assert_eq!(directory_entries(&cell), []);
}

#[derive(Clone, Debug)]
enum Step {
    Submit(u8),
    Stop(u8),
    Resize(u8, u8),
    Place(u8, u8, u8),
    Report(u8, u8, u8),
    Address(u8, bool),
    Up(u8),
    Down(u8),
    Drain(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let small = 0..3_u8;
    prop_oneof![
        2 => small.clone().prop_map(Step::Submit),
        1 => small.clone().prop_map(Step::Stop),
        1 => (small.clone(), 1..5_u8).prop_map(|(a, b)| Step::Resize(a, b)),
        6 => (small.clone(), small.clone(), small.clone())
            .prop_map(|(a, b, c)| Step::Place(a, b, c)),
        9 => (small.clone(), small.clone(), 0..7_u8).prop_map(|(a, b, c)| Step::Report(a, b, c)),
        1 => (small.clone(), any::<bool>()).prop_map(|(a, b)| Step::Address(a, b)),
        1 => small.clone().prop_map(Step::Up),
        1 => small.clone().prop_map(Step::Down),
        1 => small.prop_map(Step::Drain),
    ]
}

const JOBS: [&str; 3] = ["a", "b", "c"];
const WORDS: [Observed; 7] = [
    Observed::Started,
    Observed::Started,
    Observed::Unhealthy,
    Observed::Finished,
    Observed::Failed(ExitClass::Code(1)),
    Observed::Lost,
    Observed::Stopped,
];

fn apply_step(cell: &mut Cell, step: &Step) {
    let task = |cell: &Cell, job: u8, index: u8| {
        let id = cell.state.job_named(&key(JOBS[usize::from(job)]))?;
        cell.state.jobs().get(id)?.tasks.get(usize::from(index)).copied()
    };
    let machine_name = |number: u8| format!("m{number}");
    let incarnation = cell.index;
    match *step {
        Step::Submit(at) => {
            let spec = job(JOBS[usize::from(at)], 3, 1);
            cell.try_apply(Command::SubmitJob { owner: name("ada"), spec: Box::new(spec) });
        }
        Step::Stop(at) => {
            let job = key(JOBS[usize::from(at)]);
            cell.try_apply(Command::StopJob { job, expect: None });
        }
        Step::Resize(at, count) => {
            let (job, count) = (key(JOBS[usize::from(at)]), count.into());
            let size = cellwright_cell::job_size::JobSize::tasks(count);
            cell.try_apply(Command::ResizeJob { job, size, expect: None });
        }
        Step::Place(at, index, on) => {
            if let Some(task) = task(cell, at, index) {
                cell.place_task(task, MachineId(on.into()));
            }
        }
        Step::Report(at, index, observed) => {
            if let Some(task) = task(cell, at, index) {
                cell.report(task, WORDS[usize::from(observed)]);
            }
        }
        Step::Address(on, some) => {
            let address = some.then(|| IpAddr::from([10, 9, on, 1]));
            let spec = machine(&machine_name(on), address);
            cell.try_apply(Command::UpdateMachine { spec, expect: None });
        }
        Step::Up(on) => {
            let machine = MachineId(on.into());
            cell.try_apply(Command::MachineUp { machine, incarnation });
        }
        Step::Down(on) => {
            cell.try_apply(Command::MachineDown { machine: MachineId(on.into()) });
        }
        Step::Drain(on) => {
            let name = name(&machine_name(on));
            cell.try_apply(Command::StartDrain { name, expect: None });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// After every entry the fold equals a directory rebuilt from the state, and no task that is
    /// dead, stopping, unhealthy or unreachable has a record.
    #[test]
    fn the_fold_equals_the_state(steps in prop::collection::vec(step(), 1..80)) {
        let mut cell = Cell::with_machines(3);
        for step in &steps {
            apply_step(&mut cell, step);
            let rebuilt = Directory::from_state(&cell.state, cell.index);
            prop_assert_eq!(&cell.directory, &rebuilt, "after {:?}", step);
            for name in JOBS {
                let none = BTreeMap::new();
                let followed = cell.directory.job(&key(name)).unwrap_or(&none);
                prop_assert_eq!(&endpoints_of(&cell.state, &key(name)), followed);
                let size = cell.directory.job_status(&key(name)).map(|status| status.size());
                let job = cell.state.job_named(&key(name)).and_then(|id| cell.state.jobs().get(id));
                let alive = job.is_some_and(|job| !job.is_dead());
                let counted = alive.then(|| job_size(&cell.state, &key(name)));
                prop_assert_eq!(size, counted);
            }
            for (key, tasks) in cell.directory.jobs() {
                for (index, endpoint) in tasks {
                    let row = cell.state.tasks().get(endpoint.task).unwrap();
                    prop_assert_eq!((row.index, row.attempt), (*index, endpoint.attempt));
                    prop_assert_eq!(row.state, TaskState::Running);
                    prop_assert!(row.healthy);
                    prop_assert_eq!(row.machine(), Some(endpoint.machine));
                    let owner = cell.state.job_key(row.job);
                    prop_assert_eq!(owner.as_ref(), Some(key));
                    let machine = cell.state.machines().get(endpoint.machine).unwrap();
                    prop_assert_eq!(machine.spec.address, Some(endpoint.address));
                }
            }
        }
    }
}
