//! How long until a task runs: one after the other, from the request to the word that it runs.

use super::cell::{Cell, Driver, wait_for_changes};
use super::{BOOK, quantile};
use crate::flags::Flags;
use crate::masters::cell::Folder;
use crate::section_report::Section;
use cellwright_cell::event::TaskChange;
use serde_json::json;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

pub async fn main(flags: Flags) -> io::Result<()> {
    let rounds: usize = flags.number("rounds", 50)?;
    let mut section = Section::new(
        "Start of a task",
        &format!(
            "{rounds} jobs of one task, one after the other. Timed from the request until the \
             event feed says that the task runs: admitted and flushed, placed by the scheduler, \
             flushed again, told to the agent, started, reported, flushed. Beside it the same \
             program started by hand, and `runc run` of a container that does nothing, to its end."
        ),
    );
    let spawned = times(rounds, bare_spawn)?;
    let bare = Bare::new()?;
    let ran = times(rounds, || bare.run())?;
    for (driver, mut compared, room) in
        [(Driver::Process, spawned, 5.0), (Driver::Container, ran, 10.0)]
    {
        let mut taken = submitted(driver, rounds).await?;
        let name = driver.name();
        let (ours, bare) = (quantile(&mut taken, 0.5), quantile(&mut compared, 0.5));
        section.row(&format!("{name}: submit to running, p50"), ours, "ms", "");
        section.row("... p99", quantile(&mut taken, 0.99), "ms", "");
        section.row("... bare, p50", bare, "ms", "");
        section.row("... beyond bare, p50", ours - bare, "ms", &format!("≤ {room}"));
    }
    section.limits(
        "three flushes to disk, one scheduling pass and two hanging polls answered, one after the \
         other; in a container, the runtime itself.",
    );
    section.save(&BOOK, "start")
}

/// Milliseconds of each.
fn times(rounds: usize, mut work: impl FnMut() -> io::Result<()>) -> io::Result<Vec<f64>> {
    (0..rounds)
        .map(|_| {
            let begun = Instant::now();
            work()?;
            Ok(begun.elapsed().as_secs_f64() * 1000.0)
        })
        .collect()
}

fn bare_spawn() -> io::Result<()> {
    // Returns once the program has taken the place of its parent's.
    let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn()?;
    child.kill()?;
    child.wait().map(drop)
}

async fn submitted(driver: Driver, rounds: usize) -> io::Result<Vec<f64>> {
    let mut cell = Cell::start("start").await?;
    cell.agent("m1", driver, "").await?;
    let mut events = cell.events();
    let mut taken = Vec::new();
    for round in 0..=rounds {
        let spec = json!({
            "name": format!("start-{round}"), "count": 1, "priority": 150,
            "task": {
                "limits": { "cpu": 100, "ram": driver.min_ram() },
                "command": ["sleep", "1000"], "notice": 0,
            },
        });
        let begun = Instant::now();
        let job = cell.submit(spec).await?;
        wait_for_changes(&mut events, &job, 1, |change| {
            matches!(change, TaskChange::Started { .. })
        })
        .await?;
        let millis = begun.elapsed().as_secs_f64() * 1000.0;
        cell.stop_and_wait(&job).await?;
        // The first one warms what every later one finds warm.
        if round > 0 {
            taken.push(millis);
        }
    }
    Ok(taken)
}

/// A container made by hand: the machine's programs, read-only, and nothing else.
pub struct Bare {
    folder: Folder,
}

impl Bare {
    pub fn new() -> io::Result<Bare> {
        let folder = Folder::new("runc")?;
        let root = folder.path().join("rootfs");
        for name in ["usr", "proc", "dev"] {
            std::fs::create_dir_all(root.join(name))?;
        }
        for name in ["bin", "lib", "lib64", "sbin"] {
            if Path::new("/").join(name).is_symlink() {
                std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
            }
        }
        let made = Command::new("runc").arg("spec").arg("--bundle").arg(folder.path()).status()?;
        if !made.success() {
            return Err(io::Error::other("runc spec failed"));
        }
        let config = folder.path().join("config.json");
        let mut spec: serde_json::Value = serde_json::from_slice(&std::fs::read(&config)?)?;
        spec["process"]["terminal"] = json!(false);
        spec["process"]["args"] = json!(["true"]);
        if let Some(mounts) = spec["mounts"].as_array_mut() {
            mounts.push(json!({
                "destination": "/usr", "source": "/usr", "type": "bind", "options": ["bind", "ro"],
            }));
        }
        std::fs::write(&config, spec.to_string())?;
        Ok(Bare { folder })
    }

    pub fn bundle(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self) -> io::Result<()> {
        let id = format!("cellwright-bench-{}", std::process::id());
        let mut command = Command::new("runc");
        command.args(["run", "--bundle"]).arg(self.bundle()).arg(id).stdin(Stdio::null());
        if command.status()?.success() { Ok(()) } else { Err(io::Error::other("runc run failed")) }
    }
}
