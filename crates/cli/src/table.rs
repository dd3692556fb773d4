//! Tables that are readable at 80 columns, and text wrapped to the same width.

use crate::output;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Row, Table};
use std::io::{self, IsTerminal};

/// The default width of a terminal in columns.
pub const WIDTH: usize = 80;

/// Renders rows of cells without borders. The first column is left-aligned, the others
/// right-aligned.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    render_columns(header, rows, usize::MAX, WIDTH)
}

/// The same for a table that is indented by `inset` columns.
pub fn render_inset(header: &[&str], rows: &[Vec<String>], inset: usize) -> String {
    let indent = " ".repeat(inset);
    let lines = render_columns(header, rows, usize::MAX, WIDTH.saturating_sub(inset));
    // One leading blank is padding; further ones align a continued cell with its column.
    let bare = |line: &str| line.strip_prefix(' ').unwrap_or(line).to_owned();
    lines.lines().map(|line| format!("{indent}{}\n", bare(line))).collect()
}

/// The same, but the last column is text and left-aligned.
pub fn render_with_text_column(header: &[&str], rows: &[Vec<String>]) -> String {
    render_columns(header, rows, header.len().saturating_sub(1), WIDTH)
}

/// The same, but all columns from `first_text` on are text and left-aligned.
pub fn render_with_text_from(header: &[&str], rows: &[Vec<String>], first_text: usize) -> String {
    render_columns(header, rows, first_text, WIDTH)
}

fn render_columns(
    header: &[&str],
    rows: &[Vec<String>],
    first_text: usize,
    width: usize,
) -> String {
    // A width beyond `u16` is effectively unlimited.
    let width = u16::try_from(width).unwrap_or(u16::MAX);
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    if output::is_wide() {
        table.set_content_arrangement(ContentArrangement::Disabled)
    } else {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width)
    };
    if !header.is_empty() {
        table.set_header(cells(header.iter().map(|text| (*text).to_owned()), first_text));
    }
    for row in rows {
        table.add_row(cells(row.iter().cloned(), first_text));
    }
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

