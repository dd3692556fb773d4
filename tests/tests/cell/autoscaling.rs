//! A running cell sizes a job: by its schedule alone, which needs no measurement, by hand and back,
//! and, measured for two minutes, by the load that its tasks make.

use crate::support::{Folder, Running, json, stdout_of};
use crate::{wait_job, wait_machines};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::task::TaskState;
use serde_json::{Value, json as value};
use std::fs;

struct Cell {
    folder: Folder,
    _running: Running,
    address: String,
}

impl Cell {
    fn start() -> Cell {
        let folder = Folder::new();
        let data = folder.path("data");
        let cell = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--machines", "2"];
        let running = Running::spawn_args(&cell);
        let address = running.address();
        wait_machines(&address, 2);
        Cell { folder, _running: running, address }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--master", self.address.as_str()], args].concat()
    }

    fn file(&self, spec: &Value) -> String {
        let file = self.folder.path("job.json");
        fs::write(&file, spec.to_string()).unwrap();
        file
    }

    fn scale(&self, options: &[&str]) -> Value {
        json(&self.args(&[&["scale", "web", "-o", "json"], options].concat()))
    }

    /// Waits until the job has so many tasks, all of which run.
    fn wait_count(&self, count: u32) {
        let key = JobKey { user: Name::new("dev").unwrap(), job: Name::new("web").unwrap() };
        wait_job(&self.address, &key, |view, tasks| {
            let running = tasks.iter().filter(|task| task.state == TaskState::Running).count();
            view.spec.count == count && running == count as usize
        });
    }

    fn events(&self) -> String {
        stdout_of(&self.args(&["events", "web"]))
    }
}

fn job(scale: &Value) -> Value {
    value!({
        "name": "web", "count": 2, "priority": 200, "command": ["run"],
        "cpu": "100m", "ram": 16 << 20, "scale": scale,
    })
}

#[test]
fn a_size_by_hand_stays_until_it_is_given_back_to_the_cell() {
    let cell = Cell::start();
    let file = cell.file(&job(&value!({ "min": 1, "max": 3 })));
    stdout_of(&cell.args(&["run", &file]));
    cell.wait_count(2);
    stdout_of(&cell.args(&["resize", "web", "--tasks", "3"]));
    cell.wait_count(3);
    let by_hand = cell.scale(&[]);
    let fields = ["mode", "min", "max", "now"].map(|field| by_hand[field].clone());
    assert_eq!(fields, [value!("manual"), value!(1), value!(3), value!(3)], "{by_hand}");
    // Nothing is measured and no schedule asks for more: the fewest do.
    assert_eq!((&by_hand["want"], &by_hand["rule"]), (&value!(1), &value!("schedule")));
    assert_eq!(by_hand["vetoed_by"], value!(["manual"]), "{by_hand}");
    // The same file again is no change: what it says of the count is its first size.
    let again = stdout_of(&cell.args(&["run", &file]));
    assert!(again.contains("unchanged") || again.contains("is so already"), "{again}");
    assert_eq!(cell.scale(&["--auto"])["mode"], "auto");
    cell.wait_count(1);
    let events = cell.events();
    for line in [
        "dev/web mode changed: requested (manual)",
        "dev/web mode changed: requested (auto)",
        "dev/web scaled: as the rules of scaling say (3 to 1 tasks, rule schedule, want 1)",
    ] {
        assert!(events.contains(line), "{line}: {events}");
    }
    let demand = json(&cell.args(&["scale", "--cell", "-o", "json"]));
    let limits = ["now", "largest"].map(|sum| demand[sum]["cpu"].clone());
    assert_eq!((&demand["scaled_jobs"], limits), (&value!(1), [value!(100), value!(300)]));
    let explained = stdout_of(&cell.args(&["explain", "web"]));
    assert!(explained.contains("keeps its size, because its size fits"), "{explained}");
}

#[test]
fn a_job_that_is_not_scaled_says_so_and_bounds_are_checked() {
    let cell = Cell::start();
    let mut plain = job(&Value::Null);
    plain.as_object_mut().unwrap().remove("scale");
    stdout_of(&cell.args(&["run", &cell.file(&plain)]));
    let refused = crate::cell(&cell.args(&["scale", "web"]));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("no policy of scaling"), "{text}");
    let file = cell.file(&job(&value!({ "min": 4, "max": 3 })));
    let refused = crate::cell(&cell.args(&["validate", &file]));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned()
        + &String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success() && text.contains("scale.max"), "{text}");
    // What a change of policy does is planned as any change.
    let file = cell.file(&job(&value!({ "min": 1, "max": 3 })));
    let planned = stdout_of(&cell.args(&["plan", &file]));
    assert!(planned.contains("scale"), "{planned}");
}
