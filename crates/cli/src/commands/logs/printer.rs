//! Prints output: as it was written where it is of one task, else line by line with what belongs in
//! front of each.

use crate::failure::Failure;
use crate::format;
use crate::output::{print_output, print_raw};
use crate::sanitize::{ColourPolicy, StreamSanitizer, sanitize};
use crate::style::{self, Style};
use cellwright_api::output::{OutputPart, Stream};
use cellwright_cell::name::JobKey;
use cellwright_cell::time::Time;
use std::io::{self, IsTerminal, Write};

/// Lines of several tasks are held back to be put in order until there are so many bytes of them.
const MAX_MERGED_BYTES: usize = 64 << 20;
/// In front of lines of standard error, which are not told apart by a colour everywhere.
const STDERR_MARK: &str = "stderr";

/// What lines have in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineStyle {
    /// The name of the task.
    pub named: bool,
    pub timestamps: bool,
    /// Whether standard error of the tasks goes to our own, as of a command that runs here.
    pub apart: bool,
}

impl LineStyle {
    /// Output as it was written.
    fn is_raw(self) -> bool {
        !self.named && !self.timestamps
    }
}

/// Prints the output of one task.
pub struct Printer {
    pub name: String,
    index: u32,
    line_style: LineStyle,
    style: Style,
    /// A line of each stream without its line end yet, and when it began.
    partial: [(Option<u64>, String); 2],
    /// Of each stream, for raw output on a terminal.
    sanitizers: [Option<StreamSanitizer>; 2],
    /// The stream of the last raw output, if that did not end its line.
    open_line: Option<Stream>,
    /// The attempt that the last output came from.
    attempt: Option<u32>,
}

