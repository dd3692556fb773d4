//! Progress of long work on stderr: a bar on a terminal, otherwise a plain line every few seconds,
//! so that a log of a long run shows that it lives and a short run stays silent.

use crate::format;
use cellwright_package::registry;
use cellwright_sim::experiment::progress::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between two plain lines.
const QUIET: Duration = Duration::from_secs(5);

/// What fits the stderr we have.
pub fn to_stderr() -> Box<dyn Progress> {
    match io::stderr().is_terminal() {
        true => Box::new(Bar { bar: ProgressBar::new_spinner() }),
        false => Box::new(Lines {
            state: Mutex::new(Stage {
                name: String::new(),
                done: 0,
                steps: 0,
                last: Instant::now(),
            }),
        }),
    }
}

/// Bytes on their way.
pub struct Transfer {
    bar: ProgressBar,
    /// Without a terminal: what came, and when that was last said.
    lines: Option<Mutex<Stage>>,
}

impl Transfer {
    pub fn to_stderr() -> Transfer {
        match io::stderr().is_terminal() {
            true => Transfer { bar: ProgressBar::no_length(), lines: None },
            false => {
                let (name, last) = (String::new(), Instant::now());
                let stage = Stage { name, done: 0, steps: 0, last };
                Transfer { bar: ProgressBar::hidden(), lines: Some(Mutex::new(stage)) }
            }
        }
    }
}

impl registry::Progress for Transfer {
    fn begins(&self, layers: usize, bytes: u64) {
        let what = format::counted(layers as u64, "layer");
        if let Some(Ok(mut stage)) = self.lines.as_ref().map(Mutex::lock) {
            (stage.name, stage.steps) = (what.clone(), bytes);
        }
        let template = "{spinner} [{bar:24}] {bytes}/{total_bytes} {msg} (left: {eta})";
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_length(bytes);
        self.bar.set_message(what);
    }

    fn came(&self, bytes: u64) {
        self.bar.inc(bytes);
        let Some(Ok(mut stage)) = self.lines.as_ref().map(Mutex::lock) else { return };
        stage.done += bytes;
        if stage.last.elapsed() >= QUIET {
            let (done, all) = (format::bytes(stage.done), format::bytes(stage.steps));
            eprintln!("{}: {done} of {all}", stage.name);
            stage.last = Instant::now();
        }
    }

    fn lost(&self, bytes: u64) {
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
        self.bar.set_message(name.to_owned());
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }

    fn advance(&self, steps: u64, note: &str) {
        self.bar.inc(steps);
        self.bar.set_message(note.to_owned());
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

struct Lines {
    state: Mutex<Stage>,
}

impl Lines {
    /// A thread that panicked while it held the lock has ended the program's work anyway.
    fn with(&self, change: impl FnOnce(&mut Stage) -> String) {
        let Ok(mut stage) = self.state.lock() else { return };
        let line = change(&mut stage);
        if stage.last.elapsed() >= QUIET {
            eprintln!("{line}");
            stage.last = Instant::now();
        }
    }
}

impl Progress for Lines {
    fn stage(&self, name: &str, steps: u64) {
        self.with(|stage| {
            (stage.name, stage.done, stage.steps) = (name.to_owned(), 0, steps);
            name.to_owned()
        });
    }

    fn advance(&self, steps: u64, note: &str) {
        self.with(|stage| {
            stage.done += steps;
            format!("{} {}/{}: {note}", stage.name, stage.done, stage.steps)
        });
    }
}
