//! What a statement groups by, as far as its text tells without a grammar.
//!
//! SQLite does not tell a table about expressions: `group by substr(day, 1, 7)` looks to it like a
//! statement that wants no order. The text is cut into words, and what stands after GROUP BY is
//! taken as it is; `by_counting` offers SQLite an index over it. A term that is misread makes an
//! index that nobody uses, and never another answer.
//!
//! Two things here have to be right: [`grain`], by which times are counted as if they were the
//! same, and [`is_free_of_order`]. Both know few forms and say no to any other, and neither is
//! asked about a statement whose pieces SQLite might see otherwise ([`is_plain`]).

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
    pub fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Sign) && self.text == text
    }

    pub fn is_one_of(&self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.is(text))
    }

    pub fn is_quoted(&self) -> bool {
        self.source.starts_with(['\'', '"', '`', '['])
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
        found.push(Token { kind, source, text: unquoted(source).to_lowercase() });
    }
    found
}

/// A quote that nobody closes goes to the end of the statement.
fn unquoted(source: &str) -> &str {
    let Some(open) = source.chars().next() else { return source };
    let close = match open {
        '\'' | '"' | '`' => open,
        '[' => ']',
        _ => return source,
    };
    let inner = &source[open.len_utf8()..];
    inner.strip_suffix(close).unwrap_or(inner)
}

