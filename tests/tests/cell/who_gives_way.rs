//! Whose wish holds when two want the same room: budgets and notices of those who are in the way
//! last as long as the cell or its operator allows, and no longer.

use crate::support::{Folder, Running, cell, json, poll_until, stdout_of, text};
use crate::{wait_for, wait_machines};
use cellwright_api::types::TaskView;
use cellwright_cell::task::TaskState;
use serde_json::{Value, json as value};
use std::fs;

/// A year and a day, in milliseconds.
const YEAR: u64 = 366 * 86_400_000;

struct World {
    folder: Folder,
    running: Running,
    address: String,
}

impl World {
    /// A cell with so many virtual machines of four cores.
    fn of_virtual_machines(number: usize) -> World {
        let count = number.to_string();
        let world = World::start(&["--machines", &count, "--cpu", "4"]);
        wait_machines(&world.address, number);
        world
    }

    fn start(options: &[&str]) -> World {
        let folder = Folder::new();
        let data = folder.path("data");
        let dev = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0"];
        let running = Running::spawn_args(&[&dev[..], options].concat());
        let address = running.address();
        World { folder, running, address }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--master", self.address.as_str()][..], args].concat()
    }

    fn say(&self, args: &[&str]) -> String {
        stdout_of(&self.args(args))
    }

    /// Runs the job; returns what is said on standard error.
    fn run(&self, spec: &Value) -> String {
        let file = self.folder.path("job.json");
        fs::write(&file, spec.to_string()).unwrap();
        let output = cell(&self.args(&["run", &file]));
        let told = text(&output.stderr);
        assert!(output.status.success(), "{told}");
        told
    }

