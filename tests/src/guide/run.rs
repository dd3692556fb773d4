//! A reader at a terminal: a folder with the project's examples in it, a cell of its own, and the
//! page's commands typed one after the other.

#![expect(clippy::disallowed_methods, reason = "a reader looks again after a moment, as people do")]

use super::matching::matches;
use super::page::{Block, Command, EndMode, Page, Step};
use super::ports::Ports;
use crate::binary::{cell, text};
use crate::folder::Folder;
use crate::process::Process;
use crate::{POLL_INTERVAL, TIMEOUT};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than any command of a page takes, also on a machine that has ten times as much to do as
/// it can: only what will never be as the page says is waited for so long.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);
/// Commands that only look: what they show may not have come to pass yet, so they are typed again.
/// A reader does the same.
const READ_COMMANDS: &[&str] = &[
    "cell status",
    "cell job status",
    "cell describe",
    "cell explain",
    "cell shapes",
    "cell events",
    "cell logs",
    "cell machine ls",
    "cell machine show",
    "cell user ls",
    "cell user show",
    "cell quota ls",
    "cell sql",
    "cell top",
    "cell update",
    "cell package ls",
    "cell cron ls",
    "cell token ls",
    "cell checkpoint ls",
    "cell master status",
    "cell archive ls",
    "cell archive show",
    "cell archive logs",
    "cell archive status",
    "curl",
    "dig",
];
/// Words of commands that change something although they begin like those.
const WRITE_MARKERS: &[&str] = &[" undo", " close", "-X ", "--data", "--json"];

fn is_read_command(command: &str) -> bool {
    READ_COMMANDS.iter().any(|looking| command.starts_with(looking))
        && !WRITE_MARKERS.iter().any(|changing| command.contains(changing))
}

/// The terminal of the page's own cell, and the folder that the cell is in.
const CELL: &str = "cell";

struct Reader {
    folder: Folder,
    address: Option<String>,
    ports: Ports,
    /// What goes on in other terminals.
    terminals: BTreeMap<String, Process>,
}

