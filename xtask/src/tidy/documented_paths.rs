//! Paths of this repository that documents write in backticks exist.
//!
//! A file that is moved leaves its old name behind in prose, where nothing breaks. A path is told
//! by its first folder; of Rust and JavaScript files its end is enough (`config/keys.rs`). `N`,
//! `NNNN` or `TITLE` stand for any text, as in `tests/wire/version-N.txt`, but something must
//! match. Reading every word with a slash as a path was rejected: the guide is full of files that
//! a reader has, and the repository has not. The changelog names what was there at the time.

use super::Finding;
use crate::reference;
use crate::repo::Repo;

const FOLDERS: &[&str] = &[
    "bench/",
    "clients/",
    "console/",
    "crates/",
    "docs/",
    "examples/",
    "fuzz/",
    "packaging/",
    "scripts/",
    "tests/",
    "xtask/",
];

/// Texts of others, and texts about the past.
const EXEMPT: &[&str] = &["CHANGELOG.md", "console/vendor/"];

pub fn check(repo: &Repo) -> Vec<Finding> {
    let is_exempt = |path: &str| EXEMPT.iter().any(|exempt| path.starts_with(exempt));
    let documents = repo.texts().filter(|(path, _)| path.ends_with(".md") && !is_exempt(path));
    let lines = documents
        .flat_map(|(path, text)| text.lines().zip(1..).map(move |(line, n)| (path, n, line)));
    let mut findings = Vec::new();
    for (document, number, line) in lines {
        for text in quoted(line) {
            if let Err(error) = resolve(repo, text) {
                findings.push(Finding::new(document, number, error));
            }
        }
    }
    findings
}

/// What stands behind each backtick up to the next one. Pairing backticks would be wrong on lines
/// that begin inside a quotation; behind a closing one no path begins, but a space or a stop.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).filter_map(|rest| rest.split(char::is_whitespace).next())
}

fn resolve(repo: &Repo, text: &str) -> Result<(), String> {
    let path = text.split("::").next().unwrap_or(text);
    let is_rooted = FOLDERS.iter().any(|folder| path.starts_with(folder));
    let is_source = path.ends_with(".rs") || path.ends_with(".js");
    if is_rooted && reference::is_path(path) && repo.exists(path) {
        return reference::resolve(repo, text);
    }
    let found = if is_rooted {
        matches_any(repo, path) || is_ignored(repo, path)
    } else if is_source && reference::is_path(path) {
        let end = format!("/{path}");
        repo.paths().any(|known| known == path || known.ends_with(&end))
    } else {
        return Ok(());
    };
    if found { Ok(()) } else { Err(format!("`{path}` does not exist: was it moved?")) }
}

/// Whether some path has the form of this one, whose words in capitals stand for any text.
fn matches_any(repo: &Repo, pattern: &str) -> bool {
    let pieces: Vec<&str> = pattern.split(['/', '-', '.']).collect();
    let has_form = |path: &str| {
        let names: Vec<&str> = path.split('/').collect();
        let forms: Vec<&str> = pattern.trim_end_matches('/').split('/').collect();
        names.len() >= forms.len() && forms.iter().zip(names).all(|(form, name)| fits(form, name))
    };
    pieces.iter().any(|piece| is_placeholder(piece)) && repo.paths().any(has_form)
}

/// Whether a name fits a form like `version-N.txt`: the parts between placeholders follow each
/// other in it, the first at its start, the last at its end.
fn fits(form: &str, name: &str) -> bool {
    let Some((head, tail)) = form.split_once(['-', '.']).filter(|_| form != name) else {
        return form == name || is_placeholder(form);
    };
    let separator = form[head.len()..].chars().next().unwrap_or('-');
    name.match_indices(separator)
        .any(|(at, _)| (head == &name[..at] || is_placeholder(head)) && fits(tail, &name[at + 1..]))
}

fn is_placeholder(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase())
}

/// Folders that programs make, as `.gitignore` lists them.
fn is_ignored(repo: &Repo, path: &str) -> bool {
    let ignored = repo.text(".gitignore").unwrap_or("").lines();
    ignored.map(|line| line.trim_matches('/')).any(|line| line == path.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let files = [
            ("docs/a.md", text),
            ("CHANGELOG.md", "`crates/gone/src/lib.rs`"),
            (".gitignore", "# Findings.\n/fuzz/artifacts/\n"),
            ("crates/cell/src/config/keys.rs", "fn holds() {}"),
            ("crates/cell/tests/wire/version-12.txt", ""),
            ("docs/decisions/0001-record-decisions.md", ""),
        ];
        crate::tidy::messages(check, &files)
    }

    #[test]
    fn paths_that_exist_pass() {
        for text in [
            "`crates/cell`, `crates/cell/`, `crates/cell/src/config/keys.rs::holds`",
            "the end of `a quotation` and `keys.rs` or `config/keys.rs`",
            "`crates/cell/tests/wire/version-N.txt`, `docs/decisions/NNNN-TITLE.md`",
            "`fuzz/artifacts`, `fuzz/artifacts/`",
            "`web.jsonnet`, `jobs/web.jsonnet`, `/v1/jobs`, `ann/web/3` crates/gone in prose",
        ] {
            assert_eq!(found(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn paths_that_were_moved_are_found() {
        for text in [
            "`crates/cell/src/keys.rs`",
            "`crates/cell/src/config/keys.rs::gone`",
            "`crates/gone/`",
            "that began before` and `docs/gone.md`",
            "`docs/gone.md --flag`",
            "`gone.rs`",
            "`ys.rs`",
            "`other/keys.rs`",
            "`crates/{cell,gone}/src`",
            "`crates/cell/tests/wire/log-N.txt`",
            "`docs/decisions/NNNN-TITLE.txt`",
        ] {
            assert_eq!(found(text).len(), 1, "{text}: {:?}", found(text));
        }
        assert_eq!(found("\n`gone.rs`"), ["docs/a.md:2: `gone.rs` does not exist: was it moved?"]);
    }
}
