//! Counting instead of sorting, for queries that group whole tables.
//!
//! SQLite groups by sorting: ten million rows take it half a minute. Here the combinations of the
//! columns that a query names are counted first (`crate::counted`). Then the query is asked of a
//! small table that has each combination, joined with one that repeats it as often as it occurs:
//! the same rows, but for the order within a group, which SQL leaves open. An index over what the
//! query groups by, expressions too, gives SQLite its rows in order, so that nothing is sorted.
//!
//! Whether a query is one of these is not read from its text. It is prepared against tables that
//! only listen, and SQLite tells them what it wants ([`Asked`]). The query itself is never
//! rewritten: what it means is SQLite's to say. Rejected: sums of sums, made from the text.

use crate::archive::archives;
use crate::bare::may_show_any_row;
use crate::counted::{Asked, Key, Source, Task, Wish, count, plan};
use crate::grouping::{grain, groupings, is_free_of_order, is_plain, tables_named, tokens};
use crate::parquet_table::{Behind, offer};
use crate::query::{Answer, Bounds, Reader, Value, fetch, guard, offer_rest, refusal};
use crate::store::since;
use crate::tables::{RAW, Table, USAGE};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, Statement, params_from_iter};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Counting may take this share of a query's time; what gives up late has the rest for sorting.
const SHARE: u32 = 3;
/// Most repetitions of one row of the small table: what occurs more often has several. A table
/// of so many numbers is made for every query.
const REPEATS: u64 = 4096;
/// Most indices that are tried.
const INDICES: usize = 4;

