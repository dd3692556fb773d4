//! Progress of long operations on stderr: a progress bar on a terminal, otherwise a plain line
//! every few seconds, so that the log of a long run shows that it is alive and a short run stays
//! silent.

use crate::format;
use crate::sanitize::sanitize_line;
use cellwright_package::registry;
use cellwright_sim::experiment::progress::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Operations shorter than this show no bar.
const BAR_DELAY: Duration = Duration::from_millis(500);
/// The interval at which a bar is redrawn.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// The progress display for this process's stderr.
pub fn to_stderr() -> Box<dyn Progress> {
    if io::stderr().is_terminal() {
        Box::new(Bar { bar: ProgressBar::new_spinner() })
    } else {
        Box::new(PlainLines {
            state: Mutex::new(Stage {
                name: String::new(),
                done: 0,
                steps: 0,
                last: Instant::now(),
            }),
        })
    }
}

/// Progress of a transfer in bytes.
pub struct Transfer {
    bar: ProgressBar,
    /// Without a terminal: what has arrived, and when that was last printed.
    lines: Option<Mutex<Stage>>,
}

impl Transfer {
    pub fn to_stderr() -> Transfer {
        if io::stderr().is_terminal() {
            Transfer { bar: ProgressBar::no_length(), lines: None }
        } else {
            let (name, last) = (String::new(), Instant::now());
            let stage = Stage { name, done: 0, steps: 0, last };
            Transfer { bar: ProgressBar::hidden(), lines: Some(Mutex::new(stage)) }
        }
    }

    /// Starts a stage: `bytes` bytes of `label` are to be transferred.
    fn begin(&self, label: String, bytes: u64) {
        if let Some(Ok(mut stage)) = self.lines.as_ref().map(Mutex::lock) {
            (stage.name, stage.steps) = (label.clone(), bytes);
        }
        let template = "{spinner} [{bar:24}] {bytes}/{total_bytes} {msg} (left: {eta})";
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_length(bytes);
        self.bar.set_message(sanitize_line(&label));
    }

    fn update_position(&self, advance_from: impl FnOnce(u64) -> u64) {
        let Some(Ok(mut stage)) = self.lines.as_ref().map(Mutex::lock) else { return };
        stage.done = advance_from(stage.done);
        if stage.last.elapsed() >= LINE_INTERVAL {
            let (done, all) = (format::bytes(stage.done), format::bytes(stage.steps));
            crate::output::note!("{}: {done} of {all}", stage.name);
            stage.last = Instant::now();
        }
    }

    /// Shows how much of `label` has been `sent` until the transfer ends; a short transfer shows
    /// nothing.
    pub async fn track_send<T>(
        label: &str,
        bytes: u64,
        sent: &AtomicU64,
        transfer_done: impl Future<Output = T>,
    ) -> T {
        let mut transfer_done = std::pin::pin!(transfer_done);
        if let Ok(done) = timeout(BAR_DELAY, &mut transfer_done).await {
            return done;
        }
        let transfer = Transfer::to_stderr();
        transfer.begin(label.to_owned(), bytes);
        loop {
            let sent = sent.load(Ordering::Relaxed);
            transfer.bar.set_position(sent);
            transfer.update_position(|_| sent);
            if let Ok(done) = timeout(REFRESH_INTERVAL, &mut transfer_done).await {
                return done;
            }
        }
    }
}

impl registry::Progress for Transfer {
    fn started(&self, layers: usize, bytes: u64) {
        self.begin(format::pluralize(layers as u64, "layer"), bytes);
    }

    fn received(&self, bytes: u64) {
        self.bar.inc(bytes);
        self.update_position(|done| done + bytes);
    }

    fn discarded(&self, bytes: u64) {
        self.bar.dec(bytes);
        if let Some(Ok(mut stage)) = self.lines.as_ref().map(Mutex::lock) {
            stage.done = stage.done.saturating_sub(bytes);
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The status of something that is waited for: a line that is redrawn on a terminal, otherwise new
/// lines whenever the status changes.
pub struct StatusLine {
    /// Set on a terminal.
    bar: Option<ProgressBar>,
    printed: Vec<String>,
}

impl StatusLine {
    pub fn to_stderr() -> StatusLine {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        StatusLine { bar, printed: Vec::new() }
    }

    /// Only on a terminal: readers of a file need only the final result.
    pub fn if_terminal() -> Option<StatusLine> {
        io::stderr().is_terminal().then(StatusLine::to_stderr)
    }

    /// Shows the current status, one line for each thing.
    pub fn update(&mut self, lines: Vec<String>) {
        match &self.bar {
            Some(bar) => bar.set_message(sanitize_line(&lines.join("; "))),
            None => {
                new_lines(&self.printed, &lines).for_each(|line| crate::output::note!("{line}"))
            }
        }
        self.printed = lines;
    }

    /// Runs `write` while the status line is hidden.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The lines that were not printed the last time.
fn new_lines<'a>(printed: &[String], lines: &'a [String]) -> impl Iterator<Item = &'a String> {
    lines.iter().filter(|line| !printed.contains(line))
}

struct Bar {
    bar: ProgressBar,
}

impl Progress for Bar {
    fn stage(&self, name: &str, steps: u64) {
        let template = match steps {
            0 => "{spinner} {msg}",
            _ => "{spinner} [{bar:24}] {pos}/{len} {msg} (left: {eta})",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_message(sanitize_line(name));
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }

    fn advance(&self, steps: u64, note: &str) {
        self.bar.inc(steps);
        self.bar.set_message(sanitize_line(note));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

struct Stage {
    name: String,
    done: u64,
    steps: u64,
    last: Instant,
}

struct PlainLines {
    state: Mutex<Stage>,
}

impl PlainLines {
    /// A thread that panicked with the lock held has ended the program's work anyway.
    fn update(&self, change: impl FnOnce(&mut Stage) -> String) {
        let Ok(mut stage) = self.state.lock() else { return };
        let line = change(&mut stage);
        if stage.last.elapsed() >= LINE_INTERVAL {
            crate::output::note!("{line}");
            stage.last = Instant::now();
        }
    }
}

impl Progress for PlainLines {
    fn stage(&self, name: &str, steps: u64) {
        self.update(|stage| {
            (stage.name, stage.done, stage.steps) = (name.to_owned(), 0, steps);
            name.to_owned()
        });
    }

    fn advance(&self, steps: u64, note: &str) {
        self.update(|stage| {
            stage.done += steps;
            format!("{} {}/{}: {note}", stage.name, stage.done, stage.steps)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_as_it_stood_is_not_told_again() {
        let lines = |texts: &[&str]| -> Vec<String> {
            texts.iter().map(|text| (*text).to_owned()).collect()
        };
        let printed_after = |before: &[&str], now: &[&str]| -> Vec<String> {
            new_lines(&lines(before), &lines(now)).cloned().collect()
        };
        assert_eq!(printed_after(&[], &["3 left", "1 waits"]), ["3 left", "1 waits"]);
        assert_eq!(printed_after(&["3 left", "1 waits"], &["2 left", "1 waits"]), ["2 left"]);
        assert!(printed_after(&["2 left", "1 waits"], &["2 left"]).is_empty());
    }
}
