//! Golden transcripts: sequences of commands and the cell's answers, in `tests/transcripts`, and
//! those of a component in its own folder.
//!
//! A line at the margin is a command (the words are in `transcript_language.rs`) or a comment; the
//! indented lines below it are the answer, unless it is a plain "done", and the events. With
//! `UPDATE_TRANSCRIPTS=1` the answers are rewritten; read the difference before keeping it.

use crate::transcript_language::TranscriptRunner;
use crate::world::World;
use std::path::PathBuf;

const INDENT: &str = "    ";

fn files_in(folder: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    entries.map(|entry| entry.expect("the folder can be read").path()).collect()
}

/// Every transcript: its path and its text.
fn all() -> Vec<(PathBuf, String)> {
    let is_text = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "txt");
    let mut paths: Vec<PathBuf> =
        files_in("tests/transcripts").into_iter().filter(is_text).collect();
    let components = files_in("src/components").into_iter().filter(|path| path.is_dir());
    paths.extend(components.map(|folder| folder.join("transcript.txt")));
    paths.sort();
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
    };
    paths.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// Runs a transcript; returns its text with the present answers, and the resulting cell.
fn run_transcript(text: &str) -> Result<(String, World), String> {
    let mut teller = TranscriptRunner::default();
    let mut output = String::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with(INDENT) {
            continue;
        }
        output.push_str(line);
        output.push('\n');
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let answers = teller.run_line(line).map_err(|why| format!("line {}: {why}", number + 1))?;
        for answer in answers {
            output.push_str(INDENT);
            output.push_str(&answer);
            output.push('\n');
        }
    }
    Ok((output, teller.world))
}

fn first_difference(old: &str, new: &str) -> String {
    let mut lines = old.lines().zip(new.lines()).enumerate();
    match lines.find(|(_, (a, b))| a != b) {
        Some((at, (a, b))) => format!("line {}:\n  recorded: {a}\n  now:      {b}", at + 1),
        None => format!("{} lines recorded, {} now", old.lines().count(), new.lines().count()),
    }
}

#[test]
fn transcripts_go_as_recorded() {
    let update = std::env::var_os("UPDATE_TRANSCRIPTS").is_some();
    let mut failures = Vec::new();
    for (path, text) in all() {
        let name = path.display().to_string();
        match run_transcript(&text) {
            Err(why) => failures.push(format!("{name}: {why}")),
            Ok((actual, _)) if actual == text => {}
            Ok((actual, _)) if update => {
                std::fs::write(&path, actual).expect("the transcript can be written");
            }
            Ok((actual, _)) => {
                failures.push(format!("{name}: {}", first_difference(&text, &actual)))
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The resulting cells of all transcripts.
pub fn worlds() -> impl Iterator<Item = World> {
    all().into_iter().filter_map(|(_, text)| run_transcript(&text).ok()).map(|(_, world)| world)
}
