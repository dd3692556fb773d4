//! The table definitions, each described once. SQLite's schema, the schema of the Parquet files,
//! the tables that queries see and the output of `cell sql --tables` are all made from them, so
//! they cannot differ.
//!
//! Rows carry names, not row numbers: a number means nothing once the row is gone. `day` is stored
//! beside `time` because whole days are what people group by and what archives are cut by.
//! Rejected: a dictionary of names with numbers in the rows. It halves the space and makes every
//! Parquet file unreadable without it.

/// The type of a column. Any value may be absent except where `required` says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Integer,
    /// Milliseconds since the Unix epoch, UTC.
    Time,
    Text,
}

impl Kind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Integer | Kind::Time => "INTEGER",
            Kind::Text => "TEXT",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
    pub description: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    pub name: &'static str,
    pub description: &'static str,
    pub columns: &'static [Column],
    /// Columns that are searched together: each list is an index of the recent part.
    pub indices: &'static [&'static [&'static str]],
    /// The unique key of a row, time first; a row that comes again is skipped. Empty where rows
    /// cannot come again.
    pub unique: &'static [&'static str],
}

const fn required_column(name: &'static str, kind: Kind, about: &'static str) -> Column {
    Column { name, kind, required: true, description: about }
}

const fn optional_column(name: &'static str, kind: Kind, about: &'static str) -> Column {
    Column { name, kind, required: false, description: about }
}

const TIME: Column = required_column("time", Kind::Time, "When, in milliseconds since 1970 UTC.");
const DAY: Column = required_column("day", Kind::Text, "The day of `time`, UTC, as 2026-11-15.");
const LOG_INDEX: Column =
    required_column("log_index", Kind::Integer, "Entry of the log that did it.");
const POSITION: Column =
    required_column("position", Kind::Integer, "Place among the events of the entry.");
const USER: Column = required_column("user", Kind::Text, "Owner of the job.");
const JOB: Column = required_column("job", Kind::Text, "Name of the job.");
const EVENT: Column = required_column("event", Kind::Text, "What happened, as one word.");
const REASON: Column = required_column("reason", Kind::Text, "Code of the reason.");
const DETAIL: Column =
    optional_column("detail", Kind::Text, "What the words do not say: a version, a count.");
const ACTOR: Column =
    required_column("actor", Kind::Text, "Who acted: user:ann, agent:n1, controller:drain.");
const TASK_INDEX: Column = required_column("task_index", Kind::Integer, "Which task of the job.");
const ATTEMPT: Column = required_column("attempt", Kind::Integer, "Which run of the task, from 1.");
const BAND: Column = required_column("band", Kind::Text, "Priority band of the job.");

pub const TASK_EVENTS: Table = Table {
    name: "task_events",
    description: "Every change of a task.",
    columns: &[
        TIME,
        DAY,
        LOG_INDEX,
        POSITION,
        USER,
        JOB,
        TASK_INDEX,
        ATTEMPT,
        EVENT,
        optional_column("machine", Kind::Text, "Machine it happened on."),
        REASON,
        optional_column(
            "exit_class",
            Kind::Text,
            "How the run ended: code, signal, out-of-memory ...",
        ),
        optional_column("exit_code", Kind::Integer, "Exit code or number of the signal."),
        DETAIL,
        ACTOR,
    ],
    indices: &[&["day", "user", "event"], &["user", "job"]],
    unique: &[],
};

pub const JOB_EVENTS: Table = Table {
    name: "job_events",
    description: "Every change of a job, refused submissions included.",
    columns: &[TIME, DAY, LOG_INDEX, POSITION, USER, JOB, EVENT, REASON, DETAIL, ACTOR],
    indices: &[&["user", "job"]],
    unique: &[],
};

pub const MACHINE_EVENTS: Table = Table {
    name: "machine_events",
    description: "Every change of a machine.",
    columns: &[
        TIME,
        DAY,
        LOG_INDEX,
        POSITION,
        required_column("machine", Kind::Text, "Name of the machine."),
        EVENT,
        REASON,
        DETAIL,
        ACTOR,
    ],
    indices: &[&["machine"]],
    unique: &[],
};

