//! How fast the console is on a large cell, measured in a real browser and written to
//! `bench/reports/console.md`.
//!
//! The cell is a stand-in that speaks as the master does, with the API's own types: 12,500 machines
//! and 150,000 tasks, of which each second other machines change. So the figures are the browser's
//! alone, and a machine that could not run such a cell can measure them. Time on the page's main
//! thread is the thread's own time on the processor, which others on the machine do not lengthen.

use cellwright_api::types::{MachineColumns, Overview, TaskCounts};
use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use cellwright_tests::binary::command_output;
use cellwright_tests::browser::Browser;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const MACHINES: u32 = 12_500;
const TASKS: u32 = 150_000;
/// Of each, so many pictures.
const UPDATES: usize = 40;
/// Shares of machines that change between two pictures, in percent; none at all is for comparison.
const CHURN: [u32; 4] = [0, 1, 10, 100];

/// Numbers that look random and are the same in every run.
fn noise(seed: u32, salt: u32) -> u32 {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503)) | 1;
    for _ in 0..3 {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    x
}

/// The picture of turn `round`: whole at first, then `percent` of the machines.
fn overview_at(round: u32, percent: u32) -> Overview {
    let mut columns = MachineColumns::default();
    for machine in 0..MACHINES {
        if round > 0 && noise(machine, round) % 100 >= percent {
            continue;
        }
        let of = |salt: u32, most: u32| (noise(machine, round * 16 + salt) % most) as u16;
        let limit = 40 + of(1, 80);
        columns.id.push(machine);
        columns
            .name
            .push(Name::new(&format!("rack{}-m{}", machine / 40, machine % 40)).expect("a name"));
        columns.state.push(u8::from(of(2, 200) == 0) | (u8::from(of(3, 100) == 0) << 1));
        columns.tasks.push(u32::from(of(4, 24)));
        columns.cpu_used.push(Some(of(5, 90)));
        columns.cpu_reserved.push(limit.min(100));
        columns.cpu_limit.push(limit);
        columns.cpu_production.push(limit / 2);
        columns.ram_used.push(Some(of(6, 90)));
        columns.ram_reserved.push(of(7, 100));
        columns.ram_limit.push(of(8, 120));
        columns.ram_production.push(of(9, 60));
    }
    let amount = |cpu: u64, ram: u64| Resources { cpu, ram, disk: ram, disk_rate: ram };
    let tasks = TaskCounts { running: TASKS - round, pending: 120, ..TaskCounts::default() };
    Overview {
        whole: round == 0,
        machines: columns,
        gone: Vec::new(),
        machines_total: MACHINES,
        machines_up: MACHINES - 60,
        machines_draining: 120,
        capacity: amount(400_000_000, 800 << 40),
        limits: amount(390_000_000, 700 << 40),
        production: amount(200_000_000, 350 << 40),
        reserved: amount(300_000_000, 500 << 40),
        used: amount(210_000_000, 400 << 40),
        machines_measured: MACHINES,
        jobs: 11_000,
        tasks,
        users: 90,
        now: Time(1_800_000_000_000),
        index: u64::from(round),
        consistent: false,
    }
}

fn frame(round: u32, percent: u32) -> String {
    let data = serde_json::to_string(&overview_at(round, percent)).expect("JSON");
    format!("id: {round}\nevent: overview\ndata: {data}\n\n")
}

/// The stand-in: files of the console, one picture for each watch, and more on command.
struct FakeServer {
    console: PathBuf,
    /// Whoever watches now.
    watchers: Mutex<Vec<Sender<String>>>,
}

impl FakeServer {
    fn serve(self: Arc<FakeServer>, listener: TcpListener) {
        for stream in listener.incoming().flatten() {
            let server = self.clone();
            std::thread::spawn(move || {
                // A browser that goes away in the middle of an answer is none of our business.
                let _ = server.answer(stream);
            });
        }
    }

    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let path =
            first.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/").to_owned();
        match path.as_str() {
            "/v1/watch/overview" => self.watch(stream),
            "/v1/cluster_status" => sums(stream),
            path if path.starts_with("/v1/") => events(stream),
            path => self.file(stream, path),
        }
    }

    fn file(&self, mut stream: TcpStream, path: &str) -> std::io::Result<()> {
        let name = path.strip_prefix("/console/").unwrap_or_default();
        let known = !name.is_empty() && self.console.join(name).is_file();
        let name = if known { name } else { "index.html" };
        let content = fs::read(self.console.join(name))?;
        let media = match Path::new(name).extension().and_then(|e| e.to_str()) {
            Some("js") => "text/javascript",
            Some("css") => "text/css",
            Some("svg") => "image/svg+xml",
            _ => "text/html",
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {media}\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            content.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(&content)
    }

    fn watch(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let (sender, more): (Sender<String>, Receiver<String>) = channel();
        begin(&mut stream)?;
        stream.write_all(frame(0, 100).as_bytes())?;
        self.watchers.lock().expect("nobody panicked").push(sender);
        for text in more {
            stream.write_all(text.as_bytes())?;
        }
        Ok(())
    }

    fn push(&self, text: &str) {
        let mut watchers = self.watchers.lock().expect("nobody panicked");
        watchers.retain(|watcher| watcher.send(text.to_owned()).is_ok());
    }
}

