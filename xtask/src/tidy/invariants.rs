//! The **Invariant:** lines of ARCHITECTURE.md point at what upholds them.
//!
//! An invariant is worth reading because something checks it. Where the line names a file or a test
//! in backticks, that must exist; renaming the test means reading the sentence again.

use super::Finding;
use crate::reference;
use crate::repo::Repo;

const PAGE: &str = "ARCHITECTURE.md";
const MARK: &str = "**Invariant:**";

pub fn check(repo: &Repo) -> Vec<Finding> {
    let Some(text) = repo.text(PAGE) else {
        return vec![Finding::new(PAGE, 0, "missing: it draws the layers and their invariants")];
    };
    let mut findings = Vec::new();
    let mut inside = false;
    let mut any = false;
    for (index, line) in text.lines().enumerate() {
        // An invariant runs to the end of its paragraph or list item.
        let starts = line.contains(MARK);
        let next_item = line.trim_start().starts_with(['-', '*', '#']) || line.trim().is_empty();
        inside = starts || (inside && !next_item);
        any |= starts;
        if !inside {
            continue;
        }
        for text in reference::in_backticks(line).into_iter().filter(|text| is_pointer(text, line))
        {
            if let Err(error) = reference::resolve(repo, text) {
                let message = format!("{error}: an invariant must name what upholds it");
                findings.push(Finding::new(PAGE, index + 1, message));
            }
        }
    }
    if !any {
        findings.push(Finding::new(PAGE, 0, format!("no `{MARK}` line: state what never happens")));
    }
    findings
}

fn is_pointer(text: &str, line: &str) -> bool {
    reference::is_path(text)
        || reference::is_test_name(text)
        || line.contains(&format!("test `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let source = "fn apply() {} fn never_half_applies() {} fn a_b_c_d() {}";
        crate::tidy::messages(check, &[(PAGE, page), ("crates/cell/src/apply.rs", source)])
    }

    #[test]
    fn pointers_that_hold_pass() {
        for page in [
            "**Invariant:** `cell` reads no clock, see `skip_serializing_if`.",
            "**Invariant:** `apply` is total (`crates/cell/src/apply.rs::never_half_applies`).",
            "- **Invariant:** it is total, test\n  `a_b_c_d`.\n- see `crates/later/src/x.rs`",
        ] {
            assert_eq!(found(page), Vec::<String>::new(), "{page}");
        }
    }

    #[test]
    fn pointers_that_rot_are_found() {
        for page in [
            "**Invariant:** total (`crates/cell/src/gone.rs`).",
            "**Invariant:** total (`crates/cell/src/apply.rs::gone`).",
            "**Invariant:** total, by test `gone`.",
            "**Invariant:** total,\nby `some_test_long_gone`.",
            "No invariant here.",
        ] {
            assert_eq!(found(page).len(), 1, "{page}: {:?}", found(page));
        }
        assert_eq!(crate::tidy::messages(check, &[]).len(), 1);
    }
}