    /// The explanation of a task, its lines joined.
    fn explain(&self, task: &str) -> String {
        self.say(&["explain", task]).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn wait(&self, job: &str, is_reached: impl Fn(&[TaskView]) -> bool) {
        wait_for(&self.address, job, is_reached);
    }

    fn wait_running(&self, job: &str, count: usize) {
        self.wait(job, |tasks| running(tasks) == count);
    }
}

fn running(tasks: &[TaskView]) -> usize {
    tasks.iter().filter(|task| task.state == TaskState::Running).count()
}

fn job(name: &str, priority: u32, count: u32, cores: u32) -> Value {
    value!({
        "name": name, "count": count, "priority": priority,
        "task": { "limits": { "cpu": cores, "ram": 16 << 20 }, "command": ["run"] },
    })
}

#[test]
fn free_work_that_can_spare_nobody_makes_room_for_production_and_for_a_drain_with_a_deadline() {
    let world = World::of_virtual_machines(1);
    let mut free = job("free", 0, 4, 1);
    free["max_down"] = value!(0);
    world.run(&free);
    world.wait_running("free", 4);
    world.run(&job("vital", 200, 1, 2));
    world.wait_running("vital", 1);
    world.wait("free", |tasks| running(tasks) == 2);

    // Of its own band nobody overrules it, and no drain without a deadline.
    world.run(&job("free2", 99, 1, 1));
    let why = poll_until("free2 is never explained", || {
        let why = json(&world.args(&["explain", "free2/0", "-o", "json"]));
        (why["victims"].as_array().is_some_and(|victims| !victims.is_empty())).then_some(why)
    });
    assert_eq!(why["victims_allowed"], value!(false), "{why}");
    world.say(&["drain", "dev-0"]);
    let left_alone = world.explain("free/0") + &world.explain("free/1") + &world.explain("free/2");
    assert!(left_alone.contains("max_down of dev/free is 0, so it is left alone"), "{left_alone}");
    let said = world.say(&["drain", "dev-0", "--deadline", "2s"]);
    assert!(said.contains("is being drained, and empty in 2 s"), "{said}");
    let shown = world.say(&["machine", "show", "dev-0"]);
    assert!(shown.contains("draining, until"), "{shown}");
    for (job, count) in [("free", 4), ("vital", 1)] {
        world.wait(job, |tasks| {
            tasks.iter().filter(|task| task.state == TaskState::Pending).count() == count
        });
    }
    world.running.stop();
}

/// A program that ignores warnings, and says when it does so.
fn stubborn(world: &World, name: &str) -> Value {
    let ready = world.folder.path(&format!("{name}-ready"));
    let script = format!("trap '' TERM; : > {ready}; while :; do sleep 1000 & wait $!; done");
    let mut spec = job(name, 100, 1, 0);
    spec["task"]["limits"]["cpu"] = value!("10m");
    spec["task"]["command"] = value!(["sh", "-c", script]);
    spec["task"]["notice"] = value!(YEAR);
    spec
}

fn wait_ready(world: &World, name: &str) {
    let ready = world.folder.0.join(format!("{name}-ready"));
    poll_until("it never starts", || ready.exists().then_some(()));
}

#[test]
fn a_notice_of_a_year_is_cut_told_to_who_waits_and_ended_by_its_owner() {
    let world = World::start(&["--driver", "process"]);
    wait_machines(&world.address, 1);
    let mut slow = stubborn(&world, "slow");
    slow["task"]["static_ports"] = value!([47_311]);
    let told = world.run(&slow);
    let warning = "task.notice is 366 d, and batch tasks get at most 2 min in this cell";
    assert!(told.contains(warning), "{told}");
    wait_ready(&world, "slow");
    let mut vital = job("vital", 200, 1, 0);
    vital["task"]["limits"]["cpu"] = value!("10m");
    vital["task"]["command"] = value!(["sleep", "1000"]);
    vital["task"]["static_ports"] = value!([47_311]);
    let told = world.run(&vital);
    assert!(!told.contains("warning"), "{told}");
    world.wait("vital", |tasks| tasks[0].state == TaskState::Assigned);
    let why = world.explain("vital/0");
    let waits = "It waits for dev/slow/0 to leave: it has its notice, and is killed in";
    assert!(why.contains(waits), "{why}");
    let data = json(&world.args(&["explain", "vital/0", "-o", "json"]));
    assert_eq!(data["stopping"][0]["task"], value!("dev/slow/0"), "{data}");
    let said = world.say(&["stop", "slow/0", "--now"]);
    assert!(said.contains("task dev/slow/0 is killed"), "{said}");
    world.wait_running("vital", 1);
    world.say(&["stop", "vital", "--now"]);

    // What can spare nobody and hears nothing leaves a machine that is to be empty now.
    let mut sticky = stubborn(&world, "sticky");
    sticky["max_down"] = value!(0);
    world.run(&sticky);
    world.wait_running("sticky", 1);
    wait_ready(&world, "sticky");
    let machines = json(&world.args(&["machine", "ls", "-o", "json"]));
    let machine = machines[0]["name"].as_str().unwrap().to_owned();
    world.say(&["drain", &machine, "--deadline", "1h"]);
    let why = world.explain("sticky/0");
    assert!(why.contains("Its machine drains: it leaves in"), "{why}");
    let said = world.say(&["drain", &machine, "--now"]);
    assert!(said.contains("what runs there is killed"), "{said}");
    world.wait("sticky", |tasks| tasks[0].state == TaskState::Pending);
    world.running.stop();
}

fn pending(tasks: &[TaskView]) -> usize {
    tasks.iter().filter(|task| task.state == TaskState::Pending).count()
}

/// A gang of two, each of which needs a machine of its own.
fn gang() -> Value {
    let mut gang = job("train", 100, 2, 3);
    gang["gang"] = value!(true);
    gang
}

#[test]
fn production_takes_the_places_of_a_whole_gang_and_gives_them_back_together() {
    let world = World::of_virtual_machines(2);
    world.run(&gang());
    world.wait_running("train", 2);
    world.run(&job("vital", 200, 1, 3));
    world.wait_running("vital", 1);
    world.wait("train", |tasks| pending(tasks) == 2);
    for task in ["train/0", "train/1"] {
        let why = world.explain(task);
        assert!(why.contains("all 2 of the gang must find a place together"), "{why}");
        assert!(why.contains("preempted by dev/vital/0"), "{why}");
    }
    world.say(&["stop", "vital"]);
    world.wait_running("train", 2);
    world.running.stop();
}

#[test]
fn a_gang_that_lost_a_machine_gives_back_the_other_and_comes_back_whole() {
    let world = World::of_virtual_machines(2);
    let mut gang = gang();
    gang["repair"] = value!("5s");
    world.run(&gang);
    world.wait_running("train", 2);
    world.say(&["drain", "dev-0"]);
    let holds = "Its gang holds 1 place and lacks 1 task: it gives back what it holds in";
    poll_until("nobody says that the gang is broken", || {
        let told = world.explain("train/0") + &world.explain("train/1");
        told.contains(holds).then_some(())
    });
    world.wait("train", |tasks| pending(tasks) == 2);
    let told = world.explain("train/0") + &world.explain("train/1");
    assert!(told.contains("its gang lost a task and could not be made whole in time"), "{told}");
    // What it gave back is there for others, and it comes back as a whole.
    world.run(&job("other", 99, 1, 3));
    world.wait_running("other", 1);
    world.say(&["machine", "undrain", "dev-0"]);
    world.wait_running("train", 2);
    world.running.stop();
}
