//! The decisions of a machine's agent (B35, B38, B39), and nothing else: no process is started and
//! no file is read here. Real agents run it, and so do the virtual machines of `cell dev` and `cell
//! sim agents` and the simulated cells of the tests, so that what is tested without hardware is the
//! product and not a model of it.
//!
//! | part | what it is |
//! |---|---|
//! | [`agent`] | one agent: its orders, its attempts, its reports; events in, actions out |
//! | [`reconcile`] | orders, attempts, now → actions |
//! | [`resize`] | limits that change while a task runs: which are in force next |
//! | [`orders`] | the newest orders, and which responses are older than them |
//! | [`health`] | what the results of a health check mean |
//! | [`incarnation`] | the number of this life of the machine, and who has a later one |
//! | [`book`] | what tasks used, in entries that are kept until a master has them |
//! | [`metrics`] | numbers that tasks tell, from the text in which they do |
//! | [`usage`] | readings → rates, and the usage of a report |
//! | [`resource_control`] | kills and throttling on a crowded machine, and requests for evictions |
//! | [`cpus`] | sets of CPUs |
//!
//! **Invariant:** nothing here reads a clock, a file or a socket, or draws a random number: times
//! and observations arrive as arguments.
//!
//! Rejected: a trait of effects that the core calls. Actions as values can be compared, dropped and
//! repeated by a test; calls cannot.

pub mod agent;
pub mod book;
pub mod cpus;
pub mod health;
pub mod incarnation;
pub mod metrics;
pub mod orders;
pub mod reconcile;
pub mod resize;
pub mod resource_control;
pub mod usage;
