//! Makes terminal control sequences in untrusted text visible instead of active.
//!
//! Names, labels, reasons, error messages and output of tasks are written by other people, and a
//! terminal obeys escape sequences wherever they come from: OSC 52 fills the clipboard, others move
//! the cursor over text that was printed before. Everything that this program prints to a terminal
//! passes through here, so no command can forget it. Only line ends (also those of Windows), tabs,
//! and the few colours that this program itself writes are let through; programs that read a pipe
//! get the exact bytes.

use std::borrow::Cow;

/// A line end with a carriage return, which is harmless on a terminal.
const CRLF: &str = "\r\n";
/// The control sequence introducer, with which colour codes begin.
const CSI: &str = "\u{1b}[";
/// The maximum length of one colour code in bytes; longer sequences are not treated as colours.
const MAX_COLOUR_CODE_BYTES: usize = 24;

/// Which colour codes are let through to a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColourPolicy {
    /// The colours of [`crate::style`].
    OwnColours,
    /// Any colours, as programs write them into their output, except those that hide text.
    AnyColours,
}

/// The text with every other control character written as an escape such as `\x1b`.
pub fn sanitize(text: &str, policy: ColourPolicy) -> Cow<'_, str> {
    if !text.chars().any(is_terminal_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let passthrough_len =
            if rest.starts_with(CRLF) { Some(CRLF.len()) } else { colour_code_len(rest, policy) };
        let consumed = match passthrough_len {
            Some(length) => {
                out.push_str(&rest[..length]);
                length
            }
            None if is_terminal_control(c) => {
                push_escaped(c, &mut out);
                c.len_utf8()
            }
            None => {
                out.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[consumed..];
    }
    Cow::Owned(out)
}

/// Replaces the control characters that JSON permits unescaped by JSON escapes of the same value.
pub fn escape_in_json(text: String) -> String {
    if !text.chars().any(is_terminal_control) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_terminal_control(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)))
        } else {
            out.push(c)
        }
    }
    out
}

/// A log line, without its line end; line breaks and control characters in it are escaped. This
/// also applies to log files, which someone will view on a terminal one day.
pub fn sanitize_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            c if is_terminal_control(c) => push_escaped(c, &mut out),
            c => out.push(c),
        }
    }
    out
}

/// Sanitizes output that arrives in chunks. A chunk may end within a character, a colour code or a
/// line end.
#[derive(Debug, Default)]
pub struct StreamSanitizer {
    /// The beginning of a character, colour code or line end.
    incomplete: Vec<u8>,
}

impl StreamSanitizer {
    /// Returns the text that can be printed now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.incomplete);
        all.extend_from_slice(bytes);
        self.incomplete = all.split_off(all.len() - incomplete_suffix_len(&all));
        sanitize_bytes(&all)
    }

    /// Returns the rest after the last chunk.
    pub fn finish(&mut self) -> String {
        sanitize_bytes(&std::mem::take(&mut self.incomplete))
    }
}

fn sanitize_bytes(bytes: &[u8]) -> String {
    sanitize(&String::from_utf8_lossy(bytes), ColourPolicy::AnyColours).into_owned()
}

/// The length of an incomplete sequence at the end of `bytes`, which cannot be classified yet.
fn incomplete_suffix_len(bytes: &[u8]) -> usize {
    let is_code = |byte: &u8| byte.is_ascii_digit() || *byte == b';';
    let escape = bytes.iter().rposition(|byte| *byte == 0x1b);
    let colour = escape.map(|at| &bytes[at..]).filter(|tail| match tail.split_at_checked(2) {
        None => true,
        Some((begin, codes)) => {
            begin == CSI.as_bytes()
                && codes.len() < MAX_COLOUR_CODE_BYTES
                && codes.iter().all(is_code)
        }
    });
    match (colour, bytes.last()) {
        (Some(colour), _) => colour.len(),
        (None, Some(b'\r')) => 1,
        _ => incomplete_char_len(bytes),
    }
}

/// The length of an incomplete UTF-8 character at the end of `bytes`.
fn incomplete_char_len(bytes: &[u8]) -> usize {
    /// The longest incomplete prefix of a UTF-8 character.
    const MAX_INCOMPLETE_BYTES: usize = 3;
    let begins = |count: &usize| {
        let tail = &bytes[bytes.len() - count..];
        std::str::from_utf8(tail)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=MAX_INCOMPLETE_BYTES.min(bytes.len())).find(begins).unwrap_or(0)
}

