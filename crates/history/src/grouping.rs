//! What a statement groups by, as far as its text tells without a grammar.
//!
//! SQLite does not tell a table about expressions: `group by substr(day, 1, 7)` looks to it like a
//! statement that wants no order. The text is cut into words, and what stands after GROUP BY is
//! taken as it is; `by_counting` offers SQLite an index over it. A term that is misread makes an
//! index that nobody uses, and never another answer.
//!
//! One thing here has to be right: [`grain`], by which times are counted as if they were the same.
//! It knows few forms, and says nothing of any other.

use crate::tables;

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A keyword or a name; names in quotes are names.
    Word,
    Number,
    /// In single quotes, which are not part of it.
    Text,
    /// `?`, `:name` and the like.
    Argument,
    Sign,
}

/// A piece of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token<'sql> {
    pub kind: Kind,
    /// As it stands in the statement.
    pub source: &'sql str,
    /// In small letters, without quotes.
    pub text: String,
}

impl Token<'_> {
    fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Sign) && self.text == text
    }

    fn is_one_of(&self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.is(text))
    }

    fn whole(&self) -> Option<i64> {
        if self.kind == Kind::Number { self.text.parse().ok() } else { None }
    }
}

/// Cuts a statement into its pieces, comments left out.
pub(crate) fn tokens(sql: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = piece(rest, first);
        let (source, after) = rest.split_at(length);
        rest = after;
        let Some(kind) = kind else { continue };
        let is_quoted = matches!(first, '\'' | '"' | '`' | '[') && length >= 2;
        let inner = if is_quoted { &source[1..length - 1] } else { source };
        found.push(Token { kind, source, text: inner.to_lowercase() });
    }
    found
}

