//! Parts that the results of several verbs have in common.

use crate::format;
use crate::style::Style;
use crate::table::wrap;
use cellwright_sched::explain::units::{MillionthsOfWhole, StandardUnits};
use cellwright_sched::explain::{Explanation, text};
use cellwright_sim::experiment::load::Units;
use cellwright_sim::experiment::pack::TraceProblems;
use cellwright_sim::experiment::pending::{ExplainedTask, PendingReport};

/// Why tasks are pending; nothing when none is, or nobody asked.
pub fn render_pending_reasons(report: &PendingReport, units: Units, style: Style) -> String {
    if report.classes.is_empty() {
        return String::new();
    }
    let (explained_classes, all) = (report.classes.len(), report.classes_total);
    let of_all = match explained_classes < all {
        true => format!(" ({explained_classes} of {all} kinds of tasks; --explain N shows more)"),
        false => String::new(),
    };
    let mut out = format!("\n{}{of_all}\n", style.strong("why pending"));
    for class in &report.classes {
        let others = match class.tasks {
            1 => String::new(),
            tasks => format!(" and {} like it", format::count(tasks as u64 - 1)),
        };
        out.push_str(&format!("  {}{others}\n", style.strong(&class.example)));
        out.push_str(&render_explanation(&class.explanation, units));
    }
    out
}

/// The one task that was asked about.
pub fn render_explained_task(task: &ExplainedTask, units: Units, style: Style) -> String {
    let name = style.strong(&task.task);
    let text = match (&task.explanation, &task.machine) {
        (Some(explanation), _) => render_explanation(explanation, units),
        (None, Some(machine)) => format!("    placed on {machine}.\n"),
        (None, None) => wrap(
            "    ",
            "      ",
            "evicted: it had a place and lost it to a higher priority in the same pass; the next \
             pass tries it again.",
        ),
    };
    format!("\n{name}\n{text}")
}

/// An explanation in sentences, indented.
pub fn render_explanation(explanation: &Explanation, units: Units) -> String {
    let sentences = match units {
        Units::CoresAndBytes => text::render(explanation, &StandardUnits),
        Units::LargestMachine => text::render(explanation, &MillionthsOfWhole { whole: "units" }),
    };
    join_continued_lines(&sentences).iter().map(|line| wrap("    ", "      ", line)).collect()
}

/// Lines that go on from the line before are joined to it, so that they can be wrapped anew.
fn join_continued_lines(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for line in text.lines() {
        match out.last_mut().filter(|last| !last.ends_with('.')) {
            Some(last) => *last = format!("{last} {line}"),
            None => out.push(line.to_owned()),
        }
    }
    out
}

/// Rows of the trace that could not be used; nothing when all could.
pub fn render_trace_problems(trace: &TraceProblems, style: Style) -> String {
    if trace.rows_unusable == 0 {
        return String::new();
    }
    let unusable = format::pluralize(trace.rows_unusable, "row");
    let read = format::count(trace.rows_read);
    let mut out = format!("\n{}: {unusable} left out, {read} read\n", style.warning("trace"));
    for problem in &trace.first {
        out.push_str(&wrap("  - ", "    ", &problem.to_string()));
    }
    out
}

/// What stands in for what the trace does not say.
pub fn render_notes(notes: &[String], style: Style) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", style.strong("notes"));
    for note in notes {
        out.push_str(&wrap("  - ", "    ", note));
    }
    out
}
