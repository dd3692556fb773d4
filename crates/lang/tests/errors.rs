//! All errors in a file are reported at once, in reading order, without errors that only follow
//! from others.

use cellwright_cell::name::Name;
use cellwright_lang::diagnostic::{Diagnostic, Source};
use cellwright_lang::{Diagnostics, Evaluator, Format, Inputs, Limits, LoadOptions};
use std::path::Path;

fn load_errors(name: &str, text: &str) -> Vec<Diagnostic> {
    let owner = Some(Name::new("dev").unwrap());
    let options = LoadOptions {
        evaluator: Evaluator::InProcess,
        limits: Limits::default(),
        owner,
        inputs: Inputs::default(),
    };
    let source = Source { name: name.into(), text: text.into() };
    let format = Format::of(Path::new(name)).unwrap();
    match cellwright_lang::load_text(&source, Path::new("."), format, &options) {
        Ok(_) => Vec::new(),
        Err(Diagnostics(errors)) => errors,
    }
}

/// The errors of the file have these lines and contain these texts, and each says what is allowed.
fn check(name: &str, text: &str, want: &[(u32, &str)]) {
    let errors = load_errors(name, text);
    let all: String = errors.iter().map(|diagnostic| diagnostic.render(false)).collect();
    let lines = |diagnostic: &Diagnostic| diagnostic.place.as_ref().map_or(0, |place| place.line);
    let got: Vec<u32> = errors.iter().map(lines).collect();
    assert_eq!(got, want.iter().map(|(line, _)| *line).collect::<Vec<_>>(), "{all}");
    for (diagnostic, (_, expected)) in errors.iter().zip(want) {
        assert!(
            diagnostic.message.contains(expected),
            "{expected:?} is not in {:?}",
            diagnostic.message
        );
    }
}

/// The only error of a job that has `fields` besides the required ones.
fn check_alone(fields: &str, expected: &str) {
    let text = format!(
        "local base = {{ priority: 200, cpu: '1', ram: '1GiB', command: ['a'] }};\n\
         {{ web: base + {{ {fields} }} }}"
    );
    check("f.jsonnet", &text, &[(2, expected)]);
}

/// One error of each kind, in several jobs.
const ALL_KINDS: &str = "\
web:
  priority: 900
  cpu: 500m
  ram: 2 gigs
  count: '3'
  prots: 1
  command: sleep 5
  after: nobody
  at_most_one: 0
  health: {probe: {http: {port: 0, path: healthy}}}
  isolation:
    volumes:
      - {source: /srv, target: /dev/shm}
      - {source: srv, target: /data}
  restart: {retry: {exit: {300: 1}}}
small:
  priority: batch
  cpu: '1'
  ram: 1MiB
  command: []
  preemption_notice_max: 5s
  constraints:
    - {attribute: os, operator: {matches: '('}}
tick:
  schedule: '* * * *'
  keep_runs: 500
  job: {priority: 100, ram: 64MiB, command: [date], alloc_set: Pool}
";

#[test]
fn one_of_each_kind_is_told_in_one_go() {
    let want = [
        (2, "900 is out of range"),
        (4, "\"2 gigs\" is no amount here"),
        (5, "a number is wanted here, not \"3\""),
        (6, "there is no field `prots` here; did you mean `ports`?"),
        (7, "a list is wanted here"),
        (8, "there is no job \"nobody\" in this file"),
        (9, "0 is out of range"),
        (10, "task.health.probe.http.path: \"healthy\" is not valid"),
        (13, "task.isolation.volumes[0].target: \"/dev/shm\" is not valid"),
        (14, "task.isolation.volumes[1].source: \"srv\" is not valid"),
        (15, "restart.retry.exit.300 (code): 300 is not valid"),
        (19, "task.limits.ram: 1048576 is not valid"),
        (20, "task.command: [] is not valid"),
        (21, "preemption_notice_max: 5000 is not valid"),
        (23, "constraints[0]: "),
        (25, "\"* * * *\": number of fields \"4\" is not valid"),
        (26, "500 is out of range"),
        (27, "`cpu` is missing"),
        (27, "no alloc set can be called \"Pool\""),
    ];
    check("all.yaml", ALL_KINDS, &want);
    let helped =
        load_errors("all.yaml", ALL_KINDS).into_iter().all(|diagnostic| diagnostic.help.is_some());
    assert!(helped, "each says what is allowed");
}

