//! Devices, tested with the real binary: a job requests devices that a machine offers; only the
//! task they are granted to gets them in its environment and can open them in its container.

use crate::agent::{is_running_attempt, wait};
use crate::containers::can_run;
use crate::support::{Folder, Running, free_address, stdout_of};
use cellwright_cell::task::{TaskOutcome, TaskState};
use serde_json::{Value, json as value};
use std::fs;
use std::process::Command;

/// A machine with containers that offers two devices, both of them endless sources of zero bytes
/// that no container has under these names.
struct DeviceCell {
    folder: Folder,
    address: String,
    master: Option<Running>,
    agent: Option<Running>,
}

impl DeviceCell {
    fn open() -> DeviceCell {
        let folder = Folder::new();
        for name in ["left", "right"] {
            let made =
                Command::new("mknod").args([&folder.path(name), "c", "1", "5"]).status().unwrap();
            assert!(made.success());
        }
        let (data, address) = (folder.path("agent"), free_address());
        let config = format!(
            "name = \"m1\"\ndata_dir = {data:?}\ndriver = \"container\"\nfind_devices = false\n\
             [[devices]]\nkind = \"spring\"\nmodel = \"small\"\nid = \"S-1\"\nnodes = [{:?}]\n\
             [[devices]]\nkind = \"spring\"\nmodel = \"large\"\nnodes = [{:?}]\n",
            folder.path("left"),
            folder.path("right")
        );
        fs::write(folder.path("agent.toml"), config).unwrap();
        let masters = folder.path("masters");
        let dev = ["master", "start", "--dev", "--data-dir", &masters, "--listen", &address];
        let master = Running::spawn_args(&dev);
        master.address();
        let file = folder.path("agent.toml");
        let agent =
            Running::spawn_args(&["--master", &address, "agent", "start", "--config", &file]);
        agent.wait_for_line("cell agent of m1");
        DeviceCell { folder, address, master: Some(master), agent: Some(agent) }
    }

    fn submit(&self, spec: &Value) {
        let file = self.folder.path("job.json");
        fs::write(&file, spec.to_string()).unwrap();
        stdout_of(&["--master", &self.address, "run", &file]);
    }

    /// Runs a job of one task that runs `script` once.
    fn run(&self, job: &str, script: &str, devices: &Value) {
        let task = value!({
            "limits": { "cpu": "100m", "ram": 64 << 20 }, "command": ["sh", "-c", script],
            "devices": devices,
        });
        let once = value!({ "max_failures": 0, "backoff": 1, "backoff_max": 1 });
        self.submit(&value!({ "name": job, "priority": 100, "restart": once, "task": task }));
    }

    /// The output of the task, once it has finished successfully.
    fn log_of(&self, job: &str) -> String {
        let ended = wait(&self.address, job, |task| matches!(task.state, TaskState::Dead(_)));
        let log = |stream: &[&str]| {
            let name = format!("dev/{job}/0");
            stdout_of(&[&["--master", &self.address, "logs", &name][..], stream].concat())
        };
        assert_eq!(
            ended[0].state,
            TaskState::Dead(TaskOutcome::Finished),
            "{}",
            log(&["--stderr"])
        );
        log(&[])
    }

    fn stop(mut self) {
        for running in [self.agent.take(), self.master.take()].into_iter().flatten() {
            running.stop();
        }
    }
}

impl Drop for DeviceCell {
    fn drop(&mut self) {
        for running in [self.agent.take(), self.master.take()].into_iter().flatten() {
            let _ = Command::new("kill").args(["-TERM", &running.pid().to_string()]).status();
            running.wait_success();
        }
    }
}

/// Prints its devices, and tries to open every possible device: by the names that are offered, and
/// by device nodes that it creates.
const DEVICE_SCRIPT: &str = "echo devices: $CELL_DEVICES
    test -z \"$CELL_DEVICES_FILE\" || cat $CELL_DEVICES_FILE
    for name in left right; do
        head -c 3 /dev/$name 2> /dev/null | wc -c
    done
    stat -c '%a %u' /dev/left /dev/right 2> /dev/null
    mknod /tmp/own c 1 5 2> /dev/null && echo made
    exit 0";

