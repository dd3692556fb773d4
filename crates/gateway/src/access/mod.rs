//! Authentication of callers, and enrollment: how parts of the cell get their certificates.
//!
//! | file | what |
//! |---|---|
//! | `caller` | from presented credentials (certificate, token, none) to a caller; pure |
//! | `authorization_header` | the credentials in a request, removed from its headers |
//! | `request_origin` | whether a foreign web page sent it |
//! | `join` | a join token and a signing request exchanged for a certificate; renewal |
//! | `rejection_audit` | rate limit of audit lines for rejected requests |
//! | `listener` | the accept loop: handshake, limits, one `Caller` per request |
//! | `connection_auth` | the authentication state and rejections of one connection |
//! | `authenticator` | authentication by the replicated state, rejections to the audit log |
//! | `enrollment_routes` | joining and renewing over HTTP |
//! | `replica_credentials` | this replica's own certificate and its renewal |
//!
//! A cell is its own authority: nothing outside has to be installed, asked or trusted, and a
//! certificate says no more than which part of which cell its holder is. What that part may do is
//! decided by exact match on the `Caller`, and what matches nothing is rejected.
//!
//! Rejected: trusting every certificate of the authority alike and telling parts apart by address.
//! Addresses are reused; names are signed.

pub mod authenticator;
pub mod authorization_header;
pub mod caller;
mod connection_auth;
pub mod enrollment_routes;
pub mod join;
pub mod listener;
pub mod rejection_audit;
pub mod replica_credentials;
pub mod request_origin;
#[cfg(test)]
mod tests;
