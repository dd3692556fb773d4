//! Pure crates depend on their arguments alone.
//!
//! Every replica applies the same log and must reach the same bytes; the simulator must repeat what
//! the cell did. One clock read or one walk in hash order breaks both, far from where it happened.
//! So the ban is on names, for the whole crate, and there is no way to waive it in the source. What
//! a pure crate needs from the world arrives as an argument.

use super::{Finding, PURE_CRATES};
use crate::repo::Repo;
use crate::rust_file::{Kind, RustFile};

enum Pattern {
    /// `std::name`, also inside `use std::{…}`.
    Std(&'static [&'static str]),
    /// The path starts at this crate.
    Crate(&'static [&'static str]),
    /// This identifier, wherever it comes from.
    Name(&'static [&'static str]),
    Macro(&'static [&'static str]),
    FloatLiteral,
}

struct Ban {
    pattern: Pattern,
    /// Whether test code is held to it as well.
    in_tests: bool,
    reason: &'static str,
}

use Pattern::{Crate, FloatLiteral, Macro, Name, Std};

const BANS: &[Ban] = &[
    Ban {
        pattern: Name(&["Instant", "SystemTime", "now_utc", "now_local", "current_local_offset"]),
        in_tests: true,
        reason: "no clock: `now` is an argument, so that a replay sees the same time",
    },
    Ban {
        pattern: Std(&["thread"]),
        in_tests: false,
        reason: "no threads: parallel work goes through an executor given by the caller",
    },
    Ban {
        pattern: Std(&["fs", "net", "io", "env", "process"]),
        in_tests: false,
        reason: "no input or output: the effect crates read and write, this one decides",
    },
    Ban {
        pattern: Crate(&["tokio", "async_std", "smol"]),
        in_tests: true,
        reason: "no runtime: a pure step is called, it does not wait",
    },
    Ban {
        pattern: Crate(&["rayon", "crossbeam"]),
        in_tests: false,
        reason: "no threads: parallel work goes through an executor given by the caller",
    },
    Ban {
        pattern: Crate(&["rand", "fastrand"]),
        in_tests: false,
        reason: "no randomness source: seeds arrive as arguments",
    },
    Ban {
        pattern: Name(&["thread_rng", "getrandom", "OsRng", "from_os_rng", "from_entropy"]),
        in_tests: true,
        reason: "no randomness source: seeds arrive as arguments",
    },
    Ban {
        pattern: Macro(&["println", "eprintln", "print", "eprint", "dbg"]),
        in_tests: false,
        reason: "no output: return a value, or an event with its reason",
    },
    Ban {
        pattern: Name(&["HashMap", "HashSet", "FxHashMap", "FxHashSet", "hashbrown"]),
        in_tests: true,
        reason: "no hash order: iteration differs between runs; use BTreeMap or a sorted Vec",
    },
    Ban {
        pattern: Name(&["RandomState", "DefaultHasher"]),
        in_tests: true,
        reason: "no hasher that changes between runs or releases: hashes are part of the state",
    },
    Ban {
        pattern: Name(&["f32", "f64"]),
        in_tests: false,
        reason: "no floats: sums must be exact and equal everywhere; use fixed-point integers",
    },
    Ban {
        pattern: FloatLiteral,
        in_tests: false,
        reason: "no floats: sums must be exact and equal everywhere; use fixed-point integers",
    },
    Ban {
        pattern: Macro(&["thread_local"]),
        in_tests: true,
        reason: "no hidden state: all state is in the arguments",
    },
    Ban {
        pattern: Name(&["unsafe"]),
        in_tests: true,
        reason: "no unsafe code: nothing here is worth undefined behaviour in every replica",
    },
];

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, file) in repo.rust_files() {
        let folder = path.strip_prefix("crates/").and_then(|rest| rest.split('/').next());
        if folder.is_some_and(|folder| PURE_CRATES.contains(&folder)) {
            check_file(path, file, repo.is_test_file(path), &mut findings);
        }
    }
    findings
}

fn check_file(path: &str, file: &RustFile, test_file: bool, findings: &mut Vec<Finding>) {
    for (index, token) in file.tokens.iter().enumerate() {
        if !matches!(token.kind, Kind::Ident | Kind::Literal) {
            continue;
        }
        let in_test = test_file || token.test;
        for ban in BANS.iter().filter(|ban| ban.in_tests || !in_test) {
            if ban.pattern.matches(file, index) {
                let message = format!("`{}` in a pure crate: {}", token.text, ban.reason);
                findings.push(Finding::new(path, token.line, message));
            }
        }
        if hides_std(file, index) {
            let message = "name `std` items by their full path: the purity check reads paths";
            findings.push(Finding::new(path, token.line, message));
        }
    }
}

impl Pattern {
    fn matches(&self, file: &RustFile, index: usize) -> bool {
        let token = &file.tokens[index];
        if token.kind == Kind::Literal {
            return matches!(self, FloatLiteral) && is_float(file, index);
        }
        let text = token.text.as_str();
        token.kind == Kind::Ident
            && match self {
                Std(names) => names.contains(&text) && is_in_std(file, index),
                Crate(names) => names.contains(&text) && starts_path(file, index),
                Name(names) => names.contains(&text),
                Macro(names) => names.contains(&text) && file.text_at(index + 1) == "!",
                FloatLiteral => false,
            }
    }
}

