//! Jobs without a job file: a command behind `--`, or a script whose `#CELL` lines have the same
//! options. Both become a batch job that is run once.
//!
//! A job that is given no name gets one of its own each time, since whoever types the same command
//! twice means two jobs, not an update of the first.

use super::parse;
use crate::failure::Failure;
use cellwright_cell::name::{MAX_NAME, Name};
use cellwright_cell::priority::{MAX_PRIORITY, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, JobSpec, MAX_TASKS, RestartPolicy, SpreadLimit, TaskOverride};
use cellwright_cell::suggestions::nearest;
use cellwright_cell::time::{Span, Time};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, CommandFactory, Parser};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What begins a line of options in a script.
const OPTIONS: &str = "#CELL";
/// The same of a system whose scripts many people have.
const FOREIGN_OPTIONS: &str = "#SBATCH";
/// The largest script: what fits into a spec, which is checked by the cell.
const MAX_SCRIPT: u64 = 1 << 20;
const DEFAULT_CPU: u64 = 1000;
const DEFAULT_RAM: u64 = 256 << 20;
/// The lowest of the batch band.
const DEFAULT_PRIORITY: Priority = Priority(100);
/// The variable with the number of a task in an array.
const ARRAY_INDEX: &str = "CELL_ARRAY_INDEX";

#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "A command or script")]
pub struct OneOffArgs {
    /// What the job is called [default: as its program, and a mark of its own]
    #[arg(long, value_name = "NAME", value_parser = parse::name)]
    name: Option<Name>,

    /// Cores for each task [default: 1]
    #[arg(long, value_name = "CORES", value_parser = parse::nonzero_cores)]
    cpu: Option<u64>,

    /// Memory for each task [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse::nonzero_size)]
    ram: Option<u64>,

    /// Disk for each task [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    disk: Option<u64>,

    /// How many equal tasks; each finds its number in CELL_INDEX, from 0 on
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "array",
          value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,

    /// A task for each number from A to B, which it finds in CELL_ARRAY_INDEX; with %N at most N of
    /// them at once
    #[arg(long, value_name = "A-B[%N]", value_parser = parse_array)]
    array: Option<Array>,

    /// 0 to 399, or the name of a band [default: batch, which is 100]
    #[arg(long, value_name = "PRIORITY", value_parser = parse_priority)]
    priority: Option<Priority>,

    /// The longest that a task may run; then it is killed and has failed
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    time: Option<Span>,

    /// A variable of the task; repeat it for several
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,

    /// Submit it and return; otherwise its output is shown, and the exit code is that of the task
    #[arg(long)]
    pub detach: bool,
}

/// Tasks with numbers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    first: u32,
    last: u32,
    /// How many of them may be placed at once.
    most: Option<u32>,
}

/// What there is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    Command(Vec<String>),
    /// The text of a script and its arguments.
    Script {
        path: String,
        text: String,
        arguments: Vec<String>,
    },
}

/// A line of options in a script.
#[derive(Parser)]
#[command(name = OPTIONS, no_binary_name = true, disable_help_flag = true)]
struct OptionsLine {
    #[command(flatten)]
    options: OneOffArgs,
}

impl Program {
    /// The script at `path`, if the file is one: it says in its first line what runs it.
    pub fn of_script(path: &str, arguments: &[String]) -> Option<Program> {
        let mut text = String::new();
        let file = File::open(path).ok().filter(|_| Path::new(path).is_file())?;
        file.take(MAX_SCRIPT).read_to_string(&mut text).ok()?;
        let (path, arguments) = (path.to_owned(), arguments.to_vec());
        text.starts_with("#!").then_some(Program::Script { path, text, arguments })
    }

    /// The name without the folder and the extension.
    fn short_name(&self) -> String {
        let path = match self {
            Program::Command(words) => words.first().map(String::as_str).unwrap_or_default(),
            Program::Script { path, .. } => path,
        };
        let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = stem.chars().map(plain).collect();
        let name = name.trim_matches('-');
        if name.is_empty() { "run".into() } else { name.into() }
    }
}

