//! Resolves names of jobs and tasks: `ann/web`, `web`, `web/3`, `ann/web/[2-5]`. A name without its
//! owner is looked up, the caller's own jobs first; an ambiguous name is rejected with the list of
//! matches. Every verb resolves names here, so that all of them accept the same.

use super::pagination;
use crate::command_line;
use crate::connection::Cell;
use crate::failure::Failure;
use cellwright_api::types::{FoundKind, FoundView, TaskView};
use cellwright_cell::name::JobKey;

/// The maximum number of tasks in one range.
const MAX_RANGE_TASKS: usize = 10_000;

/// A target as typed, before it is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetArg {
    /// `ann/web`, or `web` with any owner.
    job: String,
    tasks: Option<Vec<u32>>,
}

/// A job, and which of its tasks; absent: all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub job: JobKey,
    pub tasks: Option<Vec<u32>>,
}

/// How much of a name must be typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameMatch {
    /// A prefix, if it is unambiguous.
    Prefix,
    /// Only the full name; the owner may be left out.
    Exact,
}

const LIST_JOBS_HINT: &str = "list the jobs: cell job status";
const ALLOWED: &str = "allowed: JOB, USER/JOB, USER/JOB/INDEX or USER/JOB/[2-5], as dev/hello/0";

/// The parser for clap arguments.
pub fn parse_target(text: &str) -> Result<TargetArg, String> {
    let whole = |text: &str| TargetArg { job: text.to_owned(), tasks: None };
    let Some((job, last)) = text.rsplit_once('/') else {
        return if text.is_empty() { Err(ALLOWED.into()) } else { Ok(whole(text)) };
    };
    if job.is_empty() || last.is_empty() || job.matches('/').count() > 1 {
        return Err(ALLOWED.into());
    }
    if let Some(range) = last.strip_prefix('[') {
        let range = range.strip_suffix(']').ok_or(ALLOWED)?;
        return Ok(TargetArg { job: job.to_owned(), tasks: Some(parse_indexes(range)?) });
    }
    match last.parse::<u32>() {
        Ok(index) => Ok(TargetArg { job: job.to_owned(), tasks: Some(vec![index]) }),
        Err(_) if job.contains('/') => Err(ALLOWED.into()),
        Err(_) => Ok(whole(text)),
    }
}

/// `2-5,8`.
fn parse_indexes(text: &str) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| ALLOWED.to_owned());
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || (last - first) as usize >= MAX_RANGE_TASKS.saturating_sub(all.len()) {
            return Err(format!(
                "{part:?} is no range; {ALLOWED}, of at most {MAX_RANGE_TASKS} tasks"
            ));
        }
        all.extend(first..=last);
    }
    Ok(all)
}

impl TargetArg {
    /// The argument, if it is one word.
    pub fn single_word(&self) -> Option<&str> {
        (self.tasks.is_none() && !self.job.contains('/')).then_some(&*self.job)
    }

    /// Resolves a name or prefix. Asks the cell only when the owner is left out.
    pub async fn resolve(&self, cell: &Cell) -> Result<Target, Failure> {
        self.resolve_job(cell, NameMatch::Prefix).await
    }

    /// Resolves a full name: a prefix is not enough to remove something.
    pub async fn resolve_exact(&self, cell: &Cell) -> Result<Target, Failure> {
        self.resolve_job(cell, NameMatch::Exact).await
    }

    async fn resolve_job(&self, cell: &Cell, name_match: NameMatch) -> Result<Target, Failure> {
        let tasks = self.tasks.clone();
        if self.job.contains('/') {
            let job = super::parse::job_key(&self.job).map_err(|message| Failure::Usage {
                message: format!("{:?}: {message}", self.job),
                next: LIST_JOBS_HINT.into(),
            })?;
            return Ok(Target { job, tasks });
        }
        let is_job = |kind| matches!(kind, FoundKind::Job | FoundKind::AllocSet);
        let job =
            resolve_unique(cell, &self.job, is_job, name_match, ("job", LIST_JOBS_HINT)).await?;
        Ok(Target { job, tasks })
    }

    /// Resolves one task: the one that was named, or the only live one of the job. `again` is the
    /// command with the name of a task in it.
    pub async fn resolve_one_task(
        &self,
        cell: &Cell,
        again: impl Fn(&str) -> String,
    ) -> Result<(JobKey, u32), Failure> {
        let Target { job, tasks } = self.resolve(cell).await?;
        let indexes = match tasks {
            Some(indexes) => indexes,
            None => live_indexes(&pagination::tasks(cell, &job).await?),
        };
        match indexes[..] {
            [one] => Ok((job, one)),
            _ => Err(Failure::Usage {
                message: format!("{job} stands for {} tasks; allowed: one", indexes.len()),
                next: again(&format!("{job}/{}", indexes.first().copied().unwrap_or(0))),
            }),
        }
    }

