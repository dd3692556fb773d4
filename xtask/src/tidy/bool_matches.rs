//! Two ways are an `if`, not a `match`.
//!
//! A reader of `match ready { true => …, false => … }` has to find out that the value is a bool;
//! `if` says so with its first word. Clippy knows the plain form and passes over arms with guards.

use super::Finding;
use crate::repo::Repo;

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, file) in repo.rust_files() {
        // A guard may end in a comparison with a literal: the arm before it is of something else.
        let opens_arm = |index: usize| {
            matches!(file.text_at(index), "true" | "false")
                && index.checked_sub(1).is_none_or(|before| file.text_at(before) != "=")
                && (file.text_at(index + 1) == "if"
                    || (file.text_at(index + 1) == "=" && file.text_at(index + 2) == ">"))
        };
        findings.extend((0..file.tokens.len()).filter(|index| opens_arm(*index)).map(|index| {
            Finding::new(path, file.tokens[index].line, "`match` on a bool: write `if` and `else`")
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::messages;

    #[test]
    fn arms_of_bools_are_found_with_and_without_guards() {
        let count = |source| messages(check, &[("crates/cell/src/lib.rs", source)]).len();
        assert_eq!(count("fn f(x: bool) -> u8 { match x { true => 1, false => 2 } }"), 2);
        assert_eq!(count("fn f(x: bool) { match x { true if g() => {} _ => {} } }"), 1);
        assert_eq!(count("fn f(x: (bool, u8)) { match x { (true, 1) => {} _ => {} } }"), 0);
        assert_eq!(count("fn f(x: &Value) { match g() { _ if *x == true => {} _ => {} } }"), 0);
        assert_eq!(count("fn f() -> bool { if g() { true } else { false } }"), 0);
    }
}
