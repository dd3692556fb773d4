//! Who is who in a cell: certificates of its parts, the authority that signs them, how a part is
//! enrolled, and the TLS that they speak.
//!
//! | file | what |
//! |---|---|
//! | `authority` | the cell's own certificate authority |
//! | `files` | its key and a replica's certificate on disk |
//! | `enroll` | a join token and a signing request against a certificate; renewal |
//! | `spiffe` | the names in certificates: which part of which cell |
//! | `task_identity` | certificates of tasks |
//! | `tls` | client and server configurations, whom they trust |
//! | `secret` | tokens and keys in memory, their hashes |
//! | `private_files` | files and folders that nobody else may read |
//! | `connection_limits` | places for connections, by who is at the other end |
//! | `clock` | the one place where the wall clock is read |

pub mod authority;
pub mod clock;
pub mod connection_limits;
pub mod enroll;
pub mod files;
pub mod private_files;
pub mod secret;
pub mod spiffe;
pub mod task_identity;
pub mod tls;
