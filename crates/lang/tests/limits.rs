//! Limits on evaluation, with the real child process: this program starts itself again, as `cell`
//! does, which is why it has a `main` of its own instead of the usual harness.

use cellwright_lang::diagnostic::Source;
use cellwright_lang::{CHILD, Diagnostics, Evaluator, Format, Limits, Options};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const TESTS: [(&str, fn()); 3] = [
    ("every_limit_has_an_error_of_its_own", every_limit_has_an_error_of_its_own),
    ("steps_are_the_same_whatever_the_machine_does", steps_are_the_same_whatever_the_machine_does),
    ("what_never_ends_or_grows_is_ended", what_never_ends_or_grows_is_ended),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == [CHILD] {
        return cellwright_lang::run_child();
    }
    // The little that test runners ask of a harness.
    if words.iter().any(|word| word == "--list") {
        if !words.iter().any(|word| word == "--ignored") {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        }
        return ExitCode::SUCCESS;
    }
    let wanted = |name: &str| {
        let mut names = words.iter().filter(|word| !word.starts_with("--")).peekable();
        names.peek().is_none() || names.any(|word| name.contains(word.as_str()))
    };
    TESTS.iter().filter(|(name, _)| wanted(name)).for_each(|(_, test)| test());
    ExitCode::SUCCESS
}

fn every_limit_has_an_error_of_its_own() {
    let usual = Limits::default();
    let fine = "{ name: 'w', priority: 1, cpu: '1', ram: '1GiB', command: ['a'] }";
    assert_eq!(said(fine, usual), "");
    let endless = "local f(x) = if x < 0 then x else f(x + 1) tailstrict; f(0)";
    check(endless, Limits { steps: 1000, ..usual }, "step limit: 1,000 calls of functions");
    let unlimited = Limits { steps: u64::MAX, ..usual };
    let limits = Limits { cpu_seconds: 1, ..unlimited };
    check(endless, limits, "time limit: 1 s; look for what never ends");
    let limits = Limits { wall: Duration::from_millis(50), ..unlimited };
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

/// Just enough steps are enough, again and again, and one less is not.
fn steps_are_the_same_whatever_the_machine_does() {
    let job = |value: &str| {
        format!(
            "{{ name: 'w', priority: 1, cpu: '1', ram: '1GiB', command: ['a', '%d' % {value}] }}"
        )
    };
    let loops = "local f(x) = if x == 0 then 0 else f(x - 1) tailstrict; ";
    // Of the job two fields are computed.
    let counted = [
        (format!("{loops}{}", job("f(99)")), 101),
        (job("std.length([1 for x in std.range(1, 10) for y in std.range(1, 10)])"), 111),
        (job("std.foldl(function(sum, x) sum + x, std.range(1, 50), 0)"), 51),
        (format!("local o = {{ a: 1 + 1 }}; {}", job("o.a + (o + {}).a + o.a")), 3),
    ];
    for (text, steps) in counted {
        let usual = Limits::default();
        assert_eq!(said(&text, Limits { steps, ..usual }), "", "{text}");
        let help = format!("step limit: {} calls", steps - 1);
        check(&text, Limits { steps: steps - 1, ..usual }, &help);
    }
    let said = said(
        "local f(x) =\n  f(x + 1) tailstrict;\nf(0)",
        Limits { steps: 9, ..Limits::default() },
    );
    assert!(said.contains("--> f.jsonnet:2:3") && !said.contains("import"), "{said}");
}

/// Mistakes of every week: each ends with the name of a limit.
fn what_never_ends_or_grows_is_ended() {
    // Fewer steps than usual, since debugging builds take a while for each.
    let usual = Limits { memory_bytes: 512 << 20, steps: 200_000, ..Limits::default() };
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
    ] {
        check(text, usual, limits);
    }
    // Nothing grows here, and nothing is called, until it is written out.
    check(&lists, Limits { cpu_seconds: 1, ..usual }, "time limit: 1 s");
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
