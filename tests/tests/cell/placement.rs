//! Where tasks go on a running cell of virtual machines: services are spread before their packages
//! count, jobs inside an alloc set pair with its allocs, and constraints name machines, racks,
//! power domains and labels.

use crate::support::{Folder, Running, cell, json, stdout_of, text};
use crate::{wait_for, wait_machines};
use cellwright_cell::task::TaskState;
use serde_json::{Value, json as value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

struct Cell {
    folder: Folder,
    running: Running,
    address: String,
    /// Machines by name.
    machines: BTreeMap<String, Value>,
}

impl Cell {
    fn start(count: usize, options: &[&str]) -> Cell {
        let folder = Folder::new();
        let data = folder.path("data");
        let number = count.to_string();
        let cell = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--machines", &number];
        let running = Running::spawn_args(&[&cell[..], options].concat());
        let address = running.address();
        wait_machines(&address, count);
        let list = json(&["--master", &address, "machine", "ls", "-o", "json"]);
        let named =
            |machine: &Value| (machine["name"].as_str().unwrap().to_owned(), machine.clone());
        let machines = list.as_array().unwrap().iter().map(named).collect();
        Cell { folder, running, address, machines }
    }

    fn file(&self, spec: &Value) -> String {
        let file = self.folder.path("job.json");
        fs::write(&file, spec.to_string()).unwrap();
        file
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--master", self.address.as_str()], args].concat()
    }

    /// Runs the job, and waits until all of its tasks run.
    fn run(&self, spec: &Value) {
        let file = self.file(spec);
        stdout_of(&self.args(&["run", &file]));
        let count = spec["count"].as_u64().unwrap() as usize;
        wait_for(&self.address, spec["name"].as_str().unwrap(), |tasks| {
            tasks.iter().filter(|task| task.state == TaskState::Running).count() == count
        });
    }

    /// The machines of its tasks, by index.
    fn places(&self, job: &str) -> Vec<&Value> {
        let name = format!("dev/{job}");
        let status = json(&self.args(&["job", "status", &name, "-o", "json"]));
        let tasks = status["tasks"].as_array().unwrap().clone();
        let machine = |task: &Value| self.machines.get(task["machine"].as_str()?);
        tasks.iter().filter_map(machine).collect()
    }

    /// The allocs of its tasks, by index.
    fn allocs(&self, job: &str) -> Vec<Value> {
        let name = format!("dev/{job}");
        let status = json(&self.args(&["job", "status", &name, "-o", "json"]));
        status["tasks"].as_array().unwrap().iter().map(|task| task["alloc"].clone()).collect()
    }
}

fn job(name: &str, count: u32, priority: u32) -> Value {
    value!({
        "name": name, "count": count, "priority": priority,
        "task": { "limits": { "cpu": "10m", "ram": 16 << 20 }, "command": ["run"] },
    })
}

fn constraint(attribute: &str, operator: Value) -> Value {
    value!([{ "attribute": attribute, "operator": operator, "strength": "hard" }])
}

fn domains(places: &[&Value], field: &str) -> BTreeSet<String> {
    places.iter().map(|machine| machine["spec"][field].as_str().unwrap().to_owned()).collect()
}

#[test]
fn copies_of_a_service_are_spread_whoever_has_their_package() {
    let cell = Cell::start(12, &["--racks", "2", "--power-domains", "2"]);
    for (name, priority) in [("prod", 200), ("low", 100)] {
        let mut service = job(name, 1, priority);
        service["appclass"] = value!("latency_sensitive");
        let package = value!({ "name": name, "digest": "0".repeat(64), "bytes": 4096 });
        service["task"]["packages"] = value!([package]);
        // The first copy brings the package to one machine.
        cell.run(&service);
        service["count"] = value!(6);
        cell.run(&service);
        let places = cell.places(name);
        let machines: BTreeSet<&str> =
            places.iter().map(|machine| machine["name"].as_str().unwrap()).collect();
        assert_eq!(machines.len(), 6, "{name}");
        let in_first = places.iter().filter(|machine| machine["spec"]["rack"] == "rack-0").count();
        assert_eq!(in_first, 3, "{name}: three copies in each of two racks");
        assert_eq!(domains(&places, "power").len(), 2, "{name}");
    }
    cell.running.stop();
}

#[test]
fn jobs_inside_an_alloc_set_pair_by_index_unless_they_say_otherwise() {
    let cell = Cell::start(3, &[]);
    let mut set = job("pair", 3, 200);
    set["kind"] = value!("alloc_set");
    set["task"] = value!({ "limits": { "cpu": "100m", "ram": 256 << 20 }, "command": [] });
    set["spread"] = value!([{ "domain": "machine", "limit": 1 }]);
    cell.run(&set);
    let inside = |name: &str| {
        let mut inside = job(name, 3, 200);
        inside["alloc_set"] = value!({ "user": "dev", "job": "pair" });
        inside
    };
    for name in ["server", "saver"] {
        cell.run(&inside(name));
        assert_eq!(cell.allocs(name), ["dev/pair/0", "dev/pair/1", "dev/pair/2"], "{name}");
    }

    let mut apart = inside("apart");
    apart["spread"] = value!([{ "domain": "machine", "limit": 1 }]);
    let file = cell.file(&apart);
    let refused = refusal(&cell.args(&["run", &file]));
    assert!(refused.contains("alloc_pairing any"), "{refused}");
    apart["alloc_pairing"] = value!("any");
    cell.run(&apart);
    let places = cell.places("apart");
    let names: BTreeSet<&str> = places.iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 3, "one on each machine");
    cell.running.stop();
}

