//! Which edits of a state's text are accepted, and the errors for the others.

use super::{LogPosition, RepairedState, RowFilter, TableName, read, write};
use crate::apply::fixture::{Cell, job, key, name};
use crate::command::Command;
use crate::encode::{self, Rows};
use crate::id::JobId;

const PLACE: LogPosition = LogPosition { index: 42, term: 2 };

/// Machines `m1` and `m2`, and two jobs of two tasks each on `m1`; a third was purged.
fn cell() -> Cell {
    let mut cell = Cell::with_machines(2);
    cell.submit(&job("old", 1, 100));
    cell.ok(Command::StopJob { job: key("ubar/old"), expect: None });
    cell.ok(Command::PurgeJobs { ended_before: crate::time::Time(1 << 40) });
    for job_name in ["web", "bad"] {
        cell.submit(&job(job_name, 2, 100));
        cell.run(job_name, 0, "m1");
        cell.run(job_name, 1, "m1");
    }
    cell
}

fn text() -> String {
    write(PLACE, &Rows::of(&cell().state), &RowFilter::default())
}

/// The text without the lines that contain `part`.
fn without(part: &str) -> String {
    let text = text();
    assert!(text.contains(part), "{part}: {text}");
    text.lines().filter(|line| !line.contains(part)).flat_map(|line| [line, "\n"]).collect()
}

#[track_caller]
fn with(from: &str, to: &str) -> String {
    let text = text();
    assert!(text.contains(from), "{from}: {text}");
    text.replacen(from, to, 1)
}

