//! Size budgets: a file, a function, a line.
//!
//! What grows without limit becomes the file that is both event loop and business rules. A budget
//! is a prompt to split along a seam. Code over budget is listed in `xtask/tidy-allow.txt` with its
//! present size; the list only shrinks, so what has been improved stays improved.

use std::collections::BTreeMap;

use super::Finding;
use crate::repo::Repo;
use crate::rust_file::{Kind, RustFile};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;
const COLUMNS: usize = 100;
const ALLOW_LIST: &str = "xtask/tidy-allow.txt";

/// What is over budget: (path, kind) → where and how much.
type ExcessMap = BTreeMap<(String, String), Excess>;

struct Excess {
    line: usize,
    size: usize,
    rule: String,
}

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut excesses = ExcessMap::new();
    for (path, file) in repo.rust_files() {
        if !file.lines.first().is_some_and(|line| line.starts_with("//!")) {
            let message =
                "must open with `//!`: say what this file is and why, for the next reader";
            findings.push(Finding::new(path, 1, message));
        }
        measure(path, file, repo.is_test_file(path), &mut excesses);
    }
    console(repo, &mut findings, &mut excesses);
    compare_with_allow_list(repo.text(ALLOW_LIST).unwrap_or(""), excesses, &mut findings);
    findings
}

/// Scripts and styles of the console have a purpose and a size too; what others wrote has theirs.
fn console(repo: &Repo, findings: &mut Vec<Finding>, excesses: &mut ExcessMap) {
    let own = |path: &str| {
        path.starts_with("console/")
            && !path.starts_with("console/vendor/")
            && (path.ends_with(".js") || path.ends_with(".css"))
    };
    for (path, text) in repo.texts().filter(|(path, _)| own(path)) {
        if !text.starts_with("// ") && !text.starts_with("/* ") {
            let message = "must open with a comment: say what this file is, for the next reader";
            findings.push(Finding::new(path, 1, message));
        }
        let size = text.lines().count();
        if size > FILE_LINES {
            let rule = format!("the file has {size} lines, budget {FILE_LINES}: split it");
            let key = (path.to_owned(), "file".to_owned());
            excesses.insert(key, Excess { line: 0, size, rule });
        }
    }
}

fn measure(path: &str, file: &RustFile, test_file: bool, excesses: &mut ExcessMap) {
    let mut add = |kind: String, line: usize, size: usize, rule: String| {
        let excess = Excess { line, size, rule };
        let slot = excesses.entry((path.to_owned(), kind));
        let largest = slot.or_insert(Excess { line, size: 0, rule: String::new() });
        if size > largest.size {
            *largest = excess;
        }
    };
    let lines = (1..=file.lines.len()).filter(|&line| !file.is_test_line(line)).count();
    if !test_file && lines > FILE_LINES {
        let rule =
            format!("the file has {lines} lines outside tests, budget {FILE_LINES}: split it");
        add("file".to_owned(), 0, lines, rule);
    }
    for f in file.functions().into_iter().filter(|f| f.lines > FUNCTION_LINES) {
        let rule = format!("`{}` has {} lines, budget {FUNCTION_LINES}: split it", f.name, f.lines);
        add(format!("function:{}", f.name), f.line, f.lines, rule);
    }
    let wide = wide_lines(file, test_file);
    if let Some(first) = wide.first() {
        let list: Vec<String> = wide.iter().map(ToString::to_string).collect();
        let list = list.join(", ");
        let rule = format!("wider than {COLUMNS} columns (lines {list}): side-by-side reading");
        add("line".to_owned(), *first, wide.len(), rule);
    }
}

fn wide_lines(file: &RustFile, test_file: bool) -> Vec<usize> {
    let wide = |line: &usize| file.lines[line - 1].chars().count() > COLUMNS;
    (1..=file.lines.len()).filter(wide).filter(|&line| !is_exempt(file, line, test_file)).collect()
}

/// A URL in a comment cannot be broken, expected text in a test should not be.
fn is_exempt(file: &RustFile, line: usize, test_file: bool) -> bool {
    let text = file.lines[line - 1].trim_start();
    if text.starts_with("//") {
        return text.contains("://");
    }
    let in_test = test_file || file.is_test_line(line);
    let opens_string = ["\"", "r\"", "r#", "b\""].iter().any(|quote| text.starts_with(quote));
    let inside_string = || {
        let mut literals = file.tokens.iter().filter(|token| token.kind == Kind::Literal);
        literals.any(|token| token.line < line && line <= token.end_line)
    };
    in_test && (opens_string || inside_string())
}

