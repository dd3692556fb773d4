//! What a person at a terminal waits for in a large cell: the real `cell` program against a real
//! master, each call a process of its own, from its start until it has ended.
//!
//! The cell is built with the state machine and the scheduler and restored as from a checkpoint.
//! Rejected: 12,500 virtual machines beside it. They would be measured too, and they are not what
//! is asked about; their polls are a figure of the master's.

use crate::masters::block_on;
use crate::masters::cell::Cell;
use crate::report::percentile;
use crate::section_report::{Section, SectionedReport};
use cellwright_cell::command::{Observed, TaskReport};
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Name;
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use cellwright_cell::{Command, Entry, Request, State};
use cellwright_sched::Options;
use cellwright_sched::executor::Sequential;
use cellwright_sim::convert::plain_job;
use cellwright_sim::experiment::scheduler::{commit, solve};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Instant;

const MACHINES: u32 = 12_500;
const TASKS: u32 = 150_000;
const TASKS_PER_JOB: u32 = 100;
const CALLS: usize = 25;
const OWNER: &str = "bench";
const SEED: u64 = 1;

const BOOK: SectionedReport = SectionedReport {
    name: "user",
    about: "What a person waits for. `cargo build --release -p cellwright-cli`, then `cargo run \
            --release -p cellwright-bench user`.",
    figures: &["ask"],
};

pub fn main() -> io::Result<()> {
    block_on(measure())
}

async fn measure() -> io::Result<()> {
    let mut section = Section::new(
        "Questions to a large cell",
        &format!(
            "A cell of {MACHINES} machines of four sizes with {TASKS} running tasks in {} jobs, \
             and one job that waits; one master on loopback. Each figure is of {CALLS} calls of \
             the `cell` program, from the start of its process to its end. The first question to a \
             master builds the board that the later ones are answered from.",
            TASKS / TASKS_PER_JOB
        ),
    );
    let cell = Cell::start_from("user", build_state()?).await?;
    let program = program()?;
    let folder = crate::masters::cell::Folder::new("files")?;
    let files = Files::write(folder.path())?;
    let ask = |words: &[&str]| time_call(&program, cell.member(0), words);
    section.row("first `cell explain` of a master", ask(&explain())? * 1e3, "ms", "");
    let figures: [(&str, Vec<&str>, &str); 8] = [
        ("`cell status`", vec!["status"], "≤ 100"),
        ("`cell explain` of a task that waits", explain().to_vec(), "≤ 300"),
        ("`cell explain` of a task that runs", vec!["explain", "bench/job-7/3"], "≤ 300"),
        ("`cell shapes`", vec!["shapes"], "≤ 300"),
        ("`cell shapes` of more tasks of a job", vec!["shapes", "--like", "bench/job-7"], "≤ 300"),
        ("`cell plan` of a new job of 100 tasks", Files::plan(&files.new), "≤ 300"),
        ("`cell plan` of an update that restarts 100 tasks", Files::plan(&files.update), "≤ 300"),
        ("`cell plan` of a job that evicts others", Files::plan(&files.strong), "≤ 300"),
    ];
    for (what, words, target) in figures {
        let mut times = Vec::new();
        for _ in 0..CALLS {
            times.push(ask(&words)? * 1e3);
        }
        times.sort_by(f64::total_cmp);
        section.row(&format!("{what}, median"), percentile(&times, 0.5), "ms", target);
        section.row("... longest", percentile(&times, 1.0), "ms", "");
    }
    section.limits(
        "a plan copies the board (about one row for each task of the cell) and runs a pass on the \
         copy; an explanation looks at every machine and every task that could be evicted.",
    );
    section.save(&BOOK, "ask")
}

fn explain() -> [&'static str; 2] {
    ["explain", "bench/waits/0"]
}

/// The `cell` program that was built beside this one.
fn program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("cell");
    if path.exists() {
        Ok(path)
    } else {
        Err(io::Error::other(format!(
            "{} is not there; build it: cargo build --release -p cellwright-cli",
            path.display()
        )))
    }
}

