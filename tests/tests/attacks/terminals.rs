//! What somebody writes into a job, its labels and its output is printed on other people's
//! terminals, and shown by their browsers. A terminal obeys whoever wrote: it fills the clipboard
//! (OSC 52), wipes the screen, turns the direction of text.

use cellwright_tests::binary::{cell, command_output, text};
use cellwright_tests::browser::Browser;
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_open_cell;
use cellwright_tests::process::Process;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use serde_json::json;
use std::fs;
use std::process::Command;
use std::time::Instant;
use tokio::time::sleep;

/// The clipboard, the screen by one character, the direction, and the beginning of the line.
const HOSTILE_TEXT: &str = "a\u{1b}]52;c;aGk=\u{7}\u{9b}2Jb\u{202e}c\rd";
/// The same, as `printf` is told.
const PRINTED: &str = r"a\033]52;c;aGk=\007\302\2332Jb\342\200\256c\rd\n";
/// What is found where a browser or a terminal is to show text of others, and must not be.
const COMMANDS: &str = r"/[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/";

fn job(name: &str, command: &[&str]) -> serde_json::Value {
    json!({
        "name": name, "priority": 100, "labels": { "note": HOSTILE_TEXT },
        "restart": { "max_failures": 0, "backoff": 1, "backoff_max": 1 },
        "task": { "limits": { "cpu": "100m", "ram": 64 << 20 }, "notice": 0,
            "command": command, "env": { "NOTE": HOSTILE_TEXT } },
    })
}

struct TerminalCell {
    /// Ends before its folder goes.
    _cell: Process,
    folder: Folder,
    address: String,
}

impl TerminalCell {
    /// A cell with the job of somebody who means no good.
    async fn start() -> TerminalCell {
        let folder = Folder::new();
        let (process, address) = start_open_cell(&folder, &["--driver", "process"]).await;
        let terminal_cell = TerminalCell { _cell: process, folder, address };
        let script = format!("printf '{PRINTED}'; exec sleep 1000");
        terminal_cell.run(&job("evil", &["sh", "-c", &script, HOSTILE_TEXT]));
        terminal_cell.run(&job("broken", &[&format!("/no/such/{HOSTILE_TEXT}")]));
        let begun = Instant::now();
        while !terminal_cell.piped(&["logs", "dev/evil/0"]).ends_with("d\n") {
            assert!(begun.elapsed() < TIMEOUT, "it writes nothing");
            sleep(POLL_INTERVAL).await;
        }
        while !terminal_cell.piped(&["events"]).contains("dev/broken/0 failed") {
            assert!(begun.elapsed() < TIMEOUT, "it does not fail");
            sleep(POLL_INTERVAL).await;
        }
        terminal_cell
    }

    fn run(&self, spec: &serde_json::Value) {
        let file = self.folder.path(&format!("{}.json", spec["name"].as_str().expect("a name")));
        fs::write(&file, spec.to_string()).expect("a file");
        self.piped(&["run", file.to_str().expect("a path")]);
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(cell());
        command.args(["--master", &self.address]).args(words);
        command
    }

    /// Read by a program.
    fn piped(&self, words: &[&str]) -> String {
        command_output(&mut self.command(words)).unwrap_or_else(|why| why)
    }

    /// Everything that the command writes to a terminal.
    fn on_a_terminal(&self, words: &[&str]) -> String {
        let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
        let all: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let line = format!("{} --master {} {}", cell().display(), self.address, all.join(" "));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).stdin(std::process::Stdio::null());
        let done = command.output().expect("script is there, which every Debian has");
        // A terminal is told of the end of a line by two.
        text(&done.stdout).replace("\r\n", "\n")
    }
}

