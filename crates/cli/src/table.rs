//! Tables that are readable at 80 columns, and text wrapped to the same width.

use crate::output;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Row, Table};
use std::io::{self, IsTerminal};

/// Columns of a terminal nobody has made wider.
pub const WIDTH: usize = 80;

/// Rows of cells without lines around them. The first column is to the left, numbers to the right.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    rendered(header, rows, usize::MAX)
}

/// The same, but the last column is text and to the left.
pub fn render_told(header: &[&str], rows: &[Vec<String>]) -> String {
    rendered(header, rows, header.len().saturating_sub(1))
}

fn rendered(header: &[&str], rows: &[Vec<String>], told: usize) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    match output::is_wide() {
        true => table.set_content_arrangement(ContentArrangement::Disabled),
        false => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH as u16),
    };
    if !header.is_empty() {
        table.set_header(cells(header.iter().map(|text| (*text).to_owned()), told));
    }
    for row in rows {
        table.add_row(cells(row.iter().cloned(), told));
    }
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

/// Rows of any width, each line as long as it is: nothing is wrapped, nothing is lost.
pub fn plain(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|text| (*text).to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(rows).collect();
    let width = |column: usize| {
        let texts = lines.iter().filter_map(|line| line.get(column));
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(text, width)| format!("{text:width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn cells(texts: impl Iterator<Item = String>, told: usize) -> Row {
    let cells = texts.enumerate().map(|(position, text)| {
        let left = position == 0 || position == told;
        let alignment = if left { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(text).set_alignment(alignment)
    });
    Row::from(cells)
}

/// Words wrapped to the width; lines after the first start with `indent`.
pub fn wrapped(first: &str, indent: &str, text: &str) -> String {
    let mut out = String::from(first);
    let mut used = first.chars().count();
    let mut is_start = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !is_start && used + 1 + length > WIDTH {
            out.push('\n');
            out.push_str(indent);
            used = indent.chars().count();
            is_start = true;
        }
        if !is_start {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
        is_start = false;
    }
    out.push('\n');
    out
}

/// One of many lines on stdout: wrapped for a person at a terminal, whole for programs that take
/// lines.
pub fn line(first: &str, indent: &str, text: &str) -> String {
    match io::stdout().is_terminal() && !output::is_wide() {
        true => wrapped(first, indent, text),
        false => format!("{first}{text}\n"),
    }
}

/// Text that was wrapped for another width, wrapped for ours: a line that is indented goes on with
/// the one before.
pub fn rewrapped(first: &str, indent: &str, text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.trim_end().lines() {
        match lines.last_mut() {
            Some(last) if line.starts_with("  ") => {
                last.push(' ');
                last.push_str(line.trim_start());
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.iter().map(|line| wrapped(first, indent, line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "word ".repeat(40);
        let out = wrapped("  - ", "    ", &text);
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH));
        assert_eq!(out.split_whitespace().filter(|w| *w == "word").count(), 40);
        assert!(out.lines().skip(1).all(|line| line.starts_with("    word")));
    }

    #[test]
    fn wrapped_text_is_wrapped_anew_without_a_broken_line() {
        let text = format!("{}\n  end.\nnext", "word ".repeat(14).trim_end());
        let out = rewrapped("    ", "      ", &text);
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH), "{out}");
        assert!(out.contains("word end.") || out.contains("      end."), "{out}");
        assert_eq!(out.lines().filter(|line| line.starts_with("    next")).count(), 1);
    }

    #[test]
    fn numbers_are_to_the_right_and_lines_have_no_tail() {
        let rows = vec![vec!["cpu".into(), "7".into()], vec!["memory".into(), "1234".into()]];
        let out = render(&["what", "amount"], &rows);
        assert!(out.lines().all(|line| line == line.trim_end() && line.len() <= WIDTH));
        assert!(out.lines().any(|line| line.ends_with("  7") || line.ends_with("     7")));
    }
}
