//! Experiments on the bundled example: the state they leave behind is sound.

use cellwright_cell::command::Command;
use cellwright_cell::id::MachineId;
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_cell::reclaim::ReclaimConfig;
use cellwright_cell::{State, invariant};
use cellwright_master::checkpoint;
use cellwright_master::replicated_state::View;
use cellwright_sched::Options;
use cellwright_sched::executor::Sequential;
use cellwright_sim::convert::UsageModel;
use cellwright_sim::experiment::load::{LoadOptions, LoadedCell, load, load_running};
use cellwright_sim::experiment::pack::{PackOptions, PackResult, PackedCell, pack};
use cellwright_sim::experiment::pending::Explain;
use cellwright_sim::experiment::placement::placement_hash;
use cellwright_sim::experiment::progress::NoProgress;
use cellwright_sim::experiment::scheduler::commit;
use cellwright_sim::experiment::threads::Threads;
use cellwright_sim::trace::TraceSource;
use cellwright_sim::workload::apply_command;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn loaded(copies: u32) -> LoadedCell {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/small-cell");
    let options = LoadOptions { copies, ..options(TraceSource::Example(folder)) };
    load(&options, &NoProgress).expect("the example loads")
}

fn packed(copies: u32, classes: usize) -> (PackResult, PackedCell) {
    let options = PackOptions {
        scheduler: Options::default(),
        seed: 1,
        threads: 1,
        executor: &Sequential,
        explain: Explain::Classes(classes),
    };
    pack(loaded(copies), options, &NoProgress).expect("every placement is accepted")
}

fn options(source: TraceSource) -> LoadOptions {
    let usage =
        UsageModel { cpu_permille: 400, ram_permille: 550, settings: ReclaimConfig::MEDIUM };
    LoadOptions {
        source,
        prod_only: false,
        usage: Some(usage),
        at_seconds: None,
        copies: 1,
        pods: "default".into(),
    }
}

fn pack_loaded(loaded: LoadedCell) -> (PackResult, PackedCell) {
    let (scheduler, explain) = (Options::default(), Explain::Classes(0));
    let options = PackOptions { scheduler, seed: 1, threads: 1, executor: &Sequential, explain };
    pack(loaded, options, &NoProgress).expect("every placement is accepted")
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
        let (result, _) = pack(loaded(1), options, &NoProgress).expect("accepted");
        serde_json::to_string(&result.pending_reasons).expect("serialisable")
    };
    let threads = Threads::new(3).expect("threads start");
    assert_eq!(explained(&Sequential), explained(&threads));
}

/// A scheduler with an invalid plan is detected, and the error has the names.
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
    assert!(state.tasks().get(task).is_some_and(|row| row.machine().is_none()));
    check_sound(&state);
}

/// A checkpoint of a state in a file that is removed with the test.
struct SavedCheckpoint(PathBuf);

impl SavedCheckpoint {
    fn of(name: &str, state: State) -> SavedCheckpoint {
        let file = format!("cell-experiments-{name}-{}.ckpt", std::process::id());
        let path = std::env::temp_dir().join(file);
        checkpoint::write(&View { state, index: 7, term: 1, log_epoch: 0 }, &path)
            .expect("it is written");
        SavedCheckpoint(path)
    }

    fn options(&self) -> LoadOptions {
        options(TraceSource::Checkpoint(self.0.clone()))
    }
}

impl Drop for SavedCheckpoint {
    fn drop(&mut self) {
        // What is left behind in the temporary folder does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn apply(state: &mut State, command: Command) {
    apply_command(state, &mut Vec::new(), command).expect("the cell takes it");
}

#[test]
fn a_checkpoint_packs_to_the_tasks_of_its_cell() {
    let (original, packed) = packed(1, 0);
    let saved = SavedCheckpoint::of("packs", packed.state.clone());
    let (again, anew) = pack_loaded(load(&saved.options(), &NoProgress).expect("it loads"));
    assert_eq!((again.machines, again.jobs, again.tasks), (40, original.jobs, 630));
    assert_eq!(again.placed + again.pending, 630);
    check_sound(&anew.state);
    let names = |state: &State| -> BTreeSet<String> {
        state.tasks().iter().map(|(id, _)| state.task_name(id)).collect()
    };
    assert_eq!(names(&anew.state), names(&packed.state));
    // The same resources are requested: reservations were carried over.
    let reserved = |state: &State| -> u64 {
        state.tasks().iter().map(|(_, task)| task.reservation.ram >> 20).sum()
    };
    let (before, after) = (reserved(&packed.state), reserved(&anew.state));
    assert!(after.abs_diff(before) * 100 < before, "{before} {after}");
    assert!(again.notes[0].starts_with("the cell as of log index 7"), "{:?}", again.notes);
}

#[test]
fn a_checkpoint_as_it_stands_keeps_every_task_in_its_place() {
    let (original, packed) = packed(1, 0);
    let saved = SavedCheckpoint::of("stands", packed.state.clone());
    let placed = load_running(&saved.options(), &NoProgress).expect("it loads");
    let (result, kept) = pack_loaded(placed);
    assert_eq!((result.placed, result.pending), (original.placed, original.pending));
    assert_eq!(placement_hash(&kept.state), placement_hash(&packed.state));
    let prod_only_options = LoadOptions { prod_only: true, ..saved.options() };
    let error =
        load_running(&prod_only_options, &NoProgress).expect_err("it would change what stands");
    assert!(error.to_string().starts_with("--prod-only does not apply to checkpoint:"));
}

#[test]
fn machines_and_jobs_that_are_gone_from_a_cell_are_gone_from_its_checkpoint() {
    let mut state = loaded(1).state;
    let mut ids = state.machines().iter().map(|(id, _)| id);
    let machines: [MachineId; 3] = std::array::from_fn(|_| ids.next().expect("there are 40"));
    drop(ids);
    apply(&mut state, Command::MachineDown { machine: machines[0] });
    let drained = state.machines().get(machines[1]).expect("it is there").spec.name.clone();
    apply(&mut state, Command::StartDrain { name: drained, expect: None });
    let (job, _) = state.jobs().iter().next().expect("there are jobs");
    let (key, count) = (state.job_key(job), state.jobs().get(job).map(|row| row.tasks.len()));
    apply(&mut state, Command::StopJob { job: key.expect("it has a name"), expect: None });
    let saved = SavedCheckpoint::of("gone", state);
    let (result, packed) = pack_loaded(load(&saved.options(), &NoProgress).expect("it loads"));
    assert_eq!(result.tasks as usize, 630 - count.expect("it has tasks"));
    let used =
        |machine| packed.state.machine_load(machine).is_some_and(|load| !load.tasks.is_empty());
    assert_eq!(machines.map(used), [false, false, true]);
    let has_note = |part: &str| result.notes.iter().any(|note| note.contains(part));
    assert!(has_note("2 machines are down or being drained"), "{:?}", result.notes);
    assert!(has_note("tasks have ended and are left out"), "{:?}", result.notes);
}
