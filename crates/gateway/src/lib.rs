//! The API server of a master: the process around the replica, and the HTTP API.
//!
//! | module | what |
//! |---|---|
//! | `serve` | a master as a process: replica, listeners and background loops |
//! | `config` | its configuration file |
//! | `init` | the data directory of a new cell |
//! | `access` | authentication: listener, certificates, tokens, enrollment |
//! | `archiver` | puts what is over into the archive |
//! | `http` | the public API and the console |
//! | `http_peers` | calls between replicas, over HTTP |
//! | `membership` | how a replica that has its certificate becomes a member |

pub mod access;
pub mod archiver;
pub mod config;
pub mod http;
pub mod http_peers;
pub mod init;
pub mod membership;
pub mod serve;
mod wire;
