//! `--watch`: the same answer again and again. On a terminal in the place of the one before, else
//! one after another, with a line between them for programs that cut there.
//!
//! Rejected: the watches of the API, which tell one kind of thing as it changes. What is shown here
//! is made of several, and a person reads it no more often than this.

use crate::commands::Success;
use crate::connection;
use crate::failure::Failure;
use crate::output::{print, print_raw};
use crate::runtime::block_on;
use std::io::{self, IsTerminal};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

const PERIOD: Duration = Duration::from_secs(2);
/// Home, then everything below is wiped.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Until the person at the terminal ends it, or the cell cannot be asked any more.
pub fn run_repeatedly(
    mut run_once: impl FnMut() -> Result<Success, Failure>,
) -> Result<Success, Failure> {
    let terminal = io::stdout().is_terminal();
    let mut first = true;
    loop {
        match (terminal, first) {
            (true, _) => print_raw(CLEAR)?,
            (false, true) => {}
            (false, false) => print("---\n")?,
        }
        first = false;
        let outcome = run_once()?;
        connection::mark_answered();
        match outcome {
            // What does not fit now, or has no leader, is what somebody watches to see change.
            Success::Done | Success::DoesNotFit | Success::NoLeader => {}
            Success::WouldChange | Success::ExitWith(_) => return Ok(outcome),
        }
        block_on(async {
            let mut ticks = interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick is at once.
            ticks.tick().await;
            ticks.tick().await;
            Ok(())
        })?;
    }
}