/// `std::name`, or `name` at the top level of `std::{…}`.
fn is_in_std(file: &RustFile, index: usize) -> bool {
    let after_std =
        |end: usize| end >= 3 && file.path_separator(end - 2) && file.text_at(end - 3) == "std";
    if after_std(index) {
        return true;
    }
    let depth = file.tokens[index].depth;
    if depth == 0 || index == 0 || !matches!(file.text_at(index - 1), "{" | ",") {
        return false;
    }
    (0..index)
        .rev()
        .find(|&i| file.tokens[i].kind == Kind::Open && file.tokens[i].depth == depth - 1)
        .is_some_and(|open| file.text_at(open) == "{" && after_std(open))
}

/// `name::…`, `::name`, or `use name`; a module of our own, as in `crate::name`, is not meant.
fn starts_path(file: &RustFile, index: usize) -> bool {
    let inside = index >= 3
        && file.path_separator(index - 2)
        && (file.tokens[index - 3].kind == Kind::Ident || file.text_at(index - 3) == ">")
        && file.text_at(index - 3) != "use";
    let named = index > 0 && matches!(file.text_at(index - 1), "use" | "crate");
    !inside && (named || file.path_separator(index + 1))
}

/// `use std as other` or `use std::*` would carry banned names past the check.
fn hides_std(file: &RustFile, index: usize) -> bool {
    file.text_at(index) == "std"
        && file.tokens[index].kind == Kind::Ident
        && (file.text_at(index + 1) == "as"
            || (file.path_separator(index + 1) && file.text_at(index + 3) == "*"))
}

fn is_float(file: &RustFile, index: usize) -> bool {
    let text = file.text_at(index);
    // `pair.0.1` lexes its two indices as one literal.
    let tuple_index = index > 0 && file.text_at(index - 1) == ".";
    let decimal = text.starts_with(|c: char| c.is_ascii_digit())
        && !["0x", "0o", "0b"].iter().any(|prefix| text.starts_with(prefix));
    let suffixed = text.ends_with("f32") || text.ends_with("f64");
    let exponent = text.contains(['e', 'E']) && !text.contains("size");
    decimal && !tuple_index && (suffixed || exponent || text.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::messages;

    fn found(source: &str) -> Vec<String> {
        messages(
            check,
            &[
                ("crates/cell/Cargo.toml", "[package]\nname = \"cellwright-cell\"\n"),
                ("crates/cell/src/lib.rs", source),
            ],
        )
    }

    #[test]
    fn impure_code_is_found() {
        for source in [
            "fn f() { std::time::Instant::now(); }",
            "fn f() { time::OffsetDateTime::now_utc(); }",
            "use std::time::{Duration, SystemTime};",
            "use std::{collections::BTreeMap, fs};",
            "use std::{fs::File, fmt};",
            "fn f() { std::env::var(\"X\"); }",
            "use std::thread;",
            "use ::rand::Rng;",
            "use rand;",
            "fn f() { rand::rng(); }",
            "fn f() { println!(\"x\"); }",
            "use std::collections::HashMap;",
            "type M = FxHashMap<u8, u8>;",
            "fn f() { tokio::spawn(g()); }",
            "fn f(x: f64) {}",
            "const X: u8 = (1.5) as u8;",
            "const X: u8 = 1e3 as u8;",
            "fn f() { unsafe { g() } }",
            "use std as s;",
            "use std::*;",
            "#[cfg(test)] mod t { use std::collections::HashSet; }",
            "#[cfg(test)] mod t { use std::time::Instant; }",
        ] {
            assert_eq!(found(source).len(), 1, "{source}: {:?}", found(source));
        }
    }

    #[test]
    fn pure_code_passes() {
        for source in [
            "//! No HashMap, no f64, no Instant::now here: `println!` neither.",
            "use std::{collections::BTreeMap, fmt, time::Duration};",
            "fn f() -> &'static str { \"HashMap 1.5 println!\" }",
            "fn f(p: ((u8, u8), u8)) -> u8 { p.0.1 }",
            "const X: u32 = 0xfe; const Y: usize = 1usize; const Z: u8 = b'e';",
            "use crate::process::Process; mod io; use self::rand::draw;",
            "use crate::{io, env};",
            "#[cfg(test)] mod t { fn f() { println!(\"{}\", 1.5); std::fs::read(\"x\"); } }",
        ] {
            assert_eq!(found(source), Vec::<String>::new(), "{source}");
        }
    }

    #[test]
    fn effect_crates_are_left_alone() {
        let files = [("crates/sim/src/lib.rs", "use std::time::Instant;")];
        assert_eq!(messages(check, &files), Vec::<String>::new());
    }

    #[test]
    fn findings_name_the_line_and_the_reason() {
        let expected = "crates/cell/src/lib.rs:2: `SystemTime` in a pure crate: no clock: `now` is \
                        an argument, so that a replay sees the same time";
        assert_eq!(found("\nuse std::time::SystemTime;"), [expected]);
    }
}