/// The kind of the first piece, none for what is no piece, and its length in bytes.
fn piece(rest: &str, first: char) -> (Option<Kind>, usize) {
    let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
    let while_true = |is: &dyn Fn(char) -> bool| rest.find(|c| !is(c)).unwrap_or(rest.len());
    match first {
        _ if first.is_whitespace() => (None, while_true(&char::is_whitespace)),
        _ if rest.starts_with("--") => (None, until("\n")),
        _ if rest.starts_with("/*") => {
            (None, 2 + rest[2..].find("*/").map_or(rest.len() - 2, |at| at + 2))
        }
        '\'' => (Some(Kind::Text), quoted(rest, '\'')),
        '"' | '`' => (Some(Kind::Word), quoted(rest, first)),
        '[' => (Some(Kind::Word), until("]")),
        '?' | ':' | '@' | '$' | '#' => {
            let name = |c: char| c == first || is_of_name(c);
            (Some(Kind::Argument), while_true(&name))
        }
        _ if first.is_ascii_digit() || is_fraction(rest) => (Some(Kind::Number), number(rest)),
        _ if is_of_name(first) => (Some(Kind::Word), while_true(&is_of_name)),
        _ => {
            let long = ["->>", "||", "->", "<=", ">=", "<>", "!=", "==", "<<", ">>"];
            let sign = long.iter().find(|sign| rest.starts_with(**sign));
            (Some(Kind::Sign), sign.map_or(first.len_utf8(), |sign| sign.len()))
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii()
}

fn is_fraction(rest: &str) -> bool {
    rest.starts_with('.') && rest[1..].starts_with(|c: char| c.is_ascii_digit())
}

/// With everything that could belong to it: what is no number is none for us either.
fn number(rest: &str) -> usize {
    let mut before = ' ';
    let ends = |(_, c): &(usize, char)| {
        let is_part = is_of_name(*c)
            || *c == '.'
            || (matches!(c, '+' | '-') && matches!(before, 'e' | 'E') && !rest.starts_with("0x"));
        before = *c;
        !is_part
    };
    rest.char_indices().find(ends).map_or(rest.len(), |(at, _)| at)
}

/// A quote within is written twice.
fn quoted(rest: &str, quote: char) -> usize {
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c == quote && chars.next_if(|(_, next)| *next == quote).is_none() {
            return at + 1;
        }
    }
    rest.len()
}

/// How often the statement names a table.
pub(crate) fn tables_named(tokens: &[Token<'_>]) -> usize {
    let is_table = |token: &&Token<'_>| tables::all().iter().any(|table| token.is(table.name));
    tokens.iter().filter(is_table).count()
}

/// Whether what the statement answers follows from how often each row occurs. Aggregates that
/// join texts or add fractions tell in which order rows came; sums of whole numbers do not.
pub(crate) fn is_free_of_order(tokens: &[Token<'_>]) -> bool {
    let ordered = ["group_concat", "string_agg", "json_group_array", "json_group_object", "over"];
    let ordered = [&ordered[..], &["jsonb_group_array", "jsonb_group_object", "random"]].concat();
    if tokens.iter().any(|token| token.is_one_of(&ordered) || token.is("randomblob")) {
        return false;
    }
    let is_sum = |at: &usize| {
        let called = tokens.get(at + 1).is_some_and(|next| next.is("("));
        called && tokens[*at].is_one_of(&["sum", "avg", "total"])
    };
    (0..tokens.len()).filter(is_sum).all(|at| is_of_whole_numbers(&tokens[at + 2..]))
}

/// Whether the argument of a function is a column of whole numbers.
fn is_of_whole_numbers(argument: &[Token<'_>]) -> bool {
    let distinct = usize::from(argument.first().is_some_and(|first| first.is("distinct")));
    let argument = &argument[distinct..];
    let column = match argument {
        [_, dot, column, end, ..] if dot.is(".") && end.is(")") => column,
        [column, end, ..] if end.is(")") => column,
        _ => return false,
    };
    let mut columns = tables::RAW.iter().flat_map(|table| table.columns);
    column.kind == Kind::Word
        && columns.any(|known| column.is(known.name) && known.kind.as_str() == "INTEGER")
}

/// The terms of every GROUP BY, each as an expression over the columns of a table.
pub(crate) fn groupings(tokens: &[Token<'_>]) -> Vec<Vec<String>> {
    let begins = |at: &usize| {
        tokens[*at].is("group") && tokens.get(at + 1).is_some_and(|next| next.is("by"))
    };
    let one = |at: usize| {
        let ends = ["having", "window", "order", "limit", "union", "except", "intersect", ";"];
        let items = selected(tokens, at);
        let terms = listed(&tokens[at + 2..], &ends);
        terms.into_iter().map(|term| expression(meant(term, &items))).collect()
    };
    (0..tokens.len()).filter(begins).map(one).collect()
}

/// What the SELECT of the GROUP BY at this place selects.
fn selected<'t, 'sql>(tokens: &'t [Token<'sql>], group: usize) -> Vec<&'t [Token<'sql>]> {
    let mut depth = 0;
    for at in (0..group).rev() {
        match &tokens[at] {
            token if token.is(")") => depth += 1,
            token if token.is("(") => depth -= 1,
            token if token.is("select") && depth == 0 => {
                let is_marked = |next: &Token<'_>| next.is_one_of(&["distinct", "all"]);
                let marked = usize::from(tokens.get(at + 1).is_some_and(is_marked));
                return listed(&tokens[at + 1 + marked..], &["from"]);
            }
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    Vec::new()
}

/// A list with commas, up to one of these words or the end of the bracket that it is in.
fn listed<'t, 'sql>(tokens: &'t [Token<'sql>], ends: &[&str]) -> Vec<&'t [Token<'sql>]> {
    let (mut depth, mut begin, mut found) = (0, 0, Vec::new());
    let mut end = tokens.len();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            token if token.is("(") => depth += 1,
            token if depth == 0 && (token.is(")") || token.is_one_of(ends)) => {
                end = at;
                break;
            }
            token if token.is(")") => depth -= 1,
            token if depth == 0 && token.is(",") => {
                found.push(&tokens[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(&tokens[begin..end]);
    found
}

/// The expression that a term stands for: a number is a place among what is selected, and a word
/// that is no column may be the name that one of them is given.
fn meant<'t, 'sql>(term: &'t [Token<'sql>], items: &[&'t [Token<'sql>]]) -> &'t [Token<'sql>] {
    let [word] = term else { return term };
    if let Some(place) = word.whole() {
        let at = usize::try_from(place).unwrap_or(0).wrapping_sub(1);
        return items.get(at).map_or(term, |item| unnamed(item).0);
    }
    let is_column = |table: &&tables::Table| table.columns.iter().any(|known| word.is(known.name));
    if word.kind != Kind::Word || tables::all().iter().any(is_column) {
        return term;
    }
    let named = items.iter().map(|item| unnamed(item));
    let mut named = named.filter(|(_, name)| name.is_some_and(|name| name.text == word.text));
    named.next().map_or(term, |(item, _)| item)
}

/// What is selected without the name it is given.
fn unnamed<'t, 'sql>(item: &'t [Token<'sql>]) -> (&'t [Token<'sql>], Option<&'t Token<'sql>>) {
    let [whole @ .., before, name] = item else { return (item, None) };
    if before.is("as") {
        return (whole, Some(name));
    }
    let is_name = name.kind == Kind::Word && !name.is_one_of(&["end", "null"]);
    let ends = before.kind != Kind::Sign || before.is(")");
    match is_name && ends && !before.is("collate") {
        true => (&item[..item.len() - 1], Some(name)),
        false => (item, None),
    }
}

/// As text again; an index does not know by which name a statement calls its table.
fn expression(tokens: &[Token<'_>]) -> String {
    let is_dot = |at: usize| tokens.get(at).is_some_and(|token| token.is("."));
    let is_left_out = |at: usize| is_dot(at) || (is_dot(at + 1) && tokens[at].kind == Kind::Word);
    let kept = (0..tokens.len()).filter(|at| !is_left_out(*at));
    kept.map(|at| tokens[at].source).collect::<Vec<_>>().join(" ")
}

/// Milliseconds within which the statement cannot tell two times from each other, as long as no
/// time is before 1970. Nothing where that is not sure.
///
/// A statement that names `time` only as `time / N` sees whole multiples of N, and one that makes
/// a date of it sees days. The name has to be an operand of that division and of nothing before it.
pub(crate) fn grain(tokens: &[Token<'_>]) -> Option<i64> {
    let is_all = |at: &usize| {
        tokens[*at].is("*")
            && (*at == 0 || tokens[at - 1].is_one_of(&["select", "distinct", "all", ",", "."]))
    };
    if (0..tokens.len()).any(|at| is_all(&at)) {
        return None;
    }
    let is_call = |at: usize| tokens.get(at + 1).is_some_and(|next| next.is("("));
    let named = (0..tokens.len()).filter(|at| tokens[*at].is("time") && !is_call(*at));
    named.map(|at| grain_at(tokens, at)).try_fold(0, |all, one| Some(common(all, one?)))
}

fn grain_at(tokens: &[Token<'_>], at: usize) -> Option<i64> {
    let [_, sign, number, after @ ..] = &tokens[at..] else { return None };
    let size = number.whole().filter(|size| *size > 0 && sign.is("/"))?;
    if after.first().is_some_and(|next| next.is_one_of(&["||", "->", "->>", "collate"])) {
        return None;
    }
    let begin = match at.checked_sub(1).map(|before| tokens[before].is(".")) {
        Some(true) => at.checked_sub(2)?,
        _ => at,
    };
    let before = &tokens[..begin];
    let opens = ["(", ",", "select", "distinct", "by", "where", "and", "or", "when", "then"];
    if !before.last()?.is_one_of(&opens) {
        return None;
    }
    let is_date = matches!(after, [comma, epoch, end, ..] if comma.is(",")
        && epoch.kind == Kind::Text && epoch.text == "unixepoch" && end.is(")"));
    if size != SECOND || !is_date {
        return Some(size);
    }
    Some(match before {
        [.., name, open] if open.is("(") && name.is("date") => DAY,
        [.., name, open, format, comma]
            if comma.is(",")
                && format.kind == Kind::Text
                && open.is("(")
                && name.is("strftime") =>
        {
            grain_of_format(format.source)
        }
        _ => SECOND,
    })
}

/// The finest that a format of `strftime` shows.
fn grain_of_format(format: &str) -> i64 {
    let mut finest = DAY;
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            continue;
        }
        finest = finest.min(match chars.next() {
            Some('Y' | 'm' | 'd' | 'e' | 'F' | 'j' | 'u' | 'w' | 'U' | 'W' | 'G' | 'g' | 'V') => {
                DAY
            }
            Some('%') => DAY,
            Some('H' | 'I' | 'k' | 'l' | 'p' | 'P') => HOUR,
            Some('M' | 'R') => MINUTE,
            _ => SECOND,
        });
    }
    finest
}

/// The greatest common divisor; that of nothing and a number is the number.
fn common(one: i64, other: i64) -> i64 {
    if other == 0 { one } else { common(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_found_wherever_they_stand() {
        let check = |sql: &str, expected: &[&[&str]]| {
            assert_eq!(groupings(&tokens(sql)), expected, "{sql}");
        };
        check("select user from t", &[]);
        check("select a, b from t group by a, b order by 1", &[&["a", "b"]]);
        check(
            "SELECT substr(day,1,7) AS month, count(*) FROM t GROUP BY month HAVING 1",
            &[&["substr ( day , 1 , 7 )"]],
        );
        check("select user || job, count(*) n from t group by 1;", &[&["user || job"]]);
        check("select date(x) d, 1 from t where a in (1, 2) group by d", &[&["date ( x )"]]);
        check("select 1 from t where '--' = \"a\"\"(\" group by t.day -- x", &[&["day"]]);
        check(
            "select max(n) from (select count(*) n from t group by [a b], 'x''y') limit 1",
            &[&["[a b]", "'x''y'"]],
        );
        check(
            "select case a when 1 then 2 end from t group by 1",
            &[&["case a when 1 then 2 end"]],
        );
        check("select a is null, b from t group by 1, 2", &[&["a is null", "b"]]);
        check("select a collate nocase from t group by 1", &[&["a collate nocase"]]);
        check("select a from t group by 7, /* b */ c", &[&["7", "c"]]);
    }

    #[test]
    fn times_are_alike_only_where_that_is_sure() {
        let check = |sql: &str, expected: Option<i64>| {
            assert_eq!(grain(&tokens(sql)), expected, "{sql}");
        };
        check("select date(time / 1000, 'unixepoch'), count(*) from t group by 1", Some(DAY));
        check("select date(t.time/1000, 'UnixEpoch') from t", Some(DAY));
        check("select time(time/1000, 'unixepoch') from t", Some(SECOND));
        check("select strftime('%Y-%W', time/1000, 'unixepoch') from t", Some(DAY));
        check("select strftime('%dT%H', time/1000, 'unixepoch') from t", Some(HOUR));
        check("select strftime('%H:%M', time/1000, 'unixepoch') from t", Some(MINUTE));
        check("select strftime('%s', time/1000, 'unixepoch') from t", Some(SECOND));
        check("select time / 3600000 % 24 from t group by time / 86400000", Some(HOUR));
        check("select date(time/1000, 'unixepoch', '+1 hour') from t", Some(SECOND));
        check("select time/600, time/1000 from t", Some(200));
        // Anything else may tell every millisecond.
        for sql in [
            "select time from t",
            "select * from t group by date(time/1000, 'unixepoch')",
            "select t.* from t",
            "select 3 * time / 1000 from t",
            "select user || time / 1000 from t",
            "select -time / 1000 from t",
            "select ~time / 1000 from t",
            "select time / 1000.0 from t",
            "select time / 1000 || '0' from t",
            "select time / ? from t",
            "select time / 0 from t",
            "select time / 1e3 from t",
            "select time % 1000 from t",
            "select \"time\" from t",
            "select date(time/1000, 'unixepoch') from t where time > 5",
        ] {
            check(sql, None);
        }
    }

    #[test]
    fn sums_of_fractions_and_joined_texts_depend_on_order() {
        let check = |sql: &str, expected: bool| {
            assert_eq!(is_free_of_order(&tokens(sql)), expected, "{sql}");
        };
        check("select sum(attempt), avg(t.exit_code), total(distinct time) from t", true);
        check("select count(*), min(user), max(day), count(distinct job) from t", true);
        check("select sum(attempt * 0.1) from t", false);
        check("select avg(detail) from t", false);
        check("select group_concat(user) from t", false);
        check("select count(*) over () from t", false);
    }
}