/// Walks through a page of the guide as a reader would.
///
/// # Panics
/// When the page does not hold what it says, with where and what was found instead.
pub fn walk(path: &Path) {
    let page = std::fs::read_to_string(path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let page = Page::parse(&page).unwrap_or_else(|why| panic!("{name}: {why}"));
    let mut reader = Reader {
        folder: Folder::new(),
        address: None,
        ports: Ports::default(),
        terminals: BTreeMap::new(),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::os::unix::fs::symlink(root.join("examples"), reader.folder.path("examples"))
        .expect("the examples are at hand");
    let is_typed = page.steps.iter().any(|step| matches!(step, Step::Type(_)));
    if is_typed && page.cell.as_deref() != Some("none") {
        reader.start(page.cell.as_deref().unwrap_or_default());
    }
    for step in &page.steps {
        reader.perform(&name, step);
    }
    reader.interrupt_cell();
}

impl Reader {
    fn perform(&mut self, name: &str, step: &Step) {
        match step {
            Step::File { name, text } => {
                let path = self.folder.path(name);
                if let Some(folder) = Path::new(&path).parent() {
                    std::fs::create_dir_all(folder).expect("a folder can be made");
                }
                std::fs::write(path, self.ports.substitute(text)).expect("a file can be written");
            }
            Step::Read { line, why } => println!("{name}:{line}: not run: {why}"),
            Step::Type(Block { line, needs_root: true, .. })
                if !rustix::process::geteuid().is_root() =>
            {
                println!("{name}:{line}: skipped: needs root");
            }
            Step::Type(block) => {
                let again = block.is_repeatable;
                block.commands.iter().for_each(|typed| self.type_command(name, typed, again));
            }
            Step::Background { terminal, command } => self.open_terminal(name, terminal, command),
            Step::End { line, terminal, how } => {
                let process = self.terminals.remove(terminal);
                let process = process.unwrap_or_else(|| panic!("{name}:{line}: no {terminal}"));
                end(process, *how);
            }
        }
    }

    /// Types a command in a terminal of its own, and looks there until it has said what is shown.
    fn open_terminal(&mut self, page: &str, terminal: &str, typed: &Command) {
        let Command { line, text: command, printed, .. } = typed;
        println!("{page}:{line}: {terminal} $ {command}");
        let log = self.folder.path(&format!("{terminal}.log"));
        let _ = std::fs::remove_file(&log);
        let command = self.ports.substitute(command);
        let mut process = Process::start(self.program(&format!("exec {command}")), &log);
        let begun = Instant::now();
        while !printed.is_empty() && !begins_as(printed, &process.output()) {
            assert!(
                process.is_alive() && begun.elapsed() < TIMEOUT,
                "{page}:{line}: $ {command}\n--- said\n{}\n--- found\n{}",
                printed.join("\n"),
                process.output(),
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        self.terminals.insert(terminal.to_owned(), process);
    }

    fn start(&mut self, arguments: &str) {
        let mut command = Program::new(cell());
        command.args(["dev", "--listen", "127.0.0.1:0", "--data"]).arg(self.folder.path(CELL));
        let arguments = self.ports.substitute(arguments);
        command.args(arguments.split_whitespace()).current_dir(&self.folder.0);
        let process = Process::start(command, &self.folder.path("cell.log"));
        let begun = Instant::now();
        let address = loop {
            let output = process.output();
            let behind = output.split_once(" serves http://").map(|(_, behind)| behind);
            if let Some((address, _)) = behind.and_then(|text| text.split_once([' ', '\n'])) {
                break address.to_owned();
            }
            assert!(begun.elapsed() < TIMEOUT, "the cell does not start:\n{output}");
            std::thread::sleep(POLL_INTERVAL);
        };
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        self.ports.assign(7070, port.expect("an address has a port"));
        self.address = Some(address);
        self.terminals.insert(CELL.to_owned(), process);
    }

    /// As with ctrl-c: cells end their tasks first.
    fn interrupt_cell(&mut self) {
        let terminals = std::mem::take(&mut self.terminals);
        terminals.into_values().for_each(|one| end(one, EndMode::Interrupted));
    }

    fn program(&self, line: &str) -> Program {
        let beside: PathBuf = cell().parent().map(Path::to_owned).unwrap_or_default();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut program = Program::new("bash");
        program.args(["-c", line]).current_dir(&self.folder.0).stdin(Stdio::null());
        program.env("PATH", format!("{}:{path}", beside.display()));
        program.env("HOME", &self.folder.0).env("COLUMNS", "80").env_remove("XDG_CONFIG_HOME");
        match &self.address {
            Some(address) => program.env("CELL_ADDR", address),
            None => program.env_remove("CELL_ADDR"),
        };
        program
    }

    fn type_command(&mut self, page: &str, typed: &Command, again: bool) {
        let Command { line, text: command, is_endless, printed } = typed;
        println!("{page}:{line}: $ {command}");
        let begun = Instant::now();
        let (command, is_read_command) =
            (&self.ports.substitute(command), again || is_read_command(command));
        let must_fail = printed.first().is_some_and(|line| line.starts_with("error:"));
        loop {
            let Output { status, stdout, stderr } = if *is_endless {
                self.until_printed(command, printed)
            } else {
                wait_for_end(self.program(command))
            };
            let (stdout, stderr) = (text(&stdout), text(&stderr));
            let found = format!("{stdout}{stderr}");
            let is_as_said = printed.is_empty() || matches(printed, &found);
            let is_as_meant = *is_endless || status.success() != must_fail;
            if is_as_said && is_as_meant {
                return;
            }
            let over = !is_read_command || *is_endless || begun.elapsed() > COMMAND_TIMEOUT;
            assert!(
                !over,
                "{page}:{line}: $ {command}\n{status}\n--- said\n{}\n--- found\n{found}",
                printed.join("\n"),
            );
            std::thread::sleep(POLL_INTERVAL * 4);
        }
    }

    /// Runs a command that does not end until it has printed what is expected, or too long.
    fn until_printed(&self, command: &str, expected: &[String]) -> Output {
        let log = self.folder.path("endless.log");
        let _ = std::fs::remove_file(&log);
        let mut program = self.program(&format!("exec {command}"));
        program.process_group(0);
        let mut process = Process::start(program, &log);
        let begun = Instant::now();
        while begun.elapsed() < COMMAND_TIMEOUT
            && process.is_alive()
            && !matches(expected, &process.output())
        {
            std::thread::sleep(POLL_INTERVAL);
        }
        let stdout = process.output().into_bytes();
        process.kill();
        Output { status: Default::default(), stdout, stderr: Vec::new() }
    }
}

/// A walk that failed leaves no tasks behind either: a cell that is only killed does not end them.
impl Drop for Reader {
    fn drop(&mut self) {
        let terminals = std::mem::take(&mut self.terminals);
        for mut process in terminals.into_values() {
            let begun = Instant::now();
            if process.is_alive() {
                process.signal(Signal::INT);
            }
            while process.is_alive() && begun.elapsed() < COMMAND_TIMEOUT {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

/// What goes on may have said more by now than is shown.
fn begins_as(expected: &[String], printed: &str) -> bool {
    let more = [expected, &["...".to_owned()]].concat();
    matches(&more, printed)
}

fn end(mut process: Process, how: EndMode) {
    match how {
        EndMode::Killed => process.kill(),
        EndMode::Interrupted => {
            process.signal(Signal::INT);
            let begun = Instant::now();
            while process.is_alive() {
                assert!(begun.elapsed() < TIMEOUT, "it does not end:\n{}", process.output());
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

/// Runs it to its end, which must come.
fn wait_for_end(mut program: Program) -> Output {
    let folder = Folder::new();
    let (out, err) = (folder.path("out"), folder.path("err"));
    let file = |path: &Path| std::fs::File::create(path).expect("a file can be made");
    program.stdout(file(&out)).stderr(file(&err));
    let mut child = program.spawn().expect("bash runs");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            break status;
        }
        if begun.elapsed() > COMMAND_TIMEOUT {
            let _ = child.kill();
            break child.wait().expect("a child of ours");
        }
        std::thread::sleep(POLL_INTERVAL / 5);
    };
    let read = |path: &Path| std::fs::read(path).unwrap_or_default();
    Output { status, stdout: read(&out), stderr: read(&err) }
}
