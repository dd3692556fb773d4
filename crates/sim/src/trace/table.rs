//! Tables of comma-separated fields: columns by name, one typed getter per kind of field.
//!
//! None of the known traces quotes its fields, so a quotation mark is reported instead of being
//! interpreted; that keeps a line a line and the reader free of state between lines (a general CSV
//! reader would swallow half a file after one stray quote). Fields borrow from the line.

use std::ops::ControlFlow;

use super::decimal::{Rounding, parse_micro, parse_whole};
use super::lines::{Input, Line, MAX_LINE_BYTES};
use super::problem::{FieldProblem, ReadReport, TraceError, preview};

/// Most columns a table can have.
const MAX_COLUMNS: usize = 24;

pub const ALLOWED_QUANTITY: &str = "a decimal number from 0 to 1.8e13, such as 0.25 or 2.861e-06";
pub const ALLOWED_ID: &str = "a whole number from 0 to 18446744073709551615";

/// Whether a callback wants more rows.
pub type Flow = ControlFlow<()>;

/// The format of a table.
pub struct TableSpec {
    /// In the order of the column numbers that the getters of [`Fields`] take; at most
    /// [`MAX_COLUMNS`].
    pub columns: &'static [&'static str],
    pub header: Header,
    /// Whether empty lines and lines that start with `#` are remarks.
    pub has_remarks: bool,
}

/// How columns are found.
pub enum Header {
    /// There is no header: every row has all columns in order.
    None,
    /// The first line names the columns, in any order; the first so many must be there.
    Names { required: usize },
}

/// The fields of one row, in the order of the spec's columns.
pub struct Fields<'a> {
    columns: &'static [&'static str],
    cells: [&'a str; MAX_COLUMNS],
}

/// Reads a table and passes each row to `use_row` until it breaks off.
///
/// A problem returned by `use_row` counts the row as unusable, and reading goes on.
pub fn read_table(
    input: Input,
    spec: &TableSpec,
    mut use_row: impl FnMut(&Fields<'_>) -> Result<Flow, FieldProblem>,
) -> Result<ReadReport, TraceError> {
    let mut report = ReadReport::new(input.name());
    let mut lines = input.into_lines();
    let mut layout = match spec.header {
        Header::None => Some((0..spec.columns.len()).collect()),
        Header::Names { .. } => None,
    };
    while let Some((number, line)) = lines.next_line()? {
        if spec.has_remarks && is_remark(&line) {
            continue;
        }
        let Some(layout) = &layout else {
            layout = Some(read_header(&report.file, spec, line)?);
            continue;
        };
        match text_of(line).and_then(|text| split(text, spec, layout)).and_then(|f| use_row(&f)) {
            Ok(flow) => {
                report.rows += 1;
                if flow.is_break() {
                    return Ok(report);
                }
            }
            Err(problem) => report.add_problem(number, problem),
        }
    }
    if layout.is_none() {
        return Err(header_error(&report.file, spec, "".into()));
    }
    report.end_reached = true;
    Ok(report)
}

/// The text of a usable line.
pub fn text_of(line: Line<'_>) -> Result<&str, FieldProblem> {
    let (bytes, allowed) = match line {
        Line::Text(text) => return Ok(text),
        Line::NotUtf8(bytes) => (bytes, "text in UTF-8".to_owned()),
        Line::TooLong(bytes) => (bytes, format!("a line of at most {MAX_LINE_BYTES} bytes")),
    };
    // Only the beginning is reported, so only the beginning is decoded.
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(256)]);
    Err(FieldProblem::new("row", &start, allowed))
}

fn is_remark(line: &Line<'_>) -> bool {
    matches!(line, Line::Text(text) if text.trim().is_empty() || text.starts_with('#'))
}

