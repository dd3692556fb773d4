//! The archive on a real cell with real programs: what has ended is there when the record has
//! forgotten it, runs again, is read when its machine is gone, and waits for a store that is away.

use crate::support::{Folder, Running, cell, json, poll_until, stdout_of, text};
use serde_json::{Value, json as value};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

struct World {
    folder: Folder,
    running: Running,
    address: String,
}

impl World {
    /// A cell whose archive is a folder, and which forgets a job so long after its end.
    fn start(keep: &str) -> World {
        World::start_in(Folder::new(), keep)
    }

    fn start_in(folder: Folder, keep: &str) -> World {
        let (data, archive) = (folder.path("data"), folder.path("archive"));
        let running = Running::spawn_args(&[
            "dev",
            "--data-dir",
            &data,
            "--listen",
            "127.0.0.1:0",
            "--driver",
            "process",
            "--archive",
            &archive,
            "--keep-dead-jobs",
            keep,
        ]);
        let address = running.address();
        World { folder, running, address }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--master", self.address.as_str()][..], args].concat()
    }

    fn say(&self, args: &[&str]) -> String {
        stdout_of(&self.args(args))
    }

    /// What a command that fails says.
    fn error(&self, args: &[&str]) -> String {
        let output = cell(&self.args(args));
        assert!(!output.status.success(), "{args:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    fn json(&self, args: &[&str]) -> Value {
        json(&[&self.args(args)[..], &["-o", "json"]].concat())
    }

    /// Runs a job of one task, to its end.
    fn run(&self, name: &str, script: &str, more: &Value) {
        let mut spec = value!({
            "name": name, "priority": 100, "restart": { "max_failures": 0 },
            "task": {
                "limits": { "cpu": "10m", "ram": 32 << 20 }, "command": ["sh", "-c", script],
            },
        });
        for (field, content) in more.as_object().unwrap() {
            spec["task"][field] = content.clone();
        }
        let file = self.folder.path("job.json");
        fs::write(&file, spec.to_string()).unwrap();
        self.say(&["run", &file]);
    }

    /// Waits for the job to be in the archive; its row there.
    fn archived(&self, name: &str) -> Value {
        poll_until(&format!("{name} is never archived"), || {
            let rows = self.json(&["archive", "ls"]);
            rows.as_array().unwrap().iter().find(|row| row["name"] == name).cloned()
        })
    }

    /// The alarm that the archive is not written.
    fn alarm(&self) -> Option<Value> {
        let status = self.json(&["status"]);
        let alarms = status["alarms"].as_array().unwrap();
        alarms.iter().find(|alarm| alarm["kind"] == "archive_failing").cloned()
    }

    /// Waits until the record has forgotten the job.
    fn forgotten(&self, name: &str) {
        poll_until(&format!("{name} is never forgotten"), || {
            let output = cell(&self.args(&["status", &format!("dev/{name}"), "-o", "json"]));
            (!output.status.success()).then_some(())
        });
    }
}

/// The names of all objects in a folder.
fn objects(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                names.insert(entry.path().display().to_string());
            }
        }
    }
    names
}

#[test]
fn a_job_that_the_cell_has_forgotten_is_shown_and_runs_again() {
    let world = World::start("1s");
    world.run("greet", "echo hello; exit 3", &value!({ "env": { "WHO": "you" } }));
    let row = world.archived("greet");
    assert_eq!(row["user"], "dev", "{row}");
    world.forgotten("greet");
    let shown = world.json(&["archive", "show", "greet"]);
    assert_eq!(shown["job"]["state"], value!({ "dead": "failed" }), "{shown}");
    assert_eq!(shown["job"]["submitted_at"], row["submitted_at"]);
    assert_eq!(shown["versions"][0]["change"], "created", "{shown}");
    let end = &shown["tasks"][0]["last_end"];
    assert_eq!((&end["text"], &end["machine"]), (&value!("exited with code 3"), &value!("local")));
    let told = world.say(&["archive", "show", "dev/greet"]);
    assert!(told.starts_with("job dev/greet failed\n"), "{told}");
    assert!(told.contains("exited with code 3"), "{told}");
    // Its file runs again as it is, and becomes another job of that name.
    let file = world.folder.path("again.yaml");
    let told = world.say(&["archive", "restore", "greet", "--to", &file]);
    assert!(told.contains("next: cell run "), "{told}");
    assert!(world.error(&["archive", "restore", "greet", "--to", &file]).contains("again.yaml"));
    world.say(&["run", &file]);
    let rows = poll_until("the second is never archived", || {
        let rows = world.json(&["archive", "ls"]).as_array().unwrap().clone();
        (rows.len() == 2).then_some(rows)
    });
    assert_ne!(rows[0]["submitted_at"], rows[1]["submitted_at"]);
    let first = row["submitted_at"].to_string();
    let old = world.json(&["archive", "show", "greet", "--submitted", &first]);
    assert_eq!(old["job"]["submitted_at"], row["submitted_at"]);
    let newest = world.json(&["archive", "show", "greet"]);
    assert_eq!(newest["job"]["submitted_at"], rows[1]["submitted_at"]);
    assert_eq!(newest["job"]["spec"], old["job"]["spec"]);
    let none = world.error(&["archive", "show", "dev/never"]);
    assert!(none.contains("no job dev/never is in the archive"), "{none}");
    let status = world.json(&["archive", "status"]);
    assert_eq!((&status["jobs_waiting"], &status["lost"]), (&value!(0), &value!(0)), "{status}");
    assert!(status["archived_before"].is_u64(), "{status}");
    world.running.stop();
}

