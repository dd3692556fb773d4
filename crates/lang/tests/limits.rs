//! Limits on evaluation, with the real child process: this program starts itself again, as `cell`
//! does, which is why it has a `main` of its own instead of the usual harness.

use cellwright_lang::diagnostic::Source;
use cellwright_lang::{CHILD_COMMAND, Diagnostics, Evaluator, Format, Inputs, Limits, LoadOptions};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const TESTS: [(&str, fn()); 3] = [
    ("every_limit_has_an_error_of_its_own", every_limit_has_an_error_of_its_own),
    ("memory_is_counted_from_the_start_of_the_evaluation", memory_from_the_start),
    ("what_never_ends_or_grows_is_ended", what_never_ends_or_grows_is_ended),
];

fn main() -> ExitCode {
    let cli_args: Vec<String> = std::env::args().skip(1).collect();
    if cli_args == [CHILD_COMMAND] {
        return cellwright_lang::run_child();
    }
    // The options that test runners expect of a harness.
    if cli_args.iter().any(|arg| arg == "--list") {
        if !cli_args.iter().any(|arg| arg == "--ignored") {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        }
        return ExitCode::SUCCESS;
    }
    let wanted = |name: &str| {
        let mut names = cli_args.iter().filter(|arg| !arg.starts_with("--")).peekable();
        names.peek().is_none() || names.any(|arg| name.contains(arg.as_str()))
    };
    TESTS.iter().filter(|(name, _)| wanted(name)).for_each(|(_, test)| test());
    ExitCode::SUCCESS
}

fn every_limit_has_an_error_of_its_own() {
    let usual = Limits::default();
    let fine = "{ name: 'w', priority: 1, cpu: '1', ram: '1GiB', command: ['a'] }";
    assert_eq!(error_text(fine, usual), "");
    let endless = "local f(x) = if x < 0 then x else f(x + 1) tailstrict; f(0)";
    let limits = Limits { cpu_seconds: 1, ..usual };
    check(endless, limits, "time limit: 1 s; look for what never ends");
    let limits = Limits { wall: Duration::from_millis(50), ..usual };
    check(endless, limits, "by the clock");
    let growing =
        "local f(x) = if std.length(x) < 0 then x else f(x + x) tailstrict; f('xxxxxxxx')";
    let limits = Limits { memory_bytes: 512 << 20, ..usual };
    check(growing, limits, "memory limit: 512 MiB");
    check("local f(x) = 1 + f(x + 1); f(0)", usual, "depth limit: 500 calls within calls");
    let nested = format!("{}1{}", "{a:".repeat(200_000), "}".repeat(200_000));
    check(&nested, usual, "depth limit");
    let large = "{ a: std.repeat('x', 3000000) }";
    check(large, Limits { output_bytes: 1 << 20, ..usual }, "output limit: 1 MiB");
    check("{ a: 1 + }", usual, "cannot stand here");
}

/// Memory limits do not depend on the size of the evaluating program: a small file takes little,
/// and one that exceeds its limit is ended, with limits far below the size of this program in a
/// debug build.
fn memory_from_the_start() {
    let little = Limits { memory_bytes: 16 << 20, ..Limits::default() };
    let size = |mib: u32| {
        format!(
            "{{ name: 'w', priority: 1, cpu: '1', ram: '1GiB',
               command: ['%d' % std.length(std.repeat('x', {mib} * 1024 * 1024))] }}"
        )
    };
    assert_eq!(error_text(&size(1), little), "");
    check(&size(64), little, "memory limit: 16 MiB");
    assert_eq!(error_text(&size(64), Limits { memory_bytes: 256 << 20, ..little }), "");
}

/// Common mistakes: each ends with an error that names the limit.
fn what_never_ends_or_grows_is_ended() {
    // Smaller than the defaults, so that the test is quick: the limits are the same.
    let usual = Limits { memory_bytes: 256 << 20, cpu_seconds: 1, ..Limits::default() };
    let doubled = |first: &str, next: &str, last: &str| {
        let lines: String = (1..=40)
            .map(|at| next.replace("NEW", &at.to_string()).replace("OLD", &(at - 1).to_string()))
            .collect();
        format!("local {first};\n{lines}{last}")
    };
    let lists = doubled("a0 = [1]", "local aNEW = [aOLD, aOLD];\n", "a40");
    let texts = doubled("a0 = 'x'", "local aNEW = aOLD + aOLD;\n", "a40");
    let objects =
        doubled("a0 = { v: 1 }", "local aNEW = { v: (aOLD + {}).v + (aOLD + {}).v };\n", "a40.v");
    let limits = "limit: ";
    for text in [
        "local f(x) = f(x + 1) tailstrict; f(0)",
        "local f(x) = [f(x + 1)]; f(0)",
        "local f(x) = f(x + 1); f(0)",
        "std.range(1, 1000000000)",
        "std.makeArray(1000000000, function(i) i)",
        "std.foldl(function(a, b) a + a, std.range(1, 100), 'x')",
        "std.repeat('xxxxxxxxxx', 1000000000)",
        "std.join('', std.repeat(['x'], 1000000000))",
        "local r = std.range(1, 10000); [1 for a in r for b in r for c in r if false]",
        "{ [std.toString(a) + b]: 1 for a in std.range(1, 100000) for b in ['x', 'y'] for c in \
         std.range(1, 100000) if c < 0 }",
        &texts,
        &objects,
        // Nothing grows here, and nothing is called, until it is written out.
        &lists,
    ] {
        check(text, usual, limits);
    }
}

/// The error of the text; empty if it is valid.
fn error_text(text: &str, limits: Limits) -> String {
    let program = std::env::current_exe().expect("the program has a path");
    let options = LoadOptions {
        evaluator: Evaluator::Child(program),
        limits,
        owner: None,
        inputs: Inputs::default(),
    };
    let source = Source { name: "f.jsonnet".into(), text: text.into() };
    match cellwright_lang::load_text(&source, Path::new("."), Format::Jsonnet, &options) {
        Ok(_) => String::new(),
        Err(Diagnostics(errors)) => {
            errors.iter().map(|diagnostic| diagnostic.render(false)).collect()
        }
    }
}

fn check(text: &str, limits: Limits, expected: &str) {
    let message = error_text(text, limits);
    let start: String = text.chars().take(60).collect();
    assert!(message.contains(expected), "{start}: {message}");
}