/// Renders rows of any width: nothing is wrapped or truncated.
pub fn render_unwrapped(header: &[&str], rows: &[Vec<String>]) -> String {
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

fn cells(texts: impl Iterator<Item = String>, first_text: usize) -> Row {
    let cells = texts.enumerate().map(|(position, text)| {
        let is_left = position == 0 || position >= first_text;
        let alignment = if is_left { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(text).set_alignment(alignment)
    });
    Row::from(cells)
}

/// Wraps words to the width; lines after the first start with `indent`.
pub fn wrap(first: &str, indent: &str, text: &str) -> String {
    wrap_words(first, indent, text.split_whitespace())
}

/// Wraps a list of items separated by commas, only between items.
pub fn wrap_list(first: &str, indent: &str, items: &[String]) -> String {
    let last = items.len().saturating_sub(1);
    let comma = |at: usize| if at < last { "," } else { "" };
    let items = items.iter().enumerate().map(|(at, item)| format!("{item}{}", comma(at)));
    let items: Vec<String> = items.collect();
    wrap_words(first, indent, items.iter().map(String::as_str))
}

/// Wraps sentences for people: each line by itself, with continuation lines indented by two
/// columns. Indented lines, such as tables, and lines with a command to type stay unchanged, since
/// text to copy must not be broken. The same holds for lines with a path or a digest wider than the
/// limit.
pub fn wrap_prose(text: &str) -> String {
    let fold = |line: &str| {
        let is_kept_whole = output::is_wide() || line.starts_with(' ') || line.contains(": cell ");
        let is_value = |word: &str| width(word) > WIDTH / 2;
        if is_kept_whole || width(line) <= WIDTH || line.split(' ').any(is_value) {
            format!("{line}\n")
        } else {
            wrap("", "  ", line)
        }
    };
    text.lines().map(fold).collect()
}

/// The width of a text in columns; colour codes have none.
fn width(text: &str) -> usize {
    let mut pieces = text.split('\u{1b}');
    let plain = pieces.next().unwrap_or_default().chars().count();
    let coloured = pieces.map(|piece| piece.split_once('m').map_or(piece, |(_, rest)| rest));
    plain + coloured.map(|rest| rest.chars().count()).sum::<usize>()
}

fn wrap_words<'a>(first: &str, indent: &str, words: impl Iterator<Item = &'a str>) -> String {
    let mut out = String::from(first);
    let mut used = width(first);
    let mut is_start = true;
    for word in words {
        let length = width(word);
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

/// One of many lines on stdout: wrapped on a terminal, unwrapped for programs that read lines.
pub fn wrap_for_terminal(first: &str, indent: &str, text: &str) -> String {
    if io::stdout().is_terminal() && !output::is_wide() {
        wrap(first, indent, text)
    } else {
        format!("{first}{text}\n")
    }
}

/// Wraps sentences one by one; each is a line of `text`.
pub fn sentences(first: &str, indent: &str, text: &str) -> String {
    text.trim_end().lines().map(|line| wrap(first, indent, line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "word ".repeat(40);
        let out = wrap("  - ", "    ", &text);
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH));
        assert_eq!(out.split_whitespace().filter(|w| *w == "word").count(), 40);
        assert!(out.lines().skip(1).all(|line| line.starts_with("    word")));
    }

    #[test]
    fn sentences_are_wrapped_one_by_one() {
        let text = format!("{} end.\nnext", "word ".repeat(15).trim_end());
        let out = sentences("    ", "      ", &text);
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH), "{out}");
        assert!(out.contains("      end."), "{out}");
        assert_eq!(out.lines().filter(|line| line.starts_with("    next")).count(), 1);
    }

    #[test]
    fn sentences_are_folded_and_what_is_to_be_copied_is_not() {
        let long = "word ".repeat(30);
        let command = format!("next: cell run {long}");
        let text = format!("{long}\n{command}\n  {long}\nshort\n");
        let lines: Vec<String> = wrap_prose(&text).lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert!(lines[..2].iter().all(|line| width(line) <= WIDTH), "{lines:?}");
        assert!(lines[1].starts_with("  word"), "{lines:?}");
        assert_eq!([lines[2].trim_end(), lines[4].as_str()], [command.trim_end(), "short"]);
        let path = format!("{long} {}\n", "x".repeat(41));
        assert_eq!(wrap_prose(&path), path);
        assert_eq!(width("\u{1b}[1;31malarm\u{1b}[0m x"), 7);
        let items: Vec<String> = (0..30).map(|n| format!("{n} of them")).collect();
        let list = wrap_list("", "  ", &items);
        let all = |line: &str| width(line) <= WIDTH && line.trim_end_matches(',').ends_with("them");
        assert!(list.lines().all(all), "{list}");
    }

    #[test]
    fn a_table_that_is_set_in_is_narrower() {
        let rows = vec![vec!["name ".repeat(12), "text ".repeat(12)]];
        let out = render_inset(&["what", "more"], &rows, 10);
        assert!(out.lines().all(|line| line.starts_with("          ")), "{out}");
        assert!(out.lines().all(|line| width(line) <= WIDTH), "{out}");
    }

    #[test]
    fn a_cell_that_goes_on_stays_in_its_column() {
        let rows = vec![vec!["first".into(), "text ".repeat(20).trim_end().to_owned()]];
        let out = render_inset(&["what", "more"], &rows, 4);
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines.len() > 2 && lines[1].starts_with("    first  text"), "{out}");
        assert!(lines[2..].iter().all(|line| line.starts_with(&" ".repeat(11))), "{out}");
        assert_eq!(out.matches("text").count(), 20, "{out}");
    }

    #[test]
    fn numbers_are_to_the_right_and_lines_have_no_tail() {
        let rows = vec![vec!["cpu".into(), "7".into()], vec!["memory".into(), "1234".into()]];
        let out = render(&["what", "amount"], &rows);
        assert!(out.lines().all(|line| line == line.trim_end() && line.len() <= WIDTH));
        assert!(out.lines().any(|line| line.ends_with("  7") || line.ends_with("     7")));
    }
}
