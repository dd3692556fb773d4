//! `cell explain`: why a task waits and what would let it run, why it is where it is, how it ended;
//! or the same of a whole job, its tasks that are alike together.

use super::Success;
use super::status::{Words, words_of_starts};
use super::target::{Target, Typed, typed};
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::table::{listed, rewrapped, wrapped};
use cellwright_api::types::{ExplanationView, HappenedView, ReasonView};
use cellwright_cell::name::JobKey;
use clap::Args;
use std::collections::BTreeSet;

/// Events of the past shown in a table; JSON has more.
const SHOWN: usize = 5;

/// Say why a task waits, why it is where it is, or how it ended
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A job, or one of its tasks
    #[arg(value_name = "JOB|TASK", value_parser = typed)]
    subject: Typed,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl ExplainArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let Target { job, tasks } = ask(self.subject.resolve(&cell))?;
        let Some(indexes) = tasks else {
            let said = ask(async { Ok(cell.client.explain_job(&job).await?.value.item) })?;
            match self.output.output {
                Output::Json => print_json(&said)?,
                Output::Table => {
                    // The first of each kind stands for the rest.
                    let firsts = said.groups.iter().filter_map(|group| group.tasks.first());
                    let words = starts(&cell, &job, firsts.copied().collect());
                    let text = lines(&format!("{}: {}", said.job, said.text));
                    let reasons = said.groups.iter().flat_map(|group| &group.why.reasons);
                    say(&format!("{text}{}{words}", lending(reasons)))?;
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
        let said = ask(async { Ok(cell.client.explain(&job, index).await?.value.item) })?;
        match self.output.output {
            Output::Json => print_json(&said)?,
            Output::Table => say(&task(&said, &starts(&cell, &job, vec![index])))?,
        }
        Ok(Success::Done)
    }
}

/// Why tasks could not start, in the words of their machines. That a machine does not say is no
/// reason to explain nothing.
fn starts(cell: &Cell, job: &JobKey, indexes: Vec<u32>) -> String {
    let found = ask(async {
        let mut tasks = Vec::new();
        for index in indexes {
            tasks.push(cell.client.task(job, index).await?.value.item);
        }
        Ok(words_of_starts(cell, job, &tasks).await)
    });
    let said = found.unwrap_or_default();
    let line =
        |words: &Words| wrapped(&format!("{} could not start: ", words.task), "  ", &words.said);
    said.iter().map(line).collect()
}

fn lines(text: &str) -> String {
    rewrapped("", "  ", text)
}

/// `words`: of its machine, why it could not start.
fn task(said: &ExplanationView, words: &str) -> String {
    let mut out = lines(&said.text);
    out.push_str(&lending(&said.reasons));
    out.push_str(words);
    if let Some(here) = &said.here {
        for candidate in &here.candidates {
            let mark = if candidate.here { "  (here)" } else { "" };
            let terms = candidate.score.as_object().map(|terms| {
                let term = |(name, value): (&String, &serde_json::Value)| format!("{name} {value}");
                terms.iter().map(term).collect::<Vec<_>>()
            });
            let score = terms.unwrap_or_default();
            let place = format!("  {}. {}{mark}: ", candidate.rank, candidate.machine);
            out.push_str(&listed(&place, "     ", &score));
        }
    }
    let newest = said.history.len().saturating_sub(SHOWN);
    let shown = &said.history[newest..];
    if !shown.is_empty() {
        out.push_str("\nlately\n");
        shown.iter().for_each(|event| out.push_str(&happened(event)));
    }
    out
}

/// How the folders are lent that machines do not lend, each once.
fn lending<'a>(reasons: impl IntoIterator<Item = &'a ReasonView>) -> String {
    let loans = reasons.into_iter().filter(|reason| reason.code == "volume" && reason.machines > 0);
    let folder = |reason: &ReasonView| {
        let loan = &reason.detail;
        let mode = if loan["writable"] == true { "" } else { ":ro" };
        loan["source"].as_str().map(|source| format!("{source}{mode}"))
    };
    let flags: BTreeSet<String> = loans.filter_map(folder).collect();
    let line = |flag: &String| {
        let text = format!("`volumes` in its agent.toml, or cell dev --lend {flag}");
        wrapped("A machine lends it with ", "  ", &text)
    };
    flags.iter().map(line).collect()
}

fn happened(event: &HappenedView) -> String {
    let start = format!("  {}  ", format::utc(event.at));
    wrapped(&start, "                          ", &event.text)
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
        };
        let told = lending(&[reason("volume", "/srv/a", true), reason("volume", "/srv/b", false)]);
        let line = "A machine lends it with `volumes` in its agent.toml, or cell dev --lend";
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(told, format!("{line} /srv/a {line} /srv/b:ro"));
        assert_eq!(lending(&[reason("resource", "/srv/a", true)]), "");
    }
}
