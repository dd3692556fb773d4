//! A spec before all rules at once: what each of them rejects is collected as data, in the order of
//! the rules. A field that is rejected is not known from then on, and neither is one that whoever
//! asks could not read; a rule that reads such a field says nothing, so that nobody is told of what
//! only follows from something else. `apply` takes the first rejection and looks no further.

use super::Checked;
use crate::field::{FieldPath, FieldSet};
use crate::reason::Refusal;

/// Rejections of one spec that are collected; whoever has more has the same one everywhere.
const MOST: usize = 1000;

/// A field that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub path: FieldPath,
    /// What verdicts call it, logs from before included: mostly the path.
    pub field: String,
    pub value: String,
    pub allowed: String,
}

pub(crate) fn bad(
    path: impl Into<FieldPath>,
    value: impl ToString,
    allowed: impl Into<String>,
) -> Rejection {
    let path = path.into();
    // A value can be as long as a request; an error is read by a person.
    let value = value.to_string().chars().take(200).collect();
    Rejection { field: path.dotted(), path, value, allowed: allowed.into() }
}

impl Rejection {
    /// For a field that has had another name than its path since before there were paths.
    pub(super) fn called(self, field: impl Into<String>) -> Rejection {
        Rejection { field: field.into(), ..self }
    }

    /// For a quality of the field, such as its length.
    pub(super) fn of_its(self, quality: &str) -> Rejection {
        let field = format!("{} ({quality})", self.path.dotted());
        self.called(field)
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Refusal {
        let Rejection { field, value, allowed, .. } = rejection;
        Refusal::BadField { field, value, allowed }
    }
}

/// What rules have rejected so far.
#[derive(Debug)]
pub struct Review {
    /// Where in the whole the spec stands whose fields the rules name.
    top: FieldPath,
    unknown: FieldSet,
    found: Vec<Rejection>,
    most: usize,
}

impl Review {
    /// Of everything, save what is in or computed from `unknown`.
    #[must_use]
    pub fn new(unknown: FieldSet) -> Review {
        Review { top: FieldPath::default(), unknown, found: Vec::new(), most: MOST }
    }

    /// What the first of the rules says that is broken.
    pub(crate) fn first(rules: impl FnOnce(&mut Review)) -> Checked {
        let mut review = Review { most: 1, ..Review::new(FieldSet::default()) };
        rules(&mut review);
        review.found.into_iter().next().map_or(Ok(()), |rejection| Err(rejection.into()))
    }

    #[must_use]
    pub fn rejections(self) -> Vec<Rejection> {
        self.found
    }

    /// Rules for the part of the spec at `top`.
    pub fn within(&mut self, top: &str, rules: impl FnOnce(&mut Review)) {
        let inner = self.top.join(&top.into());
        let outer = std::mem::replace(&mut self.top, inner);
        rules(self);
        self.top = outer;
    }

    /// Whether all of these are as they were written, for rules that compare fields.
    pub(crate) fn knows<const N: usize>(&self, fields: [&str; N]) -> bool {
        let at = |field: &str| self.unknown.touches(&self.top.join(&field.into()));
        !fields.into_iter().any(at)
    }

    pub(crate) fn ensure(&mut self, holds: bool, rejection: impl FnOnce() -> Rejection) {
        if !holds {
            self.reject(rejection());
        }
    }

    pub(super) fn reject(&mut self, rejection: Rejection) {
        let path = self.top.join(&rejection.path);
        if self.found.len() < self.most && !self.unknown.touches(&path) {
            self.unknown.insert(path.clone());
            self.found.push(Rejection { path, ..rejection });
        }
    }
}
