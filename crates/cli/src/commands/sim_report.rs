//! Report sections that several `cell sim` verbs share.

use crate::format;
use crate::style::Style;
use crate::table::{sentences, wrap};
use cellwright_cell::explanation::Explanation;
use cellwright_cell::words;
use cellwright_cell::words::quantity::{Millionths, Natural};
use cellwright_sim::experiment::load::Units;
use cellwright_sim::experiment::pack::TraceProblems;
use cellwright_sim::experiment::pending::{ExplainedTask, PendingReport};

/// Why tasks are pending; empty if none is, or if it was not requested.
pub fn render_pending_reasons(report: &PendingReport, units: Units, style: Style) -> String {
    if report.classes.is_empty() {
        return String::new();
    }
    let (explained_classes, all) = (report.classes.len(), report.classes_total);
    let of_all = if explained_classes < all {
        format!(" ({explained_classes} of {all} kinds of tasks; --explain N shows more)")
    } else {
        String::new()
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

/// The explanation of the one task that was requested.
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
    let text = match units {
        Units::CoresAndBytes => words::explanation::render(explanation, &Natural),
        Units::LargestMachine => {
            words::explanation::render(explanation, &Millionths { whole: "units" })
        }
    };
    sentences("    ", "      ", &text)
}

/// Rows of the trace that could not be used; empty if all could.
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

/// Assumptions made where the trace lacks data.
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
