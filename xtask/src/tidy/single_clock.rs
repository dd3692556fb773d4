//! The time of day is asked for in one place.
//!
//! A clock may jump, and what is compared with log time, numbered or kept by it breaks for as long
//! as it is wrong. Whoever needs the time of day asks the one function that does, where tests can
//! move it, and has to say to a reviewer what for.

use super::Finding;
use crate::repo::Repo;

/// Where it is asked for.
const CLOCK_FILE: &str = "crates/identity/src/clock.rs";

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, file) in repo.rust_files() {
        if !path.starts_with("crates/") || path == CLOCK_FILE {
            continue;
        }
        let asks = |index: usize| {
            file.text_at(index) == "SystemTime"
                && file.text_at(index + 1) == ":"
                && file.text_at(index + 3) == "now"
        };
        findings.extend((0..file.tokens.len()).filter(|index| asks(*index)).map(|index| {
            let message = "`SystemTime::now`: decisions take log time; what is of the world asks \
                           `cellwright_identity::clock`";
            Finding::new(path, file.tokens[index].line, message)
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::messages;

    #[test]
    fn a_second_clock_is_found() {
        let source = "fn f() { let now = std::time::SystemTime::now(); }";
        assert_eq!(messages(check, &[("crates/agent/src/lib.rs", source)]).len(), 1);
        assert_eq!(messages(check, &[(CLOCK_FILE, source)]), Vec::<String>::new());
        let given = "fn f(now: SystemTime) { let then = SystemTime::UNIX_EPOCH; }";
        assert_eq!(messages(check, &[("crates/agent/src/lib.rs", given)]), Vec::<String>::new());
    }
}
