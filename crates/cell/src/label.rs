//! Labels: key = value pairs on jobs and machines. Operations select by query, because a job is too
//! rigid to be the only grouping.

use crate::name::Token;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub type Labels = BTreeMap<Token, String>;

/// One term of a selector; a selector is the AND of its terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LabelTerm {
    Equals(Token, String),
    NotEquals(Token, String),
    Exists(Token),
    Absent(Token),
    /// One of these values.
    In(Token, Vec<String>),
    /// Another value, or none.
    NotIn(Token, Vec<String>),
}

/// True when every term holds; the empty selector selects everything.
#[must_use]
pub fn selects(terms: &[LabelTerm], labels: &Labels) -> bool {
    terms.iter().all(|term| match term {
        LabelTerm::Equals(key, value) => labels.get(key) == Some(value),
        LabelTerm::NotEquals(key, value) => labels.get(key) != Some(value),
        LabelTerm::Exists(key) => labels.contains_key(key),
        LabelTerm::Absent(key) => !labels.contains_key(key),
        LabelTerm::In(key, values) => labels.get(key).is_some_and(|own| values.contains(own)),
        LabelTerm::NotIn(key, values) => labels.get(key).is_none_or(|own| !values.contains(own)),
    })
}
