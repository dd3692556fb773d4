//! What a person means by a job or some of its tasks: `ann/web`, `web`, `web/3`, `ann/web/[2-5]`.
//! A name without its owner is looked up, one's own first; what could mean several things is
//! refused with the list. Every verb reads names here, so that all of them take the same.

use super::pages;
use crate::failure::Failure;
use crate::reach::Cell;
use cellwright_api::types::{FoundKind, FoundView, TaskView};
use cellwright_cell::name::JobKey;

/// Tasks that may be named by one range.
const MOST: usize = 10_000;

/// As typed, before anybody was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    /// `ann/web`, or `web` whoever owns it.
    job: String,
    tasks: Option<Vec<u32>>,
}

/// A job, and which of its tasks; absent: all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub job: JobKey,
    pub tasks: Option<Vec<u32>>,
}

const ALLOWED: &str = "allowed: JOB, USER/JOB, USER/JOB/INDEX or USER/JOB/[2-5], as dev/hello/0";

/// For arguments.
pub fn typed(text: &str) -> Result<Typed, String> {
    let whole = |text: &str| Typed { job: text.to_owned(), tasks: None };
    let Some((job, last)) = text.rsplit_once('/') else {
        return if text.is_empty() { Err(ALLOWED.into()) } else { Ok(whole(text)) };
    };
    if job.is_empty() || last.is_empty() || job.matches('/').count() > 1 {
        return Err(ALLOWED.into());
    }
    if let Some(range) = last.strip_prefix('[') {
        let range = range.strip_suffix(']').ok_or(ALLOWED)?;
        return Ok(Typed { job: job.to_owned(), tasks: Some(indexes(range)?) });
    }
    match last.parse::<u32>() {
        Ok(index) => Ok(Typed { job: job.to_owned(), tasks: Some(vec![index]) }),
        Err(_) if job.contains('/') => Err(ALLOWED.into()),
        Err(_) => Ok(whole(text)),
    }
}

/// `2-5,8`.
fn indexes(text: &str) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| ALLOWED.to_owned());
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || (last - first) as usize >= MOST.saturating_sub(all.len()) {
            return Err(format!("{part:?} is no range; {ALLOWED}, of at most {MOST} tasks"));
        }
        all.extend(first..=last);
    }
    Ok(all)
}

impl Typed {
    /// What was typed, where it is one word.
    pub fn word(&self) -> Option<&str> {
        (self.tasks.is_none() && !self.job.contains('/')).then_some(&*self.job)
    }

    /// Asks the cell only when the owner is left out.
    pub async fn resolve(&self, cell: &Cell) -> Result<Target, Failure> {
        let tasks = self.tasks.clone();
        if self.job.contains('/') {
            let job = super::parse::job(&self.job).map_err(|message| Failure::Usage {
                message: format!("{:?}: {message}", self.job),
                next: "list the jobs: cell status".into(),
            })?;
            return Ok(Target { job, tasks });
        }
        let is_job = |kind| matches!(kind, FoundKind::Job | FoundKind::AllocSet);
        let job = the_one(cell, &self.job, is_job, "job", "list the jobs: cell status").await?;
        Ok(Target { job, tasks })
    }

    /// One task: the one that was named, or the only one of the job that is not over. `again` is
    /// the command with the name of a task in it.
    pub async fn one_task(
        &self,
        cell: &Cell,
        again: impl Fn(&str) -> String,
    ) -> Result<(JobKey, u32), Failure> {
        let Target { job, tasks } = self.resolve(cell).await?;
        let indexes = match tasks {
            Some(indexes) => indexes,
            None => meant(&pages::tasks(cell, &job).await?),
        };
        match indexes[..] {
            [one] => Ok((job, one)),
            _ => Err(Failure::Usage {
                message: format!("{job} stands for {} tasks; allowed: one", indexes.len()),
                next: again(&format!("{job}/{}", indexes.first().copied().unwrap_or(0))),
            }),
        }
    }

    /// A periodic job.
    pub async fn cron(&self, cell: &Cell) -> Result<JobKey, Failure> {
        let next = "list the periodic jobs: cell cron ls";
        if self.job.contains('/') || self.tasks.is_some() {
            return super::parse::job(&self.job).map_err(|message| Failure::Usage {
                message: format!("{:?}: {message}", self.job),
                next: next.into(),
            });
        }
        the_one(cell, &self.job, |kind| kind == FoundKind::Cron, "periodic job", next).await
    }
}

/// Those of a job that are not over; where all are, all of them.
fn meant(tasks: &[TaskView]) -> Vec<u32> {
    let live: Vec<u32> =
        tasks.iter().filter(|task| !task.state.is_dead()).map(|task| task.index).collect();
    match live.is_empty() {
        true => tasks.iter().map(|task| task.index).collect(),
        false => live,
    }
}

/// What a name without its owner means among things of one kind.
async fn the_one(
    cell: &Cell,
    text: &str,
    wanted: impl Fn(FoundKind) -> bool,
    noun: &str,
    next: &str,
) -> Result<JobKey, Failure> {
    let found = cell.client.find(text).await?.value.items;
    let found: Vec<FoundView> = found.into_iter().filter(|found| wanted(found.kind)).collect();
    match &found[..] {
        [one] => super::parse::job(&one.name).map_err(|message| Failure::Work {
            message,
            next: "compare `cell --version` with the version in `cell master status`".into(),
        }),
        [] => {
            let near = near(cell, text, wanted).await;
            Err(Failure::Work {
                message: format!("no {noun} is called {text:?} or begins so{near}"),
                next: next.into(),
            })
        }
        several => Err(ambiguous(text, several)),
    }
}

/// `; did you mean ...?` of a name that nothing has, or nothing. It is a courtesy: a master that
/// cannot say keeps nobody from the error itself.
pub async fn near(cell: &Cell, text: &str, wanted: impl Fn(FoundKind) -> bool) -> String {
    match cell.client.near(text).await {
        Ok(Some(found)) if wanted(found.kind) => format!("; did you mean {}?", found.name),
        _ => String::new(),
    }
}

/// Several things are meant by one name.
pub fn ambiguous(text: &str, found: &[FoundView]) -> Failure {
    let named =
        |found: &FoundView| format!("\n  {:<9} {}", super::words::word(&found.kind), found.name);
    let list: String = found.iter().map(named).collect();
    Failure::Work {
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
            meant(&states.iter().enumerate().map(task).collect::<Vec<_>>())
        };
        let (runs, over) = (serde_json::json!("running"), serde_json::json!({"dead": "killed"}));
        assert_eq!(of(&[over.clone(), runs.clone(), over.clone()]), [1]);
        assert_eq!(of(&[runs.clone(), runs, over.clone()]), [0, 1]);
        assert_eq!(of(&[over.clone(), over]), [0, 1]);
    }

    #[test]
    fn jobs_tasks_and_ranges_are_read() {
        let read = |text: &str| typed(text).map(|typed| (typed.job, typed.tasks));
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