/// The kind of the first piece, none for what is no piece, and its length in bytes.
fn piece(rest: &str, first: char) -> (Option<Kind>, usize) {
    let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
    let not_digit = |c: char| !c.is_ascii_digit();
    let while_true = |is: &dyn Fn(char) -> bool| rest.find(|c| !is(c)).unwrap_or(rest.len());
    match first {
        _ if is_space(first) => (None, while_true(&is_space)),
        _ if rest.starts_with("--") => (None, until("\n")),
        _ if rest.starts_with("/*") => {
            (None, 2 + rest[2..].find("*/").map_or(rest.len() - 2, |at| at + 2))
        }
        '\'' => (Some(Kind::Text), quoted(rest, '\'')),
        '"' | '`' => (Some(Kind::Word), quoted(rest, first)),
        '[' => (Some(Kind::Word), until("]")),
        '?' => (Some(Kind::Argument), 1 + rest[1..].find(not_digit).unwrap_or(rest.len() - 1)),
        ':' | '@' | '$' | '#' => {
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

/// Spaces of other scripts belong to names.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
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

/// Whether SQLite is sure to see the same pieces and the same names. It takes a mark at the
/// beginning of a word for a space, ends hexadecimal numbers elsewhere, has brackets in the names
/// of arguments, and knows tables and columns by what stands in single quotes, too.
pub(crate) fn is_plain(tokens: &[Token<'_>]) -> bool {
    let is_table = |name: &str| tables::all().iter().any(|table| table.name == name);
    let is_odd = |at: usize| {
        let Token { kind, source, text } = &tokens[at];
        match kind {
            Kind::Text => is_table(text) || (at > 0 && tokens[at - 1].is(".")),
            Kind::Number => text.starts_with("0x") || !source.is_ascii(),
            Kind::Argument => !source.starts_with('?'),
            Kind::Word => !source.is_ascii(),
            Kind::Sign => !source.chars().all(|c| c.is_ascii_graphic()),
        }
    };
    !(0..tokens.len()).any(is_odd)
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
    let jsonb = ["jsonb_group_array", "jsonb_group_object"];
    // What was written on this connection before is ours.
    let other = ["random", "randomblob", "changes", "total_changes", "last_insert_rowid"];
    let refused = [&ordered[..], &jsonb, &other].concat();
    if tokens.iter().any(|token| token.is_one_of(&refused)) {
        return false;
    }
    let is_sum = |at: &usize| {
        let called = tokens.get(at + 1).is_some_and(|next| next.is("("));
        called && tokens[*at].is_one_of(&["sum", "avg", "total"])
    };
    let mut sums = (0..tokens.len()).filter(is_sum).peekable();
    // Another SELECT may give the name of such a column to anything.
    let is_one = tokens.iter().filter(|token| token.is_one_of(&["select", "values"])).count() == 1;
    let is_named = |table: &&&tables::Table| tokens.iter().any(|token| token.is(table.name));
    match tables::RAW.iter().find(is_named) {
        Some(table) if is_one => sums.all(|at| is_of_whole_numbers(table, &tokens[at + 2..])),
        _ => sums.peek().is_none(),
    }
}

/// Whether the argument of a function is a column of whole numbers.
fn is_of_whole_numbers(table: &tables::Table, argument: &[Token<'_>]) -> bool {
    let distinct = usize::from(argument.first().is_some_and(|first| first.is("distinct")));
    let argument = &argument[distinct..];
    let column = match argument {
        [_, dot, column, end, ..] if dot.is(".") && end.is(")") => column,
        [column, end, ..] if end.is(")") => column,
        _ => return false,
    };
    let is_whole = |known: &tables::Column| known.kind.as_str() == "INTEGER";
    column.kind == Kind::Word
        && table.columns.iter().any(|known| column.is(known.name) && is_whole(known))
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
pub(crate) fn listed<'t, 'sql>(tokens: &'t [Token<'sql>], ends: &[&str]) -> Vec<&'t [Token<'sql>]> {
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
pub(crate) fn meant<'t, 'sql>(
    term: &'t [Token<'sql>],
    items: &[&'t [Token<'sql>]],
) -> &'t [Token<'sql>] {
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
pub(crate) fn unnamed<'t, 'sql>(
    item: &'t [Token<'sql>],
) -> (&'t [Token<'sql>], Option<&'t Token<'sql>>) {
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
/// Any other piece with this word in it says no: whether it is the name is SQLite's to know.
pub(crate) fn grain(tokens: &[Token<'_>]) -> Option<i64> {
    let is_all = |at: &usize| {
        tokens[*at].is("*")
            && (*at == 0 || tokens[at - 1].is_one_of(&["select", "distinct", "all", ",", "."]))
    };
    // A natural join compares times without a word of them.
    if (0..tokens.len()).any(|at| is_all(&at) || tokens[at].is("natural")) {
        return None;
    }
    let is_function = |at: usize| {
        let called = tokens.get(at + 1).is_some_and(|next| next.is("("));
        called && tokens[at].kind == Kind::Word
    };
    let is_modifier = |at: usize| tokens[at].kind == Kind::Text && tokens[at].text == "localtime";
    let named = (0..tokens.len())
        .filter(|at| tokens[*at].text.contains("time") && !is_function(*at) && !is_modifier(*at));
    named.map(|at| grain_at(tokens, at)).try_fold(0, |all, one| Some(common(all, one?)))
}

fn grain_at(tokens: &[Token<'_>], at: usize) -> Option<i64> {
    let [name, sign, number, after @ ..] = &tokens[at..] else { return None };
    if !name.is("time") {
        return None;
    }
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
    use proptest::prelude::ProptestConfig;

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
            "select max(t.'time') from t",
            "select max(0Xe+time) from t",
            "select max(\u{feff}time) from t",
            "select max(\"TIME\"), [time] / 1000 from t",
            "select date(time/1000, 'unixepoch') from t natural join recent_task_events",
        ] {
            check(sql, None);
        }
    }

    #[test]
    fn what_sqlite_may_read_otherwise_is_not_plain() {
        let check = |sql: &str, expected: bool| {
            assert_eq!(is_plain(&tokens(sql)), expected, "{sql}");
        };
        check("select user, \"day\", count(*) / 1.5e3 from [task_events] -- \u{e9}", true);
        check("select user || '\u{e9}', ?, ?1 from task_events where day = 'x'", true);
        for sql in [
            "select t.'time' from task_events t",
            "select 0xe+time from task_events",
            "select 0Xe+time from task_events",
            "select \u{feff}time from task_events",
            "select\u{a0}time from task_events",
            "select \"\u{e9}\" from task_events",
            "select count(*) from task_events, 'task_events'",
            "select count(*) from 'Usage'",
            "select :a from task_events",
            "select $a('), max(time), (') from task_events",
            "select 1 from task_events \0",
        ] {
            check(sql, false);
        }
    }

    #[test]
    fn any_text_is_cut_into_pieces() {
        for sql in ["select '\u{e9}", "\"\u{e9}", "[\u{e9}", "'", "[", "?\u{e9}", "\u{e9}"] {
            assert!(!tokens(sql).is_empty(), "{sql}");
        }
        assert_eq!(tokens("'\u{e9}")[0].text, "\u{e9}");
        assert_eq!(tokens("?1time").len(), 2);
    }

    proptest::proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn pieces_are_found_in_order_whatever_the_text(
            sql in "([-'\"`\\[\\]/*?:$.0xXeE+\u{e9}\u{feff}\u{a0} \n\0a-c]|\\PC){0,40}"
        ) {
            let mut rest = &sql[..];
            for token in tokens(&sql) {
                let at = rest.find(token.source);
                proptest::prop_assert!(at.is_some(), "{:?} of {:?}", token, sql);
                rest = &rest[at.unwrap_or(0) + token.source.len()..];
            }
        }
    }

    #[test]
    fn sums_of_fractions_and_joined_texts_depend_on_order() {
        let check = |sql: &str, expected: bool| {
            assert_eq!(is_free_of_order(&tokens(sql)), expected, "{sql}");
        };
        check(
            "select sum(attempt), avg(t.exit_code), total(distinct time) from task_events t",
            true,
        );
        check("select count(*), min(user), max(day), count(distinct job) from t", true);
        check("select count(*) from (select attempt from task_events)", true);
        check("select sum(attempt * 0.1) from task_events", false);
        check("select avg(detail) from task_events", false);
        check("select sum(attempt) from (select 0.1 attempt from task_events)", false);
        check("with t(attempt) as (values (0.1)) select sum(attempt) from t, task_events", false);
        check("select 0.1 attempt from job_events group by 1 having sum(attempt)", false);
        check("select changes(), total_changes() from t", false);
        check("select last_insert_rowid() from t", false);
        check("select group_concat(user) from t", false);
        check("select count(*) over () from t", false);
    }
}
