//! Paths of fields in a spec: the steps from its top down. Rules name fields by these, so that
//! callers that know where each field was written can point at it, and nobody has to parse names.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Bound;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathSegment {
    Field(String),
    Index(usize),
}

/// Segments from the top down.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(pub Vec<PathSegment>);

impl From<&str> for FieldPath {
    /// Parses fields with dots between them, as `task.limits.ram`.
    fn from(dotted: &str) -> FieldPath {
        let fields = dotted.split('.').filter(|field| !field.is_empty());
        FieldPath(fields.map(|field| PathSegment::Field(field.to_owned())).collect())
    }
}

impl FieldPath {
    #[must_use]
    pub fn field(&self, name: &str) -> FieldPath {
        self.push_segment(PathSegment::Field(name.to_owned()))
    }

    #[must_use]
    pub fn index(&self, position: usize) -> FieldPath {
        self.push_segment(PathSegment::Index(position))
    }

    fn push_segment(&self, step: PathSegment) -> FieldPath {
        FieldPath(self.0.iter().cloned().chain([step]).collect())
    }

    /// The path of `inner` below this one.
    #[must_use]
    pub fn join(&self, inner: &FieldPath) -> FieldPath {
        FieldPath([&self.0[..], &inner.0].concat())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                PathSegment::Field(name) if position == 0 => write!(f, "{name}")?,
                PathSegment::Field(name) => write!(f, ".{name}")?,
                PathSegment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// An ordered set of fields: related fields are found without a look at the others, of which there
/// may be thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeSet<Vec<PathSegment>>);

impl FieldSet {
    pub fn insert(&mut self, path: FieldPath) {
        self.0.insert(path.0);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set has the field, an ancestor of it, or a part of it.
    #[must_use]
    pub fn overlaps(&self, path: &FieldPath) -> bool {
        let steps = &path.0[..];
        let around = (0..=steps.len()).any(|length| self.0.contains(&steps[..length]));
        // Paths that begin with these steps come right after them in order.
        let from = (Bound::Included(steps), Bound::Unbounded);
        let next = || self.0.range::<[PathSegment], _>(from).next();
        around || next().is_some_and(|inner| inner.starts_with(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_touched_by_what_is_around_it_and_in_it() {
        let mut set = FieldSet::default();
        set.insert("task.limits.cpu".into());
        set.insert(FieldPath::from("task.volumes").index(1));
        let check = |path: FieldPath, want: bool| assert_eq!(set.overlaps(&path), want, "{path}");
        check("task.limits.cpu".into(), true);
        check("task.limits".into(), true);
        check("task.limits.cpu.x".into(), true);
        check("task.limits.ram".into(), false);
        check("task.limits.cp".into(), false);
        check(FieldPath::from("task.volumes").index(1).field("source"), true);
        check(FieldPath::from("task.volumes").index(2), false);
        check(FieldPath::default(), true);
    }

    #[test]
    fn positions_are_in_brackets() {
        let path = FieldPath::from("constraints").index(1).field("operator");
        assert_eq!(path.to_string(), "constraints[1].operator");
    }
}
