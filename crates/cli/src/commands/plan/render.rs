//! Renders a plan as text at 80 columns: differences, restarts, placements, evictions, quota, and
//! the next command.

use crate::style::Style;
use crate::table::{WIDTH, sentences, wrap};
use crate::{format, table};
use cellwright_api::types::{
    FieldDiff, JobPlan, PlanAction, PlanView, PlannedChange, PlannedEffect, PlannedPlace,
    PlannedVictim, QuotaChange,
};
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::job::ChangeClass;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_lang::to_source;
use cellwright_sim::experiment::load::Units;
use serde_json::Value;

/// The maximum number of machines and victims named; -o json names more.
const MAX_PLACES: usize = 6;
const MAX_VICTIMS: usize = 8;
/// The maximum number of characters of a value, since command lines can be long.
const MAX_VALUE_CHARS: usize = 48;

pub fn render_plan(plan: &PlanView, next: Option<&str>, style: Style) -> String {
    let mut out = String::new();
    for job in &plan.jobs {
        out.push_str(&render_job(job, style));
        out.push('\n');
    }
    match next {
        Some(next) if next.starts_with("cell ") => {
            out.push_str(&format!("{} {}\n", style.strong("next:"), break_command(next)));
        }
        Some(next) => out.push_str(&format!("{next}\n")),
        None => {}
    }
    out
}

/// Breaks a command that is too long for its line, with backslashes as a shell takes them.
fn break_command(command: &str) -> String {
    match command.rsplit_once(" --plan ") {
        Some((run, token)) if "next: ".len() + command.chars().count() > WIDTH => {
            format!("{run} \\\n      --plan {token}")
        }
        _ => command.to_owned(),
    }
}

fn render_job(job: &JobPlan, style: Style) -> String {
    let name = style.strong(&format!("{}/{}", job.user, job.name));
    let version = job.version.map_or(String::new(), |version| format!(" of version {version}"));
    let outcome = match job.action {
        PlanAction::Create => "a new job".to_owned(),
        PlanAction::Update => format!("an update{version}"),
        PlanAction::Nothing => match job.version {
            Some(version) if job.outdated > 0 => {
                let behind = format::pluralize(u64::from(job.outdated), "task");
                format!("unchanged, at version {version}, which {behind} has yet to get")
            }
            Some(version) => format!("unchanged, at version {version}"),
            None => "unchanged".to_owned(),
        },
        PlanAction::Rejected => style.bad("the cell would refuse it"),
    };
    let mut out = format!("{name}: {outcome}\n");
    if !job.changes.is_empty() {
        out.push_str(&render_changes(&job.changes, style));
    }
    for (label, text) in labelled_rows(job) {
        out.push_str(&wrap(&format!("  {label:<8}"), "          ", &text));
    }
    out.push_str(&render_victims("evicts", &job.victims, style));
    out.push_str(&render_victims("in turn", &job.evicted_in_turn, style));
    for obstacle in &job.obstacles {
        let text = format!("{}: {}", obstacle.message, obstacle.hint);
        out.push_str(&wrap(&format!("  {}", style.warning("first   ")), "          ", &text));
    }
    if let Some(why) = &job.why_pending {
        let count = format::pluralize(u64::from(job.pending), "task");
        out.push_str(&format!("  {}{count}\n", style.bad("waits   ")));
        out.push_str(&sentences("          ", "            ", &why.text));
    }
    out
}

pub fn render_changes(changes: &[FieldDiff], style: Style) -> String {
    let mut out = String::new();
    for change in changes {
        let old = change.old.as_ref().map(|value| format_value(&change.path, value));
        let new = change.new.as_ref().map(|value| format_value(&change.path, value));
        let (sign, text) = match (old, new) {
            (None, Some(new)) => (style.good("+"), new),
            (Some(old), None) => (style.bad("-"), old),
            (old, new) => {
                let text = format!("{} -> {}", old.unwrap_or_default(), new.unwrap_or_default());
                (style.warning("~"), text)
            }
        };
        let class = match change.class {
            ChangeClass::NoRestart => "no restart".to_owned(),
            ChangeClass::Restart => style.warning("restart"),
            ChangeClass::MayMove => style.bad("may move"),
        };
        let plain = change.path.chars().count() + text.chars().count() + 20;
        if plain <= WIDTH {
            out.push_str(&format!("  {sign} {}: {text}  ({class})\n", change.path))
        } else {
            out.push_str(&format!("  {sign} {}  ({class})\n", change.path));
            out.push_str(&wrap("      ", "      ", &text));
        }
    }
    out
}

