//! Job files, tested with the real binary: validated, formatted, initialized, and run on a real
//! cell.

use super::dev;
use super::support::{Folder, cell, json, repo, stdout_of, text};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every example that is a job file.
fn examples() -> Vec<String> {
    let entries = std::fs::read_dir(repo().join("examples")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    // Recorded rates are no job.
    let is_job = |path: &PathBuf| path.extension().is_some_and(|extension| extension != "csv");
    let files = paths.filter(|path| path.is_file() && is_job(path));
    let mut names: Vec<String> =
        files.map(|path| format!("examples/{}", path.file_name().unwrap().display())).collect();
    names.sort();
    names
}

#[test]
fn every_example_is_right_and_in_the_usual_form() {
    let names = examples();
    assert!(names.len() >= 7, "{names:?}");
    let files: Vec<&str> = names.iter().map(String::as_str).collect();
    let valid = json(&[&["validate", "-o", "json"][..], &files].concat());
    for checked in valid.as_array().unwrap() {
        assert_eq!(checked["valid"], true, "{checked}");
        assert_eq!(checked["diagnostics"], serde_json::json!([]), "{checked}");
    }
    let jsonnet: Vec<&str> = files.iter().copied().filter(|f| f.ends_with("sonnet")).collect();
    stdout_of(&[&["fmt", "--check"][..], &jsonnet].concat());
}

/// Runs `cell` in a folder of its own.
fn run_in_folder(folder: &Folder, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(cellwright_tests::binary::cell())
        .current_dir(Path::new(&folder.0))
        .args(args)
        .output()
        .unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn what_is_wrong_is_said_at_its_line_with_exit_code_1() {
    let folder = Folder::new();
    let file = folder.path("web.jsonnet");
    std::fs::write(&file, "{ name: 'web',\n  prioirty: 200 }\n").unwrap();
    let output = cell(&["validate", &file]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("did you mean `priority`?") && message.contains(":2:3"), "{message}");
    assert!(message.contains("error: 1 file is not right"), "{message}");
    assert_eq!(cell(&["validate"]).status.code(), Some(2));
    assert_eq!(cell(&["validate", "README.md"]).status.code(), Some(2));
    let output = cell(&["validate", &file, "-o", "json"]);
    let checked: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &checked[0]["valid"]), (Some(1), &serde_json::json!(false)));
    assert_eq!(checked[0]["diagnostics"][0]["place"]["line"], 2);
}

#[test]
fn everything_wrong_with_several_files_is_said_in_one_go() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| std::fs::write(folder.path(name), text).unwrap();
    let fields = "cpu: '1', ram: '1MiB', count: 0, gangs: true, after: 'nobody'";
    write("one.jsonnet", &format!("{{ a: {{ priority: 900, {fields}, command: [] }} }}\n"));
    write("two.yaml", "{name: b, priority: 1, cpu: '1', ram: lots, command: [a]}\n");
    let args = ["validate", "one.jsonnet", "none.yaml", "two.yaml", "-o", "json"];
    let (code, out, stderr) = run_in_folder(&folder, &args);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("cannot read the jobs from none.yaml"), "{stderr}");
    let checked: serde_json::Value = serde_json::from_str(&out).unwrap();
    let fields = |at: usize| -> Vec<&str> {
        let all = checked[at]["diagnostics"].as_array().unwrap();
        all.iter().map(|one| one["field"].as_str().unwrap()).collect()
    };
    let all = ["a.priority", "a.ram", "a.count", "a.gangs", "a.after", "a.command"];
    assert_eq!((fields(0), fields(1)), (all.to_vec(), vec!["ram"]), "{out}");
    let (code, _, stderr) = run_in_folder(&folder, &["validate", "one.jsonnet", "two.yaml"]);
    assert_eq!((code, stderr.matches("  = allowed: ").count()), (1, 7), "{stderr}");
    assert!(stderr.contains("error: 2 files are not right"), "{stderr}");
}

