//! Experiments on the bundled example: what they leave behind is a sound state.

use cellwright_cell::id::MachineId;
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_cell::reclaim::Settings;
use cellwright_cell::{State, invariant};
use cellwright_sched::Options;
use cellwright_sched::executor::Sequential;
use cellwright_sim::convert::UsageModel;
use cellwright_sim::experiment::load::{LoadOptions, Loaded, load};
use cellwright_sim::experiment::pack::{PackOptions, PackResult, Packed, pack};
use cellwright_sim::experiment::pending::Explain;
use cellwright_sim::experiment::progress::Silent;
use cellwright_sim::experiment::scheduler::commit;
use cellwright_sim::experiment::threads::Threads;
use cellwright_sim::trace::TraceSource;
use std::path::Path;

fn loaded(copies: u32) -> Loaded {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/small-cell");
    let usage = UsageModel { cpu_permille: 400, ram_permille: 550, settings: Settings::MEDIUM };
    let options = LoadOptions {
        source: TraceSource::Example(folder),
        prod_only: false,
        usage: Some(usage),
        at_seconds: None,
        copies,
        pods: "default".into(),
    };
    load(&options, &Silent).expect("the example loads")
}

fn packed(copies: u32, classes: usize) -> (PackResult, Packed) {
    let options = PackOptions {
        scheduler: Options::default(),
        seed: 1,
        threads: 1,
        executor: &Sequential,
        explain: Explain::Classes(classes),
    };
    pack(loaded(copies), options, &Silent).expect("every placement is accepted")
}

fn check_sound(state: &State) {
    invariant::check_state(state).expect("every invariant holds");
}

#[test]
fn a_packed_cell_keeps_every_invariant() {
    check_sound(&loaded(1).state);
    let (result, packed) = packed(3, 0);
    assert_eq!((result.machines, result.tasks), (120, 1890));
    assert_eq!(result.placed + result.pending, 1890);
    check_sound(&packed.state);
}

#[test]
fn explanations_do_not_depend_on_threads() {
    let explained = |executor: &dyn cellwright_sched::executor::Executor| {
        let (scheduler, explain) = (Options::default(), Explain::Classes(9));
        let options = PackOptions { scheduler, seed: 1, threads: 1, executor, explain };
        let (result, _) = pack(loaded(1), options, &Silent).expect("accepted");
        serde_json::to_string(&result.pending_reasons).expect("serialisable")
    };
    let threads = Threads::new(3).expect("threads start");
    assert_eq!(explained(&Sequential), explained(&threads));
}

/// A scheduler that plans nonsense is found out, by name.
#[test]
fn a_refused_plan_is_an_error_that_names_task_and_machine() {
    let mut state = loaded(1).state;
    let (task, _) = state
        .tasks()
        .iter()
        .find(|(id, _)| state.task_name(*id) == "research/genome-assembly/0")
        .expect("the example has it");
    let assignment = Assignment {
        task,
        attempt: 0,
        machine: MachineId(0),
        alloc: None,
        ports: Vec::new(),
        devices: Vec::new(),
    };
    let group = Group { victims: Vec::new(), assignments: vec![assignment] };
    let plan = Plan { made_at: 0, groups: vec![group] };
    let error = commit(&mut state, plan).expect_err("too large");
    let text = error.to_string();
    assert!(text.starts_with("1 of 1 groups of the plan were refused"), "{text}");
    assert!(text.contains("research/genome-assembly/0 on std-01"), "{text}");
    assert!(state.tasks().get(task).is_some_and(|row| row.machine.is_none()));
    check_sound(&state);
}
