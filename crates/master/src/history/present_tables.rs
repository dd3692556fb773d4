//! Jobs, tasks and machines as they are, as tables of one query: rows of the state at the moment at
//! which the query came, made while the query takes them.
//!
//! All of a query's tables are of one entry of the log, which each row names, and history has at
//! least what came before it.

use cellwright_cell::job::{JobOutcome, JobState};
use cellwright_cell::machine::{Machine, MachineStatus};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobKind, JobSpec};
use cellwright_cell::state::State;
use cellwright_cell::task::{TaskOutcome, TaskState};
use cellwright_cell::time::Time;
use cellwright_history::tables::{JOBS_NOW, MACHINES_NOW, PRESENT, TASKS_NOW, Table};
use cellwright_history::{FillTable, PresentTable, Value, mentions_table};
use serde::Serialize;

/// Gives the rows of a state, which was so after an entry of the log, to whoever takes them.
type MakeRows = fn(&State, i64, &mut dyn FnMut(Vec<Value>));

/// The tables of what is now that a query names.
pub(super) fn named_in(sql: &str) -> Vec<&'static Table> {
    PRESENT.into_iter().filter(|table| mentions_table(sql, table.name)).collect()
}

/// These tables, of the state after the entry at `index`.
pub(super) fn tables(named: &[&'static Table], state: State, index: u64) -> Vec<PresentTable> {
    let table = |table: &&'static Table| {
        let rows: MakeRows = match table.name {
            name if name == JOBS_NOW.name => job_rows,
            name if name == TASKS_NOW.name => task_rows,
            name if name == MACHINES_NOW.name => machine_rows,
            _ => |_, _, _| {},
        };
        let (state, index) = (state.clone(), integer(index));
        let fill: FillTable = Box::new(move |take| rows(&state, index, take));
        PresentTable { table, fill }
    };
    named.iter().map(table).collect()
}

fn job_rows(state: &State, index: i64, take: &mut dyn FnMut(Vec<Value>)) {
    for (id, job) in state.jobs().iter() {
        let (Some(key), Some(load)) = (state.job_key(id), state.job_load(id)) else { continue };
        let spec = job.spec();
        let limits = spec.task.limits;
        let mut row = vec![
            Value::Integer(index),
            text(&key.user),
            text(&key.job),
            text(job_state(job.state)),
            text(kind(spec)),
            integer_value(u64::from(job.version)),
            integer_value(u64::from(job.wanted())),
            integer_value(u64::from(load.pending)),
            integer_value(u64::from(load.running)),
        ];
        row.extend(priority(spec));
        row.extend([limits.cpu, limits.ram, limits.disk].map(integer_value));
        row.push(json(&spec.labels));
        row.push(time(job.submitted_at));
        row.push(job.ended_at.map_or(Value::Null, time));
        take(row);
    }
}

fn task_rows(state: &State, index: i64, take: &mut dyn FnMut(Vec<Value>)) {
    for (_, task) in state.tasks().iter() {
        let (Some(key), Some(spec)) = (state.job_key(task.job), state.spec_of(task)) else {
            continue;
        };
        let machine = task.machine().and_then(|id| state.machines().get(id));
        // What waits for a machine, and what is over, has nothing reserved.
        let reserved = if machine.is_some() { task.reservation } else { Resources::ZERO };
        let limits = spec.limits_of(task.index);
        let mut row = vec![
            Value::Integer(index),
            text(&key.user),
            text(&key.job),
            integer_value(u64::from(task.index)),
            integer_value(u64::from(task.attempt)),
            text(task_state(task.state)),
            machine.map_or(Value::Null, |machine| text(&machine.spec.name)),
        ];
        row.extend(priority(spec));
        row.extend([limits.cpu, limits.ram, reserved.cpu, reserved.ram].map(integer_value));
        row.push(json(&spec.labels));
        take(row);
    }
}

fn machine_rows(state: &State, index: i64, take: &mut dyn FnMut(Vec<Value>)) {
    for (id, machine) in state.machines().iter() {
        let Some(load) = state.machine_load(id) else { continue };
        let spec = &machine.spec;
        let of = |domain: &Option<cellwright_cell::name::Token>| {
            domain.as_ref().map_or(Value::Null, text)
        };
        let tasks = u64::try_from(load.tasks.len()).unwrap_or(u64::MAX);
        let (has, reserved, limits) = (spec.capacity, load.reserved, load.limits);
        let mut row = vec![
            Value::Integer(index),
            text(&spec.name),
            text(machine_state(machine)),
            of(&spec.rack),
            of(&spec.power),
            integer_value(tasks),
        ];
        row.extend([has.cpu, has.ram, has.disk].map(integer_value));
        row.extend([reserved.cpu, reserved.ram, limits.cpu, limits.ram].map(integer_value));
        row.push(json(&spec.attributes));
        row.push(json(&spec.labels));
        take(row);
    }
}