pub const OTHER_EVENTS: Table = Table {
    name: "other_events",
    description: "Changes of users, resources, periodic jobs, tokens, packages and the cell \
                  itself.",
    columns: &[
        TIME,
        DAY,
        LOG_INDEX,
        POSITION,
        required_column(
            "kind",
            Kind::Text,
            "user, resource, cron, scaling, token, package or cell.",
        ),
        required_column("object", Kind::Text, "Name of what it happened to."),
        EVENT,
        optional_column("machine", Kind::Text, "Machine a resource is on."),
        REASON,
        DETAIL,
        ACTOR,
    ],
    indices: &[],
    unique: &[],
};

pub const USAGE: Table = Table {
    name: "usage",
    description: "What each task used, in windows of at most five minutes.",
    columns: &[
        TIME,
        DAY,
        required_column("millis", Kind::Integer, "Length of the window that was measured."),
        USER,
        JOB,
        TASK_INDEX,
        ATTEMPT,
        required_column("machine", Kind::Text, "Machine it ran on."),
        BAND,
        required_column("samples", Kind::Integer, "Measurements in the window."),
        required_column("cpu_avg", Kind::Integer, "Milli-cores used on average."),
        required_column("cpu_max", Kind::Integer, "Milli-cores used at most in one measurement."),
        required_column("ram_avg", Kind::Integer, "Bytes of memory on average."),
        required_column("ram_max", Kind::Integer, "Bytes of memory at most."),
        required_column("disk_max", Kind::Integer, "Bytes of disk at most."),
        required_column(
            "disk_rate_avg",
            Kind::Integer,
            "Bytes a second of disk access on average.",
        ),
        required_column(
            "cpu_reserved",
            Kind::Integer,
            "Milli-cores reserved at the end of the window.",
        ),
        required_column(
            "ram_reserved",
            Kind::Integer,
            "Bytes of memory reserved at the end of the window.",
        ),
        required_column("cpu_limit", Kind::Integer, "Milli-cores the job asked for."),
        required_column("ram_limit", Kind::Integer, "Bytes of memory the job asked for."),
    ],
    indices: &[&["user", "job"], &["day"]],
    unique: &["time", "user", "job", "task_index", "attempt", "machine"],
};

/// Tables that grow, and whose old days become Parquet files.
pub const RAW: [&Table; 5] = [&TASK_EVENTS, &JOB_EVENTS, &MACHINE_EVENTS, &OTHER_EVENTS, &USAGE];

pub const TASK_EVENTS_DAILY: Table = Table {
    name: "task_events_daily",
    description: "How many events of each kind the tasks of a user had on a day.",
    columns: &[DAY, USER, EVENT, required_column("count", Kind::Integer, "How many.")],
    indices: &[],
    unique: &[],
};

pub const USAGE_DAILY: Table = Table {
    name: "usage_daily",
    description: "What a user's tasks used, reserved and asked for on a day, per band.",
    columns: &[
        DAY,
        USER,
        BAND,
        required_column("task_seconds", Kind::Integer, "Time measured, over all tasks."),
        required_column("cpu_used", Kind::Integer, "Milli-core seconds used."),
        required_column("cpu_reserved", Kind::Integer, "Milli-core seconds reserved."),
        required_column("cpu_limit", Kind::Integer, "Milli-core seconds asked for."),
        required_column("ram_used", Kind::Integer, "MiB seconds of memory used."),
        required_column("ram_reserved", Kind::Integer, "MiB seconds of memory reserved."),
        required_column("ram_limit", Kind::Integer, "MiB seconds of memory asked for."),
    ],
    indices: &[],
    unique: &[],
};

/// Sums that are kept while rows are written, and how many of their first columns are the key.
pub const ROLLUPS: [(&Table, usize); 2] = [(&TASK_EVENTS_DAILY, 3), (&USAGE_DAILY, 3)];

pub const EVENTS: Table = Table {
    name: "events",
    description: "All events in one shape; in order: `order by time, log_index, position`.",
    columns: &[
        TIME,
        DAY,
        LOG_INDEX,
        POSITION,
        required_column(
            "kind",
            Kind::Text,
            "task, job, machine, user, resource, cron, scaling, token, package or cell.",
        ),
        required_column("object", Kind::Text, "user/job/index, user/job, or a name."),
        optional_column("user", Kind::Text, "Owner of the job, for tasks and jobs."),
        optional_column("job", Kind::Text, "Name of the job, for tasks and jobs."),
        EVENT,
        optional_column("machine", Kind::Text, "Machine it happened on or to."),
        REASON,
        optional_column("exit_class", Kind::Text, "How the run ended."),
        optional_column("exit_code", Kind::Integer, "Exit code or number of the signal."),
        DETAIL,
        ACTOR,
    ],
    indices: &[],
    unique: &[],
};

