//! Job dependencies (B6): the other jobs a job waits for before it starts, each with or without the
//! requirement that it succeeded. Several make the fan-in of a workflow.
//!
//! People write one dependency far more often than several, so JSON may have a single one in place
//! of a list of one; output always has the list. Rejected: two fields, which would have to be kept
//! from contradicting each other.

use crate::name::JobKey;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor, value};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Start only after another job has ended (B6).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobDependency {
    pub job: JobKey,
    /// If the other job fails, this one never starts. Left out: true.
    #[serde(default = "yes")]
    pub require_success: bool,
}

fn yes() -> bool {
    true
}

/// Reads a list, a single item, or nothing. The log and checkpoints contain lists only.
pub(crate) fn one_or_more<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Vec<JobDependency>, D::Error> {
    if input.is_human_readable() {
        input.deserialize_any(OneOrMore)
    } else {
        Vec::deserialize(input)
    }
}

struct OneOrMore;

impl<'de> Visitor<'de> for OneOrMore {
    type Value = Vec<JobDependency>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"{"job": {"user": "ann", "job": "load"}}, or a list of these"#)
    }

    fn visit_unit<E: Error>(self) -> Result<Vec<JobDependency>, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<JobDependency>, A::Error> {
        JobDependency::deserialize(value::MapAccessDeserializer::new(map)).map(|one| vec![one])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<JobDependency>, A::Error> {
        Vec::deserialize(value::SeqAccessDeserializer::new(list))
    }
}
