//! Every message that crosses a process boundary: public API types and errors, the routes and their
//! OpenAPI document, the internal messages, and the HTTP client that all parts use.

pub mod client;
pub mod context;
pub mod credentials;
pub mod dev_token;
pub mod error;
pub mod exec;
pub mod incarnation;
pub mod internal;
pub mod masters;
pub mod openapi;
pub mod output;
pub mod packages;
pub mod routes;
pub mod types;
pub mod wire;