/// Every table that a query can name.
#[must_use]
pub fn all_tables() -> [&'static Table; 8] {
    let [tasks, jobs, machines, others, usage] = RAW;
    [&EVENTS, tasks, jobs, machines, others, usage, ROLLUPS[0].0, ROLLUPS[1].0]
}

/// The table with the recent part in SQLite; queries name the table itself.
#[must_use]
pub fn recent_table(table: &Table) -> String {
    format!("recent_{}", table.name)
}

impl Table {
    /// `a, b, c`.
    #[must_use]
    pub fn column_list(&self) -> String {
        self.columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
    }

    /// `a INTEGER NOT NULL, b TEXT`.
    #[must_use]
    pub fn column_definitions(&self) -> String {
        let column_sql = |column: &Column| {
            let rule = if column.required { " NOT NULL" } else { "" };
            format!("{} {}{rule}", column.name, column.kind.as_str())
        };
        self.columns.iter().map(column_sql).collect::<Vec<_>>().join(", ")
    }

    /// Statements that create its recent part.
    #[must_use]
    pub fn create_sql(&self) -> String {
        let name = recent_table(self);
        let mut sql =
            format!("CREATE TABLE IF NOT EXISTS {name} ({});\n", self.column_definitions());
        for (at, columns) in self.indices.iter().enumerate() {
            let columns = columns.join(", ");
            let index = format!("CREATE INDEX IF NOT EXISTS {name}_{at} ON {name} ({columns});\n");
            sql.push_str(&index);
        }
        let (kind, columns) = match self.unique {
            [] => ("INDEX", "time, log_index, position".to_owned()),
            unique => ("UNIQUE INDEX", unique.join(", ")),
        };
        sql.push_str(&format!("CREATE {kind} IF NOT EXISTS {name}_time ON {name} ({columns});\n"));
        sql
    }

    #[must_use]
    pub fn insert_sql(&self) -> String {
        let placeholders = vec!["?"; self.columns.len()].join(", ");
        format!(
            "INSERT OR IGNORE INTO {} ({}) VALUES ({placeholders})",
            recent_table(self),
            self.column_list()
        )
    }

    #[must_use]
    pub fn column_position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known.name == column)
    }
}

/// The definition of `events` from the other tables.
#[must_use]
pub fn events_select() -> String {
    let common = "time, day, log_index, position";
    let task = "'task', user || '/' || job || '/' || task_index, user, job, event, machine";
    let job = "'job', user || '/' || job, user, job, event, NULL";
    let machine = "'machine', machine, NULL, NULL, event, machine";
    let other = "kind, object, NULL, NULL, event, machine";
    let rest = "reason, NULL, NULL, detail, actor";
    format!(
        "SELECT {common}, {task}, reason, exit_class, exit_code, detail, actor FROM task_events
         UNION ALL SELECT {common}, {job}, {rest} FROM job_events
         UNION ALL SELECT {common}, {machine}, {rest} FROM machine_events
         UNION ALL SELECT {common}, {other}, {rest} FROM other_events"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct_and_rows_have_a_time_and_a_day_first() {
        let tables: BTreeSet<&str> = all_tables().iter().map(|table| table.name).collect();
        assert_eq!(tables.len(), all_tables().len());
        for table in all_tables() {
            let names: BTreeSet<&str> = table.columns.iter().map(|column| column.name).collect();
            assert_eq!(names.len(), table.columns.len(), "{}", table.name);
            assert!(table.columns.iter().all(|column| column.description.ends_with('.')));
        }
        for table in RAW {
            assert_eq!(
                (table.column_position("time"), table.column_position("day")),
                (Some(0), Some(1))
            );
            assert!(table.columns.len() <= 31, "{}: a mask of columns has 31 bits", table.name);
        }
    }
}