/// For each column of the file, its index in the spec.
fn read_header(file: &str, spec: &TableSpec, line: Line<'_>) -> Result<Vec<usize>, TraceError> {
    let text = text_of(line).map_err(|problem| header_error(file, spec, problem.value))?;
    let wrong = || header_error(file, spec, preview(text));
    let mut layout = Vec::new();
    for name in text.split(',') {
        let column_index =
            spec.columns.iter().position(|column| *column == name).ok_or_else(wrong)?;
        if layout.contains(&column_index) {
            return Err(wrong());
        }
        layout.push(column_index);
    }
    let required = match spec.header {
        Header::None => spec.columns.len(),
        Header::Names { required } => required,
    };
    if (0..required).all(|column_index| layout.contains(&column_index)) {
        Ok(layout)
    } else {
        Err(wrong())
    }
}

fn header_error(file: &str, spec: &TableSpec, found: String) -> TraceError {
    let required = match spec.header {
        Header::None => spec.columns.len(),
        Header::Names { required } => required.min(spec.columns.len()),
    };
    let (must, may) = spec.columns.split_at(required);
    let mut allowed = format!("a line with the columns {}", must.join(","));
    if !may.is_empty() {
        allowed = format!("{allowed} and, if wanted, {}", may.join(","));
    }
    TraceError::Header { file: file.to_owned(), found, allowed }
}

fn split<'a>(
    text: &'a str,
    spec: &TableSpec,
    layout: &[usize],
) -> Result<Fields<'a>, FieldProblem> {
    if text.contains('"') {
        return Err(FieldProblem::new("row", text, "fields without quotation marks"));
    }
    let mut cells = [""; MAX_COLUMNS];
    let mut count = 0;
    for cell in text.split(',') {
        if let Some(column_index) = layout.get(count) {
            cells[*column_index] = cell;
        }
        count += 1;
    }
    if count != layout.len() {
        let allowed = format!("{} comma-separated fields, not {count}", layout.len());
        return Err(FieldProblem::new("row", text, allowed));
    }
    Ok(Fields { columns: spec.columns, cells })
}