/// A value as its owner would write it; limits with units.
fn format_value(path: &str, value: &Value) -> String {
    let dimension = path.rsplit_once("limits.").map(|(_, dimension)| dimension);
    if let (Some(dimension), Some(amount)) = (dimension, value.as_u64()) {
        return format::amount(Units::CoresAndBytes, &dimension.replace('_', "-"), amount);
    }
    let text = to_source::field(path, value).to_string();
    if text.chars().count() > MAX_VALUE_CHARS {
        text.chars().take(MAX_VALUE_CHARS - 3).chain("...".chars()).collect()
    } else {
        text
    }
}

/// The rows about a job, each with a label.
fn labelled_rows(job: &JobPlan) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(version) = job.closes_update {
        rows.push(("closes", format!("the update to version {version}, which is complete")));
    }
    let tasks = tasks_text(job);
    if !tasks.is_empty() {
        rows.push(("tasks", tasks));
    }
    rows.extend(job.effects.iter().map(effect_row));
    if job.disruption.tasks > 0 {
        rows.push(("rolls", disruption_text(job)));
    }
    if job.canaries > 0 {
        let canaries = format::pluralize(u64::from(job.canaries), "task");
        rows.push(("tries", format!("{canaries} first; the others once it is promoted")));
    }
    if job.placed > 0 || job.pending > 0 {
        rows.push(("places", placement_text(job)));
    }
    let changed = job.quota.iter().filter(|quota| quota.before != quota.after);
    rows.extend(changed.map(|change| ("quota", quota_text(change))));
    rows
}

fn tasks_text(job: &JobPlan) -> String {
    let tasks = &job.tasks;
    let named = [
        (tasks.added, "added"),
        (tasks.removed, "removed"),
        (tasks.in_place, "not disturbed"),
        (tasks.resized, "resized in place"),
        (tasks.restarted, "restarted in place"),
        (tasks.moved, "to find another place"),
        (tasks.skipped, "skipped: the update may disrupt no more"),
        (tasks.deferred, "deferred until another job has ended"),
    ];
    let some = named.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> =
        some.map(|(count, what)| format!("{} {what}", format::count(u64::from(*count)))).collect();
    let mut text = texts.join(", ");
    if tasks.estimated > 0 {
        let count = format::count(u64::from(tasks.estimated));
        text.push_str(&format!(" ({count} of them by the class of the change, not tried)"));
    }
    text
}

/// Which tasks, and why.
fn effect_row(effect: &PlannedEffect) -> (&'static str, String) {
    let fields = effect.fields.join(", ");
    let because = |why: &str| {
        if fields.is_empty() { String::new() } else { format!(": {why} {fields}") }
    };
    let (label, why) = match effect.change {
        PlannedChange::Resized => ("resizes", String::new()),
        PlannedChange::Restarted => ("restart", because("another")),
        PlannedChange::Moved => ("moves", because("no longer fits where it is with another")),
        PlannedChange::Skipped => ("skips", String::new()),
    };
    let named = index_ranges(&effect.tasks);
    let more = u64::from(effect.count).saturating_sub(effect.tasks.len() as u64);
    let more = if more > 0 { format!(" and {} more", format::count(more)) } else { String::new() };
    let task = if effect.count == 1 { "task" } else { "tasks" };
    (label, format!("{task} {named}{more}{why}"))
}