/// What a terminal would obey, beside colours and line ends, and what a bar draws with.
fn control_characters(output: &str) -> Vec<char> {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut found = Vec::new();
    let mut rest = output;
    while let Some(c) = rest.chars().next() {
        let colour = rest.strip_prefix("\u{1b}[").and_then(|codes| {
            let end = codes.find(|c: char| !(c.is_ascii_digit() || c == ';'))?;
            (codes[end..].starts_with('m')).then_some(2 + end + 1)
        });
        match colour {
            Some(length) => rest = &rest[length..],
            None => {
                if turns(c) || (c.is_control() && !matches!(c, '\n' | '\t')) {
                    found.push(c);
                }
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    found
}

#[tokio::test]
async fn nothing_that_others_wrote_commands_a_terminal() {
    let terminal_cell = TerminalCell::start().await;
    // What arrives is what was written: programs get the very bytes.
    assert_eq!(terminal_cell.piped(&["logs", "dev/evil/0"]), format!("{HOSTILE_TEXT}\n"));
    let file = terminal_cell.folder.path("evil.json");
    let file = file.to_str().expect("a path");
    let printf = ["exec", "dev/evil/0", "--", "printf", PRINTED];
    let problems = format!("printf '{PRINTED}' >&2");
    let query = "select 'a' || char(27) || ']52;c;aGk=' || char(7) || char(155) || '2J' as b";
    let commands: [(&[&str], bool); 13] = [
        (&["logs", "dev/evil/0"], true),
        (&["logs", "dev/broken/0", "--stderr"], true),
        (&printf, true),
        (&["exec", "dev/evil/0", "--", "sh", "-c", &problems], true),
        (&["describe", "dev/evil"], true),
        (&["describe", "dev/evil", "-o", "json"], true),
        (&["describe", "dev/evil", "-o", "yaml"], true),
        (&["status", "dev/evil"], false),
        (&["job", "status", "-o", "wide"], false),
        (&["events", "-o", "jsonl"], false),
        (&["explain", "dev/broken/0"], false),
        (&["plan", file], false),
        (&["sql", query], true),
    ];
    for (words, has_it) in commands {
        let output = terminal_cell.on_a_terminal(words);
        assert_eq!(control_characters(&output), [' '; 0], "{words:?}: {output:?}");
        assert!(!has_it || output.contains("]52;c;"), "{words:?} does not show it: {output:?}");
    }
    // With `-t` the command has been given the terminal, and draws on it.
    let given = terminal_cell.folder.path("given");
    let line = format!(
        "{} --master {} exec -t dev/evil/0 -- printf '\\033[2J'",
        cell().display(),
        terminal_cell.address
    );
    let mut typed = Command::new("script");
    typed.args(["-qec", &line]).arg(&given).stdin(std::process::Stdio::null());
    typed.output().expect("script runs");
    let drawn = fs::read(&given).expect("what was drawn");
    assert!(drawn.windows(4).any(|piece| piece == b"\x1b[2J"), "{}", text(&drawn));
}

#[tokio::test]
async fn nothing_that_others_wrote_is_invisible_in_the_console() {
    let terminal_cell = TerminalCell::start().await;
    let Some(browser) = Browser::open(&terminal_cell.folder.path("driver.log")).await else {
        return;
    };
    let token = fs::read_to_string(terminal_cell.folder.path("data/dev-token")).expect("a token");
    for (path, words) in [
        ("/jobs/dev/evil", "2Jb"),
        ("/jobs/dev/evil/0", "2Jb"),
        ("/jobs/dev/broken/0", "broken"),
        ("/jobs", "evil"),
    ] {
        browser.navigate(&format!("http://{}/console{path}#token={token}", terminal_cell.address));
        browser.wait_for_text(words).await;
        let found = browser.run(&format!(
            "const walk = document.createTreeWalker(document, NodeFilter.SHOW_TEXT); \
             const found = []; \
             while (walk.nextNode()) if ({COMMANDS}.test(walk.currentNode.data)) \
                 found.push(JSON.stringify(walk.currentNode.data)); \
             return found.join()"
        ));
        assert_eq!(found, "", "{path}");
    }
    browser.navigate(&format!(
        "http://{}/console/jobs/dev/evil/0#token={token}",
        terminal_cell.address
    ));
    browser.wait_for_text(r"\x1b]52;c;aGk=\x07\u{9b}2Jb\u{202e}c\x0dd").await;
}