#[track_caller]
fn repaired(text: &str) -> RepairedState {
    read(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[track_caller]
fn assert_rejected(text: &str, want: &str) {
    let message = read(text).map(drop).unwrap_err().to_string();
    assert!(message.contains(want), "{message:?} does not say {want:?}");
}

#[test]
fn a_job_is_taken_out_with_its_lines() {
    // The job's line ends its name there; the names of its tasks continue with a slash.
    let text = without(r#""name":"ubar/bad"#);
    let RepairedState { position: place, mut state, dropped, attempt_floor_raised_to } =
        repaired(&text);
    assert_eq!(place, PLACE);
    let jobs = [TableName::Jobs, TableName::Tasks, TableName::Tasks, TableName::JobVersions];
    assert_eq!(dropped.iter().map(|(table, _)| *table).collect::<Vec<_>>(), jobs);
    assert_eq!((state.jobs().len(), state.tasks().len()), (1, 2));
    assert!(state.job_named(&key("ubar/bad")).is_none());
    // No report about what ran there can be taken for one about the next task that gets the row.
    let floor = cell().state.attempt_floor;
    assert!(attempt_floor_raised_to > Some(floor), "{attempt_floor_raised_to:?}");
    assert_eq!(Some(state.attempt_floor), attempt_floor_raised_to);
    // And it is a state like any other.
    let again = encode::load(&encode::save(&state)).map(|mut again| again.hash());
    assert_eq!(again, Ok(state.hash()));
}

#[test]
fn a_machine_gets_another_size() {
    let text = with(r#""name":"m2","capacity":{"cpu":100"#, r#""name":"m2","capacity":{"cpu":300"#);
    let RepairedState { state, dropped, attempt_floor_raised_to, .. } = repaired(&text);
    assert_eq!((dropped.len(), attempt_floor_raised_to), (0, None));
    assert_eq!(state.capacity().cpu, 400, "sums are rebuilt");
}

#[test]
fn rows_that_contradict_each_other_are_refused_with_the_line() {
    let job_line = 1 + text().lines().position(|l| l.contains(r#""name":"ubar/web""#)).unwrap();
    assert_rejected(
        &without(r#""name":"ubar/web/1""#),
        &format!("line {job_line}: the rows contradict each other: references: job row 1 (web)"),
    );
    assert_rejected(&without(r#""name":"m1""#), "is on machine row 0, which does not exist");
    let small = with(r#""name":"m1","capacity":{"cpu":100"#, r#""name":"m1","capacity":{"cpu":1"#);
    assert_rejected(&small, "the rows contradict each other: overcommit");
    let huge = with(r#""attempt":2"#, r#""attempt":4000000000"#);
    assert_rejected(&huge, "attempt is 4000000000; allowed: at most");
}

#[test]
fn lines_that_are_wrong_are_refused_by_field_and_what_is_allowed() {
    assert_rejected("", "the text is empty");
    assert_rejected(
        &with(r#""checkpoint":1"#, r#""checkpoint":2"#),
        "line 1: checkpoint: is 2; allowed: 1",
    );
    assert_rejected(&with(r#""index":42,"#, ""), "line 1: the line: missing field `index`");
    assert_rejected(
        &with(r#"{"table":"users""#, r#"{"table":"user""#),
        "line 2: table: unknown variant",
    );
    assert_rejected(&with(r#"{"table":"users""#, r#"{"table":"user""#), "`users`, `machines`");
    assert_rejected(
        &with(r#""capacity":{"cpu":100"#, r#""capacity":{"cpu":"100""#),
        "row.spec.capacity.cpu: invalid type",
    );
    assert_rejected(&with(r#""healthy":"#, r#""health":"#), "missing field `healthy`");
    assert_rejected(
        &with(r#""alloc":null"#, r#""allocs":null"#),
        "row.holds[0].allocs: is not known here; allowed:",
    );
    assert_rejected(
        &with(r#""alloc":null,"#, ""),
        "row.holds[0].alloc: is missing; allowed: null for none",
    );
    assert_rejected(
        &with(r#""table":"machines","id":1"#, r#""table":"machines","id":9"#),
        "id: is 9; allowed: 0 to 1, or more slots.machines in the first line",
    );
    assert_rejected(
        &with(r#""table":"machines","id":1"#, r#""table":"machines","id":0"#),
        "id: 0 is in line 3 already",
    );
    assert_rejected(&with(r#""vacant":[0,0]"#, r#""vacant":[0,1]"#), "id: 1 is in line");
    assert_rejected(
        &with(r#""vacant":[0,0]"#, r#""vacant":[2,0]"#),
        "allowed: the smaller one first",
    );
    assert_rejected(
        &with(r#""table":"machines","id":1,"#, r#""table":"machines","#),
        "allowed: an id and its row, or vacant alone",
    );
}

#[test]
fn a_row_is_called_what_it_says_itself() {
    let line = 1 + text().lines().position(|l| l.contains(r#""name":"ubar/web","row""#)).unwrap();
    assert_rejected(
        &with(r#""name":"ubar/web","row""#, r#""name":"ubar/wob","row""#),
        &format!(
            "line {line}: name: is \"ubar/wob\", and the row says \"web\"; allowed: that at its \
             end, or no name"
        ),
    );
    assert_rejected(
        &with(r#""name":"ubar/web/1""#, r#""name":"ubar/web/7""#),
        "the row says \"1\"",
    );
    assert_rejected(&with(r#""name":"m2","row""#, r#""name":"m3","row""#), "the row says \"m2\"");
    assert_rejected(&with(r#""vacant":[0,0]"#, r#""name":"x","vacant":[0,0]"#), "or vacant alone");
    let unnamed = repaired(&with(r#""name":"ubar/web","row""#, r#""row""#));
    assert!(unnamed.state.job_named(&key("ubar/web")).is_some());
    // Renaming a row means changing the name in the row; its line's name has to follow.
    let renamed = with(r#""name":"m2","row":{"#, r#""name":"m3","row":{"#);
    let renamed =
        repaired(&renamed.replacen(r#""name":"m2","capacity""#, r#""name":"m3","capacity""#, 1));
    assert!(renamed.state.machine_named(&name("m3")).is_some());
}

/// The owner of a job, and the job of a task, are in other rows.
#[test]
fn what_belongs_to_a_row_that_is_renamed_keeps_its_lines() {
    let rename = |table: &str, names: &[(&str, &str)]| {
        let of = format!(r#"{{"table":"{table}""#);
        let text = text();
        let lines = text.lines().map(|line| {
            if line.starts_with(&of) {
                names.iter().fold(line.to_owned(), |line, (from, to)| line.replace(from, to))
            } else {
                line.to_owned()
            }
        });
        lines.flat_map(|line| [line, "\n".into()]).collect::<String>()
    };
    let users = rename("users", &[(r#""name":"ubar""#, r#""name":"ufoo""#)]);
    assert!(users.contains(r#""name":"ubar/web","row""#) && users.contains(r#""ubar/web/1""#));
    assert!(repaired(&users).state.job_named(&key("ufoo/web")).is_some());
    let names = [(r#""ubar/web""#, r#""ubar/wob""#), (r#""name":"web""#, r#""name":"wob""#)];
    let jobs = rename("jobs", &names);
    assert!(jobs.contains(r#""name":"ubar/web/1""#));
    assert!(repaired(&jobs).state.job_named(&key("ubar/wob")).is_some());
}

#[test]
fn a_slip_in_the_number_of_slots_does_not_take_all_memory() {
    let slots = |machines: u32| with(r#""machines":2,"#, &format!(r#""machines":{machines},"#));
    assert_rejected(
        &slots(4_000_000_000),
        "line 1: slots.machines: is 4000000000; allowed: at most 1000002, 1000000 above the 2 ids",
    );
    assert_eq!(repaired(&slots(5)).dropped.len(), 3);
}

#[test]
fn text_that_was_cut_is_refused_wherever_it_was() {
    let text = text();
    assert!(text.ends_with("}\n{\"end\":true}\n"), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    for kept in 1..lines.len() {
        let cut: String = lines[..kept].iter().flat_map(|line| [*line, "\n"]).collect();
        assert_rejected(&cut, "the text ends before its end mark: it was cut; allowed: all that");
    }
    assert_rejected(text.trim_end().strip_suffix('}').unwrap(), &format!("line {}: ", lines.len()));
    // The end mark may be formatted differently; text after it is a mistake.
    repaired(&with(r#"{"end":true}"#, "{ \"end\": true }\n\n"));
    assert_rejected(
        &format!("{text}{}\n", lines[1]),
        &format!("line {}: the line: is after the end mark in line", lines.len() + 1),
    );
}

#[test]
fn windows_that_were_taken_out_are_counted() {
    // This cell had no requests over the network; the text now says that one window was there.
    let dropped = repaired(&with(r#""windows":0}"#, r#""windows":1}"#)).dropped;
    assert_eq!(dropped, [(TableName::Windows, 0)]);
    assert_rejected(
        &with(r#""windows":0}"#, r#""windows":4000000000}"#),
        "line 1: slots.windows: is 4000000000; allowed: at most 1000000",
    );
}

#[test]
fn rows_are_picked_by_job_and_by_machine() {
    let rows = Rows::of(&cell().state);
    let selected_rows = |pick: RowFilter| -> Vec<String> {
        let text = write(PLACE, &rows, &pick);
        let name = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            format!("{} {}", line["table"].as_str().unwrap(), line["name"].as_str().unwrap())
        };
        text.lines().skip(1).map(name).collect()
    };
    let job = RowFilter { job: Some(key("ubar/web")), ..RowFilter::default() };
    assert_eq!(
        selected_rows(job.clone()),
        ["jobs ubar/web", "tasks ubar/web/0", "tasks ubar/web/1", "versions ubar/web/v1"]
    );
    let tasks = RowFilter { table: Some(TableName::Tasks), ..job };
    assert_eq!(selected_rows(tasks), ["tasks ubar/web/0", "tasks ubar/web/1"]);
    let machine = RowFilter { machine: Some(name("m2")), ..RowFilter::default() };
    assert_eq!(selected_rows(machine), ["machines m2"]);
    let machine = RowFilter { machine: Some(name("m1")), ..RowFilter::default() };
    assert_eq!(selected_rows(machine).len(), 5);
    assert!(rows.jobs[0].is_none() && rows.jobs[JobId(1).slot()].is_some());
}

/// A capacity is named by its resource and machine, which are in other rows.
#[test]
fn capacities_are_picked_by_machine_and_outlive_a_renaming() {
    use crate::ephemeral::{CapacityChange, Command, NodeChoice};
    let mut cell = Cell::with_machines(2);
    let token = |text| crate::name::Token::new(text).unwrap();
    let change = |node| (NodeChoice::Node(name(node)), CapacityChange::Add(3));
    let (namespace, lease) = (token("app"), crate::time::Span::seconds(60));
    let changes = vec![change("m1"), change("m2")];
    cell.ok(Command::Set { namespace, name: token("slot"), lease, changes });
    let rows = Rows::of(&cell.state);
    let picked =
        write(PLACE, &rows, &RowFilter { machine: Some(name("m2")), ..RowFilter::default() });
    assert!(picked.contains(r#""name":"app/slot on m2""#) && !picked.contains("on m1"), "{picked}");
    let text = write(PLACE, &rows, &RowFilter::default());
    let renamed = text.replacen(r#""name":"m2","row":{"#, r#""name":"m3","row":{"#, 1).replacen(
        r#""name":"m2","capacity""#,
        r#""name":"m3","capacity""#,
        1,
    );
    assert!(renamed.contains("app/slot on m2"), "{renamed}");
    let state = repaired(&renamed).state;
    let machine = state.machine_named(&name("m3")).unwrap();
    assert_eq!(state.ephemeral_on(machine).len(), 1);
}