fn priority(spec: &JobSpec) -> [Value; 2] {
    [integer_value(u64::from(spec.priority.0)), text(spec.priority.band())]
}

fn kind(spec: &JobSpec) -> &'static str {
    match spec.kind {
        JobKind::Tasks => "tasks",
        JobKind::Daemon => "daemon",
        JobKind::AllocSet => "allocs",
    }
}

fn job_state(state: JobState) -> &'static str {
    match state {
        JobState::Deferred => "deferred",
        JobState::Active => "active",
        JobState::Stopping => "stopping",
        JobState::Dead(JobOutcome::Succeeded) => "succeeded",
        JobState::Dead(JobOutcome::Failed) => "failed",
        JobState::Dead(JobOutcome::Killed) => "killed",
        JobState::Dead(JobOutcome::DependencyFailed) => "never-ran",
    }
}

fn task_state(state: TaskState) -> &'static str {
    match state {
        TaskState::Deferred => "deferred",
        TaskState::Pending => "pending",
        TaskState::Assigned => "assigned",
        TaskState::Running => "running",
        TaskState::Stopping(_) => "stopping",
        TaskState::Dead(TaskOutcome::Finished) => "finished",
        TaskState::Dead(TaskOutcome::Failed(_)) => "failed",
        TaskState::Dead(TaskOutcome::Killed) => "killed",
        TaskState::Dead(TaskOutcome::DependencyFailed) => "never-ran",
    }
}

fn machine_state(machine: &Machine) -> &'static str {
    match (machine.status, machine.draining) {
        (MachineStatus::Down, _) => "down",
        (MachineStatus::Up, true) => "draining",
        (MachineStatus::Up, false) => "up",
    }
}

fn text(shown: impl ToString) -> Value {
    Value::Text(shown.to_string())
}

/// SQLite's integers are signed.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn integer_value(number: u64) -> Value {
    Value::Integer(integer(number))
}

fn time(time: Time) -> Value {
    integer_value(time.0)
}

fn json(value: &impl Serialize) -> Value {
    // Names and texts can be written always.
    Value::Text(serde_json::to_string(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::command::{Command, Entry, Request};
    use cellwright_cell::name::Name;

    fn state() -> State {
        let mut state = State::default();
        let name = |text: &str| Name::new(text).unwrap();
        let spec = serde_json::json!({
            "name": "web", "priority": 0, "count": 2, "labels": { "team": "search" },
            "task": { "limits": { "cpu": 500, "ram": 1 << 20 }, "command": ["true"] },
        });
        let machine = serde_json::json!({
            "name": "m1", "capacity": { "cpu": 4000, "ram": 1 << 30, "disk": 1 << 30 },
            "rack": "r1",
        });
        let commands = [
            Command::AddUser { name: name("ann") },
            Command::AddMachine(serde_json::from_value(machine).unwrap()),
            Command::SubmitJob { owner: name("ann"), spec: serde_json::from_value(spec).unwrap() },
        ];
        for (at, command) in (1..).zip(commands) {
            let requests = vec![Request::from_default_sender(command, &state)];
            let verdicts = state.apply(&Entry { now: Time(at), requests }, &mut Vec::new());
            assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
        }
        state
    }

    #[test]
    fn every_row_has_the_columns_of_its_table() {
        let state = state();
        for (table, expected) in [(&JOBS_NOW, 1), (&TASKS_NOW, 2), (&MACHINES_NOW, 1)] {
            let mut rows = Vec::new();
            let filled = tables(&[table], state.clone(), 7);
            assert_eq!(filled.len(), 1);
            for PresentTable { fill, .. } in filled {
                fill(&mut |row| rows.push(row));
            }
            assert_eq!(rows.len(), expected, "{}", table.name);
            for row in rows {
                assert_eq!(row.len(), table.columns.len(), "{}: {row:?}", table.name);
                assert_eq!(row[0], Value::Integer(7));
                for (value, column) in row.iter().zip(table.columns) {
                    assert!(!column.required || *value != Value::Null, "{}", column.name);
                }
            }
        }
    }

    #[test]
    fn a_query_is_given_the_tables_that_it_names() {
        let named = |sql| named_in(sql).iter().map(|table| table.name).collect::<Vec<_>>();
        assert_eq!(
            named("select * from jobs_now join Tasks_Now using (user, job)"),
            ["jobs_now", "tasks_now"]
        );
        assert_eq!(named("select * from task_events"), [""; 0]);
    }
}
