//! The face of a master: the process around the replica, and the HTTP API.
//!
//! | module | what |
//! |---|---|
//! | `serve` | a master as a process: replica, listeners and loops put together |
//! | `config` | its configuration file |
//! | `init` | the data directory of a new cell |
//! | `access` | who calls: listener, certificates, tokens, joining |
//! | `http` | the public API and the console |
//! | `http_peers` | what replicas ask each other, over HTTP |
//! | `membership` | how a replica that has its certificate becomes a member |

pub mod access;
pub mod config;
pub mod http;
pub mod http_peers;
pub mod init;
pub mod membership;
pub mod serve;
