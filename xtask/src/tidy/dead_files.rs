//! Every source file is part of a crate.
//!
//! A file no `mod` leads to is not compiled, not linted and not tested, yet it is read, searched
//! and "fixed" by people. Version control remembers what was deleted.

use super::Finding;
use crate::repo::Repo;

pub fn check(repo: &Repo) -> Vec<Finding> {
    let sources: Vec<String> = repo.packages().map(|package| format!("{package}/src/")).collect();
    let dead = repo
        .rust_files()
        .map(|(path, _)| path)
        .filter(|path| sources.iter().any(|source| path.starts_with(source)))
        .filter(|path| !repo.is_reached(path));
    dead.map(|path| {
        Finding::new(path, 0, "no `mod` leads here: nothing compiles or tests it; delete or use it")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_mod_are_found() {
        let files = [
            ("crates/cell/Cargo.toml", "[package]\n"),
            ("crates/cell/src/lib.rs", "mod used;"),
            ("crates/cell/src/used.rs", ""),
            ("crates/cell/src/unused.rs", ""),
        ];
        let found = crate::tidy::messages(check, &files);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/cell/src/unused.rs: no `mod`"), "{found:?}");
    }
}
