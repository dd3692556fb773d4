//! Diagnostics: errors and warnings with location, message, and what is allowed there. A diagnostic
//! contains its source line, so that it can cross a process boundary and be rendered without the
//! file.
//!
//! Rendered in at most 80 columns, in the style of compilers. Rejected: a crate for the rendering.
//! Ours is one line and one caret, must be cut to a width, and shows the field's path below.

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The width of the output in columns.
const WIDTH: usize = 80;
/// The maximum number of stack frames shown.
const MAX_FRAMES: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Error,
    /// Allowed, but most likely a mistake.
    Warning,
}

/// A range within one line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLocation {
    pub file: String,
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters.
    pub column: u32,
    /// Characters under the caret, 1 or more.
    pub width: u32,
    /// The text of the line.
    pub text: String,
}

/// A stack frame of a failed evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFrame {
    pub what: String,
    pub file: String,
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    pub severity: Severity,
    pub message: String,
    pub file: String,
    /// The path of the field in the file's value, such as `web.task.limits.ram`.
    pub field: Option<String>,
    /// Absent if no line of the file is the cause.
    pub place: Option<SourceLocation>,
    /// What is allowed there, or what to do.
    pub help: Option<String>,
    /// Innermost first.
    pub trace: Vec<StackFrame>,
}

impl Diagnostic {
    #[must_use]
    pub fn error(file: &str, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            file: file.to_owned(),
            field: None,
            place: None,
            help: None,
            trace: Vec::new(),
        }
    }

    #[must_use]
    pub fn with_help(self, help: impl Into<String>) -> Diagnostic {
        Diagnostic { help: Some(help.into()), ..self }
    }

    #[must_use]
    pub fn with_location(self, location: Option<SourceLocation>) -> Diagnostic {
        Diagnostic { place: location, ..self }
    }

    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// The diagnostic as text for people; `coloured` on a terminal.
    #[must_use]
    pub fn render(&self, coloured: bool) -> String {
        let paint = Style(coloured);
        let (label, code) = match self.severity {
            Severity::Error => ("error", "1;31"),
            Severity::Warning => ("warning", "1;33"),
        };
        let message = wrap(&self.message, WIDTH - label.len() - 2, label.len() + 2);
        let mut out = format!("{} {message}\n", paint.with(code, &format!("{label}:")));
        match &self.place {
            Some(location) => location.render(&mut out, paint, code),
            None => drop(writeln!(out, "  {} {}", paint.with("1;34", "-->"), self.file)),
        }
        let notes = [("field", &self.field), ("allowed", &self.help)];
        for (label, text) in notes {
            let Some(text) = text else { continue };
            let text = wrap(text, WIDTH - label.len() - 6, label.len() + 6);
            let _ = writeln!(out, "  {} {label}: {text}", paint.with("1;34", "="));
        }
        for frame in self.trace.iter().take(MAX_FRAMES) {
            let StackFrame { what, file, line } = frame;
            let _ = writeln!(out, "  {} {what} at {file}:{line}", paint.with("1;34", "="));
        }
        out
    }
}

#[derive(Clone, Copy)]
struct Style(bool);

impl Style {
    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

impl SourceLocation {
    fn render(&self, out: &mut String, paint: Style, code: &str) {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let blue = |text: &str| paint.with("1;34", text);
        let (text, before, width) = self.window(WIDTH - number.len() - 3);
        let caret = paint.with(code, &"^".repeat(width));
        let SourceLocation { file, line, column, .. } = self;
        let _ = writeln!(out, "{margin}{} {file}:{line}:{column}", blue("-->"));
        let _ = writeln!(out, "{margin} {}", blue("|"));
        let _ = writeln!(out, "{} {} {text}", blue(&number), blue("|"));
        let _ = writeln!(out, "{margin} {} {}{caret}", blue("|"), " ".repeat(before));
    }

