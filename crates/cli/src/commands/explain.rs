//! `cell explain`: why a task is pending and what would let it run, why it was placed where it is,
//! how it ended; or the same for a whole job, with similar tasks grouped.

use super::Success;
use super::status::{StartError, fetch_start_errors};
use super::target::{Target, TargetArg, parse_target};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, print_prose};
use crate::runtime::block_on;
use crate::table::{sentences, wrap, wrap_list};
use cellwright_api::types::{ExplanationView, HappenedView, ReasonView};
use cellwright_cell::name::JobKey;
use clap::Args;
use std::collections::BTreeSet;

/// Past events shown in a table; JSON has more.
const MAX_EVENTS: usize = 5;

/// Say why a task waits, why it is where it is, or how it ended
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A job, or one of its tasks
    #[arg(value_name = "JOB|TASK", value_parser = parse_target)]
    subject: TargetArg,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl ExplainArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let Target { job, tasks } = block_on(self.subject.resolve(&cell))?;
        let Some(indexes) = tasks else {
            let explanation =
                block_on(async { Ok(cell.client.explain_job(&job).await?.value.item) })?;
            match self.output.output {
                Output::Json => print_json(&explanation)?,
                Output::Table => {
                    // The first task of each group represents the others.
                    let firsts = explanation.groups.iter().filter_map(|group| group.tasks.first());
                    let start_errors = start_error_lines(&cell, &job, firsts.copied().collect());
                    let text = rewrap_lines(&format!("{}: {}", explanation.job, explanation.text));
                    let reasons = explanation.groups.iter().flat_map(|group| &group.why.reasons);
                    let hints = host_volume_hints(reasons);
                    let scaling = scaling_line(&cell, &job);
                    print_prose(&format!("{text}{hints}{start_errors}{scaling}"))?;
                }
            }
            return Ok(Success::Done);
        };
        let [index] = indexes[..] else {
            return Err(Failure::Usage {
                message: format!("{} tasks of {job} at once; allowed: one, or all", indexes.len()),
                next: format!("those that are alike together: cell explain {job}"),
            });
        };
        let explanation =
            block_on(async { Ok(cell.client.explain(&job, index).await?.value.item) })?;
        match self.output.output {
            Output::Json => print_json(&explanation)?,
            Output::Table => print_prose(&render_task(
                &explanation,
                &start_error_lines(&cell, &job, vec![index]),
            ))?,
        }
        Ok(Success::Done)
    }
}

/// Why tasks could not start, as reported by their machines. A machine that does not answer is no
/// reason to withhold the explanation.
fn start_error_lines(cell: &Cell, job: &JobKey, indexes: Vec<u32>) -> String {
    let found = block_on(async {
        let mut tasks = Vec::new();
        for index in indexes {
            tasks.push(cell.client.task(job, index).await?.value.item);
        }
        Ok(fetch_start_errors(cell, job, &tasks).await)
    });
    let errors = found.unwrap_or_default();
    let line = |error: &StartError| {
        wrap(&format!("{} could not start: ", error.task), "  ", &error.message)
    };
    errors.iter().map(line).collect()
}

/// Why the job has the size that it has, if the cell chooses it.
fn scaling_line(cell: &Cell, job: &JobKey) -> String {
    let view = block_on(async { Ok(cell.client.scale(job).await.ok()) });
    let text = view.ok().flatten().map(|view| view.value.item.text);
    text.map_or_else(String::new, |text| wrap("", "  ", &format!("{text}.")))
}

fn rewrap_lines(text: &str) -> String {
    sentences("", "  ", text)
}

/// `start_errors`: the machine's report why the task could not start.
fn render_task(explanation: &ExplanationView, start_errors: &str) -> String {
    let mut out = rewrap_lines(&explanation.text);
    out.push_str(&host_volume_hints(&explanation.reasons));
    out.push_str(start_errors);
    if let Some(chosen) = &explanation.here {
        for candidate in &chosen.candidates {
            let mark = if candidate.here { "  (here)" } else { "" };
            let terms = candidate.score.as_object().map(|terms| {
                let term = |(name, value): (&String, &serde_json::Value)| format!("{name} {value}");
                terms.iter().map(term).collect::<Vec<_>>()
            });
            let score = terms.unwrap_or_default();
            let prefix = format!("  {}. {}{mark}: ", candidate.rank, candidate.machine);
            out.push_str(&wrap_list(&prefix, "     ", &score));
        }
    }
    let first_shown = explanation.history.len().saturating_sub(MAX_EVENTS);
    let recent = &explanation.history[first_shown..];
    if !recent.is_empty() {
        out.push_str("\nlately\n");
        recent.iter().for_each(|event| out.push_str(&render_event(event)));
    }
    out
}

/// How to configure the host volumes that machines lack, each once.
fn host_volume_hints<'a>(reasons: impl IntoIterator<Item = &'a ReasonView>) -> String {
    let missing_volumes =
        reasons.into_iter().filter(|reason| reason.code == "volume" && reason.machines > 0);
    let folder = |reason: &ReasonView| {
        let volume = &reason.detail;
        let mode = if volume["writable"] == true { "" } else { ":ro" };
        volume["source"].as_str().map(|source| format!("{source}{mode}"))
    };
    let flags: BTreeSet<String> = missing_volumes.filter_map(folder).collect();
    let line = |flag: &String| {
        let text = format!("`volumes` in its agent.toml, or cell dev --volume {flag}");
        wrap("A machine lends it with ", "  ", &text)
    };
    flags.iter().map(line).collect()
}

fn render_event(event: &HappenedView) -> String {
    let start = format!("  {}  ", format::utc(event.at));
    wrap(&start, "                          ", &event.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whoever_waits_for_a_folder_is_told_how_it_is_lent() {
        let reason = |code: &str, source: &str, writable: bool| ReasonView {
            code: code.into(),
            machines: 1,
            detail: json!({ "source": source, "writable": writable }),
            text: String::new(),
            about: String::new(),
        };
        let hints = host_volume_hints(&[
            reason("volume", "/srv/a", true),
            reason("volume", "/srv/b", false),
        ]);
        let line = "A machine lends it with `volumes` in its agent.toml, or cell dev --volume";
        let hints = hints.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(hints, format!("{line} /srv/a {line} /srv/b:ro"));
        assert_eq!(host_volume_hints(&[reason("resource", "/srv/a", true)]), "");
    }
}
