//! Daemons on a running cell of virtual machines: one task on each machine, as machines drain, come
//! back and leave.

use crate::support::{self, Folder, Running, json, poll_until, stdout_of, text};
use crate::{wait_for, wait_machines};
use cellwright_cell::task::TaskState;
use serde_json::{Value, json as value};
use std::fs;

struct Cell {
    folder: Folder,
    running: Running,
    address: String,
}

impl Cell {
    fn start(machines: usize) -> Cell {
        let folder = Folder::new();
        let (data, number) = (folder.path("data"), machines.to_string());
        let listen = "127.0.0.1:0";
        let running = Running::spawn_args(&[
            "dev",
            "--data-dir",
            &data,
            "--listen",
            listen,
            "--machines",
            &number,
        ]);
        let address = running.address();
        wait_machines(&address, machines);
        Cell { folder, running, address }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--master", self.address.as_str()], args].concat()
    }

    fn file(&self, spec: &Value) -> String {
        let file = self.folder.path("job.json");
        fs::write(&file, spec.to_string()).unwrap();
        file
    }

    fn submit(&self, spec: &Value) -> String {
        let file = self.file(spec);
        stdout_of(&self.args(&["run", &file]))
    }

    fn status(&self, job: &str) -> Value {
        json(&self.args(&["job", "status", &format!("dev/{job}"), "-o", "json"]))
    }

    /// Waits until so many tasks of the job run.
    fn wait_running(&self, job: &str, running: usize) {
        wait_for(&self.address, job, |tasks| {
            tasks.iter().filter(|task| task.state == TaskState::Running).count() == running
        });
    }

    /// Machine by index, of the tasks that run.
    fn places(&self, job: &str) -> Vec<(u64, String)> {
        let status = self.status(job);
        let tasks = status["tasks"].as_array().unwrap().iter();
        let place =
            |task: &Value| Some((task["index"].as_u64()?, task["machine"].as_str()?.to_owned()));
        tasks.filter_map(place).collect()
    }
}

fn daemon(name: &str, priority: u32, cpu: u64) -> Value {
    value!({
        "name": name, "kind": "daemon", "priority": priority,
        "task": { "limits": { "cpu": format!("{cpu}m"), "ram": 16 << 20 }, "command": ["run"] },
    })
}

#[test]
fn a_daemon_follows_the_machines_of_the_cell() {
    let cell = Cell::start(3);
    let spec = daemon("ship", 200, 100);
    let plan = text(&support::cell(&cell.args(&["plan", &cell.file(&spec)])).stdout);
    assert!(plan.contains("3 added") && plan.contains("3 of 3 tasks"), "{plan}");
    assert!(cell.submit(&spec).contains("dev/ship of 3 tasks: created"));
    cell.wait_running("ship", 3);
    let before = cell.places("ship");
    let shown = stdout_of(&cell.args(&["status", "ship"]));
    assert!(shown.contains("runs on 3 of 3 machines"), "{shown}");
    // A drain ends although the daemon has nowhere to go.
    let (index, machine) = before[1].clone();
    stdout_of(&cell.args(&["drain", &machine, "--wait"]));
    cell.wait_running("ship", 2);
    let shown = stdout_of(&cell.args(&["status", "ship"]));
    assert!(shown.contains("runs on 2 of 3 machines, 1 draining"), "{shown}");
    assert!(!shown.contains(&machine), "{shown}");
    stdout_of(&cell.args(&["drain", &machine, "--undo"]));
    cell.wait_running("ship", 3);
    assert_eq!(cell.places("ship"), before, "task {index} is on its machine again");
    // One leaves for good.
    stdout_of(&cell.args(&["drain", &machine, "--wait"]));
    stdout_of(&cell.args(&["machine", "rm", &machine]));
    poll_until("two machines", || {
        let daemon = cell.status("ship")["job"]["daemon"].clone();
        (daemon["matching"] == 2 && daemon["with_task"] == 2).then_some(())
    });
    let events = stdout_of(&cell.args(&["events", "--job", "dev/ship"]));
    assert!(events.contains("meet its constraints (2 machines)"), "{events}");
    cell.running.stop();
}

#[test]
fn a_daemon_preempts_on_its_machine_or_waits_there_and_says_so() {
    let cell = Cell::start(2);
    let machines = json(&cell.args(&["machine", "ls", "-o", "json"]));
    let cpu = machines[0]["spec"]["capacity"]["cpu"].as_u64().unwrap();
    let most = cpu * 6 / 10;
    cell.submit(&daemon("large", 100, most));
    cell.wait_running("large", 2);
    // Of the same band: it waits, on each machine for its own.
    cell.submit(&daemon("late", 100, most));
    let why = poll_until("an explanation", || {
        let output = support::cell(&cell.args(&["explain", "late/0"]));
        let why = text(&output.stdout);
        why.contains("not its own").then_some(why)
    });
    assert!(why.contains("1 lacks cpu") && why.contains("1 is not its own"), "{why}");
    let late = cell.status("late");
    assert!(late["tasks"][0]["machine_for"].is_string(), "{late}");
    // Of a higher one, within its owner's half of the cell: it evicts.
    cell.submit(&daemon("top", 200, cpu * 45 / 100));
    cell.wait_running("top", 2);
    cell.wait_running("large", 0);
    // What the cell decides is refused where a job says it.
    let mut counted = daemon("counted", 100, 10);
    counted["count"] = value!(2);
    let output = support::cell(&cell.args(&["run", &cell.file(&counted)]));
    let refused = text(&output.stderr);
    assert!(refused.contains("a daemon has one task"), "{refused}");
    cell.running.stop();
}

#[test]
fn a_daemon_is_updated_machine_by_machine() {
    let cell = Cell::start(3);
    let mut spec = daemon("ship", 200, 100);
    spec["max_down"] = value!(1);
    cell.submit(&spec);
    cell.wait_running("ship", 3);
    let before = cell.places("ship");
    spec["task"]["command"] = value!(["run", "again"]);
    cell.submit(&spec);
    wait_for(&cell.address, "ship", |tasks| {
        tasks.iter().all(|task| task.version == 2 && task.state == TaskState::Running)
    });
    assert_eq!(cell.places("ship"), before);
    cell.running.stop();
}
