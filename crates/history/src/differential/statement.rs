//! Random statements: one SELECT over one table, with random clauses.
//!
//! Integer and text expressions have a grammar each, so that nearly all statements compile, and
//! every answer is one that SQL defines. Left out is what SQL leaves open: a selected column that
//! the statement does not group by, texts that differ and compare equal, 1 beside 1.0.

use crate::tables::{Kind, Table};

/// Splitmix64: the seed is the whole state.
pub struct TestRng(pub u64);

impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

pub struct Statement {
    pub sql: String,
    /// It orders its rows by every column, so that their order is defined too.
    pub is_ordered: bool,
}

pub struct StatementGenerator<'d> {
    pub rng: &'d mut TestRng,
    pub table: &'static Table,
    alias: Option<&'static str>,
}

impl StatementGenerator<'_> {
    pub fn new<'d>(rng: &'d mut TestRng, table: &'static Table) -> StatementGenerator<'d> {
        let alias = if rng.one_in(3) { Some("t") } else { None };
        StatementGenerator { rng, table, alias }
    }

    pub fn statement(&mut self) -> Statement {
        let (core, width) = if self.rng.one_in(6) { self.distinct() } else { self.grouped() };
        let (mut sql, width) = match self.rng.below(12) {
            0 => (format!("select count(*), max(c1) from ({core}) q"), 2),
            1 => (format!("with q as ({core}) select * from q"), width),
            2 => (format!("select * from ({core}) where c1 is not null"), width),
            3 => {
                let nulls = vec!["1"; width].join(", ");
                let kind = self.rng.pick(&["union all", "union", "except", "intersect"]);
                (format!("{core} {kind} select {nulls}"), width)
            }
            _ => (core, width),
        };
        let is_ordered = self.rng.one_in(2);
        if is_ordered {
            let by: Vec<String> = (1..=width).map(|nth| self.order_term(nth)).collect();
            sql = format!("{sql} order by {}", by.join(", "));
            if self.rng.one_in(3) {
                sql = format!("{sql} limit {}", self.rng.below(8));
                if self.rng.one_in(2) {
                    sql = format!("{sql} offset {}", self.rng.below(4));
                }
            }
        }
        if self.rng.one_in(6) {
            sql = self.with_comments(&sql);
        }
        Statement { sql, is_ordered }
    }

    fn order_term(&mut self, nth: usize) -> String {
        let (direction, nulls) = (
            self.rng.pick(&["", " asc", " desc"]),
            self.rng.pick(&["", "", " nulls first", " nulls last"]),
        );
        format!("{nth}{direction}{nulls}")
    }

    /// No text of ours has a space in it, so every space may become a comment.
    fn with_comments(&mut self, sql: &str) -> String {
        let mut words = sql.split(' ');
        let mut text = words.next().unwrap_or("").to_owned();
        for word in words {
            let between = self.rng.pick(&[" ", " ", " ", "/* from */", " -- group by\n", "\t"]);
            text = text + between + word;
        }
        text
    }

    fn from(&mut self) -> String {
        let name = self.table.name;
        let name = match self.rng.below(8) {
            0 => format!("\"{name}\""),
            1 => format!("[{name}]"),
            2 => name.to_uppercase(),
            _ => name.to_owned(),
        };
        let from = match self.alias {
            Some(alias) => format!("from {name} as {alias}"),
            None => format!("from {name}"),
        };
        match self.rng.below(24) {
            0 => format!("{from} join (select 1 k union all select 2) j"),
            1 => format!("{from}, json_each('[1,2]') j"),
            2 => format!("{from} left join (select 'ann' k) j on user = k"),
            _ => from,
        }
    }

    fn filter(&mut self) -> String {
        match self.rng.below(3) {
            0 => format!(" where {}", self.condition()),
            _ => String::new(),
        }
    }

    fn condition(&mut self) -> String {
        let (a, b) = (self.value(1), self.value(1));
        match self.rng.below(8) {
            0 => format!("{a} is not null"),
            1 => format!("{a} in ({b}, 1, 'ann')"),
            2 => format!("not ({a} > {b})"),
            3 => format!("{a} between {b} and 5"),
            4 => format!("{a} like '%a%'"),
            5 => format!("day >= '2026-11-{:02}'", 1 + self.rng.below(12)),
            6 => format!("({a} < {b} or {b} is null)"),
            _ => {
                let sign = self.rng.pick(&["=", "<>", "<", ">=", "is"]);
                format!("{a} {sign} {b}")
            }
        }
    }

    fn distinct(&mut self) -> (String, usize) {
        let width = 1 + self.rng.below(3);
        let mut items: Vec<String> = (1..=width)
            .map(|nth| {
                let value = self.value(2);
                format!("{value} as c{nth}")
            })
            .collect();
        if self.rng.one_in(3) {
            let (first, from, filter) = (self.value(2), self.from(), self.filter());
            return (format!("select count(distinct {first}) c1 {from}{filter}"), 1);
        }
        let (from, filter) = (self.from(), self.filter());
        items.dedup();
        (format!("select distinct {} {from}{filter}", items.join(", ")), width)
    }

    fn grouped(&mut self) -> (String, usize) {
        let count = 1 + self.rng.below(2);
        let terms: Vec<String> = (0..count).map(|_| self.value(2)).collect();
        let mut items = terms.clone();
        for _ in 0..=self.rng.below(2) {
            items.push(self.aggregate());
        }
        let names: Vec<String> = (1..=items.len()).map(|nth| format!("c{nth}")).collect();
        let by: Vec<String> = (0..count)
            .map(|at| match self.rng.below(3) {
                0 => (at + 1).to_string(),
                1 => names[at].clone(),
                _ => terms[at].clone(),
            })
            .collect();
        let having = match self.rng.below(5) {
            0 => format!(" having count(*) > {}", self.rng.below(4)),
            1 => {
                let (column, sign) = (self.rng.pick(&names), self.rng.pick(&[">", "<", "is not"]));
                format!(" having {column} {sign} {}", self.literal())
            }
            _ => String::new(),
        };
        let selected: Vec<String> = items
            .iter()
            .zip(&names)
            .map(|(item, name)| format!("{item} {}{name}", self.rng.pick(&["as ", ""])))
            .collect();
        let (from, filter) = (self.from(), self.filter());
        let (selected, width, by) = (selected.join(", "), items.len(), by.join(", "));
        (format!("select {selected} {from}{filter} group by {by}{having}"), width)
    }

    fn aggregate(&mut self) -> String {
        let of = self.value(1);
        let whole = match self.rng.below(9) {
            0 | 1 => "count(*)".to_owned(),
            2 => format!("count({of})"),
            3 => format!("count(distinct {of})"),
            4 => format!("min({of})"),
            5 => format!("max({of})"),
            _ => {
                let name = self.rng.pick(&["sum", "avg", "total", "sum", "max"]);
                let distinct = self.rng.pick(&["", "", "distinct "]);
                format!("{name}({distinct}{})", self.column(Kind::Integer))
            }
        };
        match self.rng.below(10) {
            0 => format!("{whole} filter (where {})", self.condition()),
            1 => format!("round({whole}, 2)"),
            2 => format!("coalesce({whole}, -1)"),
            _ => whole,
        }
    }

    fn literal(&mut self) -> String {
        let literals = ["0", "1", "2", "-1", "'ann'", "'1'", "''", "1.5", "null", "'failed'"];
        self.rng.pick(&literals).to_owned()
    }

    fn value(&mut self, depth: usize) -> String {
        if self.rng.one_in(2) { self.integer(depth) } else { self.text(depth) }
    }

    fn column(&mut self, kind: Kind) -> String {
        let is = |known: Kind| known == kind && known != Kind::Time;
        let columns = self.table.columns.iter().filter(|column| is(column.kind));
        let names: Vec<&str> = columns.map(|column| column.name).collect();
        let name = self.rng.pick(&names);
        self.spell_column(name)
    }

    fn spell_column(&mut self, name: &str) -> String {
        match (self.rng.below(14), self.alias) {
            (0, _) => format!("\"{name}\""),
            (1, _) => format!("[{name}]"),
            (2, _) => name.to_uppercase(),
            (3, _) => format!("`{name}`"),
            (4..8, Some(alias)) => format!("{alias}.{name}"),
            _ => name.to_owned(),
        }
    }

    fn time(&mut self) -> String {
        let time = match self.alias {
            Some(alias) if self.rng.one_in(3) => format!("{alias}.time"),
            _ => self.rng.pick(&["time", "time", "time", "time", "TIME", "\"time\""]).to_owned(),
        };
        match self.rng.below(12) {
            0 => time,
            1 => format!("{time} % 1000"),
            2 => format!("({time} / 7)"),
            3 => format!("({time} / 1000 % 60)"),
            4 => format!("{time} / 60000"),
            5 => format!("({time} - 1) / 3600000"),
            6 => format!("-{time} / 86400000"),
            7 => format!("max({time} / 86400000, 3)"),
            8 => format!("{time}/1800000"),
            _ => format!("{time} / {}", self.rng.pick(&["3600000", "86400000", "43200000"])),
        }
    }

    fn integer(&mut self, depth: usize) -> String {
        if depth == 0 || self.rng.one_in(3) {
            return match self.rng.below(10) {
                0 => self.rng.pick(&["0", "1", "2", "-1", "3"]).to_owned(),
                1 | 2 => self.time(),
                _ => self.column(Kind::Integer),
            };
        }
        let (a, b) = (self.integer(depth - 1), self.integer(depth - 1));
        match self.rng.below(14) {
            0 => format!("({a} + {b})"),
            1 => format!("({a} - {b})"),
            2 => format!("({a} * 3)"),
            3 => format!("({a} / 2)"),
            4 => format!("({a} % 3)"),
            5 => format!("({a} & {b})"),
            6 => format!("length({})", self.text(depth - 1)),
            7 => format!("cast({} as integer)", self.text(depth - 1)),
            8 => format!("({a} is null)"),
            9 => format!("({a} > {b})"),
            10 => format!("coalesce({a}, {b})"),
            11 => format!("case when {} then {a} else {b} end", self.condition()),
            12 => format!("instr({}, 'a')", self.text(depth - 1)),
            _ => format!("iif({a} > 1, {a}, {b})"),
        }
    }

    fn text(&mut self, depth: usize) -> String {
        if depth == 0 || self.rng.one_in(3) {
            return match self.rng.below(12) {
                0 => self.rng.pick(&["'x'", "'ann'", "'1'", "''"]).to_owned(),
                _ => self.column(Kind::Text),
            };
        }
        let (a, b) = (self.text(depth - 1), self.text(depth - 1));
        match self.rng.below(14) {
            0 | 1 => format!("({a} || {b})"),
            2 => format!("substr({a}, {}, 3)", 1 + self.rng.below(8)),
            3 => format!("upper({a})"),
            4 => format!("coalesce({a}, {b})"),
            5 => format!("cast({} as text)", self.integer(depth - 1)),
            6 => format!("date({}, 'unixepoch')", self.date_function()),
            7 | 8 => {
                let format = self.rng.pick(&["%H", "%Y-%m", "%d", "%M", "%W", "%s", "%%%j"]);
                format!("strftime('{format}', {}, 'unixepoch')", self.date_function())
            }
            9 => format!("typeof({})", self.integer(depth - 1)),
            10 => format!("nullif({a}, {b})"),
            11 => format!("replace({a}, 'a', 'b')"),
            12 => format!("case {a} when {b} then 'same' else {b} end"),
            _ => format!("quote({})", self.integer(depth - 1)),
        }
    }

    fn date_function(&mut self) -> String {
        let forms = ["time / 1000", "time / 1000", "time/1000", "time / 1000.0", "time / 2000"];
        self.rng.pick(&forms).to_owned()
    }
}