/// Lets everything through again: between two statements of others stand our own.
const UNGUARDED: Option<fn(AuthContext<'_>) -> Authorization> = None;

impl Reader {
    /// The answer to a query that groups a whole table; nothing where it is not one, or anything
    /// is wrong with it: the ordinary way says what.
    pub(crate) fn by_counting(
        &self,
        start: Instant,
        sql: &str,
        args: &[Value],
        bounds: Bounds,
    ) -> Option<Answer> {
        let words = tokens(sql);
        let may_group = words.iter().any(|word| word.text == "group" || word.text == "distinct");
        if !may_group || !is_plain(&words) {
            return None;
        }
        if tables_named(&words) != 1 || !is_free_of_order(&words) || may_show_any_row(&words) {
            return None;
        }
        if !self.sorts(start, sql, bounds.time)? {
            return None;
        }
        let mut db = self.open(start, bounds.time).ok()?;
        let sources = self.offer_ears(&db).ok()?;
        let reaches_back_to = since(&db, "events").ok()?;
        guard(&mut db).ok()?;
        if !is_whole(&db.prepare(sql).ok()?, args) {
            return None;
        }
        let (source, wish) = wished(&sources)?;
        let columns = (0..source.table.columns.len()).filter(|at| wish.columns >> at & 1 == 1);
        let task = Task { source, columns: columns.collect(), grain: grain(&words).unwrap_or(0) };
        let is_over = || self.is_over(start, bounds.time / SHARE);
        let found = count(&db, &task, &is_over)?;
        db.authorizer(UNGUARDED).ok()?;
        offer_found(&db, &task, &found).ok()?;
        db.authorizer(Some(only_indices)).ok()?;
        offer_indices(&db, &task, &wish, groupings(&words));
        guard(&mut db).ok()?;
        if plan(&db, sql)?.iter().any(|step| step.contains("TEMP B-TREE FOR GROUP BY")) {
            return None;
        }
        let mut statement = db.prepare(sql).ok()?;
        let columns = statement.column_names().map(str::to_owned).collect();
        let (rows, truncated) = fetch(&mut statement, args, bounds).ok()?;
        Some(Answer { columns, rows, truncated, reaches_back_to })
    }

    /// Whether SQLite would sort all rows of a table for this, where no index leads it to a few.
    fn sorts(&self, start: Instant, sql: &str, time: Duration) -> Option<bool> {
        let mut db = self.open(start, time).ok()?;
        self.offer_rows(&db, &[]).ok()?;
        guard(&mut db).ok()?;
        let steps = plan(&db, sql)?;
        let any = |is: &dyn Fn(&str) -> bool| steps.iter().any(|step| is(step));
        let groups = any(&|step| step.contains("TEMP B-TREE FOR GROUP BY"))
            || any(&|step| step.contains("DISTINCT"));
        let is_archived = any(&|step| step.contains("archived_"));
        let is_led = any(&|step| step.starts_with("SEARCH") && step.contains("recent_"));
        Some(groups && (is_archived || !is_led))
    }

    /// The raw tables of events, without rows. Usage is no part of it: sums of what was used name
    /// columns in which no two rows agree.
    fn offer_ears(&self, db: &Connection) -> rusqlite::Result<Vec<Source>> {
        let mut sources = Vec::new();
        for table in RAW.into_iter().filter(|table| table.name != USAGE.name) {
            let archives = Arc::new(archives(db, &self.dir, table)?);
            let asked = Arc::new(Asked::default());
            let behind = Behind { table, archives: archives.clone(), asked: Some(asked.clone()) };
            offer(db, behind)?;
            let (name, columns) = (table.name, table.names());
            let sql = format!("CREATE TEMP VIEW {name} AS SELECT {columns} FROM asked_{name}");
            db.execute_batch(&sql)?;
            sources.push(Source { table, archives, asked });
        }
        offer_rest(db)?;
        Ok(sources)
    }
}

fn is_whole(statement: &Statement<'_>, args: &[Value]) -> bool {
    statement.readonly() && statement.parameter_count() == args.len()
}

/// The one table of which something is wanted, if that can be counted.
fn wished(sources: &[Source]) -> Option<(&Source, Wish)> {
    let wishes = sources.iter().map(|source| (source, source.asked.wish()));
    let mut asked = wishes.filter(|(_, wish)| wish.is_asked);
    let (source, wish) = asked.next()?;
    let can_be = !wish.is_bounded && wish.columns != 0 && wish.columns >> 63 == 0;
    (can_be && asked.next().is_none()).then_some((source, wish))
}

/// Where the combinations of a table are.
fn combinations(table: &Table) -> String {
    format!("combinations_of_{}", table.name)
}

/// Puts the rows of the table where nothing but ears was.
fn offer_found(
    db: &Connection,
    task: &Task<'_>,
    found: &[(Vec<Key>, u64)],
) -> rusqlite::Result<()> {
    let (name, place) = (task.source.table.name, combinations(task.source.table));
    // A `kind` is made by a CASE in the ordinary way, and so without a type to compare by.
    let definition = |column: &crate::tables::Column, is_read: bool| {
        let kind = if column.name == "kind" { "" } else { column.kind.as_str() };
        let rule = if column.required && is_read { "NOT NULL" } else { "" };
        format!("{} {kind} {rule}", column.name)
    };
    let columns = task.source.table.columns.iter().enumerate();
    let columns: Vec<String> =
        columns.map(|(at, column)| definition(column, task.columns.contains(&at))).collect();
    let (columns, shown) = (columns.join(", "), task.source.table.names());
    db.execute_batch(&format!(
        "CREATE TEMP TABLE {place} ({columns}, times INTEGER NOT NULL);
         CREATE TEMP TABLE repeats (nth INTEGER PRIMARY KEY);
         WITH RECURSIVE upto(nth) AS (SELECT 1 UNION ALL SELECT nth + 1 FROM upto LIMIT {REPEATS})
         INSERT INTO repeats SELECT nth FROM upto;
         DROP VIEW temp.{name};
         CREATE TEMP VIEW {name} AS
         SELECT {shown} FROM temp.{place} CROSS JOIN temp.repeats ON nth <= times"
    ))?;
    let names = task.columns.iter().map(|at| task.source.table.columns[*at].name);
    let names: Vec<&str> = names.chain(["times"]).collect();
    let marks = vec!["?"; names.len()].join(", ");
    let sql = format!("INSERT INTO temp.{place} ({}) VALUES ({marks})", names.join(", "));
    let mut insert = db.prepare(&sql)?;
    for (keys, times) in found {
        let mut left = *times;
        while left > 0 {
            let part = left.min(REPEATS);
            let times = Key::Number(i64::try_from(part).unwrap_or(i64::MAX));
            insert.execute(params_from_iter(keys.iter().chain([&times]).map(Key::value)))?;
            left -= part;
        }
    }
    Ok(())
}

/// Indices over what the statement may group by, with all that it reads. One that cannot be made
/// is left out: the plan shows whether what there is will do.
fn offer_indices(db: &Connection, task: &Task<'_>, wish: &Wish, groupings: Vec<Vec<String>>) {
    let name = |at: &usize| task.source.table.columns.get(*at).map(|column| column.name.to_owned());
    let orders = wish.orders.iter().map(|order| order.iter().filter_map(name).collect());
    let rest: Vec<String> =
        task.columns.iter().filter_map(name).chain(["times".to_owned()]).collect();
    let place = combinations(task.source.table);
    for (nth, terms) in orders.chain(groupings).take(INDICES).enumerate() {
        let terms: Vec<String> = terms;
        let terms = [&terms[..], &rest].concat().join(", ");
        // What went wrong with an index is of no use to anybody.
        let sql = format!("CREATE INDEX temp.order_{nth} ON {place} ({terms})");
        drop(db.prepare(&sql).and_then(|mut create| create.execute([])));
    }
}

/// What stands in an index is from the statement of somebody who is not trusted.
fn only_indices(context: AuthContext<'_>) -> Authorization {
    match &context.action {
        AuthAction::CreateTempIndex { .. } | AuthAction::Reindex { .. } => Authorization::Allow,
        AuthAction::Insert { table_name: "sqlite_temp_master" } => Authorization::Allow,
        action if refusal(action).is_none() => Authorization::Allow,
        _ => Authorization::Deny,
    }
}

#[cfg(test)]
mod tests;
