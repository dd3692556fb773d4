//! Who is at the door, and how parts of the cell get the papers they show there.
//!
//! | file | what |
//! |---|---|
//! | `caller` | from evidence (certificate, token, nothing) to a caller; pure |
//! | `authorization_header` | what a request shows of who asks, taken out of it |
//! | `request_origin` | whether a web page sent it |
//! | `join` | a join token and a signing request against a certificate; renewal |
//! | `rejection_audit` | how much of those who are turned away is taken down |
//! | `listener` | the accept loop: handshake, caps, one `Caller` per request |
//! | `authenticator` | the listener's questions, answered from the replicated state and the audit log |
//! | `enrollment_routes` | joining and renewing over HTTP |
//! | `replica_credentials` | this replica's own certificate, kept fresh |
//!
//! A cell is its own authority: nothing outside has to be installed, asked or trusted, and a
//! certificate says no more than which part of which cell its holder is. What that part may do is
//! decided by exact match on the `Caller`, and what matches nothing is refused.
//!
//! Rejected: trusting every certificate of the authority alike and telling parts apart by address.
//! Addresses are lent; names are signed.

pub mod authenticator;
pub mod authorization_header;
pub mod caller;
pub mod enrollment_routes;
pub mod join;
pub mod listener;
pub mod rejection_audit;
pub mod replica_credentials;
pub mod request_origin;
#[cfg(test)]
mod tests;