    /// Resolves a periodic job.
    pub async fn resolve_cron(
        &self,
        cell: &Cell,
        name_match: NameMatch,
    ) -> Result<JobKey, Failure> {
        let next = "list the periodic jobs: cell cron ls";
        if self.job.contains('/') || self.tasks.is_some() {
            return super::parse::job_key(&self.job).map_err(|message| Failure::Usage {
                message: format!("{:?}: {message}", self.job),
                next: next.into(),
            });
        }
        let is_cron = |kind| kind == FoundKind::Cron;
        resolve_unique(cell, &self.job, is_cron, name_match, ("periodic job", next)).await
    }
}

/// The indexes of a job's live tasks; if all are dead, all of them.
fn live_indexes(tasks: &[TaskView]) -> Vec<u32> {
    let live: Vec<u32> =
        tasks.iter().filter(|task| !task.state.is_dead()).map(|task| task.index).collect();
    if live.is_empty() { tasks.iter().map(|task| task.index).collect() } else { live }
}

/// Resolves a name without its owner among objects of one kind; `noun` names the kind, and `next`
/// is the command that lists them.
async fn resolve_unique(
    cell: &Cell,
    text: &str,
    is_wanted_kind: impl Fn(FoundKind) -> bool,
    name_match: NameMatch,
    (noun, next): (&str, &str),
) -> Result<JobKey, Failure> {
    let all = cell.client.find(text).await?.value.items;
    let found: Vec<FoundView> =
        all.iter().filter(|found| is_wanted_kind(found.kind)).cloned().collect();
    match &found[..] {
        [one] if name_match == NameMatch::Exact && !matches_name(&one.name, text) => {
            Err(Failure::Usage {
                message: format!(
                    "no {noun} is called {text:?}; {} begins so, and what takes something away \
                     takes whole names",
                    one.name
                ),
                next: command_line::corrected(text, &one.name),
            })
        }
        [one] => super::parse::job_key(&one.name).map_err(|message| Failure::Operation {
            message,
            next: "compare `cell --version` with the version in `cell master status`".into(),
        }),
        [] => {
            let is_cron = |found: &&FoundView| {
                found.kind == FoundKind::Cron && matches_name(&found.name, text)
            };
            if let Some(cron) = all.iter().find(is_cron) {
                let last = last_run(cell, &cron.name).await;
                let again = |name: &str| command_line::corrected(text, name);
                return Err(periodic_job_failure(&cron.name, last.as_ref(), name_match, again));
            }
            let suggestion = suggestion_text(cell, text, is_wanted_kind).await;
            Err(Failure::Operation {
                message: format!("no {noun} is called {text:?} or begins so{suggestion}"),
                next: next.into(),
            })
        }
        several => Err(ambiguous_name(text, several)),
    }
}

/// Whether a name is what was typed, with or without its owner; `last` is a separate name.
fn matches_name(name: &str, text: &str) -> bool {
    let own = name.split_once('/').map_or(name, |(_, own)| own);
    name == text || own == text || (text == "last" && !own.starts_with(text))
}

/// The last run of a periodic job, if there is one.
async fn last_run(cell: &Cell, cron: &str) -> Option<JobKey> {
    let key = super::parse::job_key(cron).ok()?;
    cell.client.cron(&key).await.ok()?.value.item.last_job
}

/// The failure for a periodic job where a job is needed: only its runs have tasks. `again` is the
/// command with another name.
fn periodic_job_failure(
    name: &str,
    last: Option<&JobKey>,
    name_match: NameMatch,
    again: impl Fn(&str) -> String,
) -> Failure {
    let message = match last {
        Some(last) => format!("{name} is a periodic job; its last run is {last}"),
        None => format!("{name} is a periodic job, which has not run yet"),
    };
    let again = last.map(|last| again(&last.to_string()));
    let next = match (name_match, again) {
        (NameMatch::Exact, Some(again)) => {
            format!("no more runs: cell cron rm {name}; only that one: {again}")
        }
        (NameMatch::Exact, None) => format!("no more runs: cell cron rm {name}"),
        (NameMatch::Prefix, Some(again)) => again,
        (NameMatch::Prefix, None) => format!("when it runs: cell status {name}"),
    };
    Failure::Operation { message, next }
}

