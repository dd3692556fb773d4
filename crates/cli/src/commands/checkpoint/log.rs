//! `cell checkpoint log`: prints a master's log, entry by entry, with the verdicts.
//!
//! The log contains requests and no verdicts: those follow from the state, so they are computed
//! again by replaying the log, which also proves that it can be replayed.

use super::log_source::{LogSourceArgs, note_uncommitted};
use crate::commands::{Success, parse};
use crate::failure::Failure;
use crate::output::{ItemStream, print, print_notice};
use crate::{format, table};
use cellwright_cell::command::{ApplyOutcome, Done, Entry, Request, Verdict};
use cellwright_master::audit::describe;
use cellwright_master::checkpoint::ReplayTarget;
use cellwright_master::log_replay::{LogReplayer, ReplayedContent, ReplayedEntry};
use cellwright_store::Peer;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people.
    Table,
    /// The same: a table of entries is as wide as they are.
    Wide,
    /// One array.
    Json,
    /// One list.
    Yaml,
    /// Log indices alone, one a line.
    Name,
    /// One object on each line, as they are read.
    Jsonl,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// The first log index to show, or the time to begin with
    #[arg(long, value_name = "INDEX|TIME", value_parser = parse::log_position)]
    from: Option<ReplayTarget>,

    /// The last log index to show, or the time to end with
    #[arg(long, value_name = "INDEX|TIME", value_parser = parse::log_position)]
    to: Option<ReplayTarget>,

    /// With json, yaml and jsonl: every request in full, with its verdict
    #[arg(long)]
    full: bool,

    /// A checkpoint to work out verdicts from, besides those in the data directory
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    #[command(flatten)]
    past: LogSourceArgs,

    /// A table for people, or JSON for programs
    #[arg(short, long, value_enum, default_value = "table")]
    output: LogFormat,
}

impl LogArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let unsupported = match self.output {
            LogFormat::Table | LogFormat::Wide => Some("a table"),
            LogFormat::Name => Some("names"),
            LogFormat::Json | LogFormat::Yaml | LogFormat::Jsonl => None,
        };
        if let Some(format_name) = unsupported.filter(|_| self.full) {
            return Err(Failure::Usage {
                message: format!("--full has no effect on {format_name}"),
                next: "add -o jsonl, or leave out --full".into(),
            });
        }
        let past = self.past.open(self.base.as_deref())?;
        let from = self.first_index(&past)?;
        self.print(&past, from)?;
        note_uncommitted(&past, past.next().saturating_sub(1).min(self.last_index()));
        Ok(Success::Done)
    }

    /// The index of the first entry at or after a start time; entries are ordered by time.
    fn first_index(&self, past: &LogReplayer) -> Result<u64, Failure> {
        match self.from {
            None => Ok(past.first()),
            Some(ReplayTarget::Time(_)) => Ok(past.first()),
            Some(ReplayTarget::Index(index)) if index < past.first() => Err(Failure::Operation {
                message: format!(
                    "entry {index} is no longer in the log: it begins at {}",
                    past.first()
                ),
                next: format!("the same with --from {}", past.first()),
            }),
            Some(ReplayTarget::Index(index)) if index >= past.next() => Err(Failure::Operation {
                message: format!("entry {index} is not in the log: it ends before {}", past.next()),
                next: "choose an earlier --from".into(),
            }),
            Some(ReplayTarget::Index(index)) => Ok(index),
        }
    }

    fn last_index(&self) -> u64 {
        match self.to {
            Some(ReplayTarget::Index(index)) => index,
            _ => u64::MAX,
        }
    }

    fn print(&self, past: &LogReplayer, from: u64) -> Result<(), Failure> {
        let mut items = ItemStream::new(false)?;
        let is_table = matches!(self.output, LogFormat::Table | LogFormat::Wide);
        let mut found = false;
        past.entries(from, self.last_index(), |log_entry| {
            if !self.wants(&log_entry) {
                return Ok(());
            }
            if is_table && !std::mem::replace(&mut found, true) {
                print(&format_columns(["index", "term", "time", "done", "rejected"], "what"))?;
            }
            match self.output {
                LogFormat::Table | LogFormat::Wide => print(&entry_line(&log_entry)),
                LogFormat::Name => print(&format!("{}\n", log_entry.index)),
                LogFormat::Json | LogFormat::Yaml | LogFormat::Jsonl => {
                    items.add(&self.entry_json(&log_entry))
                }
            }
        })?;
        if is_table {
            if !found {
                let (first, next) = (past.first(), past.next());
                print_notice(&format!(
                    "no such entries; the log reaches from {first} to before {next}"
                ));
            }
            return Ok(());
        }
        items.finish()
    }

    /// Entries without a time match only if no end is given.
    fn wants(&self, log_entry: &ReplayedEntry) -> bool {
        let at = match &log_entry.content {
            ReplayedContent::Requests { entry, .. } => Some(entry.now),
            _ => None,
        };
        let is_after_start = match self.from {
            Some(ReplayTarget::Time(from)) => at.is_some_and(|at| at.0 / 1000 >= from.0 / 1000),
            _ => true,
        };
        let is_before_end = match self.to {
            Some(ReplayTarget::Time(to)) => at.is_none_or(|at| at > to),
            _ => false,
        };
        is_after_start && !is_before_end
    }

    fn entry_json(&self, log_entry: &ReplayedEntry) -> Value {
        let ReplayedEntry { index, term, is_committed: is_agreed, content: entry_kind } = log_entry;
        let mut object = json!({ "index": index, "term": term, "agreed": is_agreed });
        match entry_kind {
            ReplayedContent::Blank => object["kind"] = "new_leader".into(),
            ReplayedContent::Members(members) => {
                let member = |(id, peer, votes): &(u64, Peer, bool)| {
                    let Peer { name, address } = peer;
                    json!({ "id": id, "name": name, "address": address, "votes": votes })
                };
                object["kind"] = "members".into();
                object["members"] = members.iter().map(member).collect();
            }
            ReplayedContent::Requests { entry, verdicts } => {
                let counts = verdicts.as_deref().map(count_verdicts);
                object["kind"] = "requests".into();
                object["at"] = json!(entry.now);
                object["commands"] = json!(count_commands(entry));
                object["requests"] = entry.requests.len().into();
                object["done"] = json!(counts.map(|(done, _)| done));
                object["rejected"] = json!(counts.map(|(_, rejected)| rejected));
                if self.full {
                    object["all"] = requests_json(entry, verdicts.as_deref());
                }
            }
        }
        object
    }
}

