//! Constraints over machine attributes (B4): hard ones decide where a task may run, soft ones which
//! machines it prefers.
//!
//! An attribute the machine does not have satisfies only `Absent` and `NotEqual`/`NotIn`: "not
//! flash" is true of a machine without that attribute.

use crate::name::Token;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// Value of a machine attribute. Integers compare as integers, texts as texts; a comparison across
/// kinds is never satisfied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttributeValue {
    Integer(i64),
    Text(String),
}

pub type Attributes = BTreeMap<Token, AttributeValue>;

/// Longest regular expression and longest attribute text it meets: matching stays cheap.
pub const MAX_PATTERN: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    Equal(AttributeValue),
    NotEqual(AttributeValue),
    Less(i64),
    LessOrEqual(i64),
    Greater(i64),
    GreaterOrEqual(i64),
    In(Vec<AttributeValue>),
    NotIn(Vec<AttributeValue>),
    Exists,
    Absent,
    /// The whole text matches the regular expression.
    Matches(String),
    /// Dotted versions, compared part by part, numbers as numbers: 6.9 < 6.10.
    VersionAtLeast(String),
    VersionBelow(String),
}

/// Largest weight of a preference.
pub const MAX_WEIGHT: u8 = 100;

/// How strongly a constraint is meant.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Strength {
    #[default]
    Hard,
    /// A preference; the weight (1 to 100) says how much it counts against the others.
    Soft(#[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_WEIGHT)))] u8),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Constraint {
    pub attribute: Token,
    pub operator: Operator,
    /// Left out: hard.
    #[serde(default)]
    pub strength: Strength,
}

/// What is wrong with a constraint itself, whatever the machines are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ConstraintFlaw {
    EmptyList,
    Version(String),
    Weight(u8),
    LongPattern { bytes: u64 },
    Pattern(String),
}

impl ConstraintFlaw {
    pub(crate) fn text_mut(&mut self) -> Option<&mut String> {
        match self {
            ConstraintFlaw::Version(text) | ConstraintFlaw::Pattern(text) => Some(text),
            _ => None,
        }
    }
}

impl Constraint {
    /// Whether it holds of the value that a machine has under the name, if any; see
    /// [`Constraint::holds_on`].
    #[must_use]
    pub fn holds(&self, value: Option<&AttributeValue>) -> bool {
        use Operator as O;
        let integer = || match value {
            Some(AttributeValue::Integer(i)) => Some(*i),
            _ => None,
        };
        match &self.operator {
            O::Equal(want) => value == Some(want),
            O::NotEqual(want) => value != Some(want),
            O::Less(than) => integer().is_some_and(|i| i < *than),
            O::LessOrEqual(than) => integer().is_some_and(|i| i <= *than),
            O::Greater(than) => integer().is_some_and(|i| i > *than),
            O::GreaterOrEqual(than) => integer().is_some_and(|i| i >= *than),
            O::In(list) => value.is_some_and(|v| list.contains(v)),
            O::NotIn(list) => value.is_none_or(|v| !list.contains(v)),
            O::Exists => value.is_some(),
            O::Absent => value.is_none(),
            O::Matches(pattern) => matches_whole(pattern, value),
            O::VersionAtLeast(v) => version_order(value, v).is_some_and(Ordering::is_ge),
            O::VersionBelow(v) => version_order(value, v).is_some_and(Ordering::is_lt),
        }
    }

    /// # Errors
    /// What is wrong with the operand.
    pub fn check(&self) -> Result<(), ConstraintFlaw> {
        match &self.operator {
            Operator::Matches(pattern) => check_pattern(pattern),
            Operator::In(list) | Operator::NotIn(list) if list.is_empty() => {
                Err(ConstraintFlaw::EmptyList)
            }
            Operator::VersionAtLeast(v) | Operator::VersionBelow(v) if version(v).is_none() => {
                Err(ConstraintFlaw::Version(v.clone()))
            }
            _ => match self.strength {
                Strength::Soft(w) if !(1..=MAX_WEIGHT).contains(&w) => {
                    Err(ConstraintFlaw::Weight(w))
                }
                _ => Ok(()),
            },
        }
    }

    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.strength == Strength::Hard
    }
}

fn check_pattern(pattern: &str) -> Result<(), ConstraintFlaw> {
    if pattern.len() > MAX_PATTERN {
        return Err(ConstraintFlaw::LongPattern { bytes: pattern.len() as u64 });
    }
    compile(pattern).map(drop).map_err(|_| ConstraintFlaw::Pattern(pattern.to_owned()))
}

/// What is wrong with a pattern, for people.
pub(crate) fn pattern_error(pattern: &str) -> Option<String> {
    compile(pattern).err().map(|error| error.to_string())
}

/// The pattern has to compile on its own before it is put in brackets: one that closes them and
/// opens others would match parts.
fn compile(pattern: &str) -> Result<regex_lite::Regex, regex_lite::Error> {
    let build = |text: &str| regex_lite::RegexBuilder::new(text).size_limit(1 << 18).build();
    build(pattern)?;
    build(&format!("^(?:{pattern})$"))
}