#[test]
fn a_name_that_is_there_twice_is_told_beside_other_errors() {
    let run = "priority: 0, cpu: '1', ram: '1GiB', command: [a]";
    let text = format!(
        "- {{name: a, {run}, count: 0}}\n- {{name: a, {run}, after: b}}\n\
         - {{name: c, after: d, {run}, gang: 1}}\n- {{name: d, after: c, {run}, owner: A}}\n"
    );
    check(
        "f.yaml",
        &text,
        &[
            (1, "0 is out of range"),
            (2, "the name a is taken by [0]"),
            (2, "there is no job \"b\""),
            (3, "waits for itself"),
            (3, "true or false is wanted"),
            (4, "waits for itself"),
            (4, "\"A\" is not valid here"),
        ],
    );
}

#[test]
fn what_follows_from_something_else_is_not_told() {
    // Each of the two would be rejected because of the other one, if that were absent.
    check_alone("prots: 1, health: { probe: { tcp: { port: 0 } } }", "no field `prots`");
    check_alone("ports: 'x', health: { probe: { tcp: { port: 3 } } }", "a number is wanted");
    check_alone("isolation: { whole_cores: 4 }, cpu: 'x'", "no amount here");
    check_alone("isolation: { root: 'os' }, packages: 'os'", "a list is wanted");
    check_alone("isolation: { network: 'own' }, static_ports: [0]", "0 is out of range");
    check_alone("retain_disk: { bytes: '1GiB', keep: '1h' }, disk: 'x'", "no amount here");
    check_alone(
        "disk: 1, retain_disk: { bytes: 1, keep: '1h', log_saver: 's' }, kind: 'x'",
        "not known here",
    );
    check_alone("restart: { backoff: '1h', backoff_max: 'x' }", "no amount here");
    check_alone("priority: 'high', preemption_notice_max: 1", "is not a priority");
    check_alone("count: 'x', overrides: { '5': { env: {} } }", "a number is wanted");
    check_alone(
        "count: 'x', command: [], overrides: { '0': { command: ['a'] }, '1': { command: ['b'] } }",
        "a number is wanted",
    );
    check_alone("ram: '1MiB', isolation: { slack_ram: 'x' }", "true or false is wanted");
    check_alone("isolation: { volumes: [{ source: 5, target: '/a' }] }", "a text is wanted");
    let twice =
        "{ web: { priority: 200, cpu: '1', ram: '1GiB', command: ['a'], after: ['A', 'A'] } }";
    check("f.jsonnet", twice, &[(1, "no job can be called"), (1, "no job can be called")]);
    // A field under another name is not missing as well, wherever it may be written.
    let shorthand = "{ web: { priority: 200, cpu: '1', memory: '1GiB', cmd: ['a'] } }";
    check("f.jsonnet", shorthand, &[(1, "no field `memory`"), (1, "no field `cmd`")]);
    let set = "{ web: { priority: 200, cpu: '1', ram: '1GiB', kind: 'alloc-set' } }";
    check("f.jsonnet", set, &[(1, "\"alloc-set\" is not known here")]);
    let cron = "name: A\nschedule: '* * * * *'\n\
                job: {priority: 1, cpu: '1', ram: 1GiB, command: [a]}\n";
    check("f.yaml", cron, &[(1, "\"A\" is not valid here")]);
}

#[test]
fn an_alloc_set_hears_of_everything_that_it_cannot_have() {
    let text = "\
set:
  kind: alloc_set
  priority: 200
  cpu: '1'
  ram: 1GiB
  command: [a]
  env: {A: b}
  ports: 1
  files: {a: b}
";
    let nothing = [
        (6, "task.command: a is not valid"),
        (7, "task.env: 1 is not valid"),
        (8, "task.ports: 1 is not valid"),
        (9, "task.files: 1 is not valid"),
    ];
    check("set.yaml", text, &nothing);
}

