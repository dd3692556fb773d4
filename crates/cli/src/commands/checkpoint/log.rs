//! `cell checkpoint log`: what stands in a master's log, entry by entry, with what became of it.
//!
//! The log has requests and no verdicts: those follow from the state, so they are worked out again
//! by replaying, which is also what shows that they can be.

use super::past::{PastArgs, note_unsure};
use crate::commands::{Success, parse};
use crate::failure::Failure;
use crate::output::{Items, aside, print};
use crate::{format, table};
use cellwright_cell::command::{Became, Done, Entry, Request, Verdict};
use cellwright_master::audit::describe;
use cellwright_master::checkpoint::Target;
use cellwright_master::past::{Past, Placed, What};
use cellwright_store::Peer;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
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
    #[arg(long, value_name = "INDEX|TIME", value_parser = parse::place)]
    from: Option<Target>,

    /// The last log index to show, or the time to end with
    #[arg(long, value_name = "INDEX|TIME", value_parser = parse::place)]
    to: Option<Target>,

    /// With json, yaml and jsonl: every request in full, with its verdict
    #[arg(long)]
    full: bool,

    /// A checkpoint to work out verdicts from, besides those in the data directory
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    #[command(flatten)]
    past: PastArgs,

    /// A table for people, or JSON for programs
    #[arg(short, long, value_enum, default_value = "table")]
    output: Form,
}

impl LogArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let unable = match self.output {
            Form::Table | Form::Wide => Some("a table"),
            Form::Name => Some("names"),
            Form::Json | Form::Yaml | Form::Jsonl => None,
        };
        if let Some(what) = unable.filter(|_| self.full) {
            return Err(Failure::Usage {
                message: format!("--full has no effect on {what}"),
                next: "add -o jsonl, or leave out --full".into(),
            });
        }
        let past = self.past.open(self.base.as_deref())?;
        let from = self.first(&past)?;
        self.print(&past, from)?;
        note_unsure(&past, past.next().saturating_sub(1).min(self.last()));
        Ok(Success::Done)
    }

    /// A time to begin with is found by its entries, which are in order of time.
    fn first(&self, past: &Past) -> Result<u64, Failure> {
        match self.from {
            None => Ok(past.first()),
            Some(Target::Time(_)) => Ok(past.first()),
            Some(Target::Index(index)) if index < past.first() => Err(Failure::Work {
                message: format!(
                    "entry {index} is no longer in the log: it begins at {}",
                    past.first()
                ),
                next: format!("the same with --from {}", past.first()),
            }),
            Some(Target::Index(index)) if index >= past.next() => Err(Failure::Work {
                message: format!("entry {index} is not in the log: it ends before {}", past.next()),
                next: "choose an earlier --from".into(),
            }),
            Some(Target::Index(index)) => Ok(index),
        }
    }

    fn last(&self) -> u64 {
        match self.to {
            Some(Target::Index(index)) => index,
            _ => u64::MAX,
        }
    }

    fn print(&self, past: &Past, from: u64) -> Result<(), Failure> {
        let mut items = Items::new(false)?;
        let is_table = matches!(self.output, Form::Table | Form::Wide);
        let mut found = false;
        past.entries(from, self.last(), |placed| {
            if !self.wants(&placed) {
                return Ok(());
            }
            if is_table && !std::mem::replace(&mut found, true) {
                print(&line(["index", "term", "time", "done", "refused"], "what"))?;
            }
            match self.output {
                Form::Table | Form::Wide => print(&as_line(&placed)),
                Form::Name => print(&format!("{}\n", placed.index)),
                Form::Json | Form::Yaml | Form::Jsonl => items.add(&self.as_json(&placed)),
            }
        })?;
        if is_table {
            if !found {
                let (first, next) = (past.first(), past.next());
                aside(&format!("no such entries; the log reaches from {first} to before {next}"));
            }
            return Ok(());
        }
        items.end()
    }

    /// Places without a time of their own go with an open end only.
    fn wants(&self, placed: &Placed) -> bool {
        let at = match &placed.what {
            What::Requests { entry, .. } => Some(entry.now),
            _ => None,
        };
        let begun = match self.from {
            Some(Target::Time(from)) => at.is_some_and(|at| at.0 / 1000 >= from.0 / 1000),
            _ => true,
        };
        let ended = match self.to {
            Some(Target::Time(to)) => at.is_none_or(|at| at > to),
            _ => false,
        };
        begun && !ended
    }

    fn as_json(&self, placed: &Placed) -> Value {
        let Placed { index, term, is_agreed, what } = placed;
        let mut shown = json!({ "index": index, "term": term, "agreed": is_agreed });
        match what {
            What::Blank => shown["kind"] = "new_leader".into(),
            What::Members(members) => {
                let member = |(id, peer, votes): &(u64, Peer, bool)| {
                    let Peer { name, address } = peer;
                    json!({ "id": id, "name": name, "address": address, "votes": votes })
                };
                shown["kind"] = "members".into();
                shown["members"] = members.iter().map(member).collect();
            }
            What::Requests { entry, verdicts } => {
                let counts = verdicts.as_deref().map(count);
                shown["kind"] = "requests".into();
                shown["at"] = json!(entry.now);
                shown["commands"] = json!(names(entry));
                shown["requests"] = entry.requests.len().into();
                shown["done"] = json!(counts.map(|(done, _)| done));
                shown["refused"] = json!(counts.map(|(_, refused)| refused));
                if self.full {
                    shown["all"] = in_full(entry, verdicts.as_deref());
                }
            }
        }
        shown
    }
}