impl OneOffArgs {
    /// The first option that was given, for a file that has its own fields.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--name", self.name.is_some()),
            ("--cpu", self.cpu.is_some()),
            ("--ram", self.ram.is_some()),
            ("--disk", self.disk.is_some()),
            ("--count", self.count.is_some()),
            ("--array", self.array.is_some()),
            ("--priority", self.priority.is_some()),
            ("--time", self.time.is_some()),
            ("--env", !self.env.is_empty()),
            ("--detach", self.detach),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// These options, and those of the script where they say nothing.
    pub fn with_script(&self, program: &Program) -> Result<OneOffArgs, Failure> {
        let Program::Script { path, text, .. } = program else { return Ok(self.clone()) };
        let mut all = self.clone();
        for (number, line) in options_lines(text) {
            let failure = |message: &str| Failure::Usage {
                message: format!("{path}:{number}: {message}"),
                next: "correct the line; options are those of: cell run --help".into(),
            };
            let words = split_words(line).map_err(|message| failure(&message))?;
            let read = OptionsLine::try_parse_from(words).map_err(|error| {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                let first = first.strip_prefix("error: ").unwrap_or(first);
                match nearest_option(&error) {
                    Some(near) => failure(&format!("{first}; the nearest is --{near}")),
                    None => failure(first),
                }
            })?;
            all = all.or(read.options);
        }
        Ok(all)
    }

    /// What is missing here is taken from `other`.
    fn or(self, other: OneOffArgs) -> OneOffArgs {
        let is_counted = self.count.is_some() || self.array.is_some();
        let (count, array) = if is_counted { (None, None) } else { (other.count, other.array) };
        OneOffArgs {
            name: self.name.or(other.name),
            cpu: self.cpu.or(other.cpu),
            ram: self.ram.or(other.ram),
            disk: self.disk.or(other.disk),
            count: self.count.or(count),
            array: self.array.or(array),
            priority: self.priority.or(other.priority),
            time: self.time.or(other.time),
            // The later of two variables of one name counts.
            env: other.env.into_iter().chain(self.env).collect(),
            detach: self.detach || other.detach,
        }
    }

    /// The job; `now` makes the mark of one without a name.
    pub fn job(&self, program: &Program, now: Time) -> Result<JobSpec, Failure> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => marked_name(&program.short_name(), now)?,
        };
        let limits = Resources::new(
            self.cpu.unwrap_or(DEFAULT_CPU),
            self.ram.unwrap_or(DEFAULT_RAM),
            self.disk.unwrap_or(0),
            0,
        );
        let count = match self.array {
            Some(array) => array.last - array.first + 1,
            None => self.count.unwrap_or(1),
        };
        let priority = self.priority.unwrap_or(DEFAULT_PRIORITY);
        let mut spec = JobSpec::new(name, count, priority, limits);
        spec.restart = RestartPolicy { max_failures: Some(0), ..RestartPolicy::default() };
        spec.task.max_run = self.time;
        spec.task.env = self.env.iter().cloned().collect();
        (spec.task.command, spec.task.files) = command_and_files(program);
        if let Some(Array { first, most, .. }) = self.array {
            let own = |index: u32| {
                let env = BTreeMap::from([(ARRAY_INDEX.into(), (first + index).to_string())]);
                (index, TaskOverride { env: Some(env), ..TaskOverride::default() })
            };
            spec.overrides = (0..count).map(own).collect();
            let limit = most.map(|limit| SpreadLimit { domain: Domain::Cell, limit });
            spec.spread.extend(limit);
        }
        Ok(spec)
    }
}

/// The option that an unknown one was meant for.
fn nearest_option(error: &clap::Error) -> Option<String> {
    let unknown = match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(unknown) if error.kind() == ErrorKind::UnknownArgument => unknown,
        _ => return None,
    };
    let known = OptionsLine::command();
    let options = known.get_arguments().filter_map(Arg::get_long);
    let word = unknown.trim_start_matches('-');
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    nearest(name, options).map(str::to_owned)
}

/// A script is a file of the task, run by what its first line says.
fn command_and_files(program: &Program) -> (Vec<String>, BTreeMap<String, String>) {
    match program {
        Program::Command(words) => (words.clone(), BTreeMap::new()),
        Program::Script { path, text, arguments } => {
            let file = Path::new(path).file_name().and_then(|name| name.to_str());
            let file = file.unwrap_or("script").to_owned();
            let first = text.lines().next().unwrap_or_default();
            let interpreter = first.trim_start_matches("#!").split_whitespace().map(str::to_owned);
            let words = interpreter.chain([file.clone()]).chain(arguments.iter().cloned());
            (words.collect(), BTreeMap::from([(file, text.clone())]))
        }
    }
}

