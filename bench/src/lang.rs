//! How long a large file of jobs takes: 200 jobs in 5,000 lines of Jsonnet, evaluated in a child
//! process and checked, as `cell validate` does it. This program is its own child, as `cell` is.

use crate::report::{Report, percentile};
use cellwright_cell::name::Name;
use cellwright_lang::diagnostic::Source;
use cellwright_lang::{Diagnostics, Evaluator, Format, Inputs, Limits, LoadOptions};
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Instant;

const JOBS: usize = 200;
const LINES: usize = 5_000;
const RUNS: usize = 11;

/// One service of 25 lines with the comma behind it.
fn job(number: usize) -> String {
    format!(
        "\
  // Service {number} of the many.
  cell.service('service-{number}', base {{
    count: {count},
    cpu: '{cpu}m',
    ram: '{ram}MiB',
    disk: '1GiB',
    command: [
      '/packages/server/bin/server',
      '--shard=%d' % {number},
      '--log=' + levels[{number} % 3],
    ],
    env: {{
      NAME: 'service-{number}',
      SHARDS: std.toString(total),
      REGION: regions[{number} % std.length(regions)],
    }},
    ports: 2,
    health: cell.http('/healthy', 0, {{ interval: '5s' }}),
    constraints: [
      cell.where('os', '==', 'debian'),
      cell.prefer(20, cell.where('disk', '==', 'flash')),
    ],
    labels+: {{ number: '{number}' }},
    max_down: 1,
  }}),
",
        count = number % 9 + 1,
        cpu = 100 + number,
        ram = 64 + number,
    )
}

/// The head has the lines that are missing to [`LINES`], as comments.
fn file() -> String {
    let jobs: String = (0..JOBS).map(job).collect();
    let mut head = String::from(
        "local cell = import 'cell.libsonnet';\n\
         local total = 200;\n\
         local levels = ['info', 'warning', 'error'];\n\
         local regions = ['north', 'south'];\n\
         local base = { labels: { app: 'many' }, notice: '5s' };\n",
    );
    let missing = LINES.saturating_sub(head.lines().count() + jobs.lines().count() + 2);
    for number in 0..missing {
        let _ = writeln!(head, "// {number}");
    }
    format!("{head}[\n{jobs}]\n")
}

fn seconds(source: &Source, options: &LoadOptions) -> io::Result<f64> {
    let started = Instant::now();
    let loaded = cellwright_lang::load_text(source, Path::new("."), Format::Jsonnet, options);
    let elapsed = started.elapsed().as_secs_f64();
    match loaded {
        Ok(loaded) if loaded.documents.len() == JOBS => Ok(elapsed),
        Ok(loaded) => Err(io::Error::other(format!("{} jobs", loaded.documents.len()))),
        Err(Diagnostics(wrong)) => {
            Err(io::Error::other(wrong.iter().map(|one| one.render(false)).collect::<String>()))
        }
    }
}

pub fn main() -> io::Result<()> {
    let source = Source { name: "many.jsonnet".into(), text: file() };
    let lines = source.text.lines().count();
    let mut report = Report::new(
        "lang",
        "A file of jobs in Jsonnet, evaluated in a child process under its limits and checked \
         against the schema and the rules of admission, as `cell validate` and `cell run` do it.",
        0,
    );
    report.row("lines of the file", lines as f64, "lines", "");
    report.row("jobs of the file", JOBS as f64, "jobs", "");
    let owner = Name::new("dev").ok();
    let child = Evaluator::Child(std::env::current_exe()?);
    for (work, evaluator) in [
        ("evaluate in a child and check", child),
        ("evaluate in this process and check", Evaluator::InProcess),
    ] {
        let (limits, owner, inputs) = (Limits::default(), owner.clone(), Inputs::default());
        let options = LoadOptions { evaluator, limits, owner, inputs };
        let mut runs =
            (0..RUNS).map(|_| seconds(&source, &options)).collect::<io::Result<Vec<f64>>>()?;
        runs.sort_by(f64::total_cmp);
        let target = if work.contains("child") { "≤ 1" } else { "" };
        report.row(&format!("{work}, median of {RUNS}"), percentile(&runs, 0.5), "s", target);
        report.row(&format!("{work}, slowest of {RUNS}"), percentile(&runs, 1.0), "s", target);
    }
    report.save()
}
