//! Checks across all documents of a file: duplicate names, references without a target or in a
//! cycle, and the submission order. Documents with other errors take part as far as they are known.

use crate::document::{Document, DocumentReader, LocatedDocument};
use crate::schema_check::suggestion_text;
use cellwright_cell::field::{FieldPath, PathSegment};
use cellwright_cell::name::{JobKey, MAX_NAME, Name};
use serde_json::Value;
use std::collections::BTreeMap;

impl DocumentReader {
    /// Checks names and references across all documents, and determines the submission order.
    pub(crate) fn finish(mut self) -> (DocumentReader, Vec<Document>) {
        self.check_distinct_names();
        self.check_references();
        let order = self.submission_order();
        let documents = order.into_iter().map(|at| self.documents[at].document.clone()).collect();
        (self, documents)
    }

    fn key(&self, document: &Document) -> (Option<Name>, Name) {
        let owner = document.owner().or(self.default_owner.as_ref()).cloned();
        (owner, document.name().clone())
    }

    fn check_distinct_names(&mut self) {
        let mut seen: BTreeMap<(Option<Name>, Name), FieldPath> = BTreeMap::new();
        for located in self
            .documents
            .iter()
            .filter(|located| located.has_valid_owner && located.has_valid_name)
        {
            let key = self.key(&located.document);
            if let Some(first) = seen.get(&key) {
                let message = format!("the name {} is taken by {first}", key.1);
                self.checker.add_error(
                    &located.path.field("name"),
                    message,
                    Some("each name once".into()),
                );
            } else {
                seen.insert(key, located.path.clone());
            }
        }
    }

    /// Checks references by bare name, which are jobs of this file.
    fn check_references(&mut self) {
        // A document whose kind is invalid may be meant as either kind.
        let names = |other: &str, unless_said: bool| -> Vec<String> {
            let is_one = |kind: &Option<Value>| match kind {
                None | Some(Value::Null) => unless_said,
                Some(kind) => kind != other,
            };
            let wanted = self
                .jobs_by_name
                .iter()
                .filter(|(name, kind)| is_one(kind) && Name::new(name).is_ok());
            wanted.map(|(name, _)| name.clone()).collect()
        };
        let (jobs, sets) = (names("alloc_set", true), names("tasks", false));
        for (path, name) in std::mem::take(&mut self.bare_references) {
            let (known, kind_name) = reference_scope(&path, &jobs, &sets);
            if known.contains(&name) {
                continue;
            }
            let message = format!("there is no {kind_name} {name:?} in this file");
            let message = message + &suggestion_text(&name, known.iter().map(String::as_str));
            let help = if known.is_empty() {
                format!("USER/{name} for one that is in the cell already")
            } else {
                format!("{}; USER/{name} for one in the cell already", known.join(", "))
            };
            self.checker.add_error(&path, message, Some(help));
        }
        for (path, text) in std::mem::take(&mut self.invalid_references) {
            let (known, kind_name) = reference_scope(&path, &jobs, &sets);
            let last = text.rsplit('/').next().unwrap_or_default();
            let message = format!("no {kind_name} can be called {text:?}");
            let message = message + &suggestion_text(last, known.iter().map(String::as_str));
            let known_names = known.iter().map(|name| format!("{name}, ")).collect::<String>();
            let help = format!(
                "{known_names}or USER/NAME for one that is in the cell already, each of 1 to \
                 {MAX_NAME} characters a-z, 0-9 and -, not starting or ending with -"
            );
            let help = help.trim_start_matches("or ").to_owned();
            self.checker.add_error(&path, message, Some(help));
        }
        self.check_job_as_user(&jobs);
    }

    /// Warns about `web/0`, which means job `0` of user `web`; in a file with a job `web`, hardly
    /// anybody means that.
    fn check_job_as_user(&mut self, jobs: &[String]) {
        let owners: Vec<Option<Name>> =
            self.documents.iter().map(|located| self.key(&located.document).0).collect();
        for located in &self.documents {
            let at = match located.document {
                Document::Job(_) => located.path.clone(),
                Document::Cron(_) => located.path.field("job"),
            };
            for (position, after) in located.document.job().after.iter().enumerate() {
                let user = &after.job.user;
                if !jobs.iter().any(|job| job == user.as_str())
                    || owners.contains(&Some(user.clone()))
                {
                    continue;
                }
                let path = at.field("after").index(position).field("job");
                let message = format!("{user} is a job of this file, and here the name of a user");
                let help =
                    format!("for that job write '{user}'; one can wait for whole jobs alone");
                self.warnings.push((path, message, help));
            }
        }
    }

    /// The submission order: alloc sets before the jobs inside them, jobs before those that start
    /// after them.
    fn submission_order(&mut self) -> Vec<usize> {
        let at: BTreeMap<(Option<Name>, Name), usize> =
            self.documents.iter().enumerate().map(|(i, p)| (self.key(&p.document), i)).collect();
        let needs = |located: &LocatedDocument| -> Vec<usize> {
            let job = located.document.job();
            let after = job.after.iter().map(|after| &after.job);
            let keys = after.chain(&job.alloc_set);
            keys.filter_map(|key: &JobKey| {
                at.get(&(Some(key.user.clone()), key.job.clone())).copied()
            })
            .collect()
        };
        let mut waiting: Vec<(usize, Vec<usize>)> =
            self.documents.iter().enumerate().map(|(i, located)| (i, needs(located))).collect();
        let mut order: Vec<usize> = Vec::new();
        while !waiting.is_empty() {
            let (ready, rest): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|(_, needs)| needs.iter().all(|need| order.contains(need)));
            if ready.is_empty() {
                for (at, _) in &rest {
                    let path = self.documents[*at].path.field("after");
                    let help = "jobs that wait for each other would never start";
                    self.checker.add_error(&path, "this job waits for itself", Some(help.into()));
                }
                break;
            }
            order.extend(ready.into_iter().map(|(at, _)| at));
            waiting = rest;
        }
        order
    }
}

/// The names among which a reference is looked up, and what kind they are.
fn reference_scope<'a>(
    path: &FieldPath,
    jobs: &'a [String],
    sets: &'a [String],
) -> (&'a [String], &'static str) {
    match path.0.last() {
        Some(PathSegment::Field(field)) if field == "alloc_set" => (sets, "alloc set"),
        _ => (jobs, "job"),
    }
}