/// The lines of options with their numbers: those before the first line that is run.
fn options_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let head = text.lines().enumerate().take_while(|(_, line)| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#')
    });
    head.filter_map(|(at, line)| {
        let rest = line.strip_prefix(OPTIONS)?;
        rest.starts_with(char::is_whitespace).then_some((at + 1, rest))
    })
}

/// Whether the script has options of another system and none of ours.
pub fn has_foreign_options_only(program: &Program) -> bool {
    let Program::Script { text, .. } = program else { return false };
    let is_foreign = text.lines().any(|line| line.starts_with(FOREIGN_OPTIONS));
    is_foreign && options_lines(text).next().is_none()
}

/// The words of a line, which may be quoted.
fn split_words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (letter, quote) {
            (_, Some(open)) if letter == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (_, None) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    match quote {
        Some(open) => Err(format!("{open} is never closed")),
        None => Ok(words),
    }
}

/// `date-mi4k2x9a`: the milliseconds since 1970 in base 36, so that names sort by time.
fn marked_name(short: &str, now: Time) -> Result<Name, Failure> {
    let (mut rest, mut digits) = (now.0, Vec::new());
    while rest > 0 || digits.is_empty() {
        digits.push(char::from_digit((rest % 36) as u32, 36).unwrap_or('0'));
        rest /= 36;
    }
    let mark: String = digits.into_iter().rev().collect();
    let most = MAX_NAME.saturating_sub(mark.len() + 1);
    let short: String = short.chars().take(most).collect();
    let name = format!("{}-{mark}", short.trim_end_matches('-'));
    Name::new(&name).map_err(|bad| Failure::Usage {
        message: format!("no job can be called {name}: {}", bad.allowed),
        next: "the same command with --name NAME".into(),
    })
}

fn parse_array(text: &str) -> Result<Array, String> {
    let allowed = || "allowed: A-B or A-B%N with whole numbers, as 1-100%8".to_owned();
    let (range, most) = match text.split_once('%') {
        Some((range, most)) => (range, Some(most.parse().map_err(|_| allowed())?)),
        None => (text, None),
    };
    let (first, last) = range.split_once('-').ok_or_else(allowed)?;
    let [first, last]: [u32; 2] =
        [first.parse().map_err(|_| allowed())?, last.parse().map_err(|_| allowed())?];
    if first > last || last - first >= MAX_TASKS || most == Some(0) {
        let more = "of at most 200,000 tasks, and 1 or more at once";
        return Err(format!("{}, {more}", allowed()));
    }
    Ok(Array { first, last, most })
}