fn number(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Printer {
    pub fn new(job: &JobKey, index: u32, line_style: LineStyle) -> Printer {
        let is_terminal = |stream: Stream| match stream {
            Stream::Stderr if line_style.apart => io::stderr().is_terminal(),
            _ => io::stdout().is_terminal(),
        };
        let sanitizer = |stream: Stream| {
            (line_style.is_raw() && is_terminal(stream)).then(StreamSanitizer::default)
        };
        Printer {
            name: format!("{job}/{index}"),
            index,
            line_style,
            style: style::for_stdout(),
            partial: Default::default(),
            sanitizers: [sanitizer(Stream::Stdout), sanitizer(Stream::Stderr)],
            open_line: None,
            attempt: None,
        }
    }

    /// From now on every line has the name of its task in front.
    pub fn name_lines(&mut self) -> Result<(), Failure> {
        if !self.line_style.named {
            self.finish()?;
            if self.open_line.take().is_some() {
                print_raw("\n")?;
            }
            self.line_style.named = true;
        }
        Ok(())
    }

    /// Prints a separator where the output of another attempt begins.
    pub fn set_attempt(&mut self, attempt: u32) -> Result<(), Failure> {
        let before = self.attempt.replace(attempt);
        if before.is_some_and(|before| before != attempt) {
            self.finish()?;
            crate::output::note!("-- {}: attempt {attempt} --", self.name);
        }
        Ok(())
    }

    pub fn push(&mut self, part: &OutputPart) -> Result<(), Failure> {
        if self.line_style.is_raw() {
            let text = self.raw_text(part);
            return match part.stream {
                Stream::Stderr if self.line_style.apart => print_error_output(&text),
                _ => print_raw(&text),
            };
        }
        let lines = self.complete_lines(part);
        self.print_lines(&lines)
    }

    fn print_lines(&self, lines: &[Line]) -> Result<(), Failure> {
        let goes_apart = |line: &&Line| self.line_style.apart && line.stream == Stream::Stderr;
        let (errors, rest): (Vec<&Line>, Vec<&Line>) = lines.iter().partition(goes_apart);
        let errors: String = errors.into_iter().map(|line| self.format_line(line)).collect();
        let rest: String = rest.into_iter().map(|line| self.format_line(line)).collect();
        if !errors.is_empty() {
            let on_terminal = io::stderr().is_terminal();
            let safe = on_terminal.then(|| sanitize(&errors, ColourPolicy::AnyColours));
            print_error_output(safe.as_deref().unwrap_or(&errors))?;
        }
        if rest.is_empty() { Ok(()) } else { print_output(&rest) }
    }

    /// What is printed of output as it was written: where the other stream goes on in the middle of
    /// a line, that line ends.
    fn raw_text(&mut self, part: &OutputPart) -> String {
        let text = match &mut self.sanitizers[number(part.stream)] {
            Some(sanitizer) => sanitizer.push(part.text.as_bytes()),
            None => part.text.clone(),
        };
        let text = match part.stream {
            Stream::Stderr if self.style.is_coloured() && !self.line_style.apart => {
                self.warning_lines(&text)
            }
            _ => text,
        };
        if self.line_style.apart {
            return text;
        }
        let is_cut = self.open_line.is_some_and(|stream| stream != part.stream);
        self.open_line = (!part.text.ends_with('\n')).then_some(part.stream);
        if is_cut { format!("\n{text}") } else { text }
    }

    fn warning_lines(&self, text: &str) -> String {
        let colour = |line: &str| match line.strip_suffix('\n') {
            Some("") => "\n".to_owned(),
            Some(line) => self.style.warning(line) + "\n",
            None => self.style.warning(line),
        };
        text.split_inclusive('\n').map(colour).collect()
    }

    /// The lines that are complete with this part.
    fn complete_lines(&mut self, part: &OutputPart) -> Vec<Line> {
        let (since, text) = &mut self.partial[number(part.stream)];
        let mut lines = Vec::new();
        for piece in part.text.split_inclusive('\n') {
            if text.is_empty() {
                *since = part.at;
            }
            text.push_str(piece);
            if let Some(line) = text.strip_suffix('\n') {
                let text = line.to_owned();
                lines.push(Line { at: *since, stream: part.stream, text });
            }
            if text.ends_with('\n') {
                text.clear();
            }
        }
        lines
    }

    /// The lines that nothing has completed.
    fn incomplete_lines(&mut self) -> Vec<Line> {
        let each = [Stream::Stdout, Stream::Stderr].into_iter().filter_map(|stream| {
            let (at, text) = std::mem::take(&mut self.partial[number(stream)]);
            (!text.is_empty()).then_some(Line { at, stream, text })
        });
        each.collect()
    }

    pub fn finish(&mut self) -> Result<(), Failure> {
        let rest = |sanitizer: &mut Option<StreamSanitizer>| {
            sanitizer.as_mut().map(StreamSanitizer::finish).unwrap_or_default()
        };
        let [output, errors] = self.sanitizers.each_mut().map(rest);
        print_raw(&output)?;
        let print = if self.line_style.apart { print_error_output } else { print_raw };
        print(&errors)?;
        let lines = self.incomplete_lines();
        self.print_lines(&lines)
    }

    fn format_line(&self, line: &Line) -> String {
        let mut front = Vec::new();
        if self.line_style.timestamps {
            front.push(line.at.map_or_else(|| "-".to_owned(), |at| format::utc_millis(Time(at))));
        }
        if self.line_style.named {
            front.push(self.style.nth_colour(self.index, &self.name));
        }
        let text = match line.stream {
            Stream::Stderr => {
                front.push(STDERR_MARK.to_owned());
                self.style.warning(&line.text)
            }
            Stream::Stdout => line.text.clone(),
        };
        format!("{} {text}\n", front.join(" "))
    }
}

fn print_error_output(text: &str) -> Result<(), Failure> {
    let mut errors = io::stderr().lock();
    let written = errors.write_all(text.as_bytes()).and_then(|()| errors.flush());
    written.map_err(|source| Failure::Write { what: "standard error".into(), source })
}

/// A line without its line end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    at: Option<u64>,
    stream: Stream,
    text: String,
}

/// Lines of several tasks, printed in the order of time. A line without a time stays behind the one
/// above it.
#[derive(Default)]
pub struct MergedLines {
    lines: Vec<(Option<u64>, String)>,
    bytes: usize,
    /// The last time of the present task.
    last: Option<u64>,
}

