//! Host volumes, tested with the real binary: tasks that mount one run where it is offered, and are
//! pending with the reason where no machine offers it.

use crate::agent::{is_running_attempt, wait};
use crate::containers::can_run;
use crate::support::{Folder, Running, cell, command, free_address, json, stdout_of, text};
use serde_json::{Value, json as value};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Two machines with containers on one computer: `m1` offers no host volume, `m2` offers one.
struct TwoAgents {
    folder: Folder,
    address: String,
    volume_path: String,
    running: Vec<Running>,
}

impl TwoAgents {
    fn open() -> TwoAgents {
        let (folder, address) = (Folder::new(), free_address());
        let volume_path = folder.path("lent");
        fs::create_dir(&volume_path).unwrap();
        fs::set_permissions(&volume_path, fs::Permissions::from_mode(0o777)).unwrap();
        let masters = folder.path("masters");
        let dev = ["master", "start", "--dev", "--data-dir", &masters, "--listen", &address];
        let master = Running::spawn_args(&dev);
        master.address();
        let mut pair = TwoAgents { folder, address, volume_path, running: vec![master] };
        pair.agent(1, "[]");
        pair.agent(2, &format!("[{:?}]", pair.volume_path));
        pair
    }

    fn agent(&mut self, number: u16, volumes: &str) {
        let name = format!("m{number}");
        let (data, file) = (self.folder.path(&name), self.folder.path(&format!("{name}.toml")));
        let first = 20_000 + 1000 * number;
        let last = first + 999;
        let config = format!(
            "name = {name:?}\ndata_dir = {data:?}\ndriver = \"container\"\nvolumes = {volumes}\n\
             find_devices = false\nports = {{ first = {first}, last = {last} }}\n\
             attributes = {{ place = {{ text = {name:?} }} }}\n"
        );
        fs::write(&file, config).unwrap();
        let args = ["--master", &self.address, "agent", "start", "--config", &file];
        let agent = Running::spawn_args(&args);
        agent.wait_for_line(&format!("cell agent of {name}"));
        self.running.push(agent);
    }

    /// Writes a file with a job of `count` tasks that keep running; `more` is merged into it.
    fn file(&self, job: &str, count: u32, isolation: &Value, more: &Value) -> String {
        let script = "test ! -d /data || touch /data/$CELL_INDEX || exit 1; exec sleep 1000";
        let mut spec = value!({
            "name": job, "count": count, "priority": 100,
            "restart": { "max_failures": 0, "backoff": 1, "backoff_max": 1 },
            "task": {
                "limits": { "cpu": "100m", "ram": 64 << 20 }, "isolation": isolation,
                "command": ["sh", "-c", script],
            },
        });
        for (name, value) in more.as_object().expect("an object") {
            spec[name] = value.clone();
        }
        let file = self.folder.path(&format!("{job}.json"));
        fs::write(&file, spec.to_string()).unwrap();
        file
    }

    fn run(&self, job: &str, count: u32, isolation: &Value, more: &Value) {
        let file = self.file(job, count, isolation, more);
        stdout_of(&["--master", &self.address, "run", &file]);
    }

    fn explain(&self, task: &str) -> String {
        single_line(&stdout_of(&["--master", &self.address, "explain", task]))
    }
}

impl Drop for TwoAgents {
    fn drop(&mut self) {
        // Tasks end with their jobs, jobs before machines, machines before masters.
        for job in ["left", "both", "held", "nowhere"] {
            let job = format!("dev/{job}");
            cell(&["--master", &self.address, "job", "stop", &job]);
            cell(&["--master", &self.address, "wait", &job, "--timeout", "60s"]);
        }
        while let Some(running) = self.running.pop() {
            let _ = Command::new("kill").args(["-TERM", &running.pid().to_string()]).status();
            running.wait_success();
        }
    }
}

/// The text without line breaks.
fn single_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn volume_spec(source: &str) -> Value {
    value!({ "volumes": [{ "source": source, "target": "/data", "writable": true }] })
}