/// Seconds of one call. Saying that something would not be placed is an answer too.
fn time_call(program: &Path, master: &str, words: &[&str]) -> io::Result<f64> {
    let begun = Instant::now();
    let output = Process::new(program).args(["--master", master]).args(words).output()?;
    let seconds = begun.elapsed().as_secs_f64();
    match output.status.code() {
        Some(0 | 3) => Ok(seconds),
        _ => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Jobs to plan.
struct Files {
    new: String,
    update: String,
    strong: String,
}

impl Files {
    fn write(folder: &Path) -> io::Result<Files> {
        let put = |name: &str, spec: &JobSpec| {
            let path = folder.join(name);
            let mut file = serde_json::to_value(spec).map_err(io::Error::other)?;
            // A bare number is cores in a file.
            file["task"]["limits"]["cpu"] = format!("{}m", spec.task.limits.cpu).into();
            std::fs::write(&path, file.to_string())?;
            Ok::<String, io::Error>(path.display().to_string())
        };
        let mut update = job(7)?;
        update.task.command = vec!["another".into()];
        let large = Resources::new(30_000, 100 << 30, 0, 0);
        let strong = plain_job(name("strong")?, 50, Priority(250), large);
        Ok(Files {
            new: put("new.json", &JobSpec { name: name("new")?, ..job(8)? })?,
            update: put("update.json", &update)?,
            strong: put("strong.json", &strong)?,
        })
    }

    fn plan(file: &str) -> Vec<&str> {
        vec!["plan", file, "--owner", OWNER]
    }
}

fn name(text: &str) -> io::Result<Name> {
    Name::new(text).map_err(io::Error::other)
}

/// Jobs differ in size and priority, as they do in life.
fn job(number: u32) -> io::Result<JobSpec> {
    let cpu = [250, 500, 1000, 2000][number as usize % 4];
    let ram = [256u64 << 20, 1 << 30, 4 << 30][number as usize % 3];
    let priority = [0, 25, 100, 110, 200, 210][number as usize % 6];
    let limits = Resources::new(cpu, ram, 1 << 20, 0);
    Ok(plain_job(name(&format!("job-{number}"))?, TASKS_PER_JOB, Priority(priority), limits))
}

fn machine(number: u32) -> io::Result<MachineSpec> {
    let size = [1u64, 1, 2, 4][number as usize % 4];
    let spec = serde_json::json!({
        "name": format!("machine-{number}"),
        "capacity": {"cpu": size * 8000, "ram": size << 35, "disk": 1u64 << 40},
        "rack": format!("rack-{}", number / 40),
    });
    serde_json::from_value(spec).map_err(io::Error::other)
}

fn apply(state: &mut State, commands: Vec<Command>) -> io::Result<()> {
    let request = |command| Request::from_default_sender(command, state);
    let requests = commands.into_iter().map(request).collect();
    let entry = Entry { now: Time(state.now().0 + 1), requests };
    let verdicts = state.apply(&entry, &mut Vec::new());
    verdicts.into_iter().try_for_each(|verdict| verdict.map(drop).map_err(io::Error::other))
}

/// All tasks placed by the scheduler and running; one job of ten tasks that fits nowhere.
fn build_state() -> io::Result<State> {
    let mut state = State::default();
    let owner = name(OWNER)?;
    let mut setup = vec![Command::AddUser { name: owner.clone() }];
    for number in 0..MACHINES {
        setup.push(Command::AddMachine(machine(number)?));
    }
    apply(&mut state, setup)?;
    let up = |m| Command::MachineUp { machine: MachineId(m), incarnation: 1 };
    apply(&mut state, (0..MACHINES).map(up).collect())?;
    let capacity = state.capacity();
    let mut setup = Vec::new();
    for band in Band::ALL {
        let amount = if band.is_prod() {
            Resources::from_array(capacity.to_array().map(|amount| amount / 2))
        } else {
            Resources::from_array(capacity.to_array().map(|amount| amount * 4))
        };
        let quota = Some(Quota { amount, from: Time::ZERO, until: Time::NEVER });
        setup.push(Command::SetQuota { user: owner.clone(), band, quota, expect: None });
    }
    for number in 0..TASKS / TASKS_PER_JOB {
        setup.push(Command::SubmitJob { owner: owner.clone(), spec: Box::new(job(number)?) });
    }
    apply(&mut state, setup)?;
    let solved = solve(&state, Options::default(), SEED, &Sequential);
    let (placed, left) = (solved.outcome.placed, solved.outcome.pending.len());
    println!("{placed} tasks placed, {left} wait");
    commit(&mut state, solved.outcome.plan).map_err(io::Error::other)?;
    start(&mut state)?;
    let wide = Resources::new(100_000, 1 << 30, 0, 0);
    let spec = plain_job(name("waits")?, 10, Priority(100), wide);
    apply(&mut state, vec![Command::SubmitJob { owner, spec: Box::new(spec) }])?;
    Ok(state)
}

fn start(state: &mut State) -> io::Result<()> {
    let mut reports: BTreeMap<MachineId, Vec<TaskReport>> = BTreeMap::new();
    for (task, row) in state.tasks().iter() {
        let Some(machine) = row.machine() else { continue };
        let report = TaskReport { task, attempt: row.attempt, what: Observed::Started };
        reports.entry(machine).or_default().push(report);
    }
    let report = |(machine, reports)| Command::TaskReports { machine, incarnation: 1, reports };
    apply(state, reports.into_iter().map(report).collect())
}
