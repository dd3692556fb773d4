//! Limits on evaluation, with the real child process: this program starts itself again, as `cell`
//! does, which is why it has a `main` of its own instead of the usual harness.

use cellwright_lang::diagnostic::Source;
use cellwright_lang::{CHILD, Diagnostics, Evaluator, Format, Limits, Options};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == [CHILD] {
        return cellwright_lang::run_child();
    }
    // The little that test runners ask of a harness.
    if words.iter().any(|word| word == "--list") {
        if !words.iter().any(|word| word == "--ignored") {
            println!("every_limit_has_an_error_of_its_own: test");
        }
        return ExitCode::SUCCESS;
    }
    every_limit_has_an_error_of_its_own();
    ExitCode::SUCCESS
}

fn every_limit_has_an_error_of_its_own() {
    let usual = Limits::default();
    let fine = "{ name: 'w', priority: 1, cpu: '1', ram: '1GiB', command: ['a'] }";
    assert_eq!(said(fine, usual), "");
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

/// What is wrong with the text, in words; nothing when it is right.
fn said(text: &str, limits: Limits) -> String {
    let program = std::env::current_exe().expect("the program has a path");
    let options = Options { evaluator: Evaluator::Child(program), limits, owner: None };
    let source = Source { name: "f.jsonnet".into(), text: text.into() };
    match cellwright_lang::load_text(&source, Path::new("."), Format::Jsonnet, &options) {
        Ok(_) => String::new(),
        Err(Diagnostics(wrong)) => wrong.iter().map(|one| one.render(false)).collect(),
    }
}

fn check(text: &str, limits: Limits, says: &str) {
    let said = said(text, limits);
    let start: String = text.chars().take(60).collect();
    assert!(said.contains(says), "{start}: {said}");
}
