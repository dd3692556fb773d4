//! Review of a spec by all rules at once: the errors of each rule are collected as data, in the
//! order of the rules. A rejected field counts as unknown from then on, and so does a field the
//! caller could not read; a rule that needs an unknown field adds no error, so that mere
//! consequences of another error are not reported. `apply` takes the first error and stops there.

use super::AdmissionResult;
use crate::field::{FieldPath, FieldSet};
use crate::reason::{Allowed, FieldName, Given, Quality, Rejection};

/// Most errors collected for one spec; a spec with more has the same error everywhere.
const MAX_ERRORS: usize = 1000;

/// A field with a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub path: FieldPath,
    /// What of the field is meant, where that is not its value.
    pub quality: Option<Quality>,
    pub value: Given,
    pub allowed: Allowed,
}

pub(crate) fn bad(
    path: impl Into<FieldPath>,
    value: impl ToString,
    allowed: Allowed,
) -> FieldError {
    // A value can be as long as a request, but errors are read by people.
    let value = value.to_string().chars().take(200).collect();
    wrong(path, Given::Text(value), allowed)
}

/// The same of what is not quoted as it was sent.
pub(crate) fn wrong(path: impl Into<FieldPath>, value: Given, allowed: Allowed) -> FieldError {
    FieldError { path: path.into(), quality: None, value, allowed }
}

impl FieldError {
    /// For a property of the field, such as its length.
    pub(super) fn with_quality(self, quality: Quality) -> FieldError {
        FieldError { quality: Some(quality), ..self }
    }

    /// What verdicts call it.
    #[must_use]
    pub fn name(&self) -> FieldName {
        FieldName { path: self.path.to_string(), quality: self.quality }
    }
}

impl From<FieldError> for Rejection {
    fn from(rejection: FieldError) -> Rejection {
        Rejection::bad_field(rejection.name(), rejection.value, rejection.allowed)
    }
}

/// The errors so far.
#[derive(Debug)]
pub struct Review {
    /// Path of the spec whose fields the rules name, in the whole.
    base: FieldPath,
    unknown: FieldSet,
    errors: Vec<FieldError>,
    max_errors: usize,
}

impl Review {
    /// A review of everything except fields in `unknown`, and values computed from them.
    #[must_use]
    pub fn new(unknown: FieldSet) -> Review {
        Review { base: FieldPath::default(), unknown, errors: Vec::new(), max_errors: MAX_ERRORS }
    }

    /// The first error of the rules.
    pub(crate) fn first_error(rules: impl FnOnce(&mut Review)) -> AdmissionResult {
        let mut review = Review { max_errors: 1, ..Review::new(FieldSet::default()) };
        rules(&mut review);
        review.errors.into_iter().next().map_or(Ok(()), |rejection| Err(rejection.into()))
    }

    #[must_use]
    pub fn into_errors(self) -> Vec<FieldError> {
        self.errors
    }

    /// Applies rules to the part of the spec at `base`.
    pub fn at_base(&mut self, base: &str, rules: impl FnOnce(&mut Review)) {
        let inner = self.base.join(&base.into());
        let outer = std::mem::replace(&mut self.base, inner);
        rules(self);
        self.base = outer;
    }

    /// Whether all of these fields are known, for rules that compare fields.
    pub(crate) fn are_known<const N: usize>(&self, fields: [&str; N]) -> bool {
        let at = |field: &str| self.unknown.overlaps(&self.base.join(&field.into()));
        // The cell itself knows all fields of what it admits, and admits a lot.
        self.unknown.is_empty() || !fields.into_iter().any(at)
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