/// Whether the character is a control character or changes the text direction.
fn is_terminal_control(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn push_escaped(c: char, out: &mut String) {
    let number = u32::from(c);
    let escape =
        if number < 0x80 { format!("\\x{number:02x}") } else { format!("\\u{{{number:x}}}") };
    out.push_str(&escape);
}

/// The length of an allowed colour code at the start of the text, if there is one.
fn colour_code_len(text: &str, policy: ColourPolicy) -> Option<usize> {
    let codes = text.strip_prefix(CSI)?;
    let end = codes
        .bytes()
        .take(MAX_COLOUR_CODE_BYTES)
        .position(|b| !(b.is_ascii_digit() || b == b';'))?;
    if codes.as_bytes()[end] != b'm' {
        return None;
    }
    let fits = match policy {
        ColourPolicy::OwnColours => crate::style::COLOUR_CODES.contains(&&codes[..end]),
        // 8 hides text. As part of 38;5;8 it would be a harmless grey, which is not supported.
        ColourPolicy::AnyColours => {
            codes[..end].split(';').all(|code| code.trim_start_matches('0') != "8")
        }
    };
    fits.then_some(CSI.len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, own: &str, any: &str) {
        assert_eq!(sanitize(text, ColourPolicy::OwnColours), own);
        assert_eq!(sanitize(text, ColourPolicy::AnyColours), any);
    }

    #[test]
    fn what_commands_a_terminal_is_written_out() {
        check("plain\ttext\n", "plain\ttext\n", "plain\ttext\n");
        // The clipboard, the title, and the one-character form of the same sequence.
        check("\u{1b}]52;c;aGk=\u{7}", "\\x1b]52;c;aGk=\\x07", "\\x1b]52;c;aGk=\\x07");
        check("\u{9b}2J", "\\u{9b}2J", "\\u{9b}2J");
        check("\u{1b}[2J\u{1b}[H", "\\x1b[2J\\x1b[H", "\\x1b[2J\\x1b[H");
        check("over\rwritten", "over\\x0dwritten", "over\\x0dwritten");
        check("a\r\n\r\rb\r\n", "a\r\n\\x0d\\x0db\r\n", "a\r\n\\x0d\\x0db\r\n");
        check("exe\u{202e}txt", "exe\\u{202e}txt", "exe\\u{202e}txt");
        check("\u{1b}[8mhidden", "\\x1b[8mhidden", "\\x1b[8mhidden");
        check("\u{1b}[0;08mhidden", "\\x1b[0;08mhidden", "\\x1b[0;08mhidden");
        // A colour code that is cut off, and one that never ends.
        check("\u{1b}[31", "\\x1b[31", "\\x1b[31");
        check("\u{1b}[", "\\x1b[", "\\x1b[");
        let long = format!("\u{1b}[{}m", "1;".repeat(100));
        assert!(!sanitize(&long, ColourPolicy::AnyColours).contains('\u{1b}'));
    }

    #[test]
    fn colours_stay() {
        let style = crate::style::Style::always();
        for text in [style.bad("x"), style.strong("x"), style.good("x"), style.warning("x")] {
            check(&text, &text, &text);
        }
        for number in 0..7 {
            let text = style.nth_colour(number, "x");
            check(&text, &text, &text);
        }
        let of_program = "\u{1b}[38;5;208mx\u{1b}[m";
        assert_eq!(sanitize(of_program, ColourPolicy::AnyColours), of_program);
        assert!(!sanitize(of_program, ColourPolicy::OwnColours).contains('\u{1b}'));
    }

    #[test]
    fn a_line_of_a_log_stays_one_line() {
        let line = sanitize_line("refused: x\r\n2026-01-01 all is well\t\u{1b}[2J\u{9b}2J\u{202e}");
        assert_eq!(line, "refused: x\\x0d\\n2026-01-01 all is well\t\\x1b[2J\\u{9b}2J\\u{202e}");
    }

    #[test]
    fn characters_that_are_cut_in_two_are_put_together_again() {
        let text = "grün \u{9b}2J 日本 \u{1f600}\n";
        for cut in 0..=text.len() {
            let mut sanitizer = StreamSanitizer::default();
            let (first, second) = text.as_bytes().split_at(cut);
            let got = sanitizer.push(first) + &sanitizer.push(second) + &sanitizer.finish();
            assert_eq!(got, "grün \\u{9b}2J 日本 \u{1f600}\n", "{cut}");
        }
        let mut sanitizer = StreamSanitizer::default();
        // A control character as one byte, as old terminals accept it, and an incomplete character.
        assert_eq!(sanitizer.push(b"a\x9b2J\xff\xe2\x82"), "a\u{fffd}2J\u{fffd}");
        assert_eq!(sanitizer.finish(), "\u{fffd}");
    }

    #[test]
    fn colours_and_line_ends_that_are_cut_in_two_are_put_together_again() {
        let text = "\u{1b}[38;5;208mwarm\u{1b}[0m\r\n\u{1b}[2J\rover\u{1b}[8m";
        let want = "\u{1b}[38;5;208mwarm\u{1b}[0m\r\n\\x1b[2J\\x0dover\\x1b[8m";
        for cut in 0..=text.len() {
            let mut sanitizer = StreamSanitizer::default();
            let (first, second) = text.as_bytes().split_at(cut);
            let got = sanitizer.push(first) + &sanitizer.push(second) + &sanitizer.finish();
            assert_eq!(got, want, "{cut}");
        }
        // A colour code that never ends is not buffered, and the rest is written out at the end.
        let mut sanitizer = StreamSanitizer::default();
        assert!(
            sanitizer.push(format!("\u{1b}[{}", "1;".repeat(50)).as_bytes()).starts_with("\\x1b")
        );
        assert_eq!(sanitizer.push(b"\x1b[3"), "");
        assert_eq!(sanitizer.finish(), "\\x1b[3");
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({ "a": "x\u{9b}2J\u{7f}\u{202e}\u{1b}" });
        let text = escape_in_json(format!("{value:#}\n"));
        assert!(!text.chars().any(is_terminal_control), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
