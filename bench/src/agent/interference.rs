//! What a latency-sensitive task notices of a machine full of batch. The task is this program
//! again: it answers requests over its own loopback connections and notes how long each took, from
//! when it was due, so that time it was not let run counts.

use super::cell::{Cell, Driver};
use super::{BOOK, quantile};
use crate::flags::Flags;
use crate::masters::cell::until;
use crate::section_report::Section;
use cellwright_cell::task::TaskState;
use serde_json::json;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two requests of one connection.
const REQUEST_INTERVAL: Duration = Duration::from_millis(10);
const CONNECTIONS: usize = 4;
/// Rounds of arithmetic in an answer: about a third of a millisecond.
const WORK_ITERATIONS: u64 = 200_000;

pub async fn main(flags: Flags) -> io::Result<()> {
    let seconds: u64 = flags.number("seconds", 20)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let hogs = cores * 4;
    let mut section = Section::new(
        "Latency beside batch",
        &format!(
            "A latency-sensitive task of half a core answers {} requests a second; alone, and \
             beside {hogs} batch tasks that use all the CPU they can get. A request's time begins \
             when it is due. In containers; {seconds} s each.",
            CONNECTIONS * 100
        ),
    );
    let mut cell = Cell::start("share").await?;
    let own = std::env::current_exe()?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    cell.agent("m1", Driver::Container, &format!("volumes = [{folder:?}]")).await?;
    let alone = run_and_measure(&cell, "alone", seconds, folder).await?;
    let batch = json!({
        "name": "hog", "count": hogs, "priority": 100, "appclass": "batch",
        "task": {
            "limits": { "cpu": 100, "ram": 32 << 20 },
            "command": ["sh", "-c", "while :; do :; done"], "notice": 0,
        },
    });
    let batch = cell.submit(batch).await?;
    cell.wait_for_tasks(&batch, hogs, |task| task.state == TaskState::Running).await?;
    let beside = run_and_measure(&cell, "beside", seconds, folder).await?;
    cell.stop_and_wait(&batch).await?;
    for (what, [p50, p99, most]) in [("alone", alone), ("beside batch", beside)] {
        section.row(&format!("{what}: p50"), p50, "ms", "");
        section.row("... p99", p99, "ms", "");
        section.row("... longest", most, "ms", "");
    }
    section.row("p99 beside batch over alone", beside[1] / alone[1], "x", "≤ 1.5");
    section.limits(
        "the kernel's scheduler: a task that wakes up waits for the rest of a batch task's slice \
         where every core runs one.",
    );
    section.save(&BOOK, "share")
}

/// Runs the task for a while; p50, p99 and the longest of its answers in milliseconds.
async fn run_and_measure(
    cell: &Cell,
    name: &str,
    seconds: u64,
    programs: &Path,
) -> io::Result<[f64; 3]> {
    let own = std::env::current_exe()?;
    let program = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let spec = json!({
        "name": name, "count": 1, "priority": 150, "appclass": "latency_sensitive",
        "task": {
            "limits": { "cpu": 500, "ram": 64 << 20 },
            "command": [format!("/bench/{program}"), "agent", "answer",
                        "--seconds", seconds.to_string()],
            "isolation": {
                "volumes": [{ "source": programs, "target": "/bench", "writable": false }],
            },
            "notice": 0,
        },
    });
    let job = cell.submit(spec).await?;
    let text = until("the task says how it went", async || {
        // Only this task writes such a file, and what is over has no folder any more.
        let tasks = std::fs::read_dir(cell.data("m1").join("tasks")).ok()?.flatten();
        let mut reports =
            tasks.map(|task| std::fs::read_to_string(task.path().join("work/answers")));
        reports.find_map(Result::ok)
    })
    .await?;
    cell.stop_and_wait(&job).await?;
    let mut values = text.split_ascii_whitespace().filter_map(|word| word.parse::<f64>().ok());
    let mut next = || values.next().ok_or_else(|| io::Error::other(format!("said {text:?}")));
    Ok([next()?, next()?, next()?])
}

/// The task: answers itself for a while, writes down how long that took, and waits to be stopped.
pub fn answer(flags: &Flags) -> io::Result<()> {
    let seconds: u64 = flags.number("seconds", 20)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut taken = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..CONNECTIONS)
            .map(|_| scope.spawn(move || ask(TcpStream::connect(address)?, seconds)))
            .collect();
        for _ in 0..CONNECTIONS {
            let (stream, _) = listener.accept()?;
            scope.spawn(move || serve(stream));
        }
        let mut all = Vec::new();
        for requested in asking {
            all.extend(requested.join().map_err(|_| io::Error::other("a client panicked"))??);
        }
        io::Result::Ok(all)
    })?;
    let [p50, p99, most] = [0.5, 0.99, 1.0].map(|part| quantile(&mut taken, part));
    // Whole or not there: somebody waits for it.
    std::fs::write("answers.new", format!("{p50} {p99} {most}\n"))?;
    std::fs::rename("answers.new", "answers")?;
    loop {
        std::thread::park();
    }
}

#[expect(clippy::disallowed_methods, reason = "requests are due at times")]
fn ask(mut stream: TcpStream, seconds: u64) -> io::Result<Vec<f64>> {
    stream.set_nodelay(true)?;
    let begun = Instant::now();
    let mut taken = Vec::new();
    let mut due = begun;
    let mut buffer = [0; 64];
    while begun.elapsed() < Duration::from_secs(seconds) {
        due += REQUEST_INTERVAL;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        taken.push(due.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(taken)
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 64];
    while stream.read_exact(&mut buffer).is_ok() {
        let mixed = (0..WORK_ITERATIONS).fold(u64::from(buffer[0]), |sum, n| {
            std::hint::black_box(sum.rotate_left(5) ^ n.wrapping_mul(0x9e37_79b9))
        });
        buffer[1] = mixed.to_le_bytes()[0];
        stream.write_all(&buffer)?;
    }
    Ok(())
}