/// `0-3, 7`.
fn index_ranges(indices: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for index in indices {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let range = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

fn disruption_text(job: &JobPlan) -> String {
    let stopped = format::pluralize(u64::from(job.disruption.tasks), "running task");
    let are = if job.disruption.tasks == 1 { "is" } else { "are" };
    let at_once = match job.disruption.at_once {
        Some(most) => format!("at most {most} down at a time (max_down)"),
        None => "in waves: the job sets no max_down".to_owned(),
    };
    let most = job
        .disruption
        .most
        .map_or(String::new(), |most| format!(", {most} in all (max_update_disruptions)"));
    format!("{stopped} {are} stopped, {at_once}{most}")
}

fn placement_text(job: &JobPlan) -> String {
    let on = |planned: &PlannedPlace| format!("{} ({})", planned.machine, planned.count);
    let named: Vec<String> = job.places.iter().take(MAX_PLACES).map(on).collect();
    let more = u64::from(job.machines).saturating_sub(named.len() as u64);
    let more = if more > 0 { format!(" and {} more", format::count(more)) } else { String::new() };
    let all = format::pluralize(u64::from(job.placed + job.pending), "task");
    let placed = format::count(u64::from(job.placed));
    match job.placed {
        0 => format!("0 of {all}"),
        _ => format!(
            "{placed} of {all}, on {}: {}{more}",
            format::pluralize(u64::from(job.machines), "machine"),
            named.join(", ")
        ),
    }
}

fn quota_text(change: &QuotaChange) -> String {
    let some = |d: &Dimension| {
        let at = |r: &Resources| r.get(*d);
        at(&change.before) != at(&change.after)
    };
    let amount =
        |d: Dimension, of: Resources| format::amount(Units::CoresAndBytes, d.as_str(), of.get(d));
    let parts: Vec<String> = Dimension::ALL
        .into_iter()
        .filter(some)
        .map(|d| {
            let (before, after) = (amount(d, change.before), amount(d, change.after));
            match change.granted.get(d) {
                // A total this large means no limit.
                MAX_TOTAL.. => format!("{d} {before} -> {after}"),
                _ => format!("{d} {before} -> {after} of {}", amount(d, change.granted)),
            }
        })
        .collect();
    format!("{}: {}", change.band, parts.join(", "))
}

fn render_victims(label: &str, victims: &[PlannedVictim], style: Style) -> String {
    if victims.is_empty() {
        return String::new();
    }
    let count = format::pluralize(victims.len() as u64, "task");
    let mut out = format!("  {}{count}\n", style.bad(&format!("{label:<8}")));
    let rows: Vec<Vec<String>> = victims
        .iter()
        .take(MAX_VICTIMS)
        .map(|victim| {
            let destination = victim.moves_to.clone().unwrap_or_else(|| "waits".into());
            vec![
                victim.task.clone(),
                victim.priority.0.to_string(),
                victim.machine.clone(),
                destination,
            ]
        })
        .collect();
    out.push_str(&table::render_inset(&["task", "priority", "from", "to"], &rows, 10));
    let more = victims.len().saturating_sub(MAX_VICTIMS);
    if more > 0 {
        out.push_str(&format!("          and {more} more (-o json names them)\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_is_resized_restarted_or_moved_is_named_with_the_reason() {
        let row = |change, count, tasks: &[u32], fields: &[&str]| {
            let fields = fields.iter().map(|field| (*field).to_owned()).collect();
            effect_row(&PlannedEffect { change, count, tasks: tasks.to_vec(), fields })
        };
        let limits = ["task.limits"];
        let resized = row(PlannedChange::Resized, 5, &[0, 1, 2, 4], &limits);
        assert_eq!(resized, ("resizes", "tasks 0-2, 4 and 1 more".to_owned()));
        let moved = row(PlannedChange::Moved, 1, &[3], &limits);
        let why = "task 3: no longer fits where it is with another task.limits";
        assert_eq!(moved, ("moves", why.to_owned()));
        let restarted = row(PlannedChange::Restarted, 2, &[0, 1], &["task.command"]);
        assert_eq!(restarted, ("restart", "tasks 0-1: another task.command".to_owned()));
    }

    #[test]
    fn values_are_shown_as_their_owner_would_write_them() {
        assert_eq!(format_value("task.limits.cpu", &json!(500)), "0.50 cores");
        assert_eq!(format_value("task.max_run", &json!(600_000)), "\"10m\"");
        assert_eq!(format_value("disruptions", &json!({ "within": 60_000 })), r#"{"within":"1m"}"#);
        assert_eq!(format_value("count", &json!(3)), "3");
    }
}
