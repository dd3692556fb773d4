//! Columns that a statement shows of a group without grouping by them.
//!
//! SQLite takes such a value from any row of the group, and from which one depends on the order in
//! which it reads. Counting reads in another order, so it would answer otherwise than sorting does,
//! and which of the two answers depends on how much there is to count. A statement is counted only
//! if each column that it shows of a group stands in an aggregate or is what it groups by.
//! Rejected: to ask SQLite, which has no word for it.

use crate::grouping::{Kind, Token, listed, meant, unnamed};

/// What begins the next part of a SELECT, or comes after it.
const PARTS: [&str; 11] = [
    "from",
    "where",
    "group",
    "having",
    "window",
    "order",
    "limit",
    "union",
    "except",
    "intersect",
    ";",
];
const AGGREGATES: [&str; 6] = ["count", "sum", "avg", "total", "min", "max"];
/// Words within an expression that are no columns.
const WORDS: [&str; 19] = [
    "and", "or", "not", "is", "null", "isnull", "notnull", "between", "like", "glob", "in",
    "escape", "case", "when", "then", "else", "end", "distinct", "all",
];
/// Most pieces of a statement that is looked at: every SELECT in it is looked through, and nobody
/// looks at the clock meanwhile.
const MOST: usize = 2000;
/// Brackets within brackets that are looked into.
const DEEPEST: usize = 20;

type Tokens<'t, 'sql> = &'t [Token<'sql>];

/// Whether some SELECT may show a value of any row of a group. Yes, where that is not sure.
pub(crate) fn may_show_any_row(tokens: Tokens<'_, '_>) -> bool {
    let is_misleading = |token: &Token<'_>| {
        let is_word = token.is_one_of(&PARTS) || token.is_one_of(&WORDS);
        (is_word || token.is_one_of(&["select", "by", "as", "collate"])) && token.is_quoted()
    };
    let compares = |pair: &[Token<'_>]| pair[0].is("distinct") && pair[1].is("from");
    if tokens.len() > MOST || tokens.iter().any(is_misleading) || tokens.windows(2).any(compares) {
        return true;
    }
    let selects = (0..tokens.len()).filter(|at| tokens[*at].is("select"));
    selects.into_iter().any(|at| shows_any_row(&tokens[at + 1..]))
}