/// A pattern that does not compile (possible only in hand-made state) matches nothing.
fn matches_whole(pattern: &str, value: Option<&AttributeValue>) -> bool {
    let Some(AttributeValue::Text(text)) = value else { return false };
    compile(pattern).is_ok_and(|regex| regex.is_match(text))
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum VersionPart<'a> {
    // Words order below numbers: 6.1-rc < 6.1.1.
    Word(&'a str),
    Number(u64),
}

fn version(text: &str) -> Option<Vec<VersionPart<'_>>> {
    text.split(['.', '-', '+'])
        .map(|part| match part.parse::<u64>() {
            Ok(number) => Some(VersionPart::Number(number)),
            Err(_) if part.is_empty() => None,
            Err(_) => Some(VersionPart::Word(part)),
        })
        .collect()
}

fn version_order(value: Option<&AttributeValue>, than: &str) -> Option<Ordering> {
    let text = match value? {
        AttributeValue::Text(text) => text.clone(),
        AttributeValue::Integer(i) => i.to_string(),
    };
    Some(version(&text)?.cmp(&version(than)?))
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttributeValue::Integer(i) => write!(f, "{i}"),
            AttributeValue::Text(t) => f.write_str(t),
        }
    }
}

fn list(values: &[AttributeValue]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let a = &self.attribute;
        match &self.operator {
            Operator::Equal(v) => write!(f, "{a} = {v}"),
            Operator::NotEqual(v) => write!(f, "{a} != {v}"),
            Operator::Less(v) => write!(f, "{a} < {v}"),
            Operator::LessOrEqual(v) => write!(f, "{a} <= {v}"),
            Operator::Greater(v) => write!(f, "{a} > {v}"),
            Operator::GreaterOrEqual(v) => write!(f, "{a} >= {v}"),
            Operator::In(v) => write!(f, "{a} in ({})", list(v)),
            Operator::NotIn(v) => write!(f, "{a} not in ({})", list(v)),
            Operator::Exists => write!(f, "{a} exists"),
            Operator::Absent => write!(f, "{a} absent"),
            Operator::Matches(p) => write!(f, "{a} matches {p}"),
            Operator::VersionAtLeast(v) => write!(f, "{a} version >= {v}"),
            Operator::VersionBelow(v) => write!(f, "{a} version < {v}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operator: Operator, value: Option<AttributeValue>, want: bool) {
        let attribute = Token::new("os").unwrap();
        let constraint = Constraint { attribute, operator, strength: Strength::Hard };
        assert_eq!(constraint.holds(value.as_ref()), want, "{constraint} on {value:?}");
    }

    fn text(t: &str) -> Option<AttributeValue> {
        Some(AttributeValue::Text(t.into()))
    }

    fn int(i: i64) -> Option<AttributeValue> {
        Some(AttributeValue::Integer(i))
    }

    #[test]
    fn every_operator_on_present_absent_and_wrong_kind() {
        use Operator as O;
        let a = AttributeValue::Text("a".into());
        check(O::Equal(a.clone()), text("a"), true);
        check(O::Equal(a.clone()), text("b"), false);
        check(O::Equal(a.clone()), None, false);
        check(O::NotEqual(a.clone()), None, true);
        check(O::NotEqual(a.clone()), text("a"), false);
        check(O::Less(5), int(4), true);
        check(O::Less(5), int(5), false);
        check(O::Less(5), text("4"), false);
        check(O::LessOrEqual(5), int(5), true);
        check(O::Greater(5), int(6), true);
        check(O::Greater(5), None, false);
        check(O::GreaterOrEqual(5), int(5), true);
        check(O::In(vec![a.clone()]), text("a"), true);
        check(O::In(vec![a.clone()]), None, false);
        check(O::NotIn(vec![a.clone()]), None, true);
        check(O::NotIn(vec![a]), text("a"), false);
        check(O::Exists, int(0), true);
        check(O::Exists, None, false);
        check(O::Absent, None, true);
        check(O::Absent, int(0), false);
        check(O::Matches("deb.*".into()), text("debian"), true);
        check(O::Matches("deb".into()), text("debian"), false);
        check(O::Matches("[".into()), text("["), false);
        check(O::VersionAtLeast("6.10".into()), text("6.9"), false);
        check(O::VersionAtLeast("6.10".into()), text("6.10.1"), true);
        check(O::VersionAtLeast("6.1".into()), text("6.1-rc2"), true);
        check(O::VersionBelow("6.10".into()), text("6.9.12"), true);
        check(O::VersionBelow("6.10".into()), None, false);
    }

    #[test]
    fn bad_operands_are_refused_with_the_allowed_values() {
        let bad = |operator, strength, expected: &str| {
            let c = Constraint { attribute: Token::new("x").unwrap(), operator, strength };
            let error = c.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        bad(Operator::Matches("(".into()), Strength::Hard, "not valid");
        bad(Operator::Matches("a)|(?:b".into()), Strength::Hard, "not valid");
        bad(Operator::Matches("a".repeat(300)), Strength::Hard, "at most 256");
        bad(Operator::In(vec![]), Strength::Hard, "one value or more");
        bad(Operator::VersionBelow("1..2".into()), Strength::Hard, "dotted parts");
        bad(Operator::Exists, Strength::Soft(0), "1 to 100");
    }
}
