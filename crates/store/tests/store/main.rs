//! The store against disks that lie, peers that vanish and clocks that only tests control.
//!
//! Time is tokio's paused clock: it jumps to the next timer when nothing else can run, so a test
//! with elections takes milliseconds and none depends on the speed of the machine.

mod cluster;
mod damage;
mod durability;
mod elections;
mod limits;
mod strangers;
mod suite;
mod support;
