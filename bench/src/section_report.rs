//! Reports of whole systems: one section for each figure, replaced when that figure is measured
//! again. Each says where, when and in what company it was measured: these figures depend on the
//! disk and on who else wants the processors, and a number without that is worth nothing.

use crate::report::{Origin, Row, format_value, output, reports};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

/// A report that is measured section by section.
pub struct SectionedReport {
    pub name: &'static str,
    pub about: &'static str,
    /// Keys of its sections, in their order.
    pub figures: &'static [&'static str],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    title: String,
    /// What was done.
    about: String,
    /// What keeps the figures from being better.
    limits: String,
    date: String,
    /// Load average of the machine when it began and when it was over.
    load: [String; 2],
    origin: Origin,
    rows: Vec<Row>,
}

#[derive(Default, Serialize, Deserialize)]
struct Sections(BTreeMap<String, Section>);

impl Section {
    pub fn new(title: &str, about: &str) -> Section {
        println!("== {title}");
        Section {
            title: title.into(),
            about: about.into(),
            limits: String::new(),
            date: output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            load: [load_average(), String::new()],
            origin: origin(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, work: &str, measured: f64, unit: &str, target: &str) {
        println!("{work:<66} {} {unit}   {target}", format_value(measured));
        self.rows.push(Row {
            work: work.into(),
            measured,
            unit: unit.into(),
            target: target.into(),
            commit: self.origin.commit.clone(),
        });
    }

    pub fn limits(&mut self, limits: &str) {
        self.limits = limits.into();
    }

    /// Puts the section into the report, in the place of an older one.
    ///
    /// # Errors
    /// When the report cannot be read or written.
    pub fn save(mut self, report: &SectionedReport, key: &str) -> io::Result<()> {
        let name = report.name;
        self.load[1] = load_average();
        let file = reports().join(format!("{name}.json"));
        let mut all = match std::fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str(&text).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Sections::default(),
            Err(error) => return Err(error),
        };
        all.0.insert(key.to_owned(), self);
        let json = serde_json::to_string_pretty(&all).map_err(io::Error::other)?;
        std::fs::write(&file, json + "\n")?;
        std::fs::write(reports().join(format!("{name}.md")), all.markdown(report))?;
        println!("recorded in bench/reports/{name}.md");
        Ok(())
    }
}

impl Sections {
    fn markdown(&self, report: &SectionedReport) -> String {
        let mut out = format!("# {}\n\n{}\n", report.name, report.about);
        let known = report.figures.iter().filter_map(|key| self.0.get(*key));
        known.for_each(|section| section.write(&mut out));
        out
    }
}

impl Section {
    fn write(&self, out: &mut String) {
        let o = &self.origin;
        let _ = write!(out, "\n## {}\n\n{}\n\n", self.title, self.about);
        let _ = writeln!(out, "| work | measured | target |\n|---|---|---|");
        for row in &self.rows {
            let measured = format_value(row.measured);
            let _ = writeln!(out, "| {} | {measured} {} | {} |", row.work, row.unit, row.target);
        }
        let _ = write!(out, "\nWhat limits it: {}\n\n", self.limits);
        let _ = writeln!(
            out,
            "{}: {} ({} cores, {} GiB), Linux {}, {}, commit {}; load average of the whole machine \
             {} before and {} after.",
            self.date,
            o.cpu,
            o.cores,
            o.memory_gib,
            o.kernel,
            o.rustc,
            o.commit,
            self.load[0],
            self.load[1]
        );
    }
}

/// Names the commit only if that is what was built.
fn origin() -> Origin {
    let mut origin = Origin::read();
    let is_changed = output("git", &["status", "--porcelain", "--", "../crates", "src"]);
    if !is_changed.is_empty() {
        origin.commit.push_str(" with changes not committed yet");
    }
    origin
}

/// Over the last minute.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}
