//! `cell init`: writes a first job file, with comments, as a starting point.

use super::{Success, parse};
use crate::failure::Failure;
use crate::output::print_prose;
use cellwright_cell::name::Name;
use clap::Args;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};

const EXAMPLES: &str = "\
Examples:
  cell init
  cell init web --service
  cell init nightly --cron";

/// Write a commented job file into the current folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InitArgs {
    /// Name of the job; the file is NAME.jsonnet
    #[arg(value_name = "NAME", default_value = "hello", value_parser = parse::name)]
    name: Name,

    /// A service: runs for ever, several copies, health check; taken when nothing is said
    #[arg(long, conflicts_with_all = ["batch", "cron"])]
    service: bool,

    /// A batch job: runs to its end
    #[arg(long, conflicts_with = "cron")]
    batch: bool,

    /// A periodic job
    #[arg(long)]
    cron: bool,
}

const HEAD: &str = "\
// Check it:    cell validate NAME.jsonnet
// Run it:      cell run NAME.jsonnet
// Change it, and run it again: the cell does what differs. All fields are in the guide on the job
// language, and in `cell schema`.
local cell = import 'cell.libsonnet';

";

const SERVICE: &str = "\
cell.service('NAME', {
  // How many copies run.
  count: 3,
  // What each may use at most: 100m is a tenth of a core.
  cpu: '100m',
  ram: '128MiB',
  // The program and its arguments. For a shell line: ['sh', '-c', 'echo hello; sleep 60'].
  command: ['sleep', 'infinity'],
  // While the cell updates or moves tasks, at most this many are down at once.
  max_down: 1,
  // For a program that listens: one port, which it finds in CELL_PORT0, and how to tell that it
  // is well.
  // ports: 1,
  // health: cell.http('/healthy'),
  labels: { app: 'NAME' },
})
";

const BATCH: &str = "\
cell.batch('NAME', {
  // How many tasks; each finds its number in CELL_INDEX.
  count: 4,
  cpu: '100m',
  ram: '128MiB',
  command: ['sh', '-c', 'echo task $CELL_INDEX; sleep 1'],
  // A task that runs longer is killed and counts as failed.
  max_run: '10m',
  // A task that fails this often in a row stays dead.
  restart: { max_failures: 3 },
})
";

const CRON: &str = "\
// Minute, hour, day of month, month, day of week, in UTC.
cell.cron('NAME', '*/15 * * * *', {
  cpu: '100m',
  ram: '64MiB',
  command: ['sh', '-c', 'date'],
  max_run: '5m',
}, {
  // While a run still goes on the next one is left out; `replace` stops the old one instead.
  overlap: 'skip',
  // How many runs stay on record.
  keep_runs: 3,
})
";

impl InitArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let body = match (self.service, self.batch, self.cron) {
            (_, true, _) => BATCH,
            (_, _, true) => CRON,
            (_, false, false) => SERVICE,
        };
        let file = format!("{}.jsonnet", self.name);
        let text = format!("{HEAD}{body}").replace("NAME", self.name.as_str());
        let made = OpenOptions::new().write(true).create_new(true).open(&file);
        let written = made.and_then(|mut out| out.write_all(text.as_bytes()));
        written.map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => Failure::Usage {
                message: format!("{file} is there already and stays as it is"),
                next: "give another name: cell init NAME".into(),
            },
            _ => Failure::Write { what: file.clone(), source },
        })?;
        print_prose(&format!("wrote {file}\nnext: cell validate {file} && cell run {file}\n"))?;
        Ok(Success::Done)
    }
}
