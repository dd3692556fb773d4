//! Every task and thread of a process that serves says what its end means.
//!
//! A task that panics takes nobody with it, so what it did is silently not done any more. The kinds
//! there are stand in `cellwright_supervise`, and whoever starts a task there has to choose one;
//! whoever starts one by the runtime alone has forgotten to.

use super::Finding;
use crate::repo::Repo;
use crate::rust_file::RustFile;

/// Crates of processes that serve.
const SERVING: &[&str] = &[
    "agent",
    "api",
    "cli",
    "gateway",
    "history",
    "identity",
    "isolate",
    "lang",
    "master",
    "names",
    "package",
    "scheduler",
    "shim",
    "sim",
    "store",
];

/// Files that start some in their own way, and why that is in order.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/agent/src/session/helper.rs", "a process of one session, which ends with its parts"),
    ("crates/api/src/client/connection.rs", "of one connection: its end reaches whoever asked"),
    ("crates/cli/src/commands/exec.rs", "of a command that asks and prints"),
    ("crates/cli/src/commands/logs.rs", "of a command that asks and prints"),
    ("crates/cli/src/commands/package/import.rs", "of a command that asks and prints"),
    ("crates/lang/src/evaluate/mod.rs", "of a command that reads job files"),
    ("crates/package/src/registry/http_client.rs", "of one connection of a command that imports"),
];

/// What starts one: the last two words of the path.
const SPAWN_PATHS: &[(&str, &str)] =
    &[("tokio", "spawn"), ("task", "spawn"), ("thread", "spawn"), ("thread", "Builder")];

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, file) in repo.rust_files() {
        let folder = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
        let is_product = |(folder, rest): (&str, &str)| {
            SERVING.contains(&folder) && rest.starts_with("src/") && !repo.is_test_file(path)
        };
        let is_allowed = ALLOWED.iter().any(|(allowed, _)| *allowed == path);
        if !folder.is_some_and(is_product) || is_allowed {
            continue;
        }
        let starts = (0..file.tokens.len()).filter(|index| is_spawn(file, *index));
        findings.extend(starts.map(|index| {
            let message = "a task that nobody supervises: say with `cellwright_supervise` whether \
                           it is essential, restarted or of one request";
            Finding::new(path, file.tokens[index].line, message)
        }));
    }
    findings
}

fn is_spawn(file: &RustFile, index: usize) -> bool {
    let words = (file.text_at(index), file.text_at(index + 3));
    let is_path = file.text_at(index + 1) == ":" && file.text_at(index + 2) == ":";
    is_path && !file.tokens[index].test && SPAWN_PATHS.contains(&words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::messages;

    #[test]
    fn a_task_that_nobody_supervises_is_found() {
        let found = |path: &str, source: &str| messages(check, &[(path, source)]).len();
        let bare = "fn f() { tokio::spawn(g()); std::thread::spawn(h); tokio::task::spawn(g()); \
                    thread::Builder::new(); }";
        assert_eq!(found("crates/gateway/src/serve.rs", bare), 4);
        assert_eq!(found("crates/supervise/src/lib.rs", bare), 0);
        assert_eq!(found("crates/sched/src/solve.rs", bare), 0);
        assert_eq!(found("crates/gateway/tests/http/main.rs", bare), 0);
        assert_eq!(found(ALLOWED[0].0, bare), 0);
        let of_test = "#[cfg(test)] mod tests { fn f() { tokio::spawn(g()); } }";
        assert_eq!(found("crates/gateway/src/serve.rs", of_test), 0);
        let supervised = "fn f() { supervisor.essential(\"x\", g()); of_request(\"y\", h()); }";
        assert_eq!(found("crates/gateway/src/serve.rs", supervised), 0);
    }
}
