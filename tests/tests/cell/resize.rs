//! Limits that change in place, from the command line: what a plan says of it, what is done, and
//! what the kernel is told for a task in a container.

use crate::agent::wait;
use crate::containers::{RootCell, can_run};
use crate::support::{Folder, Running, cell, json, poll_until, stdout_of, text};
use crate::{wait_for, wait_machines};
use cellwright_api::types::TaskView;
use cellwright_cell::task::TaskState;
use serde_json::{Value, json as value};
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// The memory limit of a control group.
fn memory_limit(name: &str, base: &str) -> u64 {
    let files = ["memory/BASE/NAME/memory.limit_in_bytes", "BASE/NAME/memory.max"];
    let read = |file: &str| {
        let path = file.replace("BASE", base).replace("NAME", name);
        fs::read_to_string(Path::new("/sys/fs/cgroup").join(path)).ok()
    };
    files.into_iter().find_map(read).expect("a group").trim().parse().expect("a limit")
}

#[test]
fn a_container_keeps_running_with_other_limits() {
    if !can_run("resize") {
        return;
    }
    let cell = RootCell::open("container");
    wait_machines(&cell.address, 1);
    cell.run("grow", "while :; do sleep 1000 & wait $!; done", value!({}));
    let runs = |task: &TaskView| task.state == TaskState::Running;
    wait(&cell.address, "grow", runs);
    let groups = cell.groups();
    let group = groups.first().expect("it has a group");
    let name = group.file_name().unwrap().to_str().unwrap().to_owned();
    let base = group.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(memory_limit(&name, &base), 64 * MIB);
    let before = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    let args = ["--master", &cell.address, "resize", "grow", "--cpu", "0.2", "--ram", "96MiB"];
    let said = stdout_of(&args);
    assert!(said.starts_with("job dev/grow takes its new size as version 2\n"), "{said}");
    let confirmed = |ram: u64| {
        move |task: &TaskView| {
            runs(task) && task.limits.ram == ram && task.limits_in_force.is_none()
        }
    };
    let task = wait(&cell.address, "grow", confirmed(96 * MIB)).remove(0);
    assert_eq!((task.attempt, memory_limit(&name, &base)), (1, 96 * MIB));
    stdout_of(&["--master", &cell.address, "resize", "grow", "--ram", "48MiB"]);
    let task = wait(&cell.address, "grow", confirmed(48 * MIB)).remove(0);
    assert_eq!((task.attempt, memory_limit(&name, &base)), (1, 48 * MIB));
    // Its first process may have started others since.
    let after = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert!(before.lines().next().is_some_and(|first| after.lines().any(|pid| pid == first)));
    stdout_of(&["--master", &cell.address, "stop", "grow", "--now"]);
    wait_for(&cell.address, "grow", |tasks| tasks.iter().all(|task| task.state.is_dead()));
    cell.stop();
}

/// A cell of virtual machines with two cores each.
fn virtual_cell(count: usize) -> (Folder, Running, String) {
    let folder = Folder::new();
    let (data, count_text) = (folder.path("data"), count.to_string());
    let size = ["--machines", &count_text, "--cpu", "2", "--ram", "4GiB"];
    let cell = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0"];
    let running = Running::spawn_args(&[&cell[..], &size].concat());
    let address = running.address();
    wait_machines(&address, count);
    (folder, running, address)
}

fn job(count: u32, cpu: &str) -> Value {
    value!({
        "name": "web", "count": count, "priority": 150, "max_down": 1,
        "spread": [{ "domain": "machine", "limit": 2 }],
        "task": { "limits": { "cpu": cpu, "ram": 64 << 20 }, "command": ["sim", "use", "50", "50"] },
    })
}

#[test]
fn a_plan_says_who_is_resized_and_who_moves_and_the_update_does_just_that() {
    let (folder, running, address) = virtual_cell(2);
    let file = folder.path("web.json");
    let args = |verb: &'static str| ["--master", address.as_str(), verb, file.as_str()];
    let write = |spec: &Value| fs::write(&file, spec.to_string()).unwrap();
    // Two on each machine.
    write(&job(4, "500m"));
    stdout_of(&args("run"));
    let all_run = |tasks: &[TaskView]| {
        tasks.len() == 4 && tasks.iter().all(|task| task.state == TaskState::Running)
    };
    wait_for(&address, "web", all_run);
    write(&job(4, "900m"));
    let plan = stdout_of(&args("plan"));
    assert!(plan.contains("  tasks   4 resized in place\n"), "{plan}");
    assert!(plan.contains("  resizes tasks 0-3\n"), "{plan}");
    assert!(plan.contains("(may move)"), "{plan}");
    stdout_of(&args("run"));
    let sized = |cpu: u64| {
        move |tasks: &[TaskView]| {
            all_run(tasks)
                && tasks.iter().all(|t| t.limits.cpu == cpu && t.limits_in_force.is_none())
        }
    };
    wait_for(&address, "web", sized(900));
    let list = json(&["--master", &address, "job", "status", "dev/web", "-o", "json"]);
    let attempts: Vec<&Value> =
        list["tasks"].as_array().unwrap().iter().map(|task| &task["attempt"]).collect();
    assert_eq!(attempts, [1, 1, 1, 1]);
    // One of the two on each machine has to go for the other, and finds no place.
    write(&job(4, "1200m"));
    let plan = cell(&["--master", &address, "plan", &file, "-o", "json"]);
    let plan: Value = serde_json::from_slice(&plan.stdout).expect("a plan");
    let effects = plan["jobs"][0]["effects"].as_array().unwrap();
    let count = |word: &str| {
        let of = effects.iter().filter(|effect| effect["change"] == word);
        of.map(|effect| effect["count"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((count("resized"), count("moved")), (2, 2), "{effects:?}");
    let fields = value!(["task.limits"]);
    assert!(effects.iter().all(|effect| effect["fields"] == fields), "{effects:?}");
    // Less is in place for all of them, and leaves no update behind.
    stdout_of(&["--master", &address, "resize", "web", "--cpu", "0.3"]);
    wait_for(&address, "web", sized(300));
    let update = cell(&["--master", &address, "update", "web", "undo"]);
    assert!(text(&update.stderr).contains("no update of job dev/web is open"));
    poll_until("no event of the change", || {
        let events = stdout_of(&["--master", &address, "events", "--job", "web"]);
        let flat = events.split_whitespace().collect::<Vec<_>>().join(" ");
        flat.contains("cpu 0.9 cores -> 0.3 cores").then_some(())
    });
    running.stop();
}
