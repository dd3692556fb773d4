//! Times of day for people: when something happened and when it is retried, in local time.

use cellwright_cell::time::Time;

pub fn now() -> Time {
    cellwright_identity::clock::wall()
}
