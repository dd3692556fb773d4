//! `cell dev --machines` with racks, power domains and attributes: what is dealt out to virtual
//! machines, and that jobs which ask for it are placed by it.

use crate::support::{Folder, Running, json, stdout_of};
use crate::{wait_for, wait_machines};
use cellwright_cell::task::TaskState;
use serde_json::{Value, json as value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const MACHINES: usize = 12;

fn start(folder: &Folder) -> (Running, String) {
    let data = folder.path("data");
    let cell = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--machines", "12"];
    let domains = ["--racks", "3", "--power-domains", "2", "--attribute", "arch=x86_64,arm64"];
    let running = Running::spawn_args(&[&cell[..], &domains].concat());
    let address = running.address();
    wait_machines(&address, MACHINES);
    (running, address)
}

fn job(name: &str, count: u32, spread: &str, arch: &str) -> Value {
    value!({
        "name": name, "count": count, "priority": 100,
        "spread": [{ "domain": spread, "limit": 1 }],
        "constraints": [{
            "attribute": "arch", "operator": { "equal": arch }, "strength": "hard",
        }],
        "task": { "limits": { "cpu": "10m", "ram": 16 << 20 }, "command": ["run"] },
    })
}

/// Machines by name.
fn machines(address: &str) -> BTreeMap<String, Value> {
    let list = json(&["--master", address, "machine", "ls", "-o", "json"]);
    let named = |machine: &Value| (machine["name"].as_str().unwrap().to_owned(), machine.clone());
    list.as_array().unwrap().iter().map(named).collect()
}

#[test]
fn racks_power_domains_and_attributes_are_dealt_out_and_decide_where_tasks_go() {
    let folder = Folder::new();
    let (running, address) = start(&folder);
    let at = ["--master", address.as_str()];
    let all = machines(&address);
    let count_of = |field: &str, name: &str| {
        all.values().filter(|machine| machine["spec"][field] == name).count()
    };
    assert_eq!([0, 1, 2].map(|rack| count_of("rack", &format!("rack-{rack}"))), [4, 4, 4]);
    // Racks 0 and 2 are on the first domain, rack 1 on the second.
    assert_eq!([0, 1].map(|power| count_of("power", &format!("power-{power}"))), [8, 4]);
    let arch = |machine: &Value| {
        machine["spec"]["attributes"]["arch"]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(all.values().filter(|machine| arch(machine) == "arm64").count(), MACHINES / 2);
    let shown = stdout_of(&[&at[..], &["describe", "dev-7"]].concat());
    for part in ["rack-1", "power-1", "arm64"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }

    let run = |spec: &Value| {
        let file = folder.path("job.json");
        fs::write(&file, spec.to_string()).unwrap();
        stdout_of(&[&at[..], &["run", &file]].concat());
    };
    let places = |name: &str| -> Vec<Value> {
        let name = format!("dev/{name}");
        let status = json(&[&at[..], &["job", "status", &name, "-o", "json"]].concat());
        let tasks = status["tasks"].as_array().unwrap().iter();
        tasks.filter_map(|task| all.get(task["machine"].as_str()?)).cloned().collect()
    };
    let domains = |places: &[Value], field: &str| -> BTreeSet<String> {
        let name = |machine: &Value| machine["spec"][field].as_str().unwrap().to_owned();
        places.iter().map(name).collect()
    };
    run(&job("apart", 3, "rack", "arm64"));
    run(&job("fed", 2, "power", "x86_64"));
    for (name, count) in [("apart", 3), ("fed", 2)] {
        wait_for(&address, name, |tasks| {
            tasks.iter().filter(|task| task.state == TaskState::Running).count() == count
        });
    }
    let (apart, fed) = (places("apart"), places("fed"));
    assert!(apart.iter().all(|machine| arch(machine) == "arm64"), "{apart:?}");
    assert!(fed.iter().all(|machine| arch(machine) == "x86_64"), "{fed:?}");
    assert_eq!((apart.len(), domains(&apart, "rack").len()), (3, 3));
    assert_eq!((fed.len(), domains(&fed, "power").len()), (2, 2));

    // There is no fourth rack, and half of the machines are of the other kind.
    stdout_of(&[&at[..], &["resize", "apart", "--tasks", "4"]].concat());
    let waits = json(&[&at[..], &["explain", "apart/3", "-o", "json"]].concat());
    let reasons = waits["reasons"].as_array().unwrap().iter();
    let counted: BTreeMap<&str, u64> = reasons
        .map(|reason| (reason["code"].as_str().unwrap(), reason["machines"].as_u64().unwrap()))
        .collect();
    assert_eq!(counted, BTreeMap::from([("constraint", 6), ("spread", 6)]), "{waits}");
    running.stop();
}
