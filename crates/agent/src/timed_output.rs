//! Output with its times: the lines of one stream or of both, put in order by when they were
//! written, as far as that is known (`crate::shim::log_times`). A line belongs to the time at which
//! its first byte was written, and lines of one stream never change places.
//!
//! A piece ends where one stream has more than fits: what comes next of it may have been written
//! before the rest of the other.

use crate::output::{
    MAX_LINE_SCAN_BYTES, MAX_PIECE_BYTES, StreamPosition, TimedOutput, last_lines_position,
    read_timed, since_position, split_at_character, tail_position,
};
use cellwright_api::output::{OutputPart, OutputQuery, Stream, StreamSelection};
use std::io;
use std::path::Path;

/// Separates the positions of both streams.
const SEPARATOR: char = '_';

/// Positions in the selected streams, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions(Vec<(Stream, StreamPosition)>);

impl Positions {
    #[must_use]
    pub fn to_text(&self) -> String {
        let texts = self.0.iter().map(|(_, position)| position.to_text());
        texts.collect::<Vec<_>>().join(&SEPARATOR.to_string())
    }

    /// A single position counts for both, so that the beginning is the same for all.
    #[must_use]
    pub fn parse(text: &str, selection: StreamSelection) -> Option<Positions> {
        let parsed: Option<Vec<StreamPosition>> =
            text.split(SEPARATOR).map(StreamPosition::parse).collect();
        let (parsed, streams) = (parsed?, selection.streams());
        let of = |at: usize| match parsed.as_slice() {
            [one] => Some(*one),
            all if all.len() == streams.len() => all.get(at).copied(),
            _ => None,
        };
        let both = streams.iter().enumerate().map(|(at, stream)| Some((*stream, of(at)?)));
        both.collect::<Option<Vec<_>>>().map(Positions)
    }

    /// Where the query begins.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn first(folder: &Path, query: &OutputQuery, tail: u64) -> io::Result<Positions> {
        let each = |find: &dyn Fn(Stream) -> io::Result<StreamPosition>| {
            let streams = query.stream.streams().iter();
            let found = streams.map(|stream| find(*stream).map(|position| (*stream, position)));
            found.collect::<io::Result<Vec<_>>>().map(Positions)
        };
        let Some(lines) = query.lines else {
            return match query.since {
                Some(since) => each(&|stream| since_position(folder, stream, since)),
                None => each(&|stream| tail_position(folder, stream, tail)),
            };
        };
        let begin = each(&|stream| last_lines_position(folder, stream, lines))?;
        let merged = begin.read(folder, MAX_LINE_SCAN_BYTES)?;
        let too_many = merged.lines.len().saturating_sub(usize::try_from(lines).unwrap_or(0));
        let is_old = |line: &Line| line.at.is_some_and(|at| query.since.is_some_and(|s| at < s));
        let old = merged.lines.iter().take_while(|line| is_old(line)).count();
        let skipped = &merged.lines[..too_many.max(old)];
        Ok(merged.positions_after(skipped))
    }

    fn read(&self, folder: &Path, max_bytes: u64) -> io::Result<Merged> {
        let mut streams = Vec::new();
        for (stream, from) in &self.0 {
            let read = read_timed(folder, *stream, *from, max_bytes)?;
            streams.push(ReadStream { stream: *stream, from: *from, read });
        }
        Ok(Merged::new(streams, max_bytes))
    }
}

struct ReadStream {
    stream: Stream,
    from: StreamPosition,
    read: TimedOutput,
}

/// One line, or the beginning of one that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    /// The index of its stream.
    of: usize,
    at: Option<u64>,
    begin: usize,
    end: usize,
}

/// What was read of the streams, and its lines in order.
struct Merged {
    streams: Vec<ReadStream>,
    lines: Vec<Line>,
}

