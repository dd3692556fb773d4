//! `docs/security.md` says which tests stand for which class of attack, and who may call what.
//!
//! A class without a test is a promise that nobody keeps, a test that was renamed takes its class
//! with it unnoticed, and a route among the cell's own parts that the page does not know is one
//! that nobody has thought about: the public ones are compared with the OpenAPI document by a test,
//! these are in no document.

use super::Finding;
use crate::reference;
use crate::repo::Repo;
use crate::rust_file::Kind;

const PAGE: &str = "docs/security.md";
/// How the table of classes begins.
const HEADER: &str = "| class | tried | tests |";
const SUITE: &str = "tests/tests/attacks/";
const PARTS: &str = "/internal/";

pub fn check(repo: &Repo) -> Vec<Finding> {
    let Some(text) = repo.text(PAGE) else {
        return vec![Finding::new(
            PAGE,
            0,
            "missing: it says what is defended, by what and how far",
        )];
    };
    let mut findings = pointers(repo, text);
    findings.extend(classes(text));
    findings.extend(suite(repo, text));
    findings.extend(parts(repo, text));
    findings
}

/// Whatever the page names is there.
fn pointers(repo: &Repo, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let named = reference::in_backticks(line);
        for pointer in named.into_iter().filter(|text| reference::is_path(text)) {
            if let Err(error) = reference::resolve(repo, pointer) {
                findings.push(Finding::new(PAGE, index + 1, error));
            }
        }
    }
    findings
}

fn is_test(pointer: &str) -> bool {
    reference::is_path(pointer) && pointer.contains("::")
}

/// Every class has a test.
fn classes(text: &str) -> Vec<Finding> {
    let Some(begin) = text.lines().position(|line| line == HEADER) else {
        return vec![Finding::new(PAGE, 0, format!("no table `{HEADER}`"))];
    };
    let rows = text.lines().enumerate().skip(begin + 2);
    let rows = rows.take_while(|(_, line)| line.starts_with('|'));
    let without = rows.filter(|(_, line)| !reference::in_backticks(line).into_iter().any(is_test));
    let message = "a class without a test: name one as `path::test`";
    without.map(|(index, _)| Finding::new(PAGE, index + 1, message)).collect()
}

/// Every test of the suite stands for a class.
fn suite(repo: &Repo, text: &str) -> Vec<Finding> {
    let named: Vec<&str> = text.lines().flat_map(reference::in_backticks).collect();
    let mut findings = Vec::new();
    for (path, file) in repo.rust_files().filter(|(path, _)| path.starts_with(SUITE)) {
        for function in file.functions() {
            let pointer = format!("{path}::{}", function.name);
            if file.is_test_line(function.line) && !named.contains(&pointer.as_str()) {
                let message = format!("no class of {PAGE} names `{pointer}`");
                findings.push(Finding::new(path, function.line, message));
            }
        }
    }
    findings
}

/// Every route of the cell's own parts has a row.
fn parts(repo: &Repo, text: &str) -> Vec<Finding> {
    let has_row = |route: &str| {
        let names = |named: &str| {
            let path = named.split(' ').next_back().unwrap_or("");
            path == route || path.strip_prefix(route).is_some_and(|rest| rest.starts_with('/'))
        };
        let rows = text.lines().filter(|line| line.starts_with('|'));
        rows.flat_map(reference::in_backticks).any(names)
    };
    let mut findings = Vec::new();
    for (path, file) in repo.rust_files() {
        if !path.starts_with("crates/") || repo.is_test_file(path) {
            continue;
        }
        for token in file.tokens.iter().filter(|token| token.kind == Kind::Literal && !token.test) {
            let route = token.text.trim_matches('"');
            let is_route = route.starts_with(PARTS) && route.len() > PARTS.len();
            if is_route && !has_row(route) {
                let message = format!("{PAGE} does not say who may call `{route}`");
                findings.push(Finding::new(path, token.line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACK: &str = "tests/tests/attacks/theft.rs";
    const ROUTE: &str = "crates/api/src/lib.rs";
    const TESTS: &str = "#[test]\nfn a_thief_gets_nothing() {}\nfn helper() {}";

    fn page(rows: &str) -> String {
        format!("{HEADER}\n|---|---|---|\n{rows}\n\n| route |\n|---|\n| `POST /internal/poll` |\n")
    }

    fn found(page: &str, source: &str) -> Vec<String> {
        let files = [(PAGE, page), (ATTACK, TESTS), (ROUTE, source)];
        crate::tidy::messages(check, &files)
    }

    const GOOD: &str = "| theft | once | `tests/tests/attacks/theft.rs::a_thief_gets_nothing` |";

    #[test]
    fn a_page_that_knows_everything_passes() {
        let source = "const A: &str = \"/internal/poll\"; const B: &str = \"/internal/\";";
        assert_eq!(found(&page(GOOD), source), Vec::<String>::new());
    }

    #[test]
    fn what_the_page_does_not_know_is_found() {
        let bare = format!("{GOOD}\n| fire | never | soon |");
        let gone = format!("{GOOD}\n| fire | once | `tests/tests/attacks/theft.rs::gone` |");
        let moved = format!("{GOOD}\n| fire | `tests/no.rs` | `{ROUTE}::f` |");
        for (rows, source, expected) in [
            (bare.as_str(), "", "a class without a test"),
            (&gone, "", "declares no `gone`"),
            (&moved, "fn f() {}", "`tests/no.rs` does not exist"),
            (GOOD, "const A: &str = \"/internal/new\";", "who may call `/internal/new`"),
            (GOOD, "const A: &str = \"/internal/poll-two\";", "who may call `/internal/poll-two`"),
        ] {
            let found = found(&page(rows), source);
            assert_eq!(found.len(), 1, "{rows}: {found:?}");
            assert!(found[0].contains(expected), "{rows}: {found:?}");
        }
        let other = format!("| theft | once | `{ROUTE}::f` |");
        let unnamed = found(&page(&other), "fn f() {}");
        assert!(unnamed.len() == 1 && unnamed[0].contains("no class of"), "{unnamed:?}");
        assert_eq!(found("# Security", "")[0], format!("{PAGE}: no table `{HEADER}`"));
        assert_eq!(crate::tidy::messages(check, &[]).len(), 1);
    }
}