/// The number of commands of each kind.
fn count_commands(entry: &Entry) -> BTreeMap<&'static str, u64> {
    let mut names = BTreeMap::new();
    for request in &entry.requests {
        *names.entry(describe(&request.command).0).or_default() += 1;
    }
    names
}

fn count_verdicts(verdicts: &[Verdict]) -> (usize, usize) {
    let rejected = verdicts.iter().filter(|verdict| verdict.is_err()).count();
    (verdicts.len() - rejected, rejected)
}

fn requests_json(entry: &Entry, verdicts: Option<&[Verdict]>) -> Value {
    let request_json = |(position, request): (usize, &Request)| {
        let verdict = verdicts.and_then(|verdicts| verdicts.get(position));
        let mut object = json!(request);
        match verdict {
            None => {}
            Some(Ok(done)) => object["done"] = json!(done),
            Some(Err(rejection)) => {
                object["rejected"] = json!(rejection);
                object["why"] = rejection.to_string().into();
            }
        }
        object
    };
    entry.requests.iter().enumerate().map(request_json).collect()
}

fn format_columns(columns: [&str; 5], description: &str) -> String {
    let [index, term, time, done, rejected] = columns;
    let first = format!("{index:>8}  {term:>4}  {time:<24}  {done:>5}  {rejected:>7}  ");
    table::wrap_for_terminal(&first, "          ", description)
}

fn entry_line(log_entry: &ReplayedEntry) -> String {
    let (index, term) = (log_entry.index.to_string(), log_entry.term.to_string());
    let plain = |description: &str| format_columns([&index, &term, "", "", ""], description);
    match &log_entry.content {
        ReplayedContent::Blank => plain("a new leader"),
        ReplayedContent::Members(members) => {
            let member = |(_, peer, votes): &(u64, Peer, bool)| {
                if *votes { peer.name.clone() } else { format!("{} (follows)", peer.name) }
            };
            let names: Vec<String> = members.iter().map(member).collect();
            plain(&format!("members {}", names.join(", ")))
        }
        ReplayedContent::Requests { entry, verdicts } => {
            let counts = verdicts.as_deref().map(count_verdicts);
            let number = |number: Option<usize>| number.map_or("?".into(), |n| n.to_string());
            let (done, rejected) = (number(counts.map(|c| c.0)), number(counts.map(|c| c.1)));
            let time = format::utc_millis(entry.now);
            format_columns(
                [&index, &term, &time, &done, &rejected],
                &requests_text(entry, verdicts.as_deref()),
            )
        }
    }
}

/// A single request is printed with its object, several are counted.
fn requests_text(entry: &Entry, verdicts: Option<&[Verdict]>) -> String {
    match entry.requests.as_slice() {
        [] => "nothing".into(),
        [only] => {
            let (name, object) = describe(&only.command);
            let by = format!(" by {}", only.by);
            let why = match verdicts.and_then(|verdicts| verdicts.first()) {
                Some(Err(rejection)) => format!(": {rejection}"),
                Some(Ok(
                    Done::Unchanged
                    | Done::Job { became: ApplyOutcome::Unchanged | ApplyOutcome::Ended, .. },
                )) => ": was so already".into(),
                _ => String::new(),
            };
            let object = if object.is_empty() { object } else { format!(" {object}") };
            format!("{name}{object}{by}{why}")
        }
        _ => {
            let counted = |(name, count): (&'static str, u64)| match count {
                1 => name.to_owned(),
                _ => format!("{name} x{count}"),
            };
            count_commands(entry).into_iter().map(counted).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_other_commands_is_one_of_the_log_too() {
        for form in crate::output::OUTPUT_FORMATS {
            assert!(LogFormat::from_str(form, false).is_ok(), "{form}");
        }
    }
}
