//! A service under a load: on it the rules are tried, and compared with others.
//!
//! The service is a queue with cores behind it ([`service`]); who sizes it is a [`sizers::Sizer`];
//! [mod@compare] runs several of them on the same minutes. Everything is a function of its
//! arguments, so that a trace gives the same figures everywhere.
//!
//! It stands beside the rules and not with the other experiments, because that rules do not fight
//! can only be shown on something that answers to them.

pub mod compare;
pub mod service;
pub mod sizers;

pub use compare::{Outcome, Scenario, compare, run, smallest_fixed};

#[cfg(test)]
mod tests;
