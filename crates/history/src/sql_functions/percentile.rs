//! `percentile(x, p)` and `percentile(x, p, weight)`, aggregates over a group.
//!
//! Nearest rank: the answer is one of the values, so that it can be looked up, and a percentile of
//! whole numbers is a whole number. Equal values are kept once with their weights, so that a year
//! of rows takes as much memory as there are different values.
//!
//! Rejected: a sketch of the distribution. What is asked for is what somebody is billed.

use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};
use std::collections::BTreeMap;

/// Most different values of one group.
const MAX_VALUES: usize = 1 << 20;

pub(super) fn register(db: &Connection, flags: FunctionFlags) -> Result<()> {
    db.create_aggregate_function(c"percentile", 2, flags, Percentile)?;
    db.create_aggregate_function(c"percentile", 3, flags, Percentile)
}

struct Percentile;

/// The values of a group so far.
#[derive(Default)]
struct Group {
    /// By a key whose order is that of the numbers.
    weights: BTreeMap<u64, Weighted>,
    total: f64,
    percent: Option<f64>,
    has_reals: bool,
}

struct Weighted {
    value: f64,
    weight: f64,
}

impl Aggregate<Group, Value> for Percentile {
    fn init(&self, _: &mut Context<'_>) -> Result<Group> {
        Ok(Group::default())
    }

    fn step(&self, call: &mut Context<'_>, group: &mut Group) -> Result<()> {
        let percent = number(call, 1)?.filter(|percent| (0.0..=100.0).contains(percent));
        let Some(percent) = percent else { return Err(refuse("p", "0 to 100")) };
        group.percent = Some(percent);
        let weight = if call.len() > 2 { number(call, 2)?.unwrap_or(0.0) } else { 1.0 };
        if !(weight >= 0.0 && weight.is_finite()) {
            return Err(refuse("weight", "numbers from 0"));
        }
        let Some(value) = number(call, 0)? else { return Ok(()) };
        if weight == 0.0 {
            return Ok(());
        }
        group.has_reals |= matches!(call.get_raw(0), ValueRef::Real(_));
        let room = group.weights.len() < MAX_VALUES;
        let found = group.weights.entry(order_key(value));
        if let std::collections::btree_map::Entry::Vacant(_) = &found
            && !room
        {
            return Err(refuse("x", "1048576 different values; bound the days, or round them"));
        }
        found.or_insert(Weighted { value, weight: 0.0 }).weight += weight;
        group.total += weight;
        Ok(())
    }

    fn finalize(&self, _: &mut Context<'_>, group: Option<Group>) -> Result<Value> {
        Ok(group.and_then(|group| group.percentile()).unwrap_or(Value::Null))
    }
}

impl Group {
    fn percentile(&self) -> Option<Value> {
        let rank = self.total * self.percent? / 100.0;
        let mut below = 0.0;
        let reaches = |weighted: &&Weighted| {
            below += weighted.weight;
            below >= rank
        };
        // Sums of reals may fall short of their total by a hair.
        let found = self.weights.values().find(reaches);
        let value = found.or_else(|| self.weights.values().next_back())?.value;
        Some(if self.has_reals { Value::Real(value) } else { Value::Integer(value as i64) })
    }
}

/// An argument as a number; nothing for an absent one.
fn number(call: &Context<'_>, at: usize) -> Result<Option<f64>> {
    match call.get_raw(at) {
        ValueRef::Null => Ok(None),
        ValueRef::Integer(number) => Ok(Some(number as f64)),
        ValueRef::Real(number) => Ok(Some(number)),
        ValueRef::Text(_) | ValueRef::Blob(_) => {
            Err(refuse(["x", "p", "weight"][at.min(2)], "a number"))
        }
    }
}

fn refuse(argument: &str, allowed: &str) -> Error {
    Error::UserFunctionError(format!("percentile: {argument}; allowed: {allowed}").into())
}

/// Bits that compare as the numbers do.
fn order_key(value: f64) -> u64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(sql: &str) -> std::result::Result<Value, String> {
        let db = Connection::open_in_memory().unwrap();
        super::super::register(&db).unwrap();
        db.query_row(sql, [], |row| row.get(0)).map_err(|error| error.to_string())
    }

    fn of(values: &str, call: &str) -> Value {
        ask(&format!("with t(x, w) as (values {values}) select {call} from t")).unwrap()
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let ten = (1..=10).map(|n| format!("({n}, 1)")).collect::<Vec<_>>().join(", ");
        for (call, expected) in [
            ("percentile(x, 50)", 5),
            ("percentile(x, 95)", 10),
            ("percentile(x, 90)", 9),
            ("percentile(x, 0)", 1),
            ("percentile(x, 100)", 10),
            ("percentile(-x, 10)", -10),
        ] {
            assert_eq!(of(&ten, call), Value::Integer(expected), "{call}");
        }
        assert_eq!(of("(0.5, 1), (1, 1)", "percentile(x, 10)"), Value::Real(0.5));
        assert_eq!(of("(null, 1)", "percentile(x, 10)"), Value::Null);
    }

    #[test]
    fn a_row_counts_by_its_weight() {
        let long_idle = "(1, 990), (700, 9), (900, 1)";
        assert_eq!(of(long_idle, "percentile(x, 95, w)"), Value::Integer(1));
        assert_eq!(of(long_idle, "percentile(x, 99.5, w)"), Value::Integer(700));
        assert_eq!(of(long_idle, "percentile(x, 95)"), Value::Integer(900));
        assert_eq!(of("(1, 0), (2, null)", "percentile(x, 95, w)"), Value::Null);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_is_allowed() {
        for (call, error) in [
            ("percentile(1, 101)", "percentile: p; allowed: 0 to 100"),
            ("percentile(1, null)", "percentile: p; allowed: 0 to 100"),
            ("percentile('a', 5)", "percentile: x; allowed: a number"),
            ("percentile(1, 5, -1)", "percentile: weight; allowed: numbers from 0"),
        ] {
            assert_eq!(ask(&format!("select {call}")), Err(error.to_owned()));
        }
    }
}