fn begin(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
    )
}

/// All that the navigation reads of the sums.
fn sums(mut stream: TcpStream) -> std::io::Result<()> {
    let body = r#"{"tasks":{"pending":120}}"#;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
    let length = body.len();
    stream.write_all(format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes())
}

/// A watch on which nothing happens, until the browser goes.
fn events(mut stream: TcpStream) -> std::io::Result<()> {
    begin(&mut stream)?;
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut rest).map(drop)
}

/// Milliseconds of the page's main thread so far: in scripts, and in all.
fn spent(browser: &Browser) -> (f64, f64) {
    let metrics = browser.devtools("Performance.getMetrics", serde_json::json!({}));
    let of = |name: &str| {
        let all = metrics["metrics"].as_array().expect("metrics");
        let found = all.iter().find(|metric| metric["name"] == name).expect("a metric");
        found["value"].as_f64().expect("a number") * 1000.0
    };
    (of("ScriptDuration"), of("TaskDuration"))
}

struct Opening {
    first_paint: f64,
    map: f64,
}

/// Opens the overview and says how long that took.
async fn open(browser: &Browser, address: &str) -> Opening {
    browser.navigate(&format!("http://{address}/console/"));
    let mark = "return performance.getEntriesByName('map-drawn').length > 0 \
                && performance.getEntriesByName('first-contentful-paint').length > 0";
    browser.wait_for_script(mark).await;
    let at = |name: &str| {
        let script = format!("return performance.getEntriesByName('{name}')[0].startTime");
        browser.run(&script).as_f64().expect("a time")
    };
    Opening { first_paint: at("first-contentful-paint"), map: at("map-drawn") }
}

struct Churned {
    percent: u32,
    bytes: usize,
    /// Script of each update, sorted.
    script: Vec<f64>,
    all: Vec<f64>,
}

/// Makes the page keep a promise, `window.shown`, when so many tasks are on the screen: the frame
/// after the one that has them.
fn set_update_promise(browser: &Browser, tasks: u32) {
    let script = format!(
        "const tile = document.querySelectorAll('.tile b')[2];
         const wanted = ({tasks}).toLocaleString('en');
         window.shown = new Promise((done) => {{
             const look = () => {{
                 if (tile.textContent !== wanted) return;
                 watcher.disconnect();
                 requestAnimationFrame(() => setTimeout(done));
             }};
             const watcher = new MutationObserver(look);
             watcher.observe(tile, {{ characterData: true, childList: true, subtree: true }});
             look();
         }});"
    );
    let _ = browser.run(&script);
}

/// Sends pictures one by one, each when the one before is on the screen. None is sent where
/// nothing changes: that is what the questions to the page cost alone.
fn churn(browser: &Browser, server: &FakeServer, percent: u32, round: &mut u32) -> Churned {
    let mut out = Churned { percent, bytes: 0, script: Vec::new(), all: Vec::new() };
    for _ in 0..UPDATES {
        let text = match percent {
            0 => String::new(),
            _ => {
                *round += 1;
                frame(*round, percent)
            }
        };
        out.bytes = text.len();
        set_update_promise(browser, TASKS - *round);
        let before = spent(browser);
        if !text.is_empty() {
            server.push(&text);
        }
        let _ = browser.await_promise("window.shown");
        let after = spent(browser);
        out.script.push(after.0 - before.0);
        out.all.push(after.1 - before.1);
    }
    out.script.sort_by(f64::total_cmp);
    out.all.sort_by(f64::total_cmp);
    out
}