fn parse_priority(text: &str) -> Result<Priority, String> {
    let bands = [
        ("best_effort", Priority(0)),
        ("batch", DEFAULT_PRIORITY),
        ("production", Priority(200)),
        ("monitoring", Priority(300)),
    ];
    let plain = text.replace('-', "_");
    if let Some((_, lowest)) = bands.iter().find(|(name, _)| *name == plain) {
        return Ok(*lowest);
    }
    let number = text.parse().ok().filter(|number| *number <= MAX_PRIORITY);
    number.map(Priority).ok_or_else(|| {
        let names = bands.map(|(name, _)| name).join(", ");
        format!("allowed: 0 to {MAX_PRIORITY}, {names}")
    })
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("allowed: NAME=VALUE, as MODE=fast".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> OneOffArgs {
        OptionsLine::try_parse_from(words).unwrap().options
    }

    fn script(text: &str) -> Program {
        let (path, text) = ("jobs/train.sh".to_owned(), text.to_owned());
        Program::Script { path, text, arguments: vec!["fast".into()] }
    }

    #[test]
    fn a_command_is_a_job_that_is_run_once() {
        let program = Program::Command(vec!["/bin/My_Tool.py".into(), "a b".into()]);
        let words = ["--cpu", "2", "--ram", "1Gi", "-n", "3", "--time", "1h", "--env", "A=b=c"];
        let job = options(&words).job(&program, Time(36 * 36 * 36)).unwrap();
        assert_eq!(
            (job.name.as_str(), job.count, job.priority),
            ("my-tool-1000", 3, Priority(100))
        );
        assert_eq!(job.task.limits, Resources::new(2000, 1 << 30, 0, 0));
        assert_eq!(job.task.command, ["/bin/My_Tool.py", "a b"]);
        assert_eq!(job.task.max_run, Some(Span::seconds(3600)));
        assert_eq!(job.task.env["A"], "b=c");
        assert_eq!(job.restart.max_failures, Some(0));
        let plain = options(&[]).job(&program, Time(0)).unwrap();
        assert_eq!(plain.task.limits, Resources::new(1000, 256 << 20, 0, 0));
        let long = Program::Command(vec!["x".repeat(200)]);
        let name = options(&[]).job(&long, Time(1 << 41)).unwrap().name;
        assert_eq!(name.as_str().len(), MAX_NAME);
        let named = options(&["--name", "mine", "--priority", "production"]);
        let job = named.job(&program, Time(0)).unwrap();
        assert_eq!((job.name.as_str(), job.priority), ("mine", Priority(200)));
    }

    #[test]
    fn an_array_numbers_its_tasks_and_bounds_how_many_run() {
        let program = Program::Command(vec!["sort".into()]);
        let job = options(&["--array", "5-8%2"]).job(&program, Time(0)).unwrap();
        assert_eq!(job.count, 4);
        assert_eq!(job.spread, [SpreadLimit { domain: Domain::Cell, limit: 2 }]);
        let numbers: Vec<String> =
            (0..4).map(|index| job.env_of(index)[ARRAY_INDEX].clone()).collect();
        assert_eq!(numbers, ["5", "6", "7", "8"]);
        for wrong in ["5", "8-5", "a-b", "1-2%0", "1-2%", "0-4294967295"] {
            assert!(parse_array(wrong).is_err_and(|error| error.contains("1-100%8")), "{wrong}");
        }
        let both = OptionsLine::try_parse_from(["--array", "1-2", "-n", "3"]);
        assert!(both.is_err());
    }

    #[test]
    fn a_script_has_its_options_and_the_command_line_is_stronger() {
        let text = "#!/usr/bin/env python3\n# Trains.\n#CELL --cpu 4 --env 'A=b c'\n\n\
                    #CELL --name train --array 1-9%3 --env B=1\nprint(1)\n#CELL --cpu 99\n";
        let program = script(text);
        let all = options(&["--ram", "2GiB", "--env", "B=2"]).with_script(&program).unwrap();
        let job = all.job(&program, Time(0)).unwrap();
        assert_eq!((job.name.as_str(), job.count), ("train", 9));
        assert_eq!(job.task.limits, Resources::new(4000, 2 << 30, 0, 0));
        assert_eq!((job.task.env["A"].as_str(), job.task.env["B"].as_str()), ("b c", "2"));
        assert_eq!(job.task.command, ["/usr/bin/env", "python3", "train.sh", "fast"]);
        assert_eq!(job.task.files["train.sh"], text);
        let fewer = options(&["-n", "2", "--cpu", "1"]).with_script(&program).unwrap();
        let job = fewer.job(&program, Time(0)).unwrap();
        assert_eq!((job.count, job.task.limits.cpu, job.spread.len()), (2, 1000, 0));
    }

    #[test]
    fn a_wrong_line_of_options_is_named() {
        let check = |line: &str, part: &str| {
            let program = script(&format!("#!/bin/sh\n#CELL {line}\ntrue\n"));
            let failure = OneOffArgs::default().with_script(&program).unwrap_err().to_string();
            assert!(failure.starts_with("jobs/train.sh:2: "), "{failure}");
            assert!(failure.contains(part), "{line}: {failure}");
        };
        check("--cpus 2", "'--cpus' found; the nearest is --cpu");
        check("--cpus=2", "the nearest is --cpu");
        check("--gres gpu:1", "'--gres'");
        check("--cpu none", "allowed: cores");
        check("--name 'x", "' is never closed");
        let foreign = script("#!/bin/sh\n#SBATCH -n 4\ntrue\n");
        assert!(has_foreign_options_only(&foreign));
        assert!(!has_foreign_options_only(&script("#!/bin/sh\n#SBATCH -n 4\n#CELL -n 4\n")));
        assert!(!has_foreign_options_only(&script("#!/bin/sh\n")));
    }
}
