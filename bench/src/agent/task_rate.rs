//! How many tasks a second one agent takes through their whole lives.

use super::BOOK;
use super::cell::{Cell, Driver, program, wait_for_changes};
use super::start_latency::Bare;
use crate::flags::Flags;
use crate::masters::cell::Folder;
use crate::section_report::Section;
use cellwright_agent::record::{Durability, write};
use cellwright_agent::shim::SHIM_BINARY;
use cellwright_agent::shim::protocol::{LAUNCH, LOGS, Launch, LogSettings};
use cellwright_api::types::TaskView;
use cellwright_cell::event::TaskChange;
use cellwright_cell::task::{TaskOutcome, TaskState};
use serde_json::json;
use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

pub async fn main(flags: Flags) -> io::Result<()> {
    let tasks: usize = flags.number("tasks", 1000)?;
    let mut section = Section::new(
        "Tasks that do nothing",
        &format!(
            "One job of {tasks} tasks that run `true`. Timed from the request until all are known \
             to have finished. Beside it a loop that starts as many shims by hand, as many at a \
             time as there are cores, and waits for each: around `true`, and around `runc run` of \
             it."
        ),
    );
    for driver in Driver::ALL {
        let ours = through_the_cell(driver, tasks).await?;
        let bare = bare_shims(driver, tasks)?;
        let name = driver.name();
        section.row(&format!("{name}: through the cell"), ours, "tasks/s", "");
        section.row("... bare loop of shims", bare, "tasks/s", "");
        section.row("... over bare", ours / bare, "x", "≥ 0.8");
    }
    section.limits(
        "the processors: every task is a shim, a program and, in a container, a runtime and its \
         mounts; the master and the scheduler run on the same cores.",
    );
    section.save(&BOOK, "rate")
}

async fn through_the_cell(driver: Driver, tasks: usize) -> io::Result<f64> {
    let mut cell = Cell::start("rate").await?;
    cell.agent("m1", driver, "").await?;
    let spec = json!({
        "name": "nothing", "count": tasks, "priority": 100, "appclass": "batch",
        "restart": { "max_failures": 0 },
        "task": {
            "limits": { "cpu": 1, "ram": driver.min_ram() },
            "command": ["true"], "notice": 0,
        },
    });
    let mut events = cell.events();
    let begun = Instant::now();
    let job = cell.submit(spec).await?;
    // By the feed: to list all of them again and again would be work of its own.
    let is_over =
        |change: &TaskChange| matches!(change, TaskChange::Finished | TaskChange::GaveUp { .. });
    wait_for_changes(&mut events, &job, tasks, is_over).await?;
    let took = begun.elapsed().as_secs_f64();
    let is_finished = |task: &TaskView| task.state == TaskState::Dead(TaskOutcome::Finished);
    cell.wait_for_tasks(&job, tasks, is_finished).await?;
    Ok(tasks as f64 / took)
}

/// What the agent would start: the shim beside the product.
fn shim_program() -> io::Result<std::path::PathBuf> {
    Ok(program()?.with_file_name(SHIM_BINARY))
}

/// Shims that nobody ordered, as many at a time as there are cores.
fn bare_shims(driver: Driver, tasks: usize) -> io::Result<f64> {
    let container = Bare::new()?;
    let folder = Folder::new("shims")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let program = shim_program()?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let one = |worker: usize| {
            for number in (worker..tasks).step_by(cores) {
                let dir = folder.path().join(number.to_string());
                std::fs::create_dir_all(dir.join(LOGS))?;
                let bundle = container.bundle().display().to_string();
                let id = format!("cellwright-bench-{}-{number}", std::process::id());
                let command = match driver {
                    Driver::Process => vec!["true".to_owned()],
                    Driver::Container => {
                        ["runc", "run", "--bundle", &bundle, &id].map(str::to_owned).to_vec()
                    }
                };
                write(&dir.join(LAUNCH), &launch(command, &dir), Durability::Process)
                    .map_err(io::Error::other)?;
                let mut shim = Command::new(&program);
                shim.arg("shim").arg(&dir).stdin(Stdio::null()).stdout(Stdio::null());
                if !shim.status()?.success() {
                    return Err(io::Error::other("a shim failed"));
                }
            }
            Ok(())
        };
        let workers: Vec<_> = (0..cores).map(|w| scope.spawn(move || one(w))).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| io::Error::other("a loop panicked"))?
        })
    })?;
    Ok(tasks as f64 / begun.elapsed().as_secs_f64())
}

fn launch(command: Vec<String>, dir: &std::path::Path) -> Launch {
    Launch {
        name: "bench/bare/0".into(),
        command,
        env: vec![("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())],
        directory: dir.to_owned(),
        run_as: None,
        logs: LogSettings { file_bytes: 1 << 20, files: 2, rate: 1 << 20 },
        lease_until: None,
        max_run: None,
        group: None,
        container: None,
        secrets: None,
        identity_dir: None,
    }
}