impl MergedLines {
    pub fn push(&mut self, printer: &mut Printer, part: &OutputPart) -> Result<(), Failure> {
        let lines = printer.complete_lines(part);
        self.add(printer, &lines)
    }

    /// The task has no more lines.
    pub fn end_task(&mut self, printer: &mut Printer) -> Result<(), Failure> {
        let lines = printer.incomplete_lines();
        self.add(printer, &lines)?;
        self.last = None;
        Ok(())
    }

    fn add(&mut self, printer: &Printer, lines: &[Line]) -> Result<(), Failure> {
        for line in lines {
            self.last = self.last.max(line.at);
            let text = printer.format_line(line);
            self.bytes += text.len();
            self.lines.push((self.last, text));
        }
        if self.bytes > MAX_MERGED_BYTES { self.print_all() } else { Ok(()) }
    }

    fn print_all(&mut self) -> Result<(), Failure> {
        self.lines.sort_by_key(|(at, _)| *at);
        self.bytes = 0;
        let text: String = self.lines.drain(..).map(|(_, text)| text).collect();
        if text.is_empty() { Ok(()) } else { print_output(&text) }
    }

    pub fn print(mut self) -> Result<(), Failure> {
        self.print_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::name::Name;

    fn printer(index: u32, line_style: LineStyle) -> Printer {
        let name = |text: &str| Name::new(text).unwrap();
        let job = JobKey { user: name("dev"), job: name("web") };
        Printer::new(&job, index, line_style)
    }

    fn part(stream: Stream, at: u64, text: &str) -> OutputPart {
        OutputPart { stream, at: Some(at), text: text.to_owned() }
    }

    const RAW: LineStyle = LineStyle { named: false, timestamps: false, apart: false };
    const FULL: LineStyle = LineStyle { named: true, timestamps: true, apart: false };

    #[test]
    fn raw_output_is_as_it_was_and_streams_share_no_line() {
        let mut printer = printer(0, RAW);
        let mut text = |stream, text| printer.raw_text(&part(stream, 1, text));
        assert_eq!(text(Stream::Stdout, "a\nb"), "a\nb");
        assert_eq!(text(Stream::Stdout, "c"), "c");
        assert_eq!(text(Stream::Stderr, "oh\n"), "\noh\n");
        assert_eq!(text(Stream::Stdout, "d\n"), "d\n");
    }

    #[test]
    fn lines_are_whole_and_say_task_time_and_stream() {
        let mut printer = printer(3, FULL);
        let mut lines = |stream, at, text| {
            let lines = printer.complete_lines(&part(stream, at, text));
            lines.iter().map(|line| printer.format_line(line)).collect::<String>()
        };
        assert_eq!(lines(Stream::Stdout, 1000, "on"), "");
        let stderr = "1970-01-01 00:00:02.000Z dev/web/3 stderr oh\n";
        assert_eq!(lines(Stream::Stderr, 2000, "oh\n"), stderr);
        let stdout = "1970-01-01 00:00:01.000Z dev/web/3 one\n\
                      1970-01-01 00:00:03.000Z dev/web/3 \n";
        assert_eq!(lines(Stream::Stdout, 3000, "e\n\n"), stdout);
    }

    #[test]
    fn lines_of_several_tasks_are_in_the_order_of_time() {
        let mut merged = MergedLines::default();
        for (index, texts) in [(0, ["a\n", "c\n"]), (1, ["b\n", "d"])] {
            let mut printer = printer(index, LineStyle { timestamps: false, ..FULL });
            for (nth, text) in (0..).zip(texts) {
                let at = 100 + 10 * nth + u64::from(index);
                merged.push(&mut printer, &part(Stream::Stdout, at, text)).unwrap();
            }
            merged.end_task(&mut printer).unwrap();
        }
        merged.lines.sort_by_key(|(at, _)| *at);
        let text: String = merged.lines.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(text, "dev/web/0 a\ndev/web/1 b\ndev/web/0 c\ndev/web/1 d\n");
    }
}
