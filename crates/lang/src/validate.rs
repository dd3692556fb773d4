//! Validates a document by the cell's admission rules, all in one pass. Fields that the schema
//! check rejected are unknown to the rules, which report nothing about them or about values
//! computed from them.

use crate::document::{CronDocument, Document, JobDocument};
use crate::schema_check::{FaultKind, SchemaChecker, SchemaError};
use cellwright_cell::admit::{self, Rule};
use cellwright_cell::field::{FieldPath, FieldSet};
use cellwright_cell::name::Name;
use serde_json::Value;

/// The part of `path` below the document at `top`.
pub(crate) fn relative_path(top: &FieldPath, path: &FieldPath) -> FieldPath {
    FieldPath(path.0.get(top.0.len()..).unwrap_or_default().to_vec())
}

/// Splits off errors about fields that are only missing because their names are misspelt. Returns
/// the other errors of the document at `top`, and the set of all fields with unknown values.
pub(crate) fn split_unknown(
    found: Vec<SchemaError>,
    top: &FieldPath,
) -> (Vec<SchemaError>, FieldSet) {
    let mut unknown = FieldSet::default();
    for error in &found {
        if let FaultKind::Unknown(Some(suggested)) = &error.kind {
            let path = relative_path(top, &error.path);
            let object = FieldPath(path.0.split_last().map_or(&[][..], |(_, rest)| rest).to_vec());
            // Fields of the task and its limits may be written in the job.
            for prefix in ["", "task", "task.limits"] {
                unknown.insert(object.join(&prefix.into()).field(suggested));
            }
        }
    }
    let error_path = |error: &SchemaError| match &error.kind {
        FaultKind::Missing(name) => relative_path(top, &error.path).field(name),
        _ => relative_path(top, &error.path),
    };
    let misspelt = |error: &SchemaError| {
        matches!(error.kind, FaultKind::Missing(_)) && unknown.overlaps(&error_path(error))
    };
    let (follow, kept): (Vec<SchemaError>, Vec<SchemaError>) =
        found.into_iter().partition(misspelt);
    kept.iter().chain(&follow).for_each(|error| unknown.insert(error_path(error)));
    (kept, unknown)
}

/// Deserializes the document as far as it is known, and records all rejections by the rules.
pub(crate) fn validate(
    value: Value,
    unknown: FieldSet,
    top: &FieldPath,
    owner: Option<Name>,
    checker: &mut SchemaChecker,
) -> Option<Document> {
    let is_whole = unknown == FieldSet::default();
    let document = match deserialize(value, owner) {
        Ok(document) => document,
        Err(error) => {
            if is_whole {
                checker.add_error(top, format!("this is not understood: {error}"), None);
            }
            return None;
        }
    };
    let rules: Vec<Rule> =
        admit::RULES.into_iter().chain([admit::has_memory_to_start as Rule]).collect();
    let rejections = match &document {
        Document::Job(job) => admit::review_job(&job.spec, &rules, unknown),
        Document::Cron(cron) => admit::review_cron(&cron.spec, &rules, unknown),
    };
    for rejection in rejections {
        let message = format!("{}: {} is not valid", rejection.name(), rejection.value);
        checker.add_error(&top.join(&rejection.path), message, Some(rejection.allowed.to_string()));
    }
    Some(document)
}

fn deserialize(value: Value, owner: Option<Name>) -> serde_json::Result<Document> {
    if value.get("schedule").is_some() {
        serde_json::from_value(value)
            .map(|spec| Document::Cron(CronDocument { owner, spec, image: None }))
    } else {
        serde_json::from_value(value)
            .map(|spec| Document::Job(JobDocument { owner, spec, image: None }))
    }
}
