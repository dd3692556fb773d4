//! Constraints as people write them: `arch = x86_64`, `rack in r1|r2`, `prefer:20 flash exists`.

use super::names::is_token;

pub(crate) const ALLOWED: &str = "constraints with ; between them, each ATTRIBUTE and one of \
    = V, != V, < N, <= N, > N, >= N, in V|V, not in V|V, exists, absent, matches REGEX, \
    version >= V, version < V; with prefer:WEIGHT (1 to 100) in front when it is only a wish";

/// What the attribute's value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExampleOperator {
    Equal(String),
    NotEqual(String),
    Less(i64),
    LessOrEqual(i64),
    Greater(i64),
    GreaterOrEqual(i64),
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    /// A regular expression for the whole value; it is not checked here.
    Matches(String),
    VersionAtLeast(String),
    VersionBelow(String),
}

/// One constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleConstraint {
    pub attribute: String,
    pub operator: ExampleOperator,
    /// Weight of a soft constraint, 1 to 100; none for a hard one.
    pub weight: Option<u8>,
}

/// Reads one constraint; its words are separated by blanks.
pub fn parse_constraint(text: &str) -> Option<ExampleConstraint> {
    let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
    let weight = match words.first()?.strip_prefix("prefer:") {
        Some(weight) => Some(weight.parse().ok().filter(|weight| (1..=100).contains(weight))?),
        None => None,
    };
    if weight.is_some() {
        words.remove(0);
    }
    let (attribute, rest) = words.split_first()?;
    if !is_token(attribute) {
        return None;
    }
    Some(ExampleConstraint {
        attribute: (*attribute).to_owned(),
        operator: parse_operator(rest)?,
        weight,
    })
}

fn parse_operator(words: &[&str]) -> Option<ExampleOperator> {
    use ExampleOperator as Op;
    Some(match words {
        ["=", value] => Op::Equal(parse_value(value)?),
        ["!=", value] => Op::NotEqual(parse_value(value)?),
        ["<", number] => Op::Less(number.parse().ok()?),
        ["<=", number] => Op::LessOrEqual(number.parse().ok()?),
        [">", number] => Op::Greater(number.parse().ok()?),
        [">=", number] => Op::GreaterOrEqual(number.parse().ok()?),
        ["in", values] => Op::In(parse_values(values)?),
        ["not", "in", values] => Op::NotIn(parse_values(values)?),
        ["exists"] => Op::Exists,
        ["absent"] => Op::Absent,
        ["matches", pattern] => Op::Matches((*pattern).to_owned()),
        ["version", ">=", version] => Op::VersionAtLeast(parse_value(version)?),
        ["version", "<", version] => Op::VersionBelow(parse_value(version)?),
        _ => return None,
    })
}

fn parse_value(text: &str) -> Option<String> {
    is_token(text).then(|| text.to_owned())
}

fn parse_values(text: &str) -> Option<Vec<String>> {
    text.split('|').map(parse_value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ExampleOperator as Op;

    #[test]
    fn every_operator_is_read() {
        let check = |text: &str, operator: ExampleOperator| {
            let expected = ExampleConstraint { attribute: "a".into(), operator, weight: None };
            assert_eq!(parse_constraint(text), Some(expected), "{text}");
        };
        check("a = x", Op::Equal("x".into()));
        check("a != x", Op::NotEqual("x".into()));
        check("a < -5", Op::Less(-5));
        check("a <= 5", Op::LessOrEqual(5));
        check("a > 5", Op::Greater(5));
        check("a >= 5", Op::GreaterOrEqual(5));
        check("a in x|y", Op::In(vec!["x".into(), "y".into()]));
        check("a not in x", Op::NotIn(vec!["x".into()]));
        check(" a  exists ", Op::Exists);
        check("a absent", Op::Absent);
        check("a matches x(1|2).*", Op::Matches("x(1|2).*".into()));
        check("a version >= 6.10", Op::VersionAtLeast("6.10".into()));
        check("a version < 6.10", Op::VersionBelow("6.10".into()));
    }

    #[test]
    fn wishes_have_a_weight_and_nonsense_is_refused() {
        let weight = |text| parse_constraint(text).map(|constraint| constraint.weight);
        assert_eq!(weight("prefer:100 a exists"), Some(Some(100)));
        let wrong = [
            "",
            "a",
            "a =",
            "a = x y",
            "a = x=y",
            "= x",
            "a < x",
            "a in x||y",
            "a in",
            "a ~ x",
            "prefer a exists",
            "prefer:0 a exists",
            "prefer:101 a exists",
            "prefer:5",
        ];
        for text in wrong {
            assert_eq!(weight(text), None, "{text}");
        }
    }
}
