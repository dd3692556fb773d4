//! Pagination and selectors of lists. A cursor is the key of the last row seen; keys are never
//! reused for another row, so a list that changes between pages neither skips nor repeats.

use super::call::Call;
use cellwright_api::error::ApiError;
use cellwright_api::routes::{PAGE_DEFAULT, PAGE_MAX};
use cellwright_api::types::Page;
use cellwright_cell::label::LabelTerm;
use cellwright_cell::name::Token;

/// Limit of the terms in a selector.
const MAX_TERMS: usize = 64;

impl Call {
    pub fn limit(&self) -> usize {
        let requested = self.query("limit").and_then(|text| text.parse().ok());
        requested.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX)
    }

    /// The key after which the page starts.
    fn page_start(&self, kind: char) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.query("after") else { return Ok(None) };
        let key = text.strip_prefix(kind).and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let bad = || ApiError::parameter("after", text, "the `next` of a page of the same list");
        key.map(Some).ok_or_else(bad)
    }

    pub fn selector(&self) -> Result<Vec<LabelTerm>, ApiError> {
        self.query("selector").map_or(Ok(vec![]), parse_selector)
    }

    /// The rows of one page, in the order of their keys, in which they come. Only rows of the page
    /// are rendered: a view costs more than a row.
    pub fn page<R, T>(
        &self,
        kind: char,
        (index, consistent): (u64, bool),
        rows: impl Iterator<Item = (u64, R)>,
        show: impl Fn(R) -> Option<T>,
    ) -> Result<Page<T>, ApiError> {
        let start = self.page_start(kind)?;
        let mut rows = rows.skip_while(|(key, _)| start.is_some_and(|start| *key <= start));
        let (mut items, mut last) = (Vec::new(), 0);
        for (key, row) in rows.by_ref().take(self.limit()) {
            items.extend(show(row));
            last = key;
        }
        let next = rows.next().map(|_| format!("{kind}{last:x}"));
        Ok(Page { items, next, index, consistent })
    }
}

/// `a=b,c!=d,e,!f,g in (h,i),j not in (k)`.
pub(super) fn parse_selector(text: &str) -> Result<Vec<LabelTerm>, ApiError> {
    const ALLOWED: &str =
        "terms a=b, a!=b, a, !a, a in (b, c) or a not in (b, c), separated by commas";
    let bad = |term: &str| ApiError::parameter("selector", term, ALLOWED);
    let key = |term: &str, text: &str| Token::new(text.trim()).map_err(|_| bad(term));
    let terms = split_terms(text);
    if terms.len() > MAX_TERMS {
        let allowed = format!("at most {MAX_TERMS} terms");
        return Err(ApiError::parameter("selector", text, &allowed));
    }
    let term = |term: &str| {
        let term = term.trim();
        if let Some((name, is_in, values)) = list_term(term) {
            let values = values.ok_or_else(|| bad(term))?;
            let kind = if is_in { LabelTerm::In } else { LabelTerm::NotIn };
            return Ok(kind(key(term, name)?, values));
        }
        if let Some((name, value)) = term.split_once("!=") {
            return Ok(LabelTerm::NotEquals(key(term, name)?, value.trim().to_owned()));
        }
        if let Some((name, value)) = term.split_once('=') {
            let value = value.strip_prefix('=').unwrap_or(value);
            return Ok(LabelTerm::Equals(key(term, name)?, value.trim().to_owned()));
        }
        match term.strip_prefix('!') {
            Some(name) => Ok(LabelTerm::Absent(key(term, name)?)),
            None => Ok(LabelTerm::Exists(key(term, term)?)),
        }
    };
    terms.into_iter().map(term).collect()
}

/// Splits at commas outside brackets.
fn split_terms(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|c: char| {
        inside = c == '(' || inside && c != ')';
        c == ',' && !inside
    })
    .collect()
}

/// The parts of `a in (b, c)` and `a not in (b, c)`: the key, whether it is the first form, and the
/// values, which are missing where the list does not read.
fn list_term(term: &str) -> Option<(&str, bool, Option<Vec<String>>)> {
    let (name, list) = term.split_once(" in ").or_else(|| {
        let (name, list) = term.split_once(" in(")?;
        Some((name, &term[term.len() - list.len() - 1..]))
    })?;
    let list = list.trim().strip_prefix('(')?;
    let values = list
        .strip_suffix(')')
        .map(|list| list.split(',').map(|value| value.trim().to_owned()).collect::<Vec<String>>());
    let values = values.filter(|values| values.iter().all(|value| !value.is_empty()));
    match name.trim().strip_suffix(" not") {
        Some(name) => Some((name.trim(), false, values)),
        None => Some((name.trim(), true, values)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_read_as_they_are_written() {
        let token = |text| Token::new(text).unwrap();
        let terms = parse_selector("tier=web, zone!=a,gpu,!spot").unwrap();
        let expected = [
            LabelTerm::Equals(token("tier"), "web".into()),
            LabelTerm::NotEquals(token("zone"), "a".into()),
            LabelTerm::Exists(token("gpu")),
            LabelTerm::Absent(token("spot")),
        ];
        assert_eq!(terms, expected);
        let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        let terms = parse_selector("tier in (web, db),zone not in(a),gpu").unwrap();
        let expected = [
            LabelTerm::In(token("tier"), list(&["web", "db"])),
            LabelTerm::NotIn(token("zone"), list(&["a"])),
            LabelTerm::Exists(token("gpu")),
        ];
        assert_eq!(terms, expected);
        for bad in ["", "a=b,", "=b", "!", "a b", "a in", "a in ()", "a in (b", "a in (b,)"] {
            assert!(parse_selector(bad).is_err(), "{bad:?}");
        }
    }
}
