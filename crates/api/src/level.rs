//! The level of the log's behaviour and format that a process knows
//! ([`cellwright_cell::state::LEVEL`]), or rehearses.
//!
//! Masters and schedulers read the log. What they say they know decides when the cell is raised,
//! and what they meet beyond it stops them.

use cellwright_cell::state::{HIGHEST_LEVEL, LEVEL};
use std::sync::OnceLock;

/// Names the newest level that a process is to rehearse; read by debug builds alone.
pub const REHEARSAL: &str = "CELL_REHEARSE_LEVEL";

/// What this process knows: what it was built for, or a level to come that it rehearses. In what is
/// shipped there is nothing to turn on.
#[must_use]
pub fn known_level() -> u32 {
    static KNOWN: OnceLock<u32> = OnceLock::new();
    let read = || {
        let named = std::env::var(REHEARSAL).ok().filter(|_| cfg!(debug_assertions));
        rehearsed(named.as_deref())
    };
    *KNOWN.get_or_init(read)
}

fn rehearsed(named: Option<&str>) -> u32 {
    let named = named.and_then(|text| text.parse().ok());
    named.filter(|level| (LEVEL..=HIGHEST_LEVEL).contains(level)).unwrap_or(LEVEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_own_level_unless_it_rehearses_the_next() {
        for (named, known) in [(None, LEVEL), (Some("9"), LEVEL), (Some("x"), LEVEL)] {
            assert_eq!(rehearsed(named), known, "{named:?}");
        }
        assert_eq!(rehearsed(Some(&HIGHEST_LEVEL.to_string())), HIGHEST_LEVEL);
    }
}