/// `; did you mean ...?` for an unknown name, or an empty string. It is only a hint: if the master
/// cannot answer, the error is reported without it.
pub async fn suggestion_text(
    cell: &Cell,
    text: &str,
    is_wanted_kind: impl Fn(FoundKind) -> bool,
) -> String {
    match cell.client.nearest_name(text).await {
        Ok(Some(found)) if is_wanted_kind(found.kind) => format!("; did you mean {}?", found.name),
        _ => String::new(),
    }
}

/// The failure for an ambiguous name.
pub fn ambiguous_name(text: &str, found: &[FoundView]) -> Failure {
    let named = |found: &FoundView| {
        format!("\n  {:<9} {}", super::enum_words::enum_text(&found.kind), found.name)
    };
    let list: String = found.iter().map(named).collect();
    Failure::Operation {
        message: format!("{text:?} can mean {} things:{list}", found.len()),
        next: "the same command with one of these names".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_stands_for_its_tasks_that_are_not_over() {
        let task = |(index, state): (usize, &serde_json::Value)| -> TaskView {
            serde_json::from_value(serde_json::json!({
                "name": format!("dev/web/{index}"), "index": index, "state": state,
                "healthy": true, "attempt": 1, "version": 1, "machine": null, "alloc": null,
                "limits": {"cpu": 1, "ram": 1}, "reservation": {"cpu": 1, "ram": 1},
                "ports": [], "devices": [], "waits_for": [], "failures_in_row": 0,
                "not_before": 0, "changed_at": 0, "crashed_on": [],
            }))
            .unwrap()
        };
        let of = |states: &[serde_json::Value]| {
            live_indexes(&states.iter().enumerate().map(task).collect::<Vec<_>>())
        };
        let (runs, over) = (serde_json::json!("running"), serde_json::json!({"dead": "killed"}));
        assert_eq!(of(&[over.clone(), runs.clone(), over.clone()]), [1]);
        assert_eq!(of(&[runs.clone(), runs, over.clone()]), [0, 1]);
        assert_eq!(of(&[over.clone(), over]), [0, 1]);
    }

    #[test]
    fn a_beginning_is_no_whole_name() {
        for whole in ["dev/greeter", "greeter", "last"] {
            assert!(matches_name("dev/greeter", whole), "{whole}");
        }
        for part in ["gree", "dev/gree", "dev", ""] {
            assert!(!matches_name("dev/greeter", part), "{part}");
        }
        assert!(!matches_name("dev/lastly", "last"), "it may be what begins so");
        assert!(matches_name("dev/last", "last"));
    }

    #[test]
    fn a_periodic_job_is_told_with_its_last_run() {
        let run = super::super::parse::job_key("dev/tick-202611161144").unwrap();
        let failure_text = |last: Option<&JobKey>, name_match| match periodic_job_failure(
            "dev/tick",
            last,
            name_match,
            |name| format!("cell logs {name}"),
        ) {
            Failure::Operation { message, next } => (message, next),
            other => panic!("{other:?}"),
        };
        let (message, next) = failure_text(Some(&run), NameMatch::Prefix);
        assert_eq!(message, "dev/tick is a periodic job; its last run is dev/tick-202611161144");
        assert_eq!(next, "cell logs dev/tick-202611161144");
        let (_, next) = failure_text(Some(&run), NameMatch::Exact);
        assert!(next.starts_with("no more runs: cell cron rm dev/tick; only that one: "), "{next}");
        let (message, next) = failure_text(None, NameMatch::Prefix);
        assert_eq!(message, "dev/tick is a periodic job, which has not run yet");
        assert_eq!(next, "when it runs: cell status dev/tick");
    }

    #[test]
    fn jobs_tasks_and_ranges_are_read() {
        let read = |text: &str| parse_target(text).map(|typed| (typed.job, typed.tasks));
        assert_eq!(read("web"), Ok(("web".into(), None)));
        assert_eq!(read("ann/web"), Ok(("ann/web".into(), None)));
        assert_eq!(read("web/3"), Ok(("web".into(), Some(vec![3]))));
        assert_eq!(read("ann/web/3"), Ok(("ann/web".into(), Some(vec![3]))));
        assert_eq!(read("ann/web/[1,3-5]"), Ok(("ann/web".into(), Some(vec![1, 3, 4, 5]))));
        for wrong in ["", "/", "a/b/c", "a/b/c/1", "a/b/[5-2]", "a/b/[0-4000000000]", "a/b/[1"] {
            assert!(read(wrong).is_err_and(|error| error.contains("allowed: ")), "{wrong}");
        }
    }
}
