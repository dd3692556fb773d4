//! `--watch`: repeats the request and shows each answer. On a terminal the new output replaces the
//! old; otherwise outputs follow one another, with a separator line for programs.
//!
//! Rejected: the watches of the API, which report changes of one kind of object. The output here is
//! made of several kinds, and a person does not read it more often than this.

use crate::commands::Success;
use crate::connection;
use crate::failure::Failure;
use crate::output::{print, print_raw};
use crate::runtime::block_on;
use std::io::{self, IsTerminal};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

const PERIOD: Duration = Duration::from_secs(2);
/// Cursor home, then clear everything below.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Repeats until ctrl-c, or until the cell cannot be reached any more.
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
            // A job that does not fit, or a missing leader, is what the user watches for a change.
            Success::Done | Success::DoesNotFit | Success::NoLeader => {}
            Success::WouldChange | Success::ExitWith(_) => return Ok(outcome),
        }
        block_on(async {
            let mut ticks = interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick completes immediately.
            ticks.tick().await;
            ticks.tick().await;
            Ok(())
        })?;
    }
}