impl Merged {
    fn new(streams: Vec<ReadStream>, max_bytes: u64) -> Merged {
        let mut waiting: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(of, stream)| lines_of(of, &stream.read).into_iter().peekable())
            .collect();
        let has_more: Vec<bool> =
            streams.iter().map(|stream| stream.read.bytes.len() as u64 >= max_bytes).collect();
        let mut lines = Vec::new();
        loop {
            let is_cut =
                waiting.iter_mut().zip(&has_more).any(|(w, more)| *more && w.peek().is_none());
            let next = waiting.iter_mut().filter_map(|w| w.peek().copied());
            let next = next.min_by_key(|line| (line.at, line.of));
            let Some(line) = next.filter(|_| !is_cut) else { break };
            lines.extend(waiting[line.of].next());
        }
        Merged { streams, lines }
    }

    /// The positions after these lines, which are the first.
    fn positions_after(&self, lines: &[Line]) -> Positions {
        let after = |(of, stream): (usize, &ReadStream)| {
            let last = lines.iter().rev().find(|line| line.of == of);
            let position = last.map_or(stream.from, |line| match line.end {
                end if end == stream.read.bytes.len() => stream.read.next,
                end => stream.read.position_at(end),
            });
            (stream.stream, position)
        };
        Positions(self.streams.iter().enumerate().map(after).collect())
    }

    /// Lines in a row of the same stream and time are one part.
    fn parts(&self) -> Vec<OutputPart> {
        let runs = self.lines.chunk_by(|one, next| (one.of, one.at) == (next.of, next.at));
        let parts = runs.filter_map(|run| {
            let (first, last) = (run.first()?, run.last()?);
            let ReadStream { stream, read, .. } = &self.streams[first.of];
            let text = String::from_utf8_lossy(&read.bytes[first.begin..last.end]).into_owned();
            Some(OutputPart { stream: *stream, at: first.at, text })
        });
        parts.collect()
    }
}

fn lines_of(of: usize, read: &TimedOutput) -> Vec<Line> {
    let mut begin = 0;
    let pieces = read.bytes.split_inclusive(|byte| *byte == b'\n');
    pieces
        .map(|piece| {
            let line = Line { of, at: read.time_at(begin), begin, end: begin + piece.len() };
            begin = line.end;
            line
        })
        .collect()
}