#[test]
fn output_is_read_from_the_archive_when_its_machine_is_gone() {
    let world = World::start("24h");
    let both = "echo to you; echo to nobody >&2; echo bye";
    world.run("talk", both, &value!({ "archive_logs": true }));
    world.run("quiet", both, &value!({}));
    world.archived("quiet");
    let rows = poll_until("its output is never archived", || {
        let rows = world.json(&["archive", "ls", "logs", "talk"]).as_array().unwrap().clone();
        (!rows.is_empty()).then_some(rows)
    });
    assert_eq!((&rows[0]["task"], &rows[0]["attempt"]), (&value!("dev/talk/0"), &value!(1)));
    world.say(&["machine", "rm", "local", "--force"]);
    assert!(world.error(&["logs", "talk"]).contains("not part of the cell"));
    let both = world.say(&["archive", "logs", "talk/0"]);
    assert_eq!(both.lines().collect::<BTreeSet<_>>(), ["bye", "to nobody", "to you"].into());
    assert_eq!(world.say(&["archive", "logs", "dev/talk/0", "--stdout"]), "to you\nbye\n");
    assert_eq!(world.say(&["archive", "logs", "talk/0", "--stderr"]), "to nobody\n");
    let timed = world.say(&["archive", "logs", "talk/0", "--stderr", "--timestamps"]);
    assert!(timed.starts_with("20") && timed.ends_with("to nobody\n"), "{timed}");
    assert_eq!(world.json(&["archive", "ls", "logs", "quiet"]), value!([]), "it asked for nothing");
    let none = world.error(&["archive", "logs", "quiet/0"]);
    assert!(none.contains("no output of dev/quiet/0 is in the archive"), "{none}");
    world.running.stop();
}

#[test]
fn a_store_that_is_away_is_an_alarm_and_no_job_is_forgotten_meanwhile() {
    let world = World::start("1s");
    let place = world.folder.path("archive");
    world.run("before", "true", &value!({}));
    world.archived("before");
    world.forgotten("before");
    fs::rename(&place, world.folder.path("elsewhere")).unwrap();
    fs::write(&place, "no folder").unwrap();
    world.run("during", "true", &value!({}));
    let status = poll_until("it never says that it fails", || {
        let status = world.json(&["archive", "status"]);
        (!status["failing_since"].is_null() && status["jobs_waiting"] == 1).then_some(status)
    });
    let error = status["last_error"].as_str().unwrap();
    assert!(error.contains("archive"), "{status}");
    let alarm = poll_until("there is never an alarm", || world.alarm());
    assert!(alarm["waiting"].is_u64() && alarm["lost"] == 0, "{alarm}");
    assert!(alarm["message"].as_str().unwrap().contains("cell archive status"), "{alarm}");
    assert!(world.error(&["archive", "ls"]).contains("archive"));
    // It ended long before it would be forgotten, and is not.
    assert!(world.say(&["job", "status", "--all"]).contains("during"));
    fs::remove_file(&place).unwrap();
    fs::rename(world.folder.path("elsewhere"), &place).unwrap();
    world.archived("during");
    world.forgotten("during");
    poll_until("the alarm never ends", || world.alarm().is_none().then_some(()));
    assert_eq!(world.json(&["archive", "status"])["lost"], 0);
    world.running.stop();
}

#[test]
fn a_master_that_is_killed_loses_nothing_and_doubles_nothing() {
    let world = World::start("24h");
    let names: Vec<String> = (0..6).map(|number| format!("job{number}")).collect();
    for name in &names {
        world.run(name, "true", &value!({}));
    }
    // Some are in the archive when it dies, and others are not.
    world.archived("job0");
    world.running.kill();
    let store = world.folder.0.join("archive");
    let before = objects(&store.join("dev/jobs"));
    let world = World::start_in(world.folder, "1s");
    for name in &names {
        world.archived(name);
        world.forgotten(name);
    }
    let after = objects(&store.join("dev/jobs"));
    assert!(after.is_superset(&before), "{before:?} {after:?}");
    assert_eq!(after.len(), names.len(), "{after:?}");
    world.running.stop();
}