impl<'a> Fields<'a> {
    /// The text of a field; `None` when it is empty or its column is not in the file.
    pub fn text(&self, column: usize) -> Option<&'a str> {
        Some(self.cells[column]).filter(|cell| !cell.is_empty())
    }

    pub fn required_text(&self, column: usize) -> Result<&'a str, FieldProblem> {
        self.text(column).ok_or_else(|| self.problem(column, "a text that is not empty"))
    }

    /// Describes what is wrong with a field.
    pub fn problem(
        &self,
        column: usize,
        allowed: impl Into<std::borrow::Cow<'static, str>>,
    ) -> FieldProblem {
        FieldProblem::new(self.columns[column], self.cells[column], allowed)
    }

    pub fn whole(&self, column: usize) -> Result<u64, FieldProblem> {
        parse_whole(self.cells[column]).map_err(|_| self.problem(column, ALLOWED_ID))
    }

    pub fn optional_whole(&self, column: usize) -> Result<Option<u64>, FieldProblem> {
        self.text(column).map(|_| self.whole(column)).transpose()
    }

    /// A whole number that fits a smaller type and is at most `largest`.
    pub fn whole_up_to<T>(&self, column: usize, largest: T) -> Result<T, FieldProblem>
    where
        T: TryFrom<u64> + PartialOrd + std::fmt::Display + Copy,
    {
        let value = parse_whole(self.cells[column]).ok().and_then(|value| T::try_from(value).ok());
        value
            .filter(|value| *value <= largest)
            .ok_or_else(|| self.problem(column, format!("a whole number from 0 to {largest}")))
    }

    /// A quantity in micro-units.
    pub fn micro(&self, column: usize, rounding: Rounding) -> Result<u64, FieldProblem> {
        parse_micro(self.cells[column], rounding)
            .map_err(|_| self.problem(column, ALLOWED_QUANTITY))
    }

    pub fn optional_micro(
        &self,
        column: usize,
        rounding: Rounding,
    ) -> Result<Option<u64>, FieldProblem> {
        self.text(column).map(|_| self.micro(column, rounding)).transpose()
    }

    /// One of a few words.
    pub fn choice<T: Copy>(
        &self,
        column: usize,
        choices: &[(&'static str, T)],
    ) -> Result<T, FieldProblem> {
        let cell = self.cells[column];
        match choices.iter().find(|(word, _)| *word == cell) {
            Some((_, meaning)) => Ok(*meaning),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                Err(self.problem(column, words.join(", ")))
            }
        }
    }

    pub fn optional_choice<T: Copy>(
        &self,
        column: usize,
        choices: &[(&'static str, T)],
    ) -> Result<Option<T>, FieldProblem> {
        self.text(column).map(|_| self.choice(column, choices)).transpose()
    }
}

/// The values for yes and no in the traces.
pub const FLAG: &[(&str, bool)] = &[("0", false), ("1", true)];

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: TableSpec = TableSpec {
        columns: &["id", "size", "kind"],
        header: Header::Names { required: 2 },
        has_remarks: true,
    };

    fn read(text: &str) -> Result<(Vec<String>, ReadReport), TraceError> {
        let mut seen = Vec::new();
        let input = Input::from_bytes("t.csv", text.as_bytes().to_vec());
        let report = read_table(input, &SPEC, |fields| {
            let size = fields.micro(1, Rounding::Up)?;
            let kind = fields.optional_choice(2, &[("a", 'A'), ("b", 'B')])?;
            seen.push(format!("{} {size} {kind:?}", fields.whole(0)?));
            Ok(Flow::Continue(()))
        })?;
        Ok((seen, report))
    }

    #[test]
    fn columns_are_found_by_name_and_optional_ones_may_be_absent() {
        let (rows, report) = read("kind,size,id\na,0.5,7\n,1,8\n").expect("a good table");
        assert_eq!(rows, ["7 500000 Some('A')", "8 1000000 None"]);
        assert_eq!((report.rows, report.is_clean(), report.end_reached), (2, true, true));
        let (rows, _) = read("# remark\n\nid,size\n1,0\n\n#end\n").expect("a good table");
        assert_eq!(rows, ["1 0 None"]);
    }

    #[test]
    fn each_bad_row_is_reported_with_line_field_value_and_what_is_allowed() {
        let text = "id,size,kind\n1,NaN,a\nx,1,a\n1,1,c\n1,1\n1,1,a,b\n\"1\",1,a\n1,1,a\n";
        let (rows, report) = read(text).expect("a good header");
        assert_eq!(rows, ["1 1000000 Some('A')"]);
        let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        let expected = [
            format!("t.csv:2: size is \"NaN\"; allowed: {ALLOWED_QUANTITY}"),
            format!("t.csv:3: id is \"x\"; allowed: {ALLOWED_ID}"),
            "t.csv:4: kind is \"c\"; allowed: a, b".to_owned(),
            "t.csv:5: row is \"1,1\"; allowed: 3 comma-separated fields, not 2".to_owned(),
            "t.csv:6: row is \"1,1,a,b\"; allowed: 3 comma-separated fields, not 4".to_owned(),
            "t.csv:7: row is \"\\\"1\\\",1,a\"; allowed: fields without quotation marks".to_owned(),
        ];
        assert_eq!(problems, expected);
        assert_eq!((report.rows, report.problems_total), (1, 6));
    }

    #[test]
    fn a_wrong_header_is_an_error_and_not_a_thousand_bad_rows() {
        for text in ["", "id\n1\n", "id,size,size\n", "id,size,colour\n", "\u{feff}id,size\n"] {
            let error = read(text).expect_err(text).to_string();
            let allowed = "allowed: a line with the columns id,size and, if wanted, kind";
            assert!(error.ends_with(allowed), "{error}");
        }
    }
}