fn compare_with_allow_list(allow_list: &str, mut excesses: ExcessMap, findings: &mut Vec<Finding>) {
    for (index, raw) in allow_list.lines().enumerate() {
        let entry = raw.split('#').next().unwrap_or("").trim();
        if entry.is_empty() {
            continue;
        }
        let fields: Vec<&str> = entry.split_whitespace().collect();
        let parsed = match fields.as_slice() {
            [path, kind, number] => number.parse::<usize>().ok().map(|n| (*path, *kind, n)),
            _ => None,
        };
        let complain = |message: String| Finding::new(ALLOW_LIST, index + 1, message);
        let Some((path, kind, allowed)) = parsed else {
            findings.push(complain(format!("`{entry}` is not `path kind number`")));
            continue;
        };
        let key = (path.to_owned(), kind.to_owned());
        match excesses.get(&key).map(|excess| excess.size) {
            None => findings.push(complain(format!(
                "`{path} {kind}` is within budget now: remove the entry, the list only shrinks"
            ))),
            Some(size) if size < allowed => findings.push(complain(format!(
                "`{path} {kind}` needs only {size}, not {allowed}: lower it, the list only shrinks"
            ))),
            Some(size) if size == allowed => drop(excesses.remove(&key)),
            Some(_) => {}
        }
    }
    for ((path, _), excess) in excesses {
        findings.push(Finding::new(&path, excess.line, excess.rule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::messages;

    const PATH: &str = "crates/sim/src/lib.rs";

    fn found(source: &str, allow: &str) -> Vec<String> {
        messages(check, &[(PATH, source), (ALLOW_LIST, allow)])
    }

    fn function(lines: usize) -> String {
        format!("//! Doc.\nfn long() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn files_open_with_their_purpose() {
        assert_eq!(found("//! Doc.\n", ""), Vec::<String>::new());
        assert!(found("use x;\n", "")[0].contains("must open with `//!`"));
        assert!(found("", "")[0].contains("must open with `//!`"));
    }

    #[test]
    fn test_lines_do_not_count_for_the_file() {
        let product = format!("//! Doc.\n{}", "use a;\n".repeat(599));
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "use a;\n".repeat(50));
        assert_eq!(found(&format!("{product}{tests}"), ""), Vec::<String>::new());
        assert!(found(&format!("{product}use b;\n{tests}"), "")[0].contains("has 601 lines"));
    }

    #[test]
    fn the_console_has_budgets_but_not_what_others_wrote() {
        let long = format!("// What it is.\n{}", "f();\n".repeat(600));
        let found = |path: &str, text: &str| messages(check, &[(path, text)]);
        assert!(found("console/a.js", &long)[0].contains("has 601 lines"));
        assert!(found("console/a.css", "a {}\n")[0].contains("must open with a comment"));
        assert_eq!(found("console/a.css", "/* What it is. */\n"), Vec::<String>::new());
        assert_eq!(found("console/vendor/a.js", &long[2..]), Vec::<String>::new());
    }

    #[test]
    fn functions_have_seventy_lines() {
        assert_eq!(found(&function(70), ""), Vec::<String>::new());
        assert!(found(&function(71), "")[0].contains("lib.rs:2: `long` has 71 lines"));
    }

    #[test]
    fn lines_have_a_hundred_columns() {
        let long = "x".repeat(110);
        let test = |line: &str| format!("//! Doc.\n#[cfg(test)]\nmod t {{\n{line}\n}}\n");
        for fine in [
            format!("//! Doc.\n// https://example.org/{long}\n"),
            test(&format!("    const A: &str =\n        \"{long}\";")),
            test(&format!("    const A: &str = \"\n{long}\n\";")),
        ] {
            assert_eq!(found(&fine, ""), Vec::<String>::new(), "{fine}");
        }
        for wide in [
            format!("//! Doc.\n// {long}\n"),
            format!("//! Doc.\nconst A: &str =\n    \"{long}\";\n"),
            test(&format!("    const {long}: u8 = 1;")),
        ] {
            assert!(found(&wide, "")[0].contains("wider than 100"), "{wide}");
        }
    }

    #[test]
    fn the_allow_list_only_shrinks() {
        let entry = |number: usize| format!("# why\n{PATH} function:long {number}\n");
        assert_eq!(found(&function(80), &entry(80)), Vec::<String>::new());
        assert!(found(&function(80), &entry(79))[0].contains("has 80 lines"));
        let loose = found(&function(80), &entry(81));
        assert!(loose.iter().any(|m| m.contains("needs only 80, not 81")), "{loose:?}");
        assert!(found(&function(60), &entry(80))[0].contains("within budget now"));
        assert!(found(&function(60), "nonsense\n")[0].contains("is not `path kind number`"));
    }
}