#[test]
fn constraints_name_machines_racks_power_domains_and_labels() {
    let options = ["--racks", "3", "--power-domains", "2", "--label", "zone=a,b"];
    let cell = Cell::start(12, &options);
    let shown = stdout_of(&cell.args(&["machine", "show", "dev-7"]));
    let label = shown.lines().find(|line| line.contains("label zone")).unwrap_or_default();
    assert!(label.ends_with(" b"), "{shown}");

    let place = |name: &str, attribute: &str, operator: Value| {
        let mut spec = job(name, 2, 100);
        spec["constraints"] = constraint(attribute, operator);
        cell.run(&spec);
        cell.places(name)
    };
    let on = place("named", "machine", value!({ "in": ["dev-3", "dev-5"] }));
    assert!(on.iter().all(|m| ["dev-3", "dev-5"].contains(&m["name"].as_str().unwrap())));
    let on = place("racked", "rack", value!({ "not_in": ["rack-0", "rack-1"] }));
    assert_eq!(domains(&on, "rack"), BTreeSet::from(["rack-2".to_owned()]));
    let on = place("fed", "power", value!({ "equal": "power-1" }));
    assert_eq!(domains(&on, "power"), BTreeSet::from(["power-1".to_owned()]));
    let on = place("zoned", "zone", value!({ "equal": "b" }));
    assert!(on.iter().all(|machine| machine["spec"]["labels"]["zone"] == "b"));

    let mut nowhere = job("nowhere", 1, 100);
    nowhere["constraints"] = constraint("machine", value!({ "equal": "dev-99" }));
    let file = cell.file(&nowhere);
    stdout_of(&cell.args(&["run", &file]));
    let why = json(&cell.args(&["explain", "nowhere/0", "-o", "json"]));
    let reasons = why["reasons"].as_array().unwrap();
    assert_eq!((reasons.len(), &reasons[0]["machines"]), (1, &value!(12)), "{why}");

    for (name, tier) in [("front", "web"), ("back", "db")] {
        let mut labelled = job(name, 1, 100);
        labelled["labels"] = value!({ "tier": tier });
        cell.run(&labelled);
    }
    let listed = |selector: &str| {
        let list = stdout_of(&cell.args(&["status", "-l", selector]));
        ["front", "back", "zoned"].map(|name| list.contains(&format!("dev/{name}")))
    };
    assert_eq!(listed("tier in (web, cache)"), [true, false, false]);
    assert_eq!(listed("tier not in (web)"), [false, true, true]);
    let bad = refusal(&cell.args(&["status", "-l", "tier in (web"]));
    assert!(bad.contains("a in (b, c)"), "{bad}");
    cell.running.stop();
}

#[test]
fn whole_cores_are_promised_once_and_what_is_short_of_them_waits() {
    let cell = Cell::start(2, &[]);
    let cpu = cell.machines["dev-0"]["spec"]["capacity"]["cpu"].as_u64().unwrap();
    // One core of each machine stays for tasks that reserve none.
    let cores = cpu / 1000 - 1;
    let mut owner = job("owner", 2, 100);
    owner["appclass"] = value!("latency_sensitive");
    owner["task"]["limits"]["cpu"] = value!(cores);
    owner["task"]["isolation"] = value!({ "whole_cores": cores });
    cell.run(&owner);
    // Usage is far below the limit: by its reservation alone, more would fit in time.
    owner["name"] = value!("late");
    owner["count"] = value!(1);
    owner["task"]["limits"]["cpu"] = value!(1);
    owner["task"]["isolation"] = value!({ "whole_cores": 1 });
    let file = cell.file(&owner);
    stdout_of(&cell.args(&["run", &file]));
    let why = stdout_of(&cell.args(&["explain", "late/0"]));
    assert!(why.contains("whole-cores"), "{why}");
    owner["name"] = value!("batch");
    owner["appclass"] = value!("batch");
    let file = cell.file(&owner);
    let refused = refusal(&cell.args(&["run", &file]));
    assert!(refused.contains("whole_cores") && refused.contains("latency_sensitive"), "{refused}");
    cell.running.stop();
}

/// What a command says that fails.
fn refusal(args: &[&str]) -> String {
    let output = cell(args);
    assert!(!output.status.success(), "{args:?}");
    text(&output.stderr)
}