/// How many of each command.
fn names(entry: &Entry) -> BTreeMap<&'static str, u64> {
    let mut names = BTreeMap::new();
    for request in &entry.requests {
        *names.entry(describe(&request.command).0).or_default() += 1;
    }
    names
}

fn count(verdicts: &[Verdict]) -> (usize, usize) {
    let refused = verdicts.iter().filter(|verdict| verdict.is_err()).count();
    (verdicts.len() - refused, refused)
}

fn in_full(entry: &Entry, verdicts: Option<&[Verdict]>) -> Value {
    let one = |(place, request): (usize, &Request)| {
        let verdict = verdicts.and_then(|verdicts| verdicts.get(place));
        let mut shown = json!(request);
        match verdict {
            None => {}
            Some(Ok(done)) => shown["done"] = json!(done),
            Some(Err(refusal)) => {
                shown["refused"] = json!(refusal);
                shown["why"] = refusal.to_string().into();
            }
        }
        shown
    };
    entry.requests.iter().enumerate().map(one).collect()
}

fn line(columns: [&str; 5], what: &str) -> String {
    let [index, term, time, done, refused] = columns;
    let first = format!("{index:>8}  {term:>4}  {time:<24}  {done:>5}  {refused:>7}  ");
    table::line(&first, "          ", what)
}

fn as_line(placed: &Placed) -> String {
    let (index, term) = (placed.index.to_string(), placed.term.to_string());
    let plain = |what: &str| line([&index, &term, "", "", ""], what);
    match &placed.what {
        What::Blank => plain("a new leader"),
        What::Members(members) => {
            let member = |(_, peer, votes): &(u64, Peer, bool)| match votes {
                true => peer.name.clone(),
                false => format!("{} (follows)", peer.name),
            };
            let names: Vec<String> = members.iter().map(member).collect();
            plain(&format!("members {}", names.join(", ")))
        }
        What::Requests { entry, verdicts } => {
            let counts = verdicts.as_deref().map(count);
            let number = |number: Option<usize>| number.map_or("?".into(), |n| n.to_string());
            let (done, refused) = (number(counts.map(|c| c.0)), number(counts.map(|c| c.1)));
            let time = format::utc_millis(entry.now);
            line([&index, &term, &time, &done, &refused], &in_words(entry, verdicts.as_deref()))
        }
    }
}

/// One request is named with its object, many are counted.
fn in_words(entry: &Entry, verdicts: Option<&[Verdict]>) -> String {
    match entry.requests.as_slice() {
        [] => "nothing".into(),
        [only] => {
            let (name, object) = describe(&only.command);
            let by = format!(" by {}", only.by);
            let why = match verdicts.and_then(|verdicts| verdicts.first()) {
                Some(Err(refusal)) => format!(": {refusal}"),
                Some(Ok(Done::Unchanged | Done::Job { became: Became::Unchanged, .. })) => {
                    ": was so already".into()
                }
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
            names(entry).into_iter().map(counted).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_other_commands_is_one_of_the_log_too() {
        for form in crate::output::FORMS {
            assert!(Form::from_str(form, false).is_ok(), "{form}");
        }
    }
}
