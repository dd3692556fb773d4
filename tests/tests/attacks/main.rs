//! Attacks on running cells, one file for each class. Each was once tried with success, or guards
//! the place where another of its class would be; what is documented as open stands in
//! `docs/security.md`.

mod derived_tokens;
mod descriptors;
mod dev_access;
mod dismissed_agent;
mod durable_files;
mod guarded;
mod join_tokens;
mod oracles;
mod other_accounts;
mod overload;
mod terminals;
mod users;
mod volumes;
