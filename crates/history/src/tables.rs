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
const LABELS: Column = optional_column(
    "labels",
    Kind::Text,
    "Labels of the job as JSON: json_extract(labels, '$.team').",
);
const LABELS_OF_MACHINE: Column =
    optional_column("labels", Kind::Text, "Labels of the machine as JSON.");
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
    description: "What each task used, from its beginning to its end; cut every five minutes while \
                  its machine is heard.",
    columns: &[
        TIME,
        DAY,
        required_column("millis", Kind::Integer, "Length of the time that was measured."),
        USER,
        JOB,
        TASK_INDEX,
        ATTEMPT,
        required_column("machine", Kind::Text, "Machine it ran on."),
        BAND,
        required_column("samples", Kind::Integer, "Readings of memory and disk in it."),
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
        required_column("cpu_reserved", Kind::Integer, "Milli-cores reserved on average."),
        required_column("ram_reserved", Kind::Integer, "Bytes of memory reserved on average."),
        required_column("cpu_limit", Kind::Integer, "Milli-cores the job asked for."),
        required_column("ram_limit", Kind::Integer, "Bytes of memory the job asked for."),
        optional_column(
            "cpu_micros",
            Kind::Integer,
            "CPU time in microseconds by the kernel; absent in days before it was kept.",
        ),
        LABELS,
    ],
    indices: &[&["user", "job"], &["day"]],
    unique: &["time", "user", "job", "task_index", "attempt", "machine"],
};

pub const SUBMISSIONS: Table = Table {
    name: "submissions",
    description: "Every version of every job, as it was submitted, updated or resized.",
    columns: &[
        TIME,
        DAY,
        LOG_INDEX,
        POSITION,
        USER,
        JOB,
        required_column("version", Kind::Integer, "Version of the job, from 1."),
        required_column("event", Kind::Text, "submitted, update-opened, update-undone or resized."),
        required_column("kind", Kind::Text, "tasks, or allocs for an alloc set."),
        required_column("tasks", Kind::Integer, "How many tasks it asks for."),
        required_column("priority", Kind::Integer, "Its priority."),
        BAND,
        required_column("cpu_limit", Kind::Integer, "Milli-cores that each task asks for."),
        required_column("ram_limit", Kind::Integer, "Bytes of memory that each task asks for."),
        required_column("disk_limit", Kind::Integer, "Bytes of disk that each task asks for."),
        LABELS,
        required_column("spec", Kind::Text, "The whole job as JSON, without its secrets."),
        ACTOR,
    ],
    indices: &[&["user", "job"]],
    unique: &[],
};

/// Tables that grow, and whose old days become Parquet files.
pub const RAW: [&Table; 6] =
    [&TASK_EVENTS, &JOB_EVENTS, &MACHINE_EVENTS, &OTHER_EVENTS, &USAGE, &SUBMISSIONS];

pub const TASK_EVENTS_DAILY: Table = Table {
    name: "task_events_daily",
    description: "How many events of each kind the tasks of a user had on a day.",
    columns: &[DAY, USER, EVENT, required_column("count", Kind::Integer, "How many.")],
    indices: &[],
    unique: &[],
};

