//! The types of a cell (jobs, tasks, machines, users) and its replicated state machine.
//!
//! `Command → apply → events`: pure, deterministic and total. The same entries give the same bytes
//! of state on every replica, on every machine, in the simulator.
//!
//! **Invariant:** nothing here reads a clock, a file, a socket or a random source, starts a thread,
//! or iterates in hash order. Time, choices and ids of choice arrive inside commands.

pub mod actor;
pub mod admit;
pub mod alloc_pairing;
pub mod apply;
pub mod blob;
pub mod bounds;
pub mod command;
pub mod components;
pub mod constraint;
pub mod credential;
pub mod daemon;
mod dependency;
pub mod desired;
pub mod device;
pub mod disruption;
mod edit;
pub mod encode;
pub mod event;
pub mod explanation;
pub mod field;
pub mod fit;
pub mod gang;
pub mod health;
pub mod hold;
pub mod id;
pub mod invariant;
pub mod isolation;
pub mod job;
pub mod job_size;
pub mod label;
pub mod load;
pub mod log_saver;
pub mod machine;
pub mod machine_attributes;
pub mod named;
pub mod notice;
pub mod observed;
pub mod overcommit_eviction;
pub mod plan;
pub mod pressure_eviction;
pub mod priority;
pub mod quota;
pub mod reason;
pub mod reclaim;
pub mod replay_windows;
pub mod resource;
pub mod retry;
pub mod scale;
#[cfg(feature = "schema")]
pub mod schema_descriptions;
pub mod spec;
pub mod spec_change;
pub mod state;
pub mod suggestions;
pub mod tables;
pub mod task;
pub mod units;
pub mod update_policy;
pub mod whole_cores;
pub mod words;

pub use actor::Actor;
pub use cellwright_rows::{index, name, sorted_map, table, time};
pub use command::{Command, Done, Entry, Request, RequestId, Verdict};
pub use components::{cron, ephemeral, rollout, scaling};
pub use event::{Event, EventKind};
pub use state::State;
