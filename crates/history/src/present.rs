//! What a query sees besides what is on disk: usage that is not written yet, and the jobs, tasks
//! and machines of the cell at the moment of the query.
//!
//! The rows go into tables that live as long as the query's connection. A table is filled only for
//! a query that names it; whoever asks decides that, as he has the state. Rejected: keeping such
//! tables on disk. Every change of a task would be written once more, for queries that most cells
//! ask a few times a day.

use crate::query::{Value, to_sql_value};
use crate::tables::{HISTORY_COLUMNS, Table, all_tables};
use crate::usage::UsageRow;
use rusqlite::{Connection, params_from_iter};

/// Gives all rows to whoever takes them, in the order of the table's columns.
pub type FillTable = Box<dyn FnOnce(&mut dyn FnMut(Vec<Value>)) + Send>;

/// A table of what is now.
pub struct PresentTable {
    pub table: &'static Table,
    pub fill: FillTable,
}

/// All of it, for one query.
#[derive(Default)]
pub struct Present {
    pub usage: Vec<UsageRow>,
    pub tables: Vec<PresentTable>,
}

/// The table that describes all tables.
fn description() -> PresentTable {
    let text = |text: &str| Value::Text(text.to_owned());
    let fill: FillTable = Box::new(move |take| {
        for table in all_tables() {
            for (position, column) in (1..).zip(table.columns) {
                take(vec![
                    text(table.name),
                    text(table.description),
                    Value::Integer(position),
                    text(column.name),
                    text(column.kind.as_str()),
                    Value::Integer(i64::from(!column.required)),
                    text(column.description),
                ]);
            }
        }
    });
    PresentTable { table: &HISTORY_COLUMNS, fill }
}

/// Whether a query names a table, that is, has its name as a word. `usage_daily` is another table
/// than `usage`.
#[must_use]
pub fn mentions_table(sql: &str, table: &str) -> bool {
    let of_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    sql.split(|c| !of_name(c)).any(|word| word.eq_ignore_ascii_case(table))
}

impl Present {
    /// Usage alone.
    #[must_use]
    pub fn of_usage(usage: Vec<UsageRow>) -> Present {
        Present { usage, tables: Vec::new() }
    }

    pub(crate) fn create_tables(self, db: &Connection, sql: &str) -> rusqlite::Result<()> {
        let described = mentions_table(sql, HISTORY_COLUMNS.name).then(description);
        for PresentTable { table, fill } in self.tables.into_iter().chain(described) {
            let (name, columns) = (table.name, table.column_definitions());
            db.execute_batch(&format!("CREATE TEMP TABLE {name} ({columns})"))?;
            let mut insert = db.prepare(&table.insert_present_sql())?;
            let mut done = Ok(0);
            fill(&mut |row| {
                if done.is_ok() {
                    done = insert.execute(params_from_iter(row.iter().map(to_sql_value)));
                }
            });
            done?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{HistoryReader, QueryLimits};
    use crate::tables::JOBS_NOW;
    use crate::testing::Folder;

    #[test]
    fn a_query_sees_what_it_is_given_and_the_tables_that_there_are() {
        let folder = Folder::new();
        drop(crate::store::History::open(folder.path(), crate::testing::settings()).unwrap());
        let ask = |present: Present, sql: &str| {
            let reader = HistoryReader::new(folder.path());
            let answer = reader.query_with(present, sql, &[], QueryLimits::default());
            answer.map(|answer| answer.rows).map_err(|error| error.to_string())
        };
        let fill: FillTable = Box::new(|take| {
            let row = JOBS_NOW.columns.iter().map(|column| match column.kind.as_str() {
                "TEXT" => Value::Text(column.name.to_owned()),
                _ => Value::Integer(7),
            });
            take(row.collect());
        });
        let table = PresentTable { table: &JOBS_NOW, fill };
        let present = Present { usage: Vec::new(), tables: vec![table] };
        let row = vec![Value::Integer(7), Value::Text("user".into())];
        assert_eq!(ask(present, "select log_index, user from jobs_now"), Ok(vec![row]));
        let error = ask(Present::default(), "select * from jobs_now").unwrap_err();
        assert_eq!(error, "jobs_now is what is now, and only a running master has it");
        let all = "select count(distinct table_name) from history_columns";
        let count = i64::try_from(all_tables().len()).unwrap();
        assert_eq!(ask(Present::default(), all), Ok(vec![vec![Value::Integer(count)]]));
    }

    #[test]
    fn only_a_query_that_names_a_table_is_about_it() {
        for sql in [
            "select * from usage",
            "SELECT 1 FROM Usage;",
            "select * from \"usage\" join usage_daily using (day)",
            "select u.time from(select * from usage)u",
        ] {
            assert!(mentions_table(sql, "usage"), "{sql}");
        }
        for sql in [
            "select * from usage_daily",
            "select cpu_usage, my_usage from events",
            "select usages from events",
            "select 1",
        ] {
            assert!(!mentions_table(sql, "usage"), "{sql}");
        }
    }
}
