//! A reader at a terminal: a folder with the project's examples in it, a cell of its own, and the
//! page's commands typed one after the other.

use super::matching::matches;
use super::page::{Block, Command, Page, Step};
use crate::binary::{cell, text};
use crate::folder::Folder;
use crate::process::Process;
use crate::{LOOK, PATIENCE};
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than any command of a page takes.
const LONGEST: Duration = Duration::from_secs(60);
/// Commands that only look: what they show may not have come to pass yet, so they are typed again.
/// A reader does the same.
const LOOKING: &[&str] = &[
    "cell status",
    "cell job status",
    "cell describe",
    "cell explain",
    "cell events",
    "cell logs",
    "cell machine ls",
    "cell machine show",
    "cell user ls",
    "cell quota",
    "cell sql",
    "cell top",
    "cell update status",
    "cell package ls",
    "cell cron",
    "cell master status",
    "curl",
    "dig",
];

struct Reader {
    folder: Folder,
    address: Option<String>,
    cell: Option<Process>,
}

/// Walks through a page of the guide as a reader would.
///
/// # Panics
/// When the page does not hold what it says, with where and what was found instead.
pub fn walk(path: &Path) {
    let page = std::fs::read_to_string(path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let page = Page::parse(&page).unwrap_or_else(|why| panic!("{name}: {why}"));
    let mut reader = Reader { folder: Folder::new(), address: None, cell: None };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::os::unix::fs::symlink(root.join("examples"), reader.folder.path("examples"))
        .expect("the examples are at hand");
    let is_typed = page.steps.iter().any(|step| matches!(step, Step::Type(_)));
    if is_typed && page.cell.as_deref() != Some("none") {
        reader.start(page.cell.as_deref().unwrap_or_default());
    }
    for step in &page.steps {
        match step {
            Step::File { name, text } => {
                std::fs::write(reader.folder.path(name), text).expect("a file can be written");
            }
            Step::Read { line, why } => println!("{name}:{line}: not run: {why}"),
            Step::Type(Block { line, needs_root: true, .. })
                if !rustix::process::geteuid().is_root() =>
            {
                println!("{name}:{line}: skipped: needs root");
            }
            Step::Type(block) => block.commands.iter().for_each(|typed| reader.types(&name, typed)),
        }
    }
    reader.leave();
}

impl Reader {
    fn start(&mut self, arguments: &str) {
        let mut command = Program::new(cell());
        command.args(["dev", "--listen", "127.0.0.1:0", "--data"]).arg(self.folder.path("cell"));
        command.args(arguments.split_whitespace()).current_dir(&self.folder.0);
        let process = Process::start(command, &self.folder.path("cell.log"));
        let begun = Instant::now();
        let address = loop {
            let said = process.output();
            let behind = said.split_once(" serves http://").map(|(_, behind)| behind);
            if let Some((address, _)) = behind.and_then(|text| text.split_once([' ', '\n'])) {
                break address.to_owned();
            }
            assert!(begun.elapsed() < PATIENCE, "the cell does not start:\n{said}");
            std::thread::sleep(LOOK);
        };
        (self.address, self.cell) = (Some(address), Some(process));
    }

    /// As with ctrl-c: the cell ends its tasks first.
    fn leave(&mut self) {
        let Some(mut process) = self.cell.take() else { return };
        process.signal(Signal::INT);
        let begun = Instant::now();
        while process.is_alive() {
            assert!(begun.elapsed() < PATIENCE, "the cell does not end:\n{}", process.output());
            std::thread::sleep(LOOK);
        }
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

    fn types(&self, page: &str, typed: &Command) {
        let Command { line, text: command, is_endless, printed } = typed;
        println!("{page}:{line}: $ {command}");
        let begun = Instant::now();
        let is_looking = LOOKING.iter().any(|looking| command.starts_with(looking));
        let must_fail = printed.first().is_some_and(|line| line.starts_with("error:"));
        loop {
            let Output { status, stdout, stderr } = match is_endless {
                true => self.until_printed(command, printed),
                false => ended(self.program(command)),
            };
            let (stdout, stderr) = (text(&stdout), text(&stderr));
            let found = format!("{stdout}{stderr}");
            let is_as_said = printed.is_empty() || matches(printed, &found);
            let is_as_meant = *is_endless || status.success() != must_fail;
            if is_as_said && is_as_meant {
                return;
            }
            let over = !is_looking || *is_endless || begun.elapsed() > LONGEST;
            assert!(
                !over,
                "{page}:{line}: $ {command}\n{status}\n--- said\n{}\n--- found\n{found}",
                printed.join("\n"),
            );
            std::thread::sleep(LOOK * 4);
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
        while begun.elapsed() < LONGEST
            && process.is_alive()
            && !matches(expected, &process.output())
        {
            std::thread::sleep(LOOK);
        }
        let stdout = process.output().into_bytes();
        process.kill();
        Output { status: Default::default(), stdout, stderr: Vec::new() }
    }
}

/// Runs it to its end, which must come.
fn ended(mut program: Program) -> Output {
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
        if begun.elapsed() > LONGEST {
            let _ = child.kill();
            break child.wait().expect("a child of ours");
        }
        std::thread::sleep(LOOK / 5);
    };
    let read = |path: &Path| std::fs::read(path).unwrap_or_default();
    Output { status, stdout: read(&out), stderr: read(&err) }
}