pub const USAGE_DAILY: Table = Table {
    name: "usage_daily",
    description: "What a user's tasks used, reserved and asked for on a day, per band and labels.",
    columns: &[
        DAY,
        USER,
        BAND,
        required_column(
            "labels",
            Kind::Text,
            "Labels of the jobs as JSON: json_extract(labels, '$.team').",
        ),
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

pub const USAGE_LEVELS_DAILY: Table = Table {
    name: "usage_levels_daily",
    description: "How long a user's tasks used about how much on a day: what percentiles need.",
    columns: &[
        DAY,
        USER,
        BAND,
        required_column("resource", Kind::Text, "cpu in milli-cores, or ram in bytes."),
        required_column(
            "level",
            Kind::Integer,
            "What one task used on average, rounded up by a sixteenth at most.",
        ),
        required_column("task_seconds", Kind::Integer, "How long, over all tasks."),
    ],
    indices: &[],
    unique: &[],
};

/// Sums that are kept while rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollup {
    pub table: &'static Table,
    /// How many of the first columns are the key; the others are sums.
    pub keys: usize,
    /// Sums are kept in parts of the unit that queries see, so that many small ones add up.
    pub parts: i64,
}

pub const ROLLUPS: [Rollup; 3] = [
    Rollup { table: &TASK_EVENTS_DAILY, keys: 3, parts: 1 },
    Rollup { table: &USAGE_DAILY, keys: 4, parts: 1000 },
    Rollup { table: &USAGE_LEVELS_DAILY, keys: 5, parts: 1000 },
];

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

const AT: Column =
    required_column("log_index", Kind::Integer, "Entry of the log after which it was so.");

pub const JOBS_NOW: Table = Table {
    name: "jobs_now",
    description: "The jobs that the cell knows at the moment of the query.",
    columns: &[
        AT,
        USER,
        JOB,
        required_column("state", Kind::Text, "deferred, active, stopping, succeeded, failed ..."),
        required_column("kind", Kind::Text, "tasks, or allocs for an alloc set."),
        required_column("version", Kind::Integer, "Version that new placements use."),
        required_column("tasks", Kind::Integer, "How many tasks it asks for."),
        required_column("pending", Kind::Integer, "How many of them wait for a machine."),
        required_column("running", Kind::Integer, "How many of them run."),
        required_column("priority", Kind::Integer, "Its priority."),
        BAND,
        required_column("cpu_limit", Kind::Integer, "Milli-cores that each task asks for."),
        required_column("ram_limit", Kind::Integer, "Bytes of memory that each task asks for."),
        required_column("disk_limit", Kind::Integer, "Bytes of disk that each task asks for."),
        LABELS,
        required_column("submitted_at", Kind::Time, "When it was first submitted."),
        optional_column("ended_at", Kind::Time, "When it ended."),
    ],
    indices: &[],
    unique: &[],
};

pub const TASKS_NOW: Table = Table {
    name: "tasks_now",
    description: "The tasks that the cell knows at the moment of the query.",
    columns: &[
        AT,
        USER,
        JOB,
        TASK_INDEX,
        ATTEMPT,
        required_column("state", Kind::Text, "pending, assigned, running, stopping, finished ..."),
        optional_column("machine", Kind::Text, "Machine it is on."),
        required_column("priority", Kind::Integer, "Priority of its job."),
        BAND,
        required_column("cpu_limit", Kind::Integer, "Milli-cores it asks for."),
        required_column("ram_limit", Kind::Integer, "Bytes of memory it asks for."),
        required_column("cpu_reserved", Kind::Integer, "Milli-cores reserved for it."),
        required_column("ram_reserved", Kind::Integer, "Bytes of memory reserved for it."),
        LABELS,
    ],
    indices: &[],
    unique: &[],
};

pub const MACHINES_NOW: Table = Table {
    name: "machines_now",
    description: "The machines of the cell at the moment of the query.",
    columns: &[
        AT,
        required_column("machine", Kind::Text, "Name of the machine."),
        required_column("state", Kind::Text, "up, down or draining."),
        optional_column("rack", Kind::Text, "Its rack."),
        optional_column("power", Kind::Text, "Its power domain."),
        required_column("tasks", Kind::Integer, "Tasks and allocs on it."),
        required_column("cpu", Kind::Integer, "Milli-cores it has."),
        required_column("ram", Kind::Integer, "Bytes of memory it has."),
        required_column("disk", Kind::Integer, "Bytes of disk it has."),
        required_column("cpu_reserved", Kind::Integer, "Milli-cores reserved on it."),
        required_column("ram_reserved", Kind::Integer, "Bytes of memory reserved on it."),
        required_column("cpu_limit", Kind::Integer, "Milli-cores that its tasks ask for."),
        required_column("ram_limit", Kind::Integer, "Bytes of memory that its tasks ask for."),
        required_column("attributes", Kind::Text, "Its attributes as JSON."),
        LABELS_OF_MACHINE,
    ],
    indices: &[],
    unique: &[],
};

pub const HISTORY_COLUMNS: Table = Table {
    name: "history_columns",
    description: "The columns of all these tables, for programs that show them.",
    columns: &[
        required_column("table_name", Kind::Text, "Name of the table."),
        required_column("table_description", Kind::Text, "What a row of it is."),
        required_column("position", Kind::Integer, "Place of the column in the table, from 1."),
        required_column("column_name", Kind::Text, "Name of the column."),
        required_column("kind", Kind::Text, "INTEGER or TEXT."),
        required_column("may_be_absent", Kind::Integer, "1 where a row may have no value."),
        required_column("description", Kind::Text, "What it says."),
    ],
    indices: &[],
    unique: &[],
};

/// What is now: made for the query that names them from the state of the cell, and kept nowhere.
pub const PRESENT: [&Table; 3] = [&JOBS_NOW, &TASKS_NOW, &MACHINES_NOW];

/// Every table that is on disk.
#[must_use]
pub fn kept_tables() -> Vec<&'static Table> {
    std::iter::once(&EVENTS).chain(RAW).chain(ROLLUPS.map(|rollup| rollup.table)).collect()
}

/// Every table that a query can name.
#[must_use]
pub fn all_tables() -> Vec<&'static Table> {
    let mut all = kept_tables();
    all.extend(PRESENT);
    all.push(&HISTORY_COLUMNS);
    all
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

    /// A statement that adds a row to a table that lives as long as the query.
    #[must_use]
    pub fn insert_present_sql(&self) -> String {
        let placeholders = vec!["?"; self.columns.len()].join(", ");
        let (name, columns) = (self.name, self.column_list());
        format!("INSERT INTO temp.{name} ({columns}) VALUES ({placeholders})")
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
