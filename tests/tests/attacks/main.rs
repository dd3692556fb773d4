//! Attacks on running cells, one file for each class. Each was once tried with success, or guards
//! the place where another of its class would be; what is documented as open stands in
//! `docs/security.md`.

mod derived_tokens;
mod descriptors;
mod dev_access;
mod durable_files;
mod join_tokens;
mod oracles;
mod other_accounts;
mod overload;
mod revoked_agent;
mod secure_master;
mod terminals;
mod users;
mod volumes;
