//! A document before the cell's own rules, all of them in one pass. What the schema check found
//! wrong is not known to them: they say nothing of it, nor of what they would compute from it.

use crate::document::{CronDocument, Document, JobDocument};
use crate::schema_check::{Checker, Fault, Wrong};
use cellwright_cell::admit::{self, Rule};
use cellwright_cell::field::{FieldPath, FieldSet};
use cellwright_cell::name::Name;
use serde_json::Value;

/// The steps of `path` from the document at `top` on.
pub(crate) fn inside(top: &FieldPath, path: &FieldPath) -> FieldPath {
    FieldPath(path.0.get(top.0.len()..).unwrap_or_default().to_vec())
}

/// What is wrong with the document at `top`, without fields that are only missing because their
/// names are misspelt; and the fields of which nothing is known for all that.
pub(crate) fn unknown(found: Vec<Wrong>, top: &FieldPath) -> (Vec<Wrong>, FieldSet) {
    let mut unknown = FieldSet::default();
    for wrong in &found {
        if let Fault::Unknown(Some(meant)) = &wrong.fault {
            let path = inside(top, &wrong.path);
            let object = FieldPath(path.0.split_last().map_or(&[][..], |(_, rest)| rest).to_vec());
            // Fields of the task and its limits may stand in the job.
            for way in ["", "task", "task.limits"] {
                unknown.insert(object.join(&way.into()).field(meant));
            }
        }
    }
    let place = |wrong: &Wrong| match &wrong.fault {
        Fault::Missing(name) => inside(top, &wrong.path).field(name),
        _ => inside(top, &wrong.path),
    };
    let misspelt =
        |wrong: &Wrong| matches!(wrong.fault, Fault::Missing(_)) && unknown.touches(&place(wrong));
    let (follow, kept): (Vec<Wrong>, Vec<Wrong>) = found.into_iter().partition(misspelt);
    kept.iter().chain(&follow).for_each(|wrong| unknown.insert(place(wrong)));
    (kept, unknown)
}

/// The document, as far as it is known, with everything that the rules reject about it.
pub(crate) fn validate(
    value: Value,
    unknown: FieldSet,
    top: &FieldPath,
    owner: Option<Name>,
    checker: &mut Checker,
) -> Option<Document> {
    let is_whole = unknown == FieldSet::default();
    let document = match read(value, owner) {
        Ok(document) => document,
        Err(error) => {
            if is_whole {
                checker.add(top, format!("this is not understood: {error}"), None);
            }
            return None;
        }
    };
    let rules: Vec<Rule> = admit::RULES.into_iter().chain([admit::can_begin as Rule]).collect();
    let rejections = match &document {
        Document::Job(job) => admit::review_job(&job.spec, &rules, unknown),
        Document::Cron(cron) => admit::review_cron(&cron.spec, &rules, unknown),
    };
    for rejection in rejections {
        let message = format!("{}: {} is not valid", rejection.field, rejection.value);
        checker.add(&top.join(&rejection.path), message, Some(rejection.allowed));
    }
    Some(document)
}

fn read(value: Value, owner: Option<Name>) -> serde_json::Result<Document> {
    if value.get("schedule").is_some() {
        serde_json::from_value(value).map(|spec| Document::Cron(CronDocument { owner, spec }))
    } else {
        serde_json::from_value(value).map(|spec| Document::Job(JobDocument { owner, spec }))
    }
}
