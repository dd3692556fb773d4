//! A running cell sizes a job: by its schedule alone, which needs no measurement, by hand and back,
//! and, measured for some minutes, by numbers that its tasks tell in a file or over HTTP.

use crate::support::{Folder, Running, json, poll_within, stdout_of};
use crate::{agent, wait_job, wait_job_within, wait_machines};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::task::TaskState;
use serde_json::{Value, json as value};
use std::fs;
use std::time::Duration;

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

/// A size follows what was told for a whole minute: the one that was begun, and the next.
const TWO_REPORTS: Duration = Duration::from_secs(300);

fn wait_size(address: &str, job: &str, count: u32) {
    let key = JobKey { user: Name::new("dev").unwrap(), job: Name::new(job).unwrap() };
    wait_job_within(TWO_REPORTS, address, &key, |view, tasks| {
        let running = tasks.iter().filter(|task| task.state == TaskState::Running).count();
        view.spec.count == count && running == count as usize
    });
}

fn scale_of(address: &str, job: &str) -> Value {
    json(&["--master", address, "scale", job, "-o", "json"])
}

/// A job of one task that runs a script and has a port.
fn run_script(folder: &Folder, address: &str, job: &str, script: &str, scale: &Value) {
    let spec = value!({
        "name": job, "count": 1, "priority": 200, "command": ["sh", "-c", script], "ports": 1,
        "cpu": "20m", "ram": 64 << 20, "notice": 1000, "scale": scale,
    });
    let file = folder.path(&format!("{job}.json"));
    fs::write(&file, spec.to_string()).unwrap();
    stdout_of(&["--master", address, "run", &file]);
}

#[test]
fn a_number_in_a_file_of_the_task_makes_a_job_grow_and_shrink() {
    let folder = Folder::new();
    let (_running, address) = agent::dev(&folder);
    let scale = value!({
        "min": 1, "max": 3, "metrics": { "file": "queue" },
        "target": { "metrics": [{ "name": "queue", "per_task": 10 }] },
        "pace": { "stabilise": 0, "cool_down": 0, "down_percent": 100, "forecast": false },
    });
    run_script(&folder, &address, "worker", "echo 25 > queue; exec sleep inf", &scale);
    wait_size(&address, "worker", 3);
    let events = stdout_of(&["--master", &address, "events", "worker"]);
    assert!(events.contains("1 to 3 tasks, rule metric queue, want 3"), "{events}");
    let grown = scale_of(&address, "worker");
    let number = &grown["numbers"][0];
    assert_eq!(number["per_task"], value!(10_000), "{grown}");
    assert_eq!(number["series"]["name"], "queue", "{grown}");
    // One of them tells nonsense: the job keeps its size, and says why.
    let tell = |task: u32, text: &str| {
        let (task, script) = (format!("dev/worker/{task}"), format!("echo {text} > queue"));
        stdout_of(&["--master", &address, "exec", &task, "--", "sh", "-c", &script]);
    };
    tell(0, "NaN");
    (1..3).for_each(|task| tell(task, "1"));
    let held = |view: &Value| view["vetoed_by"] == value!(["not-told"]);
    let view = wait_view(&address, "worker", held);
    assert_eq!((&view["now"], &view["rule"]), (&value!(3), &value!("metric queue")), "{view}");
    assert!(view["refused"].as_u64() > Some(0), "{view}");
    let explained = stdout_of(&["--master", &address, "explain", "worker"]);
    let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains("1 of 3 tasks did not tell it"), "{explained}");
    tell(0, "1");
    wait_size(&address, "worker", 1);
}

#[test]
fn a_rate_of_requests_on_a_page_makes_a_job_grow() {
    const SERVER: &str = r#"exec perl -MIO::Socket::INET -MTime::HiRes=time -e '
        $begun = time;
        $server = IO::Socket::INET->new(LocalPort => $ENV{CELL_PORT0}, Listen => 9, ReuseAddr => 1)
            or die $!;
        while (1) {
            $client = $server->accept or next;
            while (<$client>) { last if /^\r?$/ }
            printf $client "HTTP/1.0 200 OK\r\n\r\nrequests_total{code=\"200\"} %d\n" .
                "requests_total{code=\"500\"} 1e300\n", 100 * (time - $begun);
            close $client;
        }'"#;
    let folder = Folder::new();
    let (_running, address) = agent::dev(&folder);
    let number = value!({
        "name": "requests_total", "kind": "rate", "per_task": 40, "labels": { "code": "200" },
    });
    let scale = value!({
        "min": 1, "max": 3, "metrics": { "http": { "port": 0 } },
        "target": { "metrics": [number] },
    });
    run_script(&folder, &address, "web", SERVER, &scale);
    wait_size(&address, "web", 3);
    let events = stdout_of(&["--master", &address, "events", "web"]);
    assert!(events.contains("rule metric requests_total"), "{events}");
}

fn wait_view(address: &str, job: &str, is_reached: impl Fn(&Value) -> bool) -> Value {
    poll_within(TWO_REPORTS, "never held back", || Some(scale_of(address, job)).filter(&is_reached))
}
