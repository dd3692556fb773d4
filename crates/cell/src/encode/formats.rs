//! Formats of durable bytes, and from which level of the cell on each is written.
//!
//! A replica writes what all others must be able to read: entries that followers apply, snapshots
//! that they are sent. So a build that knows a new format goes on writing the one before, until the
//! cell is at the level that begins the new one, and no replica gets a vote or a level raised that
//! does not know it. Reading needs no such care: every format up to the newest is read at any time.
//!
//! The types of this crate are of the newest format. What is of another is converted as bytes, one
//! step after another, so that each step is written once, by the release that makes the format.
//!
//! Rejected: writing the newest format at once. A follower of the release before would stop at the
//! first entry of a new leader. A format in the configuration: replicas would disagree.

use super::LoadError;
use crate::state::LEVEL;
use std::cmp::Ordering;
use xxhash_rust::xxh3::xxh3_64;

/// Converts a payload; says what stands in the way.
pub(super) type Convert = fn(Vec<u8>) -> Result<Vec<u8>, String>;

/// How payloads of one kind go from a format to the next, and back.
pub(super) struct Conversion {
    pub raise: Convert,
    /// Fails for an entry with a command that the format before has no words for.
    pub lower: Convert,
}

/// A format after the first.
pub(super) struct Step {
    /// From this level of the cell on it is written.
    pub level: u32,
    pub state: Conversion,
    pub entry: Conversion,
}

/// Builds for tests know one format more than they were made for, which begins at the level after
/// the newest: what the next release will do is tried with it. Nothing that is shipped has it.
const REHEARSES: bool = cfg!(any(test, debug_assertions));

/// The step at position `i` leads from format `i + 1` to `i + 2`. A release that changes bytes adds
/// its step before the rehearsed one, in both lists.
const STEPS: &[Step] = if REHEARSES { &[REHEARSED] } else { &[] };

/// The newest format that this build was made for, which its types are of. From the first release
/// on, any change of encoded bytes raises it by a step.
pub const FORMAT: u16 = STEPS.len() as u16 + 1 - REHEARSES as u16;

/// One field more at the end, a stamp of all before it: no reader takes one format for the other.
const REHEARSED: Step = Step {
    level: LEVEL + 1,
    state: Conversion { raise: stamp, lower: unstamp },
    entry: Conversion { raise: stamp, lower: unstamp },
};

fn stamp(mut payload: Vec<u8>) -> Result<Vec<u8>, String> {
    payload.extend(xxh3_64(&payload).to_le_bytes());
    Ok(payload)
}

fn unstamp(mut payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let cut = payload.len().checked_sub(8).ok_or("it ends before its stamp")?;
    let found = payload.split_off(cut);
    let computed = xxh3_64(&payload).to_le_bytes();
    if found == computed {
        Ok(payload)
    } else {
        Err(format!("its stamp is {found:02x?}, computed: {computed:02x?}"))
    }
}

/// The format that a cell of this level writes.
#[must_use]
pub fn format_at(level: u32) -> u16 {
    written_at(STEPS, level)
}

fn written_at(steps: &[Step], level: u32) -> u16 {
    steps.iter().take_while(|step| step.level <= level).count() as u16 + 1
}

/// A payload of format `from` as one of format `to`; `None` where that is the same.
pub(super) fn convert(
    pick: impl Fn(&Step) -> &Conversion,
    payload: &[u8],
    from: u16,
    to: u16,
) -> Result<Option<Vec<u8>>, String> {
    walk(STEPS, pick, payload, from, to)
}

fn walk(
    steps: &[Step],
    pick: impl Fn(&Step) -> &Conversion,
    payload: &[u8],
    from: u16,
    to: u16,
) -> Result<Option<Vec<u8>>, String> {
    // Format 1 has no step: formats count from 1, steps from 0.
    let between = |low: u16, high: u16| &steps[usize::from(low) - 1..usize::from(high) - 1];
    match from.cmp(&to) {
        Ordering::Equal => Ok(None),
        Ordering::Less => {
            let mut up = between(from, to).iter();
            up.try_fold(payload.to_vec(), |bytes, step| (pick(step).raise)(bytes)).map(Some)
        }
        Ordering::Greater => {
            let mut down = between(to, from).iter().rev();
            down.try_fold(payload.to_vec(), |bytes, step| (pick(step).lower)(bytes)).map(Some)
        }
    }
}

/// Refuses a format that a build which knows levels up to `known` cannot have met.
pub(super) fn check_known(format: u16, known: u32) -> Result<(), LoadError> {
    let newest = format_at(known);
    if format == 0 || format > newest {
        return Err(LoadError::UnknownFormat { found: format, newest });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(mut payload: Vec<u8>) -> Result<Vec<u8>, String> {
        payload.push(payload.len() as u8);
        Ok(payload)
    }

    fn shrink(mut payload: Vec<u8>) -> Result<Vec<u8>, String> {
        payload.pop().filter(|last| *last != 99).ok_or("no words for 99")?;
        Ok(payload)
    }

    const fn step(level: u32) -> Step {
        const GROWS: Conversion = Conversion { raise: grow, lower: shrink };
        Step { level, state: GROWS, entry: GROWS }
    }

    #[test]
    fn payloads_pass_through_every_step_between_two_formats_in_order() {
        let steps = [step(2), step(4)];
        let check = |payload: &[u8], from, to, want: Result<Option<Vec<u8>>, &str>| {
            let got = walk(&steps, |step| &step.entry, payload, from, to);
            assert_eq!(got, want.map_err(str::to_owned), "{from} to {to}");
        };
        check(&[9], 1, 3, Ok(Some(vec![9, 1, 2])));
        check(&[9], 2, 3, Ok(Some(vec![9, 1])));
        check(&[9], 3, 3, Ok(None));
        check(&[9, 1, 2], 3, 1, Ok(Some(vec![9])));
        check(&[9, 1], 2, 1, Ok(Some(vec![9])));
        check(&[9, 99, 2], 3, 1, Err("no words for 99"));
    }

    #[test]
    fn a_format_is_written_from_its_level_on_and_not_before() {
        let steps = [step(2), step(4)];
        let written: Vec<u16> = (1..=5).map(|level| written_at(&steps, level)).collect();
        assert_eq!(written, [1, 2, 2, 3, 3]);
        assert_eq!((format_at(LEVEL), format_at(LEVEL + 1)), (FORMAT, FORMAT + 1));
    }

    #[test]
    fn a_format_beyond_what_is_known_is_refused_by_its_number() {
        for found in [0, FORMAT + 1, u16::MAX] {
            let refused = Err(LoadError::UnknownFormat { found, newest: FORMAT });
            assert_eq!(check_known(found, LEVEL), refused);
        }
        assert_eq!(check_known(FORMAT + 1, LEVEL + 1), Ok(()));
    }
}
