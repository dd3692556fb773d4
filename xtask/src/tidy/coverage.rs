//! `docs/coverage.md` says of every capability whether it works, by which code and which test.
//!
//! The page is a promise to users, so it is pinned: no capability may vanish from it, the state is
//! one of three words, and the code and tests it names must exist.

use std::collections::BTreeMap;

use super::Finding;
use crate::reference;
use crate::repo::Repo;

const PAGE: &str = "docs/coverage.md";
const STATES: &[&str] = &["absent", "partial", "done"];

/// Families of capabilities and how many each has.
const FAMILIES: &[(char, usize)] = &[('B', 43), ('T', 13), ('M', 8), ('E', 8), ('X', 10)];

#[derive(Default)]
struct Columns {
    state: Option<usize>,
    code: Option<usize>,
    test: Option<usize>,
}

pub fn check(repo: &Repo) -> Vec<Finding> {
    let Some(text) = repo.text(PAGE) else {
        return vec![Finding::new(PAGE, 0, "missing: it says what works and how we know")];
    };
    let mut findings = Vec::new();
    let mut seen = BTreeMap::new();
    let mut columns = Columns::default();
    for (index, line) in text.lines().enumerate() {
        let cells: Vec<&str> = cells(line);
        if let Some(header) = header(&cells) {
            columns = header;
        }
        let Some(id) = cells.first().and_then(|cell| item_id(cell)) else {
            continue;
        };
        let mut complain = |message: String| findings.push(Finding::new(PAGE, index + 1, message));
        if !is_known(&id) {
            complain(format!("unknown item `{id}`: ids stay with their capability for good"));
        } else if let Some(earlier) = seen.insert(id.clone(), index + 1) {
            complain(format!("`{id}` already has a row, line {earlier}"));
        }
        for message in check_row(repo, &id, &cells, &columns) {
            complain(message);
        }
    }
    let missing = all_ids().filter(|id| !seen.contains_key(id));
    findings.extend(missing.map(|id| {
        Finding::new(PAGE, 0, format!("no row for `{id}`: what is not built is listed as absent"))
    }));
    findings
}

fn cells(line: &str) -> Vec<&str> {
    let Some(inner) = line.trim().strip_prefix('|') else {
        return Vec::new();
    };
    inner.strip_suffix('|').unwrap_or(inner).split('|').map(str::trim).collect()
}

fn header(cells: &[&str]) -> Option<Columns> {
    let find = |name: &str| cells.iter().position(|cell| cell.to_lowercase().starts_with(name));
    let columns = Columns { state: find("state"), code: find("code"), test: find("test") };
    // All three: a cell of a row may well begin with one of the words.
    let complete = columns.state.is_some() && columns.code.is_some() && columns.test.is_some();
    complete.then_some(columns)
}

/// `B1`, also when written bold or followed by a title.
fn item_id(cell: &str) -> Option<String> {
    let word = cell.trim_matches(['*', '`', ' ']).split([' ', '*', '`', ':']).next()?;
    let (family, number) = word.split_at_checked(1)?;
    let is_family = FAMILIES.iter().any(|(letter, _)| family == letter.to_string());
    let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
    (is_family && is_number).then(|| word.to_owned())
}

fn all_ids() -> impl Iterator<Item = String> {
    FAMILIES.iter().flat_map(|(letter, last)| (1..=*last).map(move |n| format!("{letter}{n}")))
}

fn is_known(id: &str) -> bool {
    all_ids().any(|known| known == id)
}

fn check_row(repo: &Repo, id: &str, cells: &[&str], columns: &Columns) -> Vec<String> {
    let (Some(state), Some(code), Some(test)) = (columns.state, columns.code, columns.test) else {
        return vec![format!("`{id}`: the table needs columns state, code and test")];
    };
    let cell = |column: usize| cells.get(column).copied().unwrap_or("");
    let word = cell(state).trim_matches(['*', '`', ' ']);
    let mut problems = Vec::new();
    if !STATES.contains(&word) {
        problems.push(format!("`{id}` is `{word}`, must be one of {}", STATES.join(", ")));
    }
    for (column, name) in [(code, "code"), (test, "test")] {
        let named = reference::in_backticks(cell(column));
        let paths = named.iter().filter(|text| reference::is_path(text));
        problems.extend(paths.clone().filter_map(|text| {
            reference::resolve(repo, text).err().map(|e| format!("`{id}`, {name}: {e}"))
        }));
        if word != "absent" && STATES.contains(&word) && paths.count() == 0 {
            problems.push(format!("`{id}` is {word} but names no {name} in backticks: show it"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "| item | what | state | code | test |\n|---|---|---|---|---|\n";

    fn page(replaced: &str, row: &str) -> String {
        let rows = all_ids().map(|id| {
            if id == replaced {
                format!("{row}\n")
            } else {
                format!("| {id} | some title | absent | | |\n")
            }
        });
        format!("# Coverage\n\n{HEADER}{}", rows.collect::<String>())
    }

    fn found(text: &str) -> Vec<String> {
        crate::tidy::messages(
            check,
            &[
                (PAGE, text),
                ("crates/cell/src/lib.rs", "fn f() {}"),
                ("crates/cell/tests/a.rs", ""),
            ],
        )
    }

    #[test]
    fn a_full_page_passes() {
        let row =
            "| **B2** job | what | done | `crates/cell/src/lib.rs::f` | `crates/cell/tests/` |";
        assert_eq!(found(&page("B2", row)), Vec::<String>::new());
        assert_eq!(all_ids().count(), 82);
    }

    #[test]
    fn a_missing_page_is_a_finding() {
        assert_eq!(crate::tidy::messages(check, &[]).len(), 1);
    }

    #[test]
    fn rows_are_held_to_their_word() {
        for (row, expected) in [
            ("", "no row for `T3`"),
            ("| T3 | x | planned | | |", "`T3` is `planned`, must be one of absent"),
            (
                "| T3 | x | done | `crates/cell/src/no.rs` | `crates/cell/tests/a.rs` |",
                "`T3`, code",
            ),
            (
                "| T3 | x | done | `crates/cell/src/lib.rs` | `crates/cell/tests/b.rs` |",
                "`T3`, test",
            ),
            ("| T3 | x | partial | `crates/cell/src/lib.rs` | soon |", "names no test"),
            ("| T3 | x | absent | | |\n| T99 | x | absent | | |", "unknown item `T99`"),
            ("| T3 | x | absent | | |\n| T3 | x | absent | | |", "already has a row"),
        ] {
            let found = found(&page("T3", row));
            assert_eq!(found.len(), 1, "{row}: {found:?}");
            assert!(found[0].contains(expected), "{row}: {found:?}");
        }
    }
}