#[test]
fn the_first_ones_are_shown_and_the_others_counted() {
    let job = |at: usize| format!("job-{at:02}: {{priority: 900, cpu: x, ram: y, command: [a]}}\n");
    // In the order of the file, not of the names.
    let text: String = (0..30).rev().map(job).collect();
    let errors = load_errors("f.yaml", &text);
    assert_eq!(errors.len(), 21);
    let lines =
        errors.iter().filter_map(|diagnostic| diagnostic.place.as_ref()).map(|place| place.line);
    assert_eq!(lines.collect::<Vec<_>>()[..7], [1, 1, 1, 2, 2, 2, 3]);
    assert_eq!(errors[20].message, "and 70 more errors");
}

/// The only error of the file has this message and this help.
fn check_help(name: &str, text: &str, expected: &str, help: &str) {
    let errors = load_errors(name, text);
    let [diagnostic] = &errors[..] else { panic!("{text}: {errors:?}") };
    assert!(
        diagnostic.message.contains(expected),
        "{expected:?} is not in {:?}",
        diagnostic.message
    );
    let help_text = diagnostic.help.as_deref().unwrap_or_default();
    assert!(help_text.contains(help), "{help:?} is not in {help_text:?}");
}

#[test]
fn what_to_write_instead_is_right_when_it_is_copied() {
    let job = |fields: &str| format!("a:\n  priority: 200\n  cpu: '1'\n  ram: 1GiB\n  {fields}\n");
    let of = |fields: &str, expected: &str, help: &str| {
        check_help("f.yaml", &job(fields), expected, help);
    };
    of("command: sleep infinity", "a list is wanted", r#": ["sleep", "infinity"]"#);
    of("command: cd /tmp && ls", "a list is wanted", r#": ["sh", "-c", "cd /tmp && ls"]"#);
    let with = |fields: &str| format!("command: [a]\n  {fields}");
    of(&with("packages: [greeter]"), "an object is wanted", r#"{"name": "greeter", "digest": "#);
    of(&with("packages: greeter"), "a list is wanted", r#"a list with an object, such as {"name""#);
    let arm = r#"{"attribute": "arch", "operator": {"equal": "arm64"}}"#;
    of(&with("constraints: [arch=arm64]"), "an object is wanted", arm);
    let zeros = "0".repeat(64);
    let package =
        |digest: &str| with(&format!("packages: [{{name: g, bytes: 1, digest: {digest}}}]"));
    of(&package(&zeros), "a text is wanted", &format!("write it in quotes: '{zeros}'"));
    of(&package("c2a5"), "digest: c2a5 is not valid", "64 digits 0-9 and a-f");
    of(&package(&"A".repeat(64)), "is not valid", "64 digits 0-9 and a-f");
    assert_eq!(load_errors("f.yaml", &job(&package(&format!("'{zeros}'")))), []);
}

#[test]
fn fields_are_missing_under_the_names_that_people_write() {
    let nothing = "a: {priority: 200}\n";
    check_help("f.yaml", nothing, "`command`, `cpu` and `ram` are missing", "command: [\"date\"]");
    let limits = "a: {priority: 200, command: [a]}\n";
    check_help("f.yaml", limits, "`cpu` and `ram` are missing", "cpu: \"500m\"");
    check("f.yaml", "a: {priority: 200, cpu: '1', ram: 1GiB}\n", &[(1, "`command` is missing")]);
}

#[test]
fn a_schedule_is_refused_for_the_part_that_is_wrong() {
    let cron = |schedule: &str| {
        let job = "{priority: 0, cpu: '1', ram: 1GiB, command: [a]}";
        format!("a:\n  schedule: '{schedule}'\n  job: {job}\n")
    };
    let few = "\"99 * * *\": number of fields \"4\" is not valid";
    check_help("f.yaml", &cron("99 * * *"), few, "five: minute hour");
    check_help("f.yaml", &cron("99 * * * *"), "\"99 * * * *\": minute \"99\" is not", "0 to 59");
}

#[test]
fn a_tab_is_marked_where_it_stands() {
    check("f.yaml", "a:\n  priority: 200\n\tcpu: '1'\n", &[(3, "tab")]);
    check("f.yaml", "a:\n\tpriority: 200\n", &[(2, "tab")]);
}

#[test]
fn a_misspelt_function_of_the_library_is_guessed() {
    let text = "local cell = import 'cell.libsonnet';\ncell.servce('a', {})\n";
    check_help("f.jsonnet", text, "did you mean `service`?", "job, service, batch");
    let own = "local own = { service: 1 };\n[own.servce]\n";
    check("f.jsonnet", own, &[(2, "there is no field `servce` in this object")]);
}

#[test]
fn a_text_without_a_name_is_read_as_what_it_looks_like() {
    let check = |text: &str, want: Format| assert_eq!(Format::of_text(text), want, "{text}");
    for yaml in ["a:\n  b: 1\n", "# jobs\n\nname: a\n", "---\na: 1\n", "- name: a\n", "'a b': 1\n"]
    {
        check(yaml, Format::Yaml);
    }
    for jsonnet in [
        "local a = { b: 1 };\n{ a: a }",
        "// jobs\n{ a: 1 }",
        "# jobs\n{\n  a: 1,\n}",
        "assert 1 < 2 : 'no';\n{}",
        "assert true : 'no';\n{}",
        "[x for x in []]",
        "std.map(function(a) { b: a }, [])",
        "import 'a.jsonnet'",
        "",
    ] {
        check(jsonnet, Format::Jsonnet);
    }
    check("{\"a\": 1}", Format::Json);
}

/// The check whether an error follows from another must not compare all pairs of errors.
#[test]
fn thousands_of_errors_in_one_job_are_told_at_once() {
    let packages = vec!["{\"nmae\":\"x\"}"; 2000].join(",");
    let text = format!(
        "{{\"name\":\"a\",\"priority\":200,\"cpu\":\"1\",\"ram\":\"1GiB\",\"command\":[\"a\"],\
         \"packages\":[{packages}]}}"
    );
    let errors = load_errors("f.json", &text);
    let (last, first) = errors.split_last().unwrap();
    let misspelt = "there is no field `nmae` here; did you mean `name`?";
    let expected = [misspelt, "`bytes` is missing", "`digest` is missing"];
    let strange = first
        .iter()
        .map(|diagnostic| &diagnostic.message)
        .find(|message| !expected.contains(&message.as_str()));
    assert_eq!(strange, None);
    assert_eq!(last.message, "and 5980 more errors");
}

#[test]
fn jobs_without_a_right_name_do_not_have_the_same_one() {
    let rest = "priority: 200, cpu: '1', ram: 1GiB, command: [a]}";
    for (first, second, expected) in [
        ("name: Bad Name, ", "name: Also Bad, ", "is not valid here"),
        ("nmae: a, ", "nmae: b, ", "did you mean `name`?"),
        ("", "", "`name` is missing"),
        ("name: 1, ", "name: 2, ", "a text is wanted here"),
    ] {
        let text = format!("- {{{first}{rest}\n- {{{second}{rest}\n");
        check("f.yaml", &text, &[(1, expected), (2, expected)]);
    }
    // A valid name is taken, whatever else is wrong.
    let twice = format!("- {{name: a, {rest}\n- {{name: a, count: x, {rest}\n");
    check("f.yaml", &twice, &[(2, "the name a is taken by [0]"), (2, "a number is wanted")]);
}

#[test]
fn what_is_missing_or_of_another_kind_is_told_with_what_may_stand_there() {
    let helped = |fields: &str, expected: &str, help: &str| {
        check_alone(fields, expected);
        let text = format!(
            "{{ web: {{ priority: 200, cpu: '1', ram: '1GiB', command: ['a'], {fields} }} }}"
        );
        let all: String = load_errors("f.jsonnet", &text)
            .iter()
            .map(|diagnostic| diagnostic.render(false))
            .collect();
        assert!(all.contains(help), "{help:?} is not in {all}");
    };
    helped("constraints: [{ attribute: 'os' }]", "`operator` is missing", "{equal: …}");
    helped("secrets: ['a']", "an object is wanted here, not a list", r#"{"name": "value"}"#);
    helped("env: ['A=1']", "an object is wanted here, not a list", r#"{"name": "value"}"#);
    helped("restart: { retry: { exit: [3] } }", "an object is wanted here", r#"{"1": 2}"#);
    helped("overrides: [1]", "an object is wanted here", r#"{"0": {"env": "#);
}
