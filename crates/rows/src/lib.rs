//! Building blocks of replicated state, below the state itself: identities, names, log time,
//! copy-on-write tables and their durable bytes. A pure crate that defines rows of its own needs
//! this and not all of `cell`.
//!
//! **Invariant:** nothing here reads a clock, a file, a socket or a random source, starts a thread,
//! or iterates in hash order.

pub mod bytes;
pub mod envelope;
mod error;
pub mod id;
pub mod index;
pub mod name;
pub mod sorted_map;
pub mod table;
pub mod time;

pub use error::{LoadError, Violation};