/// A piece of the selected streams, and where the next one begins. `more_to_come`: an incomplete
/// character at the end is left to that.
///
/// # Errors
/// When the files cannot be read.
pub fn read_parts(
    folder: &Path,
    from: &Positions,
    more_to_come: bool,
) -> io::Result<(Vec<OutputPart>, Positions)> {
    let mut streams = Vec::new();
    for (stream, from) in &from.0 {
        let mut read = read_timed(folder, *stream, *from, MAX_PIECE_BYTES)?;
        let is_full = read.bytes.len() as u64 >= MAX_PIECE_BYTES;
        if more_to_come && !is_full {
            read.next = split_at_character(&mut read.bytes, read.next);
        }
        streams.push(ReadStream { stream: *stream, from: *from, read });
    }
    let merged = Merged::new(streams, MAX_PIECE_BYTES);
    Ok((merged.parts(), merged.positions_after(&merged.lines)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::log::RotatedLog;
    use crate::shim::protocol::{LOGS, LogSettings};
    use crate::state_dir::scratch::Scratch;

    const SETTINGS: LogSettings = LogSettings { file_bytes: 1 << 20, files: 3, rate: 1 << 30 };

    struct Logs {
        scratch: Scratch,
        out: RotatedLog,
        err: RotatedLog,
    }

    impl Logs {
        fn new(settings: LogSettings) -> Logs {
            let scratch = Scratch::new();
            std::fs::create_dir(scratch.path(LOGS)).unwrap();
            let open = |name: &str| RotatedLog::new(scratch.path(LOGS).join(name), settings, 0);
            let (out, err) = (open("stdout"), open("stderr"));
            Logs { scratch, out, err }
        }

        fn read(&self, from: &Positions) -> (String, Positions) {
            let (parts, next) = read_parts(&self.scratch.path(""), from, true).unwrap();
            (text_of(&parts), next)
        }

        fn first(&self, query: &OutputQuery) -> Positions {
            Positions::first(&self.scratch.path(""), query, 1 << 20).unwrap()
        }
    }

    /// `100o:text` for a part of standard output written at 100.
    fn text_of(parts: &[OutputPart]) -> String {
        let part = |part: &OutputPart| {
            let at = part.at.map_or_else(|| "?".to_owned(), |at| at.to_string());
            format!("{at}{}:{}", &part.stream.name()[3..4], part.text)
        };
        parts.iter().map(part).collect()
    }

    fn all() -> OutputQuery {
        OutputQuery { stream: StreamSelection::All, ..OutputQuery::default() }
    }

    #[test]
    fn lines_of_both_streams_stand_in_the_order_they_were_written_in() {
        let mut logs = Logs::new(SETTINGS);
        logs.err.write_at(b"begins\n", 0, 100);
        logs.out.write_at(b"one\ntwo\n", 0, 200);
        logs.err.write_at(b"careful\n", 0, 300);
        logs.out.write_at(b"three\nfo", 0, 400);
        let (text, next) = logs.read(&logs.first(&all()));
        let want = "100e:begins\n200o:one\ntwo\n300e:careful\n400o:three\nfo";
        assert_eq!(text, want);
        assert_eq!(Positions::parse(&next.to_text(), StreamSelection::All), Some(next.clone()));
        logs.out.write_at(b"ur\n", 0, 500);
        let (text, next) = logs.read(&next);
        assert_eq!(text, "500o:ur\n");
        assert_eq!(logs.read(&next), (String::new(), next.clone()));
        let begin = Positions::parse("0-0", StreamSelection::All).unwrap();
        assert!(logs.read(&begin).0.starts_with(want));
        for bad in ["", "1", "1-2_3", "1-2_3-4_5-6"] {
            assert_eq!(Positions::parse(bad, StreamSelection::All), None, "{bad:?}");
        }
        assert_eq!(Positions::parse("1-2_3-4", StreamSelection::Stderr), None);
    }

    #[test]
    fn it_begins_so_many_lines_before_the_end_or_at_a_time() {
        let mut logs = Logs::new(LogSettings { file_bytes: 16, ..SETTINGS });
        for at in 1..=4 {
            logs.out.write_at(format!("out {at}\n").as_bytes(), 0, at * 100);
            logs.err.write_at(format!("err {at}\n").as_bytes(), 0, at * 100 + 50);
        }
        let from = |query: OutputQuery| logs.read(&logs.first(&query)).0;
        let last = |lines| from(OutputQuery { lines: Some(lines), ..all() });
        assert_eq!(last(0), "");
        assert_eq!(last(1), "450e:err 4\n");
        assert_eq!(last(3), "350e:err 3\n400o:out 4\n450e:err 4\n");
        let since = |since, lines| from(OutputQuery { since: Some(since), lines, ..all() });
        assert_eq!(since(350, None), "350e:err 3\n400o:out 4\n450e:err 4\n");
        assert_eq!(since(350, Some(2)), "400o:out 4\n450e:err 4\n");
        assert_eq!(since(450, Some(3)), "450e:err 4\n");
        assert_eq!(since(451, None), "");
        assert_eq!(since(0, None).matches("out").count(), 4);
        let one = OutputQuery { stream: StreamSelection::Stderr, since: Some(400), ..all() };
        assert_eq!(from(one), "450e:err 4\n");
    }

    #[test]
    fn a_stream_with_more_than_fits_holds_the_other_back() {
        let mut logs = Logs::new(SETTINGS);
        let line = [&b"x".repeat(999)[..], b"\n"].concat();
        for at in 0..300 {
            logs.out.write_at(&line, 0, 100 + at);
        }
        logs.err.write_at(b"early\n", 0, 101);
        logs.err.write_at(b"late\n", 0, 500);
        let (first, next) = logs.read(&logs.first(&all()));
        assert!(first.contains("early") && !first.contains("late"));
        let (second, next) = logs.read(&next);
        assert!(second.ends_with("500e:late\n") && !second.contains("early"));
        let count = |text: &str| text.matches('x').count();
        assert_eq!(count(&first) + count(&second), 300 * 999);
        assert_eq!(logs.read(&next).0, "");
    }

    #[test]
    fn what_has_no_times_is_shown_without() {
        let mut logs = Logs::new(SETTINGS);
        logs.out.write_at(b"out\n", 0, 100);
        logs.err.write_at(b"err\n", 0, 50);
        std::fs::remove_file(logs.scratch.path(LOGS).join("stdout.times")).unwrap();
        assert_eq!(logs.read(&logs.first(&all())).0, "?o:out\n50e:err\n");
    }
}
