//! A spec before all rules at once: what each of them rejects is collected as data, in the order of
//! the rules. A field that is rejected is not known from then on, and neither is one that whoever
//! asks could not read; a rule that reads such a field says nothing, so that nobody is told of what
//! only follows from something else. `apply` takes the first rejection and looks no further.

use super::AdmissionResult;
use crate::field::{FieldPath, FieldSet};
use crate::reason::Rejection;

/// Rejections of one spec that are collected; whoever has more has the same one everywhere.
const MAX_ERRORS: usize = 1000;

/// A field that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub path: FieldPath,
    /// What verdicts call it, logs from before included: mostly the path.
    pub field: String,
    pub value: String,
    pub allowed: String,
}

pub(crate) fn field_error(
    path: impl Into<FieldPath>,
    value: impl ToString,
    allowed: impl Into<String>,
) -> FieldError {
    let path = path.into();
    // A value can be as long as a request; an error is read by a person.
    let value = value.to_string().chars().take(200).collect();
    FieldError { field: path.dotted(), path, value, allowed: allowed.into() }
}

impl FieldError {
    /// For a field that has had another name than its path since before there were paths.
    pub(super) fn with_name(self, field: impl Into<String>) -> FieldError {
        FieldError { field: field.into(), ..self }
    }

    /// For a quality of the field, such as its length.
    pub(super) fn with_quality(self, quality: &str) -> FieldError {
        let field = format!("{} ({quality})", self.path.dotted());
        self.with_name(field)
    }
}

impl From<FieldError> for Rejection {
    fn from(rejection: FieldError) -> Rejection {
        let FieldError { field, value, allowed, .. } = rejection;
        Rejection::BadField { field, value, allowed }
    }
}

/// What rules have rejected so far.
#[derive(Debug)]
pub struct Review {
    /// Where in the whole the spec stands whose fields the rules name.
    base: FieldPath,
    unknown: FieldSet,
    errors: Vec<FieldError>,
    max_errors: usize,
}

impl Review {
    /// Of everything, save what is in or computed from `unknown`.
    #[must_use]
    pub fn new(unknown: FieldSet) -> Review {
        Review { base: FieldPath::default(), unknown, errors: Vec::new(), max_errors: MAX_ERRORS }
    }

    /// What the first of the rules says that is broken.
    pub(crate) fn first_error(rules: impl FnOnce(&mut Review)) -> AdmissionResult {
        let mut review = Review { max_errors: 1, ..Review::new(FieldSet::default()) };
        rules(&mut review);
        review.errors.into_iter().next().map_or(Ok(()), |rejection| Err(rejection.into()))
    }

    #[must_use]
    pub fn into_errors(self) -> Vec<FieldError> {
        self.errors
    }

    /// Rules for the part of the spec at `base`.
    pub fn at_base(&mut self, base: &str, rules: impl FnOnce(&mut Review)) {
        let inner = self.base.join(&base.into());
        let outer = std::mem::replace(&mut self.base, inner);
        rules(self);
        self.base = outer;
    }

    /// Whether all of these are as they were written, for rules that compare fields.
    pub(crate) fn are_known<const N: usize>(&self, fields: [&str; N]) -> bool {
        let at = |field: &str| self.unknown.overlaps(&self.base.join(&field.into()));
        !fields.into_iter().any(at)
    }

    pub(crate) fn ensure(&mut self, holds: bool, error: impl FnOnce() -> FieldError) {
        if !holds {
            self.reject(error());
        }
    }

    pub(super) fn reject(&mut self, error: FieldError) {
        let path = self.base.join(&error.path);
        if self.errors.len() < self.max_errors && !self.unknown.overlaps(&path) {
            self.unknown.insert(path.clone());
            self.errors.push(FieldError { path, ..error });
        }
    }
}