#[test]
fn a_first_file_is_written_once_and_is_right() {
    let folder = Folder::new();
    for (name, flag) in [("web", "--service"), ("sums", "--batch"), ("nightly", "--cron")] {
        let (code, out, stderr) = run_in_folder(&folder, &["init", name, flag]);
        assert_eq!(code, 0, "{stderr}");
        assert!(out.contains(&format!("wrote {name}.jsonnet")), "{out}");
        let file = format!("{name}.jsonnet");
        let (code, _, stderr) = run_in_folder(&folder, &["validate", &file]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        let (code, out, _) = run_in_folder(&folder, &["fmt", "--check", &file]);
        assert_eq!((code, out.as_str()), (0, ""));
    }
    let before = std::fs::read_to_string(folder.path("web.jsonnet")).unwrap();
    let (code, _, stderr) = run_in_folder(&folder, &["init", "web", "--batch"]);
    assert_eq!(code, 2, "{stderr}");
    assert_eq!(std::fs::read_to_string(folder.path("web.jsonnet")).unwrap(), before);
}

#[test]
fn formatting_changes_the_file_or_says_that_it_would() {
    let folder = Folder::new();
    let file = folder.path("f.jsonnet");
    std::fs::write(&file, "{a:1,\nb:2}").unwrap();
    let (code, out, _) = run_in_folder(&folder, &["fmt", "--check", "f.jsonnet"]);
    assert_eq!((code, out.as_str()), (1, "f.jsonnet: would change\n"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{a:1,\nb:2}");
    let (code, out, _) = run_in_folder(&folder, &["fmt", "f.jsonnet"]);
    assert_eq!((code, out.as_str()), (0, "f.jsonnet: changed\n"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{ a: 1,\n  b: 2 }\n");
    std::fs::write(&file, "{a:").unwrap();
    let (code, _, stderr) = run_in_folder(&folder, &["fmt", "f.jsonnet"]);
    assert!(code == 1 && stderr.contains("cannot stand here"), "{stderr}");
    let schema = json(&["schema"]);
    assert!(schema["$defs"]["JobSpec"]["properties"]["ram"].is_object());
}

/// Runs `cell` with this standard input.
fn piped(args: &[&str], input: &str) -> (Option<i32>, String, String) {
    let folder = Folder::new();
    let file = folder.path("input");
    std::fs::write(&file, input).unwrap();
    let mut command = Command::new(cellwright_tests::binary::cell());
    let output = command.args(args).stdin(File::open(&file).unwrap()).output().unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn standard_input_is_read_as_the_language_that_it_looks_like() {
    let yaml = "# A lab.\nlab:\n  priority: 200\n  cpu: 100m\n  ram: 64MiB\n  command: [date]\n";
    let (code, out, stderr) = piped(&["validate", "-"], yaml);
    assert_eq!((code, out.as_str(), stderr.as_str()), (Some(0), "-: 1 job\n", ""));
    assert_eq!(piped(&["fmt", "-"], yaml), (Some(0), yaml.into(), String::new()));
    let (_, out, _) = piped(&["fmt", "-"], "{a:1}");
    assert_eq!(out, "{ a: 1 }\n");
    let (code, out, _) = piped(&["fmt", "--check", "-"], "{a:1}");
    assert_eq!((code, out.as_str()), (Some(1), "-: would change\n"));
    let (_, _, stderr) = piped(&["validate", "-"], &yaml.replace("[date]", "date"));
    assert!(stderr.contains("standard input as YAML:6:12"), "{stderr}");
    let (_, _, stderr) = piped(&["validate", "-"], "local a = 1;\n{ b: }\n");
    assert!(stderr.contains("standard input as Jsonnet:2:6"), "{stderr}");
    let (code, _, stderr) = piped(&["run", "--master", "127.0.0.1:1", "-"], "lab:\n  ram: 1\n");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("YAML when it begins with ---"), "{stderr}");
}

#[test]
fn running_a_file_again_updates_what_differs_and_leaves_the_rest() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "2");
    let file = folder.path("web.jsonnet");
    let write = |count: u32| {
        let text = format!(
            "local cell = import 'cell.libsonnet';\n\
             local size = {{ cpu: '100m', ram: '64MiB', command: ['sim'] }};\n\
             [cell.batch('second', size {{ after: 'first' }}), cell.batch('first', size),\n\
              cell.service('web', size {{ count: {count}, priority: 'batch' }}),\n\
              cell.cron('tick', '0 0 1 1 *', size)]"
        );
        std::fs::write(&file, text).unwrap();
    };
    let run = || stdout_of(&["--master", &address, "run", &file]);
    write(1);
    let first = run();
    for line in [
        "job dev/first of 1 task: created",
        "job dev/second of 1 task: created",
        "job dev/web of 1 task: created",
        "periodic job dev/tick of 1 task: created",
    ] {
        assert!(first.contains(line), "{first}");
    }
    let again = run();
    assert_eq!(again.matches(": unchanged").count(), 4, "{again}");
    write(2);
    let changed = run();
    assert!(changed.contains("job dev/web of 2 tasks: being updated to version 2"), "{changed}");
    assert_eq!(changed.matches(": unchanged").count(), 3, "{changed}");
    running.stop();
}
