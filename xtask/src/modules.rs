//! Which Rust files the compiler sees, and which of them only in test builds.
//!
//! Follows `mod name;` from every crate root the way rustc does, `#[path]` and inline modules
//! included. Asking cargo for its dep-info was rejected: that needs a finished build.

use std::collections::BTreeSet;

use crate::manifest::Manifest;
use crate::repo::Repo;
use crate::rust_file::{Kind, RustFile};

#[derive(Default)]
pub struct ReachableFiles {
    pub all: BTreeSet<String>,
    /// Files that are test code as a whole.
    pub tests: BTreeSet<String>,
}

pub fn reachable_files(repo: &Repo) -> ReachableFiles {
    let mut product = BTreeSet::new();
    let mut reach = ReachableFiles::default();
    for package in repo.packages() {
        for path in crate_roots(repo, package) {
            follow(repo, &path, FollowMode::Product, &mut product);
            follow(repo, &path, FollowMode::All, &mut reach.all);
        }
        for kind in ["tests", "benches"] {
            let folder = format!("{package}/{kind}/");
            let files = repo.paths().filter(|p| p.starts_with(&folder) && p.ends_with(".rs"));
            let files: Vec<String> = files.map(str::to_owned).collect();
            // What is beside the code for the sake of a test is reached from there.
            for path in &files {
                follow(repo, path, FollowMode::All, &mut reach.all);
            }
            reach.tests.extend(files);
        }
    }
    let only_in_tests: Vec<String> = reach.all.difference(&product).cloned().collect();
    reach.tests.extend(only_in_tests);
    reach
}

#[derive(Clone, Copy, PartialEq)]
enum FollowMode {
    Product,
    All,
}

fn crate_roots(repo: &Repo, package: &str) -> Vec<String> {
    let manifest = Manifest::parse(repo.text(&format!("{package}/Cargo.toml")).unwrap_or(""));
    let mut roots: Vec<String> =
        manifest.target_paths.iter().map(|path| format!("{package}/{path}")).collect();
    roots.extend(["src/lib.rs", "src/main.rs", "build.rs"].map(|name| format!("{package}/{name}")));
    let programs = format!("{package}/src/bin/");
    for path in repo.paths() {
        if let Some(rest) = path.strip_prefix(&programs)
            && (!rest.contains('/') || rest.ends_with("/main.rs"))
        {
            roots.push(path.to_owned());
        }
    }
    roots.retain(|path| repo.rust(path).is_some());
    roots
}

fn follow(repo: &Repo, path: &str, mode: FollowMode, seen: &mut BTreeSet<String>) {
    let mut queue = vec![(path.to_owned(), true)];
    while let Some((path, is_root)) = queue.pop() {
        let Some(file) = repo.rust(&path) else {
            continue;
        };
        if !seen.insert(path.clone()) {
            continue;
        }
        for module in declared_modules(file, &path, is_root) {
            if mode == FollowMode::All || !module.test {
                let found = module.candidates.into_iter().find(|c| repo.rust(c).is_some());
                queue.extend(found.map(|file| (file, false)));
            }
        }
    }
}

struct Module {
    candidates: Vec<String>,
    test: bool,
}

fn declared_modules(file: &RustFile, path: &str, is_root: bool) -> Vec<Module> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.trim_end_matches(".rs");
    let home =
        if is_root || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut inline: Vec<(&str, usize)> = Vec::new();
    let mut modules = Vec::new();
    for (index, token) in file.tokens.iter().enumerate() {
        if token.kind == Kind::Close && inline.last().is_some_and(|(_, d)| *d == token.depth) {
            inline.pop();
        }
        if token.kind != Kind::Ident || token.text != "mod" {
            continue;
        }
        let name = file.text_at(index + 1);
        match file.text_at(index + 2) {
            "{" => inline.push((name, token.depth)),
            ";" => {
                let inner: String = inline.iter().map(|(outer, _)| format!("{outer}/")).collect();
                let candidates = match path_attribute(file, index) {
                    Some(relative) => vec![join_path(folder, &relative)],
                    None => vec![
                        format!("{home}/{inner}{name}.rs"),
                        format!("{home}/{inner}{name}/mod.rs"),
                    ],
                };
                modules.push(Module { candidates, test: token.test });
            }
            _ => {}
        }
    }
    modules
}

fn path_attribute(file: &RustFile, index: usize) -> Option<String> {
    let attributes = file.attributes_before(index);
    let value = attributes.iter().find_map(|a| a.strip_prefix("path="))?;
    Some(value.trim_matches('"').to_owned())
}

/// `folder` + `relative` with `.` and `..` worked out.
pub fn join_path(folder: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            // Above the root there is nothing to name: such a path must not resolve by accident.
            ".." if parts.is_empty() => parts.push("(outside)"),
            ".." => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> Repo {
        Repo::of(&[
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            (
                "crates/a/src/lib.rs",
                "mod b; mod c { mod d; } #[cfg(test)] mod t; #[path = \"odd.rs\"] mod o;",
            ),
            ("crates/a/src/b.rs", "mod e;"),
            ("crates/a/src/b/e.rs", ""),
            ("crates/a/src/c/d/mod.rs", ""),
            ("crates/a/src/t.rs", "mod helper;"),
            ("crates/a/src/t/helper.rs", ""),
            ("crates/a/src/odd.rs", ""),
            ("crates/a/src/dead.rs", "mod b;"),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/tests/whole.rs", ""),
        ])
    }

    #[test]
    fn modules_are_followed_like_the_compiler_does() {
        let repo = repo();
        let missed: Vec<&str> = repo
            .rust_files()
            .map(|(path, _)| path)
            .filter(|path| path.contains("/src/") && !repo.is_reached(path))
            .collect();
        assert_eq!(missed, ["crates/a/src/dead.rs"]);
    }

    #[test]
    fn test_files_are_those_only_tests_reach() {
        let repo = repo();
        let tests: Vec<&str> =
            repo.rust_files().map(|(path, _)| path).filter(|p| repo.is_test_file(p)).collect();
        let expected = ["crates/a/src/t.rs", "crates/a/src/t/helper.rs", "crates/a/tests/whole.rs"];
        assert_eq!(tests, expected);
    }

    #[test]
    fn paths_above_the_root_never_resolve() {
        assert_eq!(join_path("docs/guide", "../a.md"), "docs/a.md");
        assert_eq!(join_path("docs", "../../a.md"), "(outside)/a.md");
    }
}
