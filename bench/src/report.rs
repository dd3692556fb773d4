//! Reports: what was measured, on what machine, at which commit, with which seed. Every benchmark
//! prints its rows and leaves them in `bench/reports/NAME.json` and `NAME.md`.

use cellwright_sim::plot::{Chart, render};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub work: String,
    pub measured: f64,
    pub unit: String,
    /// What the project set itself, in words; empty when the row is for comparison only.
    pub target: String,
    /// The commit it was measured at: a report may be completed later.
    pub commit: String,
}

/// Where and when a report was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub cpu: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    pub rustc: String,
    pub commit: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub name: String,
    pub about: String,
    pub seed: u64,
    pub origin: Origin,
    pub rows: Vec<Row>,
    /// Charts beside the report: file and title.
    #[serde(default)]
    pub plots: Vec<(String, String)>,
}

impl Report {
    pub fn new(name: &str, about: &str, seed: u64) -> Report {
        Report {
            name: name.into(),
            about: about.into(),
            seed,
            origin: Origin::read(),
            rows: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Draws a chart into `bench/reports/FILE.svg` and shows it in the report.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn plot(&mut self, file: &str, chart: &Chart) -> std::io::Result<()> {
        std::fs::create_dir_all(reports())?;
        std::fs::write(reports().join(format!("{file}.svg")), render(chart))?;
        self.plots.push((format!("{file}.svg"), chart.title.clone()));
        Ok(())
    }

    /// The recorded rows of the report with this name, to be completed; every row keeps its commit.
    ///
    /// # Errors
    /// When there is no such report or it cannot be read.
    pub fn recorded(&mut self) -> std::io::Result<()> {
        let text = std::fs::read_to_string(reports().join(format!("{}.json", self.name)))?;
        let earlier: Report = serde_json::from_str(&text).map_err(std::io::Error::other)?;
        (self.rows, self.plots) = (earlier.rows, earlier.plots);
        Ok(())
    }

    pub fn has_row(&self, work: &str) -> bool {
        self.rows.iter().any(|row| row.work == work)
    }

    pub fn row(&mut self, work: &str, measured: f64, unit: &str, target: &str) {
        println!("{work:<58} {} {unit}   {target}", format_value(measured));
        self.rows.push(Row {
            work: work.into(),
            measured,
            unit: unit.into(),
            target: target.into(),
            commit: self.origin.commit.clone(),
        });
    }

    /// Writes both forms next to the other reports.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn save(&self) -> std::io::Result<()> {
        let folder = reports();
        std::fs::create_dir_all(&folder)?;
        let json = serde_json::to_string_pretty(self).map_err(std::io::Error::other)?;
        std::fs::write(folder.join(format!("{}.json", self.name)), json + "\n")?;
        std::fs::write(folder.join(format!("{}.md", self.name)), self.markdown())?;
        println!("recorded in bench/reports/{}.md", self.name);
        Ok(())
    }

    fn markdown(&self) -> String {
        let o = &self.origin;
        let mut out = format!("# {}\n\n{}\n\n", self.name, self.about);
        let _ = writeln!(
            out,
            "{} ({} cores, {} GiB), Linux {}, {}, commit {}, seed {}.\n",
            o.cpu, o.cores, o.memory_gib, o.kernel, o.rustc, o.commit, self.seed
        );
        let is_mixed = self.rows.iter().any(|row| row.commit != o.commit);
        let (head, rule) = if is_mixed { (" commit |", "---|") } else { ("", "") };
        let _ = writeln!(out, "| work | measured | target |{head}\n|---|---|---|{rule}");
        for row in &self.rows {
            let commit = if is_mixed { format!(" {} |", row.commit) } else { String::new() };
            let measured = format_value(row.measured);
            let _ = writeln!(
                out,
                "| {} | {measured} {} | {} |{commit}",
                row.work, row.unit, row.target
            );
        }
        for (file, title) in &self.plots {
            let _ = write!(out, "\n![{title}]({file})\n");
        }
        out
    }
}

/// `bench/reports` of this checkout.
pub fn reports() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("reports")
}

/// Three significant digits, thousands separated.
pub fn format_value(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.3}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 && c != '-' {
            out.push(',');
        }
        out.push(c);
    }
    out
}

impl Origin {
    pub fn read() -> Origin {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |text: &str, key: &str| {
            let line = text.lines().find(|l| l.starts_with(key));
            line.and_then(|l| l.split(':').nth(1)).unwrap_or("unknown").trim().to_owned()
        };
        let kib: u64 =
            field(&meminfo, "MemTotal").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Origin {
            cpu: field(&cpuinfo, "model name"),
            cores: cpuinfo.lines().filter(|l| l.starts_with("processor")).count(),
            memory_gib: kib.div_ceil(1 << 20),
            kernel: output("uname", &["-r"]),
            rustc: output("rustc", &["--version"]),
            commit: output("git", &["rev-parse", "--short=12", "HEAD"]),
        }
    }
}

pub fn output(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()
        .filter(|o| o.status.success());
    out.map_or("unknown".into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

/// Highest resident memory of this process so far, in bytes.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The value below which `share` (0 to 1) of the sorted samples lie.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank.min(sorted.len()) - 1]
}
