//! A machine that falls silent: how soon its task runs elsewhere, and which silence moves nothing.

use super::BOOK;
use super::cell::{Cell, Driver, descendants, signal};
use crate::flags::Flags;
use crate::masters::cell::until;
use crate::section_report::Section;
use cellwright_api::types::TaskView;
use cellwright_cell::task::TaskState;
use serde_json::json;
use std::io;
use std::time::{Duration, Instant};

pub async fn main(flags: Flags) -> io::Result<()> {
    let rounds: usize = flags.number("rounds", 3)?;
    let mut section = Section::new(
        "Loss of a machine",
        &format!(
            "Three agents with all settings as they come, a service of one task. Its agent is \
             stopped for 5 s, then killed with everything below it; timed until the feed shows the \
             task running on another machine. {rounds} times."
        ),
    );
    let mut moved_by_a_blip = 0;
    let mut replaced: f64 = 0.0;
    for round in 0..rounds {
        let mut cell = Cell::start("loss").await?;
        let mut agents = Vec::new();
        for name in ["m1", "m2", "m3"] {
            agents.push((name, cell.agent(name, Driver::Process, "").await?));
        }
        let spec = json!({
            "name": format!("loss-{round}"), "count": 1, "priority": 150,
            "task": {
                "limits": { "cpu": 100, "ram": 1 << 20 }, "command": ["sleep", "100000"],
                "notice": 0,
            },
        });
        let job = cell.submit(spec).await?;
        let runs = |task: &TaskView| task.state == TaskState::Running;
        let first = cell.wait_for_tasks(&job, 1, runs).await?.remove(0);
        let agent = agents
            .iter()
            .find(|(name, _)| first.machine.as_ref().is_some_and(|m| m.as_str() == *name));
        let agent = agent.map(|(_, pid)| *pid).ok_or_else(|| io::Error::other("no machine"))?;
        signal("-STOP", &[agent])?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        signal("-CONT", &[agent])?;
        // Long enough for whatever the silence set off to be seen.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let now = cell.wait_for_tasks(&job, 1, runs).await?.remove(0);
        moved_by_a_blip += usize::from(now.attempt != first.attempt);
        let mut gone = descendants(agent);
        gone.push(agent);
        let begun = Instant::now();
        signal("-KILL", &gone)?;
        until("the task runs elsewhere", async || {
            let task = cell.tasks(&job).await.ok()?.pop()?;
            (runs(&task) && task.attempt > now.attempt).then_some(())
        })
        .await?;
        replaced = replaced.max(begun.elapsed().as_secs_f64());
        cell.stop_and_wait(&job).await?;
    }
    section.row("killed to running elsewhere, longest", replaced, "s", "≤ 20");
    section.row("tasks moved by a silence of 5 s", moved_by_a_blip as f64, "", "0");
    section.limits("how many polls a machine may miss before it counts as lost.");
    section.save(&BOOK, "loss")
}