#[test]
fn a_cell_for_trying_things_out_lends_what_its_flags_say() {
    if !can_run("a_cell_for_trying_things_out_lends_what_its_flags_say") {
        return;
    }
    let folder = Folder::new();
    let [data, volume_path, displayed] = ["data", "lent", "shown"].map(|name| folder.path(name));
    for path in [&volume_path, &displayed] {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let read_only = format!("{displayed}:ro");
    let args = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--driver", "container"];
    let running = Running::spawn_args(
        &[&args[..], &["--volume", &volume_path, "--volume", &read_only]].concat(),
    );
    let address = running.address();
    let spec = value!({
        "name": "keeps", "priority": 100, "restart": { "max_failures": 0 },
        "task": {
            "limits": { "cpu": "100m", "ram": 64 << 20 },
            "command": ["sh", "-c", "touch /data/kept && ! touch /shown/kept"],
            "isolation": { "volumes": [
                { "source": volume_path, "target": "/data", "writable": true },
                { "source": displayed, "target": "/shown", "writable": false },
            ]},
        },
    });
    let file = folder.path("keeps.json");
    fs::write(&file, spec.to_string()).unwrap();
    stdout_of(&["--master", &address, "run", &file, "--wait"]);
    assert!(fs::exists(format!("{volume_path}/kept")).unwrap());
    assert!(!fs::exists(format!("{displayed}/kept")).unwrap());
    running.stop();
    let rejected =
        cell(&["dev", "--data-dir", &data, "--volume", &volume_path, "--driver", "process"]);
    assert!(text(&rejected.stderr).contains("--volume is for tasks in containers"));
}

#[test]
fn a_cell_without_containers_says_that_it_lends_nothing() {
    let folder = Folder::new();
    let (data, volume_path) = (folder.path("data"), folder.path("lent"));
    fs::create_dir(&volume_path).unwrap();
    let args = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--volume", &volume_path];
    // The container runtime is found by its name.
    let mut dev = command(&args);
    dev.env("PATH", folder.path("nothing"));
    let running = Running::spawn(dev);
    running
        .wait_for_line("--volume lends nothing, and tasks with volumes wait: no containers here");
    running.wait_for_line("it is for this account alone");
    running.stop();
}

#[test]
fn tasks_that_borrow_a_folder_run_where_it_is_lent_and_wait_where_it_is_not() {
    if !can_run("volumes") {
        return;
    }
    let pair = TwoAgents::open();
    // Once a task runs there, the machine without host volumes is known to be up.
    let constraint = value!({ "attribute": "place", "operator": { "equal": { "text": "m1" } } });
    let on_m1 = value!({ "constraints": [constraint] });
    pair.run("left", 1, &value!({}), &on_m1);
    wait(&pair.address, "left", is_running_attempt(1));
    pair.run("both", 2, &volume_spec(&pair.volume_path), &value!({}));
    let tasks = wait(&pair.address, "both", is_running_attempt(1));
    assert!(tasks.iter().all(|task| task.machine.as_ref().unwrap().as_str() == "m2"));
    let displayed = stdout_of(&["--master", &pair.address, "machine", "show", "m2", "-o", "json"]);
    assert!(displayed.contains(&format!("\"volume.{}\"", pair.volume_path)), "{displayed}");

    // The only machine that it may run on offers no host volumes.
    pair.run("held", 1, &volume_spec(&pair.volume_path), &on_m1);
    let why = pair.explain("dev/held/0");
    assert!(why.contains("1 does not lend volume"), "{why}");
    assert!(why.contains(&format!("cell dev --volume {}", pair.volume_path)), "{why}");
    assert!(why.contains("1 fails the constraint place = m1"), "{why}");

    let file = pair.file("nowhere", 1, &volume_spec("/no/such/folder"), &value!({}));
    let planned = cell(&["--master", &pair.address, "plan", &file]);
    let planned = single_line(&text(&planned.stdout));
    assert!(planned.contains("2 do not lend volume /no/such/folder for writing"), "{planned}");
    stdout_of(&["--master", &pair.address, "run", &file]);
    let why = json(&["--master", &pair.address, "explain", "dev/nowhere/0", "-o", "json"]);
    let (code, machines) = (&why["reasons"][0]["code"], &why["reasons"][0]["machines"]);
    assert_eq!((code, machines), (&value!("volume"), &value!(2)), "{why}");
    let change = &why["counterfactual"]["change"]["DropVolume"]["source"];
    assert_eq!(change, "/no/such/folder", "{why}");
}