#[test]
fn a_device_is_open_to_the_task_that_was_given_it_and_to_no_other() {
    if !can_run("devices") {
        return;
    }
    let lender = DeviceCell::open();
    lender.run("given", DEVICE_SCRIPT, &value!([{ "kind": "spring", "models": ["small"] }]));
    let want = "devices: S-1\nspring small S-1 1000 /dev/left\n3\n0\n600 65534\n";
    assert_eq!(lender.log_of("given"), want);
    let displayed = stdout_of(&["--master", &lender.address, "machine", "show", "m1"]);
    assert!(displayed.contains("spring small, 1000 of 1000 free"), "{displayed}");
    lender.run("other", DEVICE_SCRIPT, &value!([]));
    assert_eq!(lender.log_of("other"), "devices:\n0\n0\n");
    // A share of each of two devices: both are there, and the machine reports their free shares.
    let halves = value!([
        { "kind": "spring", "models": ["large"], "milli": 500 },
        { "kind": "spring", "models": ["small"], "milli": 250 },
    ]);
    lender.run("both", "head -c 3 /dev/left /dev/right > /dev/null && exec sleep 1000", &halves);
    wait(&lender.address, "both", is_running_attempt(1));
    let displayed = stdout_of(&["--master", &lender.address, "machine", "show", "m1"]);
    assert!(displayed.contains("spring small, 750 of 1000 free"), "{displayed}");
    assert!(displayed.contains("spring large, 500 of 1000 free"), "{displayed}");
    stdout_of(&["--master", &lender.address, "job", "stop", "dev/both"]);
    lender.stop();
}

/// The first device is removed and a third added: the second keeps its number and its holder.
#[test]
fn a_device_is_its_holders_whatever_is_taken_out_or_put_in_beside_it() {
    if !can_run("devices that change") {
        return;
    }
    let mut lender = DeviceCell::open();
    let large = value!([{ "kind": "spring", "models": ["large"] }]);
    lender.run("holds", "exec sleep 1000", &large);
    wait(&lender.address, "holds", is_running_attempt(1));
    lender.agent.take().unwrap().kill();
    let third = lender.folder.path("third");
    assert!(Command::new("mknod").args([&third, "c", "1", "5"]).status().unwrap().success());
    let file = lender.folder.path("agent.toml");
    let config = fs::read_to_string(&file).unwrap();
    let (top, devices) = config.split_once("[[devices]]").unwrap();
    let (_, right) = devices.split_once("[[devices]]").unwrap();
    let third = right.replace(&lender.folder.path("right"), &third);
    fs::write(&file, format!("{top}[[devices]]{right}[[devices]]{third}")).unwrap();
    let agent =
        Running::spawn_args(&["--master", &lender.address, "agent", "start", "--config", &file]);
    agent.wait_for_line("cell agent of m1");
    lender.agent = Some(agent);
    lender.run("second", "cat $CELL_DEVICES_FILE", &large);
    assert_eq!(lender.log_of("second"), "spring large 1 1000 /dev/third\n");
    wait(&lender.address, "holds", is_running_attempt(1));
    let displayed = stdout_of(&["--master", &lender.address, "machine", "show", "m1"]);
    assert!(displayed.contains("spring:S-1, gone"), "{displayed}");
    stdout_of(&["--master", &lender.address, "job", "stop", "dev/holds"]);
    lender.stop();
}

#[test]
fn tasks_in_an_alloc_share_its_devices() {
    if !can_run("devices of an alloc") {
        return;
    }
    let lender = DeviceCell::open();
    let limits = value!({ "cpu": "300m", "ram": 256 << 20 });
    let devices = value!([{ "kind": "spring", "count": 2 }]);
    let task = value!({ "limits": limits, "command": [], "devices": devices });
    lender.submit(&value!({
        "name": "room", "kind": "alloc_set", "priority": 100, "task": task,
    }));
    let task = value!({
        "limits": { "cpu": "100m", "ram": 64 << 20 }, "command": ["sh", "-c", DEVICE_SCRIPT],
    });
    lender.submit(&value!({
        "name": "inside", "priority": 100, "task": task,
        "alloc_set": { "user": "dev", "job": "room" },
        "restart": { "max_failures": 0, "backoff": 1, "backoff_max": 1 },
    }));
    let said_all = lender.log_of("inside");
    let expected = "spring small S-1 1000 /dev/left\nspring large 1 1000 /dev/right\n";
    assert!(said_all.contains(expected), "{said_all}");
    assert!(said_all.ends_with("3\n3\n600 65534\n600 65534\n"), "{said_all}");
    stdout_of(&["--master", &lender.address, "job", "stop", "dev/room"]);
    lender.stop();
}