fn shows_any_row(body: Tokens<'_, '_>) -> bool {
    let is_marked = body.first().is_some_and(|first| first.is_one_of(&["distinct", "all"]));
    let items = listed(&body[usize::from(is_marked)..], &PARTS);
    let (grouped, having) = (part(body, "group", 2), part(body, "having", 1));
    let ordered = part(body, "order", 2);
    let shown: Vec<_> = items.iter().map(|item| unnamed(item)).collect();
    let of_group = || shown.iter().map(|(item, _)| *item).chain(having.iter().copied());
    let is_aggregate = |pair: &[Token<'_>]| pair[0].is_one_of(&AGGREGATES) && pair[1].is("(");
    let aggregates = |part: Tokens<'_, '_>| part.windows(2).any(is_aggregate);
    if grouped.is_empty() && !of_group().chain(ordered.iter().copied()).any(aggregates) {
        return false;
    }
    let known = Known {
        terms: grouped.iter().map(|term| plain(meant(term, &items))).collect(),
        names: shown.iter().filter_map(|(_, name)| name.map(|name| &name.text[..])).collect(),
    };
    let sorted = ordered.iter().map(|term| match term {
        [term @ .., last] if last.is_one_of(&["asc", "desc"]) => term,
        term => term,
    });
    let is_known =
        |part: Tokens<'_, '_>, with_names: bool| known.tells(&plain(part), with_names, DEEPEST);
    !shown.iter().all(|(item, _)| is_known(item, false))
        || !having.iter().copied().chain(sorted).all(|part| is_known(part, true))
}

/// What stands after a word of this SELECT, and of none within it, up to the next part.
fn part<'t, 'sql>(body: Tokens<'t, 'sql>, word: &str, length: usize) -> Vec<Tokens<'t, 'sql>> {
    let mut depth = 0;
    for (at, token) in body.iter().enumerate() {
        match token {
            token if token.is("(") => depth += 1,
            token if token.is(")") => depth -= 1,
            token if depth == 0 && token.is_one_of(&["union", "except", "intersect", ";"]) => break,
            token if depth == 0 && token.is(word) => {
                return listed(body.get(at + length..).unwrap_or(&[]), &PARTS);
            }
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    Vec::new()
}

/// Without the names of tables before columns, and without a sign that changes nothing.
fn plain<'t, 'sql>(tokens: Tokens<'t, 'sql>) -> Vec<&'t Token<'sql>> {
    let is_dot = |at: usize| tokens.get(at).is_some_and(|token| token.is("."));
    let kept = (0..tokens.len()).filter(|at| !is_dot(*at) && !is_dot(at + 1));
    kept.map(|at| &tokens[at]).skip_while(|token| token.is("+")).collect()
}

/// What is the same for all rows of a group.
struct Known<'t, 'sql> {
    terms: Vec<Vec<&'t Token<'sql>>>,
    /// What the statement calls the things it shows.
    names: Vec<&'t str>,
}

impl Known<'_, '_> {
    /// Whether an expression, of brackets so many deep at most, has one value for a group.
    fn tells(&self, part: &[&Token<'_>], with_names: bool, depth: usize) -> bool {
        if self.is_term(part) {
            return true;
        }
        if matches!(part, [star] if star.is("*")) {
            return false;
        }
        let mut left = part;
        loop {
            left = match left {
                [] => return true,
                [name, open, ..] if open.is("(") && name.kind == Kind::Word => {
                    let (arguments, rest) = in_brackets(&left[1..]);
                    let aggregates = name.is_one_of(&AGGREGATES) && arguments.len() == 1;
                    let is_whole = aggregates || name.is("filter");
                    if !is_whole && !self.tells_all(&arguments, with_names, depth) {
                        return false;
                    }
                    rest
                }
                [open, ..] if open.is("(") => {
                    let (arguments, rest) = in_brackets(left);
                    if !self.tells_all(&arguments, with_names, depth) {
                        return false;
                    }
                    rest
                }
                // A type of `cast`, or an order.
                [word, _, rest @ ..] if word.is_one_of(&["as", "collate"]) => rest,
                [first, rest @ ..] => {
                    let is_name = with_names && self.names.contains(&&first.text[..]);
                    let is_column = first.kind == Kind::Word && !first.is_one_of(&WORDS);
                    if is_column && !is_name && !self.is_term(&[first]) {
                        return false;
                    }
                    rest
                }
            };
        }
    }

    fn tells_all(&self, parts: &[&[&Token<'_>]], with_names: bool, depth: usize) -> bool {
        depth > 0 && parts.iter().all(|part| self.tells(part, with_names, depth - 1))
    }

    fn is_term(&self, part: &[&Token<'_>]) -> bool {
        let same = |(one, other): (&&Token<'_>, &&Token<'_>)| {
            one.kind == other.kind && one.text == other.text
        };
        let is_same =
            |term: &Vec<&Token<'_>>| term.len() == part.len() && term.iter().zip(part).all(same);
        self.terms.iter().any(is_same)
    }
}

type Parts<'p, 't, 'sql> = Vec<&'p [&'t Token<'sql>]>;

/// What stands in the bracket that begins here, cut at its commas, and what comes after it.
fn in_brackets<'p, 't, 'sql>(
    part: &'p [&'t Token<'sql>],
) -> (Parts<'p, 't, 'sql>, &'p [&'t Token<'sql>]) {
    let (mut depth, mut begin, mut found) = (0, 1, Vec::new());
    for (at, token) in part.iter().enumerate() {
        match token {
            token if token.is("(") => depth += 1,
            token if token.is(")") => depth -= 1,
            token if depth == 1 && token.is(",") => {
                found.push(&part[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
        if depth == 0 {
            found.push(&part[begin..at]);
            return (found, &part[at + 1..]);
        }
    }
    (vec![&part[1..]], &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grouping::tokens;

    #[test]
    fn a_column_of_any_row_is_seen() {
        let check = |sql: &str, expected: bool| {
            assert_eq!(may_show_any_row(&tokens(sql)), expected, "{sql}");
        };
        for sql in [
            "select distinct user, day from t",
            "select user || '' u, count(*) from t group by u order by u desc, count(*)",
            "select t.user, round(100.0 * count(*) / max(sum(x), 1), 1) from t group by user",
            "select max(n) from (select count(*) n from t group by substr(day, 6, 2))",
            "with d as (select day || user k, count(*) n from t group by 1) select * from d",
            "select upper(user) || '/' || day from t group by user, day having count(*) > 3",
            "select count(*) filter (where day = 'x'), cast(user as text) from t group by +user",
            "select coalesce(max(day), (user || job)), 2 * 3 from t group by user || job",
            "select case user when 'a' then 1 else 0 end, count(*) n from t group by 1 having n > 1",
            "select count(distinct user || day), min(x) from t",
        ] {
            check(sql, false);
        }
        for sql in [
            "select user || '' u, machine, count(*) from t group by u",
            "select user || '' u, max(machine, day) from t group by u",
            "select user || '' u, max(machine), t.day from t group by u",
            "select * from t group by user",
            "select t.* from t group by user",
            "select user, count(*) from t",
            "select user from t order by count(*)",
            "select count(*) from t group by user order by machine",
            "select count(*) from t group by user having machine > 'a'",
            "select day + job * 2, count(*) from t group by day + job",
            "select user, (select machine), count(*) from t group by user",
            "select user \"from\", machine, count(*) from t group by user",
            "select user is distinct from 1, machine, count(*) from t group by 1",
            "select 1 from (select machine, count(*) from t group by user)",
            "select 1 union select machine from t group by user",
        ] {
            check(sql, true);
        }
        let deep = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        check(&format!("select {}, count(*) from t group by user", deep(DEEPEST)), false);
        check(&format!("select {}, count(*) from t group by user", deep(900)), true);
        let long = |pieces: usize| vec!["1"; pieces].join("+");
        check(&format!("select {}, count(*) from t group by user", long(900)), false);
        check(&format!("select {}, count(*) from t group by user", long(MOST)), true);
    }
}
