//! Terminal colours, only where a person sees them: on a terminal, unless NO_COLOR is set or
//! `--no-color` is given.

use std::env;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether to write colour codes.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    coloured: bool,
}

pub fn for_stdout() -> Style {
    Style { coloured: io::stdout().is_terminal() && colours_allowed() }
}

pub fn for_stderr() -> Style {
    Style { coloured: io::stderr().is_terminal() && colours_allowed() }
}

/// Set when the command line forbids colours.
static COLOURS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Applies the `--no-color` flag.
pub fn allow_colours(allowed: bool) {
    COLOURS_FORBIDDEN.store(!allowed, Ordering::Relaxed);
}

fn colours_allowed() -> bool {
    !COLOURS_FORBIDDEN.load(Ordering::Relaxed)
        && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// All codes that this program writes; only these pass to a terminal from other text.
pub const COLOUR_CODES: [&str; 9] = ["0", "1", "1;31", "31", "32", "33", "34", "35", "36"];

impl Style {
    #[cfg(test)]
    pub fn always() -> Style {
        Style { coloured: true }
    }

    pub fn is_coloured(self) -> bool {
        self.coloured
    }

    pub fn strong(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub fn warning(self, text: &str) -> String {
        self.with("33", text)
    }

    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    /// The text in one of a few colours, so that neighbours differ.
    pub fn nth_colour(self, number: u32, text: &str) -> String {
        const COLOURS: [&str; 6] = ["36", "33", "32", "35", "34", "31"];
        self.with(COLOURS[number as usize % COLOURS.len()], text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.coloured { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}
