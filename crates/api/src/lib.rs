//! How processes speak to each other: public API types and errors, the routes and their OpenAPI
//! document, the versions of messages between parts, and the HTTP client that all parts use. What
//! the parts tell each other is in `cellwright_messages`.

pub mod client;
pub mod error;
pub mod exec;
pub mod level;
pub mod masters;
pub mod openapi;
pub mod output;
pub mod packages;
pub mod routes;
pub mod types;
pub mod wire;