    /// The part of the line around the caret that fits, the text before the caret in it, and the
    /// length of the caret.
    fn window(&self, fits: usize) -> (String, usize, usize) {
        // The width of a tab varies; one space instead keeps the caret under its text.
        let letters: Vec<char> =
            self.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let at = (self.column as usize - 1).min(letters.len());
        let first = (at + 10).saturating_sub(fits * 2 / 3).min(at);
        let first = if letters.len() <= fits { 0 } else { first };
        let text: String = letters.iter().skip(first).take(fits).collect();
        let before = at - first;
        let width = (self.width as usize).clamp(1, fits.saturating_sub(before).max(1));
        (text.trim_end().to_owned(), before, width)
    }
}

/// Wraps words to lines of `width`, all but the first indented.
fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for part in text.lines() {
        let mut line = String::new();
        for word in part.split(' ') {
            let fits = line.chars().count() + 1 + word.chars().count() <= width;
            if !line.is_empty() && !fits {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

/// A file's text with its name, in which locations are computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The file name for messages.
    pub name: String,
    pub text: String,
}

impl Source {
    /// The location of the bytes from `start` to `end`, up to the end of the first line.
    #[must_use]
    pub fn location(&self, start: usize, end: usize) -> SourceLocation {
        let bytes = self.text.as_bytes();
        let start = start.min(bytes.len());
        let before = &bytes[..start];
        let first = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let rest = bytes[start..].iter().position(|b| *b == b'\n');
        let last = rest.map_or(bytes.len(), |at| start + at);
        let letters = |part: &[u8]| String::from_utf8_lossy(part).chars().count();
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let width = letters(&bytes[start..end.clamp(start, last)]).max(1);
        SourceLocation {
            file: self.name.clone(),
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(letters(&bytes[first..start]) + 1).unwrap_or(u32::MAX),
            width: u32::try_from(width).unwrap_or(u32::MAX),
            text: String::from_utf8_lossy(&bytes[first..last]).trim_end_matches('\r').to_owned(),
        }
    }

    /// The location of a line and a column, both counted from 1.
    #[must_use]
    pub fn location_at(&self, line: usize, column: usize, width: usize) -> SourceLocation {
        let text = self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        let small = |number: usize| u32::try_from(number.max(1)).unwrap_or(u32::MAX);
        SourceLocation {
            file: self.name.clone(),
            line: small(line),
            column: small(column),
            width: small(width),
            text: text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_reads_like_a_compilers_and_fits_80_columns() {
        let source = Source { name: "web.jsonnet".into(), text: "{\n  ram: '2 gigs',\n}\n".into() };
        let start = source.text.find('\'').unwrap();
        let location = source.location(start, start + 8);
        let mut diagnostic =
            Diagnostic::error("web.jsonnet", "a size is wanted here").with_location(Some(location));
        diagnostic.field = Some("task.limits.ram".into());
        diagnostic.help = Some("a whole number with B, KiB, MiB, GiB or TiB ".repeat(3));
        let want = "\
error: a size is wanted here
 --> web.jsonnet:2:8
  |
2 |   ram: '2 gigs',
  |        ^^^^^^^^
  = field: task.limits.ram
  = allowed: a whole number with B, KiB, MiB, GiB or TiB a whole number with B,
             KiB, MiB, GiB or TiB a whole number with B, KiB, MiB, GiB or TiB
";
        let trimmed: Vec<String> =
            diagnostic.render(false).lines().map(|line| line.trim_end().to_owned()).collect();
        assert_eq!(trimmed.join("\n") + "\n", want);
        assert!(diagnostic.render(true).contains("\u{1b}[1;31merror:\u{1b}[0m"));
    }

    #[test]
    fn long_lines_are_cut_around_the_caret() {
        let text = format!("{}HERE{}", "x".repeat(300), "y".repeat(300));
        let location = Source { name: "f".into(), text }.location(300, 304);
        assert_eq!((location.line, location.column, location.width), (1, 301, 4));
        let rendered = Diagnostic::error("f", "m").with_location(Some(location)).render(false);
        let lines: Vec<&str> = rendered.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{rendered}");
        let caret = lines[4].find('^').unwrap();
        assert_eq!(&lines[3][caret..caret + 4], "HERE");
    }

    #[test]
    fn places_count_characters_and_stay_on_their_line() {
        let source = Source { name: "f".into(), text: "a\nüü{\nb}".into() };
        let start = source.text.find('{').unwrap();
        let location = source.location(start, source.text.len());
        assert_eq!(
            (location.line, location.column, location.width, &*location.text),
            (2, 3, 1, "üü{")
        );
        assert_eq!(source.location(999, 9999).line, 3);
    }
}
