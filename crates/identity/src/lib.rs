//! Identity in a cell: certificates of its parts, the certificate authority that signs them,
//! enrollment with join tokens, and mutual TLS.
//!
//! | file | what |
//! |---|---|
//! | `authority` | the cell's own certificate authority |
//! | `files` | its key and a replica's certificate on disk |
//! | `enroll` | a join token and a signing request exchanged for a certificate; renewal |
//! | `spiffe` | SPIFFE ids in certificates: which part of which cell |
//! | `task_identity` | certificates of tasks |
//! | `tls` | client and server configurations and their certificate verifiers |
//! | `secret` | tokens and keys in memory, their hashes |
//! | `contexts` | the file of a user or part: its cells, and its credentials there |
//! | `dev_token` | the token of a dev master, for its own account |
//! | `public_tls` | TLS to servers that are no part of the cell |
//! | `private_files` | files and folders that nobody else may read |
//! | `connection_limits` | limits on connections, by identity or by source address |
//! | `clock` | the one place where the wall clock is read |

pub mod authority;
pub mod clock;
pub mod connection_limits;
pub mod contexts;
pub mod dev_token;
pub mod enroll;
pub mod files;
pub mod private_files;
pub mod public_tls;
pub mod secret;
pub mod spiffe;
pub mod task_identity;
pub mod tls;