fn at(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Bytes of all scripts but the terminal emulator, which is fetched by who opens a terminal.
fn scripts(console: &Path) -> u64 {
    let mut sum = 0;
    for folder in ["", "pages", "vendor"] {
        for entry in fs::read_dir(console.join(folder)).expect("the console's folder").flatten() {
            let is_script = entry.path().extension().is_some_and(|ending| ending == "js");
            if is_script && entry.file_name() != "xterm.js" {
                sum += entry.metadata().map_or(0, |about| about.len());
            }
        }
    }
    sum
}

fn load() -> String {
    fs::read_to_string("/proc/loadavg")
        .unwrap_or_default()
        .split(' ')
        .next()
        .unwrap_or("")
        .to_owned()
}

fn output(program: &str, words: &[&str]) -> String {
    command_output(Command::new(program).args(words)).unwrap_or_default().trim().to_owned()
}

fn report(openings: &[Opening], churned: &[Churned], console: &Path, loads: [String; 2]) -> String {
    let sorted = |of: fn(&Opening) -> f64| {
        let mut all: Vec<f64> = openings.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (paint, map) = (sorted(|o| o.first_paint), sorted(|o| o.map));
    let mut text = String::from(
        "# console\n\nThe overview of a cell of 12,500 machines and 150,000 tasks in headless \
         Chromium, fed by a stand-in that serves the console's files and pictures made with the \
         API's own types. `cargo run --release -p cellwright-tests --bin console-figures` \
         measures it again.\n\n| work | measured | target |\n|---|---|---|\n",
    );
    let mut row = |work: &str, measured: String, target: &str| {
        let _ = writeln!(text, "| {work} | {measured} | {target} |");
    };
    row("first paint, median of 5", format!("{:.0} ms", at(&paint, 0.5)), "≤ 1000");
    row("... worst", format!("{:.0} ms", at(&paint, 1.0)), "");
    row("map of all machines on the screen, median of 5", format!("{:.0} ms", at(&map, 0.5)), "");
    for c in churned.iter().filter(|c| c.percent == 0) {
        row(
            "main thread for the test's questions alone, p50",
            format!("{:.1} ms", at(&c.all, 0.5)),
            "",
        );
    }
    for c in churned.iter().filter(|c| c.percent > 0) {
        let what =
            format!("main thread per live update, {} % of the machines changed, p50", c.percent);
        row(&what, format!("{:.1} ms", at(&c.all, 0.5)), "≤ 16");
        row("... p95", format!("{:.1} ms", at(&c.all, 0.95)), "");
        let counted = format!("{:.1} ms", at(&c.script, 0.5));
        row("... of that as the browser counts script, p50", counted, "");
        row("... bytes of the update", format!("{}", c.bytes), "");
    }
    row("bytes of script, all pages", format!("{}", scripts(console)), "≤ 204800");
    let _ = write!(
        text,
        "\nPaint is the wall clock, from the start of the navigation; the main thread's is its \
         own time on the processor, for reading, script, layout and paint, the test's questions \
         to the page included; the browser's count of script leaves out what runs as a stream \
         arrives. The JSON of an update is read by a worker, whose time is not the page's; what is \
         left is painting the map, layout and the frame.\n\n{}: {} ({} cores), Linux {}, {}; load \
         average of the whole machine {} before and {} after.\n",
        output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        output("sh", &["-c", "grep -m1 'model name' /proc/cpuinfo | cut -d: -f2"]),
        output("nproc", &[]),
        output("uname", &["-r"]),
        output("chromium", &["--version"]),
        loads[0],
        loads[1],
    );
    text
}

#[tokio::main]
async fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let console = root.join("console");
    let folder = cellwright_tests::folder::Folder::new();
    let Some(browser) = Browser::open(&folder.path("driver.log")).await else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let address = listener.local_addr().expect("an address").to_string();
    let server = Arc::new(FakeServer { console: console.clone(), watchers: Mutex::default() });
    std::thread::spawn({
        let server = server.clone();
        move || server.serve(listener)
    });
    browser.resize(1280, 900);
    let before = load();
    let begin = Instant::now();
    let mut openings = Vec::new();
    for _ in 0..5 {
        openings.push(open(&browser, &address).await);
    }
    browser.devtools("Performance.enable", serde_json::json!({ "timeDomain": "threadTicks" }));
    let (mut churned, mut round) = (Vec::new(), 0);
    for percent in CHURN {
        churned.push(churn(&browser, &server, percent, &mut round));
    }
    assert!(browser.problems().is_empty(), "nothing may be wrong with the page");
    let text = report(&openings, &churned, &console, [before, load()]);
    println!("{text}\nmeasured in {:.0} s", begin.elapsed().as_secs_f64());
    fs::write(root.join("bench/reports/console.md"), text).expect("the report can be written");
}
