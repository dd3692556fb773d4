//! `cell drain MACHINE`: drains a machine before maintenance; a top-level verb because it is typed
//! so often. With `--wait`, stderr shows how many tasks are left and whose disruption limit holds
//! them: a drain can take as long as the jobs' owners allow.

use super::Success;
use super::machine::{Drain, drain, drain_wait_text, set_draining};
use super::parse::{duration, name};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::print_prose;
use crate::progress::StatusLine;
use crate::runtime::{block_on, unless_interrupted};
use crate::{clock, format};
use cellwright_api::types::MachineView;
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use clap::Args;

/// Take machines out of use: no new work, and what runs there moves within the jobs' budgets
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The machines
    #[arg(value_name = "MACHINE", value_parser = name, required_unless_present = "named")]
    machines: Vec<Name>,

    /// The same; repeat it for several
    #[arg(short = 'm', long = "machine", value_name = "MACHINE", value_parser = name)]
    named: Vec<Name>,

    /// Take work again
    #[arg(long)]
    undo: bool,

    /// Stay until nothing is on them any more, and say how far it is
    #[arg(long, conflicts_with = "undo")]
    wait: bool,

    /// So long at most: then what is still there ends, whatever budgets and notices say
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "undo")]
    deadline: Option<Span>,

    /// End what is there at once, whatever budgets and notices say
    #[arg(long, conflicts_with_all = ["undo", "deadline"])]
    now: bool,
}

impl DrainArgs {
    pub fn run(mut self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        self.machines.append(&mut self.named);
        let deadline = if self.now { Some(Span::ZERO) } else { self.deadline };
        let wanted = if self.undo { Drain::Off } else { Drain::On(deadline) };
        if !self.wait {
            self.machines.iter().try_for_each(|machine| drain(&cell, machine, wanted))?;
            return Ok(Success::Done);
        }
        for machine in &self.machines {
            print_prose(&set_draining(&cell, machine, wanted)?)?;
        }
        let emptied = wait_until_empty(&cell, &self.machines);
        block_on(unless_interrupted(async || draining_text(&self.machines), emptied))
    }
}

fn draining_text(machines: &[Name]) -> String {
    let named: Vec<&str> = machines.iter().map(Name::as_str).collect();
    let named = named.join(" ");
    let goes = if machines.len() == 1 { "the drain goes" } else { "the drains go" };
    format!(
        "{goes} on without you\n\
         next: cell drain {named} --wait\n\
         or take it back: cell drain {named} --undo"
    )
}

async fn wait_until_empty(cell: &Cell, machines: &[Name]) -> Result<Success, Failure> {
    let mut progress = StatusLine::to_stderr();
    // The watch fires at once and then whenever something has changed in the cell.
    let mut changes = cell.client.watch::<serde_json::Value>("/v1/watch/overview", None);
    let mut remaining: Vec<&Name> = machines.iter().collect();
    loop {
        let (mut occupied, mut lines) = (Vec::new(), Vec::new());
        for machine in remaining {
            let now = cell.client.machine(machine).await?.value.item;
            if !now.draining {
                return Err(Failure::Operation {
                    message: format!(
                        "machine {machine} takes work again: somebody ended the drain"
                    ),
                    next: format!("cell machine show {machine}"),
                });
            }
            if now.tasks == 0 {
                progress.suspend(|| print_prose(&empty_text(machine)))?;
                continue;
            }
            lines.extend(progress_lines(&now, clock::now()));
            occupied.push(machine);
        }
        if occupied.is_empty() {
            return Ok(Success::Done);
        }
        remaining = occupied;
        progress.update(lines);
        changes.next().await?;
    }
}

fn empty_text(machine: &Name) -> String {
    format!(
        "machine {machine} has no tasks any more\n\
         next: cell machine rm {machine}, or cell drain {machine} --undo\n"
    )
}

/// How many tasks are left on it, and which of them wait for which limit.
fn progress_lines(machine: &MachineView, now: Time) -> Vec<String> {
    let tasks = format::pluralize(u64::from(machine.tasks), "task");
    let leaving = match machine.stopping {
        0 => String::new(),
        leaving => format!(", {} on the way out", format::count(u64::from(leaving))),
    };
    let mut lines = vec![format!("machine {}: {tasks} left{leaving}", machine.name)];
    lines.extend(machine.drain_waits.iter().map(|wait| drain_wait_text(wait, now)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_waits_for_a_drain_is_told_how_far_it_is_and_whose_limit_it_waits_for() {
        let some = json!({ "cpu": 1000, "ram": 1 << 30 });
        let mut machine: MachineView = serde_json::from_value(json!({
            "name": "m1", "status": "up", "draining": true, "over_committed": false,
            "generation": 1, "incarnation": 1, "spec": { "name": "m1", "capacity": some },
            "reserved": some, "prod_limits": some, "limits": some, "available": some,
            "available_prod": some, "tasks": 3, "stopping": 1, "named": [], "devices_used": [],
            "packages": 0, "retained_bytes": 0, "resource_pressure": [], "since": 0, "drain_waits": [{
                "job": { "user": "ann", "job": "web" }, "tasks": 2, "next": 60_000,
                "limit": "disruptions", "down": 0,
            }],
        }))
        .unwrap();
        assert_eq!(
            progress_lines(&machine, Time(0)),
            [
                "machine m1: 3 tasks left, 1 on the way out",
                "2 tasks wait for the disruption limit of ann/web, next at 1970-01-01 00:01:00Z",
            ]
        );
        (machine.tasks, machine.stopping) = (1, 0);
        machine.drain_waits.clear();
        assert_eq!(progress_lines(&machine, Time(0)), ["machine m1: 1 task left"]);
    }

    #[test]
    fn whoever_leaves_is_told_that_the_drain_goes_on() {
        let names = |names: &[&str]| -> Vec<Name> {
            names.iter().map(|name| Name::new(name).unwrap()).collect()
        };
        let single = draining_text(&names(&["m1"]));
        assert!(single.starts_with("the drain goes on without you\nnext: cell drain m1 --wait"));
        assert!(draining_text(&names(&["m1", "m2"])).contains("cell drain m1 m2 --undo"));
    }
}
