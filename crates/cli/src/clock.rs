//! The time of day for people: they are told how long ago something was, and when it is tried
//! again, by their own clock.

use cellwright_cell::time::Time;

pub fn now() -> Time {
    cellwright_identity::clock::wall()
}
